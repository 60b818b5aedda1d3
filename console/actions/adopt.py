"""Adopt a table that somebody else made as a queue of a design, and forget it again."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from console import catalog, sql
from console.actions import audit, libraries
from console.actions.install import prepare_catalog, record, require_schema
from console.catalog import Kind, Queue
from console.designs import Design
from console.engines import Database, Product
from console.errors import UsageError

_ROLES = (
    "id",
    "pushed_at",
    "due_at",
    "claimed_at",
    "claimed_by",
    "status",
    "error",
    "attempts",
    "payload",
    "done_at",
)
_SIZE = re.compile(r"0*[1-9][0-9]{0,17}")
_RING_ROLES = ("slot", "reference_count", "push_sequence", "pop_sequence", "size")


@dataclass(frozen=True)
class _Column:
    name: str
    type: str


@dataclass(frozen=True)
class _Relation:
    name: str
    kind: str


def adopt(
    database: Database, schema: str, table: str, of: Design, roles: Mapping[str, str]
) -> Queue:
    """Record the table as a queue. Nothing in it is touched; every mapped column is checked."""
    product = database.product
    _check_roles(of, roles)
    for name in (schema, table, *roles.values()):
        _check_name(product, name)
    queue = Queue(schema, table, of, {}, dict(roles), kind=Kind.ADOPTED)
    subject = audit.Subject.of(database, queue, "adopt", detail=f"design {of.name}")
    with audit.recorded(database, f"adopt the table {table!r}", subject) as act:
        connection = act.connection
        prepare_catalog(connection, product)
        require_schema(connection, product, schema)
        _require_new(connection, product, queue)
        _check_columns(connection, product, queue)
        record(connection, product, queue)
    return queue


def adopt_library(
    database: Database,
    of: Design,
    name: str,
    *,
    schema: str | None = None,
    table: str | None = None,
    part: str = "",
) -> Queue:
    """Record what a library keeps under a name. Nothing in it is touched.

    `part`: only that one of the queues that lie in its table; the name, where each has its own.
    """
    product = database.product
    libraries.preset(of.name, product.name)
    for text in (name, part, schema, table):
        if text or text is name:
            _check_name(product, text or "")
    if of.table_each:
        part = part or name
    doing = f"adopt the queue {name!r}"
    with database.transaction(doing, read_only=True) as connection:
        found = libraries.choose(connection, product, of, schema=schema, table=table, part=part)
        queue = libraries.candidate(connection, product, of, found, name, part)
    detail = f"preset {of.name}" + (f", only {queue.part}" if queue.part else "")
    with audit.recorded(database, doing, audit.Subject.of(database, queue, "adopt", detail)) as act:
        prepare_catalog(act.connection, product)
        _require_new(act.connection, product, queue)
        record(act.connection, product, queue)
    return queue


def _require_new(connection: Connection, product: Product, queue: Queue) -> None:
    """UsageError where the name is taken, or a library's queue is adopted under another one."""
    place = (queue.schema, queue.table, queue.part)
    for known in catalog.queues(connection, product):
        if (known.schema, known.name) == (queue.schema, queue.name):
            raise UsageError(
                f"There is already a queue named {queue.name!r} in schema {queue.schema!r}.",
                why=f"It is {known.kind.value}, of the design {known.design.name}.",
                next_step=f"To map it anew: dbq-console forget {shlex.quote(queue.name)}, "
                "then adopt again.",
            )
        if queue.design.library and (known.schema, known.table, known.part) == place:
            raise UsageError(
                f"That is adopted already: as {known.name!r}.",
                next_step=f"For another name: dbq-console forget {shlex.quote(known.name)}, "
                "then adopt again.",
            )


