"""One sample of all queues of a database, in as few statements as possible.

Every statement reads rows of the same columns for each queue, so those of many queues are one UNION
ALL; the counts are bounded, so a sample costs the same however deep the queues are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, make_dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from console import catalog, sql
from console.catalog import Acting, Kind, Queue
from console.catalog.decisions import Decision
from console.clock import elapsed, utc
from console.designs import Flow
from console.engines import Database, Session, Timeouts, product_of, time_limit
from console.engines.standby import Standby, read_standby
from console.errors import ConnectionFailedError, ConsoleError
from console.formats import UNKNOWN
from console.monitor import known_queues, owners, rates
from console.monitor.latency import Latency, TimesRow, statement_of
from console.monitor.limits import silences_of
from console.monitor.memory import Memory
from console.monitor.owners import Claim, Holder
from console.monitor.rates import STATES, BrokerHealth, QueueName, StatusRow, age_as_of, key_of
from console.monitor.sample_queries import (
    Budget,
    SampledRow,
    SampleRun,
    StuckAfter,
    groups,
    limit_transaction,
)
from console.monitor.subscribers import SubscriberRow, SubscriberRows

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True)
class RowOfQueue:
    schema: str
    queue: str


EstimateRow: type[RowOfQueue] = make_dataclass(
    "EstimateRow", [(state, "float | None") for state in STATES], bases=(RowOfQueue,), frozen=True
)
"""About how many rows of each state there are; None: no such state, or not known."""


@dataclass(frozen=True)
class ArchivedRow(RowOfQueue):
    """About how many done messages a table of their own has."""

    done: int | None


Estimates = Mapping[str, float | None]
"""By state."""

Value = TypeVar("Value")
_Read = Callable[["Connection", Sequence[Queue]], Mapping[QueueName, Value]]


def estimates(
    connection: Connection,
    sampled: Sequence[tuple[Queue, StatusRow]],
    memory: Memory,
    *,
    counts_rows: bool = True,
) -> dict[QueueName, Estimates]:
    """Of queues that were just sampled; `counts_rows`: may the login read the row counters?"""
    product, counters = product_of(connection), "yes" if counts_rows else "no"
    parts = []
    for queue, row in sampled:
        # Where the first ready rows took too long to read, they are not read here either.
        limit = {} if row.ready is not None else {"ready_limit": "0"}
        values = {"counters": counters, "over": "|".join(row.over()), **limit}
        parts.append(memory.part(product, queue, "estimate", values))
    rows = sql.union(connection, EstimateRow, parts)
    found = {
        (row.schema, row.queue): {state: getattr(row, state) for state in STATES} for row in rows
    }
    return {key_of(queue): found[key_of(queue)] for queue, _ in sampled}


BROKER_SECONDS = 60.0
"""Between two counts of a broker queue's conversations."""
SAMPLING_TIMEOUTS = Timeouts(connect_seconds=5, statement_seconds=5.0, lock_seconds=0.5)
"""For a sampler; the statement time-out is that of a whole sample."""


@dataclass(frozen=True)
class QueueSample:
    queue: Queue
    row: StatusRow | None
    """None: the queue could not be read, and `problem` says why."""
    problem: str = ""
    """With a row: what is wrong with the queue as a whole."""
    taken_at: float | None = None
    """`clock.elapsed()` in the middle of the statement that read it."""
    slow: tuple[str, ...] = ()
    """The figures that took too long to read."""
    estimates: Estimates | None = None
    """Of the states that were not counted to their end; None: not known."""
    archived: int | None = None
    """About how many done rows are in a table of their own; None: not known, or no such table."""
    claims: tuple[Claim, ...] | None = None
    """The oldest; None: not known, or the design has none."""
    holders: tuple[Holder, ...] | None = None
    """Of open transactions; None: not known."""
    acting: tuple[Acting, ...] = ()
    decisions: tuple[Decision, ...] = ()
    moment: datetime | None = None
    """When it was sampled, by the database's clock."""
    silences: tuple[Decision, ...] = ()
    """Findings of it that operators have silenced or acknowledged."""
    latency: Latency | None = None
    """None: its design is not known."""
    subscribers: SubscriberRows | None = None
    """None: not known, or there are none."""


@dataclass(frozen=True)
class SessionsUsed:
    """Of the server, by clients; `used` None: this login may not see them."""

    used: int | None
    most: int

    @property
    def words(self) -> str:
        return f"{UNKNOWN if self.used is None else f'{self.used:,}'} of {self.most:,} sessions"


