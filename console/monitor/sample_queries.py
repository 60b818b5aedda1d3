"""Asking for the figures of many queues in a few statements, so that none can hold up the others.

All queues are asked together, seventy in a statement. Where such a statement fails or takes too
long its queues are asked again by halves, down to the one that is in the way; of that one the
figures are asked singly, and what is too slow even then is unknown, and left out for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from console import sql
from console.catalog import LIMITS, Kind, Queue
from console.clock import elapsed, utc
from console.engines import Database, Session, Timeouts
from console.errors import ConnectionFailedError, ConsoleError, TooSlowError
from console.monitor.figures import FIGURES, Key, StatusRow, key_of
from console.monitor.memory import Memory

if TYPE_CHECKING:
    from sqlalchemy import Connection

TOGETHER = 70
"""Queues in a statement: with more of them a planner takes longer for each."""

StuckAfter = float | Callable[[Queue], float]
"""Seconds, one for all queues or each its own."""

One = TypeVar("One")


@dataclass(frozen=True)
class Budget:
    """How long a sample waits for what, as shares of the time that a whole sample has."""

    statement: float
    lock: float

    @classmethod
    def of(cls, timeouts: Timeouts) -> Budget:
        """For the sampler's 5 s: 50 ms for one queue asked alone, 40 ms for a lock."""
        statement = timeouts.statement_seconds / 100
        return cls(statement, min(timeouts.lock_seconds, 0.8 * statement))

    def together(self, queues: int) -> float:
        """For so many queues in a statement."""
        return self.statement * (1 + queues / 5)

    def searching(self, queues: int) -> float:
        """For so many queues, one of which may be in the way."""
        return self.statement * (1 + queues / 25)

    @property
    def search(self) -> float:
        """For all that a sample does to find who is in the way."""
        return 30 * self.statement

    @property
    def retry(self) -> float:
        """For all that a sample tries again of what was too slow."""
        return 10 * self.statement


@dataclass(frozen=True)
class SampledRow:
    """What was seen of one queue; `row` is None where it could not be seen, for `problem`."""

    row: StatusRow | None
    problem: str
    at: float
    """`clock.elapsed()` in the middle of the statement."""


@dataclass(frozen=True)
class Circumstances:
    """What the server says of itself at the head of a transaction. Empty: it says nothing."""

    life: str = ""
    """Another one: a restart, a crash or a reset, after which counters begin anew."""
    sees_writers: bool = True
    """A standby sees nobody who writes."""
    now: datetime | None = None
    """By the server's clock."""


@dataclass(frozen=True)
class _Careful:
    seqscan: str
    bitmapscan: str
    jit: str
    statement_timeout: str
    lock_timeout: str
    life: str
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
) -> Circumstances:
    """Time-outs and plans for this transaction, by settings of the server or else by the driver."""
    lock = Budget.of(database.timeouts).lock if lock_seconds is None else lock_seconds
    if sql.has(connection, "server.server_state"):
        limits = replace(database.timeouts, statement_seconds=statement_seconds, lock_seconds=lock)
        connection.execution_options(dbq_timeouts=limits)
        return sql.row(connection, Circumstances, "server.server_state")
    row = sql.row(
        connection,
        _Careful,
        "server.careful",
        statement_timeout=f"{statement_seconds * 1000:.0f}ms",
        lock_timeout=f"{lock * 1000:.0f}ms",
    )
    return Circumstances(row.life, row.sees_writers, row.now)


def groups(many: Sequence[One]) -> Iterator[Sequence[One]]:
    """As many at a time as go into one statement; apart from the others, those that another role
    looks at, for their presets are not trusted."""
    apart = [one for one in many if not _queue_of(one).design.trusted]
    together = [one for one in many if one not in apart] if apart else many
    for some in (together, apart):
        for start in range(0, len(some), TOGETHER):
            yield some[start : start + TOGETHER]


def _queue_of(one: object) -> Queue:
    found = one[0] if isinstance(one, tuple) else one
    assert isinstance(found, Queue)  # noqa: S101  # what is asked about is a queue, or begins with it
    return found


