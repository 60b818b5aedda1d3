"""What a file of the archive holds, as its manifest says it: counts, and a digest of each column.

A manifest of an earlier version has one sum of hashes of rows instead: `row_sums` makes that one
again, so that what it began is verified and finished as it was begun.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute

from console.pipeline.archive.row_sums import CHECKSUM, RowSums

pc: Any = pyarrow.compute
DIGESTS = "sha256"


class Tally(Protocol):
    """Batches of a file, in their order, and what a manifest says of such a file."""

    rows: int
    bytes: int

    def add(self, batch: pa.RecordBatch) -> None: ...

    def as_json(self) -> dict[str, Any]: ...


class Contents:
    """Of batches with all columns, or with some: where they were cut makes no difference."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        """Of payload."""
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
    """Which values are null, how long texts are, and the values: each hashed as one stream."""

    def __init__(self) -> None:
        self._nulls, self._lengths, self._values = (hashlib.sha256() for _ in range(3))

    def add(self, column: pa.Array) -> int:
        """How many bytes of values there were."""
        if not len(column):
            return 0
        self._nulls.update(_numbers(pc.is_null(column).cast(pa.uint8())))
        # What lies under a null is not defined.
        if pa.types.is_timestamp(column.type):
            column = column.view(pa.int64())
        if pa.types.is_integer(column.type):
            numbers = _numbers(pc.fill_null(column, 0))
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


def _numbers(column: pa.Array) -> memoryview:
    """Of a column without nulls, as they lie there."""
    numbers: memoryview = column.to_numpy(zero_copy_only=False).data
    return numbers


def tally_like(told: Mapping[str, Any]) -> Tally:
    """To read a file with, and compare it with what its manifest says of it."""
    return RowSums() if CHECKSUM in told else Contents()


def same(told: Mapping[str, Any], found: Tally) -> bool:
    return all(told.get(name) == value for name, value in found.as_json().items())


def is_told(told: Mapping[str, Any], names: list[str]) -> bool:
    """Whether a manifest says of a file what it has to."""
    counts = isinstance(told.get("rows"), int) and isinstance(told.get("bytes"), int)
    if CHECKSUM in told:
        return counts and isinstance(told[CHECKSUM], str)
    digests = told.get(DIGESTS)
    return counts and isinstance(digests, dict) and sorted(digests) == sorted(names)
