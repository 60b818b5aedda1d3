"""Parquet files as a DataFrame, also of places that Spark has no jars for: Arrow reads those."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from console.errors import UsageError
from console.pipeline.archive import files
from console.pipeline.lake import Lake, readable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": files.TIME,
}


def of_parquet(
    spark: "SparkSession", lake: Lake, paths: Sequence[str], columns: Mapping[str, str]
) -> "DataFrame":
    """Their rows; columns with Spark's types. What a file lacks is null."""
    schema = ", ".join(f"`{name}` {of}" for name, of in columns.items())
    if not paths:
        return spark.createDataFrame([], schema)
    if lake.renames:
        return spark.read.schema(schema).parquet(*[f"file://{lake.path(path)}" for path in paths])
    numbers = spark.range(0, len(paths), 1, numPartitions=len(paths))
    return numbers.mapInArrow(_reading(lake.place, list(paths), dict(columns)), schema)


def of_place(spark: "SparkSession", place: str, columns: Mapping[str, str]) -> "DataFrame":
    """A file or a folder by its URI, in those of the columns that it has. UsageError."""
    folder, _, name = place.rstrip("/").rpartition("/")
    lake = Lake(folder if readable(name) else place)
    paths = [name] if readable(name) else lake.data_files("")
    if not paths:
        raise UsageError(
            f"Nothing to read in {place}.",
            next_step="Name a file that ends in .parquet, or a place with such files; other "
            "formats are read from folders only.",
        )
    with lake.reading(paths[0]) as opened, files.pq.ParquetFile(opened) as file:
        there = set(file.schema_arrow.names)
    return of_parquet(spark, lake, paths, {n: of for n, of in columns.items() if n in there})


def _reading(
    place: str, paths: list[str], columns: dict[str, str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a worker does: the rows of the files whose numbers it is sent, a part at a time."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _rows(Lake(place), paths[number], columns)

    return read


def _rows(lake: Lake, path: str, columns: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    with lake.reading(path) as opened, files.pq.ParquetFile(opened) as file:
        there = {name for name in file.schema_arrow.names if name in columns}
        for part in files.batches(file, sorted(there)):
            found = [
                part.column(name).cast(_TYPES[of])
                if name in there
                else pa.nulls(part.num_rows, _TYPES[of])
                for name, of in columns.items()
            ]
            yield pa.RecordBatch.from_arrays(found, names=list(columns))