@dataclass(frozen=True)
class DatabaseSample:
    """A sample of all queues; `taken_at` is `clock.elapsed()` in the middle of it."""

    connection: str
    taken_at: float
    latency_seconds: float
    queues: tuple[QueueSample, ...]
    counts_rows: bool
    production: bool
    incarnation: str = ""
    """Changes when counters and sequence positions no longer continue those sampled before."""
    clock_ahead: timedelta = timedelta()
    """How far the moment of the figures is ahead of our clock: on a standby the moment that it
    shows, else now by the server's clock."""
    standby: Standby | None = None
    """None: it is a primary."""
    sessions: SessionsUsed | None = None
    pooled: bool = False
    """A pooler stands before the server."""


def take_sample(
    database: Database,
    *,
    stuck_after_seconds: StuckAfter = catalog.STUCK_AFTER_SECONDS,
    only: Sequence[Queue] | None = None,
    memory: Memory | None = None,
    timeouts: Timeouts | None = None,
) -> DatabaseSample:
    """One sample of all queues of the database, or of `only` these. Raises ConsoleError.

    It takes at most as long as a statement may, by `timeouts` or else by the database's.
    """
    kept = None if memory is None else memory.catalog
    memory = Memory() if memory is None else memory
    timeouts = database.timeouts if timeouts is None else timeouts
    budget = Budget.of(timeouts)
    started = elapsed()
    with time_limit(timeouts.statement_seconds):
        counts_rows = database.capabilities.counts_rows
        with database.session("sample the queues", read_only=True) as session:
            with session.transaction("sample the queues") as connection:
                standby = database.seen_standby = read_standby(database.product, connection)
                known = memory.catalog = catalog.read(connection, kept)
                acting = owners.in_progress(connection, known.acting)
                # Last: to a transaction, whoever connects after its first reading of them is gone.
                sessions = sql.row(connection, SessionsUsed, "server.sessions_used")
            if database.remembered:
                known_queues.keep(database.label, (queue.name for queue in known.queues))
            chosen = known.queues if only is None else only
            queues = [queue for queue in chosen if queue.kind is not Kind.ARCHIVE]
            memory.keep(queues)
            lag = timedelta() if standby is None else standby.ago
            run = SampleRun(database, session, memory, budget, stuck_after_seconds, lag)
            more = _Extras(database, session, memory, budget, run.stuck_after, lag)
            is_copy = standby is not None and standby.subscription is not None
            readings = _read(run, more, queues, is_copy=is_copy)
        problems = readings.problems
        if run.locked:
            from console.monitor.blocked import blocked_words  # noqa: PLC0415  # rarely needed

            problems |= blocked_words(database, run.locked)
    ended, moment = elapsed(), utc() + run.clock_ahead - lag
    decisions = sorted(
        (d for d in known.decisions if not d.code), key=lambda decision: decision.kind
    )
    return DatabaseSample(
        connection=database.label,
        taken_at=(started + ended) / 2,
        latency_seconds=ended - started,
        queues=tuple(
            readings.of(
                queue,
                problem=problems.get(key_of(queue)) or readings.rows[key_of(queue)].problem,
                slow=memory.slow(queue),
                acting=tuple(a for a in acting if (a.schema, a.queue) == key_of(queue)),
                decisions=tuple(d for d in decisions if (d.schema, d.queue) == key_of(queue)),
                moment=moment,
                silences=silences_of(known.decisions, queue),
            )
            for queue in queues
        ),
        counts_rows=counts_rows,
        production=known.production or database.production,
        incarnation=run.server.incarnation,
        clock_ahead=run.clock_ahead - lag,
        standby=standby,
        sessions=sessions,
        pooled=database.pooled,
    )


@dataclass(frozen=True)
class _Readings:
    """What was read of the queues, each by its schema and name."""

    rows: Mapping[QueueName, SampledRow]
    holders: Mapping[QueueName, tuple[Holder, ...]]
    claims: Mapping[QueueName, tuple[Claim, ...]]
    estimates: Mapping[QueueName, Estimates]
    archived: Mapping[QueueName, int | None]
    subscribers: Mapping[QueueName, SubscriberRows]
    problems: dict[QueueName, str]
    latency: Mapping[QueueName, Latency]

    def of(self, queue: Queue, **more: Any) -> QueueSample:
        key = key_of(queue)
        return QueueSample(
            queue,
            self.rows[key].row,
            taken_at=self.rows[key].at,
            estimates=self.estimates.get(key),
            archived=self.archived.get(key),
            claims=self.claims.get(key),
            holders=self.holders.get(key),
            latency=self.latency.get(key),
            subscribers=self.subscribers.get(key),
            **more,
        )


