"""The sum of a hash of each row, by which manifests of earlier versions know their files."""

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute
CHECKSUM = "checksum"
_TEXTS = ("id", "payload", "state", "error", "reason", "title")
_NUMBERS = ("archive_id", "attempts", "pushed_at", "done_at", "due_at", "archived_at")
_MODULUS = 1 << 128


class RowSums:
    """Rows, bytes of payload, and a checksum in which the order of rows has no part."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        self._checksum = 0

    def add(self, batch: pa.RecordBatch) -> None:
        count = batch.num_rows
        if not count:
            return
        texts = [batch.column(name).cast(pa.binary()) for name in _TEXTS]
        pieces = [_heads(batch, texts), *(pc.fill_null(text, b"") for text in texts)]
        rows = pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary())).to_pylist()
        digests = b"".join(hashlib.blake2b(row, digest_size=16).digest() for row in rows)
        halves = np.frombuffer(digests, dtype=">u8").reshape(count, 2)
        high, low = (_exact_sum(halves[:, at]) for at in (0, 1))
        self.rows += count
        self.bytes += int(pc.sum(pc.binary_length(batch.column("payload"))).as_py() or 0)
        self._checksum = (self._checksum + (high << 64) + low) % _MODULUS

    def as_json(self) -> dict[str, Any]:
        return {"rows": self.rows, "bytes": self.bytes, CHECKSUM: f"{self._checksum:032x}"}


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
