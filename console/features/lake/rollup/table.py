"""The Delta tables of rollups and forecasts, and how their files are written."""

import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet

from console.errors import UsageError
from console.features.history import forecast_files, lake_tables, rollup_files
from console.features.history.rollup_files import DayMadeOf
from console.features.lake.delta import LakeTable, folder_value
from console.features.lake.lake import DamagedError, Lake

pq: Any = pyarrow.parquet

_GROUP_BYTES = 32 * 2**20


class RollupTable(LakeTable):
    FOLDER = rollup_files.TABLE
    PARTITIONS = rollup_files.PARTITIONS
    DESCRIPTION = "minutes, hours and days of queues that dbq-console recorded"

    @staticmethod
    def schema() -> pa.Schema:
        date = {"date": pa.date32()}
        partitions = [(name, date.get(name, pa.string())) for name in rollup_files.PARTITIONS]
        return pa.schema([*partitions, *rollup_files.columns()])

    def days(self) -> dict[tuple[str, str], DayMadeOf]:
        """The segments that each connection's day was made of."""
        return rollup_files.days_made_of(
            self.entries(), lambda path: read(self.lake, path).to_pylist()
        )


class ForecastTable(LakeTable):
    FOLDER = forecast_files.TABLE
    PARTITIONS = forecast_files.PARTITIONS
    DESCRIPTION = "what dbq-console expects of each hour of the week"

    @staticmethod
    def schema() -> pa.Schema:
        return pa.schema([("connection", pa.string()), *forecast_files.columns()])


def opened(lake: Lake) -> RollupTable | None:
    """None where the lake has no rollups yet. UsageError for those of an older console."""
    if lake.names("_manifests/rollup"):
        raise UsageError(
            f"The lake {lake.location} has rollups of an older console.",
            why="They are no Delta tables, and are not read.",
            next_step="Remove its folders rollup, forecast and _manifests: the days that are still "
            "recorded are rolled up again. Or name another folder with --lake.",
        )
    return RollupTable.open(lake)


def read(lake: Lake, path: str, columns: list[str] | None = None) -> pa.Table:
    """A file. DamagedError."""
    try:
        with lake.reading(path) as file:
            table: pa.Table = pq.read_table(file, columns=columns)
            return table
    except (OSError, pa.ArrowException) as error:
        missing = isinstance(error, FileNotFoundError)
        raise DamagedError(
            f"{lake.path(path)} is {'missing' if missing else 'damaged'}.",
            why="It is a file of a table." if missing else lake_tables.first_line(error),
            next_step="Put the file back from a backup of the lake. Without one, remove the day in "
            "the partition's name from the table (DeltaTable(...).delete): it is made again from "
            "what is still recorded.",
        ) from error


def file_of(lake: Lake, connection: str, day: str, kind: str, width: str) -> "PartitionFile":
    """Of the rollups."""
    values = (connection, day, kind, width)
    partition = dict(zip(rollup_files.PARTITIONS, values, strict=True))
    return PartitionFile(lake, RollupTable.FOLDER, partition, width)


class PartitionFile:
    """A new file of a table's partition, which readers find once a commit names it. Written as rows
    come; without rows there is none."""

    def __init__(self, lake: Lake, folder: str, partition: Mapping[str, str], name: str) -> None:
        """`name`: how the file's name begins."""
        self._lake = lake
        folders = [f"{of}={folder_value(value)}" for of, value in partition.items()]
        self._partition = dict(partition)
        self.path = "/".join([folder, *folders, f"{name}-{uuid.uuid4().hex}.parquet"])
        self._schema = {
            field.name: field for field in (*rollup_files.columns(), *forecast_files.columns())
        }
        self._files = ExitStack()
        self._writer: Any = None
        self._pending: list[pa.Table] = []
        self.rows = 0

    def put(self, rows: pa.Table) -> None:
        rows = rows.cast(pa.schema([self._schema[name] for name in rows.column_names]))
        if self._writer is None:
            file = self._files.enter_context(self._lake.writing(self.path))
            self._writer = self._files.enter_context(
                pq.ParquetWriter(file, rows.schema, compression="zstd")
            )
        self.rows += rows.num_rows
        self._pending.append(rows)
        if sum(one.nbytes for one in self._pending) >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._writer.write_table(pa.concat_tables(self._pending))
            self._pending.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._flush()
        self._files.__exit__(kind, error, trace)

    def entry(self) -> dict[str, Any]:
        """For the commit."""
        return {
            "path": self.path,
            "size": self._lake.size(self.path),
            "rows": self.rows,
            "partition": self._partition,
        }
