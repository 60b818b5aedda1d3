"""Queues of any design, faults caused by SQL or by sessions, and the doctor's findings."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, LiteralString

import psycopg
from psycopg.sql import SQL, Composed, Identifier

from console.actions import maintenance
from console.catalog import Queue
from console.designs import DESIGNS
from console.doctor.diagnose import diagnose
from console.doctor.finding import Diagnosis, Finding
from console.doctor.stopped_consumers import ConsumptionHistory
from console.engines import Database
from console.monitor.limits import DEFAULTS, Limits, Severity, Thresholds
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.messages import FILL
from tests.contract.variants import SMALL_RING, Variant
from tests.servers import connect, wait_until
from tests.tools.repairs import carry_out, plan_repair

SOON = 0.05
"""A threshold that is exceeded at once."""
IMPATIENT = replace(DEFAULTS, stuck_after_seconds=SOON)
MANY_ERRORS = DEFAULTS.with_limits(errors_share=Limits())
_LINE = 125
"""A summary is one line of a screen: about 100 characters, and the names of a queue in it."""


def variant(design: str, **options: str) -> Variant:
    """Rings are small."""
    small = {"size": SMALL_RING} if design == "ring" else {}
    return Variant(DESIGNS[design], {**small, **options})


NAIVE, HEAP, FIFO, STACK, PENDING = map(variant, ("naive", "heap", "fifo", "stack", "pending"))
CLAIM, STATUS, SPLIT, RING = map(variant, ("claim", "status", "split", "ring"))
STRICT = variant("fifo", order="strict")
TWO_STEP = variant("split", dequeue="two_step")
IN_HAND = variant("ring", in_hand="on")
DELETING = [NAIVE, HEAP, FIFO, STACK, PENDING]
CLAIMING = [CLAIM, STATUS, SPLIT, TWO_STEP, IN_HAND]


def filled(use: Use, variant: Variant, count: int = 5) -> Client:
    """A new queue with this many messages."""
    client = use(variant)
    assert None not in client.push_many(client.payloads(*range(count)))
    return client


# -------------------------------------------------------------------------------------- faults


def table_of(queue: Queue) -> str:
    """The table of its claims."""
    return f"{queue.name}_in_hand" if queue.design.name == "ring" else queue.table


def statement_for(client: Client, statement: LiteralString, **more: str) -> Composed:
    """`{table}` becomes the table of its claims, `{x}` the function or table with that suffix."""
    queue = client.queue
    names = {suffix: f"{queue.name}_{suffix}" for suffix in ("complete", "data", "archive")}
    names |= {verb: f"{queue.name}_{verb}" for verb in ("push", "push_many", "pop", "pop_many")}
    found = {key: Identifier(queue.schema, name) for key, name in names.items()}
    found["table"] = Identifier(queue.schema, table_of(queue))
    return SQL(statement).format(**found, **{key: Identifier(name) for key, name in more.items()})


def run(client: Client, statement: LiteralString, *values: object, **more: str) -> list[Any]:
    """Run the statement; the first column of its result."""
    with connect(client.url) as connection:
        done = connection.execute(statement_for(client, statement, **more), values or None)
        return [row[0] for row in done.fetchall()] if done.description else []


def rows_changed(client: Client, statement: LiteralString) -> int:
    """Run the statement; how many rows it changed."""
    with connect(client.url) as connection:
        return connection.execute(statement_for(client, statement)).rowcount


def age(client: Client, *ids: str) -> None:
    """Make the claims an hour older."""
    column = "processing_started_at" if client.queue.design.name == "claim" else "claimed_at"
    run(
        client,
        "UPDATE {table} SET {column} = {column} - interval '1 hour' "
        "WHERE CAST(id AS text) = ANY(%s)",
        list(ids),
        column=column,
    )


def popped_by(
    connection: psycopg.Connection, client: Client, count: int = 1, *, bound: bool = False
) -> list[tuple[str, int]]:
    """(id, attempts) of the messages that the session pops, next to others that pop too."""
    arguments = SQL("'worker-7', {}").format(bound) if client.queue.finishes else SQL("")
    pop = (
        statement_for(client, "SELECT CAST(id AS text), attempts FROM {pop}(")
        + arguments
        + SQL(")")
    )
    taken: list[tuple[str, int]] = []

    def enough() -> bool:
        taken.extend(connection.execute(pop).fetchall())
        return len(taken) >= count

    wait_until(enough, "there is so much to take")
    return taken


def end_session(client: Client, victim: psycopg.Connection) -> None:
    """End a session; it has disconnected when this returns."""
    with connect(client.url) as other:
        other.execute("SELECT pg_terminate_backend(%s, 30000)", [victim.info.backend_pid])


def die_with_claims(client: Client, count: int = 1) -> list[str]:
    """A consumer with bound claims is killed."""
    with closing(connect(client.url)) as consumer:
        taken = popped_by(consumer, client, count, bound=True)
        end_session(client, consumer)
    return [id_ for id_, _ in taken]


def indexes_of(client: Client) -> list[str]:
    """The indexes that are not keys."""
    rows = run(
        client,
        "SELECT i.indexrelid::regclass::text FROM pg_index AS i "
        "JOIN pg_class AS t ON i.indrelid = t.oid "
        "WHERE starts_with(t.relname, %s) AND NOT i.indisunique ORDER BY 1",
        client.queue.name,
    )
    return [str(name).strip('"') for name in rows]


def drop_indexes(client: Client) -> None:
    """Drop all indexes that are not keys."""
    for index in indexes_of(client):
        run(client, "DROP INDEX {index}", index=index)


def invalidate(client: Client, index: str) -> None:
    """As after an interrupted CREATE INDEX CONCURRENTLY or REINDEX CONCURRENTLY."""
    change: LiteralString = "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass"
    run(client, change, f'"{index}"')


def drop_constraints(client: Client, table: str, *kinds: str) -> int:
    """Drop a table's constraints of these types ('c', 'p', 'u'); how many there were."""
    constraints: LiteralString = (
        "SELECT conname FROM pg_constraint WHERE contype = ANY(%s) AND conrelid = %s::regclass"
    )
    names = run(client, constraints, list(kinds), f'"{table}"')
    for name in names:
        run(client, "ALTER TABLE {of} DROP CONSTRAINT {name}", of=table, name=str(name))
    return len(names)


