"""The rollup job: choose the days, roll them up, and commit them: one commit for each connection.

A connection's day is always rolled up from all its segments, and replaces what the table has. A day
with no new segments is skipped unless it is named. So is one of which the recorder has deleted
segments since, or which are damaged now: the table has more of it.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

from console.features.history import rollup_files
from console.features.history.forecast_files import UTC_NAME
from console.features.history.rollup_files import DayMadeOf
from console.features.lake.delta import LEFTOVER_SECONDS
from console.features.lake.lake import Lake
from console.features.lake.progress import PhaseProgress, no_progress
from console.features.lake.rollup import segment_files
from console.features.lake.rollup.segment_files import ClosedSegment, Day, Names, SkippedFiles
from console.features.lake.spark import Tasks
from console.formats import duration, numbered, plain

if TYPE_CHECKING:
    from console.features.lake.rollup.table import RollupTable


@dataclass(frozen=True)
class Days:
    """Both inclusive."""

    first: date
    last: date

    def __contains__(self, day: date) -> bool:
        return self.first <= day <= self.last


@dataclass
class Due:
    """A day to roll up."""

    day: Day
    segments: dict[str, list[ClosedSegment]]
    """By kind, without damaged ones."""
    found: frozenset[tuple[str, str]]
    """(kind, name) of every segment, damaged or not."""
    known: frozenset[tuple[str, str]]
    """Those that the table's rows were made of."""
    files: list[dict[str, Any]] = field(default_factory=list)
    """Written, for the commit."""

    @property
    def used(self) -> set[tuple[str, str]]:
        return {
            (kind, name) for kind, of in self.segments.items() for one in of for name in one.names
        }


@dataclass
class DaySelection:
    due: list[Due] = field(default_factory=list)
    unchanged: list[Day] = field(default_factory=list)
    kept: list[Day] = field(default_factory=list)
    """The lake has more of them than the recordings."""
    skipped: SkippedFiles = field(default_factory=SkippedFiles)


@dataclass
class RollupResult:
    lake: str
    selection: DaySelection
    rows: dict[str, int] = field(default_factory=dict)
    """Read, by kind."""
    tables: dict[str, dict[str, int]] = field(default_factory=dict)
    """Rows written, by width and kind."""
    forecasts: dict[str, dict[str, int]] = field(default_factory=dict)
    """By connection: queues with a new forecast, and those with too few days."""
    seconds: float = 0.0

    def as_json(self) -> dict[str, object]:
        """The stable object of `pipeline rollup --json`."""
        return {
            "lake": self.lake,
            "days": _by_connection(due.day for due in self.selection.due),
            "unchanged": _by_connection(self.selection.unchanged),
            "kept": _by_connection(self.selection.kept),
            "segments": sum(len(s) for due in self.selection.due for s in due.segments.values()),
            "skipped": self.selection.skipped.as_json(),
            "rows": self.rows,
            "tables": self.tables,
            "percentiles": {
                "method": "log buckets, merged exactly",
                "relative_error": rollup_files.RELATIVE_ERROR,
                "gamma": rollup_files.GAMMA,
                "least_seconds": rollup_files.LEAST,
            },
            "seconds": round(self.seconds, 3),
            "forecasts": self.forecasts,
        }

    def lines(self) -> list[str]:
        lines = [
            f"{plain(connection)}: {numbered(len(done), 'day')} done, {done[0]} to {done[-1]}"
            for connection, done in _by_connection(due.day for due in self.selection.due).items()
        ] or ["Nothing new."]
        for width, kinds in self.tables.items():
            rows = ", ".join(f"{number:,} {kind}" for kind, number in kinds.items())
            lines.append(f"  {width}: {rows}")
        for connection, queues in self.forecasts.items():
            short = queues["too_short"]
            less = f", {numbered(short, 'queue')} recorded for less than 3 weeks" if short else ""
            known = numbered(queues["known"], "queue")
            lines.append(f"  forecast of {plain(connection)}: {known}{less}")
        skipped = self.selection.skipped
        more = (
            (len(self.selection.unchanged), "days with nothing new"),
            (
                len(self.selection.kept),
                "days left unchanged: segments of them are deleted or damaged",
            ),
            (len(skipped.damaged), "damaged files skipped"),
            (len(skipped.newer), "files of a newer console skipped"),
        )
        lines += [f"  {number:,} {words}" for number, words in more if number]
        if self.rows:
            read = ", ".join(f"{number:,} {kind}" for kind, number in self.rows.items())
            lines.append(f"  read {read} in {duration(self.seconds)}")
        return lines


def _by_connection(days: Iterable[Day]) -> dict[str, list[str]]:
    by_connection: dict[str, list[str]] = {}
    for connection, day in sorted(days):
        by_connection.setdefault(connection, []).append(day.isoformat())
    return by_connection


