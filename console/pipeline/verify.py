"""Logs compared on Spark.

The schema of a log, Parquet, CSV with a head, or JSON lines, a file or a folder of files:

    id        text    of the message; required, and equal in both logs
    number    bigint  rises with each push; in a log of pops with each pop, as an archive_id does
    at        timestamp  when it was pushed, or popped; UTC where it has no zone
    due_at    timestamp  not to be popped before; in either log
    checksum  text    of the payload

What is missing is not judged. Pops without a number are in the order of `at`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody has it

from console.designs import Order
from console.errors import UsageError
from console.formats import plain
from console.pipeline.frames import read_location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Which pops were overtaken, as `console.designs.order` judges it, for logs of any length.
#
# A pop is overtaken where one that ran before it has a higher number and was not pushed earlier.
# Of all that ran before only those matter that no other of them outdoes in both: the front,
# which is one pop long where numbers rise with time. So a log can be judged in pieces: first the
# front of each, then each piece with the fronts of those before it.

Point = tuple[int, float]
"""A number, and when it was pushed: in any unit, as long as it rises; NaN: nobody wrote it down."""


class Front:
    """The pops that could overtake one that comes now."""

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self._points: list[Point] = []
        for point in points:
            self.add(point)

    @property
    def points(self) -> list[Point]:
        """None of them outdoes another in both."""
        return list(self._points)

    def add(self, point: Point) -> None:
        number, pushed = point[0], math.inf if math.isnan(point[1]) else point[1]
        if any(n >= number and p >= pushed for n, p in self._points):
            return
        self._points = [(n, p) for n, p in self._points if n > number or p > pushed]
        self._points.append((number, pushed))

    def overtook(self, point: Point) -> int:
        """By how many numbers the farthest of them overtook it; 0: none did."""
        number, pushed = point[0], -math.inf if math.isnan(point[1]) else point[1]
        return max((n - number for n, p in self._points if n > number and p >= pushed), default=0)


def judge(points: Iterable[Point], front: Front) -> Iterator[int]:
    """Of each pop, in the order in which they ran, by how far it was overtaken; 0: it was not."""
    for point in points:
        yield front.overtook(point)
        front.add(point)


def before(fronts: Sequence[Sequence[Point]]) -> list[list[Point]]:
    """Of each piece of a log the front of all that ran before it, from the pieces' own fronts."""
    found: list[list[Point]] = []
    so_far = Front()
    for one in fronts:
        found.append(so_far.points)
        for point in one:
            so_far.add(point)
    return found


COLUMNS = {
    "id": "string",
    "number": "bigint",
    "at": "timestamp",
    "due_at": "timestamp",
    "checksum": "string",
}
TOLERANCE = timedelta(seconds=1)
"""A server's clock may be set back in the middle of a pop."""
ARCHIVE_COLUMNS = ("archive_id", "id", "pushed_at", "done_at", "archived_at", "due_at", "reason")
"""The columns of an archive that are the log of its pops."""
SHOWN = 10
_NUMBERED = (Order.STRICT, Order.LAX, Order.NUMBERS)
_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_PIECE_ROWS = 1_000_000


