"""One sample of all queues of a database, in as few statements as possible.

Every statement reads rows of the same columns for each queue, so those of many queues are one UNION
ALL; the counts are bounded, so a sample costs the same however deep the queues are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from console import catalog, sql
from console.catalog import Acting, Kind, Queue
from console.clock import elapsed, utc
from console.decisions import Decision
from console.engines import Database, Session, Timeouts, patience, product_of
from console.errors import ConnectionFailedError, ConsoleError
from console.monitor import figures, known_queues, owners
from console.monitor.figures import STATES, Key, StatusRow, key_of
from console.monitor.latency import Latency, TimesRow, statement_of
from console.monitor.limits import silences_of
from console.monitor.memory import Memory
from console.monitor.owners import Claim, Holder
from console.monitor.sample_queries import (
    Budget,
    One,
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
class EstimateRow:
    """About how many rows of each state there are; None: the design has it not, or nobody knows."""

    schema: str
    queue: str
    ready: float | None
    scheduled: float | None
    claimed: float | None
    errors: float | None
    done: float | None


@dataclass(frozen=True)
class ArchivedRow:
    """About how many done messages a table of their own has."""

    schema: str
    queue: str
    done: int | None


Estimates = Mapping[str, float | None]
"""By state."""


def estimates(
    connection: Connection,
    wanted: Sequence[tuple[Queue, StatusRow]],
    memory: Memory,
    *,
    counts_rows: bool = True,
) -> dict[Key, Estimates]:
    """Of these queues, which were just seen; their designs have the statement.

    `counts_rows`: whether the login may read the engine's counters of rows.
    """
    product, counters = product_of(connection), "yes" if counts_rows else "no"
    parts = []
    for queue, row in wanted:
        # Where the first ready rows were not to be had in time, nor are they looked for here.
        limit = {} if row.ready is not None else {"ready_limit": "0"}
        values = {"counters": counters, "over": "|".join(row.over()), **limit}
        parts.append(memory.part(product, queue, "estimate", values))
    rows = sql.union(connection, EstimateRow, parts)
    found = {
        (row.schema, row.queue): {state: getattr(row, state) for state in STATES} for row in rows
    }
    return {key_of(queue): found[key_of(queue)] for queue, _ in wanted}


SAMPLING_TIMEOUTS = Timeouts(connect_seconds=5, statement_seconds=5.0, lock_seconds=0.5)
"""For a sampler: so long is a whole sample, and a connect."""


@dataclass(frozen=True)
class QueueSample:
    """What was seen of one queue; `row` is None where it could not be seen, for `problem`.

    A problem with a row is one of the queue as a whole.
    """

    queue: Queue
    row: StatusRow | None
    problem: str = ""
    taken_at: float | None = None
    """`clock.elapsed()` in the middle of the statement that saw it."""
    slow: tuple[str, ...] = ()
    """The figures that are not known because they took too long."""
    estimates: Estimates | None = None
    """About how many rows the states have that were not counted to their end; None: not known."""
    archived: int | None = None
    """About how many rows are done and in a table of their own; None: not known, or none such."""
    claims: tuple[Claim, ...] | None = None
    """The oldest; None: not known, or the design has none."""
    holders: tuple[Holder, ...] | None = None
    """Of open transactions; None: not known."""
    acting: tuple[Acting, ...] = ()
    """What operators are doing to it."""
    decisions: tuple[Decision, ...] = ()
    """What operators have decided of it as a whole: pause, protection."""
    moment: datetime | None = None
    """When that was seen, by the database's clock."""
    silences: tuple[Decision, ...] = ()
    """Which of its findings operators have silenced or acknowledged."""
    latency: Latency | None = None
    """How long its messages waited and work on them took; None: nobody knows its design."""
    subscribers: SubscriberRows | None = None
    """None: not known, or it has none."""


@dataclass(frozen=True)
class DatabaseSample:
    """What was seen of a database. `taken_at` is `clock.elapsed()` in the middle of the sample."""

    connection: str
    taken_at: float
    latency_seconds: float
    queues: tuple[QueueSample, ...]
    counts_rows: bool
    production: bool
    life: str = ""
    """Another one than before: counters and positions do not follow from those seen before."""
    clock_ahead: timedelta = timedelta()
    """How far the server's clock is ahead of ours."""


