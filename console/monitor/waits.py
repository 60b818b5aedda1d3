"""Waits over some time, from sampled sessions and from the engine's cumulative counters.

Pauses keep the samples below a twentieth of the time. A wait that begins and ends between two
samples is not seen.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TypeVar

from console import clock, sql
from console.catalog import Queue
from console.engines import Database
from console.errors import BusyError, RefusedError
from console.formats import UNKNOWN, count, duration, numbered
from console.monitor.activity import (
    SAMPLE_TIMEOUT_SECONDS,
    Activity,
    Objects,
    Session,
    find_objects,
    sample_activity,
)
from console.monitor.known_waits import explain, wait_kind_of
from console.monitor.rates import QueueName
from console.monitor.row_holder import SessionKey
from console.monitor.sample_queries import limit_transaction

Row = TypeVar("Row")

INTERVAL_SECONDS = 0.2
"""From the start of a sample to that of the next."""
_PAUSE = 19
"""A pause is at least this many times as long as the sample before it."""


@dataclass(frozen=True)
class CounterRow:
    """One of the engine's cumulative counters. `id`: an object's; None: of the whole server."""

    id: int | None
    kind: str | None
    """None: it follows from the name of the wait."""
    wait: str
    count: int
    ms: int


@dataclass(frozen=True)
class HorizonRow:
    """A snapshot, of any session of the database, that keeps dead rows from being removed."""

    kind: str
    name: str
    session_id: int | None
    transactions: int | None
    """Transactions that began since; None: not counted."""
    seconds: float | None

    @property
    def who(self) -> str:
        """`session 4711 of ann`, `replication slot 'standby'`."""
        if self.session_id is None:
            return f"{self.kind} {self.name!r}"
        return f"{self.kind} {self.session_id} of {self.name or '?'}"


@dataclass(frozen=True)
class DeadRow:
    """The engine's estimate of a table's dead rows."""

    id: int
    dead_rows: int


@dataclass(frozen=True)
class Wait:
    """One sort of wait, at one queue or (None) in the whole database.

    `share` and `average` come from sampled sessions, `ms` and `count` from the engine's counters.
    `wait` is None for sessions whose waits are hidden.
    """

    queue: Queue | None
    kind: str | None
    wait: str | None
    sessions: int | None = None
    share: float | None = None
    """The part of the samples in which at least one session waited: 0 to 1."""
    average: float | None = None
    """Sessions that waited at a time."""
    ms: int | None = None
    count: int | None = None
    meaning: str | None = None

    def as_json(self) -> dict[str, object]:
        return {
            "queue": self.queue.name if self.queue else None,
            "schema": self.queue.schema if self.queue else None,
            "wait": self.wait,
            "kind": self.kind,
            "sessions": self.sessions,
            "share": self.share,
            "average_sessions": self.average,
            "waited_seconds": None if self.ms is None else self.ms / 1000,
            "count": self.count,
            "meaning": self.meaning,
        }


@dataclass
class _Seen:
    samples: int = 0
    sessions_seen: int = 0
    sessions: set[SessionKey] = field(default_factory=set)


class WaitWindow:
    """Adds up samples; keeps the one in which most sessions waited for others."""

    def __init__(self, engine: str, database: str, queues: Sequence[Queue]) -> None:
        """`database`: its sessions make up the database's waits."""
        self._engine = engine
        self._database = database
        self._queues = {(queue.schema, queue.name): queue for queue in queues}
        self._seen: defaultdict[tuple[QueueName | None, str | None, str | None], _Seen]
        self._seen = defaultdict(_Seen)
        self.samples = 0
        self.samples_with_waiters = 0
        self.worst = Activity(())
        self.worst_at_sample = 0

    def add(self, activity: Activity) -> None:
        self.samples += 1
        if activity.waiting:
            self.samples_with_waiters += 1
        if activity.waiting >= self.worst.waiting:
            self.worst, self.worst_at_sample = activity, self.samples
        now: defaultdict[tuple[QueueName | None, str | None, str | None], list[SessionKey]]
        now = defaultdict(list)
        for session in activity.sessions:
            for queue_key in session.waits_in:
                if queue_key in self._queues:
                    now[queue_key, session.wait_kind, session.wait].append(session.key)
            if session.database == self._database:
                now[None, session.wait_kind, session.wait].append(session.key)
        for key, sessions in now.items():
            seen = self._seen[key]
            seen.samples += 1
            seen.sessions_seen += len(sessions)
            seen.sessions.update(sessions)

    def waits(self) -> list[Wait]:
        return [
            Wait(
                queue := self._queues[queue_key] if queue_key else None,
                kind,
                wait,
                sessions=len(seen.sessions),
                share=round(seen.samples / self.samples, 4),
                average=round(seen.sessions_seen / self.samples, 4),
                meaning=explain(self._engine, kind, wait, queue),
            )
            for (queue_key, kind, wait), seen in self._seen.items()
        ]


