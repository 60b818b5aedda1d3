"""The archive's Parquet files, written and read with bounded memory whatever the payloads' size."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from console.errors import ConsoleError
from console.pipeline.archive import digests
from console.pipeline.archive.digests import ColumnDigests, FileDigest
from console.pipeline.lake import Lake
from console.pipeline.spark import Item

pc: Any = pyarrow.compute
pq: Any = pyarrow.parquet

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
"""`archive_id` is null for rows of a queue table. `payload` is the exact bytes, text and JSON in
UTF-8; the file's metadata has its `payload_kind`."""

KIND = b"payload_kind"


def schema(payload_kind: str) -> pa.Schema:
    """`payload_kind`: text, json or bytes."""
    return SCHEMA.with_metadata({KIND: payload_kind.encode()})


def conform(batch: pa.RecordBatch, payload_kind: str) -> pa.RecordBatch:
    """A driver's batch with the lake's columns; those that it lacks are null."""
    present = set(batch.schema.names)
    columns = [
        _cast(batch.column(field.name), field.type)
        if field.name in present
        else pa.nulls(batch.num_rows, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema(payload_kind))


def _cast(column: pa.Array, to: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return column if column.type == to else column.cast(to)


def dates(batch: pa.RecordBatch) -> pa.Array:
    """The day (UTC) of each row's partition: when it was archived, else when it was done."""
    moment: pa.Array = pc.coalesce(batch.column("archived_at"), batch.column("done_at"))
    return moment.cast(pa.date32(), safe=False)


_COMPRESSION, _LEVEL = "zstd", 1
_REPEATED = ["state", "attempts", "error", "reason", "title"]
"""Dictionary-encoded: the values of other columns hardly repeat."""
_GROUP_BYTES = 64 * 2**20
_READ_BYTES = 32 * 2**20
_READ_ROWS = 16_384
_FILES_AT_ONCE = 4


class Writer:
    """Writes batches as row groups of bounded size: each is in memory until it is written."""

    def __init__(self, file: Any, payload_kind: str) -> None:
        self._schema = schema(payload_kind)
        self._writer = pq.ParquetWriter(
            file,
            self._schema,
            compression=_COMPRESSION,
            compression_level=_LEVEL,
            use_dictionary=_REPEATED,
        )
        self._pending: list[pa.RecordBatch] = []
        self._bytes = 0
        self.digest = ColumnDigests()

    def write(self, batch: pa.RecordBatch) -> None:
        self.digest.add(batch)
        self._pending.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            table: Any = pa.Table.from_batches(self._pending, self._schema)
            self._writer.write_table(table)
            self._pending.clear()
            self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish the file, unless the body failed."""
        if kind is None:
            self._flush()
            self._writer.close()


def batches(file: Any, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of an open `ParquetFile`, in order, in batches of bounded size."""
    metadata = file.metadata
    size = sum(metadata.row_group(at).total_byte_size for at in range(metadata.num_row_groups))
    row_bytes = size / max(metadata.num_rows, 1)
    count = max(1, min(_READ_ROWS, int(_READ_BYTES / max(row_bytes, 1.0))))
    yield from file.iter_batches(batch_size=count, columns=columns)


def items(lake: Lake, manifests: Sequence[Mapping[str, Any]]) -> list[Item]:
    return [{"lake": lake.location, "manifest": dict(manifest)} for manifest in manifests]


def verify(item: Item) -> dict[str, Any]:
    """The task: compare the files of one range with its manifest. `wrong` lists differences."""
    lake, manifest = Lake(item["lake"]), item["manifest"]

    def verify_file(entry: Mapping[str, Any]) -> tuple[int, int, str]:
        path, empty = entry["path"], digests.digest_like(entry)
        try:
            digest = read(lake, path, manifest["payload_kind"], empty)
        except (OSError, ValueError, pa.ArrowException, ConsoleError) as error:
            return 0, 0, f"{path}: {_line(error)}"
        wrong = "" if digests.matches(entry, digest) else f"{path}: {difference(entry, digest)}"
        return digest.rows, digest.bytes, wrong

    with ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
        results = list(threads.map(verify_file, manifest["files"]))
    rows, size = sum(rows for rows, _, _ in results), sum(size for _, size, _ in results)
    wrong = [why for _, _, why in results if why]
    if not wrong and (rows, size) != (manifest["rows"], manifest["bytes"]):
        wrong.append(f"range {manifest['range']}: its files do not add up to its manifest's counts")
    return {"range": manifest["range"], "rows": rows, "bytes": size, "wrong": wrong}


def read(lake: Lake, path: str, payload_kind: str, into: FileDigest) -> FileDigest:
    """Digest one file. OSError, ValueError, ArrowException: it is not such a file."""
    with lake.reading(path) as source, pq.ParquetFile(source) as file:
        if file.schema_arrow != SCHEMA:
            raise ValueError("its columns are not those of an archive")
        if (file.schema_arrow.metadata or {}).get(KIND) != payload_kind.encode():
            raise ValueError("its kind of payload is not the one in its manifest")
        for batch in batches(file):
            into.add(batch)
    return into


def difference(entry: Mapping[str, Any], digest: FileDigest) -> str:
    """How a file differs from its entry in the manifest."""
    counts = (digest.rows, digest.bytes) == (entry["rows"], entry["bytes"])
    written = entry.get(digests.DIGESTS, {})
    columns_of = digest.digests if isinstance(digest, ColumnDigests) else {}
    other = dict(columns_of.items() - written.items())
    columns = ", ".join(name for name in SCHEMA.names if name in other)
    return (
        f"{digest.rows:,} rows with {digest.bytes:,} bytes, "
        f"{entry['rows']:,} with {entry['bytes']:,} were written"
        + (f", other values{f' in {columns}' if columns else ''}" if counts else "")
    )


def _line(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "it is missing"
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
