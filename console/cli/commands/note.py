"""Keep a note of what happened: a mark on charts.

It is shown in history, report and --replay, too. Without NAME it is a mark on every queue of the
database. It changes nothing else.

\b
Examples:
  dbq-console note "deployed 1.4"
  dbq-console note "consumers moved to host b" orders
"""

from dataclasses import replace

from console.cli.command import OPTIONAL_NAME
from console.cli.context import Call
from console.formats import moment, plain
from console.verbs import decisions


def _run(call: Call, /, text: str, name: str | None, **given: bool) -> None:
    database = call.database()
    every = given["all"] or name is None
    queue = None if every else call.find(database, str(name), any_design=True)
    at = decisions.note(database, text, queue)
    answer = {"note": text, "queue": queue and queue.name, "schema": queue and queue.schema}
    call.answer(
        {**answer, "noted_at": at.isoformat()}, [f"noted at {moment(at, call.zone)}: {plain(text)}"]
    )


_TEXT, _ALL = decisions.NOTE.parameters
_PARAMETERS = (_TEXT, OPTIONAL_NAME, _ALL)
COMMAND = replace(decisions.NOTE, run=_run, help=__doc__, parameters=_PARAMETERS)
