"""Messages that are due, and were neither taken nor made ready."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from console.catalog import Queue
from console.designs import Order
from console.doctor.context import MOST, CheckContext, CheckGroup, command, counted
from console.doctor.finding import Code, Finding
from console.errors import ConnectionFailedError, ConsoleError
from console.formats import UNKNOWN, duration
from console.monitor.limits import Severity
from console.monitor.overdue import has_due_times, overdue

OVERDUE = Code(
    "messages_overdue",
    Severity.WARNING,
    "messages that were to be popped later, are due by now, and were not taken",
    judgement="start what takes them, or see what it waits for",
)


@dataclass(frozen=True)
class _Stager:
    stager: str | None


def _check_overdue(context: CheckContext) -> Iterator[Finding]:
    queue, limits = context.queue, context.thresholds["overdue"]
    given = [one for one in (limits.warning, limits.critical) if one is not None]
    if not given or not has_due_times(context.database.product, queue):
        return
    with context.limited_transaction() as connection:
        found = overdue(connection, queue, min(given), context.database.lag)
    if found.messages is None:
        context.unseen.append("due messages: row security hides them from this login")
    if not found.messages or found.oldest_seconds is None:
        return
    endless = math.isinf(found.oldest_seconds)
    first = "at -infinity" if endless else f"for {duration(found.oldest_seconds)}"
    evidence: dict[str, object] = {
        "messages": found.messages,
        "not_made_ready": found.not_made_ready,
        "oldest_seconds": None if endless else found.oldest_seconds,
        "oldest_id": found.id,
    }
    if found.not_made_ready and context.has("stager"):
        evidence["should_have"] = _stager(context)
    yield Finding(
        OVERDUE,
        f"{counted(min(found.messages, MOST + 1), 'message')} due and not taken, the first {first}",
        evidence=evidence,
        nullable=("should_have",),
        cause=_cause(context, evidence),
        consequence="they count as scheduled, and no consumer sees them before they are ready"
        if found.not_made_ready
        else "they are delivered late",
        for_seconds=found.oldest_seconds,
        judgement=queue.design.overdue
        or f"start consumers, or see what they wait for: {command(queue, 'consumers')}",
    )


def _stager(context: CheckContext) -> str | None:
    """Who should have made them ready, by the library's own table; None: no one, `?`: unknown."""
    try:
        return context.query(_Stager, "stager")[0].stager
    except ConnectionFailedError:
        raise
    except ConsoleError:
        return UNKNOWN


def _cause(context: CheckContext, evidence: dict[str, object]) -> str:
    seen, takes = context.snapshot, context.queue.design.takes_due
    if seen is not None and seen.paused is not None:
        return f"it is {seen.paused.words}"
    who = evidence.get("should_have", UNKNOWN)
    if not takes:
        return "no consumer pops them, or they do not get to them in time"
    if who == UNKNOWN:
        return takes
    return f"{takes}; by its own table, {f'that is {who}' if who else 'none does so'} now"


def _has_due_times(queue: Queue) -> bool:
    return queue.design.library != "" or queue.design.order is Order.DUE


CHECKS = CheckGroup((OVERDUE,), {"due messages": _check_overdue}, _has_due_times)
