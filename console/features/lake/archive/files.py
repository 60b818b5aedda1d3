"""The archive's Parquet files, written and read with bounded memory whatever the payloads' size."""

import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from console.errors import ConsoleError
from console.features.lake.archive import digests
from console.features.lake.archive.digests import ColumnDigests
from console.features.lake.lake import Lake
from console.features.lake.spark import Item

pc: Any = pyarrow.compute
pq: Any = pyarrow.parquet

TIME = pa.timestamp("us", tz="UTC")

SCHEMA = pa.schema(
    [
        pa.field("archive_id", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("payload", pa.string()),
        pa.field("payload_bytes", pa.binary()),
        pa.field("pushed_at", TIME),
        pa.field("due_at", TIME),
        pa.field("claimed_at", TIME),
        pa.field("claimed_by", pa.string()),
        pa.field("done_at", TIME),
        pa.field("state", pa.string()),
        pa.field("attempts", pa.int32()),
        pa.field("error", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("title", pa.string()),
        pa.field("action_id", pa.int64()),
        pa.field("archived_at", TIME),
        pa.field("more", pa.string()),
    ]
)
"""`kind`: text, json or bytes, as the queue keeps payloads. Texts and JSON are in `payload`, bytes
in `payload_bytes`, and so is a text that is no UTF-8. `more`: a JSON object with the columns that
others added to the archive, and the text of a time that no file can hold."""


def conform(batch: pa.RecordBatch, kind: str) -> pa.RecordBatch:
    """A driver's batch with the lake's columns; those that it lacks are null."""
    count = batch.num_rows
    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    if "row_json" in given:
        given["more"] = _more(given)
    given["kind"] = pa.array([kind]).take(pa.array(np.zeros(count, np.int8)))
    columns = {
        field.name: _cast(given[field.name], field.type)
        if field.name in given
        else pa.nulls(count, field.type)
        for field in SCHEMA
    }
    if kind != "bytes" and not _is_utf8(columns["payload"]):
        columns |= _split_by_encoding(columns["payload"])
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=SCHEMA)


_TIMES = [field.name for field in SCHEMA if field.type == TIME]
_DECODER = json.JSONDecoder()
_TO_NAME, _TO_VALUE = re.compile(r"[{,\s]*"), re.compile(r"[:\s]*")


def _more(given: Mapping[str, pa.Array]) -> pa.Array:
    """What a row has beside the columns of the lake, as the server wrote it."""
    texts = given["row_json"].to_pylist()
    if not any(texts):
        return pa.nulls(len(texts), pa.string())
    times = {name: given[name].is_null().to_pylist() for name in _TIMES if name in given}
    found: list[str | None] = []
    for at, text in enumerate(texts):
        kept = [
            f"{json.dumps(name, ensure_ascii=False)}: {value}"
            for name, value in members(text or "{}")
            if name not in SCHEMA.names or (name in times and times[name][at] and value != "null")
        ]
        found.append(f"{{{', '.join(kept)}}}" if kept else None)
    return pa.array(found, pa.string())


def members(text: str) -> Iterator[tuple[str, str]]:
    """The names of a JSON object, and their values as they are written."""
    at = _TO_NAME.match(text).end()  # type: ignore[union-attr]
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        at = _TO_VALUE.match(text, at).end()  # type: ignore[union-attr]
        _, end = _DECODER.raw_decode(text, at)
        yield name, text[at:end]
        at = _TO_NAME.match(text, end).end()  # type: ignore[union-attr]


def _is_utf8(texts: pa.Array) -> bool:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _split_by_encoding(texts: pa.Array) -> dict[str, pa.Array]:
    """Of a database in SQL_ASCII: the texts that are UTF-8, and the bytes of others."""
    values = texts.cast(pa.binary(), safe=False).to_pylist()
    good = [_decoded(value) for value in values]
    others = [None if text is not None else v for text, v in zip(good, values, strict=True)]
    return {"payload": pa.array(good, pa.string()), "payload_bytes": pa.array(others, pa.binary())}


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _cast(column: pa.Array, to: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return column if column.type == to else column.cast(to)


def dates(batch: pa.RecordBatch) -> pa.Array:
    """The day (UTC) of each row's partition: when it was archived, 1970-01-01 for a time that no
    file can hold."""
    days = batch.column("archived_at").cast(pa.date32(), safe=False)
    filled: pa.Array = pc.fill_null(days, date(1970, 1, 1))
    return filled


_COMPRESSION, _LEVEL = "zstd", 1
_REPEATED = ["kind", "claimed_by", "state", "attempts", "error", "reason", "title", "action_id"]
"""Dictionary-encoded: the values of other columns hardly repeat."""
_GROUP_BYTES = 64 * 2**20
_READ_BYTES = 32 * 2**20
_READ_ROWS = 16_384
_FILES_AT_ONCE = 4


class Writer:
    """Writes batches as row groups of bounded size: each is in memory until it is written."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._size = 0
        self._writer = pq.ParquetWriter(
            file,
            SCHEMA,
            compression=_COMPRESSION,
            compression_level=_LEVEL,
            use_dictionary=_REPEATED,
            write_page_checksum=True,
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

    def entry(self, path: str, partition: Mapping[str, str]) -> dict[str, Any]:
        """What a commit and the verification have to know of the finished file."""
        return {
            "path": path,
            "partition": dict(partition),
            "size": self._size,
            **self.digest.as_json(),
        }

    def _flush(self) -> None:
        if self._pending:
            table: Any = pa.Table.from_batches(self._pending, SCHEMA)
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
        """Finish the file. If the body failed, it is discarded, whatever closing it says."""
        if kind is None:
            self._flush()
            self._writer.close()
            self._size = self._file.tell()
        else:
            with suppress(OSError, ValueError, pa.ArrowException):
                self._writer.close()


def batches(file: Any, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of an open `ParquetFile`, in order, in batches of bounded size."""
    metadata = file.metadata
    size = sum(metadata.row_group(at).total_byte_size for at in range(metadata.num_row_groups))
    row_bytes = size / max(metadata.num_rows, 1)
    count = max(1, min(_READ_ROWS, int(_READ_BYTES / max(row_bytes, 1.0))))
    yield from file.iter_batches(batch_size=count, columns=columns)


def verify(item: Item) -> dict[str, Any]:
    """The task: compare the files of one part with what was written. `wrong` lists differences."""
    lake = Lake(item["lake"])

    def verify_file(entry: Mapping[str, Any]) -> tuple[int, int, str]:
        path = entry["path"]
        try:
            column_digests = _read(lake, path)
        except (OSError, ValueError, pa.ArrowException, ConsoleError) as error:
            return 0, 0, f"{path}: {_line(error)}"
        written = {name: entry[name] for name in (*_COUNTS, digests.DIGESTS)}
        if column_digests.as_json() == written:
            return column_digests.rows, column_digests.bytes, ""
        return (
            column_digests.rows,
            column_digests.bytes,
            f"{path}: {_difference(written, column_digests.as_json())}",
        )

    with ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
        results = list(threads.map(verify_file, item["files"]))
    rows, size = sum(rows for rows, _, _ in results), sum(size for _, size, _ in results)
    return {"rows": rows, "bytes": size, "wrong": [why for _, _, why in results if why]}


_COUNTS = ("rows", "bytes")


def keys(lake: Lake, path: str) -> set[int]:
    """The archive_id of each row of a file."""
    with lake.reading(path) as source, pq.ParquetFile(source) as file:
        return set(file.read(columns=["archive_id"]).column(0).to_pylist())


def _read(lake: Lake, path: str) -> ColumnDigests:
    """OSError, ValueError, ArrowException: it is not such a file."""
    digest = ColumnDigests()
    with lake.reading(path) as source, pq.ParquetFile(source) as file:
        if file.schema_arrow != SCHEMA:
            raise ValueError("its columns are not those of an archive")
        for batch in batches(file):
            digest.add(batch)
    return digest


def _difference(written: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    if any(written[name] != found[name] for name in _COUNTS):
        return (
            f"{found['rows']:,} rows with {found['bytes']:,} bytes, "
            f"{written['rows']:,} with {written['bytes']:,} were written"
        )
    of, was = found[digests.DIGESTS], written[digests.DIGESTS]
    return f"other values in {', '.join(n for n in SCHEMA.names if of.get(n) != was.get(n))}"


def _line(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "it is missing"
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
