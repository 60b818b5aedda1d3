"""The rows of `dbq.action`, the audit in the database, written in their callers' transactions."""

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
class _Ended:
    action_id: int
    done: int


@dataclass(frozen=True)
class _Present:
    present: bool


def _statement(product: Product, name: str) -> sql.Statement:
    return sql.statements(product.name, "catalog")[name]


def may_write(connection: Connection, product: Product) -> bool:
    """Whether this login may; the table has to be there."""
    (row,) = sql.fetch(connection, _Present, _statement(product, "may_act"), sql.Scope())
    return row.present


def require(connection: Connection, product: Product) -> None:
    """RefusedError where there is no such table yet, or this login may not write to it."""
    if not (catalog.has_audit(connection, product) and may_write(connection, product)):
        raise no_audit(
            "This login may not write to dbq.action, or the catalog has no such table yet."
        )


def no_audit(why: str) -> RefusedError:
    """What is not in the audit is not begun."""
    return RefusedError(
        "Could not begin: it would not be in the audit.",
        why=why,
        next_step="Let the catalog's owner run dbq-console upgrade on one of its queues, or grant "
        "this login INSERT and UPDATE on dbq.action (dbq-console roles).",
    )


def begin(  # noqa: PLR0913  # what an action's row has
    connection: Connection,
    product: Product,
    verb: str,
    *,
    schema: str,
    queue: str,
    place: str,
    filters: str = "",
    cutoff: datetime | None = None,
    planned: int = 0,
    detail: str = "",
) -> int:
    """The number of an action that begins now. `place`: the connection's name."""
    (row,) = sql.fetch(
        connection,
        _Number,
        _statement(product, "action_begin"),
        sql.Scope(),
        schema=schema,
        queue=queue,
        verb=verb,
        operator=operator(),
        place=place,
        filters=filters,
        cutoff=cutoff,
        planned=planned,
        detail=detail,
    )
    return row.action_id


def batch(  # the counts, each by its name
    connection: Connection,
    product: Product,
    action_id: int,
    *,
    selected: int,
    done: int,
    skipped: int,
    failed: int = 0,
) -> None:
    """Count one batch. RefusedError where somebody ended the action."""
    found = sql.fetch(
        connection,
        _Number,
        _statement(product, "action_batch"),
        sql.Scope(),
        action_id=action_id,
        selected=selected,
        done=done,
        skipped=skipped,
        failed=failed,
    )
    if not found:
        raise RefusedError(
            f"Action {action_id} is no longer running.",
            why="Its row in the database's audit was ended or taken away.",
            next_step="See: dbq-console audit",
        )


def end(
    connection: Connection, product: Product, action_id: int, outcome: str, detail: str
) -> int | None:
    """Keep how it ended; how many it has done. None, and nothing kept, where it had ended before.

    It waits for a batch that is not committed yet, and no batch is counted after it.
    """
    found = sql.fetch(
        connection,
        _Ended,
        _statement(product, "action_end"),
        sql.Scope(),
        action_id=action_id,
        outcome=outcome,
        detail=detail,
    )
    return found[0].done if found else None


def operator() -> str:
    """Who acts, from where: user@host of this machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