def _read(run: SampleRun, more: _Extras, queues: Sequence[Queue], *, is_copy: bool) -> _Readings:
    """The figures first; those of queues that are not as deep as they were once more, last."""
    numbered = [queue for queue in queues if is_copy and queue.design.flow is Flow.NUMBERS]
    known = [queue for queue in queues if not queue.not_readable and queue not in numbered]
    rows = run.sample(known)
    holders = more.holders(known) if run.server.sees_writers else {}
    claims = more.claims(known, rows)
    estimated, shallow = more.estimates(known, rows)
    archived = more.archived(known)
    subscribers = more.subscribers(known)
    problems = more.problems(known, rows)
    latency = more.latency([queue for queue in known if rows[key_of(queue)].row])
    rows |= run.sample(shallow)
    unknown = [queue for queue in queues if queue.not_readable]
    rows |= {key_of(queue): SampledRow(None, queue.not_readable, elapsed()) for queue in unknown}
    rows |= {key_of(queue): SampledRow(None, _NO_SEQUENCES, elapsed()) for queue in numbered}
    rows = {key: row.as_of(more.lag) for key, row in rows.items()}
    return _Readings(rows, holders, claims, estimated, archived, subscribers, problems, latency)


_NO_SEQUENCES = "a subscription replicates no sequences: its numbers are its publisher's"


