"""Tables of other libraries: locks and retries of their workers, and rows without a partition."""

from collections.abc import Iterator
from dataclasses import dataclass

from console import sql
from console.catalog import Kind
from console.doctor.context import MOST, CheckContext, CheckGroup, counted
from console.doctor.finding import Code, Finding
from console.formats import duration
from console.monitor.limits import Severity

RETRYING_SECONDS = 86_400.0
"""Jobs that fail and are retried for this long are reported. For how long, each library's
statement `retrying` says."""

DEFAULT_PARTITION = Code(
    "default_partition",
    Severity.WARNING,
    "rows in the default partition of a partitioned table: no partition was created for them",
)
LOCKED = Code(
    "queue_locked",
    Severity.WARNING,
    "a library's named queue that a worker has locked for longer than the threshold",
)
RETRYING = Code(
    "jobs_retrying",
    Severity.WARNING,
    "jobs that have been failing and retried for longer than a day, and do not count as errors yet",
)


@dataclass(frozen=True)
class _Partition:
    schema: str
    partition: str


def _check_default_partition(context: CheckContext) -> Iterator[Finding]:
    if not sql.has(context.database.product, "partitions.default_partition"):
        return
    with context.limited_transaction() as connection:
        scope = context.queue.scope(connection)
        partitions = sql.rows(connection, _Partition, "partitions.default_partition", scope)
        for partition in partitions:
            values = {"partition_schema": partition.schema, "partition": partition.partition}
            within = context.queue.scope(connection, **values)
            rows = sql.value(connection, int, "partitions.partition_rows", within)
            if rows:
                yield Finding(
                    DEFAULT_PARTITION,
                    f"{counted(rows, 'row')} in the default partition {partition.partition}",
                    evidence={"partition": partition.partition, "rows": rows},
                    cause="they arrived before their partition existed: what creates partitions "
                    "(pg_partman's run_maintenance) does not run, or runs too late",
                    consequence="no partition for their range can be created before they are moved "
                    "(pg_partman: CALL partition_data_proc), so later rows land here too; "
                    "retention drops none of them",
                )


@dataclass(frozen=True)
class _LockedQueue:
    name: str
    locked_by: str | None
    seconds: float | None
    """None: since a time before all others."""
    waiting: int


def _how_long(seconds: float | None) -> str:
    return "since -infinity" if seconds is None else f"for {duration(seconds)}"


def _check_locked_queues(context: CheckContext) -> Iterator[Finding]:
    if not context.has("locked_queues"):
        return
    with context.limited_transaction() as connection:
        queues = context.fetch(
            connection,
            _LockedQueue,
            "locked_queues",
            seconds=context.thresholds.stuck_after_seconds,
        )
    schema = context.queue.schema
    for queue in queues:
        worker = queue.locked_by or "?"
        literal = "'" + worker.replace("'", "''") + "'"
        own = sql.quote_identifier(context.database.product.dialect, schema)
        yield Finding(
            LOCKED,
            f"the named queue {queue.name} has been locked {_how_long(queue.seconds)} by {worker}, "
            f"with {counted(queue.waiting, 'job')} waiting",
            evidence={
                "queue_name": queue.name,
                "locked_by": queue.locked_by,
                "seconds": queue.seconds,
                "waiting": queue.waiting,
            },
            cause="its worker is still running one of its jobs, or was killed and left it locked",
            consequence="no other job of that named queue runs; the library considers such a lock "
            "dead after 4 hours",
            judgement="once you are sure that the worker is dead: "
            f"SELECT {own}.force_unlock_workers(ARRAY[{literal}])",
            for_seconds=queue.seconds,
        )


@dataclass(frozen=True)
class _Retrying:
    jobs: int
    oldest_seconds: float | None
    attempts: int | None
    id: str | None


def _check_retries(context: CheckContext) -> Iterator[Finding]:
    if not context.has("retrying"):
        return
    with context.limited_transaction() as connection:
        (retrying,) = context.fetch(connection, _Retrying, "retrying", seconds=RETRYING_SECONDS)
    if not retrying.jobs:
        return
    yield Finding(
        RETRYING,
        f"{counted(min(retrying.jobs, MOST + 1), 'job')} failed and retried, the oldest "
        f"{_how_long(retrying.oldest_seconds)}",
        evidence={
            "jobs": retrying.jobs,
            "oldest_seconds": retrying.oldest_seconds,
            "most_attempts": retrying.attempts,
            "oldest_id": retrying.id,
        },
        cause="each attempt fails, and some are left: the library waits longer after each one",
        consequence="they count as scheduled or ready, never as errors, until no attempt is left",
        for_seconds=retrying.oldest_seconds,
    )


CHECK_GROUPS = (
    CheckGroup(
        (DEFAULT_PARTITION, LOCKED, RETRYING),
        {
            "its default partition": _check_default_partition,
            "its named queues": _check_locked_queues,
            "jobs that are retried": _check_retries,
        },
        lambda queue: queue.kind is Kind.ADOPTED,
    ),
)
