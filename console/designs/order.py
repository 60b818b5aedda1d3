"""The order of pops: what designs promise, and whether a log of pops conforms.

Such a log is the archive of a queue with `archive_at_pop=on`, or that of a smoke or trial run.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum


class Order(Enum):
    """The order of pops that a design promises; checked by smoke and the tests."""

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
        """A description for operators."""
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
    """One pop. `number` rises with each push. None: not recorded."""

    number: int
    pushed_at: datetime | None = None
    popped_at: datetime | None = None
    due_at: datetime | None = None


@dataclass(frozen=True)
class Overtaken:
    """A message that was popped after some that were pushed later."""

    pop: Pop
    by: int
    """How many overtook it."""
    first: Pop
    """The first of them to be popped."""

    @property
    def late_seconds(self) -> float:
        """How long after that one it was popped; 0 if not recorded."""
        if self.pop.popped_at is None or self.first.popped_at is None:
            return 0.0
        return (self.pop.popped_at - self.first.popped_at).total_seconds()


@dataclass(frozen=True)
class OrderVerdict:
    order: Order
    pops: int
    overtaken: tuple[Overtaken, ...]
    """In the order of the log; empty if no order of pushes is promised."""
    early: tuple[Pop, ...]
    """Popped before they were due."""

    @property
    def kept(self) -> bool:
        """Whether the promise was kept. LAX allows overtaking while a row is held, NUMBERS while a
        push is not committed: reported, but no violation."""
        if self.order is Order.STRICT:
            return not self.overtaken
        return not self.early

    @property
    def farthest(self) -> int:
        """The largest number of messages that overtook one."""
        return max((one.by for one in self.overtaken), default=0)


def judge(log: Iterable[Pop], order: Order, tolerance: timedelta = timedelta(0)) -> OrderVerdict:
    """Judge pops in the order in which they ran, not that of their commits.

    Push times, if known, must agree with the numbers, because a numbering may restart. `tolerance`:
    how early a message may be popped, because a clock may be set back meanwhile.
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
    """Messages of a lower number that were popped after higher ones; kept sorted by number."""
    numbers: list[int] = []
    times: list[float] = []
    positions: list[int] = []
    for position, pop in enumerate(log):
        pushed = None if pop.pushed_at is None else pop.pushed_at.timestamp()
        least = -math.inf if pushed is None else pushed
        at = bisect_right(numbers, pop.number)
        before = zip(times[at:], positions[at:], strict=True)
        if by := [found for time, found in before if time >= least]:
            yield Overtaken(pop, len(by), log[min(by)])
        numbers.insert(at, pop.number)
        times.insert(at, math.inf if pushed is None else pushed)
        positions.insert(at, position)
