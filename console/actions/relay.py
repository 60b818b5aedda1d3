"""Relay a ring: resize it and renumber its live messages. One transaction, nothing lost."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from console import sql
from console.actions import short_locks
from console.actions.short_locks import retry_while_busy
from console.catalog import Kind, Queue, audit, decisions
from console.catalog.audit import Ledger, Outcome
from console.engines import Database
from console.errors import BusyError, RefusedError, UsageError
from console.formats import numbered
from console.plan import FOR_CALLERS, Plan, Result, queue_plan, refused, waiting_step, warning


@dataclass(frozen=True)
class Blocker:
    pid: int | None
    user_name: str | None
    application_name: str | None
    client_address: str | None
    state: str | None
    transaction_seconds: float | None
    prepared_transaction: str | None

    @property
    def line(self) -> str:
        if self.prepared_transaction is not None:
            return f"prepared transaction {self.prepared_transaction!r}"
        age = "?" if self.transaction_seconds is None else f"{self.transaction_seconds:.1f} s"
        return (
            f"pid {self.pid} ({self.user_name or '?'}, {self.application_name or '?'}, "
            f"{self.client_address or 'local'}), {self.state or '?'}, in transaction for {age}"
        )


@dataclass(frozen=True)
class Measure:
    """A ring's size, numbers and parked numbers."""

    size: int
    base: int
    live: int
    next_push: int
    next_pop: int
    parked: int
    voids: int

    @property
    def gap(self) -> int:
        """The push/pop sequence gap; negative where poppers wait ahead."""
        return self.next_push - self.next_pop


@dataclass(frozen=True)
class Relaid:
    """A ring before and after."""

    size_before: int
    size_after: int
    live: int
    base: int
    next_push: int

    def lines(self, queue: Queue) -> list[str]:
        live = numbered(self.live, "live message")
        numbers = f", numbers {self.base:,} to {self.next_push - 1:,}" if self.live else ""
        return [
            f"{'relaid' if self.size_after == self.size_before else 'resized'} {queue.label}: "
            f"{self.size_before:,} slots before, {self.size_after:,} now",
            f"  {live}{numbers}; the next push is {self.next_push:,}",
        ]


def measure(database: Database, queue: Queue) -> tuple[Measure, tuple[Blocker, ...]]:
    """The ring, and who would block a relay. Changes nothing."""
    _require_ring(queue)
    scope = queue.scope(database.product)
    with database.autocommit(f"read the ring {queue.name!r}", read_only=True) as connection:
        measured = sql.row(connection, Measure, f"{queue.design.name}.measure", scope)
    return measured, blockers_of(database, queue)


def blockers_of(database: Database, queue: Queue) -> tuple[Blocker, ...]:
    """For whom a relay, and all that needs the ring for itself, would wait now."""
    scope = queue.scope(database.product)
    with database.autocommit(f"read the ring {queue.name!r}", read_only=True) as connection:
        return tuple(sql.rows(connection, Blocker, f"{queue.design.name}.blockers", scope))


def blocked_by(blockers: Sequence[Blocker]) -> list[str]:
    """Lines of a plan."""
    return [warning(f"  waits for {blocker.line}") for blocker in blockers]


@contextmanager
def naming_blockers(database: Database, queue: Queue) -> Iterator[None]:
    """A BusyError of the block names them."""
    try:
        yield
    except BusyError as error:
        raise BusyError(
            error.what,
            why="; ".join(b.line for b in blockers_of(database, queue)) or error.why,
            next_step="Nothing was changed. Wait until they end, or terminate them; then try "
            "again.",
        ) from error


