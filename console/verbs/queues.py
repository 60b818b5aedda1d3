"""The verbs without a `Target`, which is an existing queue: install, smoke.

The functions here carry them out, for the command line and the screens.
"""

from collections.abc import Callable, Sequence

import click

from console.actions import install as installing
from console.catalog import Queue, installed_queue
from console.catalog.audit import Outcome, Subject
from console.designs import DESIGNS, Flow, design
from console.engines import Database, Product
from console.errors import UsageError
from console.formats import numbered
from console.plan import Control, OnProgress, Plan, Result, single_step
from console.verbs.command import Command, Params, admin
from console.verbs.parameters import Parameter, argument


def complete_designs(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in DESIGNS if name.startswith(incomplete)]


def complete_options(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The design's options, then the values of the one that is typed."""
    # After an option that has no value yet, click leaves the arguments in `args`.
    words = (context.params.get("design"), *context.args)
    of = next((DESIGNS[word] for word in words if word in DESIGNS), None)
    if of is None:
        return []
    name, equals, _value = incomplete.partition("=")
    found = [f"{option.name}=" for option in of.options]
    if equals:
        found = [
            f"{name}={value}"
            for option in of.options
            if option.name == name
            for value in dict.fromkeys((*option.choices, *option.words, option.default))
        ]
    return [one for one in found if one.startswith(incomplete)]


def pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """`k=v` texts as a mapping; UsageError for another form or a name given twice."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} must have the form name=value, not {text!r}.")
        if name in found:
            raise UsageError(f"{option} names {name!r} twice.")
        found[name] = value
    return found


def new_queue(values: Params, product: Product, schema: str | None) -> Queue:
    """The queue that the values of install describe. UsageError."""
    given = pairs(values["option"], "--option")
    of = design(values["design"], product.name)
    where = product.default_schema if schema is None else schema
    return installed_queue(where, values["name"], of, of.complete_options(given, product.name))


def install_plan(database: Database, queue: Queue, *, production: bool = False) -> Plan:
    """Does not query the database: whether names are free is checked by the run."""
    where = f"{'PRODUCTION ' if production else ''}{database.label}"
    return new_queue_plan(
        database,
        queue,
        "install",
        (f"It runs on {where} in one transaction: all or nothing.", *_cost(queue)),
        single_step(_install, database, queue),
        sql=installing.script(database.product, queue),
    )


def _cost(queue: Queue) -> Sequence[str]:
    """The cost of a ring's `content` option, compared with its other value."""
    if queue.design.flow is not Flow.NUMBERS:
        return ()
    options = queue.options
    if queue.partitions:
        return (
            f"content=apart: messages of any size, in {numbered(queue.partitions, 'table')}. Its "
            "price: a push also inserts a row and a pop deletes one, which leaves dead rows. At "
            "300 bytes it takes 0.84 of the messages per second that slots take one by one, 0.65 "
            "in batches of 100, and 1.3 times the log (measured on PostgreSQL).",
            "content=slot costs neither, but allocates max_bytes for every slot, 7,000 at most.",
        )
    return (
        f"content=slot: {int(options['size']):,} slots, each allocated at "
        f"{int(options['max_bytes']):,} bytes now; a push and a pop update one row, and no message "
        "can be larger.",
        "content=apart takes messages of any size, for one more insert a push and one more delete "
        "a pop.",
    )


def _install(database: Database, queue: Queue) -> Result:
    installing.install(database, queue)
    data = {**queue_identity(queue), "options": dict(queue.options), "connection": database.label}
    line = f"installed {queue.label}: {queue.design.title}"
    return Result(Outcome.DONE, (line,), done=1, data=data)


def new_queue_plan(
    database: Database,
    queue: Queue,
    verb: str,
    lines: tuple[str, ...],
    run: Callable[[Control, OnProgress], Result],
    sql: str = "",
) -> Plan:
    """The plan of a verb that makes a queue."""
    subject = Subject.of(database, queue, verb)
    return Plan(subject, queue, lines, requires_name=False, run=run, stoppable=False, sql=sql)


def queue_identity(queue: Queue) -> dict[str, object]:
    """For --json."""
    return {"queue": queue.name, "schema": queue.schema, "design": queue.design.name}


INSTALL = Command(
    "install",
    own_summary="install a queue",
    parameters=(
        argument("design", "How it stores its messages.", complete=complete_designs),
        argument("name", "any name; taken whole, never split at dots"),
        Parameter(
            "option",
            "An option of the design.",
            multiple=True,
            metavar="K=V",
            complete=complete_options,
        ),
        Parameter("print", "Print the SQL; needs no connection.", is_flag=True),
        Parameter("engine", "With --print: the engine to write for.", metavar="E"),
        Parameter(
            "no-catalog",
            "With --print: for a database that has queues, run by one of dbq_admin.",
            is_flag=True,
        ),
    ),
    right=admin,
    examined_after=False,
)

SMOKE = Command(
    "smoke",
    own_summary="test its design on a scratch queue",
    parameters=(
        Parameter(
            "design",
            "Test a design with its default options instead.",
            metavar="D",
            complete=complete_designs,
        ),
        Parameter("live", "On the queue itself, only if it is drained.", is_flag=True),
    ),
    right=admin,
)
