"""One day of a connection and a kind: from its segments, in the order of time, to its three tables.

The task holds the rows of some minutes, the minutes of an hour and the hours of the day; the rows
of all segments never lie in memory together.
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
from console.rollup_files import LONGEST_LOOK_SECONDS

pq: Any = pyarrow.parquet

_ROWS = 100_000
"""So many are rolled up at a time, or those of a minute where that has more."""
_GROUP_BYTES = 32 * 2**20
_FILE = "rollup.parquet"


def item(lake: Lake, connection: str, day: date, kind: str, of: Sequence[ClosedSegment]) -> Item:
    """What the task needs, in plain words."""
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
    """The task: the tables in place of those that there were, or beside them; what was read and
    written."""
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
        """Of the files that it wrote."""

    def write(self) -> dict[str, int]:
        """How many rows each table has; of a day without a row what was there stays."""
        hours: list[pa.Table] = []
        with ExitStack() as files:
            minutes = _Table(self._item, "minute", files, self.paths)
            hours += (tables.wider(self._kind, one, "hour") for one in self._by_hour(minutes))
            if not hours:
                return {}
            of_hours = pa.concat_tables(hours)
            by_width = {"hour": of_hours, "day": tables.wider(self._kind, of_hours, "day")}
            for width, table in by_width.items():
                _Table(self._item, width, files, self.paths).put(table)
        return {"minute": minutes.rows, **{w: t.num_rows for w, t in by_width.items()}}

    def _by_hour(self, minutes: "_Table") -> Iterator[pa.Table]:
        """The minutes, which are written, of each hour that is over, or of several."""
        waiting: list[pa.Table] = []
        speaking = _Speaking(self._segments)
        for seen, upto in self._parts():
            if not seen.num_rows:
                continue
            times = speaking.microseconds(seen) if self._kind == "samples" else None
            made = tables.minutes(self._kind, seen, times)
            minutes.put(made)
            waiting.append(made)
            whole = pa.concat_tables(waiting)
            over = numbers(whole.column("begin")) < upto - upto % 3_600_000_000
            waiting = [whole.filter(pa.array(~over))]
            if over.any():
                yield whole.filter(pa.array(over))
        if waiting and waiting[0].num_rows:
            yield waiting[0]

    def _parts(self) -> Iterator[tuple[pa.Table, int]]:
        """The day's rows that can be counted, minutes whole; until when there will be no more."""
        day = datetime.fromisoformat(self._item["day"]).replace(tzinfo=UTC)
        begin = int(day.timestamp()) * 1_000_000
        end = begin + 86_400_000_000
        # Nothing of a segment is before it begins, and so nothing of those after it.
        first = [_minute(one.first) for one in self._segments]
        pending = segment_files.schema(self._kind).empty_table()
        for one, upto in zip(self._segments, [*first[1:], end], strict=True):
            found = segment_files.batches(self._kind, [one], self._damaged.add)
            read = pa.Table.from_batches(found, pending.schema)
            mine = read.filter(_counted(self._kind, read, begin, end))
            pending = pa.concat_tables([pending, mine])
            if upto == end or pending.num_rows >= _ROWS:
                over = pa.array(numbers(pending.column("at")) < upto)
                yield pending.filter(over), upto
                pending = pending.filter(pc.invert(over))


def _minute(moment: datetime) -> int:
    """Its beginning, in microseconds."""
    return int(moment.timestamp()) // 60 * 60_000_000


def _counted(kind: str, rows: pa.Table, begin: int, end: int) -> Any:
    """Which rows are of the day, and of a queue where they are samples."""
    at = rows.column("at").cast(pa.int64())
    mine = pc.and_(pc.greater_equal(at, begin), pc.less(at, end))
    return pc.and_(mine, pc.is_valid(rows.column("queue"))) if kind == "samples" else mine


class _Table:
    """A table of a width while it is written, as one file in place of all that were there; beside
    them where there is no rename: the day's manifest then says which of them it is."""

    def __init__(self, item: Item, width: str, files: ExitStack, paths: list[str]) -> None:
        self._lake = Lake(item["lake"])
        folder = rollup_files.folder(width, item["kind"], item["connection"])
        self._folder = f"{folder}/date={item['day']}"
        self._files = files
        self._paths = paths
        self._writer: Any = None
        self._waiting: list[pa.Table] = []
        self.rows = 0

    def put(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._writer = self._begun(rows.schema)
        self.rows += rows.num_rows
        self._waiting.append(rows)
        if sum(one.nbytes for one in self._waiting) >= _GROUP_BYTES:
            self._flush()

    def _begun(self, schema: pa.Schema) -> Any:
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
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting))
            self._waiting.clear()


class _Speaking:
    """For how long each sample speaks: since the one before it of its source and queue.

    The first of the day speaks until the next one, and for a second where there is none.
    """

    def __init__(self, segments: Sequence[ClosedSegment]) -> None:
        self._segments = segments
        self._last: dict[tuple[int, str, str], int] = {}

    def microseconds(self, seen: pa.Table) -> Numbers:
        """Of the samples that come next, in their order."""
        place, names = tables.ranks(seen, tables.QUEUE)
        source, at = numbers(seen.column("source")), numbers(seen.column("at"))
        order = np.lexsort((at, place, source))
        place, source, at = place[order], source[order], at[order]
        starts = np.flatnonzero(np.append(True, (np.diff(place) != 0) | (np.diff(source) != 0)))
        since = np.diff(at, prepend=at[0])
        texts = names.to_pylist()
        for start, end in zip(starts, [*starts[1:], len(at)], strict=True):
            one = (int(source[start]), *texts[place[start]].values())
            before = self._last.get(one)
            if before is None:
                after = at[start + 1] if end - start > 1 else self._next(one, at[start])
                since[start] = 1_000_000 if after is None else after - at[start]
            else:
                since[start] = at[start] - before
            self._last[one] = at[end - 1]
        found = np.empty_like(since)
        found[order] = np.minimum(since, LONGEST_LOOK_SECONDS * 1_000_000)
        return found

    def _next(self, one: tuple[int, str, str], after: int) -> int | None:
        """The first sample after a moment: it is in a segment that is not read yet."""
        source, schema, queue = one
        for segment in self._segments:
            if segment.source == source and segment.last.timestamp() * 1_000_000 > after:
                for batch in segment_files.batches("samples", [segment], lambda _: None):
                    mine = pc.and_(
                        pc.equal(pc.fill_null(batch.column("schema"), ""), schema),
                        pc.equal(batch.column("queue"), queue),
                    )
                    at = batch.column("at").cast(pa.int64()).filter(mine)
                    later = pc.min(at.filter(pc.greater(at, int(after)))).as_py()
                    if later is not None:
                        return int(later)
        return None
