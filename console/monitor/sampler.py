"""Samples each connection repeatedly in a daemon thread; many connections take turns."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from console import sql
from console.catalog import STUCK_AFTER_SECONDS, Kind, Queue
from console.engines import Database, Timeouts, product_of, time_limit
from console.engines.standby import Standby
from console.errors import ConnectionFailedError, ConsoleError
from console.figures import AGE
from console.monitor.memory import Memory
from console.monitor.rates import RateWindow, key_of
from console.monitor.sample import (
    SAMPLING_TIMEOUTS,
    DatabaseSample,
    QueueSample,
    SessionsUsed,
    take_sample,
)
from console.monitor.sample_queries import StuckAfter
from console.monitor.sequence_steps import SequenceHistory
from console.monitor.snapshot import QueueSnapshot, snapshot
from console.monitor.subscribers import SubscriberWindows
from console.rights import Login

if TYPE_CHECKING:
    from sqlalchemy import Connection


def login_can(connection: Connection, queues: Sequence[Queue]) -> Login:
    """What the login could do to these queues, and to the server."""
    product = product_of(connection)
    live = [queue for queue in queues if queue.kind is not Kind.ARCHIVE]
    return sql.row(
        connection,
        Login,
        "server.login_rights",
        schemas=product.array([queue.schema for queue in live]),
        tables=product.array([queue.table for queue in live]),
        queues=product.array([queue.name for queue in live]),
    )


def probe(database: Database, queues: Sequence[Queue]) -> Login | None:
    """The same on a new connection; None: not known. ConnectionFailedError."""
    try:
        with database.transaction("read the login's rights", read_only=True) as connection:
            return login_can(connection, queues)
    except ConnectionFailedError:
        raise
    except ConsoleError:
        return None


_FIRST_RETRY_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 30.0

IDLE_AFTER_SECONDS = 30.0
"""Without a change for this long, each pause is longer than the one before..."""
IDLE_GROWTH = 1.5
"""... by this factor..."""
IDLE_LONGEST = 5.0
"""... up to this many intervals."""


@dataclass(frozen=True)
class Reading:
    """The result of one sample. With an error, the snapshots are those of the last sample that
    succeeded: see `taken_at`."""

    connection: str
    queues: tuple[QueueSnapshot, ...] = ()
    latency_seconds: float | None = None
    production: bool = False
    error: ConsoleError | None = None
    retry_seconds: float | None = None
    """After an error: the pause before the next attempt."""
    taken_at: float | None = None
    """`clock.elapsed()` of the sample that the snapshots are from; None: no sample yet."""
    next_seconds: float | None = None
    """The pause before the next sample."""
    login: Login | None = None
    """What the login could do; None: not known."""
    standby: Standby | None = None
    """None: a primary, or not known yet."""
    promoted_at: float | None = None
    """`clock.elapsed()` of the first sample of a standby that had become a primary."""
    sessions: SessionsUsed | None = None
    pooled: bool = False
    incarnation: str = ""
    """Of the server: another one after a restart, a crash, a fail-over; empty: not known."""


class Sampler:
    """Samples one database until stopped, in a thread of its own."""

    def __init__(
        self,
        database: Database,
        *,
        name: str = "",
        interval_seconds: float = 1.0,
        stuck_after_seconds: StuckAfter = STUCK_AFTER_SECONDS,
        timeouts: Timeouts = SAMPLING_TIMEOUTS,
        only: Sequence[Queue] | None = None,
        turns: WorkLimiter | None = None,
    ) -> None:
        """`name`: the connection's on screens; `only`: just these queues; `turns`: shared by all
        samplers."""
        self.name = name or database.label
        self._database = database
        self._deliver: Callable[[Reading], None] = lambda _: None
        self._interval_seconds = interval_seconds
        self._stuck_after_seconds = stuck_after_seconds
        self._timeouts = timeouts
        self._only = only
        self._turns = turns
        self._memory = Memory()
        self._incarnation = ""
        self._probed: object = None
        self._found: Login | None = None
        self._windows: dict[object, tuple[RateWindow, SubscriberWindows]] = {}
        self._sequences = SequenceHistory()
        self._last = Reading(database.label)
        self._idle = _Idle()
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"sampler {database.label}", daemon=True
        )

    @property
    def interval_seconds(self) -> float:
        """The pause between two samples; longer while nothing changes."""
        return self._interval_seconds

    @interval_seconds.setter
    def interval_seconds(self, seconds: float) -> None:
        self._interval_seconds = seconds
        self.sample_now()

    def start(self, deliver: Callable[[Reading], None]) -> None:
        """Begin to sample; `deliver` is called in the sampler's thread."""
        self._deliver = deliver
        self._thread.start()

    def sample_now(self) -> None:
        """Cut the present pause short, and stop lengthening pauses."""
        self._wake.set()

    def stop(self, timeout_seconds: float = 0.0) -> None:
        """Stop the thread, even in a sample that waits for a silent server; wait for it at most
        `timeout_seconds`."""
        self._stop.set()
        self._wake.set()
        if timeout_seconds > 0 and self._thread.is_alive():
            self._thread.join(timeout_seconds)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            with self._turn():
                reading = self.sample()
            if not self._stop.is_set():
                self._deliver(reading)
            if self._wake.wait(reading.next_seconds):
                # Whoever asked for a sample now will want the next one soon.
                self._idle.end()
                self._retry_seconds = _FIRST_RETRY_SECONDS

    def _turn(self) -> AbstractContextManager[None]:
        return (
            nullcontext() if self._turns is None else self._turns.turn(ROUTINE, self._stop.is_set)
        )

    def sample(self) -> Reading:
        """One sample in the caller's thread, for a sampler that was not started."""
        try:
            with time_limit(self._timeouts.statement_seconds, self._stop.is_set):
                sample = take_sample(
                    self._database,
                    stuck_after_seconds=self._stuck_after_seconds,
                    memory=self._memory,
                    timeouts=self._timeouts,
                    only=self._only,
                )
                login = self._login(sample)
            self._last = self._reading(sample, login)
        except Exception as error:  # noqa: BLE001  # a dead thread reports nothing
            return self._failed(error)
        self._retry_seconds = _FIRST_RETRY_SECONDS
        return self._last

    def _failed(self, error: Exception) -> Reading:
        # Jitter, so that many consoles do not reconnect to a server at once.
        pause = self._retry_seconds * random.uniform(0.75, 1.25)  # noqa: S311  # no secret
        self._retry_seconds = min(self._retry_seconds * 2, _LONGEST_RETRY_SECONDS)
        self._windows.clear()
        if isinstance(error, ConnectionFailedError):
            self._sequences.lost_connection()
        self._idle.end()
        shown = error if isinstance(error, ConsoleError) else _unforeseen(error)
        return replace(self._last, error=shown, retry_seconds=pause, next_seconds=pause)

    def _login(self, sample: DatabaseSample) -> Login | None:
        """Read once, and again when the server or its queues are others."""
        queues = [one.queue for one in sample.queues]
        now = (sample.incarnation, {(queue.schema, queue.name) for queue in queues})
        if now != self._probed:
            self._probed, self._found = now, probe(self._database, queues)
        return self._found

    def _reading(self, sample: DatabaseSample, login: Login | None) -> Reading:
        if sample.incarnation != self._incarnation:
            # A restart, a crash or a reset: earlier counters say nothing about now.
            self._windows.clear()
            if self._incarnation:
                self._database.forget_capabilities()
            self._incarnation = sample.incarnation
        shown: list[QueueSnapshot] = []
        steps = self._sequences.add(sample)
        windows: dict[object, tuple[RateWindow, SubscriberWindows]] = {}
        for seen in sample.queues:
            queue = seen.queue
            # A subscriber that comes or goes may change the slowest one: that is no pop.
            key = (queue.schema, queue.name, queue.design.name, queue.subscribers)
            window, of_subscribers = windows[key] = self._windows.get(key) or (
                RateWindow(queue.design.flow),
                SubscriberWindows(),
            )
            at = sample.taken_at if seen.taken_at is None else seen.taken_at
            rates = window.add(at, seen.row, counts_rows=sample.counts_rows)
            by_subscriber = of_subscribers.add(seen.subscribers, seen.row)
            found = snapshot(seen, sample.connection, rates, by_subscriber)
            stepped = steps.get(key_of(queue))
            shown.append(found if stepped is None else replace(found, steps=stepped))
        self._windows = windows
        return Reading(
            sample.connection,
            tuple(shown),
            latency_seconds=sample.latency_seconds,
            production=sample.production,
            taken_at=sample.taken_at,
            next_seconds=self._idle.pause(sample, self._interval_seconds),
            login=login,
            standby=sample.standby,
            promoted_at=self._promoted_at(sample),
            sessions=sample.sessions,
            pooled=sample.pooled,
            incarnation=sample.incarnation,
        )

    def _promoted_at(self, sample: DatabaseSample) -> float | None:
        if sample.standby is not None:
            return None
        return self._last.promoted_at if self._last.standby is None else sample.taken_at


