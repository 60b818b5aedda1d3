"""Stopped consumers: nothing is popped while messages wait, proven by two samples.

Active consumers leave traces: a pop is counted, another message is next, a session holds rows, or
a claim is young. If two samples that are `idle_for_seconds` apart by the database's clock show
none of these, consumption has stopped. If the database does not show it, it is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING

from console import sql
from console.catalog import Kind, Queue
from console.clock import sleep
from console.designs import Flow, Order
from console.doctor.context import LOCK_SECONDS, STATEMENT_SECONDS, command, counted
from console.doctor.finding import Code, Finding
from console.doctor.repairs import skip
from console.engines import Database
from console.errors import ConnectionFailedError, ConsoleError
from console.formats import count, duration
from console.monitor.limits import Severity, Thresholds, ThresholdsOf
from console.monitor.owners import Evidence
from console.monitor.rates import QueueName, StatusRow, key_of, undone_pops
from console.monitor.sample import DatabaseSample, QueueSample
from console.monitor.sample_queries import limit_transaction
from console.monitor.snapshot import QueueSnapshot, snapshot
from console.monitor.subscribers import full_in

if TYPE_CHECKING:
    from sqlalchemy import Connection

IDLE_FOR_SECONDS = 30.0
"""If nothing is popped for this long while messages wait, the consumers have stopped."""
_SAMPLES = (1 / 30, 1 / 6, 2 / 5, 1.0)
"""When to sample, as fractions of that time: active consumers are seen in the first ones."""
_SILENT_SECONDS = 1.0
"""For so long a diagnosis waits without saying what is known."""
COUNTERS_LAG_SECONDS = 10.0
"""An idle session reports what it has done so late."""
_REPEATED = 2
"""So many rollbacks of the same message are a loop."""
_AT_WORK_SECONDS = 1.0
"""A transaction open for this long may be a consumer at work; a shorter one is counted when it
ends."""

STOPPED = Code(
    "consumer_stopped",
    Severity.WARNING,
    "messages are ready and wait, and nothing is popped",
    judgement="consumers run outside the database: start them, or find out what they wait for",
)


HEAD_STUCK = Code(
    "head_stuck",
    Severity.WARNING,
    "a message is popped and put back again and again: its consumer fails, and rolls back",
    judgement="find out why it fails; to let the others pass, move it to the archive, from where "
    "it can be restored: purge --filter id=ID",
)


SUBSCRIBER = Code(
    "subscriber_stopped",
    Severity.WARNING,
    "a subscriber pops nothing while messages wait; critical if that soon fills the ring",
    judgement="its consumers run outside the database: start them",
    repair="skip, which archives what it owes; unsubscribe, if it is gone for good",
)


@dataclass(frozen=True)
class Position:
    """How far the pops of a queue have got: the row of the statement `pops`."""

    moment: float
    """The database's clock, in seconds."""
    popped_seconds: float | None
    """Since the last pop, if it leaves a trace."""
    next: str | None
    popped: int | None
    counted_seconds: float | None

    @property
    def overdue_seconds(self) -> float:
        """For how long the next message has been due; 0 if it is not, or not known."""
        try:
            due = datetime.fromisoformat(self.next or "")
        except ValueError:
            return 0.0
        due = due if due.tzinfo is not None else due.replace(tzinfo=UTC)
        return max(0.0, self.moment - due.timestamp())


class ConsumptionState(Enum):
    FINE = "active, or nothing waits for long"
    PENDING = "another sample is needed"
    UNKNOWN = "it cannot be determined"
    STOPPED = "no consumption"


_LEAST_KNOWN = (
    ConsumptionState.PENDING,
    ConsumptionState.UNKNOWN,
    ConsumptionState.STOPPED,
    ConsumptionState.FINE,
)
UNPROVEN = {ConsumptionState.PENDING, ConsumptionState.UNKNOWN}
"""States in which an earlier finding may still hold."""


@dataclass(frozen=True)
class ConsumptionVerdict:
    """Of one queue. `why`: what is not known, and why."""

    state: ConsumptionState
    why: str = ""
    findings: tuple[Finding, ...] = ()
    """One for each of a ring's subscribers."""


