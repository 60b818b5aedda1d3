"""Verbs on queues as a whole: install, uninstall, discover, adopt, forget."""

from collections.abc import Sequence
from dataclasses import asdict

import click

from console.actions import adopt as adopting
from console.actions import install as installing
from console.actions import libraries
from console.actions import uninstall as uninstalling
from console.actions.roles import script as role_script
from console.catalog import Queue, installed_queue
from console.catalog import queues as queues_of
from console.cli.context import (
    Call,
    ConfirmedVerb,
    Rights,
    confirm_by_name,
    confirmation,
    verb_options,
)
from console.cli.looking import engine_named
from console.cli.streams import narrate, put
from console.designs import LIBRARIES
from console.designs import design as find_design
from console.errors import RefusedError, UsageError
from console.formats import plain


@click.command()
@click.argument("design")
@click.argument("name")
@click.option("--option", "options", multiple=True, metavar="K=V", help="An option of the design.")
@click.option("--print", "only_print", is_flag=True, help="Print the SQL; needs no connection.")
@click.option("--engine", metavar="E", help="With --print: the engine to write for.")
@verb_options
def install(
    call: Call, design: str, name: str, options: Sequence[str], only_print: bool, engine: str | None
) -> None:
    """Install a queue of DESIGN named NAME, in one transaction.

    \b
    Examples:
      dbq-console install ring orders --option size=20000 --url URL
      dbq-console install fifo mail --option order=strict --print --engine postgresql
    """
    given = pairs(options, "--option")
    if only_print:
        product = engine_named(call, engine)
        schema = product.default_schema if call.schema is None else call.schema
        of = find_design(design, product.name)
        queue = installed_queue(schema, name, of, of.complete_options(given, product.name))
        script = installing.script(product, queue)
        if call.json:
            call.answer({**_named(queue), "sql": script}, [])
        else:
            put(script.encode())
        return
    if engine is not None:
        raise UsageError("--engine goes with --print.")
    database = call.database(Rights.ADMIN, "install")
    of = find_design(design, database.product.name)
    chosen = of.complete_options(given, database.product.name)
    queue = installed_queue(call.schema_for(database), name, of, chosen)
    installing.install(database, queue)
    call.answer(
        {**_named(queue), "options": dict(queue.options), "connection": database.label},
        [f"installed {queue.label}: {of.title}"],
    )


@click.command(cls=ConfirmedVerb)
@click.argument("name")
@click.option("--with-messages", is_flag=True, help="Even if more than 1,000 messages go with it.")
@click.option("--keep-archive", is_flag=True, help="Leave the archive; it stays listed.")
@confirmation
@verb_options
def uninstall(
    call: Call, name: str, yes: str | None, dry_run: bool, with_messages: bool, keep_archive: bool
) -> None:
    """Remove a queue with all its objects and the messages in them.

    \b
    Examples:
      dbq-console uninstall orders --dry-run
      dbq-console uninstall orders --keep-archive --yes orders
    """
    database = call.database(Rights.ADMIN, "uninstall")
    queue = call.find(database, name)
    plan = uninstalling.plan(database, queue, keep_archive=keep_archive)
    figures = {f: v for f, v in asdict(plan).items() if f != "queue"} | {"lost": plan.lost}
    if dry_run or yes != name:
        lines = plan.lines()
        if plan.wants_with_messages and not with_messages:
            lines.append("  wants --with-messages")
        call.answer({**_named(queue), "plan": figures, "done": False}, lines)
    if not confirm_by_name(yes, dry_run, name):
        return
    if plan.wants_with_messages and not with_messages:
        raise RefusedError(
            f"The queue {name!r} still holds {plan.lost:,} messages, which would be gone for good.",
            next_step="Say so with --with-messages, or drain or archive them first.",
        )
    done = uninstalling.uninstall(
        database, queue, keep_archive=keep_archive, with_messages=with_messages
    )
    figures = {f: v for f, v in asdict(done).items() if f != "queue"} | {"lost": done.lost}
    call.answer(
        {**_named(queue), "plan": figures, "done": True},
        [f"uninstalled {queue.label}; {done.lost:,} messages went with it"],
    )


