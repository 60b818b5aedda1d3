"""Fills a queue's tables fast, with a number of messages per state, on PostgreSQL."""

from collections.abc import Mapping

import psycopg
from psycopg.sql import SQL, Composable, Identifier

from console.catalog import Queue
from console.designs import Flow

_ONE_BY_ONE = "now() - n * interval '1 us'"

STATES: dict[str, Mapping[str, str]] = {
    "ready": {"status": "0", "due_at": _ONE_BY_ONE},
    "scheduled": {"due_at": "now() + interval '1 day' + n * interval '1 s'"},
    "claimed": {"status": "1", "claimed_at": _ONE_BY_ONE, "claimed_by": "'w'"},
    "stuck": {
        "status": "1",
        "claimed_at": "now() - interval '1 hour' - n * interval '1 us'",
        "claimed_by": "'w'",
    },
    "errors": {"status": "4", "claimed_at": _ONE_BY_ONE, "error": "'no'", "done_at": _ONE_BY_ONE},
    "done": {"status": "2", "claimed_at": _ONE_BY_ONE, "done_at": _ONE_BY_ONE},
}
"""State -> role -> value of its column. The columns of stuck messages are those of claimed ones."""

_ALWAYS = {"pushed_at": "now() - interval '1 min' + n * interval '1 us'", "payload": "%s::text"}


def fill(
    connection: psycopg.Connection, queue: Queue, counts: Mapping[str, int], payload: str = "x"
) -> None:
    """Add messages, state by state: `counts` has the number of each."""
    for state, count in counts.items():
        if queue.design.flow is Flow.NUMBERS and state == "ready":
            _fill_ring(connection, queue, payload, count)
        else:
            _fill_table(connection, queue, payload, state, count)


def _fill_table(
    connection: psycopg.Connection, queue: Queue, payload: str, state: str, count: int
) -> None:
    table, roles = queue.table, dict(queue.roles)
    if queue.design.flow is Flow.NUMBERS:
        table = f"{queue.name}_in_hand"
        roles = {"id": "id", "error": "errors"} | {
            role: role
            for role in ("payload", "pushed_at", "attempts", "claimed_at", "claimed_by", "done_at")
        }
    values = {**_ALWAYS, **STATES[state]}
    if queue.design.flow is Flow.NUMBERS:
        values |= {"id": "-(floor(random() * 1e15)) - n", "attempts": "1"}
    columns: dict[str, Composable] = {
        roles[role]: SQL(value) for role, value in values.items() if role in roles
    }
    if queue.design.name == "naive":
        sequence = Identifier(queue.schema, f"{queue.name}_seq").as_string(connection)
        columns[roles["id"]] = SQL("nextval({})").format(sequence)
    insert = SQL("INSERT INTO {} ({}) SELECT {} FROM generate_series(1, {}) AS n").format(
        Identifier(queue.schema, table),
        SQL(", ").join(map(Identifier, columns)),
        SQL(", ").join(columns.values()),
        count,
    )
    if queue.design.name == "split":  # its payloads are in another table
        insert = SQL(
            "WITH meta AS ({} RETURNING id) INSERT INTO {} SELECT id, {} FROM meta"
        ).format(insert, Identifier(queue.schema, f"{queue.name}_data"), payload)
    connection.execute(insert, [payload] if "payload" in roles else None)


def _fill_ring(connection: psycopg.Connection, queue: Queue, payload: str, count: int) -> None:
    """A new ring as it is after this many pushes."""
    connection.execute(
        SQL(
            "UPDATE {} SET message_id = n.number, first_id = n.number, time = now(), message = {},"
            " reference_count = 1 FROM generate_series(1, {}) AS n (number), {} AS c"
            " WHERE slot = n.number % c.size"
        ).format(
            Identifier(queue.schema, queue.name),
            payload,
            count,
            Identifier(queue.schema, f"{queue.name}_config"),
        )
    )
    sequence = Identifier(queue.schema, f"{queue.name}_push_seq").as_string(connection)
    connection.execute(SQL("SELECT setval({}, {})").format(sequence, count))
