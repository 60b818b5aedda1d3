"""Verbs on what was recorded: record, history, audit."""

import csv
import io
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

import click

from console import audit as auditing
from console import clock
from console.cli.context import (
    Call,
    Rights,
    as_command,
    complete_queues,
    queue_name,
    verb_options,
)
from console.cli.several import several_options
from console.cli.streams import asked_to_end, narrate, put
from console.config import Profile
from console.errors import UsageError
from console.formats import NOT_APPLICABLE, bare_moment, count, duration, moment, plain, rate
from console.monitor import owners
from console.monitor.latency import KINDS, PERCENTILES
from console.monitor.recording.history import History, Point, history, since
from console.monitor.recording.reader import connections as rolled_up
from console.monitor.recording.recorder import (
    KEEP_SECONDS,
    MOST_BYTES,
    Bounds,
    Recorder,
    folder,
)
from console.monitor.recording.segments import connections
from console.monitor.sampler import Reading
from console.rollup_files import own_lake
from console.verbs import decisions
from console.verbs.parameters import DURATION


@click.command()
@click.argument("name", required=False, shell_complete=complete_queues)
@click.option("--verb", metavar="V", help="Only this verb.")
@click.option("--operator", metavar="WHO", help="Only by this operator: a part of user@host.")
@click.option("--since", type=DURATION, metavar="T", help="Only what began within this time.")
@click.option("--running", is_flag=True, help="Only what is still running.")
@click.option(
    "--limit",
    type=click.IntRange(1, auditing.LIST_MOST),
    default=50,
    show_default=True,
    metavar="N",
    help="At most this many, newest first.",
)
@verb_options
def audit(
    call: Call,
    name: str | None,
    verb: str | None,
    operator: str | None,
    since: float | None,
    running: bool,
    limit: int,
) -> None:
    """What operators did, the newest first: who, when, what, how many. Never a payload.

    An action that runs in a session which is gone was cut off: what it had done is counted.

    \b
    Examples:
      dbq-console audit orders --since 1d
      dbq-console audit --verb purge --json
    """
    database = call.database(Rights.READ_ONLY, "audit")
    wanted = auditing.EntryFilter(call.schema, name, verb, operator, since, running)
    with database.transaction("read the audit", read_only=True) as connection:
        found = auditing.entries(connection, wanted, limit)
        alive = owners.alive(connection, found)
    shown = [{**entry.as_json(), "alive": alive.get(entry.action_id)} for entry in found]
    lines = [_line(call, entry, alive.get(entry.action_id)) for entry in found]
    call.answer({"actions": shown}, lines or ["No actions."])


def _line(call: Call, entry: auditing.Entry, alive: bool | None) -> str:
    outcome = entry.outcome
    if outcome == auditing.Outcome.RUNNING.value and alive is False:
        outcome = "interrupted"
    took = duration((entry.last_at - entry.started_at).total_seconds())
    counts = f"{entry.done:,} of {entry.planned:,}" if entry.planned else f"{entry.done:,}"
    if entry.skipped or entry.failed:
        counts += f", {entry.skipped:,} skipped, {entry.failed:,} failed"
    started = moment(entry.started_at, call.zone)
    of = f" {entry.schema}.{entry.queue}" if entry.queue else ""
    parts = (
        f"{entry.action_id:>6}  {started}  {entry.verb}{of}: {outcome}",
        counts if entry.planned or entry.done else "",
        f"in {took}",
        f"by {entry.operator} as {entry.database_user}",
        entry.filters,
        entry.detail,
    )
    return "  ".join(plain(part) for part in parts if part)


_LINES = 14
_CHARTS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("depth", ("ready", "claimed", "errors")),
    ("messages a second", ("push_per_second", "pop_per_second")),
    ("age of the oldest", ("age_seconds",)),
    ("push/pop sequence gap", ("gap",)),
    *((kind, tuple(f"{kind}_p{at}_seconds" for at in PERCENTILES)) for kind in KINDS),
)


