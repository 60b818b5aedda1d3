"""The recorder's closed segments: find them, check them, read them.

    <folder>/<kind>/connection=C/date=D/<segment>.parquet

Several folders are recordings of several consoles. A segment that is in two of them (a copy) is one
segment. The recorder merges those of a past day into one file, which names them: it is read as all
of these. Those of one console never overlap in time, so those that overlap have several sources.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from console.errors import ConsoleError, UsageError
from console.features.history.rollup_files import KINDS, MEANS, MERGED, merged_names
from console.features.lake.lake import Lake, connection_of
from console.figures import MESSAGES

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
"""The latest that can be read."""

Day = tuple[str, date]
"""A connection and a day in UTC: rolled up as a whole."""


@dataclass(frozen=True)
class SegmentFile:
    folder: str
    path: str


@dataclass(frozen=True)
class ClosedSegment:
    """Of one kind, readable; several ones where they were merged."""

    names: tuple[str, ...]
    file: SegmentFile
    rows: int
    size: int
    first: datetime
    last: datetime
    source: int = 0


@dataclass
class SkippedFiles:
    """Files that are not rolled up."""

    damaged: set[str] = field(default_factory=set)
    newer: set[str] = field(default_factory=set)

    def as_json(self) -> dict[str, int]:
        return {"damaged": len(self.damaged), "newer": len(self.newer)}


Names = dict[str, dict[str, list[SegmentFile]]]
"""Kind -> name of a segment -> its copies."""


def names(folders: Sequence[str]) -> dict[Day, Names]:
    """The segments in the folders, unread. UsageError for a folder without a recording."""
    found: dict[Day, Names] = {}
    for folder in folders:
        lake = Lake(folder)
        if not lake.names(""):
            raise UsageError(
                f"Nothing is recorded in {folder}.",
                next_step="Name a folder that dbq-console record or the screens have written.",
            )
        for kind in KINDS:
            for path in lake.data_files(kind):
                if (day := _day_of(path)) is None:
                    continue
                of_kind = found.setdefault(day, {}).setdefault(kind, {})
                for name in _names_in(lake, path):
                    of_kind.setdefault(name, []).append(SegmentFile(folder, path))
    return found


def _names_in(lake: Lake, path: str) -> frozenset[str]:
    """Of the segments in a file; of a damaged one its own."""
    import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once
    import pyarrow.parquet as pq  # noqa: PLC0415

    name = path.rsplit("/", 1)[-1].removesuffix(".parquet")
    if name.startswith(MERGED):
        with (
            suppress(OSError, ValueError, pa.ArrowException),
            lake.filesystem.open_input_file(lake.path(path)) as file,
        ):
            return merged_names(pq.read_metadata(file))  # type: ignore[no-untyped-call]
    return frozenset([name])


def _day_of(path: str) -> Day | None:
    """None for a file that the recorder did not write."""
    parts = path.split("/")
    if len(parts) != 4 or not parts[1].startswith("connection="):
        return None
    try:
        return connection_of(parts[1]), date.fromisoformat(parts[2].removeprefix("date="))
    except ValueError:
        return None


def readable_segments(
    files: Mapping[str, Sequence[SegmentFile]], skipped: SkippedFiles
) -> list[ClosedSegment]:
    """Those whose Parquet metadata can be read, each with the number of its source."""
    names: dict[SegmentFile, set[str]] = {}
    for name, copies in files.items():
        for file in copies:
            names.setdefault(file, set()).add(name)
    segments, covered = [], set[str]()
    # Merged ones first: what is in them is read from them.
    for file, of in sorted(names.items(), key=lambda one: (-len(one[1]), one[0].path)):
        if not of <= covered:
            segment = _segment(tuple(sorted(of)), file, skipped)
            if segment is not None:
                segments.append(segment)
                covered |= of
    return list(with_sources(segments))


def _segment(
    names: tuple[str, ...], file: SegmentFile, skipped: SkippedFiles
) -> ClosedSegment | None:
    import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once
    import pyarrow.parquet as pq  # noqa: PLC0415

    lake = Lake(file.folder)
    try:
        with lake.filesystem.open_input_file(lake.path(file.path)) as opened:
            metadata = pq.read_metadata(opened)  # type: ignore[no-untyped-call]
            size = int(opened.size())
    except FileNotFoundError:
        return None  # expired just now
    except (OSError, pa.ArrowException) as error:
        if getattr(error, "errno", None):  # the disk, or a missing permission
            raise ConsoleError(
                f"The recording {file.folder} cannot be read.", why=f"{file.path}: {error}"
            ) from error
        skipped.damaged.add(file.path)
        return None
    if int((metadata.metadata or {}).get(b"version", b"1")) > VERSION:
        skipped.newer.add(file.path)
        return None
    spans = list(_spans(metadata))
    if len(spans) != metadata.num_row_groups:
        skipped.damaged.add(file.path)
        return None
    if not spans:
        return None
    first, last = min(begin for begin, _ in spans), max(last for _, last in spans)
    return ClosedSegment(names, file, metadata.num_rows, size, first, last)


def _spans(metadata: Any) -> Iterator[tuple[datetime, datetime]]:
    """The first and the last time in each row group."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for position in range(group.num_columns):
            column = group.column(position)
            statistics = column.statistics
            if column.path_in_schema == "at" and statistics is not None and statistics.has_min_max:
                yield statistics.min.astimezone(UTC), statistics.max.astimezone(UTC)


