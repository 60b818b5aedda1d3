"""Parquet files as a DataFrame, also of places that Spark has no jars for: Arrow reads those. Which
archived messages a replay means: filters, as functions of a DataFrame."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody has it

from console.errors import UsageError
from console.pipeline.archive import files
from console.pipeline.archive.plan import QueueArchive
from console.pipeline.lake import Lake, readable

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
    """Their rows; columns with Spark's types. What a file lacks is null."""
    schema = ", ".join(f"`{name}` {of}" for name, of in columns.items())
    if not paths:
        return spark.createDataFrame([], schema)
    if lake.can_replace:
        return spark.read.schema(schema).parquet(*[f"file://{lake.path(path)}" for path in paths])
    numbers = spark.range(0, len(paths), 1, numPartitions=len(paths))
    return numbers.mapInArrow(_reading(lake.location, list(paths), dict(columns)), schema)


def read_location(spark: "SparkSession", place: str, columns: Mapping[str, str]) -> DataFrame:
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
    return read_parquet(spark, lake, paths, {n: of for n, of in columns.items() if n in there})


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


FILTER_FORMS = "id=I state=S error=E error~T reason=R reason~T title~T since=TIME until=TIME"
_TEXTS = ("id", "state", "error", "reason", "title")
_COLUMNS = {
    "archive_id": "bigint",
    "id": "string",
    "payload": "binary",
    "pushed_at": "timestamp",
    "done_at": "timestamp",
    "state": "string",
    "attempts": "int",
    "error": "string",
    "reason": "string",
    "title": "string",
    "due_at": "timestamp",
    "archived_at": "timestamp",
}


@dataclass(frozen=True)
class ArchiveFilter:
    """One condition: a column, `=`, `~` (has the text in it), and what it is compared with."""

    name: str
    by: str
    value: str

    @property
    def word(self) -> str:
        return f"{self.name}{self.by}{self.value}"

    def column(self) -> Column:
        if self.name in {"since", "until"}:
            moment = F.lit(_moment(self.value))
            at = F.coalesce("archived_at", "done_at")
            return at >= moment if self.name == "since" else at < moment
        held = F.col(self.name)
        return held == F.lit(self.value) if self.by == "=" else held.contains(F.lit(self.value))


def parse_filters(words: Sequence[str]) -> tuple[ArchiveFilter, ...]:
    """UsageError for a word that is none."""
    return tuple(_parse(word) for word in words)


def _parse(word: str) -> ArchiveFilter:
    at = min((place for by in "=~" if (place := word.find(by)) > 0), default=-1)
    name, by, value = word[:at], word[at : at + 1], word[at + 1 :]
    known = name in _TEXTS or (name in {"since", "until"} and by == "=")
    if at < 0 or not known or not value:
        raise UsageError(
            f"{word!r} is not a filter of replay.", next_step=f"Filters: {FILTER_FORMS}"
        )
    if name in {"since", "until"}:
        _moment(value)
    return ArchiveFilter(name, by, value)


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a time.",
            next_step="Examples: 2026-03-28, 2026-03-28T03:00, ...+01:00",
        ) from error
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def matching(rows: DataFrame, filters: Sequence[ArchiveFilter]) -> DataFrame:
    """Those that are meant. Of several ids any; else all filters must hold.

    What was delivered, popped or done, is meant only by a filter that names it.
    """
    ids = [one.column() for one in filters if one.name == "id" and one.by == "="]
    for one in filters:
        if not (one.name == "id" and one.by == "="):
            rows = rows.where(one.column())
    if ids:
        rows = rows.where(reduce(or_, ids))
    named = {one.name for one in filters}
    reason = F.coalesce("reason", F.lit(""))
    if "reason" not in named:
        rows = rows.where(reason != "pop")
    if "state" not in named:
        rows = rows.where((F.col("state") != "done") | (reason == "pop"))
    return rows


def with_message_key(rows: DataFrame) -> DataFrame:
    """With `message`: what makes a row the one it is, also where a table was made anew.

    Of an archive's rows their archive_id; of others id and attempts; each with its time.
    """
    number = F.coalesce(
        F.concat(F.lit("a"), F.col("archive_id").cast("string")),
        F.concat(F.lit("i"), F.col("id"), F.lit(" "), F.col("attempts").cast("string")),
    )
    moment = F.unix_micros(F.coalesce("archived_at", "done_at")).cast("string")
    return rows.withColumn("message", F.concat_ws(" ", number, moment))


def in_archive_order(rows: DataFrame) -> DataFrame:
    """What the replay needs of them, in the order in which they came into the archive."""
    ordered = rows.orderBy(
        F.col("archive_id").asc_nulls_last(), "done_at", F.length("id"), "id", "message"
    )
    return ordered.select("message", "payload", "title", F.unix_micros("due_at").alias("due_us"))


def read_archive(
    spark: "SparkSession", lake: Lake, of: QueueArchive, names: Sequence[str] = tuple(_COLUMNS)
) -> DataFrame:
    """The rows of an archive in some columns, each with its `kind` of payload."""
    columns = {name: _COLUMNS[name] for name in names}
    frames = [
        read_parquet(spark, lake, paths, columns).withColumn("kind", F.lit(kind))
        for kind, paths in (of.files or {"": ()}).items()
    ]
    return reduce(DataFrame.unionByName, frames)
