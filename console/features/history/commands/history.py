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

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from console.cli.command import NAME
from console.cli.context import Call
from console.cli.streams import narrate, put
from console.errors import UsageError
from console.features.history.forecast import read as read_forecast
from console.features.history.plot import expected_lines, plot_of
from console.features.history.points import NothingRecordedError, Point, since
from console.features.history.reader import connections as rolled_up
from console.features.history.recorder import folder
from console.features.history.rollup_files import existing_default_lake
from console.features.history.segments import connections
from console.features.history.views.history import VIEW, marks
from console.verbs.command import Command
from console.verbs.parameters import DURATION, FOLDER_TYPE, LOCATION, Parameter
from console.views.view import Display, Source, no_database

_TABLE_POINTS = 40
_PLOT_POINTS = 100
_WEEK_SECONDS = 7 * 86_400.0


def _run(
    call: Call,
    name: str,
    seconds: float,
    as_csv: bool,
    plot: bool,
    ahead: float | None,
    lake: str | None,
    recordings: Path | None,
) -> None:
    if sum((as_csv, plot, call.json)) > 1:
        raise UsageError("--json, --csv and --plot exclude each other.")
    root = recordings or folder()
    lake = lake or existing_default_lake()
    connection = recorded_connection(call, root, lake)
    most = {"most_points": _TABLE_POINTS} if not (as_csv or plot or call.json) else {}
    if plot:
        most = {"most_points": _PLOT_POINTS}
    span = since(datetime.now(UTC), seconds)
    end = span.end + _ahead(ahead, as_csv=as_csv)
    of = {"root": root, "connection": connection, "span": span, "lake": lake, **most}
    history = VIEW.read(Source(no_database, call.schema, name, of))
    display = Display(call.zone, datetime.now(UTC))
    known = None if ahead is None else read_forecast(lake, connection, history.schema, name)
    if history.skipped:
        narrate(history.skipped)
    if as_csv:
        put(_csv(history.points))
    elif plot:
        lines = [plot_of(history, call.zone, known, end), *marks(history, display)]
        put("".join(f"{line}\n" for line in lines))
        if known is not None and known.why:
            narrate(known.why)
    else:
        forecast = None if known is None else known.as_json(span.begin, end)
        more = [] if known is None else ["", *expected_lines(known, call.zone, span.end, end)]
        call.answer(
            {**VIEW.as_json(history), "forecast": forecast}, [*VIEW.lines(history, display), *more]
        )


def _ahead(seconds: float | None, *, as_csv: bool) -> timedelta:

    if seconds is not None and as_csv:
        raise UsageError("--csv has no forecast.", next_step="--json has both.")
    if seconds is not None and not 0 < seconds <= _WEEK_SECONDS:
        raise UsageError("--forecast goes to 7d at most: after that the week repeats.")
    return timedelta(seconds=seconds or 0.0)


def recorded_connection(call: Call, root: Path, lake: str | None) -> str:
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


RECORDINGS = Parameter(
    "recordings",
    "The folder of recordings; default: in this user's state folder.",
    FOLDER_TYPE,
    metavar="FOLDER",
)
_PARAMETERS = (
    NAME,
    Parameter("since", "How far back.", DURATION, default="24h", metavar="T", dest="seconds"),
    Parameter("csv", "Every point as comma-separated values.", is_flag=True, dest="as_csv"),
    Parameter("plot", "Charts of depth, rates, age, gap, latencies.", is_flag=True),
    Parameter(
        "forecast",
        "Also the forecast of pushes and pops for the coming hours, up to a week.",
        DURATION,
        metavar="T",
        dest="ahead",
    ),
    Parameter(
        "lake",
        "The lake with rollups of deleted recordings; default: this user's lake, if any.",
        LOCATION,
        metavar="PATH",
    ),
    RECORDINGS,
)
COMMAND = Command("history", _run, __doc__, _PARAMETERS)
