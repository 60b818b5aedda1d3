"""Verbs on what was recorded: record, history."""

import csv
import io
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from console.cli.context import DURATION, Call, group_option, verb_options
from console.cli.interrupts import asked_to_end
from console.cli.plots import plot_of
from console.cli.streams import narrate, put
from console.config import Profile
from console.errors import UsageError
from console.formats import NOT_APPLICABLE, bare_moment, count, duration, moment, plain, rate
from console.monitor import Reading
from console.monitor.recording.history import History, Point, history, since
from console.monitor.recording.recorder import (
    KEEP_SECONDS,
    MOST_BYTES,
    Bounds,
    Recorder,
    folder,
)
from console.monitor.recording.rollups import connections as rolled_up
from console.monitor.recording.segments import connections
from console.pipeline.lake import default_place

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
    help="Where they are kept. Else: the state folder of this user.",
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
    help="Of one connection, in MiB; the oldest goes first.",
)
@group_option
@verb_options
def record(
    call: Call, recordings: Path | None, keep: float, most_mib: int, group: str | None
) -> None:
    """Record what the console sees, without a screen, until Ctrl-C or SIGTERM.

    The connection that is named, those of --group, else all that are configured. Samples at the
    connection's interval; waits, findings and actions in longer steps. Never payloads. A connection
    has one recorder: a console that is opened meanwhile leaves the recording to this one.

    \b
    Examples:
      dbq-console record
      dbq-console record --profile orders --keep 14d --most-mib 500
      dbq-console record --group production
    """
    profiles = call.several(group, call.said)
    bounds = Bounds(keep_seconds=keep, most_bytes=most_mib * _MIB)
    with ExitStack() as all_of_them, asked_to_end() as ended:
        told = [
            all_of_them.enter_context(_recording(profile, recordings or folder(), bounds))
            for profile in profiles
        ]
        narrate(f"Recording {', '.join(told)} to {recordings or folder()}.")
        ended.wait()
        narrate("Ending.")


@contextmanager
def _recording(profile: Profile, root: Path, bounds: Bounds) -> Iterator[str]:
    """A connection while it is recorded; its name."""
    from console.doctor.recording import Recording  # noqa: PLC0415  # verbs shall start at once

    database = profile.open()
    recorder = Recorder(root, database.label, bounds)
    state = _Told(recorder)
    recording = Recording(
        database,
        recorder,
        interval_seconds=profile.interval_seconds,
        stuck_after_seconds=profile.stuck_after_seconds,
        thresholds_of=profile.thresholds,
        masks=profile.masks,
        told=state.told,
    )
    recording.start()
    try:
        yield database.label
    finally:
        recording.stop(_STOP_SECONDS)
        recorder.close()
        database.close()


class _Told:
    """Narrates when a connection is lost or back, and when nothing can be written."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._said = ""

    def told(self, reading: Reading) -> None:
        error = reading.error
        words = self._recorder.problem or ("" if error is None else str(error).replace("\n", " "))
        if words != self._said:
            self._said = words
            state = "not recorded as it should be" if words else "recorded again"
            _LOG.warning("%s: %s", self._recorder.connection, state)
            narrate(f"{self._recorder.connection}: {words or 'recording again'}")


@click.command(name="history")
@click.argument("name")
@click.option(
    "--since",
    "seconds",
    type=DURATION,
    default=86_400.0,
    metavar="T",
    help="How far back.  [default: 24h]",
)
@click.option("--csv", "as_csv", is_flag=True, help="Every point as comma-separated values.")
@click.option("--plot", is_flag=True, help="Charts of depth, rates, age and gap.")
@click.option(
    "--lake",
    metavar="PATH",
    help="Whose rollups know what the recordings let go of. Else: this user's, if there is one.",
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

    A point is as long as it must be for the width: counts, age and gap are the highest that was
    seen in it, rates the mean. Where nothing was seen there is no point. What lies long back comes
    from the minutes, hours or days of `pipeline rollup`.

    \b
    Examples:
      dbq-console history orders --since 24h --plot
      dbq-console history orders --since 7d --csv > orders.csv
    """
    if sum((as_csv, plot, call.json)) > 1:
        raise UsageError("--json, --csv and --plot exclude each other.")
    root = recordings or folder()
    lake = lake or _own_lake()
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


def _own_lake() -> str | None:
    """Where the pipeline puts what it is not told a lake for; None where it never has."""
    place = default_place()
    return str(place) if Path(place).is_dir() else None


def _connection(call: Call, root: Path, lake: str | None) -> str:
    """The connection that is meant: named, or the only one there is a record of."""
    if call.profile is not None:
        return call.profile.label
    known: list[str] = sorted({*connections(root), *(rolled_up(lake) if lake else ())})
    if len(known) == 1:
        return known[0]
    raise UsageError(
        "Which connection is meant?" if known else "Nothing is recorded yet.",
        why=f"There are records of: {', '.join(known)}." if known else f"Looked in {root}.",
        next_step="Name one with --profile or --url."
        if known
        else "The console records while it is open; dbq-console record does so always.",
    )


_COLUMNS = ("ready", "age_seconds", "push_per_second", "pop_per_second", "gap", "claimed", "errors")
_HEADS = ("ready", "age", "push/s", "pop/s", "gap", "claimed", "errors")


def _table(call: Call, found: History) -> list[str]:
    rows: list[tuple[str, ...]] = [("since", *_HEADS)]
    for point in found.points:
        cells = (_cell(name, getattr(point, name)) for name in _COLUMNS)
        rows.append((bare_moment(point.at, call.zone), *cells))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    step = duration(found.step_seconds)
    lines.append(f"each line: {step}; the highest count, age and gap, the mean rate")
    return [*lines, *(plain(line) for line in _marks(call, found))]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return NOT_APPLICABLE
    if name.endswith("_per_second"):
        return rate(value)
    return duration(value) if name == "age_seconds" else count(value)


def _marks(call: Call, found: History) -> Iterator[str]:
    for mark in found.marks:
        until = "" if mark.until is None else f" to {moment(mark.until, call.zone)}"
        yield f"{mark.kind} {mark.name}: {moment(mark.at, call.zone)}{until}: {mark.words}"


def _csv(points: Sequence[Point]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(Point)]
    writer.writerow(names)
    for point in points:
        row = [getattr(point, name) for name in names]
        writer.writerow([point.at.isoformat(), *("" if v is None else v for v in row[1:])])
    return text.getvalue()


COMMANDS = (record, show_history)
