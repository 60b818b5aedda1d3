"""Install a queue of DESIGN named NAME, in one transaction.

\b
Examples:
  dbq-console install ring orders --option size=20000 --url URL
  dbq-console install ring films --option content=apart --url URL
  dbq-console install fifo mail --option order=strict --print --engine postgresql
"""

import shlex
from dataclasses import replace
from typing import Any

from console.actions import install as installing
from console.catalog import Queue
from console.cli.context import Call
from console.engines import Database
from console.errors import UsageError
from console.verbs.queues import INSTALL, install_plan, new_queue, queue_identity


def _run(call: Call, /, **given: Any) -> None:
    if given["print"]:
        product = call.engine_named(given["engine"])
        queue = new_queue(given, product, call.schema)
        script = installing.script(product, queue, makes_catalog=not given["no_catalog"])
        call.answer_script({**queue_identity(queue), "sql": script}, script)
        return
    if given["engine"] is not None:
        raise UsageError("--engine goes with --print.")
    if given["no_catalog"]:
        raise UsageError("--no-catalog goes with --print.")
    database = call.database()
    queue = new_queue(given, database.product, call.schema)
    if call.schema is None:
        _refuse_qualified(database, queue)
    done = install_plan(database, queue).run_to_end()
    call.answer(done.data, done.lines)


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


COMMAND = replace(INSTALL, run=_run, help=__doc__)
