"""Install a queue: tables, functions and catalog row, in one transaction. Uninstall one: all its
objects with the messages in them, counted under lock."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from console import catalog, sql
from console.actions import shipped
from console.actions.push import signals_deferred
from console.catalog import Kind, Queue, audit, object_names, relations
from console.catalog.audit import Outcome
from console.designs import Design
from console.engines import Database, Product, product_of
from console.errors import RefusedError, UsageError
from console.formats import numbered
from console.plan import Plan, Result, is_production, queue_plan, refused, single_step

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True)
class Contents:
    """The messages of a queue. Counts are exact, at that moment."""

    live: int
    claimed: int
    finished: int
    archived: int

    def lost(self, *, keep_archive: bool) -> int:
        """By an uninstall."""
        kept = 0 if keep_archive else self.archived
        return self.live + self.claimed + self.finished + kept


def plan(database: Database, queue: Queue, *, keep_archive: bool, with_messages: bool) -> Plan:
    """What an uninstall removes. Changes nothing."""
    with database.transaction(f"read the queue {queue.name!r}") as connection:
        found = contents(connection, queue)
    lost = found.lost(keep_archive=keep_archive)
    lines = [
        f"uninstall {queue.label} (design {queue.design.name}) with all its objects",
        f"  {numbered(found.live, 'message')} not popped yet",
    ]
    if queue.finishes:
        lines.append(
            f"  {numbered(found.claimed, 'claimed message')}, {found.finished:,} finished or in "
            "error"
        )
    where = "stay, listed as an archive" if keep_archive else "are dropped with it"
    lines.append(f"  {numbered(found.archived, 'archived message')}: {where}")
    obstacles: tuple[str, ...] = ()
    if lost and not with_messages:
        why = f"The queue still holds {numbered(lost, 'message')}, which would be lost."
        obstacles = (why,)
        lines.append(refused(f"{why} ({_WITH_MESSAGES})"))
    return queue_plan(
        database,
        queue,
        "uninstall",
        lines,
        single_step(
            uninstall, database, queue, keep_archive=keep_archive, with_messages=with_messages
        ),
        requires_name=True,
        count=lost,
        stoppable=False,
        obstacles=obstacles,
        consent=_WITH_MESSAGES,
        next_step=_CONSENT,
        data=_removed(found, keep_archive=keep_archive, production=is_production(database)),
    )


_WITH_MESSAGES = "--with-messages"
_CONSENT = f"If they may be lost, add {_WITH_MESSAGES}; else drain or archive them first."


def uninstall(
    database: Database, queue: Queue, *, keep_archive: bool, with_messages: bool
) -> Result:
    """Remove the queue in one transaction, in which it is locked and counted again."""
    scope = queue.scope(database.product)
    subject = audit.Subject.of(database, queue, "uninstall")
    with audit.recorded(database, f"uninstall the queue {queue.name!r}", subject) as act:
        connection = act.connection
        if queue.kind is Kind.INSTALLED:
            sql.run(connection, "common.lock_all", scope)
        found = contents(connection, queue)
        production = database.production or catalog.is_production(connection)
        lost = numbered(found.lost(keep_archive=keep_archive), "message")
        if found.lost(keep_archive=keep_archive) and not with_messages:
            raise RefusedError(
                f"The queue {queue.name!r} still holds {lost}, which would be lost.",
                next_step=_CONSENT,
            )
        if queue.kind is Kind.INSTALLED:
            sql.run(connection, f"{queue.design.name}.drop", scope)
            if queue.options.get("notify") == "on":
                sql.run(connection, "common.drop_waiting", scope)
        if keep_archive:
            sql.run(connection, "catalog.keep_archive", scope)
        else:
            sql.run(connection, "common.drop_archive", scope)
            sql.run(connection, "catalog.erase", scope)
        act.detail = (
            f"design {queue.design.name}; {found.live} live, {found.claimed} claimed and "
            f"{found.finished} finished messages gone, {found.archived} archived ones "
            f"{'kept' if keep_archive else 'gone'}"
        )
    return Result(
        Outcome.DONE,
        (f"uninstalled {queue.label}; {lost} were lost with it",),
        done=1,
        queue_removed=not keep_archive,
        data=_removed(found, keep_archive=keep_archive, production=production),
    )


def _removed(contents: Contents, *, keep_archive: bool, production: bool) -> dict[str, object]:
    return {
        **asdict(contents),
        "keep_archive": keep_archive,
        "production": production,
        "lost": contents.lost(keep_archive=keep_archive),
    }


def contents(connection: Connection, queue: Queue) -> Contents:
    """UsageError for a queue that the console did not install."""
    if queue.kind is Kind.ADOPTED:
        raise UsageError(
            f"The queue {queue.name!r} was adopted, not installed.",
            why="The console did not create its table and does not drop it.",
            next_step=f"Take it out of the catalog: dbq-console forget {shlex.quote(queue.name)}",
        )
    scope = queue.scope(connection)
    if queue.kind is Kind.ARCHIVE:
        return Contents(0, 0, 0, sql.value(connection, int, "common.archived", scope))
    return sql.row(connection, Contents, f"{queue.design.name}.contents", scope)


def parts(product: Product, queue: Queue) -> list[str]:
    """The scripts that make the queue, in their order; the catalog's line is another."""
    scripts = [
        *_schema_of(product, queue.schema),
        *shipped.tables_of(product, queue),
        "common.archive",
    ]
    if queue.options.get("notify") == "on":
        scripts += ["common.waiting", "common.wait_functions"]
    return [*scripts, f"{queue.design.name}.functions", "roles.queue"]


