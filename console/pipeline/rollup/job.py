"""The job: which days are to be done, their tables, and what is remembered of them.

A day of a connection is done as a whole from all its segments, and replaces what the lake has of
it. A day whose segments are all in the lake already is skipped, unless it is named. So is one
some of whose segments the recorder has let go of since: what is in the lake then knows more.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from itertools import chain, product
from typing import Any

from console import rollup_files
from console.errors import RefusedError
from console.forecast_files import UTC_NAME
from console.pipeline import PhaseProgress, no_progress
from console.pipeline.lake import DamagedError, Lake
from console.pipeline.rollup import segment_files as finding
from console.pipeline.rollup.segment_files import ClosedSegment, Day, Names, SkippedFiles
from console.pipeline.spark import Tasks


@dataclass(frozen=True)
class Days:
    """From a day to a day, both with it."""

    first: date
    last: date

    def __contains__(self, day: date) -> bool:
        return self.first <= day <= self.last


@dataclass(frozen=True)
class Due:
    """A day of a connection that is to be done."""

    day: Day
    segments: dict[str, list[ClosedSegment]]
    """By kind; what proves damaged is taken out."""
    here: frozenset[tuple[str, str]]
    """Every kind and name that was there."""
    files: dict[str, list[str]] | None = None
    """By kind, those of its tables; of a kind without a row those that there were. None: a rename
    puts them in place of the ones before, and no manifest has to name them."""

    def manifest(self) -> dict[str, object]:
        """Of what it was made, and where it is."""
        used = {(kind, one.name) for kind, of in self.segments.items() for one in of}
        files = {} if self.files is None else {"files": self.files}
        return {"segments": _by_kind(used), "damaged": _by_kind(self.here - used), **files}


@dataclass
class DaySelection:
    """What is to be done and what is not."""

    due: list[Due] = field(default_factory=list)
    unchanged: list[Day] = field(default_factory=list)
    kept: list[Day] = field(default_factory=list)
    """There is more of them in the lake than in the recordings."""
    skipped: SkippedFiles = field(default_factory=SkippedFiles)


@dataclass
class RollupResult:
    lake: str
    choice: DaySelection
    rows: dict[str, int] = field(default_factory=dict)
    """By kind, read."""
    tables: dict[str, dict[str, int]] = field(default_factory=dict)
    """By width and kind: rows written."""
    forecasts: dict[str, dict[str, int]] = field(default_factory=dict)
    """By connection, of those made anew: queues that have one, and those of too few days."""
    seconds: float = 0.0

    def as_json(self) -> dict[str, object]:
        """The stable object of `pipeline rollup --json`."""
        return {
            "lake": self.lake,
            "days": _by_connection(due.day for due in self.choice.due),
            "unchanged": _by_connection(self.choice.unchanged),
            "kept": _by_connection(self.choice.kept),
            "segments": sum(len(s) for due in self.choice.due for s in due.segments.values()),
            "skipped": self.choice.skipped.as_json(),
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
    """Bring the lake's tables up to date, then the forecasts of the connections that have anything
    new. Tasks are `started` only where anything is to be done.

    `zone_of`: by a connection's name that of the time zone in which its hours of the week are.
    RefusedError where another rollup is at work in the same folder: both would write the same days.
    """
    with lake.alone("rollup"):
        from console.pipeline.rollup import forecast  # noqa: PLC0415  # verbs start at once

        began = time.monotonic()
        names = finding.names(folders)
        made = choose(lake, names, days)
        result = RollupResult(lake.location, made)
        zones = {connection: zone_of(connection) for connection, _ in names}
        new = {due.day[0] for due in made.due} | forecast.out_of_date(lake, zones)
        if new:
            with started() as tasks:
                with _remembered(lake, made.due):
                    _roll_up(tasks, lake, result, on_progress)
                due = {one: zone for one, zone in zones.items() if one in new}
                result.forecasts = forecast.bring_up_to_date(tasks, lake, due)
        result.seconds = time.monotonic() - began
        return result


def _roll_up(tasks: Tasks, lake: Lake, result: RollupResult, on_progress: PhaseProgress) -> None:
    """A task a day and kind; what each says of its segments is what is remembered of them."""
    from console.pipeline.rollup.day import item, roll_up  # noqa: PLC0415  # verbs start at once

    def progress(*, done: int, of: int, rows: int, size: int) -> None:
        on_progress("tables", done=done, of=of, rows=rows, size=size)

    work = [
        (due, kind, segments)
        for due in result.choice.due
        for kind, segments in due.segments.items()
        if segments
    ]
    # The longest first: else one of them alone keeps the last core busy.
    work.sort(key=lambda one: -sum(segment.rows for segment in one[2]))
    items = [item(lake, *due.day, kind, segments) for due, kind, segments in work]
    done = tasks.run(roll_up, items, progress)
    for (due, kind, segments), said in zip(work, done, strict=True):
        bad = set(said["damaged"])
        result.choice.skipped.damaged |= bad
        due.segments[kind] = [one for one in segments if one.file.path not in bad]
        result.rows[kind] = result.rows.get(kind, 0) + said["rows"]
        if said["files"] and due.files is not None:
            due.files[kind] = sorted(said["files"])
        for width, rows in said["tables"].items():
            of_width = result.tables.setdefault(width, {})
            of_width[kind] = of_width.get(kind, 0) + rows


def choose(lake: Lake, names: dict[Day, Names], days: Days | None = None) -> DaySelection:
    """The days that are to be done: those named, or those with segments that are new."""
    made = DaySelection()
    for day, by_kind in sorted(names.items()):
        if days is not None and day[1] not in days:
            continue
        before = _manifest(lake, day)
        known = _names(before.get("segments"))
        here = frozenset(_names(by_kind))
        over = before.get("state") == "done"
        if days is None and over and here <= known | _names(before.get("damaged")):
            made.unchanged.append(day)
            continue
        segments = {kind: finding.sound(of, made.skipped) for kind, of in by_kind.items()}
        good = {(kind, one.name) for kind, of in segments.items() for one in of}
        if not known <= good:
            made.kept.append(day)
        elif good:
            files = None if lake.can_replace else before.get("files", {})
            made.due.append(Due(day, segments, here, files))
    return made


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
            next_step="It says what the day was made from. Move it away, and the day is done "
            "again.",
        ) from error


@contextmanager
def _remembered(lake: Lake, due: Sequence[Due]) -> Iterator[None]:
    """Days are under way while the body runs, and done after it: a crash leaves them to be redone.

    Until then what they were made of is still what their manifests say. Where there is no rename
    they are as they were until their manifests name other files.
    """
    for one in due if lake.can_replace else ():
        before = _manifest(lake, one.day).get("segments", {})
        lake.write_json(rollup_files.manifest(*one.day), {"state": "doing", "segments": before})
    yield
    at = datetime.now(UTC).isoformat()
    for one in due:
        lake.write_json(
            rollup_files.manifest(*one.day), {"state": "done", "at": at} | one.manifest()
        )
        if one.files is not None:
            named, (connection, day) = set(chain(*one.files.values())), one.day
            for width, kind in product(rollup_files.WIDTHS, rollup_files.KINDS):
                folder = rollup_files.folder(width, kind, connection)
                lake.remove_unlisted(f"{folder}/date={day}", named)
