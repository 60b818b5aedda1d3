"""Segments as rows, read in the tasks. Plain Python: Spark hands over numbers of files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from console.pipeline.lake import Lake
from console.pipeline.rollup.found import Segment

if TYPE_CHECKING:
    import pyarrow as pa

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
    """The same for Arrow."""
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
    kind: str, segments: Sequence[Segment], damaged: Callable[[str], object]
) -> "Iterator[pa.RecordBatch]":
    """The rows of segments; a file that proves damaged is told and gives none."""
    for one in segments:
        table = _table(kind, one, damaged)
        if table is not None:
            yield from table.to_batches()


def _table(kind: str, one: Segment, damaged: Callable[[str], object]) -> "pa.Table | None":
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    wanted = schema(kind)
    try:
        with Lake(one.place.folder).reading(one.place.path) as file:
            data = file.read_buffer()
    except FileNotFoundError:
        damaged(one.place.path)  # let go of for its age just now
        return None
    try:
        end = pq.ParquetFile(pa.BufferReader(data))  # type: ignore[no-untyped-call]
        there = set(end.schema_arrow.names)
        names = [name for name in wanted.names if name in there]
        table: Any = end.read(columns=names)  # type: ignore[no-untyped-call]
        columns = [_column(table, field, one.source) for field in wanted]
        return pa.Table.from_arrays(columns, schema=wanted)
    except (OSError, KeyError, pa.ArrowException):
        damaged(one.place.path)
        return None


def _column(table: "pa.Table", field: "pa.Field", source: int) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    if field.name == "source":
        return pa.repeat(pa.scalar(source, field.type), table.num_rows)
    if field.name in table.column_names:
        return table.column(field.name).cast(field.type)
    return pa.nulls(table.num_rows, field.type)