class _Idle:
    """The length of pauses, which grows while nothing changes."""

    def __init__(self) -> None:
        self._seen: object = None
        self._same_since = 0.0
        self._factor = 1.0

    def end(self) -> None:
        """Back to pauses of one interval."""
        self._seen = None
        self._factor = 1.0

    def pause(self, sample: DatabaseSample, interval_seconds: float) -> float:
        seen = [_lasting(queue) for queue in sample.queues]
        if seen != self._seen:
            self._seen, self._same_since, self._factor = seen, sample.taken_at, 1.0
        elif sample.taken_at - self._same_since >= IDLE_AFTER_SECONDS:
            self._factor = min(self._factor * IDLE_GROWTH, IDLE_LONGEST)
        return interval_seconds * self._factor


def _lasting(seen: QueueSample) -> object:
    """The part of a sample that stays the same while nothing happens: no ages."""
    row = None if seen.row is None else {**vars(seen.row), AGE.name: None}
    owners = tuple((claim.id, claim.attempts, claim.owner) for claim in seen.claims or ())
    sessions = frozenset(holder.session for holder in seen.holders or ())
    by = () if seen.subscribers is None else seen.subscribers.rows
    pops = tuple(
        (subscriber_row.subscriber, subscriber_row.next_pop, subscriber_row.parked)
        for subscriber_row in by
    )
    return seen.queue.label, seen.queue.design.name, row, seen.problem, owners, sessions, pops


