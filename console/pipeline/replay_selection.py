"""Which archived messages are meant: filters, as functions of a DataFrame."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody has it

from console.errors import UsageError
from console.pipeline import frames as frames_of
from console.pipeline.archive.plan import Archived
from console.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMS = "id=I state=S error=E error~T reason=R reason~T title~T since=TIME until=TIME"
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
_SCHEMA = ", ".join(f"{name} {of}" for name, of in _COLUMNS.items())


@dataclass(frozen=True)
class One:
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


def parse(words: Sequence[str]) -> tuple[One, ...]:
    """UsageError for a word that is none."""
    return tuple(_parse(word) for word in words)


def _parse(word: str) -> One:
    at = min((place for by in "=~" if (place := word.find(by)) > 0), default=-1)
    name, by, value = word[:at], word[at : at + 1], word[at + 1 :]
    known = name in _TEXTS or (name in {"since", "until"} and by == "=")
    if at < 0 or not known or not value:
        raise UsageError(f"{word!r} is not a filter of replay.", next_step=f"Filters: {FORMS}")
    if name in {"since", "until"}:
        _moment(value)
    return One(name, by, value)


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a time.",
            next_step="Examples: 2026-03-28, 2026-03-28T03:00, ...+01:00",
        ) from error
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def chosen(rows: DataFrame, filters: Sequence[One]) -> DataFrame:
    """Those that are meant. Of several ids any; else all filters must hold.

    What was delivered, popped or done, is meant only by a filter that names it.
    """
    ids = [one.column() for one in filters if one.name == "id" and one.by == "="]
    for one in filters:
        if not (one.name == "id" and one.by == "="):
            rows = rows.where(one.column())
    if ids:
        any_of_them = ids[0]
        for column in ids[1:]:
            any_of_them = any_of_them | column
        rows = rows.where(any_of_them)
    named: Mapping[str, bool] = {
        "reason": any(one.name == "reason" for one in filters),
        "state": any(one.name == "state" for one in filters),
    }
    if not named["reason"]:
        rows = rows.where(F.coalesce("reason", F.lit("")) != "pop")
    if not named["state"]:
        popped = F.coalesce("reason", F.lit("")) == "pop"
        rows = rows.where((F.col("state") != "done") | popped)
    return rows


def keyed(rows: DataFrame) -> DataFrame:
    """With `message`: what makes a row the one it is, also where a table was made anew.

    Of an archive's rows their archive_id; of others id and attempts; each with its time.
    """
    number = F.coalesce(
        F.concat(F.lit("a"), F.col("archive_id").cast("string")),
        F.concat(F.lit("i"), F.col("id"), F.lit(" "), F.col("attempts").cast("string")),
    )
    moment = F.unix_micros(F.coalesce("archived_at", "done_at")).cast("string")
    return rows.withColumn("message", F.concat_ws(" ", number, moment))


def in_order(rows: DataFrame) -> DataFrame:
    """What the replay needs of them, in the order in which they came into the archive."""
    ordered = rows.orderBy(
        F.col("archive_id").asc_nulls_last(), "done_at", F.length("id"), "id", "message"
    )
    return ordered.select("message", "payload", "title", F.unix_micros("due_at").alias("due_us"))


def read(
    spark: "SparkSession", lake: Lake, of: Archived, names: Sequence[str] = tuple(_COLUMNS)
) -> DataFrame:
    """The rows of an archive in some columns, each with its `kind` of payload."""
    columns = {name: _COLUMNS[name] for name in names}
    frames = [
        frames_of.of_parquet(spark, lake, paths, columns).withColumn("kind", F.lit(kind))
        for kind, paths in (of.files or {"": ()}).items()
    ]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    return whole