@dataclass(frozen=True)
class WaitReport:
    connection: str
    seconds: float
    samples: int
    waits: tuple[Wait, ...]
    activity: Activity
    """The sample in which most sessions waited for others, or the last one."""
    activity_at_sample: int
    """The number of that sample, from 1."""
    samples_with_waiters: int
    horizon: tuple[HorizonRow, ...]
    dead_rows: Mapping[QueueName, int]
    missing: Mapping[str, str]
    """What could not be seen -> why."""
    queues: tuple[Queue, ...] = ()
    of_database: bool = False
    """Whether no queue was named, so that the whole database is included."""

    def as_json(self) -> dict[str, object]:
        return {
            "connection": self.connection,
            "seconds": round(self.seconds, 3),
            "samples": self.samples,
            "samples_with_waiters": self.samples_with_waiters,
            "waits": [wait.as_json() for wait in self.waits],
            "activity_at_sample": self.activity_at_sample,
            "sessions": [session.as_json() for session in self.activity.relevant_sessions],
            "tree": [tree.as_json() for tree in self.activity.trees],
            "horizon": [asdict(row) for row in self.horizon],
            "dead_rows": [
                {"queue": queue, "schema": schema, "dead_rows": dead}
                for (schema, queue), dead in self.dead_rows.items()
            ],
            "missing": [{"what": what, "why": why} for what, why in self.missing.items()],
        }


_CAPABILITIES = ("sessions", "waits")


def watch(
    database: Database,
    queues: Sequence[Queue],
    *,
    seconds: float = 5.0,
    interval_seconds: float = INTERVAL_SECONDS,
    sleep: Callable[[float], object] = clock.sleep,
    stop_requested: Callable[[], bool] = lambda: False,
) -> WaitReport:
    """Sample for `seconds`, at least once, or until `stop_requested`. Raises ConsoleError."""
    lacking = database.capabilities.missing
    missing = {what: why for what, why in lacking.items() if what in _CAPABILITIES}
    if missing.get("sessions") == missing.get("waits"):
        missing.pop("sessions", None)
    objects = Objects(()) if "waits" in missing else find_objects(database, queues)
    window = WaitWindow(database.product.name, database.capabilities.database, queues)
    started = time.monotonic()
    before = _optional(database, CounterRow, "counters", objects, missing)
    while "waits" not in missing:
        began = time.monotonic()
        try:
            activity = sample_activity(database, objects)
            window.add(activity.without_readers(database.application_name))
        except BusyError as error:
            # Perhaps because of the waits themselves; the next sample may succeed.
            missing["samples"] = f"some samples failed: {error.why}"
        except RefusedError as error:
            missing["waits"] = missing.pop("sessions", "") or error.why
            break
        ended = time.monotonic()
        pause = max(interval_seconds - (ended - began), _PAUSE * (ended - began))
        rest = started + seconds - ended
        sleep(max(0.0, min(pause, rest)))
        if pause >= rest or stop_requested():
            break
    after = _optional(database, CounterRow, "counters", objects, missing)
    seconds = time.monotonic() - started
    counted = differences(before, after, objects, database.product.name)
    dead = _optional(database, DeadRow, "dead_rows", objects, missing)
    return WaitReport(
        connection=database.label,
        seconds=seconds,
        samples=window.samples,
        waits=tuple(sorted((*window.waits(), *counted), key=_rank)),
        activity=window.worst,
        activity_at_sample=window.worst_at_sample,
        samples_with_waiters=window.samples_with_waiters,
        horizon=tuple(_optional(database, HorizonRow, "horizon", objects, missing)),
        # A server without row counters reports 0.
        dead_rows=_by_queue(dead, objects) if database.capabilities.counts_rows else {},
        missing=missing,
    )


def _rank(wait: Wait) -> tuple[object, ...]:
    """Queues by name, the database last; the most frequent and longest waits first."""
    queue_key = (0, wait.queue.schema, wait.queue.name) if wait.queue else (1, "", "")
    return (*queue_key, -(wait.average or 0.0), -(wait.ms or 0), wait.kind or "", wait.wait or "")


def _optional(
    database: Database, row_type: type[Row], name: str, objects: Objects, missing: dict[str, str]
) -> list[Row]:
    """The rows of a statement that some engines lack and some logins may not run."""
    statement = f"activity.{name}"
    if not sql.has(database.product, statement) or name in missing or "waits" in missing:
        return []
    scope = sql.Scope(options=database.capabilities.facts)
    relations = database.product.array(objects.ids(advisory=False))
    try:
        with database.transaction("read the waits", read_only=True) as connection:
            limit_transaction(connection, database, SAMPLE_TIMEOUT_SECONDS)
            return sql.rows(connection, row_type, statement, scope, relations=relations)
    except RefusedError as error:
        missing[name] = error.why or error.what
        return []


