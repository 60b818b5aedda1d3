"""The order of the latest archived pops, compared with what the design promises.

It reads the pops of the last day among the newest rows of the archive. The archive numbers pops as
they run, not as they commit. Restored messages count as pushed again. Messages from before the
queue was installed are left out: an older archive may be of a queue with another order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from console.catalog import Kind, Queue
from console.designs import Order
from console.designs.order import OrderVerdict, Overtaken, Pop, judge
from console.doctor.context import CheckContext, CheckGroup, counted, first_few
from console.doctor.finding import Code, Finding
from console.formats import duration
from console.monitor.limits import Severity

FAR = 1_000
"""Batches of this size may overtake a message as a whole."""
LATE_SECONDS = 300.0
"""A message overtaken by that many is reported if it was popped this much later than the first."""
_TOLERANCE = timedelta(seconds=1)
"""A server's clock may be set back during a pop."""
_SHOWN = 10

_DONE = "it cannot be undone: only you can decide whether the work must be done again"

BROKEN = Code(
    "order_broken",
    Severity.WARNING,
    "a strict fifo: messages were popped after others that were pushed later",
    judgement=_DONE,
)
EARLY = Code(
    "popped_early", Severity.WARNING, "messages were popped before they were due", judgement=_DONE
)
OVERTAKEN = Code(
    "overtaken",
    Severity.NOTE,
    f"a message was popped minutes after {FAR:,} or more that were pushed later",
    judgement=_DONE,
)


_JUDGED = {Order.STRICT, Order.LAX, Order.NUMBERS, Order.DUE}


def applies(queue: Queue) -> bool:
    """Whether its pops are archived, and its design promises an order.

    A ring with subscribers archives a message when all have popped it, so not each pop.
    """
    kept = queue.options.get("archive_at_pop") == "on" and queue.kind is Kind.INSTALLED
    return kept and not queue.subscribers and queue.design.order_with(queue.options) in _JUDGED


@dataclass(frozen=True)
class PoppedRow:
    """A row of the statement `popped`, in the order of the pops."""

    id: int
    pushed_at: datetime | None
    popped_at: datetime | None
    due_at: datetime | None


def _check_order(context: CheckContext) -> Iterator[Finding]:
    queue = context.queue
    if not context.can_query("order of pops", "popped"):
        return
    since = queue.installed_at
    log = [
        Pop(row.id, row.pushed_at, row.popped_at, row.due_at)
        for row in context.query(PoppedRow, "popped")
        if since is None or row.pushed_at is None or row.pushed_at >= since
    ]
    yield from findings(judge(log, queue.design.order_with(queue.options), _TOLERANCE))


def findings(verdict: OrderVerdict) -> Iterator[Finding]:
    if verdict.early:
        yield _early(verdict)
    if verdict.order is Order.STRICT and verdict.overtaken:
        yield _broken(verdict)
    far = [
        overtaken
        for overtaken in verdict.overtaken
        if overtaken.by >= FAR and overtaken.late_seconds >= LATE_SECONDS
    ]
    if verdict.order is not Order.STRICT and far:
        yield _overtaken_by_far(verdict, far)


def _broken(verdict: OrderVerdict) -> Finding:
    late = verdict.overtaken
    return Finding(
        BROKEN,
        f"{counted(len(late), 'message')} popped after others that were pushed later: "
        f"{late[0].pop.number} after {late[0].first.number}",
        evidence={
            "pops": verdict.pops,
            "count": len(late),
            "farthest": verdict.farthest,
            "messages": [_evidence(overtaken) for overtaken in late[:_SHOWN]],
        },
        cause="messages were pushed or popped without the queue's own functions, or its code was "
        "changed",
        consequence="consumers that rely on the exact order processed these in the wrong one: "
        "check the results",
        since=late[0].pop.popped_at,
    )


def _evidence(overtaken: Overtaken) -> dict[str, object]:
    return {
        "id": overtaken.pop.number,
        "after": overtaken.first.number,
        "overtaken_by": overtaken.by,
        **_times(overtaken.pop),
    }


def _times(pop: Pop) -> dict[str, object]:
    times = {"pushed_at": pop.pushed_at, "due_at": pop.due_at, "popped_at": pop.popped_at}
    return {name: at.isoformat() for name, at in times.items() if at is not None}


def _early(verdict: OrderVerdict) -> Finding:
    early = verdict.early
    return Finding(
        EARLY,
        f"{counted(len(early), 'message')} popped before due: "
        + first_few([str(pop.number) for pop in early], most=3, between=", "),
        evidence={
            "pops": verdict.pops,
            "count": len(early),
            "messages": [{"id": pop.number, **_times(pop)} for pop in early[:_SHOWN]],
        },
        cause="they were popped without the queue's own functions, or its code was changed",
        consequence="they were processed too early",
        since=early[0].popped_at,
    )


def _overtaken_by_far(verdict: OrderVerdict, far: list[Overtaken]) -> Finding:
    worst = max(far, key=lambda overtaken: overtaken.by)
    return Finding(
        OVERTAKEN,
        f"{counted(len(far), 'message')} overtaken by {FAR:,} or more; {worst.pop.number}: by "
        f"{worst.by:,}, {duration(worst.late_seconds)} late",
        evidence={
            "pops": verdict.pops,
            "count": len(far),
            "farthest": worst.by,
            "messages": [_evidence(overtaken) for overtaken in far[:_SHOWN]],
        },
        cause="their push committed late, or a pop that held them was rolled back or died"
        if verdict.order is Order.LAX
        else "their push committed late, or a repair parked their numbers for later pops",
        consequence="the design allows it; if you need the exact order, use fifo with order=strict",
        since=far[0].pop.popped_at,
    )


CHECKS = CheckGroup((BROKEN, EARLY, OVERTAKEN), {"order of pops": _check_order}, applies)