def with_sources(segments: Iterable[ClosedSegment]) -> Iterator[ClosedSegment]:
    """Each gets the lowest source whose segments so far ended before it began."""
    ends: list[datetime] = []
    for segment in sorted(segments, key=lambda s: (s.first, s.last, s.names)):
        free = (number for number, end in enumerate(ends) if end < segment.first)
        source = next(free, len(ends))
        ends[source:] = [segment.last, *ends[source + 1 :]]
        yield replace(segment, source=source)


_TIME, _TEXT, _COUNT, _NUMBER = "timestamp", "string", "bigint", "double"
_QUEUE = {"at": _TIME, "schema": _TEXT, "queue": _TEXT}

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "samples": {
        **_QUEUE,
        "design": _TEXT,
        **{name: _COUNT if unit is MESSAGES else _NUMBER for name, unit in MEANS.items()},
        "estimated": _TEXT,
        "problem": _TEXT,
    },
    "findings": {**_QUEUE, "code": _TEXT, "severity": _TEXT, "summary": _TEXT},
    "waits": {**_QUEUE, "kind": _TEXT, "wait": _TEXT, "sessions": _COUNT},
}
"""By kind, the columns that the tables need, with Spark's types. Those that a file lacks are null.
"""


def schema(kind: str) -> "pa.Schema":
    import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once

    types = {
        _TIME: pa.timestamp("us", tz="UTC"),
        _TEXT: pa.string(),
        _COUNT: pa.int64(),
        _NUMBER: pa.float64(),
    }
    columns = [(name, types[of]) for name, of in COLUMNS[kind].items()]
    return pa.schema([("source", pa.int32()), *columns])


def batches(
    kind: str, segments: Sequence[ClosedSegment], damaged: Callable[[str], object]
) -> "Iterator[pa.RecordBatch]":
    """The rows of segments. `damaged` gets the path of a file that turns out to be unreadable."""
    import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once

    for segment in segments:
        try:
            for table in _tables(kind, segment):
                yield from table.to_batches()
        except (FileNotFoundError, OSError, KeyError, pa.ArrowException):
            damaged(segment.file.path)


def _tables(kind: str, segment: ClosedSegment) -> "Iterator[pa.Table]":
    """Of a merged file its row groups, else all of it: a damaged segment has no rows."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    columns = schema(kind)
    with Lake(segment.file.folder).reading(segment.file.path) as opened:
        data = opened.read_buffer()
    file = pq.ParquetFile(pa.BufferReader(data))  # type: ignore[no-untyped-call]
    present = set(file.schema_arrow.names)
    names = [name for name in columns.names if name in present]
    groups = range(file.num_row_groups)
    for some in ([at] for at in groups) if len(segment.names) > 1 else [list(groups)]:
        table: Any = file.read_row_groups(some, columns=names)  # type: ignore[no-untyped-call]
        arrays = [_column(table, field, segment.source) for field in columns]
        yield pa.Table.from_arrays(arrays, schema=columns)


def _column(table: "pa.Table", field: "pa.Field", source: int) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    if field.name == "source":
        return pa.repeat(pa.scalar(source, field.type), table.num_rows)
    if field.name in table.column_names:
        return table.column(field.name).cast(field.type)
    return pa.nulls(table.num_rows, field.type)
