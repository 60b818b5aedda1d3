"""The recorder's closed segments: which there are, which are sound, who wrote them.

    <folder>/<kind>/connection=C/date=D/<segment>.parquet

Several folders are several consoles' recordings. A segment that stands in two of them (a copy) is
one segment. Those of one console never overlap in time, so those that do are of several sources.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from console.pipeline.lake import Lake

if TYPE_CHECKING:
    import pyarrow as pa
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime

from console.errors import ConsoleError, UsageError
from console.pipeline.lake import connection_of
from console.rollup_files import KINDS, LATENCIES

VERSION = 1
"""Of the records that are known here."""

Day = tuple[str, date]
"""A connection and a day in UTC: what is done, or done again, as a whole."""


@dataclass(frozen=True)
class SegmentFile:
    folder: str
    path: str


@dataclass(frozen=True)
class ClosedSegment:
    """A closed segment of one kind that can be read."""

    name: str
    file: SegmentFile
    rows: int
    size: int
    first: datetime
    last: datetime
    source: int = 0


@dataclass
class SkippedFiles:
    """Files that are not in the tables."""

    damaged: set[str] = field(default_factory=set)
    newer: set[str] = field(default_factory=set)

    def as_json(self) -> dict[str, int]:
        return {"damaged": len(self.damaged), "newer": len(self.newer)}


Names = dict[str, dict[str, list[SegmentFile]]]
"""Kind -> name of a segment -> where it lies."""


def names(folders: Sequence[str]) -> dict[Day, Names]:
    """What lies in the folders, by connection and day, unread. UsageError for one that is none."""
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
                name = path.rsplit("/", 1)[-1].removesuffix(".parquet")
                places = found.setdefault(day, {}).setdefault(kind, {}).setdefault(name, [])
                places.append(SegmentFile(folder, path))
    return found


def _day_of(path: str) -> Day | None:
    """None for a stranger's file."""
    parts = path.split("/")
    if len(parts) != 4 or not parts[1].startswith("connection="):
        return None
    try:
        return connection_of(parts[1]), date.fromisoformat(parts[2].removeprefix("date="))
    except ValueError:
        return None


def sound(
    of_kind: Mapping[str, Sequence[SegmentFile]], skipped: SkippedFiles
) -> list[ClosedSegment]:
    """Those whose end can be read, each with the number of its source."""
    found = []
    for name, places in sorted(of_kind.items()):
        for place in places:
            segment = _segment(name, place, skipped)
            if segment is not None:
                found.append(segment)
                break
    return list(with_sources(found))


def _segment(name: str, place: SegmentFile, skipped: SkippedFiles) -> ClosedSegment | None:
    import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once
    import pyarrow.parquet as pq  # noqa: PLC0415

    lake = Lake(place.folder)
    try:
        with lake.filesystem.open_input_file(lake.path(place.path)) as file:
            end = pq.read_metadata(file)  # type: ignore[no-untyped-call]
            size = int(file.size())
    except FileNotFoundError:
        return None  # let go of for its age just now
    except (OSError, pa.ArrowException) as error:
        if getattr(error, "errno", None):  # not the file, but the disk or a right
            raise ConsoleError(
                f"The recording {place.folder} cannot be read.",
                why=f"{place.path}: {error}",
            ) from error
        skipped.damaged.add(place.path)
        return None
    if int((end.metadata or {}).get(b"version", b"1")) > VERSION:
        skipped.newer.add(place.path)
        return None
    spans = list(_spans(end))
    if len(spans) != end.num_row_groups:
        skipped.damaged.add(place.path)
        return None
    if not spans:
        return None
    first, last = min(begin for begin, _ in spans), max(last for _, last in spans)
    return ClosedSegment(name, place, end.num_rows, size, first, last)


def _spans(end: Any) -> Iterator[tuple[datetime, datetime]]:
    """The first and the last moment of each row group."""
    for number in range(end.num_row_groups):
        group = end.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            statistics = column.statistics
            if column.path_in_schema == "at" and statistics is not None and statistics.has_min_max:
                yield statistics.min.astimezone(UTC), statistics.max.astimezone(UTC)


def with_sources(segments: Iterable[ClosedSegment]) -> Iterator[ClosedSegment]:
    """Each with the lowest number of a source that had ended before it began."""
    ends: list[datetime] = []
    for one in sorted(segments, key=lambda s: (s.first, s.last, s.name)):
        free = (number for number, end in enumerate(ends) if end < one.first)
        source = next(free, len(ends))
        ends[source:] = [one.last, *ends[source + 1 :]]
        yield ClosedSegment(one.name, one.file, one.rows, one.size, one.first, one.last, source)


_TIME, _TEXT, _COUNT, _NUMBER = "timestamp", "string", "bigint", "double"
_FIGURES = (
    "ready",
    "scheduled",
    "claimed",
    "stuck",
    "errors",
    "done",
    "gap",
    "capacity",
    "holders",
)
_QUEUE = {"at": _TIME, "schema": _TEXT, "queue": _TEXT}

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "samples": {
        **_QUEUE,
        "design": _TEXT,
        **dict.fromkeys(_FIGURES, _COUNT),
        "age_seconds": _NUMBER,
        "push_per_second": _NUMBER,
        "pop_per_second": _NUMBER,
        "held_seconds": _NUMBER,
        "latency_seconds": _NUMBER,
        **dict.fromkeys(LATENCIES, _NUMBER),
        "estimated": _TEXT,
        "problem": _TEXT,
    },
    "findings": {**_QUEUE, "code": _TEXT, "severity": _TEXT, "summary": _TEXT},
    "waits": {**_QUEUE, "kind": _TEXT, "wait": _TEXT, "sessions": _COUNT},
}
"""Of each kind what the tables need, in the types of Spark. What a file lacks is null."""


def ddl(kind: str) -> str:
    """The rows that come out, for Spark."""
    columns = [f"`{name}` {of}" for name, of in COLUMNS[kind].items()]
    return ", ".join(["source int", *columns])


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
    """The rows of segments; a file that proves damaged is told and gives none."""
    for one in segments:
        table = _table(kind, one, damaged)
        if table is not None:
            yield from table.to_batches()


def _table(kind: str, one: ClosedSegment, damaged: Callable[[str], object]) -> "pa.Table | None":
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    wanted = schema(kind)
    try:
        with Lake(one.file.folder).reading(one.file.path) as file:
            data = file.read_buffer()
    except FileNotFoundError:
        damaged(one.file.path)  # let go of for its age just now
        return None
    try:
        end = pq.ParquetFile(pa.BufferReader(data))  # type: ignore[no-untyped-call]
        there = set(end.schema_arrow.names)
        names = [name for name in wanted.names if name in there]
        table: Any = end.read(columns=names)  # type: ignore[no-untyped-call]
        columns = [_column(table, field, one.source) for field in wanted]
        return pa.Table.from_arrays(columns, schema=wanted)
    except (OSError, KeyError, pa.ArrowException):
        damaged(one.file.path)
        return None


def _column(table: "pa.Table", field: "pa.Field", source: int) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    if field.name == "source":
        return pa.repeat(pa.scalar(source, field.type), table.num_rows)
    if field.name in table.column_names:
        return table.column(field.name).cast(field.type)
    return pa.nulls(table.num_rows, field.type)
