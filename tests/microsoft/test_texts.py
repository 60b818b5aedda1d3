"""Every T-SQL text, read by Microsoft's own tools: what a server could not run fails here."""

import re
from collections import Counter

import pytest

from console.designs import presets
from tests.contract.variants import DEFAULTS, Variant, long_except, on
from tests.microsoft import digests
from tests.microsoft.texts import VARIANTS, every_text, printed, statements_of
from tests.microsoft.tools import GRAMMARS, NO_ICU, Tools, icu

UNBOUND = {
    r"\[other\]\.": "another queue, of which a name is all that is known",
    r"\[name\]": "any table or index: maintenance is given its name",
    r"\[orders_parked_place\]|\[place\]|\[orders_parked_places\]": (
        "of an older installation: dropped where it is"
    ),
    r"\[prove\.(de)?activate \d+\].*\[sales\]\.\[orders\]": "of Service Broker's queues only",
    r"\[master\]\.\[sys\]": "another database",
    r"\[orders_\d+_push": "the rings that the bench pushes to one by one",
    r"\[of\]\.\[ring\.(subscriber_)?status \d+\].*\[size\]": (
        "an outer query's column in a CROSS APPLY"
    ),
}
"""Names that the binder cannot find, and why they are correct."""
_OF_SUBSCRIBERS = {"ring.add_popped", "ring.consumers_at_work", "ring.subscriber_status"}
"""Statements only for rings with subscribers; other rings lack their tables."""


@pytest.mark.long  # in the short tier unit/test_mssql_texts.py checks that none has changed since
def test_every_text_is_valid_and_no_tree_has_a_mistake(microsoft: Tools) -> None:
    bad = list(digests.errors_in(microsoft, every_text(everything=True)))
    assert not bad, "\n".join(bad)


@pytest.mark.long  # the newest grammar is the test above
@pytest.mark.parametrize("grammar", GRAMMARS[:-1])
def test_every_grammar_reads_every_text(microsoft: Tools, grammar: str) -> None:
    texts = [text for text in every_text(everything=True) if not digests.is_unread(text)]
    scriptdom = microsoft.scriptdom([text.text for text in texts], grammar)
    bad = [f"{text.where}: {one[0]}" for text, one in zip(texts, scriptdom, strict=True) if one]
    assert not bad, "\n".join(bad)


@pytest.mark.slow
@pytest.mark.parametrize("variant", long_except(on("mssql", DEFAULTS), VARIANTS), ids=str)
def test_every_name_is_bound(microsoft: Tools, variant: Variant) -> None:
    """Tables, columns, parameters, indexes, variables: DacFx resolves each name."""
    if not icu():
        pytest.skip(NO_ICU)
    numbers = Counter[str]()
    texts: list[tuple[str, str]] = []
    excluded = set() if "subscribers" in str(variant) else _OF_SUBSCRIBERS
    for text in (*printed(variant), *statements_of([variant])):
        if text.name in excluded:
            continue
        numbers[text.name] += 1
        texts.append((f"{text.name} {numbers[text.name]}", text.text))
    binder = microsoft.binder(texts)
    bad = [one for one in binder if not any(re.search(pattern, one) for pattern in UNBOUND)]
    assert not bad, "\n".join(bad)


@pytest.mark.long  # `digests` does so too before it writes the file
@pytest.mark.parametrize("name", presets("mssql"))
def test_every_name_of_a_library_is_bound(microsoft: Tools, name: str) -> None:
    if not icu():
        pytest.skip(NO_ICU)
    assert digests.unbound(microsoft, name) == []
