"""Verbs on recorded history: record, history, note."""

import csv
import io
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from console.cli.context import (
    Call,
    as_command,
    queue_argument,
    queue_name,
    verb_options,
)
from console.cli.history_plot import expected_lines, plot_of
from console.cli.several import profiles_of, several_options
from console.cli.streams import narrate, put, stop_requested
from console.config import Profile
from console.errors import UsageError
from console.formats import moment, plain
from console.monitor.recording.forecast import read as read_forecast
from console.monitor.recording.history import NothingRecordedError, Point, since
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
from console.rights import Rights
from console.rollup_files import existing_default_lake
from console.verbs import decisions
from console.verbs.parameters import DURATION
from console.verbs.pipeline import LOCATION
from console.views.history import VIEW, marks
from console.views.view import Display, no_database
from console.views.view import Source as ListSource

_LOG = logging.getLogger(__name__)
_STOP_SECONDS = 15.0
_TABLE_POINTS = 40
_PLOT_POINTS = 100
_MIB = 2**20
_WEEK_SECONDS = 7 * 86_400.0

_recordings = click.option(
    "--recordings",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="The folder of recordings; default: in this user's state folder.",
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
    """Record connections without screens, until Ctrl-C or SIGTERM.

    The connection given, those of --group or --fleet, else all configured ones. It samples at the
    connection's interval, and waits, findings and actions less often. No payloads. A
    connection has one recorder: a console opened meanwhile leaves the recording to it.

    With the right operator it also removes proven holes of rings (holes_pile_up): parked numbers of
    lost pushes, older than an hour or more than there are slots. See the audit. It notifies the
    configured receivers of new findings and of their end; of several recorders of a database one
    does: dbq-console help notifications.

    \b
    Examples:
      dbq-console record
      dbq-console record --profile orders --keep 14d --most-mib 500
      dbq-console record --group production
    """
    profiles = profiles_of(call, group, fleet)
    bounds = Bounds(keep_seconds=keep, most_bytes=most_mib * _MIB)
    with ExitStack() as stack, stop_requested() as stop:
        labels = [
            stack.enter_context(_recording(call, profile, recordings or folder(), bounds))
            for profile in profiles
        ]
        narrate(f"Recording {', '.join(labels)} to {recordings or folder()}.")
        stop.wait()
        narrate("Stopping.")


@contextmanager
def _recording(call: Call, profile: Profile, root: Path, bounds: Bounds) -> Iterator[str]:
    """Record a connection meanwhile; yields its label."""
    from console.config.receivers import targets  # noqa: PLC0415  # slow to import
    from console.doctor.recording import Recording  # noqa: PLC0415
    from console.notify.notifier import Notifier  # noqa: PLC0415
    from console.notify.targets import Source  # noqa: PLC0415

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
        on_reading=state.on_reading,
    )
    recording.on_update = notifier.examined
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
    """Reports when a connection is lost or back, and when nothing can be written."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._problem = ""

    def on_reading(self, reading: Reading) -> None:
        error = reading.error
        problem = self._recorder.problem or ("" if error is None else str(error).replace("\n", " "))
        if problem != self._problem:
            self._problem = problem
            state = "not recorded completely" if problem else "recorded again"
            _LOG.warning("%s: %s", self._recorder.connection, state)
            narrate(f"{self._recorder.connection}: {problem or 'recording again'}")


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
    "--forecast",
    "ahead",
    type=DURATION,
    metavar="T",
    help="Also the forecast of pushes and pops for the coming hours, up to a week.",
)
@click.option(
    "--lake",
    metavar="PATH",
    type=LOCATION,
    help="The lake with rollups of deleted recordings; default: this user's lake, if any.",
)
@_recordings
@verb_options
def show_history(
    call: Call,
    name: str,
    seconds: float,
    as_csv: bool,
    plot: bool,
    ahead: float | None,
    lake: str | None,
    recordings: Path | None,
) -> None:
    """Show a queue over time from its recordings; no database is used.

    The width determines the span of a point: counts, age, gap and latencies are the highest in it,
    rates the mean. Spans without a sample have no point. Older times come from the minutes,
    hours or days of `pipeline rollup`.

    The forecast of an hour is based on the same hour of the last weeks: the median, and the band
    that contains 90 % of such hours. It needs 3 weeks of recordings, rolled up.

    \b
    Examples:
      dbq-console history orders --since 24h --plot
      dbq-console history orders --forecast 24h --plot
      dbq-console history orders --since 7d --csv > orders.csv
    """
    if sum((as_csv, plot, call.json)) > 1:
        raise UsageError("--json, --csv and --plot exclude each other.")
    root = recordings or folder()
    lake = lake or existing_default_lake()
    connection = _connection(call, root, lake)
    most = {"most_points": _TABLE_POINTS} if not (as_csv or plot or call.json) else {}
    if plot:
        most = {"most_points": _PLOT_POINTS}
    span = since(datetime.now(UTC), seconds)
    end = span.end + _ahead(ahead, as_csv=as_csv)
    of = {"root": root, "connection": connection, "span": span, "lake": lake, **most}
    found = VIEW.read(ListSource(no_database, call.schema, name, of))
    display = Display(call.zone, datetime.now(UTC))
    known = None if ahead is None else read_forecast(lake, connection, found.schema, name)
    if found.skipped:
        narrate(found.skipped)
    if as_csv:
        put(_csv(found.points))
    elif plot:
        lines = [plot_of(found, call.zone, known, end), *marks(found, display)]
        put("".join(f"{line}\n" for line in lines))
        if known is not None and known.why:
            narrate(known.why)
    else:
        forecast = None if known is None else known.as_json(span.begin, end)
        more = [] if known is None else ["", *expected_lines(known, call.zone, span.end, end)]
        call.answer(
            {**VIEW.as_json(found), "forecast": forecast}, [*VIEW.lines(found, display), *more]
        )


def _ahead(seconds: float | None, *, as_csv: bool) -> timedelta:

    if seconds is not None and as_csv:
        raise UsageError("--csv has no forecast.", next_step="--json has both.")
    if seconds is not None and not 0 < seconds <= _WEEK_SECONDS:
        raise UsageError("--forecast goes to 7d at most: after that the week repeats.")
    return timedelta(seconds=seconds or 0.0)


def _connection(call: Call, root: Path, lake: str | None) -> str:
    """The connection given, or the only recorded one."""
    if call.profile is not None:
        return call.profile.label
    known: list[str] = sorted({*connections(root), *(rolled_up(lake) if lake else ())})
    if len(known) == 1:
        return known[0]
    if known:
        raise UsageError(
            "Several connections are recorded.",
            why=f"Recorded connections: {', '.join(known)}.",
            next_step="Name one with --profile or --url.",
        )
    raise NothingRecordedError(
        "Nothing is recorded yet.",
        why=f"Searched in {root}.",
        next_step="The console records while its screens are open, dbq-console record permanently.",
    )


def _csv(points: Sequence[Point]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for number, point in enumerate(points):
        gaps = " ".join(f"{name}={gap}" for name, gap in point.subscribers.items())
        row = point.as_json() | {"subscribers": gaps}
        if number == 0:
            writer.writerow(row)
        writer.writerow("" if value is None else value for value in row.values())
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


_name = queue_argument(required=False)
COMMANDS = (record, show_history, as_command(decisions.NOTE, verb_options(_note), _name))
