"""What any queue may suffer from: limits, stopped consumers, errors, bloat, waits."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from console.actions import maintain
from console.catalog import Kind
from console.designs import Flow, Order
from console.doctor.checks import (
    MOST,
    ago,
    ask,
    can_ask,
    checked,
    clearer,
    counted,
    shortened,
    some,
)
from console.doctor.claims import scope_of
from console.doctor.finding import Code, Finding, Severity
from console.doctor.look import Look
from console.doctor.repairs import ArchiveDone, Maintain
from console.doctor.sessions import holder
from console.formats import duration
from console.monitor.activity import Session, find_objects
from console.monitor.activity import look as look_at_sessions
from console.monitor.known_waits import explain
from console.monitor.limits import Exceeded, Level, judge
from console.monitor.message import masked
from console.monitor.snapshot import QueueSnapshot

FULL_CRITICAL_SECONDS = 300.0
FULL_WARNING_SECONDS = 3600.0
FULL_SHARE = 0.5
"""Less of a ring than this in use is no backlog yet: its rates are those of a burst."""
FULL_LEAST = 0.1
"""So much more is pushed than popped, as a part of what is pushed, or it may be chance."""
BURST_SECONDS = 600.0
BURST_LEAST = 10
BURST_TIMES = 3.0
"""A burst is so many times what the rest of the day has in as long."""
XMIN_NOTE_SECONDS = 3600.0
XMIN_WARNING_SECONDS = 86_400.0
XMIN_WARNING_TRANSACTIONS = 100_000_000
_DAY_SECONDS = 86_400.0
_STILL_SECONDS = 3.0
"""How long a queue is looked at that seems to stand still: who waits for messages looks sooner."""
_WAITED_SECONDS = 1.0
_IDLE_SECONDS = 10.0
_FREQUENT = 3
"""So many sessions in one wait at a time are many."""

LIMIT_CRITICAL = Code(
    "limit_critical", Severity.CRITICAL, "a figure has reached its critical limit"
)
FULL_SOON = Code(
    "full_soon", Severity.CRITICAL, "at its present rates the ring is full within 5 minutes"
)
LIMIT = Code("limit_reached", Severity.WARNING, "a figure has reached its limit")
FULL_TODAY = Code(
    "full_within_hour", Severity.WARNING, "at its present rates the ring is full within an hour"
)
STOPPED = Code(
    "consumer_stopped", Severity.WARNING, "messages are ready and wait, and nothing is popped"
)
BURST = Code(
    "error_burst",
    Severity.WARNING,
    "many more errors in the last 10 minutes than in the day before",
)
XMIN_LONG = Code(
    "xmin_held_long",
    Severity.WARNING,
    "somebody has kept dead rows of the whole database from being cleared away for over a day",
)
ARCHIVE_LAGS = Code("archive_lags", Severity.NOTE, "done rows that are older than a day")
BLOAT = Code("bloat", Severity.NOTE, "dead rows, bloated indexes or old statistics: see maintain")
XMIN = Code(
    "xmin_held",
    Severity.NOTE,
    "somebody has kept dead rows of the whole database from being cleared away for over an hour",
)
WAITS = Code("waits", Severity.NOTE, "what sessions at the queue wait for now, and what that means")

CODES: tuple[Code, ...] = (
    *(LIMIT_CRITICAL, FULL_SOON),
    *(LIMIT, FULL_TODAY, STOPPED, BURST, XMIN_LONG),
    *(ARCHIVE_LAGS, BLOAT, XMIN, WAITS),
)


def examine(look: Look) -> Iterator[Finding]:
    """Every finding; what cannot be told goes to `look.unseen`."""
    if look.snapshot is not None:
        yield from limits_of(look, look.snapshot)
        yield from full_of(look.snapshot)
        yield from checked(look, "consumers", _stopped)
    yield from checked(look, "errors", _burst)
    yield from checked(look, "archive", _archive)
    yield from checked(look, "bloat", _bloat)
    yield from checked(look, "waits", waits_of)


def limits_of(look: Look, seen: QueueSnapshot) -> Iterator[Finding]:
    """Limits that are reached. How full a ring of ours is, its own family tells."""
    ring = look.queue.design.flow is Flow.NUMBERS and look.queue.kind is Kind.INSTALLED
    for one in judge(seen, look.thresholds):
        if ring and one.figure == "gap_share":
            continue
        yield Finding(
            LIMIT_CRITICAL if one.level is Level.CRITICAL else LIMIT,
            one.reason,
            evidence=one.as_json() | {"estimated": one.estimated},
            cause=_CAUSES[one.figure],
            consequence=_consequence(one),
            since=ago(one.value) if one.figure == "age" else None,
        )


_CAUSES = {
    "depth": "more is pushed than popped, or was",
    "age": "consumers do not come to it in time",
    "errors": "consumers failed them: dbq-console errors groups them by what they say",
    "gap_share": "more is pushed than popped",
}


def _consequence(one: Exceeded) -> str:
    if one.figure == "errors":
        return "they wait for an operator: requeue them, or archive them"
    if one.figure == "gap_share":
        return "a full ring takes no more pushes"
    return "messages come late"


def fills(seen: QueueSnapshot) -> bool:
    """Whether the ring is full within an hour by the whole range of its rates, not by chance."""
    if seen.gap is None or not seen.capacity or not FULL_SHARE <= seen.gap / seen.capacity < 1:
        return False
    slowest = seen.filling_per_second[0] if seen.filling_per_second else 0.0
    if slowest <= 0 or slowest < FULL_LEAST * (seen.push_per_second or 0.0):
        return False
    latest = seen.full_in_range_seconds[1]
    return latest is not None and latest < FULL_WARNING_SECONDS


def full_of(seen: QueueSnapshot) -> Iterator[Finding]:
    """When a ring is full, if it fills."""
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
        + (f", or resize: twice the slots buy {duration(buys)}" if buys is not None else ""),
    )


@dataclass(frozen=True)
class Pops:
    """What `pops` tells."""

    popped_seconds: float | None
    next: str | None
    popped: int | None
    counted_seconds: float | None

    @property
    def overdue_seconds(self) -> float:
        """For how long what is next is due, by our own clock; 0 where it is not, or not known."""
        try:
            due = datetime.fromisoformat(self.next or "")
        except ValueError:
            return 0.0
        due = due if due.tzinfo is not None else due.replace(tzinfo=UTC)
        return max(0.0, (datetime.now(UTC) - due).total_seconds())


def _stopped(look: Look) -> Iterator[Finding]:
    """Nothing is popped while messages wait. What cannot be told is no finding."""
    limit = look.thresholds.age_seconds.warning or look.thresholds.stuck_after_seconds
    seen = _backlog(look, limit)
    if seen is None or not can_ask(look, "consumers", "pops"):
        return
    (before,) = ask(look, Pops, "pops")
    idle = _idle_seconds(look, seen, before)
    fresh = look.queue.design.order is Order.DUE and before.overdue_seconds < limit
    unknown = idle is None and seen.pop_per_second is None
    if fresh or unknown or (idle is not None and idle < limit):
        return
    time.sleep(min(_STILL_SECONDS, look.patience_seconds))
    (after,) = ask(look, Pops, "pops")
    if (after.next, after.popped) != (before.next, before.popped):
        return
    since = "lately" if idle is None else f"for {duration(idle)}"
    yield Finding(
        STOPPED,
        f"{seen.ready:,} ready, the oldest for {duration(seen.age_seconds or 0.0)}, and nothing "
        f"was popped {since}",
        evidence={
            "ready": seen.ready,
            "age_seconds": seen.age_seconds,
            "idle_seconds": idle,
            "pop_per_second": seen.pop_per_second,
            "last_pop_seconds": before.popped_seconds,
        },
        cause="the consumers stopped, lost their connections, or wait for something else",
        consequence="the backlog grows until they come back",
        since=ago(idle),
    )


def _backlog(look: Look, limit: float) -> QueueSnapshot | None:
    """The figures, where messages wait for so long and nobody is seen to take one."""
    seen = look.snapshot
    if seen is None or not seen.ready or (seen.age_seconds or 0.0) < limit:
        return None
    # Who has a transaction open may be popping in it: see the sessions.
    quiet = not seen.pop_per_second and not seen.holders
    return seen if quiet and look.queue.kind is Kind.INSTALLED else None


def _idle_seconds(look: Look, seen: QueueSnapshot, pops: Pops) -> float | None:
    """For how long nothing was popped, at least; None: that left no trace."""
    if pops.popped_seconds is not None:
        return pops.popped_seconds
    never = pops.popped == 0 and not seen.claimed and look.database.capabilities.counts_rows
    if never and pops.counted_seconds is not None and seen.age_seconds is not None:
        return min(pops.counted_seconds, seen.age_seconds)
    return None


@dataclass(frozen=True)
class Errors:
    """What `errors_lately` tells: of 10 minutes, and of the newest of a day."""

    recent: int
    day: int
    span_seconds: float | None
    first_id: str | None
    first_error: str | None
    first_seconds: float | None

    @property
    def expected(self) -> float:
        """What the rest of the day has in as long as a burst may last."""
        span = _DAY_SECONDS if self.day <= MOST else self.span_seconds or 0.0
        before = span - BURST_SECONDS
        return (self.day - self.recent) * BURST_SECONDS / before if before > 0 else 0.0

    @property
    def is_burst(self) -> bool:
        """Many, and many more than usual."""
        return self.recent >= BURST_LEAST and self.recent > BURST_TIMES * self.expected


def _burst(look: Look) -> Iterator[Finding]:
    queue = look.queue
    ring = queue.design.flow is Flow.NUMBERS
    if "error" not in queue.states or not queue.finishes:
        return
    if not ring and "done_at" not in queue.roles:
        return  # no column tells when they failed, so none is newer than another
    if queue.design.library:
        return  # when they failed stands beside its table, or in no index of it
    if not can_ask(look, "errors", "errors_lately"):
        return
    where = scope_of(look.database.product, queue)
    (found,) = ask(look, Errors, "errors_lately", where, recent=BURST_SECONDS)
    said = None if found.first_error is None else masked(found.first_error, look.masks)
    first = shortened(said or "?", 40)
    if found.is_burst:
        yield Finding(
            BURST,
            f"{counted(found.recent, 'error')} in the last {duration(BURST_SECONDS)}, "
            f"≈{found.expected:.1f} are usual; the first: {first}",
            evidence={
                "recent": found.recent,
                "recent_seconds": BURST_SECONDS,
                "day": found.day,
                "usual": round(found.expected, 2),
                "first_id": found.first_id,
                "first_error": said,
            },
            cause="what the first of them says, most likely",
            consequence="they wait for an operator; once the cause is gone, requeue them",
            since=ago(found.first_seconds),
        )


@dataclass(frozen=True)
class _Lag:
    found: int
    oldest_seconds: float | None


def _archive(look: Look) -> Iterator[Finding]:
    queue = look.queue
    if "done" not in queue.states or queue.kind is not Kind.INSTALLED:
        return
    if not can_ask(look, "archive", "done_lag"):
        return
    (lag,) = ask(look, _Lag, "done_lag")
    if lag.found:
        yield Finding(
            ARCHIVE_LAGS,
            f"{counted(lag.found, 'done row')} older than a day",
            evidence={"count": lag.found, "oldest_seconds": lag.oldest_seconds},
            cause="nobody archives them, or not fast enough",
            consequence="the table and its indexes grow, and every maintenance takes longer",
            since=ago(lag.oldest_seconds),
            repair=ArchiveDone(queue),
        )


def _bloat(look: Look) -> Iterator[Finding]:
    measures = maintain.measure(look.database, look.queue)
    planned = maintain.picked(look.database, look.queue, measures, maintain.Limits())
    # What a queue that is in use leaves behind is daily work of the server's own.
    steps = [step for step in planned.steps if not _daily(step)]
    if steps:
        words = [f"{step.what} {step.target}: {step.reason}" for step in steps]
        yield Finding(
            BLOAT,
            shortened(some(words, most=1), 100),
            evidence={"steps": [step.as_json() for step in steps]},
            cause="the server's own maintenance has not come to it, or was kept from it",
            consequence="reads and writes take more pages than they need",
            repair=Maintain(
                look.queue, some([f"{s.what} {s.target}" for s in steps], between=", ")
            ),
        )
    if why := look.database.capabilities.missing.get("waits"):
        look.unseen.append(f"who keeps dead rows: {why}")
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
                consequence=f"no {clearer(look.database.product)} takes away what died since; "
                "every queue here gets slower",
                since=ago(row.seconds),
            )


def _daily(step: maintain.Step) -> bool:
    """Dead rows or old statistics in no number worth a note."""
    if step.what == "ANALYZE":
        return dict(step.figures).get("live_rows", 0.0) < MOST
    return step.what == "VACUUM" and dict(step.figures).get("dead_rows", 0.0) < MOST


def waits_of(look: Look) -> Iterator[Finding]:
    """A note for each wait that somebody at the queue is in for a while, or many are in."""
    if why := look.database.capabilities.missing.get("waits"):
        look.unseen.append(f"waits: {why}")
        return
    objects = find_objects(look.database, [look.queue])
    activity = look_at_sessions(look.database, objects)
    place = (look.queue.schema, look.queue.name)
    found: defaultdict[tuple[str, str], list[Session]] = defaultdict(list)
    for session in activity.sessions:
        if place in session.waits_in and session.wait_kind and session.wait:
            found[session.wait_kind, session.wait].append(session)
    for (kind, wait), sessions in sorted(found.items()):
        if kind == "CPU" or not (len(sessions) >= _FREQUENT or any(map(_lasts, sessions))):
            continue
        meaning = explain(look.database.product.name, kind, wait, look.queue)
        yield Finding(
            WAITS,
            f"{counted(len(sessions), 'session')}: {kind} {wait}",
            evidence={"kind": kind, "wait": wait, "sessions": _keys(sessions)},
            cause=meaning or "a wait that is not known here",
            consequence="see who waits for whom: dbq-console waits",
        )


def _lasts(session: Session) -> bool:
    if session.wait_kind == "Lock":
        return (session.wait_seconds or 0.0) >= _WAITED_SECONDS
    return session.wait_kind == "Client" and (session.state_seconds or 0.0) >= _IDLE_SECONDS


def _keys(sessions: Sequence[Session]) -> list[object]:
    return [session.key for session in sessions[:10]]