_FINE = ConsumptionVerdict(ConsumptionState.FINE)

Turn = Callable[[], AbstractContextManager[None]]
OnPending = Callable[[DatabaseSample, dict[QueueName, ConsumptionVerdict], float], None]
"""Called with what is known before the second sample, and the seconds until then."""


def _combined(verdicts: Sequence[ConsumptionVerdict]) -> ConsumptionVerdict:
    """A queue's verdict of its subscribers' ones: the least known state counts."""
    state = min(
        (verdict.state for verdict in verdicts), key=_LEAST_KNOWN.index, default=_FINE.state
    )
    findings = tuple(finding for verdict in verdicts for finding in verdict.findings)
    return ConsumptionVerdict(
        state, "; ".join(verdict.why for verdict in verdicts if verdict.why), findings
    )


_ViewKey = tuple[QueueName, str]
"""A queue, or one of its subscribers."""


def _view_key(queue: Queue) -> _ViewKey:
    return key_of(queue), queue.subscriber


@dataclass(frozen=True)
class _Head:
    """Since when the message that is next is it."""

    since: Position
    counted: Position
    """The sample from which on pops are counted: those before may be counted late."""
    row: StatusRow
    """Of that sample."""
    held_by: tuple[str, ...] = ()
    """Who has held rows since."""


def _pending(verdicts: Mapping[QueueName, ConsumptionVerdict]) -> set[QueueName]:
    return {k for k, verdict in verdicts.items() if verdict.state is ConsumptionState.PENDING}


