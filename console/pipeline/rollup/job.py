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
from typing import TYPE_CHECKING, Any

from console import rollup_files
from console.errors import RefusedError
from console.pipeline import PhaseProgress, no_progress
from console.pipeline.lake import DamagedError, Lake
from console.pipeline.rollup import segment_files
from console.pipeline.rollup import segment_files as finding
from console.pipeline.rollup.segment_files import ClosedSegment, Day, Names, SkippedFiles
from console.pipeline.session import polled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS_A_TASK = 250_000


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

    def manifest(self) -> dict[str, object]:
        """Of what it was made."""
        used = {(kind, one.name) for kind, of in self.segments.items() for one in of}
        return {"segments": _by_kind(used), "damaged": _by_kind(self.here - used)}


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
        }


def _by_connection(days: Iterable[Day]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for connection, day in sorted(days):
        found.setdefault(connection, []).append(day.isoformat())
    return found


def rollup(
    started: "Callable[[], AbstractContextManager[SparkSession]]",
    lake: Lake,
    folders: Sequence[str],
    days: Days | None = None,
    told: PhaseProgress = no_progress,
) -> RollupResult:
    """Bring the lake's tables up to date. Spark is `started` only where anything is to be done.

    RefusedError where another rollup is at work in the same folder: both would write the same days.
    """
    with lake.alone("rollup"):
        return _rollup(started, lake, folders, days, told)


def _rollup(
    started: "Callable[[], AbstractContextManager[SparkSession]]",
    lake: Lake,
    folders: Sequence[str],
    days: Days | None,
    told: PhaseProgress,
) -> RollupResult:
    began = time.monotonic()
    made = choose(lake, finding.names(folders), days)
    result = RollupResult(lake.place, made)
    if made.due:
        with started() as spark:
            for connection in sorted({due.day[0] for due in made.due}):
                due = [one for one in made.due if one.day[0] == connection]
                with _remembered(lake, due):
                    for kind in rollup_files.KINDS:
                        _Connection(spark, lake, connection, result, told).write(kind, due)
    result.seconds = time.monotonic() - began
    return result


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
            made.due.append(Due(day, segments, here))
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

    Until then what they were made of is still what their manifests say.
    """
    for one in due:
        before = _manifest(lake, one.day).get("segments", {})
        lake.write_json(rollup_files.manifest(*one.day), {"state": "doing", "segments": before})
    yield
    at = datetime.now(UTC).isoformat()
    for one in due:
        lake.write_json(
            rollup_files.manifest(*one.day), {"state": "done", "at": at} | one.manifest()
        )


@dataclass
class _Connection:
    _spark: "SparkSession"
    _lake: Lake
    _connection: str
    _result: RollupResult
    _told: PhaseProgress
    _said: int = 0

    def write(self, kind: str, due: Sequence[Due]) -> None:
        """Minutes of a kind from its segments, hours from these, days from the hours."""
        from console.pipeline.rollup import tables  # noqa: PLC0415  # it imports Spark

        segments = [s for one in due for s in one.segments.get(kind, [])]
        if not segments:
            return
        damaged = _Damaged(self._spark)
        seen = read(self._spark, kind, segments, damaged)
        table = tables.minutes(kind, seen).persist()
        try:
            for width in rollup_files.WIDTHS:
                if width != "minute":
                    table = tables.wider(kind, table, width)
                with polled(lambda: self._tell(kind, damaged, len(segments))):
                    rows = self._put(table, width, kind)
                self._result.tables.setdefault(width, {})[kind] = (
                    self._result.tables.get(width, {}).get(kind, 0) + rows
                )
        finally:
            self._spark.catalog.clearCache()
        bad = damaged.paths
        self._result.choice.skipped.damaged |= bad
        for one in due:
            if kind in one.segments:
                one.segments[kind] = [s for s in one.segments[kind] if s.place.path not in bad]
        good = sum(s.rows for s in segments if s.place.path not in bad)
        self._result.rows[kind] = self._result.rows.get(kind, 0) + good

    def _tell(self, kind: str, damaged: "_Damaged", of: int) -> None:
        done, rows, size = damaged.progress
        if done != self._said:
            self._said = done
            phase = f"{self._connection} {kind}"
            self._told(phase, done=min(done, of), of=of, rows=rows, size=size)

    def _put(self, table: "DataFrame", width: str, kind: str) -> int:
        from pyspark.sql import Observation  # noqa: PLC0415
        from pyspark.sql import functions as F  # noqa: N812, PLC0415

        counted = Observation()
        dated = table.withColumn("date", F.to_date("begin"))
        ordered = dated.repartition("date").sortWithinPartitions("date", *table.columns[:3])
        (
            ordered.observe(counted, F.count(F.lit(1)).alias("rows"))
            .write.mode("overwrite")
            .option("partitionOverwriteMode", "dynamic")
            .partitionBy("date")
            .parquet(self._place(rollup_files.folder(width, kind, self._connection)))
        )
        return int(counted.get["rows"])

    def _place(self, path: str) -> str:
        # A local path has to say so: on a cluster Spark would look for it elsewhere.
        place = self._lake.place
        root = place if "://" in place else f"file://{place}"
        return f"{root.rstrip('/')}/{path}"


class _Damaged:
    """What the tasks report, whatever is run twice: damaged files, and how far they are."""

    def __init__(self, spark: "SparkSession") -> None:
        from pyspark import accumulators  # noqa: PLC0415  # the extra's

        class Names(accumulators.AccumulatorParam[frozenset[str]]):
            def zero(self, value: frozenset[str]) -> frozenset[str]:  # noqa: ARG002
                return frozenset()

            def addInPlace(  # noqa: N802  # Spark's name
                self, value1: frozenset[str], value2: frozenset[str]
            ) -> frozenset[str]:
                return value1 | value2

        context = spark.sparkContext
        self.names = context.accumulator(frozenset[str](), Names())
        self.counts = tuple(context.accumulator(0) for _ in range(3))

    @property
    def paths(self) -> frozenset[str]:
        return self.names.value

    @property
    def progress(self) -> tuple[int, int, int]:
        done, rows, size = (int(one.value) for one in self.counts)
        return done, rows, size


def read(
    spark: "SparkSession", kind: str, segments: Sequence[ClosedSegment], damaged: "_Damaged"
) -> "DataFrame":
    """The rows of segments, read in the tasks."""
    parts = _parts(segments)
    names, (done, rows, size) = damaged.names, damaged.counts

    def each(numbers: Iterator[Any]) -> Iterator[Any]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for one in parts[number]:
                    found = segment_files.batches(
                        kind, [one], lambda path: names.add(frozenset([path]))
                    )
                    yield from found
                    done.add(1)
                    rows.add(one.rows)
                    size.add(one.size)

    return spark.range(0, len(parts), 1, numPartitions=len(parts)).mapInArrow(
        each, segment_files.ddl(kind)
    )


def _parts(segments: Sequence[ClosedSegment]) -> list[list[ClosedSegment]]:
    """Segments in parts of about as many rows, a task each."""
    parts: list[list[ClosedSegment]] = [[]]
    rows = 0
    for one in segments:
        if rows >= _ROWS_A_TASK:
            parts.append([])
            rows = 0
        parts[-1].append(one)
        rows += one.rows
    return parts
