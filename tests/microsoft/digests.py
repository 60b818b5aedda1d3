"""Every T-SQL text as it was when Microsoft's tools last read it, by its statement: `texts.txt`.

    python -m tests.microsoft.digests

reads all of them and, if nothing is wrong, writes the file and prints what has changed. A statement
has a text for each kind of queue and each scope it is rendered for; its digest is that of all.
"""

import hashlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.microsoft.texts import COMMENT, Text, every_text
from tests.microsoft.tools import Tools, tools, why_not

_FILE = Path(__file__).with_name("texts.txt")
UNREAD = {
    r"ALTER QUEUE \[sales\]\.\[\w+\] (?:REBUILD|REORGANIZE);": "ScriptDom lacks it; the manual "
    'has it since SQL Server 2016 ("ALTER QUEUE (Transact-SQL)")',
}
"""What ScriptDom cannot read, and why it is right."""
_THROW_AFTER_BEGIN = re.compile(r"\bBEGIN(?=\s+(?:THROW|RECEIVE)\b)")
"""There Management Studio's parser takes it for the first word of BEGIN CONVERSATION."""


def of(texts: Iterable[Text]) -> dict[str, str]:
    """Name -> how many texts it has, and their digest; comments and indentation do not count."""
    found: dict[str, set[str]] = defaultdict(set)
    for text in texts:
        lines = (line.strip() for line in COMMENT.sub("", text.text).splitlines())
        found[text.name].add("\n".join(filter(None, lines)))
    return {name: f"{len(some)} {_digest(sorted(some))}" for name, some in sorted(found.items())}


def _digest(texts: Sequence[str]) -> str:
    return hashlib.blake2b(repr(texts).encode(), digest_size=6).hexdigest()


def kept() -> dict[str, str]:
    """The digests in the file."""
    lines = _FILE.read_text(encoding="utf-8").splitlines() if _FILE.exists() else []
    return dict(line.split("\t") for line in lines)


def changed(now: dict[str, str]) -> list[str]:
    """The names whose digests are not those in the file."""
    before = kept()
    return sorted(name for name in now.keys() | before if now.get(name) != before.get(name))


def is_unread(text: Text) -> bool:
    return any(re.search(pattern, text.text) for pattern in UNREAD)


def wrong(microsoft: Tools, texts: Sequence[Text]) -> Iterator[str]:
    """What ScriptDom, its trees and Management Studio's parser find in them."""
    once = list({text.text for text in texts})
    read = dict(zip(once, microsoft.trees(once), strict=True))
    # A semicolon between BEGIN and THROW or RECEIVE, and Management Studio reads those too.
    plain = {one: _THROW_AFTER_BEGIN.sub("BEGIN;", COMMENT.sub("", one)) for one in once}
    parsed = list(dict.fromkeys(plain.values()))
    studio = dict(zip(parsed, microsoft.sqlparser(parsed), strict=True))
    for text in texts:
        errors, mistakes = read[text.text].errors, read[text.text].mistakes
        if is_unread(text):
            errors = [] if errors else ["ScriptDom reads it now: see UNREAD"]
        yield from (
            f"{text.where}: {one}" for one in (*errors, *mistakes, *studio[plain[text.text]])
        )


def main() -> None:
    """Read all, and write the file."""
    if reason := why_not():
        sys.exit(reason)
    with tools() as microsoft:
        if found := list(wrong(microsoft, every_text(everything=False))):
            sys.exit("\n".join(found))
    now = of(every_text(everything=False))
    print(*changed(now), sep="\n")
    _FILE.write_text("".join(f"{name}\t{value}\n" for name, value in now.items()), encoding="utf-8")


if __name__ == "__main__":
    main()
