"""The order in which messages were popped, judged by what their design promises.

From a log of pops: the archive of a queue with `archive_at_pop=on`, or a smoke or trial run.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from console.designs.model import Order


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
class Verdict:
    """What a log says."""

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


def judge(log: Iterable[Pop], order: Order, tolerance: timedelta = timedelta(0)) -> Verdict:
    """Judge pops in the order in which they ran, which need not be that of their commits.

    Where the times of the pushes are known, they have to agree with the numbers: a numbering that
    began again is no inversion. `tolerance`: a message popped so much before it was due is not
    early, for a clock may be set back while a pop runs.
    """
    pops = list(log)
    numbered = order in {Order.STRICT, Order.LAX, Order.NUMBERS}
    return Verdict(
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