def plot_of(found: History, zone: tzinfo | None) -> str:
    """Charts of what the queue has, under one another, as wide as the terminal."""
    import plotext  # type: ignore[import-untyped]  # noqa: PLC0415  # verbs shall start at once

    width = shutil.get_terminal_size((100, 24)).columns
    shown = []
    for title, names in _CHARTS:
        there = [name for name in names if any(getattr(p, name) is not None for p in found.points)]
        if not there:
            continue
        plotext.clear_figure()
        plotext.theme("clear")
        plotext.plotsize(width, _LINES)
        plotext.title(title)
        for name in there:
            for number, (xs, ys) in enumerate(_stretches(found, name)):
                label = (
                    None if number else name.replace("_per_second", "/s").removesuffix("_seconds")
                )
                plotext.plot(xs, ys, label=label, marker="braille")
        for mark in found.marks:
            if mark.kind == "note":
                plotext.vline(mark.at.timestamp())
        plotext.xticks(*_ticks(found, zone, width))
        # Room above the highest, where the names of the lines stand.
        highest = 1.2 * max(getattr(p, name) or 0 for p in found.points for name in there)
        top, words = _scale(there[0], highest)
        plotext.ylim(0, top)
        plotext.yticks([0, top / 2, top], [words(0), words(top / 2), words(top)])
        shown.append(plotext.uncolorize(plotext.build()))
    return "\n".join(shown)


def _stretches(found: History, name: str) -> Iterator[tuple[list[float], list[float]]]:
    """Points in a row: where one is missing the line is broken."""
    for run in found.runs:
        xs: list[float] = []
        ys: list[float] = []
        for point in run:
            value = getattr(point, name)
            if value is not None:
                xs.append(point.at.timestamp())
                ys.append(float(value))
            elif xs:
                yield xs, ys
                xs, ys = [], []
        if xs:
            yield xs, ys


def _scale(name: str, highest: float) -> tuple[float, Callable[[float], str]]:
    """Where the axis of what that is ends, and how it is written."""
    if name.endswith("_seconds"):
        return clock.scale_seconds(highest), clock.short_seconds
    if name.endswith("_per_second"):
        return clock.scale(highest), clock.short_count
    return clock.scale_count(highest), clock.short_count


def _ticks(found: History, zone: tzinfo | None, width: int) -> tuple[list[float], list[str]]:
    """Round times of day."""
    first, last = found.points[0].at, found.points[-1].at
    backs, words = clock.ticks((last - first).total_seconds(), width, last, zone)
    return [last.timestamp() + back for back in backs], words


_LOG = logging.getLogger(__name__)
_STOP_SECONDS = 15.0
_ROWS = 40
"""So many points has a table on a terminal."""
_PLOTTED = 100
_MIB = 2**20

_recordings = click.option(
    "--recordings",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Where they are kept. By default this user's state folder.",
)


@click.command()
@_recordings
@click.option("--keep", type=DURATION, default=KEEP_SECONDS, metavar="T", help="[default: 30d]")
@click.option(
    "--most-mib",
    type=click.IntRange(min=1),
    default=MOST_BYTES // _MIB,
    show_default=True,
    metavar="N",
    help="Per connection, in MiB; the oldest is deleted first.",
)
@several_options
@verb_options
def record(
    call: Call,
    recordings: Path | None,
    keep: float,
    most_mib: int,
    group: str | None,
    fleet: str | None,
) -> None:
    """Record what the console sees, without a screen, until Ctrl-C or SIGTERM.

    The connection that is named, those of --group or --fleet, else all that are configured. Samples
    at the connection's interval; waits, findings and actions in longer steps. Never payloads. A
    connection has one recorder: a console that is opened meanwhile leaves the recording to this
    one.

    With the rights of an operator it also forgets the holes of rings (holes_pile_up), each proven:
    parked numbers of pushes that are gone, older than an hour or more than slots. See the audit.
    And it tells the receivers of the configuration of new findings and of their end; of several
    recorders of a database one does: dbq-console help notifications.

    \b
    Examples:
      dbq-console record
      dbq-console record --profile orders --keep 14d --most-mib 500
      dbq-console record --group production
    """
    profiles = call.several(group, call.said, fleet)
    bounds = Bounds(keep_seconds=keep, most_bytes=most_mib * _MIB)
    with ExitStack() as all_of_them, asked_to_end() as ended:
        told = [
            all_of_them.enter_context(_recording(call, profile, recordings or folder(), bounds))
            for profile in profiles
        ]
        narrate(f"Recording {', '.join(told)} to {recordings or folder()}.")
        ended.wait()
        narrate("Ending.")