class ConsumptionHistory:
    """What samples of a database's queues have shown, over several diagnoses."""

    def __init__(self, idle_for_seconds: float = IDLE_FOR_SECONDS, *, waits: bool = True) -> None:
        """`waits`: wait for the second sample, once for all queues. Not needed if diagnoses are
        repeated: then the next one is the second sample."""
        self.idle_for_seconds = idle_for_seconds
        self._waits = waits
        self._since: dict[_ViewKey, tuple[Position, int, StatusRow | None]] = {}
        """The first position that equals the current one, the gap then, and the counters."""
        self._heads: dict[_ViewKey, _Head] = {}

    def watch(
        self,
        database: Database,
        sampled: Callable[[Sequence[Queue] | None], DatabaseSample],
        thresholds_of: ThresholdsOf,
        snapshots: Mapping[QueueName, QueueSnapshot],
        on_pending: OnPending | None = None,
        turn: Turn = nullcontext,
    ) -> tuple[DatabaseSample, dict[QueueName, ConsumptionVerdict]]:
        """The latest sample of all queues, and their verdicts. `sampled`: samples these, or all.
        `snapshots`: recent ones, with rates. `on_pending`: called once, if this waits for long.
        `turn`: held while it works, not while it waits.

        Only queues that are in doubt at the first sample are waited for, each until it is settled:
        others may be late by then, but were not when they were asked about.
        """
        began = time.monotonic()
        with turn():
            sample = sampled(None)
            verdicts = self._judge(database, sample, thresholds_of, snapshots)
        parts = iter(_SAMPLES)
        of_all = True
        while self._waits and (pending := _pending(verdicts)):
            # The database's clock decides, and it may be a little slower than ours.
            part = next(parts, None)
            until = began + self.idle_for_seconds * (part or 1.0)
            if on_pending is not None and until - began > _SILENT_SECONDS:
                on_pending(sample, verdicts, began + self.idle_for_seconds - time.monotonic())
                on_pending = None
            sleep(until - time.monotonic() if part else 0.1)
            if time.monotonic() - began > 2 * self.idle_for_seconds + STATEMENT_SECONDS:
                break
            with turn():
                doubtful = [one.queue for one in sample.queues if key_of(one.queue) in pending]
                again = sampled(doubtful)
                verdicts |= self._judge(database, again, thresholds_of, {})
            of_all = False
        if not of_all:
            with turn():
                sample = sampled(None)
                new = [one for one in sample.queues if key_of(one.queue) not in verdicts]
                verdicts |= self._judge(
                    database, replace(sample, queues=tuple(new)), thresholds_of, {}
                )
        return sample, verdicts

    def _judge(
        self,
        database: Database,
        sample: DatabaseSample,
        thresholds_of: ThresholdsOf,
        snapshots: Mapping[QueueName, QueueSnapshot],
    ) -> dict[QueueName, ConsumptionVerdict]:
        verdicts: dict[QueueName, list[ConsumptionVerdict]] = {}
        waiting: list[tuple[QueueSample, QueueSnapshot, bool]] = []
        for sampled in sample.queues:
            key, thresholds = key_of(sampled.queue), thresholds_of(sampled.queue.name)
            verdicts[key] = []
            for one, seen, rate in _views_of(sampled, sample, snapshots.get(key)):
                # The pause explains why nothing is popped.
                if seen.paused or not self.waits_long(seen, thresholds):
                    self._since.pop(_view_key(one.queue), None)
                    self._heads.pop(_view_key(one.queue), None)
                else:
                    waiting.append((one, seen, bool(rate) or _at_work(seen, thresholds)))
        positions = _positions(database, [one for one, *_ in waiting], thresholds_of)
        for one, seen, active in waiting:
            position = positions[_view_key(one.queue)]
            if (stuck := self._head_stuck(one, seen, position)) is not None:
                verdicts[key_of(one.queue)].append(stuck)
            elif position is None or active:
                self._since.pop(_view_key(one.queue), None)
            else:
                verdicts[key_of(one.queue)].append(
                    ConsumptionVerdict(ConsumptionState.UNKNOWN, position)
                    if isinstance(position, str)
                    else self._compare(one, seen, position, thresholds_of(one.queue.name))
                )
        return {
            key: _combined(consumption_verdicts) for key, consumption_verdicts in verdicts.items()
        }

    def _head_stuck(
        self, sample: QueueSample, seen: QueueSnapshot, now: Position | str | None
    ) -> ConsumptionVerdict | None:
        """Proven by two samples: the same message is next, and pops were rolled back. None: no
        sign of it."""
        queue, key = sample.queue, _view_key(sample.queue)
        if not isinstance(now, Position) or sample.row is None or queue.design.flow is Flow.NUMBERS:
            self._heads.pop(key, None)
            return None
        head, ordered = self._heads.get(key), _shows_pops(queue, now)
        if head is None or (ordered and head.since.next != now.next):
            head = _Head(now, now, sample.row)
        elif head.counted.moment - head.since.moment < COUNTERS_LAG_SECONDS:
            head = replace(head, counted=now, row=sample.row)
        named = (f"{by.application_name or by.user_name} {by.session}" for by in seen.held_by)
        self._heads[key] = replace(head, held_by=tuple(dict.fromkeys((*head.held_by, *named))))
        undone, committed = undone_pops(head.row, sample.row) or (0, 0)
        if committed and not ordered:
            self._heads[key] = _Head(now, now, sample.row)
            return None
        seconds = now.moment - head.since.moment
        if seconds < self.idle_for_seconds:
            why = "pops are rolled back: asked again to see whether that goes on"
            return ConsumptionVerdict(ConsumptionState.PENDING, why) if undone else None
        if undone < _REPEATED:
            return None
        finding = _stuck_head(queue, seen, now, (seconds, undone, committed), self._heads[key])
        return ConsumptionVerdict(ConsumptionState.STOPPED, findings=(finding,))

    def _limit(self, thresholds: Thresholds) -> float:
        limits = thresholds["age"]
        return limits.warning or limits.critical or self.idle_for_seconds

    def waits_long(self, seen: QueueSnapshot, thresholds: Thresholds) -> bool:
        """Whether messages wait, or may wait, for longer than they should."""
        late = seen.age_seconds is None or seen.age_seconds >= self._limit(thresholds)
        return bool(seen.ready) and late

    def _compare(
        self, sample: QueueSample, seen: QueueSnapshot, now: Position, thresholds: Thresholds
    ) -> ConsumptionVerdict:
        queue = sample.queue
        key, limit = _view_key(queue), self._limit(thresholds)
        order = queue.design.order_with(queue.options)
        before, gap, row = self._since.setdefault(key, (now, seen.gap or 0, sample.row))
        fresh = now.popped_seconds is not None and now.popped_seconds < self.idle_for_seconds
        if order is Order.DUE and queue.kind is Kind.INSTALLED:
            fresh = fresh or now.overdue_seconds < limit
        # On a stack every push changes the next message, so that shows no pop.
        moved = now.next != before.next and order is not Order.LIFO
        young = now.moment - before.moment < self.idle_for_seconds
        undone = now.popped != before.popped and _may_be_undone(queue, now, row, sample.row)
        if undone and young and not (fresh or moved):
            why = "pops are counted, but not yet known to be committed: asked again"
            return ConsumptionVerdict(ConsumptionState.PENDING, why)
        if fresh or moved or now.popped != before.popped:
            self._since[key] = now, seen.gap or 0, sample.row
            return _FINE
        if young:
            return ConsumptionVerdict(
                ConsumptionState.PENDING,
                f"it takes two samples {duration(self.idle_for_seconds)} apart, and this is the "
                "first",
            )
        if why := _why_unknown(seen, before, now, thresholds):
            return ConsumptionVerdict(ConsumptionState.UNKNOWN, why)
        stopped = _stopped(queue, seen, before, now)
        if queue.subscriber:
            proven = now.moment - before.moment
            stopped = _of_subscriber(stopped, queue, seen, gap, proven, thresholds)
        return ConsumptionVerdict(ConsumptionState.STOPPED, findings=(stopped,))


