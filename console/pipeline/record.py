"""A job in the database's audit, by the catalog's own statements, in the job's transactions."""

import getpass
import socket
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from console import catalog, sql
from console.engines import Product
from console.errors import RefusedError


@dataclass(frozen=True)
class _Number:
    action_id: int


@dataclass(frozen=True)
class _Present:
    present: bool


def _statement(product: Product, name: str) -> sql.Statement:
    return sql.statements(product.name, "catalog")[name]


def require_audit(connection: Connection, product: Product) -> None:
    """RefusedError where a job would not be in the audit."""
    if catalog.has_audit(connection, product):
        (row,) = sql.fetch(connection, _Present, _statement(product, "may_act"), sql.Scope())
        if row.present:
            return
    raise RefusedError(
        "Could not begin: it would not be in the audit.",
        why="This login may not write to dbq.action, or the catalog has no such table yet.",
        next_step="Let the catalog's owner run dbq-console upgrade on one of its queues, or grant "
        "this login INSERT and UPDATE on dbq.action (dbq-console roles).",
    )


def begin(  # noqa: PLR0913  # what an action's row has
    connection: Connection,
    product: Product,
    verb: str,
    queue: catalog.Queue,
    *,
    place: str,
    filters: str = "",
    cutoff: datetime | None = None,
    planned: int = 0,
    detail: str = "",
) -> int:
    """The number of an action that begins now, in the caller's transaction."""
    (row,) = sql.fetch(
        connection,
        _Number,
        _statement(product, "action_begin"),
        sql.Scope(),
        schema=queue.schema,
        queue=queue.name,
        verb=verb,
        operator=operator(),
        place=place,
        filters=filters,
        cutoff=cutoff,
        planned=planned,
        detail=detail,
    )
    return row.action_id


def batch(
    connection: Connection, product: Product, action_id: int, *, selected: int, done: int
) -> None:
    """Count one batch, in its own transaction. RefusedError where somebody ended the action."""
    found = sql.fetch(
        connection,
        _Number,
        _statement(product, "action_batch"),
        sql.Scope(),
        action_id=action_id,
        selected=selected,
        done=done,
        skipped=selected - done,
        failed=0,
    )
    if not found:
        raise RefusedError(
            f"Action {action_id} is no longer running.",
            why="Its row in the database's audit was ended or taken away.",
            next_step="See: dbq-console audit",
        )


def end(
    connection: Connection, product: Product, action_id: int, outcome: str, detail: str
) -> None:
    """Keep how it ended, in the caller's transaction; nothing where it has ended before."""
    sql.fetch(
        connection,
        _Number,
        _statement(product, "action_end"),
        sql.Scope(),
        action_id=action_id,
        outcome=outcome,
        detail=detail,
    )


def operator() -> str:
    """Who acts, from where: user@host of this machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
