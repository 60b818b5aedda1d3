"""What a file has: counts of rows and payload bytes, and a digest of each column."""

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute
DIGESTS = "sha256"


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
            if name in {"payload", "payload_bytes"}:
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
