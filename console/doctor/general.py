"""Checks of any queue: limits, a ring's headroom, errors, archiving, bloat, waits."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from console.actions import maintenance
from console.catalog import Kind, Queue
from console.designs import Flow
from console.doctor.context import (
    MOST,
    CheckContext,
    CheckGroup,
    command,
    counted,
    first_few,
    shortened,
)
from console.doctor.finding import Code, Finding
from console.doctor.repairs import archive_done, maintain_queue, resize
from console.doctor.sessions import holder
from console.figures import LIMITS
from console.formats import duration
from console.monitor.activity import Session
from console.monitor.known_waits import explain
from console.monitor.limits import Exceeded, Severity, judge
from console.monitor.message import masked
from console.monitor.snapshot import QueueSnapshot

FULL_CRITICAL_SECONDS = 300.0
FULL_WARNING_SECONDS = 3600.0
FULL_SHARE = 0.5
"""With less of a ring in use there is no backlog yet: its rates may be a burst's."""
FULL_LEAST = 0.1
"""With a smaller share of the pushes left over by the pops, it may be chance."""
BURST_SECONDS = 600.0
BURST_LEAST = 10
BURST_TIMES = 3.0
"""A burst is more than this many times the day's average in as long."""
XMIN_NOTE_SECONDS = 3600.0
XMIN_WARNING_SECONDS = 86_400.0
XMIN_WARNING_TRANSACTIONS = 100_000_000
_DAY_SECONDS = 86_400.0
_WAITED_SECONDS = 1.0
_IDLE_SECONDS = 10.0
_FREQUENT = 3
"""This many sessions in the same wait are reported, however briefly they wait."""

LIMIT_CRITICAL = Code(
    "limit_critical",
    Severity.CRITICAL,
    "a figure has reached its critical limit",
    judgement="a limit says that it is too much, not why: see the cause",
)
FULL_SOON = Code(
    "full_soon",
    Severity.CRITICAL,
    "at its present rates the ring is full within 5 minutes",
    judgement="only you can decide between more consumers and a larger ring",
    repair="resize, to twice the slots",
)
LIMIT = Code(
    "limit_reached",
    Severity.WARNING,
    "a figure has reached its limit",
    judgement="a limit says that it is too much, not why: see the cause",
)
FULL_TODAY = Code(
    "full_within_hour",
    Severity.WARNING,
    "at its present rates the ring is full within an hour",
    judgement="only you can decide between more consumers and a larger ring",
    repair="resize, to twice the slots",
)
BURST = Code(
    "error_burst",
    Severity.WARNING,
    "many more errors in the last 10 minutes than in the day before",
    judgement="the error texts say what to repair first",
)
XMIN_LONG = Code(
    "xmin_held_long",
    Severity.WARNING,
    "dead rows of the whole database could not be removed for over a day",
    judgement="what keeps them may be in use: have its owner end it, or drop the slot",
)
ARCHIVE_LAGS = Code("archive_lags", Severity.NOTE, "done rows older than a day", repair="archive")
BLOAT = Code(
    "bloat",
    Severity.NOTE,
    "dead rows, bloated indexes or old statistics: see maintain",
    repair="maintain (doctor --fix)",
)
XMIN = Code(
    "xmin_held",
    Severity.NOTE,
    "dead rows of the whole database could not be removed for over an hour",
    judgement="what keeps them may be in use: have its owner end it, or drop the slot",
)
WAITS = Code(
    "waits",
    Severity.NOTE,
    "what the queue's sessions wait for now, and what that means",
    judgement="a wait alone is not a fault: see which session blocks which",
)


def _check_figures(context: CheckContext) -> Iterator[Finding]:
    if context.snapshot is not None:
        yield from check_limits(context, context.snapshot)
        yield from check_full(context.snapshot, context.queue)


def check_limits(context: CheckContext, seen: QueueSnapshot) -> Iterator[Finding]:
    """Limits that are reached. An installed ring has its own checks of how full it is."""
    ring = context.queue.design.flow is Flow.NUMBERS and context.queue.kind is Kind.INSTALLED
    for exceeded in judge(seen, context.thresholds):
        if ring and exceeded.figure == "gap_share":
            continue
        yield Finding(
            LIMIT_CRITICAL if exceeded.level is Severity.CRITICAL else LIMIT,
            exceeded.reason,
            evidence=exceeded.as_json() | {"estimated": exceeded.estimated},
            estimated=("value",) if exceeded.estimated else (),
            cause=_cause(seen, exceeded),
            consequence=_consequence(exceeded, context.queue),
            for_seconds=exceeded.value if exceeded.figure == "age" else None,
            judgement=_limit_judgement(context, exceeded),
        )


def _cause(seen: QueueSnapshot, exceeded: Exceeded) -> str:
    if seen.paused is not None and exceeded.figure != "errors":
        return f"it is {seen.paused.words}"
    return LIMITS[exceeded.figure].cause


