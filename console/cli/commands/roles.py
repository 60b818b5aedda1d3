"""Print the SQL of the roles dbq_reader, dbq_operator and dbq_admin.

With a database, the script also grants them their rights on its queues; queues installed later
grant their own. What your login does not own is commented out, with who has to run it. Read it,
then run it as a user who may create roles.

\b
Examples:
  dbq-console roles --url URL | psql URL
  dbq-console roles --engine postgresql
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from console import sql
from console.catalog import Kind, Queue
from console.catalog import queues as queues_of
from console.cli.context import Call
from console.engines import Product
from console.formats import plain
from console.verbs.command import Command
from console.verbs.parameters import Parameter

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True)
class _Other:
    """An object that this login does not own."""

    name: str
    owner: str


def role_script(
    product: Product, schema: str, queues: Sequence[Queue], connection: Connection | None = None
) -> str:
    """A script that creates the roles and grants them their rights on the catalog and the queues.

    What `connection`'s login does not own, adopted tables above all, is commented out, with whose
    it is: whoever wrote a queue's row may have named any table. Queues installed later grant their
    own rights.
    """
    catalog = sql.Scope({"schema": schema})
    scripts = ("catalog.lock", "catalog.bootstrap", "roles.roles")
    pieces = [sql.script(name, product.dialect, catalog) for name in scripts]
    for queue in queues:
        scope = queue.scope(product)
        others = [] if connection is None else _others(connection, queue)
        if queue.kind is Kind.INSTALLED:
            script = sql.script("roles.queue", product.dialect, scope)
            pieces.append(_commented(queue, script, others) if others else script)
        elif queue.kind is Kind.ADOPTED and others:
            script = sql.script("roles.adopted", product.dialect, scope)
            pieces.append(_commented(queue, script, others))
    head = "-- dbq-console: the roles dbq_reader, dbq_operator and dbq_admin, and their rights."
    return product.as_script(head, pieces)


def _others(connection: Connection, queue: Queue) -> list[_Other]:
    name = "roles.owner" if queue.kind is Kind.ADOPTED else "roles.others"
    if not sql.has(connection, name):
        return []
    return sql.rows(connection, _Other, name, queue.scope(connection))


def _commented(queue: Queue, script: str, others: Sequence[_Other]) -> str:
    owners = ", ".join(sorted({other.owner for other in others}))
    what = "adopted" if queue.kind is Kind.ADOPTED else "not yours"
    head = f"{queue.label} ({what}): {others[0].name} belongs to {owners}, who has to run this:"
    return "\n".join(f"-- {line}" for line in [plain(head), *script.strip().splitlines()])


def _run(call: Call, engine: str | None) -> None:
    if engine is not None or call.product is None:
        product = call.engine_named(engine)
        schema = product.default_schema if call.schema is None else call.schema
        script = role_script(product, schema, [])
    else:
        database = call.database()
        product, schema = database.product, call.schema_for(database)
        with database.transaction("read the catalog", read_only=True) as connection:
            script = role_script(product, schema, queues_of(connection), connection)
    call.answer_script({"sql": script}, script)


_ENGINE = Parameter("engine", "The engine to write for, without a database.", metavar="E")
COMMAND = Command("roles", _run, __doc__, (_ENGINE,))