def _unforeseen(error: Exception) -> ConsoleError:
    return ConsoleError("Could not sample the queues.", why=f"{type(error).__name__}: {error}")


REQUESTED, SOON, ROUTINE = range(3)
"""Why work is due, the most urgent first: an operator asked for it, figures call for it, its
interval has passed."""


class WorkLimiter:
    """Lets at most `most` threads work at a time, the most urgent first.

    A turn longer than `lease_seconds`, such as one that waits for a silent server, goes on but is
    no longer counted. After each turn, all but operators' requests wait for `rest` times the
    processor time that it took; they also wait for the first `begins_after` seconds.
    """

    def __init__(
        self, most: int, lease_seconds: float, *, rest: float = 0.0, begins_after: float = 0.0
    ) -> None:
        self._most = most
        self._lease_seconds = lease_seconds
        self._rest = rest
        self._changed = threading.Condition()
        self._ends: dict[object, float] = {}
        """Turn -> when it is no longer counted."""
        self._waiting: Counter[int] = Counter()
        self._rested_at = time.monotonic() + begins_after

    @contextmanager
    def turn(self, why: int, given_up: Callable[[], bool]) -> Iterator[None]:
        """Waits for a turn, or until `given_up()`, which is called again after `wake`."""
        mine = object()
        with self._changed:
            self._waiting[why] += 1
            while (pause := self._pause(why)) > 0 and not given_up():
                self._changed.wait(pause)
            self._waiting[why] -= 1
            self._ends[mine] = time.monotonic() + self._lease_seconds
            worked = time.process_time()
        try:
            yield
        finally:
            with self._changed:
                del self._ends[mine]
                rest = self._rest * (time.process_time() - worked)
                self._rested_at = max(self._rested_at, time.monotonic() + rest)
                self._changed.notify_all()

    def wake(self) -> None:
        """Let the waiting threads call their `given_up` again."""
        with self._changed:
            self._changed.notify_all()

    def _pause(self, why: int) -> float:
        """Seconds until work of that urgency may begin; 0: now."""
        now = time.monotonic()
        counted = [end for end in self._ends.values() if end > now]
        if len(counted) >= self._most:
            return min(counted) - now
        if any(self._waiting[before] for before in range(why)):
            return self._lease_seconds
        return 0.0 if why == REQUESTED else max(0.0, self._rested_at - now)