def _consequence(exceeded: Exceeded, queue: Queue) -> str:
    if exceeded.figure == "errors":
        archives = queue.kind is Kind.INSTALLED and "archive" in queue.verbs
        return "they stay until an operator requeues" + " or archives" * archives + " them"
    if exceeded.figure == "gap_share":
        return "a full ring takes no more pushes"
    return "messages are delivered late"


def _limit_judgement(context: CheckContext, exceeded: Exceeded) -> str:
    queue, seen = context.queue, context.snapshot
    if seen is not None and seen.paused and exceeded.figure != "errors":
        return f"it is paused: {command(queue, 'resume')}"
    if exceeded.figure == "errors" and "requeue" in queue.verbs:
        groups, again = command(queue, "errors"), command(queue, "requeue")
        return f"the error texts say what to repair first: {groups}; then {again}"
    if exceeded.figure == "gap_share" and "resize" in queue.verbs:
        return f"add consumers, or slots: {command(queue, 'resize', 'SIZE')}"
    return f"add consumers, or see what they wait for: {command(queue, 'waits')}"


def fills(seen: QueueSnapshot) -> bool:
    """Whether the ring is full within an hour over the whole range of its rates."""
    if seen.gap is None or not seen.capacity or not FULL_SHARE <= seen.gap / seen.capacity < 1:
        return False
    slowest = seen.filling_per_second[0] if seen.filling_per_second else 0.0
    if slowest <= 0 or slowest < FULL_LEAST * (seen.push_per_second or 0.0):
        return False
    latest = seen.full_in_range_seconds[1]
    return latest is not None and latest < FULL_WARNING_SECONDS


def check_full(seen: QueueSnapshot, queue: Queue) -> Iterator[Finding]:
    soonest, latest = seen.full_in_range_seconds
    middle = seen.full_in_seconds
    if not fills(seen) or soonest is None or latest is None or middle is None:
        return
    buys = None if seen.capacity is None else seen.resize_buys_seconds(2 * seen.capacity)
    yield Finding(
        FULL_SOON if latest < FULL_CRITICAL_SECONDS else FULL_TODAY,
        f"full in {duration(middle)} ({duration(soonest)} to {duration(latest)})",
        evidence={
            "gap": seen.gap,
            "capacity": seen.capacity,
            "push_per_second": seen.push_per_second,
            "pop_per_second": seen.pop_per_second,
            "full_in_seconds": middle,
            "full_in_soonest_seconds": soonest,
            "full_in_latest_seconds": latest,
            "doubling_buys_seconds": buys,
        },
        cause="more is pushed than popped",
        consequence="a full ring takes no more pushes. Add consumers"
        + (
            f", or resize: twice the slots give {duration(buys)} of headroom"
            if buys is not None
            else ""
        ),
        repair=resize(queue, seen.capacity or 0) if "resize" in queue.verbs else None,
    )


@dataclass(frozen=True)
class Errors:
    """The row of `recent_errors`: of the last 10 minutes, and of the day before them.

    Both are counted from the newest up to MOST + 1; then the rate is that of the time covered.
    """

    recent: int
    recent_seconds: float | None
    """How far back those go."""
    first_id: str | None
    first_error: str | None
    before: int
    before_seconds: float | None

    @property
    def seconds(self) -> float:
        """The time covered by the recent ones."""
        return BURST_SECONDS if self.recent <= MOST else self.recent_seconds or 0.0

    @property
    def expected(self) -> float:
        """The average number in a period of the same length before."""
        rest_seconds = _DAY_SECONDS - BURST_SECONDS
        span = rest_seconds if self.before <= MOST else self.before_seconds or 0.0
        return self.before * self.seconds / span if span > 0 else 0.0

    @property
    def is_burst(self) -> bool:
        if self.before > MOST and not self.before_seconds:
            return False  # all at one moment: no rate
        return self.recent >= BURST_LEAST and self.recent > BURST_TIMES * self.expected


def _check_burst(context: CheckContext) -> Iterator[Finding]:
    queue = context.queue
    ring = queue.design.flow is Flow.NUMBERS
    if "error" not in queue.states or not queue.finishes:
        return
    if not ring and "done_at" not in queue.roles:
        return  # no column has the time of failure
    if queue.design.library:
        return  # the time of failure is in another table, or not indexed
    if not context.can_query("errors", "recent_errors"):
        return
    where = queue.scope_of("recent_errors", context.database.product)
    (errors,) = context.query(Errors, "recent_errors", where, recent=BURST_SECONDS)
    text = None if errors.first_error is None else masked(errors.first_error, context.masks)
    first = shortened(text or "?", 40)
    if errors.is_burst:
        yield Finding(
            BURST,
            f"{counted(min(errors.recent, MOST), 'error')} in the last {duration(errors.seconds)}, "
            f"baseline ≈{errors.expected:,.1f}; the first: {first}",
            evidence={
                "recent": errors.recent,
                "recent_seconds": errors.seconds,
                "before": errors.before,
                "before_seconds": errors.before_seconds,
                "usual": round(errors.expected, 2),
                "first_id": errors.first_id,
                "first_error": text,
            },
            cause="most likely what the text of the first one says",
            consequence="they stay until an operator requeues them, once the cause is gone",
            for_seconds=errors.recent_seconds,
            judgement=f"the error groups: {command(queue, 'errors')}; then "
            f"{command(queue, 'requeue')}",
        )


