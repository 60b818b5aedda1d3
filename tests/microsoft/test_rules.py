"""The table of the engine's rules agrees with the model."""

import re
from pathlib import Path

from tests.microsoft.rules import NO_SOURCE, RULES


def test_each_rule_is_named_where_the_model_applies_it() -> None:
    folder, named = Path(__file__).parent, set[str]()
    for file in ("server", "values", "interpreter", "broker"):
        for names in re.findall(
            r"[Rr]ules?: ([\w-]+(?:, [\w-]+)*)", (folder / f"{file}.py").read_text()
        ):
            named.update(names.split(", "))
    assert named == {rule.name for rule in RULES}
    assert len(RULES) == len(named)


def test_each_rule_has_a_source_or_says_that_it_has_none() -> None:
    for rule in RULES:
        assert rule.says
        assert re.search(rf"manual: \w|probed: \w|{NO_SOURCE}", rule.source), rule.name
