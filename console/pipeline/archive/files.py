"""The archive's Parquet files, written and read with bounded memory whatever the payloads' size."""

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from console.pipeline import rows
from console.pipeline.arrow import pq

_COMPRESSION, _LEVEL = "zstd", 1
_GROUP_BYTES = 64 * 2**20
_READ_BYTES = 32 * 2**20
_READ_ROWS = 16_384


class Writer:
    """Writes batches as row groups of a bounded size: the format keeps one in memory, whole."""

    def __init__(self, file: Any, payload_kind: str) -> None:
        self._schema = rows.schema(payload_kind)
        self._writer = pq.ParquetWriter(
            file, self._schema, compression=_COMPRESSION, compression_level=_LEVEL
        )
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self.sum = rows.Sum()
        """Of all that was written."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows of the archive's schema."""
        self.sum += rows.total(batch)
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
