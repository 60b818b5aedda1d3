"""The archive's Parquet files, written and read with bounded memory whatever the payloads' size."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from console.errors import ConsoleError
from console.pipeline.archive import contents
from console.pipeline.archive.contents import Contents, Tally
from console.pipeline.lake import Lake
from console.pipeline.spark import Item

TIME = pa.timestamp("us", tz="UTC")

SCHEMA = pa.schema(
    [
        pa.field("archive_id", pa.int64()),
        pa.field("id", pa.string(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("pushed_at", TIME),
        pa.field("done_at", TIME),
        pa.field("state", pa.string(), nullable=False),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("error", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("title", pa.string()),
        pa.field("due_at", TIME),
        pa.field("archived_at", TIME),
    ]
)
"""`archive_id` is null of what never was in an archive table. `payload` is the exact bytes: text
and JSON in UTF-8; which of them the file's metadata says, as `payload_kind`."""

KIND = b"payload_kind"


def schema(payload_kind: str) -> pa.Schema:
    """Of a file with such payloads: text, json or bytes."""
    return SCHEMA.with_metadata({KIND: payload_kind.encode()})


def conform(batch: pa.RecordBatch, payload_kind: str) -> pa.RecordBatch:
    """What a driver returned, as the lake has it: what it did not ask for is null."""
    there = set(batch.schema.names)
    columns = [
        _cast(batch.column(field.name), field.type)
        if field.name in there
        else pa.nulls(batch.num_rows, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema(payload_kind))


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return column if column.type == wanted else column.cast(wanted)


def dates(batch: pa.RecordBatch) -> pa.Array:
    """The day, in UTC, under which each row lies: that of its archiving, else of its end."""
    moment: pa.Array = pc.coalesce(batch.column("archived_at"), batch.column("done_at"))
    return moment.cast(pa.date32(), safe=False)


pc: Any = pyarrow.compute
pq: Any = pyarrow.parquet


_COMPRESSION, _LEVEL = "zstd", 1
_REPEATED = ["state", "attempts", "error", "reason", "title"]
"""A dictionary of the others only costs: their values are each another."""
_GROUP_BYTES = 64 * 2**20
_READ_BYTES = 32 * 2**20
_READ_ROWS = 16_384
_IN_FLIGHT = 4
"""Files of a range that are read at a time."""


class Writer:
    """Writes batches as row groups of a bounded size: the format keeps one in memory, whole."""

    def __init__(self, file: Any, payload_kind: str) -> None:
        self._schema = schema(payload_kind)
        self._writer = pq.ParquetWriter(
            file,
            self._schema,
            compression=_COMPRESSION,
            compression_level=_LEVEL,
            use_dictionary=_REPEATED,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self.contents = Contents()
        """Of all that was written."""

    def write(self, batch: pa.RecordBatch) -> None:
        self.contents.add(batch)
        self._waiting.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            table: Any = pa.Table.from_batches(self._waiting, self._schema)
            self._writer.write_table(table)
            self._waiting.clear()
            self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write what waits, and the end; where the body failed, nothing more."""
        if kind is None:
            self._flush()
            self._writer.close()


def batches(file: Any, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of an open `ParquetFile`, in their order, a bounded part at a time."""
    end = file.metadata
    size = sum(end.row_group(at).total_byte_size for at in range(end.num_row_groups))
    each = size / max(end.num_rows, 1)
    count = max(1, min(_READ_ROWS, int(_READ_BYTES / max(each, 1.0))))
    yield from file.iter_batches(batch_size=count, columns=columns)


def items(lake: Lake, manifests: Sequence[Mapping[str, Any]]) -> list[Item]:
    return [{"lake": lake.location, "manifest": dict(manifest)} for manifest in manifests]


def verify(item: Item) -> dict[str, Any]:
    """The task: what is wrong with the files of one range; nothing: they say what was written."""
    lake, manifest = Lake(item["lake"]), item["manifest"]

    def one(told: Mapping[str, Any]) -> tuple[int, int, str]:
        try:
            found = read(lake, told["path"], manifest["payload_kind"], contents.tally_like(told))
        except (OSError, ValueError, pa.ArrowException, ConsoleError) as error:
            return 0, 0, f"{told['path']}: {_line(error)}"
        other = "" if contents.same(told, found) else f"{told['path']}: {difference(told, found)}"
        return found.rows, found.bytes, other

    with ThreadPoolExecutor(_IN_FLIGHT) as threads:
        results = list(threads.map(one, manifest["files"]))
    rows, size = sum(counted for counted, _, _ in results), sum(sized for _, sized, _ in results)
    wrong = [why for _, _, why in results if why]
    if not wrong and (rows, size) != (manifest["rows"], manifest["bytes"]):
        wrong.append(f"range {manifest['range']}: the files are not what its manifest counts")
    return {"range": manifest["range"], "rows": rows, "bytes": size, "wrong": wrong}


def read(lake: Lake, path: str, payload_kind: str, into: Tally) -> Tally:
    """Tally one file, as it lies there. OSError, ArrowException: it is no such file."""
    with lake.reading(path) as source, pq.ParquetFile(source) as file:
        if file.schema_arrow != SCHEMA:
            raise ValueError("it has other columns than the archive's")
        if (file.schema_arrow.metadata or {}).get(KIND) != payload_kind.encode():
            raise ValueError("its kind of payload is not the one in its manifest")
        for batch in batches(file):
            into.add(batch)
    return into


def difference(told: Mapping[str, Any], found: Tally) -> str:
    """In what a file is not as its manifest says."""
    counts = (found.rows, found.bytes) == (told["rows"], told["bytes"])
    digests = told.get(contents.DIGESTS, {})
    other = found.digests.items() - digests.items() if isinstance(found, Contents) else ()
    columns = ", ".join(name for name in SCHEMA.names if name in dict(other))
    return (
        f"{found.rows:,} rows with {found.bytes:,} bytes, "
        f"{told['rows']:,} with {told['bytes']:,} were written"
        + (f", other values{f' in {columns}' if columns else ''}" if counts else "")
    )


def _line(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "it is missing"
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
