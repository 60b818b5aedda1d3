"""One look at all queues of a database, in as few statements as possible.

Every design's `status` statement returns one row of the same columns, so those of all queues are
one UNION ALL; where that fails, each queue is asked alone and only the one that failed is unknown.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from console import catalog, sql
from console.catalog import Kind, Queue
from console.engines import Database, Timeouts
from console.errors import ConnectionFailedError, ConsoleError

COUNTED = 10_000
"""Rows of a state are counted up to here; one more than this says: there are more."""

SAMPLING_TIMEOUTS = Timeouts(connect_seconds=5, statement_seconds=5.0, lock_seconds=0.5)
"""For the sampler's own connection."""


@dataclass(frozen=True)
class StatusRow:
    """What every `status` statement returns. None: the design has it not, or it is not known."""

    schema: str
    queue: str
    ready: int | None
    scheduled: int | None
    claimed: int | None
    stuck: int | None
    errors: int | None
    done: int | None
    age_seconds: float | None
    rows_estimated: int | None
    inserted: int | None
    updated: int | None
    deleted: int | None
    next_push: int | None
    next_pop: int | None
    base: int | None
    capacity: int | None


@dataclass(frozen=True)
class QueueSample:
    """What was seen of one queue; `row` is None where it could not be seen, for `problem`."""

    queue: Queue
    row: StatusRow | None
    problem: str = ""


@dataclass(frozen=True)
class DatabaseSample:
    """What was seen of a database. `taken_at` is `time.monotonic()` in the middle of the look."""

    connection: str
    taken_at: float
    latency_seconds: float
    queues: tuple[QueueSample, ...]
    counts_rows: bool
    production: bool


@dataclass(frozen=True)
class _Careful:
    seqscan: str
    bitmapscan: str
    jit: str


def take_sample(
    database: Database,
    *,
    stuck_after_seconds: float = catalog.STUCK_AFTER_SECONDS,
    only: Sequence[Queue] | None = None,
) -> DatabaseSample:
    """Look once at all queues of the database, or at those given. Raises ConsoleError."""
    product = database.product
    counts_rows = database.capabilities.counts_rows
    started = time.monotonic()
    with database.transaction("look at the queues", read_only=True) as connection:
        production = catalog.is_production(connection, product)
        known = only if only is not None else catalog.queues(connection, product)
    watched = [queue for queue in known if queue.kind is not Kind.ARCHIVE]
    seen = _together(database, watched, stuck_after_seconds)
    if seen is None:
        seen = tuple(_alone(database, queue, stuck_after_seconds) for queue in watched)
    ended = time.monotonic()
    return DatabaseSample(
        connection=database.label,
        taken_at=(started + ended) / 2,
        latency_seconds=ended - started,
        queues=seen,
        counts_rows=counts_rows,
        production=production,
    )


def _together(
    database: Database, queues: Sequence[Queue], stuck_after_seconds: float
) -> tuple[QueueSample, ...] | None:
    """All queues in one transaction of two statements, or None where one of them fails."""
    if not queues:
        return ()
    try:
        with database.transaction("look at the queues", read_only=True) as connection:
            rows = _ask(connection, database, queues, stuck_after_seconds)
    except ConnectionFailedError:
        raise
    except ConsoleError:
        return None
    by_key = {(row.schema, row.queue): row for row in rows}
    return tuple(QueueSample(queue, by_key[queue.schema, queue.name]) for queue in queues)


def _alone(database: Database, queue: Queue, stuck_after_seconds: float) -> QueueSample:
    try:
        with database.transaction(f"look at {queue.name!r}", read_only=True) as connection:
            (row,) = _ask(connection, database, [queue], stuck_after_seconds)
    except ConnectionFailedError:
        raise
    except ConsoleError as error:
        return QueueSample(queue, None, error.why or error.what)
    return QueueSample(queue, row)


def _ask(
    connection: Connection,
    database: Database,
    queues: Sequence[Queue],
    stuck_after_seconds: float,
) -> list[StatusRow]:
    product = database.product
    server = sql.statements(product.name, "server")
    if "careful" in server:
        sql.fetch(connection, _Careful, server["careful"], sql.Scope())
    counters = "yes" if database.capabilities.counts_rows else "no"
    scopes = [
        q.scope(product, counters=counters, stuck_after_seconds=str(stuck_after_seconds))
        for q in queues
    ]
    files = [sql.statements(product.name, queue.design.name) for queue in queues]
    gates = [
        (file["gate"], scope)
        for file, scope, queue in zip(files, scopes, queues, strict=True)
        if "gate" in file and queue.kind is Kind.INSTALLED
    ]
    if gates:
        connection.execute(sql.union(gates, connection.dialect))
    parts = [(file["status"], scope) for file, scope in zip(files, scopes, strict=True)]
    result = connection.execute(sql.union(parts, connection.dialect))
    return sql.rows_of(result.keys(), result.fetchall(), StatusRow, "status")