@contextmanager
def _recording(call: Call, profile: Profile, root: Path, bounds: Bounds) -> Iterator[str]:
    """A connection while it is recorded; its name."""
    from console.config.notifications import targets  # noqa: PLC0415  # verbs shall start at once
    from console.doctor.recording import Recording  # noqa: PLC0415
    from console.notify.events import Source  # noqa: PLC0415
    from console.notify.notifier import Notifier  # noqa: PLC0415

    database = profile.open()
    recorder = Recorder(root, database.label, bounds)
    state = _Narrator(recorder)
    source = Source(database.label, profile.group, production=profile.production)
    notifier = Notifier(database, targets(call.configuration, profile), source, narrate)
    recording = Recording(
        database,
        recorder,
        interval_seconds=profile.interval_seconds,
        stuck_after_seconds=profile.stuck_after_seconds,
        thresholds_of=profile.thresholds,
        masks=profile.masks,
        rights=profile.rights,
        told=state.told,
    )
    recording.on_examined = notifier.examined
    recording.start()
    notifier.start()
    try:
        yield database.label
    finally:
        recording.stop(_STOP_SECONDS)
        notifier.stop(_STOP_SECONDS)
        recorder.close()
        database.close()


class _Narrator:
    """Narrates when a connection is lost or back, and when nothing can be written."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._said = ""

    def told(self, reading: Reading) -> None:
        error = reading.error
        words = self._recorder.problem or ("" if error is None else str(error).replace("\n", " "))
        if words != self._said:
            self._said = words
            state = "not recorded completely" if words else "recorded again"
            _LOG.warning("%s: %s", self._recorder.connection, state)
            narrate(f"{self._recorder.connection}: {words or 'recording again'}")


@click.command(name="history")
@queue_name
@click.option(
    "--since",
    "seconds",
    type=DURATION,
    default=86_400.0,
    metavar="T",
    help="How far back.  [default: 24h]",
)
@click.option("--csv", "as_csv", is_flag=True, help="Every point as comma-separated values.")
@click.option("--plot", is_flag=True, help="Charts of depth, rates, age, gap, latencies.")
@click.option(
    "--lake",
    metavar="PATH",
    help="Whose rollups have what the recordings no longer have. By default this user's lake, if "
    "there is one.",
)
@_recordings
@verb_options
def show_history(
    call: Call,
    name: str,
    seconds: float,
    as_csv: bool,
    plot: bool,
    lake: str | None,
    recordings: Path | None,
) -> None:
    """A queue over time, from what was recorded: no database is asked.

    A point is as long as it must be for the width: counts, age, gap and latencies are the highest
    that was seen in it, rates the mean. Where nothing was seen there is no point. What lies long
    back comes from the minutes, hours or days of `pipeline rollup`.

    \b
    Examples:
      dbq-console history orders --since 24h --plot
      dbq-console history orders --since 7d --csv > orders.csv
    """
    if sum((as_csv, plot, call.json)) > 1:
        raise UsageError("--json, --csv and --plot exclude each other.")
    root = recordings or folder()
    lake = lake or own_lake()
    connection = _connection(call, root, lake)
    most = {"most_points": _ROWS} if not (as_csv or plot or call.json) else {}
    if plot:
        most = {"most_points": _PLOTTED}
    span = since(datetime.now(UTC), seconds)
    found = history(root, connection, name, span, schema=call.schema, lake=lake, **most)
    if found.skipped:
        narrate(found.skipped)
    if as_csv:
        put(_csv(found.points))
    elif plot:
        lines = [plot_of(found, call.zone), *map(plain, _marks(call, found))]
        put("".join(f"{line}\n" for line in lines))
    else:
        call.answer(found.as_json(), _table(call, found))


def _connection(call: Call, root: Path, lake: str | None) -> str:
    """The connection that is meant: named, or the only one there is a record of."""
    if call.profile is not None:
        return call.profile.label
    known: list[str] = sorted({*connections(root), *(rolled_up(lake) if lake else ())})
    if len(known) == 1:
        return known[0]
    raise UsageError(
        "Which connection is meant?" if known else "Nothing is recorded yet.",
        why=f"Recorded connections: {', '.join(known)}." if known else f"The search was in {root}.",
        next_step="Name one with --profile or --url."
        if known
        else "The console records while it is open; dbq-console record does so always.",
    )


_COLUMNS = {
    "ready": "ready",
    "age_seconds": "age",
    "push_per_second": "push/s",
    "pop_per_second": "pop/s",
    "gap": "gap",
    "slowest": "slowest",
    "claimed": "claimed",
    "errors": "errors",
    "waiting_p95_seconds": "waiting",
    "processing_p95_seconds": "processing",
}
_OFTEN_LACKING = ("slowest", *(name for name in _COLUMNS if name.endswith("_p95_seconds")))


def _table(call: Call, found: History) -> list[str]:
    # Only where it was known: most designs have it not.
    left_out = {n for n in _OFTEN_LACKING if all(getattr(p, n) is None for p in found.points)}
    shown = [name for name in _COLUMNS if name not in left_out]
    rows: list[tuple[str, ...]] = [("since", *(_COLUMNS[name] for name in shown))]
    for point in found.points:
        cells = (_cell(name, getattr(point, name)) for name in shown)
        rows.append((bare_moment(point.at, call.zone), *cells))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    step = duration(found.step_seconds)
    latencies = any(name.endswith("_p95_seconds") for name in shown)
    p95 = "; of waiting and processing the highest p95" if latencies else ""
    lines.append(f"each line covers {step}: the highest count, age and gap, the mean rate{p95}")
    return [*lines, *(plain(line) for line in _marks(call, found))]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return NOT_APPLICABLE
    if name == "slowest":
        return plain(str(value))
    if name.endswith("_per_second"):
        return rate(value)
    return duration(value) if name.endswith("_seconds") else count(value)


def _marks(call: Call, found: History) -> Iterator[str]:
    for mark in found.marks:
        lasted = mark.until is not None and mark.until != mark.at
        until = f" to {moment(mark.until, call.zone)}" if mark.until and lasted else ""
        yield f"{mark.kind} {mark.name}: {moment(mark.at, call.zone)}{until}: {mark.words}"


def _csv(points: Sequence[Point]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(Point)]
    writer.writerow(names)
    for point in points:
        gaps = " ".join(f"{name}={gap}" for name, gap in point.subscribers.items())
        row = [gaps if name == "subscribers" else getattr(point, name) for name in names]
        writer.writerow([point.at.isoformat(), *("" if v is None else v for v in row[1:])])
    return text.getvalue()


def _note(call: Call, /, text: str, name: str | None, **given: bool) -> None:
    database = call.database(Rights.OPERATOR, "note")
    every = given["all"] or name is None
    queue = None if every else call.find(database, str(name), any_design=True)
    at = decisions.note(database, text, queue)
    answer = {"note": text, "queue": queue and queue.name, "schema": queue and queue.schema}
    call.answer(
        {**answer, "noted_at": at.isoformat()},
        [f"noted at {moment(at, call.zone)}: {plain(text)}"],
    )


_name = click.Argument(["name"], required=False, shell_complete=complete_queues)
COMMANDS = (record, show_history, audit, as_command(decisions.NOTE, verb_options(_note), _name))
