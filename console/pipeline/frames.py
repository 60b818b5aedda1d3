"""Parquet files as a DataFrame, also of places that Spark has no jars for: Arrow reads those."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from console.pipeline.lake import Lake

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def of_parquet(
    spark: "SparkSession", lake: Lake, paths: Sequence[str], schema: str | StructType
) -> "DataFrame":
    """Their rows in the columns of a schema; a column that a file lacks is null."""
    if isinstance(schema, str):
        schema = StructType.fromDDL(schema)
    if not paths:
        return spark.createDataFrame([], schema)
    if lake.renames:
        return spark.read.schema(schema).parquet(*[f"file://{lake.path(path)}" for path in paths])
    places = spark.range(0, len(paths), 1, numPartitions=len(paths))
    return places.mapInArrow(_reading(lake.place, list(paths), schema), schema)


def _reading(
    place: str, paths: list[str], schema: StructType
) -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    """What a worker does: the rows of the files whose numbers it is sent, a part at a time."""

    def read(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa  # noqa: PLC0415  # in the worker
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

        from console.pipeline.archive import files  # noqa: PLC0415

        wanted = to_arrow_schema(schema, timezone="UTC")
        lake = Lake(place)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with lake.reading(paths[number]) as opened, files.pq.ParquetFile(opened) as file:
                    there = set(file.schema_arrow.names)
                    names = [name for name in wanted.names if name in there]
                    for part in files.batches(file, names):
                        columns = [
                            part.column(field.name).cast(field.type)
                            if field.name in there
                            else pa.nulls(part.num_rows, field.type)
                            for field in wanted
                        ]
                        yield pa.RecordBatch.from_arrays(columns, schema=wanted)

    return read