def _views_of(
    sampled: QueueSample, sample: DatabaseSample, rated: QueueSnapshot | None
) -> Iterator[tuple[QueueSample, QueueSnapshot, float | None]]:
    """The queue, or each of its subscribers, with its figures and its pop rate.

    A subscriber's figures do not show who holds its rows or claims: see `_positions`.
    """
    seen = snapshot(sampled, sample.connection)
    if not sampled.queue.subscribers:
        yield sampled, seen, None if rated is None else rated.pop_per_second
        return
    figures = {
        subscriber_snapshot.subscriber: subscriber_snapshot
        for subscriber_snapshot in seen.subscribers or ()
    }
    rates = {
        subscriber_snapshot.subscriber: subscriber_snapshot
        for subscriber_snapshot in (rated and rated.subscribers) or ()
    }
    for view in sampled.queue.views:
        mine, rate = figures.get(view.subscriber), rates.get(view.subscriber)
        known = replace(
            seen,
            ready=None if mine is None else mine.ready,
            age_seconds=None if mine is None else mine.age_seconds,
            gap=None if mine is None else mine.gap,
            holders=0,
            held_by=(),
            claims=(),
            claimed=0,
            stuck=0,
        )
        yield replace(sampled, queue=view), known, None if rate is None else rate.pop_per_second


def _of_subscriber(
    stopped: Finding,
    queue: Queue,
    seen: QueueSnapshot,
    gap: int,
    proven_seconds: float,
    thresholds: Thresholds,
) -> Finding:
    """With how soon the subscriber fills the ring, and what frees its slots."""
    name, grown = queue.subscriber, (seen.gap or 0) - gap
    rate = grown / proven_seconds if proven_seconds else None
    seconds = full_in(seen.gap, seen.capacity, rate)
    fills = seconds is not None and seconds <= _stuck(thresholds)
    full = "" if seconds is None else f"; full in {duration(seconds)}" if seconds else "; full"
    return replace(
        stopped,
        code=replace(SUBSCRIBER, severity=Severity.CRITICAL) if fills else SUBSCRIBER,
        summary=f"{name}: {stopped.summary}{full}",
        evidence={
            "subscriber": name,
            **stopped.evidence,
            "gap": seen.gap,
            "capacity": seen.capacity,
            "full_in_seconds": seconds,
        },
        consequence="the others continue, but no slot is "
        "freed until it has popped it too: once the "
        f"ring is full, no push is stored. If {name} is gone for good: "
        f"{command(queue, 'unsubscribe', name)}",
        repair=skip(queue, name),
    )


