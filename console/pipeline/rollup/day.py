"""The task for one day of a connection and a kind: from its segments to its three tables.

Segments are read in order of time, never all at once: in memory are the rows of some minutes, the
minutes of an hour and the hours of the day.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from console import rollup_files
from console.pipeline.lake import Lake
from console.pipeline.rollup import segment_files, tables
from console.pipeline.rollup.segment_files import ClosedSegment, SegmentFile
from console.pipeline.rollup.tables import Numbers, numbers, pc
from console.pipeline.spark import Item
from console.rollup_files import LONGEST_SAMPLE_SECONDS

pq: Any = pyarrow.parquet

_ROWS = 100_000
"""Rolled up at a time; more if one minute has more."""
_GROUP_BYTES = 32 * 2**20
_FILE = "rollup.parquet"


def item(lake: Lake, connection: str, day: date, kind: str, of: Sequence[ClosedSegment]) -> Item:
    """All that the task needs, as JSON."""
    segments = [
        {
            **vars(one),
            "file": vars(one.file),
            "first": one.first.isoformat(),
            "last": one.last.isoformat(),
        }
        for one in of
    ]
    return {
        "lake": lake.location,
        "connection": connection,
        "day": day.isoformat(),
        "kind": kind,
        "segments": segments,
    }


def roll_up(item: Item) -> dict[str, Any]:
    """The task: write the day's tables; returns what was read and written."""
    segments = [
        ClosedSegment(
            **{
                **one,
                "file": SegmentFile(**one["file"]),
                "first": datetime.fromisoformat(one["first"]),
                "last": datetime.fromisoformat(one["last"]),
            }
        )
        for one in item["segments"]
    ]
    damaged: set[str] = set()
    day = _Day(item, segments, damaged)
    written = day.write()
    good = [one for one in segments if one.file.path not in damaged]
    return {
        "rows": sum(one.rows for one in good),
        "bytes": sum(one.size for one in good),
        "connection": item["connection"],
        "kind": item["kind"],
        "tables": written,
        "files": day.paths,
        "damaged": sorted(damaged),
    }


class _Day:
    def __init__(self, item: Item, segments: Sequence[ClosedSegment], damaged: set[str]) -> None:
        self._item = item
        self._kind = item["kind"]
        self._segments = segments
        self._damaged = damaged
        self.paths: list[str] = []
        """Of the files written."""

    def write(self) -> dict[str, int]:
        """The number of rows of each table. Without any rows, existing tables stay."""
        hours: list[pa.Table] = []
        with ExitStack() as files:
            minutes = _Table(self._item, "minute", files, self.paths)
            hours += (tables.wider(self._kind, one, "hour") for one in self._by_hour(minutes))
            if not hours:
                return {}
            hour_table = pa.concat_tables(hours)
            by_width = {"hour": hour_table, "day": tables.wider(self._kind, hour_table, "day")}
            for width, table in by_width.items():
                _Table(self._item, width, files, self.paths).put(table)
        return {"minute": minutes.rows, **{w: t.num_rows for w, t in by_width.items()}}

    def _by_hour(self, minutes: "_Table") -> Iterator[pa.Table]:
        """Writes the minutes; yields those of complete hours, one or more at a time."""
        pending: list[pa.Table] = []
        durations = _SampleDurations(self._segments)
        for rows, upto in self._parts():
            if not rows.num_rows:
                continue
            times = durations.microseconds(rows) if self._kind == "samples" else None
            table = tables.minutes(self._kind, rows, times)
            minutes.put(table)
            pending.append(table)
            joined = pa.concat_tables(pending)
            complete = numbers(joined.column("begin")) < upto - upto % 3_600_000_000
            pending = [joined.filter(pa.array(~complete))]
            if complete.any():
                yield joined.filter(pa.array(complete))
        if pending and pending[0].num_rows:
            yield pending[0]

    def _parts(self) -> Iterator[tuple[pa.Table, int]]:
        """The day's rows, in complete minutes; and the time before which no more will come."""
        day = datetime.fromisoformat(self._item["day"]).replace(tzinfo=UTC)
        begin = int(day.timestamp()) * 1_000_000
        end = begin + 86_400_000_000
        # A segment has no rows before it begins, nor have those after it.
        first = [_minute(one.first) for one in self._segments]
        pending = segment_files.schema(self._kind).empty_table()
        for one, upto in zip(self._segments, [*first[1:], end], strict=True):
            batches = segment_files.batches(self._kind, [one], self._damaged.add)
            rows = pa.Table.from_batches(batches, pending.schema)
            rows = rows.filter(_counted(self._kind, rows, begin, end))
            pending = pa.concat_tables([pending, rows])
            if upto == end or pending.num_rows >= _ROWS:
                complete = pa.array(numbers(pending.column("at")) < upto)
                yield pending.filter(complete), upto
                pending = pending.filter(pc.invert(complete))


