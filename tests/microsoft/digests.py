"""The syntax tree of every statement as it was, by its name: `trees.txt`.

    python -m tests.microsoft.digests

writes it anew, and prints the names of those that changed. A statement has a tree for each kind of
queue and each scope it is rendered for; its digest is that of all of them.
"""

import hashlib
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.microsoft.texts import Text, composed, statements
from tests.microsoft.tools import tools, why_not

_FILE = Path(__file__).with_name("trees.txt")


def is_kept(text: Text) -> bool:
    """Whether it is kept: a printed installation consists of statements."""
    return not text.name.startswith("install ")


def of(trees: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Name -> how many trees it has, and their digest; of (name, a tree's digest)."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, digest in trees:
        found[name].add(digest)
    return {name: f"{len(one)} {_digest(sorted(one))}" for name, one in sorted(found.items())}


def _digest(digests: Iterable[str]) -> str:
    return hashlib.blake2b(" ".join(digests).encode(), digest_size=6).hexdigest()


def kept() -> dict[str, str]:
    """What stands in the file."""
    lines = _FILE.read_text(encoding="utf-8").splitlines() if _FILE.exists() else []
    return dict(line.split("\t") for line in lines)


def main() -> None:
    """Write what is so now."""
    if reason := why_not():
        sys.exit(reason)
    texts = [text for text in (*statements(), *composed(everything=False)) if is_kept(text)]
    with tools() as microsoft:
        read = microsoft.trees([text.text for text in texts])
    now = of((text.name, one.digest) for text, one in zip(texts, read, strict=True))
    before = kept()
    _FILE.write_text("".join(f"{name}\t{value}\n" for name, value in now.items()), encoding="utf-8")
    for name in sorted(now.keys() | before.keys()):
        if now.get(name) != before.get(name):
            print(name)


if __name__ == "__main__":
    main()