@dataclass(frozen=True)
class _Extras:
    """Reads what some queues have besides their figures; unknown where it takes too long."""

    database: Database
    session: Session
    memory: Memory
    budget: Budget
    stuck_after: Callable[[Queue], float]
    lag: timedelta

    def holders(self, queues: Sequence[Queue]) -> dict[QueueName, tuple[Holder, ...]]:
        """The open transactions that write in each queue; empty where the server shows none."""
        kept: dict[QueueName, tuple[Holder, ...]] | None = self.memory.kept("holders")
        if kept is None or not kept.keys() >= set(map(key_of, queues)):
            kept = self._collect(
                queues[:1],
                "read open transactions",
                lambda connection, _: owners.holders(connection, self.database, queues),
            )
            self.memory.keep_for(self.database.product.holders_every_seconds, "holders", kept)
        return kept

    def claims(
        self, queues: Sequence[Queue], sampled: Mapping[QueueName, SampledRow]
    ) -> dict[QueueName, tuple[Claim, ...]]:
        """The oldest claims of each queue whose claims could be counted."""
        rows = {key_of(queue): sampled[key_of(queue)].row for queue in self._with("claims", queues)}
        counts = {key: row.claimed for key, row in rows.items() if row and row.claimed is not None}

        def read(
            connection: Connection, some: Sequence[Queue]
        ) -> Mapping[QueueName, tuple[Claim, ...]]:
            found = owners.claims(connection, self.database, some, self.memory, self.stuck_after)
            return {
                key_of(queue): tuple(
                    claim.as_of(self.lag) for claim in found.get(key_of(queue), ())
                )
                for queue in some
            }

        claimed = [queue for queue in queues if counts.get(key_of(queue))]
        unclaimed: dict[QueueName, tuple[Claim, ...]] = {
            key: () for key, n in counts.items() if not n
        }
        return unclaimed | self._collect(claimed, "read claims", read)

    def estimates(
        self, queues: Sequence[Queue], sampled: Mapping[QueueName, SampledRow]
    ) -> tuple[dict[QueueName, Estimates], list[Queue]]:
        """Of the queues with states that were not counted to their end; and the queues that are
        not as deep as they were, whose states must be counted now."""
        rows = {
            key: sampled_row.row
            for key, sampled_row in sampled.items()
            if sampled_row.row and sampled_row.row.over()
        }
        counts_rows = self.database.capabilities.counts_rows

        def read(connection: Connection, some: Sequence[Queue]) -> Mapping[QueueName, Estimates]:
            pairs = [(queue, rows[key_of(queue)]) for queue in some]
            return estimates(connection, pairs, self.memory, counts_rows=counts_rows)

        deep = [queue for queue in self._with("estimate", queues) if key_of(queue) in rows]
        found = self._collect_unless_slow(deep, "estimate", "estimate depths", read)
        shallow = [
            queue
            for queue in deep
            if (estimated := found.get(key_of(queue)))
            and not self.memory.keep_deep(queue, rows[key_of(queue)], estimated)
        ]
        return found, shallow

    def archived(self, queues: Sequence[Queue]) -> dict[QueueName, int | None]:
        """About how many messages are done, of each queue that keeps those in another table."""

        def read(connection: Connection, some: Sequence[Queue]) -> Mapping[QueueName, int | None]:
            rows = sql.union(connection, ArchivedRow, self._parts(some, "archive_estimate"))
            return {(row.schema, row.queue): row.done for row in rows}

        return self._collect(self._with("archive_estimate", queues), "estimate archives", read)

    def subscribers(self, queues: Sequence[Queue]) -> dict[QueueName, SubscriberRows]:
        def read(
            connection: Connection, some: Sequence[Queue]
        ) -> Mapping[QueueName, SubscriberRows]:
            started = elapsed()
            rows = sql.union(connection, SubscriberRow, self._parts(some, "subscriber_status"))
            rows = [
                replace(subscriber_row, age_seconds=age_as_of(subscriber_row.age_seconds, self.lag))
                for subscriber_row in rows
            ]
            return SubscriberRows.by_queue(rows, (started + elapsed()) / 2)

        shared = [queue for queue in queues if queue.subscribers and not queue.subscriber]
        return self._collect_unless_slow(shared, "subscribers", "read subscribers", read)

    def problems(
        self, queues: Sequence[Queue], sampled: Mapping[QueueName, SampledRow]
    ) -> dict[QueueName, str]:
        """What is wrong with queues as a whole, for designs whose engine reports that."""

        def read(connection: Connection, some: Sequence[Queue]) -> Mapping[QueueName, str]:
            found = {}
            for queue in some:
                row = sampled[key_of(queue)].row
                counts: BrokerHealth | None = self.memory.kept(("broker", key_of(queue)))
                health = rates.health(connection, queue, counts=counts is None)
                if counts is None:
                    self.memory.keep_for(BROKER_SECONDS, ("broker", key_of(queue)), health)
                else:
                    health = health.counted_as(counts)
                if problem := health.problem(row.ready if row else None):
                    found[key_of(queue)] = problem
            return found

        return self._collect(self._with("health", queues), "read the state of Service Broker", read)

    def latency(self, queues: Sequence[Queue]) -> dict[QueueName, Latency]:
        """How long messages waited and were processed; read less often than the figures."""
        kept, product = self.memory.latency, self.database.product
        if kept.due:
            timed = [
                queue
                for queue in queues
                if self.memory.may_try(queue, "latency")
                and (name := statement_of(queue))
                and sql.has(product, f"{queue.design.name}.{name}")
            ]

            def read(connection: Connection, some: Sequence[Queue]) -> Mapping[QueueName, bool]:
                parts = [self.memory.part(product, one, statement_of(one), {}) for one in some]
                kept.add(some, sql.union(connection, TimesRow, parts))
                return dict.fromkeys(map(key_of, some), True)

            done = self._collect_unless_slow(
                timed, "latency", "read how long messages waited", read
            )
            for queue in timed:
                if key_of(queue) not in done:
                    kept.fail(queue)
        return {key_of(queue): kept.of(queue) for queue in queues}

    def _with(self, name: str, queues: Sequence[Queue]) -> list[Queue]:
        """The queues whose design has that statement."""
        product = self.database.product
        return [queue for queue in queues if sql.has(product, f"{queue.design.name}.{name}")]

    def _parts(self, queues: Sequence[Queue], name: str) -> list[sql.UnionMember]:
        return [self.memory.part(self.database.product, queue, name, {}) for queue in queues]

    def _collect_unless_slow(
        self, queues: Sequence[Queue], name: str, doing: str, read: _Read[Value]
    ) -> dict[QueueName, Value]:
        """Leaves out the queues where `name` was too slow lately, and remembers which are slow."""
        tried = [queue for queue in queues if self.memory.may_try(queue, name)]
        found = self._collect(tried, doing, read)
        for queue in tried:
            if key_of(queue) in found:
                self.memory.was_quick(queue, [name])
            else:
                self.memory.was_slow(queue, name)
        return found

    def _collect(
        self, queues: Sequence[Queue], doing: str, read: _Read[Value]
    ) -> dict[QueueName, Value]:
        """Reads the queues in groups; where a group fails, one by one."""
        found: dict[QueueName, Value] = {}
        for group in groups(queues, self.database.product):
            if not self._read(group, doing, read, found) and len(group) > 1:
                ends_at = time.monotonic() + self.budget.retry
                for queue in group:
                    if time.monotonic() < ends_at:
                        self._read([queue], doing, read, found)
        return found

    def _read(
        self, group: Sequence[Queue], doing: str, read: _Read[Value], found: dict[QueueName, Value]
    ) -> bool:
        limit = self.budget.together(len(group))
        try:
            with self.session.transaction(doing) as connection:
                limit_transaction(connection, self.database, limit, self.budget.lock)
                found.update(read(connection, group))
        except ConnectionFailedError:
            raise
        except ConsoleError:
            return False
        return True
