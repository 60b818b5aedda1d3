"""Filters that have a name: `@late` stands for the words that the configuration has for it."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from console.errors import UsageError

MARK = "@"
NAME = re.compile(r"[\w-]{1,64}")
"""What a filter can be called: one word, whatever it stands between."""

Words = Mapping[str, tuple[str, ...]]
"""The name of a filter of messages -> its words, as `--filter` has them."""


@dataclass(frozen=True)
class Saved:
    """The two kinds: of the messages of a queue, and of the overview's table of queues."""

    messages: Words = field(default_factory=dict)
    queues: Mapping[str, str] = field(default_factory=dict)
    """Name -> the line behind `/`."""


def expand(words: Iterable[str], saved: Words) -> tuple[str, ...]:
    """The words, each name replaced by what it stands for. UsageError for a name of nothing."""
    found: list[str] = []
    for word in words:
        found += _meant(word.removeprefix(MARK), saved) if word.startswith(MARK) else [word]
    return tuple(found)


def _meant(name: str, saved: Words) -> tuple[str, ...]:
    if name in saved:
        return saved[name]
    near = difflib.get_close_matches(name, saved, n=3)
    known = f"There are: {', '.join(saved)}." if saved else "None is saved for this connection."
    raise UsageError(
        f"There is no saved filter {name!r}.",
        why=known,
        next_step=f"Did you mean: {', '.join(MARK + one for one in near)}?" if near else "",
    )
