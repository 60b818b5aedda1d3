"""Forget a queue: take it out of the catalog."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from console import sql
from console.catalog import Kind, Queue, audit, object_names, relations, require_known
from console.engines import Database, product_of
from console.errors import UsageError

if TYPE_CHECKING:
    from sqlalchemy import Connection


def forget(database: Database, queue: Queue) -> None:
    """Take an adopted queue out of the catalog; its table stays as it is.

    One that the console installed is forgotten only if all its objects were dropped by hand.
    """
    if queue.kind is not Kind.ADOPTED:
        require_known(queue)
    subject = audit.Subject.of(database, queue, "forget", detail=f"it was {queue.kind.value}")
    with audit.recorded(database, f"forget the queue {queue.name!r}", subject) as act:
        connection = act.connection
        if queue.kind is not Kind.ADOPTED and (left := _objects(connection, queue)):
            raise UsageError(
                f"The queue {queue.name!r} was installed by the console, not adopted.",
                why=f"Forgetting it would leave {', '.join(left)} behind, unlisted.",
                next_step=f"Remove it with: dbq-console uninstall {shlex.quote(queue.name)}",
            )
        sql.run(connection, "catalog.erase", queue.scope(database.product))


def _objects(connection: Connection, queue: Queue) -> list[str]:
    """Existing objects with the names of the queue's own."""
    names = object_names.of(product_of(connection), queue)
    named = relations.named(connection, queue.schema, names)
    return [f"{relation.kind} {relation.name!r}" for relation in named]
