"""What the known waits of an engine are and what they mean for a queue: one file of data each."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources

from console.catalog import Queue


@dataclass(frozen=True)
class KnownWait:
    """One wait in the engine's own words, with what it says about a queue."""

    kind: str
    wait: str
    """`*` stands for any letters; upper and lower case are the same."""
    description: str
    meaning: str
    """For a queue of any design."""
    by_design: Mapping[str, str]
    """`fifo` or `fifo order=strict` -> what it means for such a queue."""

    def is_meant_by(self, wait: str) -> bool:
        """Versions of a server write some waits in other cases."""
        return fnmatchcase(wait.lower(), self.wait.lower())

    def explained(self, queue: Queue | None) -> str:
        """What it is, and what it means for this queue."""
        means = self.meaning
        if queue is not None:
            # A design with an option says more than the design alone, so it is tried first.
            special = sorted(self.by_design, key=lambda words: -len(words.split()))
            means = next((self.by_design[key] for key in special if _is(queue, key)), means)
        return f"{self.description} {means}"


def _is(queue: Queue, words: str) -> bool:
    """Whether the queue is of that design and has those options: `fifo order=strict`."""
    design, *options = words.split()
    pairs = (option.partition("=") for option in options)
    return queue.design.shape == design and all(queue.options.get(n) == v for n, _, v in pairs)


@cache
def known_waits(engine: str) -> tuple[KnownWait, ...]:
    """All that is known of the engine's waits; the name that says most goes first."""
    text = resources.files(__name__).joinpath(f"{engine}.toml").read_text(encoding="utf-8")
    found = [
        KnownWait(kind, wait, said.pop("is"), said.pop("means"), said)
        for kind, waits in tomllib.loads(text).items()
        for wait, said in waits.items()
    ]
    return tuple(sorted(found, key=lambda it: (-len(it.wait.replace("*", "")), "*" in it.wait)))


@cache
def find(engine: str, kind: str | None, wait: str) -> KnownWait | None:
    """What is known of a wait, of that kind or, where the engine names none, of any."""
    known = (it for it in known_waits(engine) if kind in {None, it.kind})
    return next((it for it in known if it.is_meant_by(wait)), None)


def kind_of(engine: str, wait: str | None) -> str | None:
    """The kind of a wait that comes without one."""
    known = find(engine, None, wait) if wait is not None else None
    return known.kind if known else None


def explain(engine: str, kind: str | None, wait: str | None, queue: Queue | None) -> str | None:
    """What a wait is and means for the queue (None: for the database); None: it is not known."""
    known = find(engine, kind, wait) if wait is not None else None
    return known.explained(queue) if known else None
