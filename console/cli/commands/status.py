"""Sample the queues once: states, depth, age, gap.

`≈` is an estimate, `?` unknown, `·` does not apply. One sample has no rates; --watch shows
them, and with --json writes one object per sample. Below the table are figures that reached a
limit of the profile ("limits" in --json), and the slowest subscriber of a ring; for queues
given by name also each subscriber ("subscribers"), and how long messages waited and were
processed in the last 5 minutes ("latency"); and whether the login could do more than this
connection may ("enforced": whether the server itself refuses what read-only forbids).

\b
Examples:
  dbq-console status
  dbq-console status orders mail --json
  dbq-console status --watch
  dbq-console status --fleet shops
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import NoReturn

from console.catalog import STUCK_AFTER_SECONDS, Kind, Queue
from console.cli.command import NAMES
from console.cli.context import Call
from console.cli.streams import narrate
from console.engines import Database
from console.errors import UsageError
from console.monitor.sample import SAMPLING_TIMEOUTS
from console.monitor.sample_queries import StuckAfter
from console.monitor.sampler import Reading, Sampler
from console.rights import ConnectionRights
from console.verbs.command import Command
from console.verbs.parameters import Parameter
from console.views.status import VIEW, SampledQueues
from console.views.view import Display, Source


def _run(call: Call, names: Sequence[str], watch: bool) -> None:
    database = call.database()
    only = chosen(call, database, names)
    if watch:
        _watch(call, database, only)
    values = {"only": only, "stuck_after_seconds": stuck_after(call)}
    seen = VIEW.read(Source(lambda: database, values=values, thresholds_of=call.thresholds))
    if names:
        from console.monitor.past import past  # noqa: PLC0415  # a verb imports what it uses

        known = past()
        queues = seen.queues if known is None else known.expecting(seen.queues, database.label)
        seen = replace(seen, queues=queues, named=True)
    _show(call, database, seen)


def chosen(call: Call, database: Database, names: Sequence[str]) -> list[Queue] | None:
    """The queues of those names; None, which means all, without names."""
    queues = [call.find(database, name, any_design=True) for name in dict.fromkeys(names)]
    for queue in queues:
        if queue.kind is Kind.ARCHIVE:
            raise UsageError(f"Only the archive of {queue.name!r} is left: it has no status.")
    return queues or None


def _watch(call: Call, database: Database, only: Sequence[Queue] | None) -> NoReturn:
    """Sample until interrupted; a failed sample is reported and retried."""
    readings: SimpleQueue[Reading] = SimpleQueue()
    sampler = Sampler(
        database, interval_seconds=_WATCH_SECONDS, stuck_after_seconds=stuck_after(call), only=only
    )
    sampler.start(readings.put)
    try:
        while True:
            reading = readings.get()
            if reading.error is not None:
                narrate(str(reading.error))
                continue
            if reading.promoted_at == reading.taken_at:
                narrate("It was a standby and is a primary now.")
            named = only is not None
            seen = SampledQueues(reading.queues, reading.login, call.thresholds, named)
            _show(call, database, seen)
    finally:
        sampler.stop(SAMPLING_TIMEOUTS.statement_seconds)


def stuck_after(call: Call) -> StuckAfter:
    """How long a claim of each queue may last."""
    return STUCK_AFTER_SECONDS if call.profile is None else call.profile.stuck_after_seconds


def _show(call: Call, database: Database, seen: SampledQueues) -> None:
    standing = ConnectionRights(
        call.rights, seen.login, transactions=bool(database.product.read_only_options)
    )
    if call.schema is not None:
        of_schema = [snapshot for snapshot in seen.queues if snapshot.schema == call.schema]
        seen = replace(seen, queues=of_schema, where=f"schema {call.schema!r}")
    lines = [*VIEW.lines(seen, Display(call.zone, datetime.now(UTC)))]
    if standing.words != call.rights.word:
        lines.append(f"This connection: {standing.words}{_could(standing)}.")
    call.answer({**VIEW.as_json(seen), "connection": standing.as_json(database.label)}, lines)


def _could(standing: ConnectionRights) -> str:
    """What the server would let the login do beyond the connection's rights."""
    if standing.enforced is not False or standing.login is None:
        return ""
    if standing.login.superuser:
        return "; its login is a superuser"
    return f"; its login could {', '.join(standing.login.can)}"


_WATCH_SECONDS = 2.0


_WATCH = Parameter("watch", "Sample every 2 s, with rates, until Ctrl-C.", is_flag=True)
COMMAND = Command("status", _run, __doc__, (NAMES, _WATCH), alone=("watch",))