@click.command()
@click.argument("name")
@click.option("--design", metavar="D", help="The design that the table NAME follows.")
@click.option(
    "--map", "roles", multiple=True, metavar="ROLE=COLUMN", help="Which column plays which role."
)
@click.option("--preset", metavar="LIBRARY", help=f"Its queue: {', '.join(LIBRARIES)}.")
@click.option(
    "--queue", "part", metavar="Q", help="Of the library's queues (entrypoints, tasks) only this."
)
@click.option("--table", metavar="T", help="The library's table, where there are several.")
@verb_options
def adopt(
    call: Call,
    name: str,
    design: str | None,
    roles: Sequence[str],
    preset: str | None,
    part: str | None,
    table: str | None,
) -> None:
    """Record an existing table as a queue: to be looked at, and acted on when you say so.

    With --design, the table NAME, whoever made it. Roles: id pushed_at due_at claimed_at claimed_by
    status error attempts payload done_at; for a ring also slot reference_count push_sequence
    pop_sequence size. What a missing role would tell is shown as `?`.

    With --preset, what a library keeps, under the NAME that it shall have here: everything in the
    library's table, or one --queue of it (pgqueuer: an entrypoint; graphile-worker: a task; pgmq:
    a queue, NAME unless given). See what is there with `discover`.

    \b
    Examples:
      dbq-console adopt mails --design fifo --map id=mail_id --map payload=body
      dbq-console adopt jobs --design claim --map id=job_id --map claimed_at=started \\
        --map payload=body --map pushed_at=created
      dbq-console adopt jobs --preset procrastinate
      dbq-console adopt mails --preset pgqueuer --queue send_mail
      dbq-console adopt orders --preset pgmq
    """
    database = call.database(Rights.ADMIN, "adopt")
    if preset is not None:
        if design is not None or roles:
            raise UsageError(
                "--preset and --design exclude each other, and --map goes with --design.",
                why="A preset knows the columns of its library.",
            )
        of = libraries.preset(preset, database.product.name)
        queue = adopting.adopt_library(
            database, of, name, schema=call.schema, table=table, part=part or ""
        )
    elif design is None:
        raise UsageError(
            "Missing option --design, or --preset.",
            next_step="See which libraries keep queues here with: dbq-console discover",
        )
    elif part is not None or table is not None:
        raise UsageError("--queue and --table go with --preset.")
    else:
        of = find_design(design, database.product.name)
        where = call.schema_for(database)
        queue = adopting.adopt(database, where, name, of, pairs(roles, "--map"))
    only = f", only {queue.part}" if queue.part else ""
    call.answer(
        {
            **_named(queue),
            "roles": dict(queue.roles),
            "connection": database.label,
            "table": queue.table,
            "only": queue.part or None,
        },
        [f"adopted {queue.label} as a {of.title}{only}"],
    )


@click.command()
@verb_options
def discover(call: Call) -> None:
    """Find the queues that other libraries keep in this database, and how each is adopted.

    By their own tables and columns, in every schema and under every prefix: pgqueuer,
    procrastinate, pgmq, graphile-worker (PostgreSQL only). Other tables: adopt --design, --map.

    \b
    Examples:
      dbq-console discover --url URL
      dbq-console discover --json
    """
    database = call.database(Rights.READ_ONLY, "discover")
    found = [one for one in libraries.discover(database) if call.schema in (None, one.table.schema)]
    lines = [line for one in found for line in _told(one)]
    if not libraries.presets(database.product.name):
        narrate("The libraries that have presets keep their queues in PostgreSQL only.")
    elif not found:
        lines = ["No library that has a preset keeps a queue here that this login may read."]
    call.answer({"found": [one.as_json() for one in found], "connection": database.label}, lines)


def _told(found: libraries.Found) -> list[str]:
    """One table of a library, in words; names are those of the library's callers."""
    several = found.table.queue is None
    lines = [f"{found.of.library}: {found.table.schema}.{found.table.table}"]
    if several:
        lines.append(f"  queues: {', '.join(found.queues) or 'none that has messages'}")
    lines += [
        f"  adopted as {queue.label}" + (f", only {queue.part}" if queue.part and several else "")
        for queue in found.adopted
    ]
    return [plain(line) for line in [*lines, *(f"  {command}" for command in found.commands)]]


@click.command()
@click.argument("name")
@verb_options
def forget(call: Call, name: str) -> None:
    """Take an adopted queue out of the catalog; its table stays as it is.

    \b
    Examples:
      dbq-console forget jobs
      dbq-console forget jobs --schema sales
    """
    database = call.database(Rights.ADMIN, "forget")
    queue = call.find(database, name)
    adopting.forget(database, queue)
    call.answer(_named(queue), [f"forgot {queue.label}; its table is untouched"])


@click.command()
@click.option("--engine", metavar="E", help="The engine to write for, where no database is named.")
@verb_options
def roles(call: Call, engine: str | None) -> None:
    """Print the SQL of the roles for people: dbq_reader, dbq_operator, dbq_admin.

    With a database, the script also gives them their rights on its queues; queues that are
    installed later give them theirs. Read it, then run it as somebody who may make roles.

    \b
    Examples:
      dbq-console roles --url URL | psql URL
      dbq-console roles --engine postgresql
    """
    if engine is not None or call.product is None:
        product, known = engine_named(call, engine), []
        schema = product.default_schema if call.schema is None else call.schema
    else:
        database = call.database(Rights.READ_ONLY, "roles")
        product, schema = database.product, call.schema_for(database)
        with database.transaction("read the catalog", read_only=True) as connection:
            known = queues_of(connection, product)
    script = role_script(product, schema, known)
    if call.json:
        call.answer({"sql": script}, [])
    else:
        put(script.encode())


def pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """`k=v` texts as a mapping; UsageError for another form or a name given twice."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} wants the form name=value, not {text!r}.")
        if name in found:
            raise UsageError(f"{option} names {name!r} twice.")
        found[name] = value
    return found


def _named(queue: Queue) -> dict[str, object]:
    return {"queue": queue.name, "schema": queue.schema, "design": queue.design.name}


COMMANDS = (install, uninstall, discover, adopt, forget, roles)