def forget(database: Database, queue: Queue) -> None:
    """Take an adopted queue out of the catalog; its table stays as it is.

    One that the console installed is only forgotten where nothing of it is left: somebody dropped
    its tables by hand.
    """
    product = database.product
    erase = sql.statements(product.name, "catalog")["erase"]
    subject = audit.Subject.of(database, queue, "forget", detail=f"it was {queue.kind.value}")
    with audit.recorded(database, f"forget the queue {queue.name!r}", subject) as act:
        connection = act.connection
        if queue.kind is not Kind.ADOPTED and (left := _objects(connection, product, queue)):
            raise UsageError(
                f"The queue {queue.name!r} was installed by the console, not adopted.",
                why=f"Forgetting it would leave {', '.join(left)} behind, unlisted.",
                next_step=f"Remove it with: dbq-console uninstall {shlex.quote(queue.name)}",
            )
        sql.run_script(connection, erase, queue.scope(product))


def _objects(connection: Connection, product: Product, queue: Queue) -> list[str]:
    """What is there under the names that the queue's own objects have."""
    found = sql.fetch(
        connection,
        _Relation,
        sql.statements(product.name, "catalog")["relations"],
        sql.Scope(),
        schema=queue.schema,
        names=product.array(catalog.object_names(product, queue)),
    )
    return [f"{relation.kind} {relation.name!r}" for relation in found]


def _check_name(product: Product, name: str) -> None:
    """UsageError for what no server takes for a name, before one reads it as another."""
    try:
        too_long = product.name_length(name) > product.name_limit
    except UnicodeEncodeError:
        raise UsageError(f"The name {name!r} is not valid Unicode.") from None
    if too_long or "\0" in name or not name:
        raise UsageError(
            f"There can be nothing of the name {name!r}.",
            why=f"{product.title} allows names of 1 to {product.name_limit} {product.name_unit}, "
            "without NUL.",
        )


def _check_roles(of: Design, roles: Mapping[str, str]) -> None:
    known = (*_ROLES, *(_RING_ROLES if "slot" in of.needed_roles else ()))
    for role in roles:
        if role not in known:
            raise UsageError(
                f"There is no role {role!r} for the design {of.name}.",
                next_step=f"Roles: {', '.join(known)}.",
            )
    needed = (*of.needed_roles, *(("size",) if "slot" in of.needed_roles else ()))
    missing = [role for role in needed if role not in roles]
    if missing:
        raise UsageError(
            f"The design {of.name} cannot do without the roles: {', '.join(missing)}.",
            next_step="Name their columns: " + " ".join(f"--map {role}=COLUMN" for role in missing),
        )
    size = roles.get("size")
    if size is not None and not _SIZE.fullmatch(size):
        raise UsageError(
            f"The role size wants the ring's number of slots, not {size!r}.",
            next_step="Example: --map size=10000",
        )


def _check_columns(connection: Connection, product: Product, queue: Queue) -> None:
    statements = sql.statements(product.name, "catalog")
    columns = sql.fetch(
        connection,
        _Column,
        statements["columns"],
        sql.Scope(),
        schema=queue.schema,
        table=queue.name,
    )
    if not columns:
        raise UsageError(
            f"There is no table {queue.name!r} in schema {queue.schema!r}.",
            next_step="Check the name (it is taken whole, never split at dots) and --schema.",
        )
    names = {column.name for column in columns}
    for role, column in queue.roles.items():
        if role in {"push_sequence", "pop_sequence"}:
            _check_sequence(connection, product, queue, role, column)
        elif role != "size" and column not in names:
            raise UsageError(
                f"The table {queue.name!r} has no column {column!r} for the role {role}.",
                next_step=f"Its columns: {', '.join(sorted(names))}.",
            )


def _check_sequence(
    connection: Connection, product: Product, queue: Queue, role: str, name: str
) -> None:
    statement = sql.statements(product.name, "catalog")["relations"]
    names = product.array([name])
    found = sql.fetch(
        connection, _Relation, statement, sql.Scope(), schema=queue.schema, names=names
    )
    if not any(relation.kind == "a sequence" for relation in found):
        raise UsageError(
            f"There is no sequence {name!r} in schema {queue.schema!r} for the role {role}."
        )