def differences(
    before: Iterable[CounterRow], after: Iterable[CounterRow], objects: Objects, engine: str
) -> list[Wait]:
    """The waits between two readings; a counter that fell was reset, and is left out."""
    first = _totals(before, objects)
    queues = {(queue.schema, queue.name): queue for queue in objects.queues}
    waits = []
    for key, last in _totals(after, objects).items():
        count, ms = (now - then for now, then in zip(last, first.get(key, (0, 0)), strict=True))
        if count >= 0 and ms >= 0 and count + ms > 0:
            queue_key, kind, wait = key
            kind = kind or wait_kind_of(engine, wait)
            queue = queues[queue_key] if queue_key else None
            meaning = explain(engine, kind, wait, queue)
            waits.append(Wait(queue, kind, wait, ms=ms, count=count, meaning=meaning))
    return waits


def _totals(
    rows: Iterable[CounterRow], objects: Objects
) -> dict[tuple[QueueName | None, str | None, str], tuple[int, int]]:
    """(queue, kind, wait) -> count and milliseconds, over all objects of the queue."""
    totals: defaultdict[tuple[QueueName | None, str | None, str], tuple[int, int]]
    totals = defaultdict(lambda: (0, 0))
    for row in rows:
        queue_keys: Sequence[QueueName | None] = [None]
        if row.id is not None:
            queue_keys = objects.queues_of(row.id)
        for queue_key in queue_keys:
            count, ms = totals[queue_key, row.kind, row.wait]
            totals[queue_key, row.kind, row.wait] = (count + row.count, ms + row.ms)
    return totals


def _by_queue(rows: Iterable[DeadRow], objects: Objects) -> dict[QueueName, int]:
    dead: defaultdict[QueueName, int] = defaultdict(int)
    for row in rows:
        for queue_key in objects.queues_of(row.id):
            dead[queue_key] += row.dead_rows
    return dead


# Labels of sessions and waits, for the command line and screens. Texts of a session are untrusted:
# the caller escapes them.


def first_three(items: Sequence[str]) -> str:
    """The first three, and how many more there are."""
    more = f" and {count(len(items) - 3)} more" if len(items) > 3 else ""
    return ", ".join(items[:3]) + more


def session_title(session: Session) -> str:
    if isinstance(session.key, str):
        return f"prepared transaction {session.key}"
    return f"session {session.key}"


def session_activity(session: Session) -> str:
    if session.waits_for is not None:
        text = f"waits{_for(session.wait_seconds)} for {session.waits_for}"
    elif session.state is None:
        text = "? (its state is not known)"
    else:
        text = f"{session.state}{_for(session.state_seconds)}"
        if session.wait not in {None, session.state, "running"}:
            text += f" ({session.wait_kind}/{session.wait})"
    shown_seconds = (session.wait_seconds if session.waits_for else session.state_seconds) or 0.0
    if (session.transaction_seconds or 0.0) > shown_seconds + 1.0:
        text += f", transaction{_for(session.transaction_seconds)}"
    return text


def _for(seconds: float | None) -> str:
    return f" for {duration(max(seconds, 0.0))}" if seconds is not None else ""


def session_client(session: Session) -> str:
    """`worker, user ann, from 10.0.0.4`, as the client says."""
    if session.kind is None and session.user is None:
        return "disconnected meanwhile"
    names = [session.application] if session.application else []
    if session.kind not in {None, "client backend", "prepared transaction"}:
        names.append(str(session.kind))
    names.append(f"user {session.user if session.user else UNKNOWN}")
    if session.client:
        names.append(f"from {session.client}")
    return ", ".join(names)


def session_statement(session: Session) -> str:
    text = session.query or ""
    return text if session.state == "active" else f"last: {text}"


def lock_summary(session: Session) -> str:
    modes: dict[str, list[str]] = {}
    for lock in session.locks:
        modes.setdefault(lock.object, []).append(lock.mode)
    return first_three(
        [f"{', '.join(dict.fromkeys(found))} on {name}" for name, found in modes.items()]
    )


def wait_name(wait: Wait) -> str:
    """`Lock/tuple`."""
    return f"{wait.kind}/{wait.wait}" if wait.wait is not None else f"{UNKNOWN} (hidden)"


def wait_amount(wait: Wait) -> str:
    if wait.share is not None:
        sessions = numbered(wait.sessions or 0, "session")
        return f"in {wait.share:.0%} of the samples, {sessions}, {wait.average:.1f} at a time"
    return f"{duration((wait.ms or 0) / 1000)} in {numbered(wait.count or 0, 'wait')}"


def horizon_lines(report: WaitReport) -> Iterator[str]:
    for row in report.horizon[:1]:
        whose = f"{row.kind} {row.name}".strip()
        whose += f", session {row.session_id}" if row.session_id is not None else ""
        since = [duration(max(row.seconds, 0.0))] if row.seconds is not None else []
        if row.transactions is not None:
            since.append(numbered(row.transactions, "transaction"))
        yield f"Oldest snapshot: {whose}, {' and '.join(since)} ago; rows that died since are kept."
    dead = [
        f"{name} {count(rows, estimated=True)}"
        for (_, name), rows in report.dead_rows.items()
        if rows
    ]
    if dead:
        yield f"Dead rows: {first_three(dead)}"
