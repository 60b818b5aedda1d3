"""A file's entry in a manifest: counts of rows and payload bytes, and a digest of each column.

Manifests of earlier versions have one sum of row hashes instead. `RowHashSum` computes it, so that
a plan which an earlier version began is verified as it was written.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute
DIGESTS = "sha256"
CHECKSUM = "checksum"
"""Of earlier versions."""


class FileDigest(Protocol):
    """Fed with the batches of a file, in order; `as_json` is its entry in a manifest."""

    rows: int
    bytes: int
    """Of payload."""

    def add(self, batch: pa.RecordBatch) -> None: ...

    def as_json(self) -> dict[str, Any]: ...


class ColumnDigests:
    """Of all columns, or of those that the batches have. Batch boundaries make no difference."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        self._columns: dict[str, _Column] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            size = self._columns.setdefault(name, _Column()).add(column)
            if name == "payload":
                self.bytes += size

    @property
    def digests(self) -> dict[str, str]:
        return {name: column.hexdigest() for name, column in self._columns.items()}

    def as_json(self) -> dict[str, Any]:
        return {"rows": self.rows, "bytes": self.bytes, DIGESTS: self.digests}


class _Column:
    """Which values are null, the lengths of texts, and the values: each hashed as one stream."""

    def __init__(self) -> None:
        self._nulls, self._lengths, self._values = (hashlib.sha256() for _ in range(3))

    def add(self, column: pa.Array) -> int:
        """Bytes of values added."""
        if not len(column):
            return 0
        self._nulls.update(_memory(pc.is_null(column).cast(pa.uint8())))
        # The value under a null is not defined.
        if pa.types.is_timestamp(column.type):
            column = column.view(pa.int64())
        if pa.types.is_integer(column.type):
            numbers = _memory(pc.fill_null(column, 0))
            self._values.update(numbers)
            return int(numbers.nbytes)
        texts = pc.fill_null(column.cast(pa.binary()), b"")
        _, offsets, values = texts.buffers()
        ends = np.frombuffer(offsets, "<i4")[texts.offset : texts.offset + len(texts) + 1]
        self._lengths.update(np.diff(ends).data)
        size = int(ends[-1] - ends[0])
        if size:
            self._values.update(values.slice(int(ends[0]), size))
        return size

    def hexdigest(self) -> str:
        parts = (self._nulls, self._lengths, self._values)
        return hashlib.sha256(b"".join(part.digest() for part in parts)).hexdigest()


def _memory(column: pa.Array) -> memoryview:
    """Of a column of numbers without nulls."""
    numbers: memoryview = column.to_numpy(zero_copy_only=False).data
    return numbers


def digest_like(entry: Mapping[str, Any]) -> FileDigest:
    """An empty digest of the sort that a manifest's entry has, to read the file with."""
    return RowHashSum() if CHECKSUM in entry else ColumnDigests()


def matches(entry: Mapping[str, Any], digest: FileDigest) -> bool:
    return all(entry.get(name) == value for name, value in digest.as_json().items())


def is_entry(entry: Mapping[str, Any], names: list[str]) -> bool:
    """Whether a manifest's entry has all that it must have about a file with these columns."""
    counts = isinstance(entry.get("rows"), int) and isinstance(entry.get("bytes"), int)
    if CHECKSUM in entry:
        return counts and isinstance(entry[CHECKSUM], str)
    digests = entry.get(DIGESTS)
    return counts and isinstance(digests, dict) and sorted(digests) == sorted(names)


# Of earlier versions.

_TEXTS = ("id", "payload", "state", "error", "reason", "title")
_NUMBERS = ("archive_id", "attempts", "pushed_at", "done_at", "due_at", "archived_at")


class RowHashSum:
    """The sum of a hash of each row, whatever their order."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        self._sum = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        texts = [batch.column(name).cast(pa.binary()) for name in _TEXTS]
        pieces = [_row_heads(batch, texts), *(pc.fill_null(text, b"") for text in texts)]
        rows = pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary())).to_pylist()
        hashes = (hashlib.blake2b(row, digest_size=16).digest() for row in rows)
        self.rows += batch.num_rows
        self.bytes += int(pc.sum(pc.binary_length(batch.column("payload"))).as_py() or 0)
        self._sum = (self._sum + sum(int.from_bytes(one, "big") for one in hashes)) % (1 << 128)

    def as_json(self) -> dict[str, Any]:
        return {"rows": self.rows, "bytes": self.bytes, CHECKSUM: f"{self._sum:032x}"}


def _row_heads(batch: pa.RecordBatch, texts: list[pa.Array]) -> pa.Array:
    """Of each row, in a fixed width: which values are null, the numbers, the lengths of texts."""
    numbers = []
    nulls = np.zeros(batch.num_rows, dtype="<i8")
    for at, column in enumerate([*(batch.column(name) for name in _NUMBERS), *texts]):
        nulls |= pc.is_null(column).to_numpy(zero_copy_only=False).astype("<i8") << at
    for name in _NUMBERS:
        column = batch.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us")).cast(pa.int64())
        numbers.append(column.cast(pa.int64()))
    numbers += [pc.binary_length(text).cast(pa.int64()) for text in texts]
    filled = (pc.fill_null(column, 0).to_numpy(zero_copy_only=False) for column in numbers)
    table = np.column_stack([nulls, *filled]).astype("<i8")
    width = table.shape[1] * 8
    fixed = pa.Array.from_buffers(
        pa.binary(width), batch.num_rows, [None, pa.py_buffer(np.ascontiguousarray(table))]
    )
    return fixed.cast(pa.binary())