def _at_work(seen: QueueSnapshot, thresholds: Thresholds) -> bool:
    """Whether a consumer is visibly working: in an open transaction, or on a claim."""
    ages = [holder.transaction_seconds for holder in seen.held_by]
    if any(age is None or age >= _AT_WORK_SECONDS for age in ages):
        return True
    young = [c for c in seen.claims or () if (c.claimed_seconds or 0.0) < _stuck(thresholds)]
    return any(claim.owner is Evidence.ALIVE for claim in young)


def _shows_pops(queue: Queue, now: Position) -> bool:
    """Whether the next message shows pops. On a stack every push changes it; a heap has none."""
    return now.next is not None and queue.design.order_with(queue.options) is not Order.LIFO


def _may_be_undone(
    queue: Queue, now: Position, before: StatusRow | None, row: StatusRow | None
) -> bool:
    """Whether pops may be counted though each was rolled back: the engine counts deleted rows,
    those that are there again included. Without an order the number of rows tells."""
    if queue.kind is not Kind.INSTALLED or queue.design.keeps_row or before is None or row is None:
        return False
    if queue.design.flow is Flow.NUMBERS:
        return False
    return _shows_pops(queue, now) or (undone_pops(before, row) or (0, 1))[1] == 0


def _stuck(thresholds: Thresholds) -> float:
    return thresholds.stuck_after_seconds


def _why_unknown(
    seen: QueueSnapshot, before: Position, now: Position, thresholds: Thresholds
) -> str:
    """Why two equal samples prove nothing here; empty if they do."""
    if seen.holders is None:
        return "the sessions that hold rows cannot be seen here"
    young = (seen.claimed or 0) - (seen.stuck or 0)
    proven_gone = sum(
        claim.bound and claim.owner is Evidence.GONE
        for claim in seen.claims or ()
        if (claim.claimed_seconds or 0.0) < _stuck(thresholds)
    )
    if young > proven_gone:
        return (
            f"nothing was popped, but the server does not know the owners of "
            f"{counted(young, 'claim')} younger than {duration(_stuck(thresholds))}"
        )
    if now.popped_seconds is not None:
        return ""
    if now.next is None:
        return "no pop was counted, and without an order no message is next"
    if now.next != before.next:
        return "messages are pushed onto the stack: no sample shows whether its bottom is popped"
    return ""


def _stopped(queue: Queue, seen: QueueSnapshot, before: Position, now: Position) -> Finding:
    proven = now.moment - before.moment
    idle = max(proven, _idle_seconds(seen, now) or 0.0)
    ready = count(seen.ready or 0, estimated="ready" in seen.estimated)
    oldest = "" if seen.age_seconds is None else f", the oldest for {duration(seen.age_seconds)}"
    return Finding(
        STOPPED,
        f"{ready} ready{oldest}, and nothing was popped for {duration(idle)} or longer",
        evidence={
            "ready": seen.ready,
            "age_seconds": seen.age_seconds,
            "idle_seconds": idle,
            "proven_seconds": proven,
            "next": now.next,
            "popped": now.popped,
            "last_pop_seconds": now.popped_seconds,
        },
        estimated=("ready",) if "ready" in seen.estimated else (),
        cause="the consumers stopped, lost their connections, or wait for something else: no pop "
        "was counted between two samples, the same message is next, and no session holds rows",
        consequence="the backlog grows until they are back",
        since=_since(queue, seen, now, idle),
        judgement="consumers run outside the database: start them; sessions and their waits: "
        f"{command(queue, 'waits')}",
    )


def _since(queue: Queue, seen: QueueSnapshot, now: Position, idle: float) -> datetime:
    """Not before the queue was there, nor before the oldest message was: rows may be older."""
    began = now.moment - min(idle, idle if seen.age_seconds is None else seen.age_seconds)
    known = datetime.fromtimestamp(began, UTC)
    return known if queue.installed_at is None else max(known, queue.installed_at)


