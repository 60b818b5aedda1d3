"""Print a queue's figures, findings and last actions as Markdown, for a ticket. No payloads.

\b
Examples:
  dbq-console report orders > ticket.md
  dbq-console report orders --json
"""

from console.catalog import audit, decisions
from console.cli.command import NAME
from console.cli.commands.doctor import IDLE_FOR, examination
from console.cli.context import Call
from console.verbs.command import Command

_ACTIONS = 10


def _run(call: Call, name: str, idle_for: float) -> None:
    from console.doctor.report import markdown  # noqa: PLC0415

    database = call.database()
    queue = call.find(database, name, any_design=True)
    (diagnosis,) = examination(call, database, [queue], idle_for)()
    figures = diagnosis.figures
    with database.transaction("read the audit", read_only=True) as connection:
        wanted = audit.EntryFilter(queue.schema, queue.name)
        actions = audit.entries(connection, wanted, _ACTIONS)
        notes = decisions.notes(connection, queue.schema, queue.name, _ACTIONS)
    standby = call.standby()
    of_standby = "" if standby is None else standby.sentence(call.zone)
    text = markdown(diagnosis, figures, actions, call.zone, notes, of_standby)
    call.answer(
        {
            **diagnosis.as_json(),
            "figures": None if figures is None else figures.as_json(call.thresholds(queue.name)),
            "actions": [entry.as_json() for entry in actions],
            "notes": [note.as_json() for note in notes],
            "markdown": text,
        },
        text.split("\n"),
        says_standby=False,
    )


COMMAND = Command("report", _run, __doc__, (NAME, IDLE_FOR))
