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

import shlex
from collections.abc import Mapping, Sequence

from console.catalog import every_queue
from console.catalog.audit import Outcome, Subject
from console.cli.context import Call
from console.cli.planned import confirmed
from console.cli.streams import narrate
from console.designs import presets
from console.engines import Database
from console.errors import UsageError
from console.features.presets import discovery
from console.features.presets.adopt import adopt_library
from console.formats import plain
from console.plan import Plan, Result, single_step
from console.rights import Rights
from console.verbs.command import Command
from console.verbs.parameters import Parameter
from console.verbs.queues import queue_identity


def _run(call: Call, *, adopt: bool, dry_run: bool, yes: str | None) -> None:
    if (dry_run or yes is not None) and not adopt:
        raise UsageError("--yes and --dry-run go with --adopt.")
    database = call.database()
    tables = [
        table for table in discovery.discover(database) if call.schema in (None, table.table.schema)
    ]
    lines = [line for table in tables for line in _description(table)]
    if not presets(database.product.name):
        narrate("All libraries with presets keep their queues in PostgreSQL.")
    elif not tables:
        lines = ["Found no queue of a library with a preset that this login may read."]
    data = {"found": [table.as_json() for table in tables], "connection": database.label}
    if adopt:
        _adopt_all(call, database, tables, data, dry_run=dry_run, yes=yes)
    else:
        call.answer(data, lines)


def _adopt_all(
    call: Call,
    database: Database,
    tables: Sequence[discovery.DiscoveredTable],
    data: Mapping[str, object],
    *,
    dry_run: bool,
    yes: str | None,
) -> None:
    left = [table for table in tables if not table.adopted]
    wanted = [table for table in left if table.of.trusted]
    plan = [
        f"{table.of.library}: adopt {table.key[0]}.{table.key[1]} as {table.name}"
        for table in wanted
    ]
    plan += [
        f"{table.of.library}: {_NOT_TRUSTED} {table.of.file}"
        for table in left
        if table not in wanted
    ]
    plan = [plain(line) for line in plan] or ["Every table found is already adopted."]
    production = call.production(database)

    def run() -> Result:
        done = [
            adopt_library(
                database,
                table.of,
                table.name,
                schema=table.key[0],
                table=table.key[1],
                part=table.table.queue or "",
            )
            for table in wanted
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
    value = {**data, "adopts": [table.name for table in wanted]}
    if not confirmed(call, every, yes, dry_run=dry_run or not wanted, value=value):
        return
    result = every.run_to_end()
    call.answer({**data, **result.data}, result.lines)


_NOT_TRUSTED = "not adopted because its preset is not trusted:"


def _description(table: discovery.DiscoveredTable) -> list[str]:
    """One table of a library, with its queues and commands."""
    several = table.table.queue is None
    where = f"{table.table.schema}.{table.table.table}"
    version = "" if table.version is None else f", table version {table.version}"
    lines = [f"{table.of.library}: {where}{version}"]
    if several:
        lines.append(f"  queues: {', '.join(table.queues) or 'none with messages'}")
    lines += [
        f"  adopted as {queue.label}" + (f", only {queue.part}" if queue.part and several else "")
        for queue in table.adopted
    ]
    lines += [f"  {command}" for command in table.commands]
    if not table.of.trusted:
        file = shlex.quote(table.of.file)
        lines.append(f"  its preset is not trusted yet: dbq-console preset trust {file}")
    return [plain(line) for line in lines]


_ADOPT = Parameter("adopt", "Adopt each of these tables as one queue.", is_flag=True)
COMMAND = Command(
    "discover",
    _run,
    __doc__,
    (_ADOPT,),
    lambda given: Rights.ADMIN if given["adopt"] else Rights.READ_ONLY,
    confirmed=True,
)
