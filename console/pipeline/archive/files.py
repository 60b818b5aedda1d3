"""The archive's Parquet files, written and read with bounded memory whatever the payloads' size."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from console.errors import ConsoleError
from console.pipeline.lake import Lake
from console.pipeline.session import Item

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
_TEXTS = ("id", "payload", "state", "error", "reason", "title")
_NUMBERS = ("archive_id", "attempts", "pushed_at", "done_at", "due_at", "archived_at")
_MODULUS = 1 << 128


@dataclass(frozen=True)
class Sum:
    """How many rows, how many bytes of payload, and a checksum in which their order has no part."""

    rows: int = 0
    bytes: int = 0
    checksum: int = 0

    def __add__(self, other: "Sum") -> "Sum":
        checksum = (self.checksum + other.checksum) % _MODULUS
        return Sum(self.rows + other.rows, self.bytes + other.bytes, checksum)

    def as_json(self) -> dict[str, Any]:
        """As manifests have it."""
        return {"rows": self.rows, "bytes": self.bytes, "checksum": f"{self.checksum:032x}"}

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> "Sum":
        """The same, back. KeyError, ValueError where it is none."""
        return cls(int(told["rows"]), int(told["bytes"]), int(told["checksum"], 16))


def schema(payload_kind: str) -> pa.Schema:
    """Of a file with such payloads: text, json or bytes."""
    return SCHEMA.with_metadata({KIND: payload_kind.encode()})


def conform(batch: pa.RecordBatch, payload_kind: str) -> pa.RecordBatch:
    """What a driver returned, as the lake has it."""
    columns = [_cast(batch.column(field.name), field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=schema(payload_kind))


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return column if column.type == wanted else column.cast(wanted)


def dates(batch: pa.RecordBatch) -> pa.Array:
    """The day, in UTC, under which each row lies: that of its archiving, else of its end."""
    moment: pa.Array = pc.coalesce(batch.column("archived_at"), batch.column("done_at"))
    return moment.cast(pa.date32(), safe=False)


def total(batch: pa.RecordBatch) -> Sum:
    """The sum of a batch: each row's own hash, of a form that says nulls, lengths and values."""
    count = batch.num_rows
    if count == 0:
        return Sum()
    texts = [_as_binary(batch.column(name)) for name in _TEXTS]
    pieces = [_heads(batch, texts), *(pc.fill_null(text, b"") for text in texts)]
    rows = pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary())).to_pylist()
    digests = b"".join(hashlib.blake2b(row, digest_size=16).digest() for row in rows)
    halves = np.frombuffer(digests, dtype=">u8").reshape(count, 2)
    high, low = (_exact_sum(halves[:, at]) for at in (0, 1))
    checksum = ((high << 64) + low) % _MODULUS
    payload_bytes = pc.sum(pc.binary_length(batch.column("payload"))).as_py() or 0
    return Sum(count, int(payload_bytes), checksum)


def _as_binary(column: pa.Array) -> pa.Array:
    return column.cast(pa.binary())


def _heads(batch: pa.RecordBatch, texts: list[pa.Array]) -> pa.Array:
    """Of each row: which are null, the numbers, and how long the texts are; of one width."""
    words = []
    nulls = np.zeros(batch.num_rows, dtype="<i8")
    for at, column in enumerate([*(batch.column(name) for name in _NUMBERS), *texts]):
        nulls |= pc.is_null(column).to_numpy(zero_copy_only=False).astype("<i8") << at
    for name in _NUMBERS:
        column = batch.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us")).cast(pa.int64())
        words.append(_plain(column.cast(pa.int64())))
    words += [_plain(pc.binary_length(text).cast(pa.int64())) for text in texts]
    table = np.column_stack([nulls, *words]).astype("<i8")
    width = table.shape[1] * 8
    fixed = pa.Array.from_buffers(
        pa.binary(width), batch.num_rows, [None, pa.py_buffer(np.ascontiguousarray(table))]
    )
    return fixed.cast(pa.binary())


def _plain(column: pa.Array) -> "np.ndarray[Any, Any]":
    numbers: np.ndarray[Any, Any] = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    return numbers


def _exact_sum(numbers: "np.ndarray[Any, Any]") -> int:
    """Of 64-bit numbers, without overflow: their halves fit."""
    low = int((numbers & 0xFFFFFFFF).astype(np.uint64).sum(dtype=np.uint64))
    high = int((numbers >> 32).astype(np.uint64).sum(dtype=np.uint64))
    return (high << 32) + low


pc: Any = pyarrow.compute
pq: Any = pyarrow.parquet


_COMPRESSION, _LEVEL = "zstd", 1
_GROUP_BYTES = 64 * 2**20
_READ_BYTES = 32 * 2**20
_READ_ROWS = 16_384


class Writer:
    """Writes batches as row groups of a bounded size: the format keeps one in memory, whole."""

    def __init__(self, file: Any, payload_kind: str) -> None:
        self._schema = schema(payload_kind)
        self._writer = pq.ParquetWriter(
            file, self._schema, compression=_COMPRESSION, compression_level=_LEVEL
        )
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self.sum = Sum()
        """Of all that was written."""

    def write(self, batch: pa.RecordBatch) -> None:
        self.sum += total(batch)
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


def batches(file: Any) -> Iterator[pa.RecordBatch]:
    """The rows of an open `ParquetFile`, in their order, a bounded part at a time."""
    end = file.metadata
    size = sum(end.row_group(at).total_byte_size for at in range(end.num_row_groups))
    each = size / max(end.num_rows, 1)
    count = max(1, min(_READ_ROWS, int(_READ_BYTES / max(each, 1.0))))
    yield from file.iter_batches(batch_size=count)


def items(lake: Lake, manifests: list[Mapping[str, Any]]) -> list[Item]:
    return [{"lake": lake.place, "manifest": dict(manifest)} for manifest in manifests]


def verify(item: Item) -> dict[str, Any]:
    """The task: what is wrong with the files of one range; nothing: they say what was written."""
    lake, manifest = Lake(item["lake"]), item["manifest"]
    found, wrong = Sum(), []
    for file in manifest["files"]:
        try:
            sums = read_sum(lake, file["path"], manifest["payload_kind"])
        except (OSError, ValueError, pa.ArrowException, ConsoleError) as error:
            wrong.append(f"{file['path']}: {_line(error)}")
            continue
        found += sums
        if sums != Sum.of_json(file):
            told = Sum.of_json(file)
            wrong.append(
                f"{file['path']}: {sums.rows:,} rows with {sums.bytes:,} bytes, "
                f"{told.rows:,} with {told.bytes:,} were written"
                + (", other values" if sums.rows == told.rows else "")
            )
    if not wrong and found != Sum.of_json(manifest):
        wrong.append(f"range {manifest['range']}: the files are not what its manifest counts")
    return {"range": manifest["range"], **found.as_json(), "wrong": wrong}


def read_sum(lake: Lake, path: str, payload_kind: str) -> Sum:
    """Of one file, read as it lies there. OSError, ArrowException: it is no such file."""
    found = Sum()
    with lake.reading(path) as source, pq.ParquetFile(source) as file:
        if file.schema_arrow != SCHEMA:
            raise ValueError("it has other columns than the archive's")
        if (file.schema_arrow.metadata or {}).get(KIND) != payload_kind.encode():
            raise ValueError("its kind of payload is not the one in its manifest")
        for batch in batches(file):
            found += total(batch)
    return found


def _line(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "it is missing"
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
