"""The known waits of each engine, and what they mean for a queue."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from console.catalog import Queue


@dataclass(frozen=True)
class KnownWait:
    kind: str
    wait: str
    """A pattern with `*`; case is ignored, since versions of a server differ in it."""
    description: str
    meaning: str
    """For a queue of any design."""
    by_design: Mapping[str, str]
    """`fifo` or `fifo order=strict` -> what it means for such a queue."""

    def matches(self, wait: str) -> bool:
        return fnmatchcase(wait.lower(), self.wait.lower())

    def explanation(self, queue: Queue | None) -> str:
        means = self.meaning
        if queue is not None:
            # A design with an option is more specific than the design alone.
            keys = sorted(self.by_design, key=lambda key: -len(key.split()))
            means = next((self.by_design[key] for key in keys if _applies(queue, key)), means)
        return f"{self.description} {means}"


def _applies(queue: Queue, key: str) -> bool:
    """Whether the queue has the design and options of `fifo order=strict`."""
    design, *options = key.split()
    pairs = (option.partition("=") for option in options)
    return queue.design.shape == design and all(queue.options.get(n) == v for n, _, v in pairs)


@cache
def known_waits(engine: str) -> tuple[KnownWait, ...]:
    """The most specific patterns first."""
    text = Path(__file__).with_name(f"{engine}.toml").read_text(encoding="utf-8")
    found = [
        KnownWait(kind, wait, texts.pop("is"), texts.pop("means"), texts)
        for kind, waits in tomllib.loads(text).items()
        for wait, texts in waits.items()
    ]
    return tuple(sorted(found, key=lambda it: (-len(it.wait.replace("*", "")), "*" in it.wait)))


@cache
def find(engine: str, kind: str | None, wait: str) -> KnownWait | None:
    """Of that kind, or of any if the engine reports no kind."""
    known = (it for it in known_waits(engine) if kind in {None, it.kind})
    return next((it for it in known if it.matches(wait)), None)


def wait_kind_of(engine: str, wait: str | None) -> str | None:
    """For a wait that is reported without a kind."""
    known = find(engine, None, wait) if wait is not None else None
    return known.kind if known else None


def explain(engine: str, kind: str | None, wait: str | None, queue: Queue | None) -> str | None:
    """For the queue, or the database as a whole; None: the wait is not known."""
    known = find(engine, kind, wait) if wait is not None else None
    return known.explanation(queue) if known else None