def _stuck_head(
    queue: Queue, seen: QueueSnapshot, now: Position, proven: tuple[float, int, int], head: _Head
) -> Finding:
    """`proven`: for how many seconds, and how many pops were rolled back and committed in them."""
    seconds, undone, committed = proven
    by = ", ".join(head.held_by) or "not seen: their transactions are short"
    what = "the same message is first" if _shows_pops(queue, now) else "no pop was committed"
    others = f"{committed:,} others were committed" if committed else "none was committed"
    order = queue.design.order_with(queue.options)
    known = None if order in {Order.DUE, Order.LIFO, Order.NONE} else now.next
    aside = command(queue, "purge", "--filter", f"id={known or 'ID'}")
    return Finding(
        HEAD_STUCK,
        f"{what} for {duration(seconds)}: {counted(undone, 'pop')} rolled back, {others}",
        evidence={
            "next": now.next,
            "rolled_back": undone,
            "committed": committed,
            "proven_seconds": seconds,
            "ready": seen.ready,
            "sessions": list(head.held_by),
        },
        cause=f"a consumer pops it, fails and rolls back, again and again; by: {by}",
        consequence="the message is not done, and what comes after it waits if its order counts",
        judgement=f"find out why it fails; to let the others pass, move it to the archive, from "
        f"where it can be restored: {aside}",
        since=datetime.fromtimestamp(now.moment - seconds, UTC),
    )


def _idle_seconds(seen: QueueSnapshot, now: Position) -> float | None:
    """For how long nothing was popped, at least; None: unknown."""
    if now.popped_seconds is not None:
        return now.popped_seconds
    never = now.popped == 0 and not seen.claimed
    if never and now.counted_seconds is not None and seen.age_seconds is not None:
        return min(now.counted_seconds, seen.age_seconds)
    return None


def _positions(
    database: Database, queues: Sequence[QueueSample], thresholds_of: ThresholdsOf
) -> dict[_ViewKey, Position | str | None]:
    """The position of each queue, or why it is not known; None: a subscriber's consumers are at
    work."""
    known = [one for one in queues if one.queue.kind is not Kind.INSTALLED]
    positions: dict[_ViewKey, Position | str | None] = {
        _view_key(sample.queue): _counted(sample) for sample in known
    }
    left = [one.queue for one in queues if one.queue.kind is Kind.INSTALLED]
    if not left:
        return positions
    with database.session("read the pop counters", read_only=True) as session:

        def read(some: Sequence[Queue]) -> Mapping[_ViewKey, Position | None]:
            named = repr(some[0].name) if len(some) == 1 else "the queues"
            with session.transaction(f"read the pop counters of {named}") as connection:
                limit_transaction(connection, database, STATEMENT_SECONDS, LOCK_SECONDS)
                return {
                    _view_key(queue): _position(connection, queue, thresholds_of(queue.name))
                    for queue in some
                }

        try:
            return {**positions, **read(left)}
        except ConnectionFailedError:
            raise
        except ConsoleError:  # whichever it is, it takes no other with it
            pass
        for queue in left:
            try:
                positions.update(read([queue]))
            except ConnectionFailedError:
                raise
            except ConsoleError as error:
                positions[_view_key(queue)] = error.why or error.what
    return positions


def _position(connection: Connection, queue: Queue, thresholds: Thresholds) -> Position | None:
    scope = queue.scope(connection)
    if queue.subscriber:
        stuck_after = _stuck(thresholds)
        name = f"{queue.design.name}.consumers_at_work"
        if sql.value(connection, bool, name, scope, stuck_after=stuck_after):
            return None
    return sql.row(connection, Position, "doctor.pops", scope)


def _counted(sample: QueueSample) -> Position | str:
    """The position in an adopted queue, by the server's own counts."""
    row = sample.row
    if row is None or sample.taken_at is None:
        return sample.problem or "it could not be read"
    if sample.queue.design.flow is Flow.NUMBERS:
        number = None if row.next_pop is None else str(row.next_pop)
        return Position(sample.taken_at, None, number, None, None)
    counts = (row.updated, row.deleted)
    popped = None if None in counts else sum(filter(None, counts))
    return Position(sample.taken_at, None, None, popped, None)