def take_sample(
    database: Database,
    *,
    stuck_after_seconds: StuckAfter = catalog.STUCK_AFTER_SECONDS,
    only: Sequence[Queue] | None = None,
    memory: Memory | None = None,
    timeouts: Timeouts | None = None,
) -> DatabaseSample:
    """Look once at all queues of the database, or at those given. Raises ConsoleError.

    Takes no longer than one statement may (by the database's time-outs, unless others are given),
    whatever the server does.
    """
    memory = Memory() if memory is None else memory
    timeouts = database.timeouts if timeouts is None else timeouts
    budget = Budget.of(timeouts)
    started = elapsed()
    with patience(timeouts.statement_seconds):
        counts_rows = database.capabilities.counts_rows
        with database.session("sample the queues", read_only=True) as session:
            with session.transaction("sample the queues") as connection:
                known = catalog.read(connection)
                acting = owners.in_progress(connection, known.acting)
            if database.remembered:
                known_queues.keep(database.label, (queue.name for queue in known.queues))
            wanted = known.queues if only is None else only
            queues = [queue for queue in wanted if queue.kind is not Kind.ARCHIVE]
            memory.keep(queues)
            look = SampleRun(database, session, memory, budget, stuck_after_seconds)
            known_here = [queue for queue in queues if queue.design.known]
            seen = look.at(known_here)
            more = _More(database, session, memory, budget, look.stuck_after)
            holders = more.holders(known_here) if look.circumstances.sees_writers else {}
            claims = more.claims(known_here, seen)
            estimated, shallow = more.estimates(known_here, seen)
            archived = more.archived(known_here)
            subscribers = more.subscribers(known_here)
            broken = more.broken(known_here, seen)
            latency = more.latency([one for one in known_here if seen[key_of(one)].row is not None])
            seen |= look.at(shallow)
            seen |= {
                key_of(queue): SampledRow(None, queue.not_known, elapsed())
                for queue in queues
                if queue.not_known
            }
    ended, moment = elapsed(), utc() + look.clock_ahead
    decided = sorted((d for d in known.decisions if not d.code), key=lambda one: one.kind)
    return DatabaseSample(
        connection=database.label,
        taken_at=(started + ended) / 2,
        latency_seconds=ended - started,
        queues=tuple(
            QueueSample(
                queue,
                seen[key_of(queue)].row,
                seen[key_of(queue)].problem or broken.get(key_of(queue), ""),
                seen[key_of(queue)].at,
                slow=memory.slow(queue),
                estimates=estimated.get(key_of(queue)),
                archived=archived.get(key_of(queue)),
                claims=claims.get(key_of(queue)),
                holders=holders.get(key_of(queue)),
                acting=tuple(a for a in acting if (a.schema, a.queue) == key_of(queue)),
                decisions=tuple(d for d in decided if (d.schema, d.queue) == key_of(queue)),
                moment=moment,
                silences=silences_of(known.decisions, queue),
                latency=latency.get(key_of(queue)),
                subscribers=subscribers.get(key_of(queue)),
            )
            for queue in queues
        ),
        counts_rows=counts_rows,
        production=known.production or database.production,
        life=look.circumstances.life,
        clock_ahead=look.clock_ahead,
    )


