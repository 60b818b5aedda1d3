"""The verb adopt, for the command line and the screens."""

from collections.abc import Mapping, Sequence

from console.catalog import Queue
from console.catalog.audit import Outcome
from console.designs import design
from console.engines import Database
from console.errors import UsageError
from console.features.presets import adopt as adopting
from console.features.presets import discovery
from console.features.presets.adopt import CandidateTable
from console.features.presets.designs import LIBRARIES
from console.plan import Plan, Result, single_step
from console.verbs.command import Command, Params, admin
from console.verbs.parameters import Parameter, argument
from console.verbs.queues import complete_designs, new_queue_plan, pairs, queue_identity


def adopt_plan(
    database: Database, queue: Queue, table: CandidateTable, values: Params, lines: Sequence[str]
) -> Plan:
    """`queue`: as previewed; `lines`: the columns and their roles."""
    text = (
        f"{table.schema}.{table.name} on {database.label} becomes a queue of the design "
        f"{queue.design.name}.",
        "Nothing in it is changed; its own callers continue.",
        "",
        *lines,
    )
    run = single_step(adopted, database, values, table.schema)
    return new_queue_plan(database, queue, "adopt", text, run)


def adopted(database: Database, values: Params, schema: str | None) -> Result:
    """Adopt the queue that the values describe. UsageError."""
    of, name, part, table = (values[word] for word in ("design", "name", "queue", "table"))
    path = values["search_path"] or ""
    if values["preset"] is not None:
        if of is not None or values["map"]:
            raise UsageError(
                "--preset and --design exclude each other, and --map goes with --design.",
                why="A preset knows the columns of its library.",
            )
        library = discovery.preset(values["preset"], database.product.name)
        queue = adopting.adopt_library(
            database, library, name, schema=schema, table=table, part=part or "", search_path=path
        )
    elif of is None:
        raise UsageError(
            "Missing option --design, or --preset.",
            next_step="See which libraries keep queues here with: dbq-console discover",
        )
    elif part is not None or table is not None:
        raise UsageError("--queue and --table go with --preset.")
    else:
        where = database.product.others_schema if schema is None else schema
        roles = pairs(values["map"], "--map")
        known, consumers = design(of, database.product.name), values["consumers"]
        queue = adopting.adopt(database, where, name, known, roles, path, consumers=consumers)
    only = f", only {queue.part}" if queue.part else ""
    data: Mapping[str, object] = {
        **queue_identity(queue),
        "roles": dict(queue.roles),
        "connection": database.label,
        "table": queue.table,
        "only": queue.part or None,
        "search_path": queue.options.get("search_path"),
    }
    lines = [f"adopted {queue.label} as a {queue.design.title}{only}"]
    if queue.options.get("search_path"):
        lines.append(f"its triggers run with search_path = {queue.options['search_path']}")
    return Result(Outcome.DONE, tuple(lines), done=1, data=data)


ADOPT = Command(
    "adopt",
    own_summary="adopt an existing table",
    parameters=(
        argument("name", "What it is called."),
        Parameter(
            "design",
            "The design that the table NAME follows.",
            metavar="D",
            complete=complete_designs,
        ),
        Parameter("map", "Which column has which role.", multiple=True, metavar="ROLE=COLUMN"),
        Parameter(
            "preset", f"The library that owns it: {', '.join(LIBRARIES)}.", metavar="LIBRARY"
        ),
        Parameter(
            "queue", "Only this one of the library's queues (entrypoints, tasks).", metavar="Q"
        ),
        Parameter("table", "The library's table, if there are several.", metavar="T"),
        Parameter(
            "consumers",
            "With --design: `direct` if each consumer has a session of its own, so that a claim "
            "whose session is gone has lost its owner; never through a pooler.",
            metavar="direct",
        ),
        Parameter(
            "search-path",
            "For its triggers and functions; by default that of the table's owner (PostgreSQL).",
            metavar="PATH",
        ),
    ),
    right=admin,
    examined_after=False,
)
