"""Install a queue: its tables, its functions and its line in the catalog, in one transaction."""

import json
from dataclasses import dataclass

from sqlalchemy import Connection

from console import action_rows, catalog, sql
from console.actions import audit
from console.catalog import Kind, Queue
from console.designs import Design
from console.engines import Database, Product
from console.errors import UsageError


@dataclass(frozen=True)
class _Relation:
    name: str
    kind: str


@dataclass(frozen=True)
class _Present:
    present: bool


def parts(product: Product, queue: Queue) -> list[sql.Statement]:
    """The scripts that make the queue, in their order; the catalog's line is another."""
    design = sql.statements(product.name, queue.design.name)
    common = sql.statements(product.name, "common")
    scripts = [design["tables"], common["archive"]]
    if queue.options.get("notify") == "on":
        scripts += [common["waiting"], common["wait_functions"]]
    rights = sql.statements(product.name, "roles")["queue"]
    return [*scripts, design["functions"], rights]


def script(product: Product, queue: Queue) -> str:
    """The whole installation as one script that the engine's own client runs as it is."""
    catalog.check_names(product, queue)
    statements = sql.statements(product.name, "catalog")
    pieces = [
        (statements["lock"], queue.scope(product)),
        (statements["bootstrap"], queue.scope(product)),
        *((part, queue.scope(product)) for part in parts(product, queue)),
        (statements["record"], recording_scope(product, queue)),
    ]
    texts = [sql.script(part, product.dialect, scope) for part, scope in pieces]
    head = f"-- dbq-console: {queue.design.title}. One transaction: all of it or nothing."
    return product.as_script(head, texts)


def install(database: Database, queue: Queue) -> None:
    """Install the queue. It succeeds whole or leaves nothing; a taken name is a UsageError."""
    product = database.product
    catalog.check_names(product, queue)
    require_server(database, queue)
    subject = audit.Subject.of(database, queue, "install", detail=f"design {queue.design.name}")
    with audit.recorded(database, f"install the queue {queue.name!r}", subject) as act:
        connection = act.connection
        prepare_catalog(connection, product)
        refuse_taken_names(connection, product, queue)
        for part in parts(product, queue):
            sql.run_script(connection, part, queue.scope(product))
        record(connection, product, queue)


def check(database: Database, queue: Queue) -> None:
    """UsageError where it cannot be installed as things stand. Changes nothing."""
    product = database.product
    catalog.check_names(product, queue)
    require_server(database, queue)
    with database.transaction("look at the names there", read_only=True) as connection:
        refuse_taken_names(connection, product, queue)


def lacking(database: Database, of: Design) -> str:
    """Why the server cannot have queues of the design; empty where it can."""
    missing = database.capabilities.missing
    return next((missing[need] for need in ("queues", *of.needs) if need in missing), "")


def require_server(database: Database, queue: Queue) -> None:
    """UsageError where the server cannot have such a queue."""
    if why := lacking(database, queue.design):
        raise UsageError(
            f"The design {queue.design.name} cannot be installed in this database.",
            why=f"{why[0].upper()}{why[1:]}.",
            next_step="Choose another design or another server; see: dbq-console designs",
        )


def prepare_catalog(connection: Connection, product: Product) -> None:
    """Be the only installer, and make the catalog where this is the database's first queue."""
    statements = sql.statements(product.name, "catalog")
    sql.run_script(connection, statements["lock"], sql.Scope())
    # Only its owner may make it again: who installs the next queue need not be that login.
    if not catalog.has_catalog(connection, product):
        audit.make_catalog(connection, product)


def recording_scope(product: Product, queue: Queue) -> sql.Scope:
    """What the catalog keeps of the queue."""
    return queue.scope(
        product,
        kind=queue.kind.value,
        options_json=json.dumps(dict(queue.options), sort_keys=True),
        roles_json=json.dumps(dict(queue.roles), sort_keys=True),
        version=str(queue.version),
        installed_from=action_rows.operator(),
    )


def record(connection: Connection, product: Product, queue: Queue) -> None:
    """Write the queue's line of the catalog."""
    statement = sql.statements(product.name, "catalog")["record"]
    sql.run_script(connection, statement, recording_scope(product, queue))


def refuse_taken_names(connection: Connection, product: Product, queue: Queue) -> None:
    """UsageError, naming what is there, when the schema or any object's name is not free."""
    statements = sql.statements(product.name, "catalog")
    require_schema(connection, product, queue.schema)
    for known in catalog.queues(connection, product):
        if (known.schema, known.name) == (queue.schema, queue.name):
            raise UsageError(
                f"There is already a queue named {queue.name!r} in schema {queue.schema!r}.",
                why=_why_taken(known),
                next_step="Choose another name, or uninstall that one first.",
            )
    taken = sql.fetch(
        connection,
        _Relation,
        statements["relations"],
        sql.Scope(),
        schema=queue.schema,
        names=product.array(catalog.object_names(product, queue)),
    )
    if taken:
        things = ", ".join(f"{t.kind} {t.name!r}" for t in taken)
        raise UsageError(
            f"The name {queue.name!r} is taken in schema {queue.schema!r}.",
            why=f"There is already {things}.",
            next_step="Choose another name; a queue that somebody else made can be adopted.",
        )


def require_schema(connection: Connection, product: Product, schema: str) -> None:
    """UsageError where the schema is not there."""
    statement = sql.statements(product.name, "catalog")["schema_exists"]
    (row,) = sql.fetch(connection, _Present, statement, sql.Scope(), schema=schema)
    if not row.present:
        raise UsageError(
            f"There is no schema {schema!r} in this database.",
            next_step="Create it first, or name another with --schema.",
        )


def _why_taken(known: Queue) -> str:
    if known.kind is Kind.ARCHIVE:
        return "It was uninstalled with --keep-archive: its archive is still there."
    return f"It is {known.kind.value}, of the design {known.design.name}."
