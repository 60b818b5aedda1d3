"""Reads the figures of many queues in a few statements, so that no queue holds up the others.

Many queues go into one statement. Where it fails or takes too long, it is repeated in halves,
down to the queue that is the cause; the figures of that queue are read one at a time, and those
that are too slow even then are unknown, and left out for a while.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from console import sql
from console.catalog import LIMITS, Kind, Queue
from console.clock import elapsed, utc
from console.engines import Database, Product, Session, Timeouts, within_lock_limit
from console.errors import BusyError, ConnectionFailedError, ConsoleError, TooSlowError
from console.monitor.memory import Memory
from console.monitor.rates import MAY_BE_SLOW, QueueName, StatusRow, age_as_of, key_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

StuckAfter = float | Callable[[Queue], float]
"""Seconds: one value for all queues, or a function of the queue."""


@dataclass(frozen=True)
class Budget:
    """How long the parts of a sample may take, as shares of the time that the whole one has."""

    statement: float
    lock: float

    @classmethod
    def of(cls, timeouts: Timeouts) -> Budget:
        """For the sampler's 5 s: 50 ms for a single queue, 40 ms for a lock."""
        statement = timeouts.statement_seconds / 100
        return cls(statement, min(timeouts.lock_seconds, 0.8 * statement))

    def together(self, queues: int) -> float:
        """For that many queues in a statement."""
        return self.statement * (1 + queues / 5)

    def searching(self, queues: int) -> float:
        """For that many queues while one that is too slow is searched for."""
        return self.statement * (1 + queues / 25)

    @property
    def search(self) -> float:
        """For the whole search for queues that are too slow."""
        return 30 * self.statement

    @property
    def retry(self) -> float:
        return 10 * self.statement


@dataclass(frozen=True)
class SampledRow:
    """The figures of one queue; `row` is None where they could not be read: see `problem`."""

    row: StatusRow | None
    problem: str
    at: float
    """`clock.elapsed()` in the middle of the statement."""

    def as_of(self, lag: timedelta) -> SampledRow:
        """With the age that it had that long ago."""
        if self.row is None or not lag:
            return self
        age = age_as_of(self.row.age_seconds, lag)
        return replace(self, row=replace(self.row, age_seconds=age))


@dataclass(frozen=True)
class ServerState:
    """The state of the server at the beginning of a transaction."""

    incarnation: str = ""
    """Changes with a restart, a crash or a reset, after which counters begin at zero."""
    sees_writers: bool = True
    """A standby does not see the sessions that write."""
    now: datetime | None = None


@dataclass(frozen=True)
class _SettingsRow:
    seqscan: str
    bitmapscan: str
    jit: str
    statement_timeout: str
    lock_timeout: str
    incarnation: str
    sees_writers: bool
    now: datetime


@dataclass(frozen=True)
class _Gate:
    number: int


def limit_transaction(
    connection: Connection,
    database: Database,
    statement_seconds: float,
    lock_seconds: float | None = None,
) -> ServerState:
    """Set time-outs and planner options for this transaction, in the server or in the driver."""
    usual = Budget.of(database.timeouts).lock if lock_seconds is None else lock_seconds
    lock = within_lock_limit(usual)
    if sql.has(connection, "server.server_state"):
        limits = replace(database.timeouts, statement_seconds=statement_seconds, lock_seconds=lock)
        connection.execution_options(dbq_timeouts=limits)
        return sql.row(connection, ServerState, "server.server_state")
    row = sql.row(
        connection,
        _SettingsRow,
        "server.transaction_settings",
        statement_timeout=f"{statement_seconds * 1000:.0f}ms",
        lock_timeout=f"{lock * 1000:.0f}ms",
    )
    return ServerState(row.incarnation, row.sees_writers, row.now)


