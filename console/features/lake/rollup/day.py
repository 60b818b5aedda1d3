"""The task for one day of a connection and a kind: from its segments to its three widths.

Segments are read in order of time, never all at once: in memory are the rows of some minutes, the
minutes of an hour and the hours of the day.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from console.features.history.rollup_files import LONGEST_SAMPLE_SECONDS, QUEUE, WIDTHS
from console.features.lake.lake import Lake
from console.features.lake.rollup import segment_files, tables
from console.features.lake.rollup.segment_files import ClosedSegment, SegmentFile
from console.features.lake.rollup.table import PartitionFile, file_of
from console.features.lake.rollup.tables import Numbers, numbers, pc
from console.features.lake.spark import Item

_ROWS = 100_000
"""Rolled up at a time; more if one minute has more."""


def item(lake: Lake, connection: str, day: date, kind: str, of: Sequence[ClosedSegment]) -> Item:
    """All that the task needs, as JSON."""
    segments = [
        {
            **vars(segment),
            "file": vars(segment.file),
            "first": segment.first.isoformat(),
            "last": segment.last.isoformat(),
        }
        for segment in of
    ]
    return {
        "lake": lake.location,
        "connection": connection,
        "day": day.isoformat(),
        "kind": kind,
        "segments": segments,
    }


def roll_up(item: Item) -> dict[str, Any]:
    """The task: write the day's files; returns what was read and written."""
    segments = [
        ClosedSegment(
            **{
                **one,
                "names": tuple(one["names"]),
                "file": SegmentFile(**one["file"]),
                "first": datetime.fromisoformat(one["first"]),
                "last": datetime.fromisoformat(one["last"]),
            }
        )
        for one in item["segments"]
    ]
    damaged: set[str] = set()
    files = _Day(item, segments, damaged).write()
    good = [segment for segment in segments if segment.file.path not in damaged]
    return {
        "rows": sum(segment.rows for segment in good),
        "bytes": sum(segment.size for segment in good),
        "files": files,
        "damaged": sorted(damaged),
    }


class _Day:
    def __init__(self, item: Item, segments: Sequence[ClosedSegment], damaged: set[str]) -> None:
        self._item = item
        self._kind = item["kind"]
        self._segments = segments
        self._damaged = damaged

    def write(self) -> list[dict[str, Any]]:
        """A file for each width; none without any rows."""
        lake, day = Lake(self._item["lake"]), (self._item["connection"], self._item["day"])
        files = {width: file_of(lake, *day, self._kind, width) for width in WIDTHS}
        with ExitStack() as stack:
            for file in files.values():
                stack.enter_context(file)
            by_hour = self._by_hour(files["minute"])
            if hours := [tables.wider(self._kind, one, "hour") for one in by_hour]:
                hour_table = pa.concat_tables(hours)
                files["hour"].put(hour_table)
                files["day"].put(tables.wider(self._kind, hour_table, "day"))
        return [file.entry() for file in files.values() if file.rows]

    def _by_hour(self, minutes: PartitionFile) -> Iterator[pa.Table]:
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
        if len(self._segments) == 1 and len(self._segments[0].names) > 1:
            for rows in self._by_queue(self._segments[0]):
                yield rows.filter(_counted(self._kind, rows, begin, end)), end
            return
        # A segment has no rows before it begins, nor have those after it.
        first = [_minute(segment.first) for segment in self._segments]
        pending = segment_files.schema(self._kind).empty_table()
        for closed_segment, upto in zip(self._segments, [*first[1:], end], strict=True):
            batches = segment_files.batches(self._kind, [closed_segment], self._damaged.add)
            rows = pa.Table.from_batches(batches, pending.schema)
            rows = rows.filter(_counted(self._kind, rows, begin, end))
            pending = pa.concat_tables([pending, rows])
            if upto == end or pending.num_rows >= _ROWS:
                complete = pa.array(numbers(pending.column("at")) < upto)
                yield pending.filter(complete), upto
                pending = pending.filter(pc.invert(complete))

    def _by_queue(self, merged: ClosedSegment) -> Iterator[pa.Table]:
        """All rows of some queues at a time: it is sorted by queue."""
        pending = segment_files.schema(self._kind).empty_table()
        for batch in segment_files.batches(self._kind, [merged], self._damaged.add):
            pending = pa.concat_tables([pending, pa.Table.from_batches([batch])])
            if pending.num_rows >= _ROWS:
                queues = pending.column("queue")
                last = pc.fill_null(pc.equal(queues, queues[-1]), queues[-1].is_valid is False)
                yield pending.filter(pc.invert(last))
                pending = pending.filter(last)
        yield pending


def _minute(moment: datetime) -> int:
    """The beginning of its minute, in microseconds."""
    return int(moment.timestamp()) // 60 * 60_000_000


def _counted(kind: str, rows: pa.Table, begin: int, end: int) -> Any:
    """Which rows are of the day; samples also need a queue."""
    at = rows.column("at").cast(pa.int64())
    of_day = pc.and_(pc.greater_equal(at, begin), pc.less(at, end))
    return pc.and_(of_day, pc.is_valid(rows.column("queue"))) if kind == "samples" else of_day


class _SampleDurations:
    """For how long each sample's rates hold: since its source's previous sample of the queue.

    The first of a day counts until the next one, or for a second where there is none.
    """

    def __init__(self, segments: Sequence[ClosedSegment]) -> None:
        self._segments = segments
        self._last: dict[tuple[int, str, str], int] = {}

    def microseconds(self, samples: pa.Table) -> Numbers:
        """Of the day's next samples."""
        rank, names = tables.ranks(samples, QUEUE)
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