@dataclass
class VerifyResult:
    order: str
    pushes: int | None
    """None: there is no log of them, so that what is lost is not known."""
    pops: int
    lost: int | None
    doubled: int
    """Pops of a message after its first."""
    unknown: int | None
    """Popped messages that nobody pushed."""
    damaged: int
    """Popped with another checksum than they were pushed with."""
    early: int
    """Popped before they were due."""
    overtaken: int | None
    """Popped after one that was pushed later; None: no order of pushes is promised."""
    farthest: int
    """By how many numbers, at most."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """Ids, by what is wrong with them."""

    @property
    def broken(self) -> list[str]:
        """What the design does not allow."""
        always = ("lost", "doubled", "unknown", "damaged")
        broken = [name for name in always if getattr(self, name)]
        if self.order == Order.DUE.value and self.early:
            broken.append("early")
        if self.order == Order.STRICT.value and self.overtaken:
            broken.append("overtaken")
        return broken

    def lines(self) -> list[str]:
        pushed = "" if self.pushes is None else f"{self.pushes:,} pushes, "
        said = "as promised" if not self.broken else f"NOT as promised: {', '.join(self.broken)}"
        names = ("lost", "doubled", "unknown", "damaged", "early", "overtaken")
        told = ((name, getattr(self, name)) for name in names)
        counts = ", ".join(f"{name} {'?' if n is None else f'{n:,}'}" for name, n in told)
        lines = [f"{pushed}{self.pops:,} pops, order {self.order}: {said}", f"  {counts}"]
        lines += [f"  {name}: {plain(' '.join(ids))}" for name, ids in self.examples.items()]
        return lines

    def as_json(self) -> dict[str, Any]:
        """The stable object of `pipeline verify --json`."""
        return {"ok": not self.broken, "broken": self.broken, **vars(self)}


def read_log(spark: "SparkSession", path: str) -> DataFrame:
    """A log. UsageError where it has no ids or is of no kind that is known."""
    found = _loaded(spark, path)
    if "id" not in found.columns:
        raise UsageError(
            f"The log {path} has no column `id`.",
            why=f"It has: {', '.join(found.columns) or 'none'}.",
            next_step=f"A log has the columns {', '.join(COLUMNS)}; id is required.",
        )
    there = set(found.columns)
    return found.select(
        *[
            (F.col(name) if name in there else F.lit(None)).cast(of).alias(name)
            for name, of in COLUMNS.items()
        ]
    )


def _loaded(spark: "SparkSession", path: str) -> DataFrame:
    from pyspark.errors import AnalysisException  # noqa: PLC0415  # the extra's

    ending = path.rstrip("/").rsplit(".", 1)[-1].lower()
    if "://" in path and not path.startswith("file:"):
        return read_location(spark, path, COLUMNS)
    try:
        if ending == "csv":
            return spark.read.option("header", "true").csv(path)
        if ending in {"jsonl", "json", "ndjson"}:
            schema = ", ".join(f"`{name}` {of}" for name, of in COLUMNS.items())
            return spark.read.schema(schema).option("mode", "FAILFAST").json(path)
        return spark.read.parquet(path)
    except AnalysisException as error:
        raise UsageError(
            f"The log {path} cannot be read.",
            why=str(error).splitlines()[0],
            next_step="Name a file that ends in .csv or .jsonl, or Parquet, or a folder of it.",
        ) from error


def pops_of_archive(rows: DataFrame, *, numbered: bool = True) -> DataFrame:
    """The log of pops in rows of the lake; `numbered`: with the pushes' numbers and times in it.

    Without a log of pushes the id has its time in it: a queue that was installed anew counts from 1
    again, and what is counted then is another message.
    """
    id_ = F.concat_ws(" ", "id", F.col("pushed_at").cast("string")) if numbered else F.col("id")
    return rows.where(F.col("reason") == "pop").select(
        id_.alias("id"),
        F.col("archive_id").alias("number"),
        F.coalesce("done_at", "archived_at").alias("at"),
        "due_at",
        F.lit(None).cast("string").alias("checksum"),
        F.expr("try_cast(id AS bigint)").alias("push_number"),
        F.col("pushed_at"),
    )


def verify(
    spark: "SparkSession", pushes: DataFrame | None, pops: DataFrame, order: Order, left: int = 0
) -> VerifyResult:
    """Compare them. `left`: so many messages were in the queue when the log of pops ended."""
    messages = together(pushes, pops).persist()
    try:
        row = messages.agg(*_counts()).first()
        assert row is not None  # noqa: S101  # an aggregate has a row
        found: dict[str, int] = {name: int(value or 0) for name, value in row.asDict().items()}
        known = pushes is not None
        result = VerifyResult(
            order=order.value,
            pushes=found["pushes"] if known else None,
            pops=found["pops"],
            lost=max(0, found["lost"] - left) if known else None,
            doubled=found["doubled"],
            unknown=found["unknown"] if known else None,
            damaged=found["damaged"],
            early=found["early"],
            overtaken=None,
            farthest=0,
        )
        result.examples = _examples(messages, result)
        if order in _NUMBERED:
            _judge_order(spark, messages, result)
        return result
    finally:
        messages.unpersist()


def together(pushes: DataFrame | None, pops: DataFrame) -> DataFrame:
    """A row a message: how often it was pushed and popped, and what is known of either."""
    popped = F.struct(
        "number", F.unix_micros("at").alias("at"), F.unix_micros("due_at").alias("due"), "id"
    )
    mine = pops.select(
        "id",
        F.lit(0).alias("pushes"),
        F.lit(1).alias("pops"),
        popped.alias("pop"),
        F.col("checksum").alias("pop_checksum"),
        _or_null(pops, "push_number", "bigint"),
        _micros_or_null(pops, "pushed_at"),
    )
    rows = mine
    if pushes is not None:
        theirs = pushes.select(
            "id",
            F.lit(1).alias("pushes"),
            F.lit(0).alias("pops"),
            F.col("checksum").alias("push_checksum"),
            F.col("number").alias("push_number"),
            F.unix_micros("at").alias("pushed_at"),
            F.unix_micros("due_at").alias("push_due"),
        )
        rows = mine.unionByName(theirs, allowMissingColumns=True)
    else:
        rows = mine.withColumns(
            {
                "push_checksum": F.lit(None).cast("string"),
                "push_due": F.lit(None).cast("bigint"),
            }
        )
    return rows.groupBy("id").agg(
        F.sum("pushes").alias("pushes"),
        F.sum("pops").alias("pops"),
        F.collect_list("pop").alias("popped"),
        F.max("push_number").alias("push_number"),
        F.max("pushed_at").alias("pushed_at"),
        F.max("push_due").alias("push_due"),
        F.min("push_checksum").alias("push_checksum"),
        F.min("pop_checksum").alias("least_checksum"),
        F.max("pop_checksum").alias("most_checksum"),
    )


def _or_null(rows: DataFrame, name: str, of: str) -> Column:
    column = F.col(name) if name in rows.columns else F.lit(None)
    return column.cast(of).alias(name)


def _micros_or_null(rows: DataFrame, name: str) -> Column:
    column = F.unix_micros(name) if name in rows.columns else F.lit(None).cast("bigint")
    return column.alias(name)


def _wrong() -> dict[str, Column]:
    """How often a message is wrong, in each way."""
    pushes, pops, none = F.col("pushes"), F.col("pops"), F.lit(0)
    expected = F.col("push_checksum")
    differs = (F.col("least_checksum") != expected) | (F.col("most_checksum") != expected)
    slack = F.lit(int(TOLERANCE.total_seconds() * 1e6))
    early = F.filter(
        "popped", lambda pop: pop["at"] < F.coalesce(pop["due"], F.col("push_due")) - slack
    )
    return {
        "lost": F.greatest(pushes - pops, none),
        "doubled": F.greatest(pops - F.greatest(pushes, F.lit(1)), none),
        "unknown": F.when(pushes == 0, 1).otherwise(0),
        "damaged": F.when(differs, 1).otherwise(0),
        "early": F.size(early),
    }


def _counts() -> Iterator[Column]:
    yield F.sum("pushes").alias("pushes")
    yield F.sum("pops").alias("pops")
    for name, column in _wrong().items():
        yield F.sum(column).alias(name)


def _examples(messages: DataFrame, result: VerifyResult) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, column in _wrong().items():
        if getattr(result, name):
            few = messages.where(column > 0).select("id").orderBy("id").limit(SHOWN).collect()
            found[name] = [row.id for row in few]
    return found


def _judge_order(spark: "SparkSession", messages: DataFrame, result: VerifyResult) -> None:
    """Count what was overtaken: pieces of the log by time, each sorted, judged side by side."""
    pops = messages.select(F.explode("popped").alias("pop"), "push_number", "pushed_at", "id")
    known = pops.select("push_number", "pushed_at", "id", "pop.number", "pop.at").where(
        F.col("push_number").isNotNull()
    )
    counted = known.agg(F.count("*").alias("all"), F.count("number").alias("numbered")).first()
    assert counted is not None  # noqa: S101  # an aggregate has a row
    if not counted["all"]:
        return
    # Numbers are drawn as pops run; times may be of their commits.
    place = "number" if counted["numbered"] == counted["all"] else "at"
    pieces = max(2, math.ceil(counted["all"] / _PIECE_ROWS))
    log = (
        known.where(F.col(place).isNotNull())
        .select(
            F.col(place).alias("place"),
            "push_number",
            F.col("pushed_at").cast("double").alias("pushed"),
            "id",
        )
        .repartitionByRange(pieces, "place")
        .sortWithinPartitions("place", "push_number")
        .select(F.spark_partition_id().alias("piece"), "push_number", "pushed", "id")
        .persist()
    )
    try:
        with _batches(spark):
            fronts = _fronts(log)
            row = log.mapInArrow(_judging(fronts), _FOUND).collect()
    finally:
        log.unpersist()
    result.overtaken = sum(one["overtaken"] for one in row)
    result.farthest = max((one["farthest"] for one in row), default=0)
    shown = [id_ for one in sorted(row, key=lambda one: one["piece"]) for id_ in one["ids"]]
    if shown:
        result.examples["overtaken"] = shown[:SHOWN]


_FRONTS = "piece int, number bigint, pushed double"
_FOUND = "piece int, overtaken bigint, farthest bigint, ids array<string>"


@contextmanager
def _batches(spark: "SparkSession") -> Iterator[None]:
    """Many rows a batch, for the while: the pipeline's sessions hand over one at a time."""
    was = spark.conf.get(_BATCH)
    spark.conf.set(_BATCH, "20000")
    try:
        yield
    finally:
        spark.conf.set(_BATCH, was or "10000")


