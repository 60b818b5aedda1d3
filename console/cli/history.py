"""Verbs on what was recorded: record, history, audit."""

import csv
import io
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from console import audit as auditing
from console.cli.context import (
    Call,
    Rights,
    aligned,
    as_command,
    complete_queues,
    queue_name,
    verb_options,
)
from console.cli.history_plot import expected_lines, plot_of
from console.cli.several import profiles_of, several_options
from console.cli.streams import asked_to_end, narrate, put
from console.config import Profile
from console.errors import UsageError
from console.formats import (
    NOT_APPLICABLE,
    bare_moment,
    count,
    duration,
    moment,
    plain,
    rate,
)
from console.monitor import owners
from console.monitor.recording.forecast import read as read_forecast
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
from console.rollup_files import existing_default_lake
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


_LOG = logging.getLogger(__name__)
_STOP_SECONDS = 15.0
_ROWS = 40
"""So many points has a table on a terminal."""
_PLOTTED = 100
_MIB = 2**20
_WEEK_SECONDS = 7 * 86_400.0

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
    profiles = profiles_of(call, group, fleet)
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
        on_reading=state.told,
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
    "--forecast",
    "ahead",
    type=DURATION,
    metavar="T",
    help="Also what to expect of the coming hours, of a week at most: pushes and pops.",
)
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
    ahead: float | None,
    lake: str | None,
    recordings: Path | None,
) -> None:
    """A queue over time, from what was recorded: no database is asked.

    A point is as long as it must be for the width: counts, age, gap and latencies are the highest
    that was seen in it, rates the mean. Where nothing was seen there is no point. What lies long
    back comes from the minutes, hours or days of `pipeline rollup`.

    What is expected of an hour is what its hour of the week had in the last weeks: the median, and
    the band in which 90 % of such hours are. It takes 3 weeks of recordings, rolled up.

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
    most = {"most_points": _ROWS} if not (as_csv or plot or call.json) else {}
    if plot:
        most = {"most_points": _PLOTTED}
    span = since(datetime.now(UTC), seconds)
    end = span.end + _ahead(ahead, as_csv=as_csv)
    found = history(root, connection, name, span, schema=call.schema, lake=lake, **most)
    known = None if ahead is None else read_forecast(lake, connection, found.schema, name)
    if found.skipped:
        narrate(found.skipped)
    if as_csv:
        put(_csv(found.points))
    elif plot:
        lines = [plot_of(found, call.zone, known, end), *map(plain, _marks(call, found))]
        put("".join(f"{line}\n" for line in lines))
        if known is not None and known.why:
            narrate(known.why)
    else:
        told = None if known is None else known.as_json(span.begin, end)
        more = [] if known is None else ["", *expected_lines(known, call.zone, span.end, end)]
        call.answer({**found.as_json(), "forecast": told}, [*_table(call, found), *more])


def _ahead(seconds: float | None, *, as_csv: bool) -> timedelta:
    """How far a forecast goes. UsageError."""
    if seconds is not None and as_csv:
        raise UsageError("--csv has no forecast.", next_step="--json has both.")
    if seconds is not None and not 0 < seconds <= _WEEK_SECONDS:
        raise UsageError("--forecast goes to 7d at most: then the week begins anew.")
    return timedelta(seconds=seconds or 0.0)


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
    lines = aligned(rows)
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