def change_code(client: Client, *changes: tuple[str, str]) -> None:
    """Edit pop_many; by default so that pops wait for one another."""
    (made,) = run(
        client, "SELECT pg_get_functiondef(%s::regproc)", f'"{client.queue.name}_pop_many"'
    )
    text = str(made)
    for before, after in changes or ((" SKIP LOCKED", ""),):
        assert before in text
        text = text.replace(before, after)
    with connect(client.url) as connection:
        connection.execute(text.encode())


def wait_for_dead_rows(client: Client, count: int) -> None:
    """Wait until the server has counted the dead rows, which it does with a delay."""

    def counted() -> bool:
        return maintenance.measure(client.database, client.queue).dead_rows >= count

    wait_until(counted, "the server has counted the dead rows")


# ---------------------------------------------------------------------------------- the doctor


def diagnosed(
    client: Client,
    thresholds: Thresholds = DEFAULTS,
    queue: Queue | None = None,
    patience_seconds: float = 2.0,
    consumption: ConsumptionHistory | None = None,
) -> Diagnosis:
    """The diagnosis without stopped consumers (see `test_doctor_consumption`)."""
    found = diagnosis(
        client.database,
        queue or client.queue,
        thresholds,
        patience_seconds=patience_seconds,
        consumption=consumption or ConsumptionHistory(3600.0, waits=False),
    )
    for finding in found.findings:
        assert len(finding.summary) <= _LINE, finding.summary
        assert "\n" not in finding.summary
    return found


def diagnosis(
    database: Database, queue: Queue, thresholds: Thresholds = DEFAULTS, **more: Any
) -> Diagnosis:
    """The diagnosis of one queue."""
    (found,) = diagnose(database, [queue], thresholds_of=lambda _: thresholds, **more)
    return found


def codes_of(diagnosis: Diagnosis) -> list[str]:
    """The codes of all findings."""
    return [finding.code.name for finding in diagnosis.findings]


def without_notes(diagnosis: Diagnosis) -> list[Finding]:
    """The findings that are more than notes."""
    return [finding for finding in diagnosis.findings if finding.code.severity is not Severity.NOTE]


def finding_of(diagnosis: Diagnosis, code: str) -> Finding:
    """The only finding of that code, checked for completeness."""
    (finding,) = [one for one in diagnosis.findings if one.code.name == code]
    assert finding.summary
    assert finding.evidence
    assert finding.cause
    assert finding.consequence
    assert FILL not in str(finding.as_json()), "no finding shows a payload"
    return finding


def evidence_of(finding: Finding) -> dict[str, Any]:
    """The evidence, with untyped values."""
    return dict(finding.evidence)


def run_repair(
    client: Client, finding: Finding, *, unattended: bool | None = None
) -> Sequence[str]:
    """Run its repair; `unattended`: whether --fix has to run it."""
    assert finding.repair is not None
    assert finding.repair.summary
    assert unattended in {None, finding.repair.unattended}
    assert plan_repair(finding.repair, client.database).lines
    return carry_out(finding.repair, client.database)


def repaired(client: Client, code: str, *, unattended: bool | None = None) -> Finding:
    """Repair the finding, after which all is clear."""
    finding = finding_of(diagnosed(client), code)
    run_repair(client, finding, unattended=unattended)
    assert diagnosed(client).verdict == "all clear"
    return finding