def _fronts(log: DataFrame) -> dict[int, list[Point]]:
    """Of each piece the front of all before it."""
    own: dict[int, list[Point]] = {}
    for row in log.mapInArrow(_front_of, _FRONTS).collect():
        own.setdefault(row["piece"], []).append((row["number"], row["pushed"]))
    pieces = sorted(own)
    return dict(zip(pieces, before([own[piece] for piece in pieces]), strict=True))


def _front_of(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    front, piece = Front(), None
    for batch in batches:
        for point in _points(batch):
            front.add(point)
        piece = batch.column(0)[0].as_py() if batch.num_rows else piece
    if piece is not None:
        numbers, pushed = zip(*front.points, strict=True)
        columns = [
            pa.array([piece] * len(numbers), pa.int32()),
            pa.array(numbers, pa.int64()),
            pa.array(pushed, pa.float64()),
        ]
        yield pa.RecordBatch.from_arrays(columns, names=["piece", "number", "pushed"])


def _judging(
    fronts: dict[int, list[Point]],
) -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    def judged(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        front, piece, overtaken, farthest = Front(), None, 0, 0
        shown: list[str] = []
        for batch in batches:
            if not batch.num_rows:
                continue
            if piece is None:
                piece = batch.column(0)[0].as_py()
                front = Front(fronts[piece])
            for at, by in enumerate(judge(_points(batch), front)):
                if by:
                    overtaken += 1
                    farthest = max(farthest, by)
                    if len(shown) < SHOWN:
                        shown.append(batch.column(3)[at].as_py())
        if piece is not None:
            columns = [
                pa.array([piece], pa.int32()),
                pa.array([overtaken], pa.int64()),
                pa.array([farthest], pa.int64()),
                pa.array([shown], pa.list_(pa.string())),
            ]
            names = ["piece", "overtaken", "farthest", "ids"]
            yield pa.RecordBatch.from_arrays(columns, names=names)

    return judged


def _points(batch: "pa.RecordBatch") -> Sequence[Point]:
    numbers = batch.column(1).to_pylist()
    pushed = [math.nan if one is None else one for one in batch.column(2).to_pylist()]
    return list(zip(numbers, pushed, strict=True))
