"""Parquet files as DataFrames; where Spark has no jars for the storage, Arrow reads them.

Also the filters of a replay, as functions of a DataFrame.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from console.errors import UsageError
from console.features.lake.archive import files
from console.features.lake.filters import ArchiveFilter
from console.features.lake.lake import Lake, readable
from console.features.lake.table import QueueArchive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": files.TIME,
}


def read_parquet(
    spark: "SparkSession", lake: Lake, paths: Sequence[str], columns: Mapping[str, str]
) -> DataFrame:
    """`columns`: name -> Spark's type. Those that a file lacks are null."""
    schema = ", ".join(f"`{name}` {of}" for name, of in columns.items())
    if not paths:
        return spark.createDataFrame([], schema)
    if lake.can_replace:
        return spark.read.schema(schema).parquet(*[f"file://{lake.path(path)}" for path in paths])
    numbers = spark.range(0, len(paths), 1, numPartitions=len(paths))
    return numbers.mapInArrow(_reader(lake.location, list(paths), dict(columns)), schema)


def read_location(spark: "SparkSession", uri: str, columns: Mapping[str, str]) -> DataFrame:
    """A file or folder; only the columns that it has. UsageError."""
    folder, _, name = uri.rstrip("/").rpartition("/")
    lake = Lake(folder if readable(name) else uri)
    paths = [name] if readable(name) else lake.data_files("")
    if not paths:
        raise UsageError(
            f"Nothing to read in {uri}.",
            next_step="Name a file that ends in .parquet, or a folder of such files; other "
            "formats are read from local folders only.",
        )
    with lake.reading(paths[0]) as opened, files.pq.ParquetFile(opened) as file:
        present = set(file.schema_arrow.names)
    return read_parquet(spark, lake, paths, {n: of for n, of in columns.items() if n in present})


def _reader(
    location: str, paths: list[str], columns: dict[str, str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For workers: from the numbers of files to their rows."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _rows(Lake(location), paths[number], columns)

    return read


def _rows(lake: Lake, path: str, columns: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    with lake.reading(path) as opened, files.pq.ParquetFile(opened) as file:
        present = {name for name in file.schema_arrow.names if name in columns}
        for batch in files.batches(file, sorted(present)):
            arrays = [
                batch.column(name).cast(_TYPES[of])
                if name in present
                else pa.nulls(batch.num_rows, _TYPES[of])
                for name, of in columns.items()
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


_COLUMNS = {
    "archive_id": "bigint",
    "id": "string",
    "kind": "string",
    "payload": "string",
    "payload_bytes": "binary",
    "pushed_at": "timestamp",
    "done_at": "timestamp",
    "state": "string",
    "attempts": "int",
    "error": "string",
    "reason": "string",
    "title": "string",
    "due_at": "timestamp",
    "archived_at": "timestamp",
    "more": "string",
}


def _condition(archive_filter: ArchiveFilter) -> Column:
    if archive_filter.field in {"since", "until"}:
        at, time = F.col("archived_at"), F.lit(archive_filter.time)
        # A time that no file can hold is one before the year 1.
        return at >= time if archive_filter.field == "since" else F.coalesce(at < time, F.lit(True))  # noqa: FBT003
    column, value = F.col(archive_filter.field), F.lit(archive_filter.value)
    if archive_filter.field == "payload":
        others = (
            F.contains(F.col("payload_bytes"), F.lit(text)) for text in archive_filter.encoded
        )
        return F.coalesce(column.contains(value), reduce(or_, others))
    return column == value if archive_filter.operator == "=" else column.contains(value)


def matching(rows: DataFrame, filters: Sequence[ArchiveFilter]) -> DataFrame:
    """The rows that match any of the ids and all other filters.

    Delivered messages, popped or done, only match where a filter names their reason or state.
    """
    ids = [_condition(archive_filter) for archive_filter in filters if archive_filter.is_id]
    for one in filters:
        if not one.is_id:
            rows = rows.where(_condition(one))
    if ids:
        rows = rows.where(reduce(or_, ids))
    named = {archive_filter.field for archive_filter in filters}
    reason = F.coalesce("reason", F.lit(""))
    if "reason" not in named:
        rows = rows.where(reason != "pop")
    if "state" not in named:
        rows = rows.where((F.col("state") != "done") | (reason == "pop"))
    return rows


def with_message_key(rows: DataFrame) -> DataFrame:
    """With `message`, unique even if the table was created again: the archive_id, and the time."""
    number = F.concat(F.lit("a"), F.col("archive_id").cast("string"))
    kept = F.get_json_object("more", "$.archived_at")
    moment = F.coalesce(F.unix_micros("archived_at").cast("string"), kept)
    return rows.withColumn("message", F.concat_ws(" ", number, moment))


def in_archive_order(rows: DataFrame) -> DataFrame:
    """The columns that a replay needs, in the order in which messages were archived."""
    ordered = rows.orderBy(
        F.col("archive_id").asc_nulls_last(), "done_at", F.length("id"), "id", "message"
    )
    payload = F.coalesce("payload_bytes", F.encode("payload", "UTF-8"))
    due = F.unix_micros("due_at").alias("due_us")
    return ordered.select("message", payload.alias("payload"), "title", due)


def read_archive(
    spark: "SparkSession", lake: Lake, of: QueueArchive, names: Sequence[str] = tuple(_COLUMNS)
) -> DataFrame:
    """The rows of an archive."""
    return read_parquet(spark, lake, of.files, {name: _COLUMNS[name] for name in names})