class SampleRun:
    def __init__(
        self,
        database: Database,
        session: Session,
        memory: Memory,
        budget: Budget,
        stuck_after: StuckAfter,
    ) -> None:
        self.circumstances = Circumstances()
        self.clock_ahead = timedelta()
        """How far the server's clock is ahead of ours, to half a round trip."""
        self._database = database
        self._session = session
        self._memory = memory
        self._stuck_after = stuck_after
        self._budget = budget
        self._seen: dict[Key, SampledRow] = {}
        self._search_ends_at: float | None = None

    def at(self, queues: Sequence[Queue]) -> dict[Key, SampledRow]:
        """What is seen of each. Raises ConnectionFailedError; other errors are their queue's."""
        by_key = {key_of(queue): queue for queue in queues}
        apart = self._memory.apart(by_key)
        for group in groups([queue for key, queue in by_key.items() if key not in apart]):
            if self._may_search():
                self._ask(group, self._budget.together(len(group)))
            else:
                self._ask_cheaply(group)
        for key, problem in apart.items():
            if self._may_search(begin=True):
                self._ask([by_key[key]], self._budget.together(1))
            else:
                self._seen[key] = SampledRow(None, problem, elapsed())
        self._retry(queues)
        return self._seen

    def _ask(self, queues: Sequence[Queue], seconds: float) -> None:
        try:
            self._fetch(queues, seconds)
        except ConnectionFailedError:
            raise
        except ConsoleError as error:
            self._search(queues, error)

    def _search(self, queues: Sequence[Queue], error: ConsoleError) -> None:
        """Find which of the queues is in the way; see the others."""
        if len(queues) == 1 and not isinstance(error, TooSlowError):
            self._fail(queues[0], error.why or error.what)
        elif not self._may_search(begin=True):
            self._ask_cheaply(queues)
        elif len(queues) > 1:
            half = len(queues) // 2
            for part in (queues[:half], queues[half:]):
                self._ask(part, self._budget.searching(len(part)))
        else:
            self._ask_cheaply(queues)  # its figures are tried singly, after all others were seen

    def _may_search(self, *, begin: bool = False) -> bool:
        """Whether there is time left to search for what is in the way."""
        if self._search_ends_at is None and begin:
            self._search_ends_at = time.monotonic() + self._budget.search
        return self._search_ends_at is None or time.monotonic() < self._search_ends_at

    def _ask_cheaply(self, queues: Sequence[Queue]) -> None:
        """Only what costs next to nothing; all else may be slow, and is tried by itself later."""
        for queue in queues:
            left_out = self._memory.left_out(queue)
            self._memory.may_be_slow(queue, [f for f in FIGURES if f not in left_out])
        try:
            self._fetch(queues, self._budget.together(len(queues)))
        except ConnectionFailedError:
            raise
        except ConsoleError as error:
            problem = error.why or error.what
            if len(queues) > 1:
                problem = f"there was no time to read it separately ({problem})"
            for queue in queues:
                self._fail(queue, problem)

    def _fail(self, queue: Queue, problem: str) -> None:
        self._memory.set_apart(queue, problem)
        self._seen[key_of(queue)] = SampledRow(None, problem, elapsed())

    def _retry(self, queues: Sequence[Queue]) -> None:
        """Try what was too slow before, as far as there is time: those first that never were tried.

        Most of these were only in bad company, and one question tells.
        """
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
        """Ask for these figures alone: whether they came in time. If so they are seen."""
        before = self._seen[key_of(queue)].row
        if before is None:
            return True
        left_out = [figure for figure in FIGURES if figure not in figures]
        try:
            self._fetch([queue], self._budget.statement, left_out=left_out)
        except TooSlowError:
            return False
        except ConnectionFailedError:
            raise
        except ConsoleError as error:
            self._fail(queue, error.why or error.what)
            return True
        seen = self._seen[key_of(queue)]
        if seen.row is not None:
            others = {figure: getattr(before, figure) for figure in left_out}
            self._seen[key_of(queue)] = replace(seen, row=replace(seen.row, **others))
        self._memory.was_quick(queue, figures)
        return True

    def _fetch(
        self, queues: Sequence[Queue], seconds: float, *, left_out: Sequence[str] | None = None
    ) -> None:
        """See the queues by one statement, without these figures (None: as memory says)."""
        doing = f"sample {queues[0].name!r}" if len(queues) == 1 else "sample the queues"
        with self._session.transaction(doing) as connection:
            asked = utc()
            self.circumstances = limit_transaction(
                connection, self._database, seconds, self._budget.lock
            )
            if self.circumstances.now is not None:
                self.clock_ahead = self.circumstances.now - (asked + (utc() - asked) / 2)
            # A ring's numbers and slots belong together as long as no relay can come between.
            if gates := [gate for queue in queues for gate in self._gate(queue)]:
                sql.union(connection, _Gate, gates)
            parts = [self._status(queue, left_out) for queue in queues]
            started = elapsed()
            rows = sql.union(connection, StatusRow, parts)
            at = (started + elapsed()) / 2
        by_key = {(row.schema, row.queue): row for row in rows}
        for queue in queues:
            row = by_key.get(key_of(queue))
            if row is None:
                self._fail(queue, "its configuration is empty")
                continue
            if left_out is None:
                row = self._memory.complete(queue, row)
            self._seen[key_of(queue)] = SampledRow(row, "", at)
            self._memory.rejoin(queue)

    def stuck_after(self, queue: Queue) -> float:
        """From how many seconds on a claim of the queue is stuck."""
        given = self._stuck_after
        return given(queue) if callable(given) else given

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