def rollup(
    started: Callable[[], AbstractContextManager[Tasks]],
    lake: Lake,
    folders: Sequence[str],
    days: Days | None = None,
    on_progress: PhaseProgress = no_progress,
    zone_of: Callable[[str], str] = lambda _: UTC_NAME,
) -> RollupResult:
    """Bring the lake's tables up to date, then the forecasts of connections with new data.

    `started` is only entered where there is work. `zone_of`: from a connection's name to the time
    zone of its hours of the week. RefusedError where another rollup has changed the same connection
    meanwhile.
    """
    from console.features.lake.rollup import forecast, table  # noqa: PLC0415  # verbs start at once

    began = time.monotonic()
    names = segment_files.names(folders)
    rollups = table.opened(lake)
    selection = choose({} if rollups is None else rollups.days(), names, days)
    result = RollupResult(lake.location, selection)
    zones = {connection: zone_of(connection) for connection, _ in names}
    new = {due.day[0] for due in selection.due}
    if rollups is not None:
        new |= forecast.out_of_date(rollups, zones)
    if new:
        rollups = rollups or table.RollupTable.create(lake)
        with started() as tasks:
            _roll_up(tasks, lake, result, on_progress)
            _commit(rollups, selection)
            new_zones = {one: zone for one, zone in zones.items() if one in new}
            result.forecasts = forecast.update(tasks, rollups, new_zones)
        for lake_table in filter(None, (rollups, table.ForecastTable.open(lake))):
            lake_table.vacuum(LEFTOVER_SECONDS)
    for file in chain.from_iterable(due.files for due in selection.due):
        of_width = result.tables.setdefault(file["partition"]["width"], {})
        kind = file["partition"]["kind"]
        if kind != rollup_files.SEGMENTS:
            of_width[kind] = of_width.get(kind, 0) + file["rows"]
    result.seconds = time.monotonic() - began
    return result


def _roll_up(tasks: Tasks, lake: Lake, result: RollupResult, on_progress: PhaseProgress) -> None:
    """A task per day and kind; what it reports about segments and files goes into `Due`. A day of
    which the table has more is kept."""
    from console.features.lake.rollup.day import item, roll_up  # noqa: PLC0415  # verbs start at once

    selection = result.selection
    work = [
        (due, kind, segments)
        for due in selection.due
        for kind, segments in due.segments.items()
        if segments
    ]
    # The longest first: at the end it would run alone.
    work.sort(key=lambda one: -sum(segment.rows for segment in one[2]))
    items = [item(lake, *due.day, kind, segments) for due, kind, segments in work]
    done = tasks.run(roll_up, items, partial(on_progress, "tables"))
    for (due, kind, segments), report in zip(work, done, strict=True):
        bad = set(report["damaged"])
        selection.skipped.damaged |= bad
        due.segments[kind] = [
            closed_segment for closed_segment in segments if closed_segment.file.path not in bad
        ]
        result.rows[kind] = result.rows.get(kind, 0) + report["rows"]
        due.files += report["files"]
    selection.kept += [due.day for due in selection.due if not due.known <= due.used]
    selection.due = [due for due in selection.due if due.known <= due.used]


def _commit(rollups: "RollupTable", selection: DaySelection) -> None:
    for connection, of in groupby(selection.due, lambda due: due.day[0]):
        some = list(of)
        for due in some:
            due.files.append(_segments_file(rollups.lake, due))
        dates = [due.day[1].isoformat() for due in some]
        rollups.replace(
            f"dbq-console/rollup/{connection}",
            [("connection", "=", connection), ("date", "in", dates)],
            list(chain.from_iterable(due.files for due in some)),
        )


def _segments_file(lake: Lake, due: Due) -> dict[str, Any]:
    """Says what the day was made of."""
    import pyarrow as pa  # noqa: PLC0415  # verbs start at once

    from console.features.lake.rollup.table import file_of  # noqa: PLC0415

    connection, day = due.day
    kinds, names = zip(*sorted(due.found), strict=True)
    damaged = [one not in due.used for one in sorted(due.found)]
    columns = {"segment_kind": kinds, "segment": names, "damaged": damaged}
    with file_of(lake, connection, day.isoformat(), rollup_files.SEGMENTS, "day") as file:
        file.put(pa.table(columns))
    return file.entry()


def choose(
    known: Mapping[tuple[str, str], DayMadeOf], names: dict[Day, Names], days: Days | None = None
) -> DaySelection:
    """The named days, or those with new segments. `known`: what the table has, by connection and
    day."""
    selection = DaySelection()
    nothing = DayMadeOf(frozenset(), frozenset())
    for day, by_kind in sorted(names.items()):
        if days is not None and day[1] not in days:
            continue
        made = known.get((day[0], day[1].isoformat()), nothing)
        found = frozenset((kind, name) for kind, of in by_kind.items() for name in of)
        if days is None and found <= made.used | made.damaged:
            selection.unchanged.append(day)
            continue
        segments = {
            kind: segment_files.readable_segments(files, selection.skipped)
            for kind, files in by_kind.items()
        }
        due = Due(day, segments, found, made.used)
        if not made.used <= due.used:
            selection.kept.append(day)
        elif due.used:
            selection.due.append(due)
    return selection
