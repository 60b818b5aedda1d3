"""The order of pops: what designs promise of it, and whether a log of pops kept to that.

Such a log is the archive of a queue with `archive_at_pop=on`, or a smoke or trial run.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum


class Order(Enum):
    """What a design promises about the order of pops; what the smoke test and the tests check."""

    NONE = "none"
    LAX = "lax"
    """In order, but overtaken while another consumer holds it or its commit is late."""
    STRICT = "strict"
    """In the order of the ids, exactly, whatever rolls back or commits late."""
    NUMBERS = "numbers"
    """In the order in which numbers were drawn, not of commits."""
    SESSIONS = "sessions"
    """In the order of each session's own pushes; between sessions there is none."""
    LIFO = "lifo"
    DUE = "due"
    """By due time, and never before it."""

    @property
    def promise(self) -> str:
        """The same in words, for operators."""
        return _PROMISES[self]


_PROMISES = {
    Order.NONE: "none",
    Order.LAX: "as pushed; a message is overtaken while another consumer holds it or its commit "
    "is late",
    Order.STRICT: "as pushed, exactly, whatever rolls back or commits late",
    Order.NUMBERS: "of the numbers that pushes drew, not of their commits",
    Order.SESSIONS: "of each session's own pushes; between sessions none",
    Order.LIFO: "the newest first",
    Order.DUE: "by due time, and never before it",
}


@dataclass(frozen=True)
class Pop:
    """One pop. `number`: what rises with each push. What is None nobody wrote down."""

    number: int
    pushed_at: datetime | None = None
    popped_at: datetime | None = None
    due_at: datetime | None = None


@dataclass(frozen=True)
class Overtaken:
    """A message that came after some that were pushed later."""

    pop: Pop
    by: int
    """How many these are."""
    first: Pop
    """The first of them to be popped."""

    @property
    def late_seconds(self) -> float:
        """How long after that one it came; 0 where nobody wrote down when."""
        if self.pop.popped_at is None or self.first.popped_at is None:
            return 0.0
        return (self.pop.popped_at - self.first.popped_at).total_seconds()


@dataclass(frozen=True)
class OrderVerdict:
    order: Order
    pops: int
    overtaken: tuple[Overtaken, ...]
    """In the order of the log. Where no order of pushes is promised, none is looked for."""
    early: tuple[Pop, ...]
    """Popped before they were due."""

    @property
    def kept(self) -> bool:
        """Whether the promise was kept. A lax order is overtaken while a row is held, and one of
        numbers while a push is not committed: that is told, and no breach."""
        if self.order is Order.STRICT:
            return not self.overtaken
        return not self.early

    @property
    def farthest(self) -> int:
        """The most that overtook one message."""
        return max((one.by for one in self.overtaken), default=0)


def judge(log: Iterable[Pop], order: Order, tolerance: timedelta = timedelta(0)) -> OrderVerdict:
    """Judge pops in the order in which they ran, which need not be that of their commits.

    Where the times of the pushes are known, they have to agree with the numbers: a numbering that
    began again is no inversion. `tolerance`: a message popped so much before it was due is not
    early, for a clock may be set back while a pop runs.
    """
    pops = list(log)
    numbered = order in {Order.STRICT, Order.LAX, Order.NUMBERS}
    return OrderVerdict(
        order=order,
        pops=len(pops),
        overtaken=tuple(_overtaken(pops)) if numbered else (),
        early=tuple(p for p in pops if _is_early(p, tolerance)) if order is Order.DUE else (),
    )


def _is_early(pop: Pop, tolerance: timedelta) -> bool:
    return (
        pop.due_at is not None
        and pop.popped_at is not None
        and pop.popped_at < pop.due_at - tolerance
    )


def _overtaken(log: Sequence[Pop]) -> Iterator[Overtaken]:
    """Those of a higher number that came before: by number, each with its time and place."""
    numbers: list[int] = []
    times: list[float] = []
    places: list[int] = []
    for place, pop in enumerate(log):
        pushed = None if pop.pushed_at is None else pop.pushed_at.timestamp()
        least = -math.inf if pushed is None else pushed
        at = bisect_right(numbers, pop.number)
        before = zip(times[at:], places[at:], strict=True)
        if by := [found for time, found in before if time >= least]:
            yield Overtaken(pop, len(by), log[min(by)])
        numbers.insert(at, pop.number)
        times.insert(at, math.inf if pushed is None else pushed)
        places.insert(at, place)