def plan(database: Database, queue: Queue, new_size: int | None = None) -> Plan:
    """A resize, if there is a `new_size`."""
    now, blockers = measure(database, queue)
    if new_size is not None and new_size < 1:
        raise UsageError("A ring has at least one slot.", next_step="Name a size of 1 or more.")
    after = new_size or now.size
    too_many = max(0, now.live - after)
    obstacles: tuple[str, ...] = ()
    if too_many:
        live = numbered(now.live, "live message")
        obstacles = (f"It holds {live}, {too_many:,} more than {after:,} slots take.",)
    return queue_plan(
        database,
        queue,
        _verb(new_size),
        describe(queue, now, blockers, after),
        waiting_step(FOR_CALLERS, _run, database, queue, new_size),
        requires_name=True,
        count=now.live,
        obstacles=obstacles,
        next_step=f"Drain {numbered(too_many, 'message')} first, or choose {now.live:,} slots or "
        "more.",
        stoppable=False,
        data={
            "queue": queue.name,
            "schema": queue.schema,
            **asdict(now),
            "new_size": after,
            "drain_first": too_many,
            "blockers": [asdict(blocker) for blocker in blockers],
        },
    )


def describe(queue: Queue, now: Measure, blockers: Sequence[Blocker], slots: int) -> Sequence[str]:
    """A relay to so many slots."""
    start = max(now.next_push, now.next_pop)
    verb = "relay" if slots == now.size else "resize"
    lines = [
        f"{verb} {queue.label}: {now.size:,} slots now, {slots:,} afterwards",
        f"  {numbered(now.live, 'live message')}, renumbered in order, from {start:,}"
        if now.live
        else f"  no live messages; the next push is {start:,}",
        f"  next push {now.next_push:,}, next pop {now.next_pop:,}, gap {now.gap:,}",
        f"  {numbered(now.parked, 'parked number')} and {now.voids:,} void dropped",
        "  all callers wait while it runs; it is one transaction",
        short_locks.LINE,
    ]
    if names := ", ".join(subscriber.name for subscriber in queue.subscribers):
        lines.insert(3, f"  each subscriber keeps what it has not popped: {names}")
    if now.live > slots:
        lines.append(refused(f"drain {numbered(now.live - slots, 'message')} first"))
    return [*lines, *blocked_by(blockers)]


def _verb(new_size: int | None) -> str:
    return "relay" if new_size is None else "resize"


def _run(database: Database, queue: Queue, new_size: int | None) -> Result:
    done = relay(database, queue, new_size)
    ledger = Ledger(selected=done.live, out=done.live, into=done.live)
    return Result(Outcome.DONE, tuple(done.lines(queue)), ledger, done=1, data=asdict(done))


def relay(database: Database, queue: Queue, new_size: int | None) -> Relaid:
    """Relay the ring, to `new_size` slots where given. RefusedError when they are too few.

    Retried with growing pauses while other transactions hold the ring; then BusyError, naming them.
    An attempt holds no lock while it waits for any but `parked`.
    """
    _require_ring(queue)
    subject = audit.Subject.of(database, queue, _verb(new_size))
    with naming_blockers(database, queue):
        return retry_while_busy(lambda: _relay_once(database, queue, new_size, subject))


def _relay_once(
    database: Database, queue: Queue, new_size: int | None, subject: audit.Subject
) -> Relaid:
    """Relay, count again and record, in one transaction."""
    scope = queue.scope(database.product)
    with audit.recorded(database, f"{subject.verb} the ring {queue.name!r}", subject) as act:
        done = sql.row(
            act.connection, Relaid, f"{queue.design.name}.relay", scope, new_size=new_size
        )
        if done.size_after < done.size_before:
            doing = f"fewer than its {done.size_before:,} slots"
            decisions.require_unprotected(act.connection, queue.schema, queue.name, doing)
        # It holds the ring until the commit: no call comes between the two counts.
        after = sql.row(act.connection, Measure, f"{queue.design.name}.measure", scope)
        ledger = Ledger(selected=done.live, out=done.live, into=after.live).require_balance()
        act.record.batch(act.connection, ledger)
        act.detail = f"{done.size_before} slots before, {done.size_after} after, {done.live} live"
    return done


def _require_ring(queue: Queue) -> None:
    if "relay" not in queue.design.verbs:
        raise UsageError(
            f"The queue {queue.name!r} is not a ring.",
            why=f"Its design is {queue.design.name}, which has no slots.",
        )
    if queue.kind is not Kind.INSTALLED:
        raise RefusedError(
            f"The ring {queue.name!r} was adopted and is never renumbered.",
            why="Its callers manage its size and its numbers themselves.",
            next_step="Relay it with its owner's tools.",
        )