@dataclass(frozen=True)
class _Lag:
    found: int
    oldest_seconds: float | None


def _check_archive(context: CheckContext) -> Iterator[Finding]:
    queue = context.queue
    if "done" not in queue.states or queue.kind is not Kind.INSTALLED:
        return
    if not context.can_query("archive", "done_lag"):
        return
    (lag,) = context.query(_Lag, "done_lag")
    if lag.found:
        yield Finding(
            ARCHIVE_LAGS,
            f"{counted(lag.found, 'done row')} older than a day",
            evidence={"count": lag.found, "oldest_seconds": lag.oldest_seconds},
            cause="they are not archived, or not fast enough",
            consequence="the table and its indexes grow, and every maintenance takes longer",
            for_seconds=lag.oldest_seconds,
            repair=archive_done(queue),
        )


def _check_bloat(context: CheckContext) -> Iterator[Finding]:
    measures = context.measures
    planned = maintenance.needed(
        context.database, context.queue, measures, maintenance.MaintainLimits()
    )
    # What normal use leaves behind is left to the server's own maintenance.
    steps = [step for step in planned.steps if not _daily(step)]
    if steps:
        words = [f"{step.what} {step.target}: {step.reason}" for step in steps]
        yield Finding(
            BLOAT,
            shortened(first_few(words, most=1), 100),
            evidence={"steps": [step.as_json() for step in steps]},
            cause="the server's own maintenance has not run yet, or was prevented",
            consequence="reads and writes touch more pages than necessary",
            repair=maintain_queue(
                context.queue, first_few([f"{s.what} {s.target}" for s in steps], between=", ")
            ),
        )
    if why := context.database.capabilities.missing.get("waits"):
        context.unseen.append(f"what keeps dead rows: {why}")
        return
    for row in measures.horizon[:1]:
        seconds, transactions = row.seconds or 0.0, row.transactions or 0
        long = seconds >= XMIN_WARNING_SECONDS or transactions >= XMIN_WARNING_TRANSACTIONS
        if long or seconds >= XMIN_NOTE_SECONDS:
            yield Finding(
                XMIN_LONG if long else XMIN,
                f"{holder(row)} keeps dead rows of all queues",
                evidence=dict(vars(row)),
                cause="a transaction that does not end, or a replica that does not catch up",
                consequence=f"no {context.database.product.cleaner} removes rows that died "
                "since; every queue here gets slower",
                for_seconds=row.seconds,
                judgement="it may be in use: have its owner end it, or drop the slot; "
                f"{command(context.queue, 'waits')} shows it",
            )


def _daily(step: maintenance.MaintainStep) -> bool:
    """Too few dead rows or changes to be worth a note."""
    if step.what == "ANALYZE":
        return dict(step.figures).get("live_rows", 0.0) < MOST
    return step.what == "VACUUM" and dict(step.figures).get("dead_rows", 0.0) < MOST


def check_waits(context: CheckContext) -> Iterator[Finding]:
    """A note for each wait that lasts, or that many sessions are in."""
    if why := context.database.capabilities.missing.get("waits"):
        context.unseen.append(f"waits: {why}")
        return
    queue_name = (context.queue.schema, context.queue.name)
    found: defaultdict[tuple[str, str], list[Session]] = defaultdict(list)
    for session in context.activity.sessions:
        if queue_name in session.waits_in and session.wait_kind and session.wait:
            found[session.wait_kind, session.wait].append(session)
    for (kind, wait), sessions in sorted(found.items()):
        if kind == "CPU" or not (len(sessions) >= _FREQUENT or any(map(_lasts, sessions))):
            continue
        meaning = explain(context.database.product.name, kind, wait, context.queue)
        yield Finding(
            WAITS,
            f"{counted(len(sessions), 'session')}: {kind} {wait}",
            evidence={"kind": kind, "wait": wait, "sessions": [one.key for one in sessions[:10]]},
            cause=meaning or "a wait type that this console does not know",
            consequence="a session that waits does nothing else meanwhile",
            judgement="a wait alone is not a fault; which session blocks which: "
            f"{command(context.queue, 'waits')}",
        )


def _lasts(session: Session) -> bool:
    if session.wait_kind == "Lock":
        return (session.wait_seconds or 0.0) >= _WAITED_SECONDS
    return session.wait_kind == "Client" and (session.state_seconds or 0.0) >= _IDLE_SECONDS


CHECKS = CheckGroup(
    (
        *(LIMIT_CRITICAL, FULL_SOON),
        *(LIMIT, FULL_TODAY, BURST, XMIN_LONG),
        *(ARCHIVE_LAGS, BLOAT, XMIN, WAITS),
    ),
    {
        "general health": _check_figures,
        "errors": _check_burst,
        "archive": _check_archive,
        "bloat": _check_bloat,
        "waits": check_waits,
    },
)