def groups(queues: Sequence[Queue], product: Product) -> Iterator[Sequence[Queue]]:
    """The queues of one statement each. Those of untrusted presets, which another role reads, are
    in groups of their own."""
    together = product.sampled_together
    trusted = [queue for queue in queues if queue.design.trusted]
    untrusted = [queue for queue in queues if not queue.design.trusted]
    for some in (trusted, untrusted):
        for start in range(0, len(some), together):
            yield some[start : start + together]


class SampleRun:
    def __init__(
        self,
        database: Database,
        session: Session,
        memory: Memory,
        budget: Budget,
        stuck_after: StuckAfter,
        lag: timedelta = timedelta(),
    ) -> None:
        """`lag`: how long ago the moment was that the server shows."""
        self.server = ServerState()
        self.clock_ahead = timedelta()
        """How far the server's clock is ahead of ours, within half a round trip."""
        self._database = database
        self._session = session
        self._memory = memory
        self._stuck_after = stuck_after
        self._lag = lag
        self._budget = budget
        self._sampled: dict[QueueName, SampledRow] = {}
        self.locked: list[Queue] = []
        """Those that could not be read because another session holds a lock."""
        self._search_ends_at: float | None = None

    def sample(self, queues: Sequence[Queue]) -> dict[QueueName, SampledRow]:
        """Raises ConnectionFailedError; other errors are the `problem` of their queue."""
        by_key = {key_of(queue): queue for queue in queues}
        apart = self._memory.apart(by_key)
        rest = [queue for key, queue in by_key.items() if key not in apart]
        for group in groups(rest, self._database.product):
            if self._may_search():
                self._read(group, self._budget.together(len(group)))
            else:
                self._read_cheaply(group)
        for key, problem in apart.items():
            if self._may_search(begin=True):
                self._read([by_key[key]], self._budget.together(1))
            else:
                self._sampled[key] = SampledRow(None, problem, elapsed())
        self._retry(queues)
        return self._sampled

    def _read(self, queues: Sequence[Queue], seconds: float) -> None:
        try:
            self._fetch(queues, seconds)
        except ConnectionFailedError:
            raise
        except ConsoleError as error:
            self._search(queues, error)

    def _search(self, queues: Sequence[Queue], error: ConsoleError) -> None:
        """Find the queue that fails or is too slow; read the others."""
        if len(queues) == 1 and not isinstance(error, TooSlowError):
            self._fail(queues[0], error.why or error.what, error)
        elif not self._may_search(begin=True):
            self._read_cheaply(queues)
        elif len(queues) > 1:
            half = len(queues) // 2
            for part in (queues[:half], queues[half:]):
                self._read(part, self._budget.searching(len(part)))
        else:
            self._read_cheaply(queues)  # its figures are tried one by one after the other queues

    def _may_search(self, *, begin: bool = False) -> bool:
        """Whether there is time left for the search."""
        if self._search_ends_at is None and begin:
            self._search_ends_at = time.monotonic() + self._budget.search
        return self._search_ends_at is None or time.monotonic() < self._search_ends_at

    def _read_cheaply(self, queues: Sequence[Queue]) -> None:
        """Only what costs next to nothing; the other figures are tried one by one later."""
        for queue in queues:
            left_out = self._memory.left_out(queue)
            self._memory.may_be_slow(queue, [f for f in MAY_BE_SLOW if f not in left_out])
        try:
            self._fetch(queues, self._budget.together(len(queues)))
        except ConnectionFailedError:
            raise
        except ConsoleError as error:
            problem = error.why or error.what
            if len(queues) > 1:
                problem = f"there was no time to read it separately ({problem})"
            for queue in queues:
                self._fail(queue, problem, error)

    def _fail(self, queue: Queue, problem: str, error: ConsoleError | None = None) -> None:
        if isinstance(error, BusyError) and not isinstance(error, TooSlowError):
            self.locked.append(queue)
        self._memory.set_apart(queue, problem)
        self._sampled[key_of(queue)] = SampledRow(None, problem, elapsed())

    def _retry(self, queues: Sequence[Queue]) -> None:
        """As far as there is time, retry what was too slow; queues that were never tried alone
        come first, since most of them are not slow themselves."""
        ends_at = time.monotonic() + self._budget.retry
        due = [queue for queue in queues if self._memory.due(queue)]
        fresh = [queue for queue in due if self._memory.never_tried(queue)]
        for queue in fresh:
            if time.monotonic() >= ends_at:
                return
            if not self._try(queue, self._memory.due(queue)):
                self._memory.may_be_slow(queue, self._memory.due(queue), tried=True)
        for queue in due:
            for figure in self._memory.due(queue):
                if time.monotonic() >= ends_at:
                    return
                if not self._try(queue, [figure]):
                    self._memory.was_slow(queue, figure)

    def _try(self, queue: Queue, figures: Sequence[str]) -> bool:
        """Read these figures alone; whether that was in time."""
        before = self._sampled[key_of(queue)].row
        if before is None:
            return True
        left_out = [figure for figure in MAY_BE_SLOW if figure not in figures]
        try:
            self._fetch([queue], self._budget.statement, left_out=left_out)
        except TooSlowError:
            return False
        except ConnectionFailedError:
            raise
        except ConsoleError as error:
            self._fail(queue, error.why or error.what, error)
            return True
        now = self._sampled[key_of(queue)]
        if now.row is not None:
            others = {figure: getattr(before, figure) for figure in left_out}
            self._sampled[key_of(queue)] = replace(now, row=replace(now.row, **others))
        self._memory.was_quick(queue, figures)
        return True

    def _fetch(
        self, queues: Sequence[Queue], seconds: float, *, left_out: Sequence[str] | None = None
    ) -> None:
        """Read the queues in one statement; None: `memory` says what is left out."""
        doing = f"sample {queues[0].name!r}" if len(queues) == 1 else "sample the queues"
        with self._session.transaction(doing) as connection:
            sent_at = utc()
            parts = [self._status(queue, left_out) for queue in queues]
            if self._memory.is_new(parts):
                seconds = max(seconds, self._database.product.first_run_seconds)
            self.server = limit_transaction(connection, self._database, seconds, self._budget.lock)
            if self.server.now is not None:
                self.clock_ahead = self.server.now - (sent_at + (utc() - sent_at) / 2)
            # A ring's numbers and slots belong together while no relay can run in between.
            if gates := [gate for queue in queues for gate in self._gate(queue)]:
                sql.union(connection, _Gate, gates)
            started = elapsed()
            rows = sql.union(connection, StatusRow, parts)
            self._memory.was_run(parts)
            at = (started + elapsed()) / 2
        by_key = {(row.schema, row.queue): row for row in rows}
        for queue in queues:
            row = by_key.get(key_of(queue))
            if row is None:
                self._fail(queue, "its configuration is empty")
                continue
            if left_out is None:
                row = self._memory.complete(queue, row)
            self._sampled[key_of(queue)] = SampledRow(row, "", at)
            self._memory.rejoin(queue)

    def stuck_after(self, queue: Queue) -> float:
        """The age in seconds, now, from which a claim of the queue was stuck in what is shown."""
        value = self._stuck_after
        # Whole seconds of lag, so that the statement's text, and so its plan, stays the same.
        return (value(queue) if callable(value) else value) + math.ceil(self._lag.total_seconds())

    def _gate(self, queue: Queue) -> Iterator[sql.UnionMember]:
        product = self._database.product
        if sql.has(product, f"{queue.design.name}.wait_for_relay") and queue.kind is Kind.INSTALLED:
            yield self._memory.part(product, queue, "wait_for_relay", {})

    def _status(self, queue: Queue, left_out: Sequence[str] | None) -> sql.UnionMember:
        left = self._memory.left_out(queue) if left_out is None else left_out
        values: Mapping[str, str] = {
            "counters": "yes" if self._database.capabilities.counts_rows else "no",
            "stuck_after_seconds": str(self.stuck_after(queue)),
            **{limit: "0" for limit in LIMITS if limit.removesuffix("_limit") in left},
        }
        return self._memory.part(self._database.product, queue, "status", values)
