"""Every T-SQL text, read by Microsoft's own tools: what a server could not run fails here."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from console.actions.libraries import LibraryTable, queue_of
from console.designs import presets
from tests.contract.stand_in import HANGFIRE_MSSQL
from tests.contract.variants import Variant
from tests.microsoft import digests
from tests.microsoft.texts import (
    COMMENT,
    VARIANTS,
    Text,
    composed,
    installations,
    printed,
    statements,
    statements_of,
    texts_of_library,
)
from tests.microsoft.tools import GRAMMARS, Tools, icu

UNREAD = {
    r"ALTER QUEUE \[sales\]\.\[\w+\] (?:REBUILD|REORGANIZE);": "ScriptDom lacks it; the manual "
    'has it since SQL Server 2016 ("ALTER QUEUE (Transact-SQL)")',
}
"""What ScriptDom cannot read, and why it is right."""

_THROW_AFTER_BEGIN = re.compile(r"\bBEGIN(?=\s+(?:THROW|RECEIVE)\b)")
"""There Management Studio's parser takes it for the first word of BEGIN CONVERSATION."""

UNBOUND = {
    r"\[other\]\.": "another queue, of which a name is all that is known",
    r"\[name\]": "any table or index: maintenance is given its name",
    r"\[orders_parked_place\]|\[place\]|\[orders_parked_places\]": (
        "of an older installation: dropped where it is"
    ),
    r"\[orders_\d+_push": "the rings that the bench pushes to one by one",
    r"\[of\]\.\[ring\.(subscriber_)?status \d+\].*\[size\]": (
        "an outer query's column in a CROSS APPLY"
    ),
}
"""Names that the binder cannot find, and why they are right."""
_OF_SUBSCRIBERS = {"ring.add_popped", "ring.consumers_at_work", "ring.subscriber_status"}
"""What only a ring with subscribers is asked: the tables are not there without."""


def every_text(*, everything: bool) -> list[Text]:
    """Each text, under each name that it has."""
    return [*statements(), *installations(), *composed(everything=everything)]


def is_unread(text: Text) -> bool:
    return any(re.search(pattern, text.text) for pattern in UNREAD)


def test_every_text_is_read_and_its_tree_is_as_before(microsoft: Tools) -> None:
    """By ScriptDom and by Management Studio's parser. One test, so that one process has the texts.

    What nobody can run here is changed on purpose only: `python -m tests.microsoft.digests`.
    """
    texts = every_text(everything=False)
    once = list({text.text for text in texts})
    found = dict(zip(once, microsoft.trees(once), strict=True))
    read = [(text, found[text.text]) for text in texts]
    bad = [
        f"{text.where}: {one.errors[0]}" for text, one in read if one.errors and not is_unread(text)
    ]
    assert not bad, "\n".join(bad)
    assert all(one.errors for text, one in read if is_unread(text)), "it has learned: see UNREAD"

    bad = [f"{text.where}: {mistake}" for text, one in read for mistake in one.mistakes]
    assert not bad, "\n".join(bad)

    now = digests.of((text.name, one.digest) for text, one in read if digests.is_kept(text))
    before = digests.kept()
    changed = {name for name in now.keys() | before.keys() if now.get(name) != before.get(name)}
    assert not changed, f"{sorted(changed)}; if it is meant so: python -m tests.microsoft.digests"

    bad = [f"{text.where}: {one}" for text, one in unread_by_management_studio(microsoft, texts)]
    assert not bad, "\n".join(bad)


def unread_by_management_studio(
    microsoft: Tools, texts: Sequence[Text]
) -> Iterator[tuple[Text, list[str]]]:
    """But for BEGIN before THROW or RECEIVE: a semicolon after it, and it reads those too."""
    plain = [_THROW_AFTER_BEGIN.sub("BEGIN;", COMMENT.sub("", text.text)) for text in texts]
    once = list(dict.fromkeys(plain))
    found = dict(zip(once, microsoft.sqlparser(once), strict=True))
    return ((text, found[of]) for text, of in zip(texts, plain, strict=True) if found[of])


@pytest.mark.long  # the newest grammar reads most of them in the short tier
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_every_grammar_reads_every_text(microsoft: Tools, grammar: str) -> None:
    texts = [text for text in every_text(everything=True) if not is_unread(text)]
    found = microsoft.scriptdom([text.text for text in texts], grammar)
    bad = [f"{text.where}: {one[0]}" for text, one in zip(texts, found, strict=True) if one]
    assert not bad, "\n".join(bad)


@pytest.mark.long  # all samples; the short tier has the telling ones
def test_no_tree_of_any_sample_has_a_mistake(microsoft: Tools) -> None:
    texts = every_text(everything=True)
    found = microsoft.trees([text.text for text in texts])
    bad = [f"{t.where}: {m}" for t, one in zip(texts, found, strict=True) for m in one.mistakes]
    assert not bad, "\n".join(bad)


@pytest.mark.long  # some minutes
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_name_is_bound(microsoft: Tools, variant: Variant) -> None:
    """Tables, columns, parameters, indexes, variables: DacFx knows what each name stands for."""
    if not icu():
        pytest.skip("the binder wants ICU, for collations: libicu72, for example")
    numbers = Counter[str]()
    texts: list[tuple[str, str]] = []
    not_asked = set() if "subscribers" in str(variant) else _OF_SUBSCRIBERS
    for text in (*printed(variant), *statements_of([variant])):
        if text.name in not_asked:
            continue
        numbers[text.name] += 1
        texts.append((f"{text.name} {numbers[text.name]}", text.text))
    found = microsoft.binder(texts)
    bad = [one for one in found if not any(re.search(pattern, one) for pattern in UNBOUND)]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("name", presets("mssql"))
def test_every_name_of_a_library_is_bound(microsoft: Tools, name: str) -> None:
    """Against tables as its own installation makes them."""
    if not icu():
        pytest.skip("the binder wants ICU, for collations: libicu72, for example")
    of = presets("mssql")[name]
    beside = str(of.found_by["beside"])
    table = LibraryTable("sales", str(of.found_by["table"]), beside, None)
    texts = [("tables", _TABLES[name].format(schema="sales"))]
    for part in ("", "mail"):
        for text in texts_of_library(queue_of(of, table, "jobs", part)):
            texts.append((f"{text.name} {len(texts)}", text.text))
    assert len(texts) > 30
    assert microsoft.binder(texts) == []


_TABLES = {"hangfire": HANGFIRE_MSSQL}
