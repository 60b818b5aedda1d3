"""Verbs on whole queues: install, discover, adopt, roles."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from console import sql
from console.actions import install as installing
from console.actions import libraries
from console.actions.adopt import adopt_library
from console.audit import Outcome, Subject
from console.catalog import Kind, Queue, every_queue
from console.catalog import queues as queues_of
from console.cli.context import (
    Call,
    ConfirmedVerb,
    as_command,
    confirmation,
    verb_options,
)
from console.cli.planned import confirmed
from console.cli.status import engine_named
from console.cli.streams import narrate, put_script
from console.designs import presets
from console.engines import Database, Product
from console.errors import UsageError
from console.formats import plain
from console.plan import Control, Plan, Result, single_step
from console.rights import Rights
from console.verbs.queues import ADOPT, INSTALL, adopted, install_plan, new_queue, queue_identity

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
    owners = ", ".join(sorted({one.owner for one in others}))
    what = "adopted" if queue.kind is Kind.ADOPTED else "not yours"
    head = f"{queue.label} ({what}): {others[0].name} belongs to {owners}, who has to run this:"
    return "\n".join(f"-- {line}" for line in [plain(head), *script.strip().splitlines()])


def _install(call: Call, /, **given: Any) -> None:
    if given["print"]:
        product = engine_named(call, given["engine"])
        queue = new_queue(given, product, call.schema)
        script = installing.script(product, queue)
        if call.json:
            call.answer({**queue_identity(queue), "sql": script}, [])
        else:
            put_script(script)
        return
    if given["engine"] is not None:
        raise UsageError("--engine goes with --print.")
    database = call.database(Rights.ADMIN, "install")
    queue = new_queue(given, database.product, call.schema)
    if call.schema is None:
        _refuse_qualified(database, queue)
    _answer(call, install_plan(database, queue).run(Control(), lambda _: None))


def _refuse_qualified(database: Database, queue: Queue) -> None:
    """A name as the other verbs print it, with its schema, is not meant as a name with a dot."""
    schema, _, name = queue.name.partition(".")
    if not name:
        return
    with database.transaction("look for the schema", read_only=True) as connection:
        if not installing.has_schema(connection, schema):
            return
    design = queue.design.name
    raise UsageError(
        f"{queue.name!r} may mean the queue {name!r} in schema {schema!r}.",
        why=f"It would get the name {queue.name!r}, with the dot, in schema {queue.schema!r}.",
        next_step=f"Name the schema apart: dbq-console install {design} {shlex.quote(name)} "
        f"--schema {shlex.quote(schema)}; with --schema the dot is kept.",
    )


def _adopt(call: Call, /, **given: Any) -> None:
    _answer(call, adopted(call.database(Rights.ADMIN, "adopt"), given, call.schema))


def _answer(call: Call, done: Result) -> None:
    call.answer(done.data, done.lines)


@click.command(cls=ConfirmedVerb)
@click.option("--adopt", is_flag=True, help="Adopt each of these tables as one queue.")
@confirmation
@verb_options
def discover(call: Call, *, adopt: bool, dry_run: bool, yes: str | None) -> None:
    """Find queues of other libraries in this database, and how to adopt them.

    They are recognised by their tables and columns, in every schema and with every prefix:
    pgqueuer, procrastinate, pgmq, graphile-worker, pg-boss, Oban, River, Solid Queue, Hangfire,
    Delayed::Job, Laravel, Symfony Messenger (PostgreSQL only), and your own presets (help
    presets). For other tables: adopt --design, --map.

    --adopt with --yes adopts each table that is not adopted yet as one queue, with everything that
    its library keeps in it; without --yes it only lists them.

    \b
    Examples:
      dbq-console discover --url URL
      dbq-console discover --json
      dbq-console discover --adopt --yes
    """
    if (dry_run or yes is not None) and not adopt:
        raise UsageError("--yes and --dry-run go with --adopt.")
    database = call.database(Rights.ADMIN if adopt else Rights.READ_ONLY, "discover")
    found = [one for one in libraries.discover(database) if call.schema in (None, one.table.schema)]
    lines = [line for one in found for line in _description(one)]
    if not presets(database.product.name):
        narrate("All libraries with presets keep their queues in PostgreSQL.")
    elif not found:
        lines = ["Found no queue of a library with a preset that this login may read."]
    data = {"found": [one.as_json() for one in found], "connection": database.label}
    if adopt:
        _adopt_all(call, database, found, data, dry_run=dry_run, yes=yes)
    else:
        call.answer(data, lines)


def _adopt_all(
    call: Call,
    database: Database,
    found: Sequence[libraries.DiscoveredTable],
    data: Mapping[str, object],
    *,
    dry_run: bool,
    yes: str | None,
) -> None:
    left = [one for one in found if not one.adopted]
    wanted = [one for one in left if one.of.trusted]
    plan = [f"{one.of.library}: adopt {one.key[0]}.{one.key[1]} as {one.name}" for one in wanted]
    plan += [f"{one.of.library}: {_NOT_TRUSTED} {one.of.file}" for one in left if one not in wanted]
    plan = [plain(line) for line in plan] or ["Every table found is already adopted."]
    production = call.production(database)

    def run() -> Result:
        done = [
            adopt_library(
                database,
                one.of,
                one.name,
                schema=one.key[0],
                table=one.key[1],
                part=one.table.queue or "",
            )
            for one in wanted
        ]
        lines = [plain(f"adopted {queue.label} as a {queue.design.title}") for queue in done]
        data = {"adopted": [queue_identity(queue) for queue in done], "done": len(done)}
        return Result(Outcome.DONE, tuple(lines), done=len(done), data=data)

    every = Plan(
        Subject.of(database, every_queue(), "adopt"),
        every_queue(),
        (*plan, "PRODUCTION database") if production else tuple(plan),
        requires_name=production,
        about=("connection", database.label),
        run=single_step(run),
        needed=bool(wanted),
    )
    value = {**data, "adopts": [one.name for one in wanted]}
    if not confirmed(call, every, yes, dry_run=dry_run or not wanted, value=value):
        return
    result = every.run_to_end()
    call.answer({**data, **result.data}, result.lines)


_NOT_TRUSTED = "not adopted because its preset is not trusted:"


def _description(found: libraries.DiscoveredTable) -> list[str]:
    """One table of a library, with its queues and commands."""
    several = found.table.queue is None
    where = f"{found.table.schema}.{found.table.table}"
    version = "" if found.version is None else f", table version {found.version}"
    lines = [f"{found.of.library}: {where}{version}"]
    if several:
        lines.append(f"  queues: {', '.join(found.queues) or 'none with messages'}")
    lines += [
        f"  adopted as {queue.label}" + (f", only {queue.part}" if queue.part and several else "")
        for queue in found.adopted
    ]
    lines += [f"  {command}" for command in found.commands]
    if not found.of.trusted:
        file = shlex.quote(found.of.file)
        lines.append(f"  its preset is not trusted yet: dbq-console preset trust {file}")
    return [plain(line) for line in lines]


@click.command()
@click.option("--engine", metavar="E", help="The engine to write for, without a database.")
@verb_options
def roles(call: Call, engine: str | None) -> None:
    """Print the SQL of the roles dbq_reader, dbq_operator and dbq_admin.

    With a database, the script also grants them their rights on its queues; queues installed later
    grant their own. What your login does not own is commented out, with who has to run it. Read it,
    then run it as a user who may create roles.

    \b
    Examples:
      dbq-console roles --url URL | psql URL
      dbq-console roles --engine postgresql
    """
    if engine is not None or call.product is None:
        product = engine_named(call, engine)
        schema = product.default_schema if call.schema is None else call.schema
        script = role_script(product, schema, [])
    else:
        database = call.database(Rights.READ_ONLY, "roles")
        product, schema = database.product, call.schema_for(database)
        with database.transaction("read the catalog", read_only=True) as connection:
            script = role_script(product, schema, queues_of(connection), connection)
    if call.json:
        call.answer({"sql": script}, [])
    else:
        put_script(script)


COMMANDS = (
    as_command(INSTALL, verb_options(_install)),
    discover,
    as_command(ADOPT, verb_options(_adopt)),
    roles,
)