def _minute(moment: datetime) -> int:
    """The beginning of its minute, in microseconds."""
    return int(moment.timestamp()) // 60 * 60_000_000


def _counted(kind: str, rows: pa.Table, begin: int, end: int) -> Any:
    """Which rows are of the day; samples also need a queue."""
    at = rows.column("at").cast(pa.int64())
    of_day = pc.and_(pc.greater_equal(at, begin), pc.less(at, end))
    return pc.and_(of_day, pc.is_valid(rows.column("queue"))) if kind == "samples" else of_day


class _Table:
    """Writes the table of one width as one file, which replaces all that were there; without
    renames it is written beside them, and the day's manifest names it."""

    def __init__(self, item: Item, width: str, files: ExitStack, paths: list[str]) -> None:
        self._lake = Lake(item["lake"])
        folder = rollup_files.folder(width, item["kind"], item["connection"])
        self._folder = f"{folder}/date={item['day']}"
        self._files = files
        self._paths = paths
        self._writer: Any = None
        self._pending: list[pa.Table] = []
        self.rows = 0

    def put(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._writer = self._open(rows.schema)
        self.rows += rows.num_rows
        self._pending.append(rows)
        if sum(one.nbytes for one in self._pending) >= _GROUP_BYTES:
            self._flush()

    def _open(self, schema: pa.Schema) -> Any:
        path = self._lake.new_path(f"{self._folder}/{_FILE}")
        others = self._lake.files(self._folder) if self._lake.can_replace else []
        self._paths.append(path)
        file = self._files.enter_context(self._lake.writing(path))
        for one in set(others) - {path}:
            self._files.callback(self._lake.remove, one)
        writer = self._files.enter_context(pq.ParquetWriter(file, schema, compression="zstd"))
        self._files.callback(self._flush)
        return writer

    def _flush(self) -> None:
        if self._pending:
            self._writer.write_table(pa.concat_tables(self._pending))
            self._pending.clear()


class _SampleDurations:
    """For how long each sample's rates hold: since its source's previous sample of the queue.

    The first of a day counts until the next one, or for a second where there is none.
    """

    def __init__(self, segments: Sequence[ClosedSegment]) -> None:
        self._segments = segments
        self._last: dict[tuple[int, str, str], int] = {}

    def microseconds(self, samples: pa.Table) -> Numbers:
        """Of the day's next samples."""
        rank, names = tables.ranks(samples, tables.QUEUE)
        source, at = numbers(samples.column("source")), numbers(samples.column("at"))
        order = np.lexsort((at, rank, source))
        rank, source, at = rank[order], source[order], at[order]
        starts = np.flatnonzero(np.append(True, (np.diff(rank) != 0) | (np.diff(source) != 0)))
        since = np.diff(at, prepend=at[0])
        queues = names.to_pylist()
        for start, end in zip(starts, [*starts[1:], len(at)], strict=True):
            key = (int(source[start]), *queues[rank[start]].values())
            before = self._last.get(key)
            if before is None:
                after = at[start + 1] if end - start > 1 else self._next(key, at[start])
                since[start] = 1_000_000 if after is None else after - at[start]
            else:
                since[start] = at[start] - before
            self._last[key] = at[end - 1]
        durations = np.empty_like(since)
        durations[order] = np.minimum(since, LONGEST_SAMPLE_SECONDS * 1_000_000)
        return durations

    def _next(self, key: tuple[int, str, str], after: int) -> int | None:
        """The time of the next sample: it is in a segment that has not been read yet."""
        source, schema, queue = key
        for segment in self._segments:
            if segment.source == source and segment.last.timestamp() * 1_000_000 > after:
                for batch in segment_files.batches("samples", [segment], lambda _: None):
                    of_queue = pc.and_(
                        pc.equal(pc.fill_null(batch.column("schema"), ""), schema),
                        pc.equal(batch.column("queue"), queue),
                    )
                    at = batch.column("at").cast(pa.int64()).filter(of_queue)
                    later = pc.min(at.filter(pc.greater(at, int(after)))).as_py()
                    if later is not None:
                        return int(later)
        return None
