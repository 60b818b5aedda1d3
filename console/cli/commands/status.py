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
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import NoReturn

from console.catalog import STUCK_AFTER_SECONDS, Kind, Queue
from console.cli.command import NAMES
from console.cli.context import Call, aligned
from console.cli.streams import narrate
from console.engines import Database
from console.errors import UsageError
from console.figures import COLUMNS
from console.formats import plain
from console.monitor.limits import ThresholdsOf, defaults_of, judge
from console.monitor.sample import SAMPLING_TIMEOUTS, take_sample
from console.monitor.sample_queries import StuckAfter
from console.monitor.sampler import Reading, Sampler, probe
from console.monitor.snapshot import QueueSnapshot, snapshot
from console.rights import ConnectionRights, Login
from console.rollup_files import existing_default_lake
from console.verbs.command import Command
from console.verbs.parameters import Parameter


def _run(call: Call, names: Sequence[str], watch: bool) -> None:
    database = call.database()
    only = chosen(call, database, names)
    if watch:
        _watch(call, database, only)
    sample = take_sample(database, only=only, stuck_after_seconds=stuck_after(call))
    login = probe(database, [seen.queue for seen in sample.queues])
    shown = [snapshot(seen, sample.connection) for seen in sample.queues]
    if names:
        shown = _expecting(shown, database)
    _show(call, database, shown, login, named=bool(names))


def _expecting(shown: Sequence[QueueSnapshot], database: Database) -> list[QueueSnapshot]:
    """Rings with the time at which they will be full by the forecast."""
    if (lake := existing_default_lake()) is None or all(one.capacity is None for one in shown):
        return list(shown)
    from console.monitor.recording.forecast import Forecast, of_all  # noqa: PLC0415

    known, now = of_all(lake, database.label), datetime.now(UTC)
    return [known.get((one.schema, one.queue), Forecast()).with_filling(one, now) for one in shown]


def chosen(call: Call, database: Database, names: Sequence[str]) -> list[Queue] | None:
    """The queues of those names; None, which means all, without names."""
    only = [call.find(database, name, any_design=True) for name in names] if names else None
    for queue in only or ():
        if queue.kind is Kind.ARCHIVE:
            raise UsageError(f"Only the archive of {queue.name!r} is left: it has no status.")
    return only


def _watch(call: Call, database: Database, only: Sequence[Queue] | None) -> NoReturn:
    """Sample until interrupted; a failed sample is reported and retried."""
    readings: SimpleQueue[Reading] = SimpleQueue()
    sampler = Sampler(
        database,
        interval_seconds=_WATCH_SECONDS,
        stuck_after_seconds=stuck_after(call),
        only=only,
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
            _show(call, database, reading.queues, reading.login, named=only is not None)
    finally:
        sampler.stop(SAMPLING_TIMEOUTS.statement_seconds)


def stuck_after(call: Call) -> StuckAfter:
    """How long a claim of each queue may last."""
    return STUCK_AFTER_SECONDS if call.profile is None else call.profile.stuck_after_seconds


def _show(
    call: Call,
    database: Database,
    queues: Sequence[QueueSnapshot],
    login: Login | None,
    *,
    named: bool,
) -> None:
    """`login`: what the connection's login could do, if known; `named`: queues given by name."""
    thresholds_of = call.thresholds
    standing = ConnectionRights(
        call.rights, login, transactions=bool(database.product.read_only_options)
    )
    seen = [queue for queue in queues if call.schema in (None, queue.schema)]
    where = "this database" if call.schema is None else f"schema {call.schema!r}"
    lines = [f"No queues are installed or adopted in {where}."]
    if seen:
        lines = table(seen, thresholds_of)
        lines += [line for queue in seen if named for line in _of_named(queue, seen)]
    if standing.words != call.rights.word:
        lines.append(f"This connection: {standing.words}{_could(standing)}.")
    answer = {
        "queues": [queue.as_json(thresholds_of(queue.queue)) for queue in seen],
        "connection": standing.as_json(database.label),
    }
    call.answer(answer, lines)


def _could(standing: ConnectionRights) -> str:
    """What the server would let the login do beyond the connection's rights."""
    if standing.enforced is not False or standing.login is None:
        return ""
    if standing.login.superuser:
        return "; its login is a superuser"
    return f"; its login could {', '.join(standing.login.can)}"


_WATCH_SECONDS = 2.0
_WIDTH = 80
"""Wider tables get a smaller gap between columns."""


def table(queues: Sequence[QueueSnapshot], thresholds_of: ThresholdsOf = defaults_of) -> list[str]:
    """The queues' figures in columns for a plain terminal, with their problems below."""
    rows = [("queue", "design", *(figure.heading or figure.title for figure in COLUMNS))]
    rows += [
        (_name(queue, queues), queue.design, *(queue.text_of(figure.name) for figure in COLUMNS))
        for queue in queues
    ]
    lines = aligned(rows, left=2)
    if max(map(len, lines)) > _WIDTH:
        lines = aligned(rows, left=2, gap=" ")
    for queue in queues:
        name = _name(queue, queues)
        lines += [f"{name}: {plain(queue.problem)}"] if queue.problem else []
        lines += [f"{name}: {_slow(queue)}"] if queue.slow else []
        if queue.slowest is not None:
            lines.append(f"{name}: slowest is {queue.slowest.text}")
        elif "subscribers" in queue.unknown and not queue.problem:
            lines.append(f"{name}: the figures of its subscribers are unknown")
        lines += [f"{name}: {plain(one.shown)}" for one in queue.decisions]
        lines += [f"{name}: {plain(one.words)}" for one in queue.acting]
        found = judge(queue, thresholds_of(queue.queue))
        lines += [f"{name}: {one.text} ({one.level.word} from {one.limit_text})" for one in found]
    return lines


def _of_named(queue: QueueSnapshot, among: Sequence[QueueSnapshot]) -> list[str]:
    name = _name(queue, among)
    lines = [f"{name}: {one.text}" for one in queue.subscribers or ()]
    figures = () if queue.latency is None else queue.latency.labels_and_texts
    if queue.filling is not None:
        figures = (("full in", queue.filling.text), *figures)
    return lines + [f"{name}: {kind} {words}" for kind, words in figures]


def _slow(queue: QueueSnapshot) -> str:
    figures = ", ".join(name.removesuffix("_seconds") for name in queue.slow)
    return f"{figures}: too slow to read; perhaps because of dead rows at the head"


def _name(queue: QueueSnapshot, among: Sequence[QueueSnapshot]) -> str:
    """The name on one line, with its schema if it is not unique."""
    alone = sum(other.queue == queue.queue for other in among) == 1
    name = queue.queue if alone else f"{queue.schema}.{queue.queue}"
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in name)


_WATCH = Parameter("watch", "Sample every 2 s, with rates, until Ctrl-C.", is_flag=True)
COMMAND = Command("status", _run, __doc__, (NAMES, _WATCH), alone=("watch",))
