"""List what happened to a queue, in order of time: from recordings, the audit and the catalog.

Findings that began, worsened and ended; what operators did, what was done unattended, notes,
pauses; consumers that came, disconnected, restarted or fell silent; lost connections and failovers;
figures that left their usual band in the last two hours. Of the database it reads only the audit
and the decisions; without a connection, or where it cannot be reached, only recordings.

\b
Examples:
  dbq-console timeline orders
  dbq-console timeline orders --since 8h --json
"""

from datetime import UTC, datetime
from pathlib import Path

from console.cli.command import NAME
from console.cli.context import Call
from console.cli.lists import answer
from console.features.history.commands.history import RECORDINGS, recorded_connection
from console.features.history.recorder import folder
from console.features.history.rollup_files import existing_default_lake
from console.features.why.explain import Where
from console.features.why.views.timeline import VIEW
from console.verbs.command import Command
from console.verbs.parameters import DURATION, Parameter
from console.views.view import Source, no_database


def where(call: Call, name: str, recordings: Path | None) -> Where:
    """What is read of a queue."""
    root = recordings or folder()
    connection = recorded_connection(call, root, existing_default_lake())
    database = None if call.profile is None else call.database
    return Where(root, connection, call.schema, name, database)


def _run(call: Call, name: str, seconds: float, recordings: Path | None) -> None:
    of = {"where": where(call, name, recordings), "seconds": seconds, "now": datetime.now(UTC)}
    answer(call, VIEW, VIEW.read(Source(no_database, values=of)))


SINCE = Parameter("since", "How far back.", DURATION, default="2h", metavar="T", dest="seconds")
COMMAND = Command("timeline", _run, __doc__, (NAME, SINCE, RECORDINGS))