@dataclass(frozen=True)
class _More:
    """What is asked of some queues besides their figures; unknown where it takes too long."""

    database: Database
    session: Session
    memory: Memory
    budget: Budget
    stuck_after: Callable[[Queue], float]

    def holders(self, queues: Sequence[Queue]) -> dict[Key, tuple[Holder, ...]]:
        """The open transactions that write in each queue; empty where nobody can tell."""
        found: dict[Key, tuple[Holder, ...]] = {}

        def ask(connection: Connection, _: Sequence[Queue]) -> None:
            found.update(owners.holders(connection, self.database, queues))

        self._ask(queues[:1], "read open transactions", ask)
        return found

    def claims(
        self, queues: Sequence[Queue], seen: Mapping[Key, SampledRow]
    ) -> dict[Key, tuple[Claim, ...]]:
        """The oldest claims of each queue that can have some and whose claims could be counted."""
        rows = {key_of(queue): seen[key_of(queue)].row for queue in self._with("claims", queues)}
        counted = {key: row.claimed for key, row in rows.items() if row and row.claimed is not None}
        found: dict[Key, tuple[Claim, ...]] = {
            key: () for key, count in counted.items() if not count
        }
        wanted = [queue for queue in queues if counted.get(key_of(queue))]

        def ask(connection: Connection, some: Sequence[Queue]) -> None:
            listed = owners.claims(connection, self.database, some, self.memory, self.stuck_after)
            found.update({key_of(queue): listed.get(key_of(queue), ()) for queue in some})

        self._ask(wanted, "read claims", ask)
        return found

    def estimates(
        self, queues: Sequence[Queue], seen: Mapping[Key, SampledRow]
    ) -> tuple[dict[Key, Estimates], list[Queue]]:
        """Of the queues that have states which were not counted to their end.

        And those queues whose states must be counted now: they are not as deep as they were.
        """
        found: dict[Key, Estimates] = {}
        shallow = []
        wanted = []
        for queue in self._with("estimate", queues):
            row = seen[key_of(queue)].row
            if row is not None and row.over() and self.memory.may_try(queue, "estimate"):
                wanted.append((queue, row))

        counts_rows = self.database.capabilities.counts_rows

        def ask(connection: Connection, some: Sequence[tuple[Queue, StatusRow]]) -> None:
            found.update(estimates(connection, some, self.memory, counts_rows=counts_rows))

        self._ask(wanted, "estimate depths", ask)
        for queue, row in wanted:
            if estimated := found.get(key_of(queue)):
                self.memory.was_quick(queue, ["estimate"])
                if not self.memory.keep_deep(queue, row, estimated):
                    shallow.append(queue)
            else:
                self.memory.was_slow(queue, "estimate")
        return found, shallow

    def archived(self, queues: Sequence[Queue]) -> dict[Key, int | None]:
        """About how many messages are done, of each queue that keeps those in another table."""
        found: dict[Key, int | None] = {}

        def ask(connection: Connection, some: Sequence[Queue]) -> None:
            product = self.database.product
            parts = [self.memory.part(product, one, "archive_estimate", {}) for one in some]
            rows = sql.union(connection, ArchivedRow, parts)
            found.update({(row.schema, row.queue): row.done for row in rows})

        self._ask(self._with("archive_estimate", queues), "look at archives", ask)
        return found

    def subscribers(self, queues: Sequence[Queue]) -> dict[Key, SubscriberRows]:
        found: dict[Key, SubscriberRows] = {}
        wanted = [
            queue
            for queue in queues
            if queue.subscribers
            and not queue.subscriber
            and self.memory.may_try(queue, "subscribers")
        ]

        def ask(connection: Connection, some: Sequence[Queue]) -> None:
            product, started = self.database.product, elapsed()
            parts = [self.memory.part(product, one, "subscriber_status", {}) for one in some]
            rows = sql.union(connection, SubscriberRow, parts)
            found.update(SubscriberRows.by_queue(rows, (started + elapsed()) / 2))

        self._ask(wanted, "read what subscribers have", ask)
        for queue in wanted:
            if key_of(queue) in found:
                self.memory.was_quick(queue, ["subscribers"])
            else:
                self.memory.was_slow(queue, "subscribers")
        return found

    def broken(self, queues: Sequence[Queue], seen: Mapping[Key, SampledRow]) -> dict[Key, str]:
        """What is wrong with queues as a whole, of designs whose engine tells."""
        found: dict[Key, str] = {}

        def ask(connection: Connection, some: Sequence[Queue]) -> None:
            for queue in some:
                row = seen[key_of(queue)].row
                told = figures.health(connection, queue)
                if problem := told.problem(row.ready if row else None):
                    found[key_of(queue)] = problem

        self._ask(self._with("health", queues), "read the state of Service Broker", ask)
        return found

    def latency(self, queues: Sequence[Queue]) -> dict[Key, Latency]:
        """How long messages waited, and work on them took: asked at a slower pace than figures."""
        kept = self.memory.latency
        if kept.due:
            may = [queue for queue in queues if self.memory.may_try(queue, "latency")]
            product = self.database.product
            wanted = [
                queue
                for queue in may
                if (name := statement_of(queue)) and sql.has(product, f"{queue.design.name}.{name}")
            ]
            read: set[Key] = set()

            def ask(connection: Connection, some: Sequence[Queue]) -> None:
                parts = [self.memory.part(product, one, statement_of(one), {}) for one in some]
                kept.add(some, sql.union(connection, TimesRow, parts))
                read.update(map(key_of, some))

            self._ask(wanted, "read how long messages waited", ask)
            for queue in wanted:
                if key_of(queue) in read:
                    self.memory.was_quick(queue, ["latency"])
                else:
                    self.memory.was_slow(queue, "latency")
                    kept.fail(queue)
        return {key_of(queue): kept.of(queue) for queue in queues}

    def _with(self, name: str, queues: Sequence[Queue]) -> list[Queue]:
        return [
            queue
            for queue in queues
            if sql.has(self.database.product, f"{queue.design.name}.{name}")
        ]

    def _ask(
        self, many: Sequence[One], doing: str, ask: Callable[[Connection, Sequence[One]], None]
    ) -> None:
        """Ask in groups; a group that cannot be asked is asked one by one."""
        for group in groups(many):
            if not self._asked(group, doing, ask) and len(group) > 1:
                ends_at = time.monotonic() + self.budget.retry
                for one in group:
                    if time.monotonic() < ends_at:
                        self._asked([one], doing, ask)

    def _asked(
        self, group: Sequence[One], doing: str, ask: Callable[[Connection, Sequence[One]], None]
    ) -> bool:
        limit = self.budget.together(len(group))
        try:
            with self.session.transaction(doing) as connection:
                limit_transaction(connection, self.database, limit, self.budget.lock)
                ask(connection, group)
        except ConnectionFailedError:
            raise
        except ConsoleError:
            return False
        return True
