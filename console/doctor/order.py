"""The order in which messages were popped, judged by what their design promises.

From a log of pops: the archive of a queue with `archive_at_pop=on`, or a smoke or trial run.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from console.designs import Order


@dataclass(frozen=True)
class Pop:
    """One pop, in the order of the log. `number`: what rises with each push."""

    number: int
    popped_at: datetime | None = None
    due_at: datetime | None = None


@dataclass(frozen=True)
class Verdict:
    """What a log says. An inversion: a message that came after one that was pushed later."""

    order: Order
    pops: int
    inversions: int
    """Messages that were overtaken by at least one."""
    farthest: int
    """The most that overtook one message."""
    early: int
    """Popped before they were due."""
    first: int | None
    """The number of the first message that the promise was broken with."""

    @property
    def kept(self) -> bool:
        """Whether the promise was kept. A lax order is overtaken while a row is held: that is
        told, and no breach."""
        if self.order is Order.STRICT:
            return not self.inversions
        return not self.early


def judge(pops: Iterable[Pop], order: Order) -> Verdict:
    """Judge a log of pops; of a stack, which has no such order, only that it was read."""
    log = list(pops)
    early = [pop for pop in log if _is_early(pop)] if order is Order.DUE else []
    overtaken = _overtaken(log) if order not in {Order.LIFO, Order.NONE, Order.DUE} else []
    broken = early or [pop for pop, _ in overtaken if order is Order.STRICT]
    return Verdict(
        order=order,
        pops=len(log),
        inversions=len(overtaken),
        farthest=max((by for _, by in overtaken), default=0),
        early=len(early),
        first=broken[0].number if broken else None,
    )


def _is_early(pop: Pop) -> bool:
    return pop.due_at is not None and pop.popped_at is not None and pop.popped_at < pop.due_at


def _overtaken(log: Sequence[Pop]) -> list[tuple[Pop, int]]:
    """Each pop that came after later pushes, and how many of these."""
    seen: list[int] = []
    found = []
    for pop in log:
        if by := len(seen) - bisect_left(seen, pop.number):
            found.append((pop, by))
        insort(seen, pop.number)
    return found