def _schema_of(product: Product, schema: str) -> list[str]:
    """The script that makes the usual schema, on an engine whose databases come without it."""
    is_made = schema == product.default_schema and sql.has(product, "common.schema")
    return ["common.schema"] if is_made else []


def script(product: Product, queue: Queue, *, makes_catalog: bool = True) -> str:
    """The whole installation as one script that the engine's own client runs as it is.

    `makes_catalog`: the catalog too, where it is missing, which only its owner may run.
    """
    object_names.check(product, queue)
    bootstrap = ("catalog.bootstrap",) if makes_catalog else ()
    scripts = ("catalog.lock", *bootstrap, *parts(product, queue))
    texts = [sql.script(part, product.dialect, queue.scope(product)) for part in scripts]
    texts.append(sql.script("catalog.record", product.dialect, recording_scope(product, queue)))
    head = f"-- dbq-console: {queue.design.title}. One transaction: all of it or nothing."
    return product.as_script(head, texts)


def install(database: Database, queue: Queue) -> None:
    """Install the queue. It succeeds whole or leaves nothing; a taken name is a UsageError."""
    product = database.product
    object_names.check(product, queue)
    require_server(database, queue)
    subject = audit.Subject.of(database, queue, "install", detail=f"design {queue.design.name}")
    with audit.recorded(database, f"install the queue {queue.name!r}", subject) as act:
        connection = act.connection
        prepare_catalog(connection)
        refuse_taken_names(connection, queue)
        for part in parts(product, queue):
            sql.run(connection, part, queue.scope(product))
        record(connection, queue)


def check(database: Database, queue: Queue) -> None:
    """UsageError where it cannot be installed as things stand. Changes nothing."""
    object_names.check(database.product, queue)
    require_server(database, queue)
    with database.transaction("check which names are taken", read_only=True) as connection:
        refuse_taken_names(connection, queue)


def missing_requirement(database: Database, of: Design) -> str:
    """Why the server cannot have queues of the design; empty where it can."""
    missing = database.capabilities.missing
    return next((missing[need] for need in ("queues", *of.needs) if need in missing), "")


def require_server(database: Database, queue: Queue) -> None:
    if why := missing_requirement(database, queue.design):
        raise RefusedError(
            f"The design {queue.design.name} cannot be installed in this database.",
            why=f"{why[0].upper()}{why[1:]}.",
            next_step="Choose another design or another server; see: dbq-console designs",
        )


def prepare_catalog(connection: Connection) -> None:
    """Be the only installer, and make the catalog where this is the database's first queue."""
    sql.run(connection, "catalog.lock")
    # Only its owner may make it again: who installs the next queue need not be that login.
    if not catalog.has_catalog(connection):
        audit.create_catalog(connection)


def recording_scope(on: sql.HasDialect, queue: Queue) -> sql.Scope:
    return queue.scope(
        on,
        kind=queue.kind.value,
        options_json=_as_json(queue.options),
        roles_json=_as_json(queue.roles),
        version=str(queue.version),
        installed_from=audit.operator(),
    )


def _as_json(values: Mapping[str, str]) -> str:
    """Without escapes of Unicode, which a database without an encoding refuses."""
    return json.dumps(dict(values), sort_keys=True, ensure_ascii=False)


def record(connection: Connection, queue: Queue) -> None:
    sql.run(connection, "catalog.record", recording_scope(connection, queue))


def refuse_taken_names(connection: Connection, queue: Queue) -> None:
    """UsageError, naming what is there, when the schema or any object's name is not free."""
    require_schema(connection, queue.schema)
    for known in catalog.queues(connection):
        if (known.schema, known.name) == (queue.schema, queue.name):
            raise UsageError(
                f"There is already a queue named {queue.name!r} in schema {queue.schema!r}.",
                why=_why_taken(known),
                next_step="Choose another name, or uninstall that one first.",
                about="name",
            )
    names = object_names.of(product_of(connection), queue)
    taken = relations.named(connection, queue.schema, names)
    if taken:
        things = ", ".join(f"{t.kind} {t.name!r}" for t in taken)
        raise UsageError(
            f"The name {queue.name!r} is taken in schema {queue.schema!r}.",
            why=f"There is already {things}.",
            next_step="Choose another name; a queue made by another program can be adopted.",
            about="name",
        )


def has_schema(connection: Connection, schema: str) -> bool:
    return sql.value(connection, bool, "catalog.schema_exists", schema=schema)


def require_schema(connection: Connection, schema: str) -> None:
    if not _schema_of(product_of(connection), schema) and not has_schema(connection, schema):
        raise UsageError(
            f"There is no schema {schema!r} in this database.",
            next_step="Create it first, or name another with --schema.",
            about="schema",
        )


def _why_taken(known: Queue) -> str:
    if known.kind is Kind.ARCHIVE:
        return "It was uninstalled with --keep-archive: its archive is still there."
    return f"It is {known.kind.value}, of the design {known.design.name}."


@contextmanager
def scratch_queue(database: Database, queue: Queue) -> Iterator[None]:
    """The queue, for as long as the block lasts, however it ends."""
    with ExitStack() as at_the_end:
        with signals_deferred():
            install(database, queue)
            at_the_end.callback(remove, database, queue)
        yield


def remove(database: Database, queue: Queue) -> None:
    """With all that is in it; no signal comes in between."""
    with signals_deferred():
        uninstall(database, queue, keep_archive=False, with_messages=True)
