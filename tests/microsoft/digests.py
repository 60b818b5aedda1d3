"""The digests of the T-SQL texts that Microsoft's tools have read, by statement: `texts.txt`.

    python -m tests.microsoft.digests

has the tools read all of them and, if nothing is wrong, writes the file and prints what has
changed. A statement has a text for each kind of queue and each scope; its digest is that of all.
"""

import hashlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from console.designs import presets
from console.features.presets.discovery import LibraryTable, queue_of
from tests.contract.stand_in import HANGFIRE_MSSQL
from tests.microsoft.texts import COMMENT, Text, every_text, texts_of_library
from tests.microsoft.tools import NO_ICU, Tools, icu, tools, why_unavailable

_FILE = Path(__file__).with_name("texts.txt")
UNREAD = {
    r"ALTER QUEUE \[sales\]\.\[\w+\] (?:REBUILD|REORGANIZE);": "ScriptDom lacks it; the manual "
    'has it since SQL Server 2016 ("ALTER QUEUE (Transact-SQL)")',
    r"ALTER DATABASE \[\w+\] SET (?:ACCELERATED_DATABASE_RECOVERY|OPTIMIZED_LOCKING) = ON;": (
        "ScriptDom lacks both; "
        'the manual has them since 2019 and 2025 ("ALTER DATABASE SET options")'
    ),
}
"""What ScriptDom cannot parse, and why it is correct."""
_THROW_AFTER_BEGIN = re.compile(r"\bBEGIN(?=\s+(?:THROW|RECEIVE)\b)")
"""Management Studio's parser takes this for the first word of BEGIN CONVERSATION."""
_TABLES = {"hangfire": HANGFIRE_MSSQL}
"""Of each library, as its own installation creates them."""


def of(texts: Iterable[Text]) -> dict[str, str]:
    """Name -> how many texts it has, and their digest; comments and indentation do not count."""
    found: dict[str, set[str]] = defaultdict(set)
    for text in texts:
        lines = (line.strip() for line in COMMENT.sub("", text.text).splitlines())
        found[text.name].add("\n".join(filter(None, lines)))
    return {name: f"{len(some)} {_digest(sorted(some))}" for name, some in sorted(found.items())}


def _digest(texts: Sequence[str]) -> str:
    return hashlib.blake2b(repr(texts).encode(), digest_size=6).hexdigest()


def stored() -> dict[str, str]:
    """The digests in the file."""
    lines = _FILE.read_text(encoding="utf-8").splitlines() if _FILE.exists() else []
    return dict(line.split("\t") for line in lines)


def changed(now: dict[str, str]) -> list[str]:
    """The names whose digests are not those in the file."""
    before = stored()
    return sorted(name for name in now.keys() | before if now.get(name) != before.get(name))


def is_unread(text: Text) -> bool:
    return any(re.search(pattern, text.text) for pattern in UNREAD)


def errors_in(microsoft: Tools, texts: Sequence[Text]) -> Iterator[str]:
    """What ScriptDom, the checks of its trees and Management Studio's parser find in them."""
    distinct = list({text.text for text in texts})
    read = dict(zip(distinct, microsoft.trees(distinct), strict=True))
    # With a semicolon between BEGIN and THROW or RECEIVE Management Studio parses these too.
    plain = {one: _THROW_AFTER_BEGIN.sub("BEGIN;", COMMENT.sub("", one)) for one in distinct}
    distinct_plain = list(dict.fromkeys(plain.values()))
    from_studio = dict(zip(distinct_plain, microsoft.sqlparser(distinct_plain), strict=True))
    for text in texts:
        errors, mistakes = read[text.text].errors, read[text.text].mistakes
        if is_unread(text):
            errors = [] if errors else ["ScriptDom reads it now: see UNREAD"]
        yield from (
            f"{text.where}: {one}" for one in (*errors, *mistakes, *from_studio[plain[text.text]])
        )


def unbound(microsoft: Tools, library: str) -> list[str]:
    """The names in the library's statements that its tables do not have."""
    preset = presets("mssql")[library]
    beside = str(preset.found_by["beside"])
    table = LibraryTable("sales", str(preset.found_by["table"]), beside, None)
    texts = [("tables", _TABLES[library].format(schema="sales"))]
    for part in ("", "mail"):
        for text in texts_of_library(queue_of(preset, table, "jobs", part)):
            texts.append((f"{text.name} {len(texts)}", text.text))
    assert len(texts) > 30
    return microsoft.binder(texts)


def main() -> None:
    """Have the tools read all texts, and write the file."""
    if reason := why_unavailable() or ("" if icu() else NO_ICU):
        sys.exit(reason)
    with tools() as microsoft:
        found = list(errors_in(microsoft, every_text(everything=False)))
        for library in presets("mssql"):
            found += unbound(microsoft, library)
        if found:
            sys.exit("\n".join(found))
    now = of(every_text(everything=False))
    print(*changed(now), sep="\n")
    _FILE.write_text("".join(f"{name}\t{value}\n" for name, value in now.items()), encoding="utf-8")


if __name__ == "__main__":
    main()
