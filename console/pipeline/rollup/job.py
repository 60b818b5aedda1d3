"""The rollup job: choose the days, roll them up, and record in manifests what they were made from.

A connection's day is always rolled up from all its segments, and replaces what the lake has. A day
with no new segments is skipped unless it is named. So is one of which the recorder has deleted
segments since: the lake has more of it.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import partial
from itertools import chain, product
from typing import Any

from console import rollup_files
from console.errors import RefusedError
from console.forecast_files import UTC_NAME
from console.formats import duration, numbered, plain
from console.pipeline import PhaseProgress, no_progress
from console.pipeline.lake import TRASH, DamagedError, Lake
from console.pipeline.rollup import segment_files
from console.pipeline.rollup.segment_files import ClosedSegment, Day, Names, SkippedFiles
from console.pipeline.spark import Tasks


@dataclass(frozen=True)
class Days:
    """Both inclusive."""

    first: date
    last: date

    def __contains__(self, day: date) -> bool:
        return self.first <= day <= self.last


@dataclass(frozen=True)
class Due:
    """A day to roll up."""

    day: Day
    segments: dict[str, list[ClosedSegment]]
    """By kind, without damaged ones."""
    found: frozenset[tuple[str, str]]
    """(kind, name) of every segment, damaged or not."""
    files: dict[str, list[str]] | None = None
    """By kind, the files of its tables; where it has no rows now, the earlier ones. None in a
    folder, where files replace earlier ones and manifests need not name them."""

    def manifest(self) -> dict[str, object]:
        used = {(kind, one.name) for kind, of in self.segments.items() for one in of}
        files = {} if self.files is None else {"files": self.files}
        return {"segments": _by_kind(used), "damaged": _by_kind(self.found - used), **files}


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
            (len(self.selection.kept), "days left unchanged: some of their segments are deleted"),
            (len(skipped.damaged), "damaged files skipped"),
            (len(skipped.newer), "files of a newer console skipped"),
        )
        lines += [f"  {number:,} {words}" for number, words in more if number]
        if self.rows:
            read = ", ".join(f"{number:,} {kind}" for kind, number in self.rows.items())
            lines.append(f"  read {read} in {duration(self.seconds)}")
        return lines


def _by_connection(days: Iterable[Day]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for connection, day in sorted(days):
        found.setdefault(connection, []).append(day.isoformat())
    return found


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
    zone of its hours of the week. RefusedError where another rollup is running in the same folder.
    """
    with lake.locked("rollup"):
        from console.pipeline.rollup import forecast  # noqa: PLC0415  # verbs start at once

        began = time.monotonic()
        names = segment_files.names(folders)
        selection = choose(lake, names, days)
        result = RollupResult(lake.location, selection)
        zones = {connection: zone_of(connection) for connection, _ in names}
        new = {due.day[0] for due in selection.due} | forecast.out_of_date(lake, zones)
        if new:
            with started() as tasks:
                with _recorded(lake, selection.due):
                    _roll_up(tasks, lake, result, on_progress)
                new_zones = {one: zone for one, zone in zones.items() if one in new}
                result.forecasts = forecast.update(tasks, lake, new_zones)
        result.seconds = time.monotonic() - began
        return result


def _roll_up(tasks: Tasks, lake: Lake, result: RollupResult, on_progress: PhaseProgress) -> None:
    """A task per day and kind; what it reports about segments and files goes into `Due`."""
    from console.pipeline.rollup.day import item, roll_up  # noqa: PLC0415  # verbs start at once

    work = [
        (due, kind, segments)
        for due in result.selection.due
        for kind, segments in due.segments.items()
        if segments
    ]
    # The longest first: at the end it would run alone.
    work.sort(key=lambda one: -sum(segment.rows for segment in one[2]))
    items = [item(lake, *due.day, kind, segments) for due, kind, segments in work]
    done = tasks.run(roll_up, items, partial(on_progress, "tables"))
    for (due, kind, segments), report in zip(work, done, strict=True):
        bad = set(report["damaged"])
        result.selection.skipped.damaged |= bad
        due.segments[kind] = [one for one in segments if one.file.path not in bad]
        result.rows[kind] = result.rows.get(kind, 0) + report["rows"]
        if report["files"] and due.files is not None:
            due.files[kind] = sorted(report["files"])
        for width, rows in report["tables"].items():
            of_width = result.tables.setdefault(width, {})
            of_width[kind] = of_width.get(kind, 0) + rows


def choose(lake: Lake, names: dict[Day, Names], days: Days | None = None) -> DaySelection:
    """The named days, or those with new segments."""
    selection = DaySelection()
    for day, by_kind in sorted(names.items()):
        if days is not None and day[1] not in days:
            continue
        before = _manifest(lake, day)
        known = _names(before.get("segments"))
        found = frozenset(_names(by_kind))
        done = before.get("state") == "done"
        if days is None and done and found <= known | _names(before.get("damaged")):
            selection.unchanged.append(day)
            continue
        segments = {
            kind: segment_files.readable_segments(files, selection.skipped)
            for kind, files in by_kind.items()
        }
        readable = {(kind, one.name) for kind, some in segments.items() for one in some}
        if not known <= readable:
            selection.kept.append(day)
        elif readable:
            files = None if lake.can_replace else before.get("files", {})
            selection.due.append(Due(day, segments, found, files))
    return selection


def _names(by_kind: Mapping[str, Iterable[str]] | None) -> set[tuple[str, str]]:
    return {(kind, name) for kind, of in (by_kind or {}).items() for name in of}


def _by_kind(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for kind, name in sorted(names):
        found.setdefault(kind, []).append(name)
    return found


def _manifest(lake: Lake, day: Day) -> dict[str, Any]:
    try:
        return lake.read_json(rollup_files.manifest(*day))
    except FileNotFoundError:
        return {}
    except DamagedError as error:
        raise RefusedError(
            error.what,
            why=error.why,
            next_step="It says from which recordings the day was made: put it back from a backup "
            "of the lake. Or move it away: then the day is rolled up from the recordings that are "
            f"left, and what the lake has of it is moved to its folder {TRASH}.",
        ) from error


@contextmanager
def _recorded(lake: Lake, due: Sequence[Due]) -> Iterator[None]:
    """In their manifests, days are in progress while the body runs, and done after it: after a
    crash they are rolled up again.

    In an object store a day stays as it was until its manifest names other files.
    """
    for one in due:
        before = _manifest(lake, one.day)
        if not before:
            _discard_unknown(lake, one.day)
        if lake.can_replace:
            doing = {"state": "doing", "segments": before.get("segments", {})}
            lake.write_json(rollup_files.manifest(*one.day), doing)
    yield
    at = datetime.now(UTC).isoformat()
    for one in due:
        lake.write_json(
            rollup_files.manifest(*one.day), {"state": "done", "at": at} | one.manifest()
        )
        if one.files is not None:
            listed = set(chain(*one.files.values()))
            for folder in _folders(one.day):
                lake.remove_unlisted(folder, listed)


def _folders(day: Day) -> Iterator[str]:
    """Of its tables."""
    for width, kind in product(rollup_files.WIDTHS, rollup_files.KINDS):
        yield f"{rollup_files.folder(width, kind, day[0])}/date={day[1]}"


def _discard_unknown(lake: Lake, day: Day) -> None:
    """The tables of a day whose manifest was lost: recordings that they were made from may have
    been deleted since."""
    for folder in _folders(day):
        for path in lake.data_files(folder):
            lake.discard(path)
