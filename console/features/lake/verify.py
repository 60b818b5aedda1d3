"""Verify: compare logs of pushes and pops on Spark.

A log is Parquet, CSV with a header, or JSON lines; a file or a folder of files:

    id        text       of the message; required, the same in both logs
    number    bigint     rises with each push; in a log of pops with each pop, as archive_id does
    at        timestamp  when it was pushed or popped; UTC unless it has a zone
    due_at    timestamp  in either log: not to be popped earlier
    checksum  text       of the payload

Missing columns are not checked. Pops without a number are ordered by `at`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from console.designs import Order
from console.errors import UsageError
from console.features.lake.frames import read_location
from console.formats import plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Which pops were overtaken, as in `console.designs.order`, for logs of any length.
#
# A pop is overtaken if an earlier pop has a higher number and was not pushed earlier. Of all
# earlier pops only the Pareto front matters: those that no other exceeds in both number and time
# (one pop, where numbers rise with time). So a log can be checked in pieces: first the front of
# each piece, then each piece with the fronts of those before it.

Numbers = np.ndarray[Any, Any]
Point = tuple[int, float]
"""A push's number, and its time in any unit; NaN: unknown."""


class Front:
    """The pops that can overtake a later one."""

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self._points: list[Point] = []
        for point in points:
            self.add(point)

    @property
    def points(self) -> list[Point]:
        return list(self._points)

    def add(self, point: Point) -> None:
        number, pushed = point[0], math.inf if math.isnan(point[1]) else point[1]
        if any(n >= number and p >= pushed for n, p in self._points):
            return
        self._points = [(n, p) for n, p in self._points if n > number or p > pushed]
        self._points.append((number, pushed))

    def overtook(self, point: Point) -> int:
        """By how many numbers at most; 0: not overtaken."""
        number, pushed = point[0], -math.inf if math.isnan(point[1]) else point[1]
        return max((n - number for n, p in self._points if n > number and p >= pushed), default=0)

    def judged(self, numbers: Numbers, pushed: Numbers) -> Numbers:
        """For each pop of a log, in order, by how many numbers it was overtaken; 0: it was not.
        Then they are in the front."""
        added = np.where(np.isnan(pushed), np.inf, pushed)
        # Beyond all before it in both: not overtaken, and then it alone is the front.
        most = max((n for n, _ in self._points), default=np.iinfo(np.int64).min)
        last = max((p for _, p in self._points), default=-np.inf)
        beyond = numbers > np.maximum.accumulate(np.append(most, numbers))[:-1]
        beyond &= added >= np.maximum.accumulate(np.append(last, added))[:-1]
        ndarray = np.zeros(len(numbers), np.int64)
        for at in np.flatnonzero(~beyond):
            self._restart(numbers, added, beyond, int(at) - 1)
            point = int(numbers[at]), float(pushed[at])
            ndarray[at] = self.overtook(point)
            self.add(point)
        self._restart(numbers, added, beyond, len(numbers) - 1)
        return ndarray

    def _restart(self, numbers: Numbers, added: Numbers, beyond: Numbers, at: int) -> None:
        if at >= 0 and beyond[at]:
            self._points = [(int(numbers[at]), float(added[at]))]


def before(fronts: Sequence[Sequence[Point]]) -> list[list[Point]]:
    """For each piece of a log the front of all pieces before it, from the pieces' own fronts."""
    earlier: list[list[Point]] = []
    so_far = Front()
    for front in fronts:
        earlier.append(so_far.points)
        for point in front:
            so_far.add(point)
    return earlier


COLUMNS = {
    "id": "string",
    "number": "bigint",
    "at": "timestamp",
    "due_at": "timestamp",
    "checksum": "string",
}
TOLERANCE = timedelta(seconds=1)
"""A server's clock may be set back during a pop."""
ARCHIVE_COLUMNS = ("archive_id", "id", "pushed_at", "done_at", "archived_at", "due_at", "reason")
"""An archive's columns that make up its log of pops."""
SHOWN = 10
_NUMBERED = (Order.STRICT, Order.LAX, Order.NUMBERS)
_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_PIECE_ROWS = 1_000_000


@dataclass
class VerifyResult:
    order: str
    pushes: int | None
    """None: without a log of pushes it is not known what was lost."""
    pops: int
    lost: int | None
    doubled: int
    """Pops of a message after its first."""
    unknown: int | None
    """Popped, but never pushed."""
    damaged: int
    """Popped with another checksum than pushed."""
    early: int
    """Popped before they were due."""
    overtaken: int | None
    """Popped after one pushed later; None: no order of pushes is promised."""
    farthest: int
    """Overtaken by so many numbers, at most."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """Ids, by what is wrong."""

    @property
    def broken(self) -> list[str]:
        """Which promises of the design."""
        always = ("lost", "doubled", "unknown", "damaged")
        broken = [name for name in always if getattr(self, name)]
        if self.order == Order.DUE.value and self.early:
            broken.append("early")
        if self.order == Order.STRICT.value and self.overtaken:
            broken.append("overtaken")
        return broken

    def lines(self) -> list[str]:
        pushed = "" if self.pushes is None else f"{self.pushes:,} pushes, "
        verdict = "as promised" if not self.broken else f"NOT as promised: {', '.join(self.broken)}"
        names = ("lost", "doubled", "unknown", "damaged", "early", "overtaken")
        figures = ((name, getattr(self, name)) for name in names)
        counts = ", ".join(f"{name} {'?' if n is None else f'{n:,}'}" for name, n in figures)
        lines = [f"{pushed}{self.pops:,} pops, order {self.order}: {verdict}", f"  {counts}"]
        lines += [f"  {name}: {plain(' '.join(ids))}" for name, ids in self.examples.items()]
        return lines

    def as_json(self) -> dict[str, Any]:
        """The stable object of `pipeline verify --json`."""
        return {"ok": not self.broken, "broken": self.broken, **vars(self)}


def read_log(spark: "SparkSession", path: str) -> DataFrame:
    """UsageError where it has no ids or its format is not known."""
    log = _loaded(spark, path)
    if "id" not in log.columns:
        raise UsageError(
            f"The log {path} has no column `id`.",
            why=f"It has: {', '.join(log.columns) or 'none'}.",
            next_step=f"A log has the columns {', '.join(COLUMNS)}; id is required.",
        )
    return log.select(*[_or_null(log, name, of) for name, of in COLUMNS.items()])


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
            next_step="Name a .csv, .jsonl or Parquet file, or a folder of them.",
        ) from error


def pops_of_archive(rows: DataFrame, *, numbered: bool = True) -> DataFrame:
    """The log of pops in an archive.

    `numbered`: without a log of pushes. Then ids contain the time of the push: a queue that was
    installed again counts from 1 again.
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
    """`left`: messages in the queue when the log of pops ended."""
    messages = together(pushes, pops).persist()
    try:
        row = messages.agg(*_counts()).first()
        assert row is not None  # noqa: S101  # an aggregate has a row
        counts: dict[str, int] = {name: int(value or 0) for name, value in row.asDict().items()}
        known = pushes is not None
        result = VerifyResult(
            order=order.value,
            pushes=counts["pushes"] if known else None,
            pops=counts["pops"],
            lost=max(0, counts["lost"] - left) if known else None,
            doubled=counts["doubled"],
            unknown=counts["unknown"] if known else None,
            damaged=counts["damaged"],
            early=counts["early"],
            overtaken=None,
            farthest=0,
        )
        result.examples = _examples(messages, result)
        if order in _NUMBERED:
            _check_order(spark, messages, result)
        return result
    finally:
        messages.unpersist()


def together(pushes: DataFrame | None, pops: DataFrame) -> DataFrame:
    """A row per message: its pushes and pops."""
    popped = F.struct(
        "number", F.unix_micros("at").alias("at"), F.unix_micros("due_at").alias("due"), "id"
    )
    rows = pops.select(
        "id",
        F.lit(0).alias("pushes"),
        F.lit(1).alias("pops"),
        popped.alias("pop"),
        F.col("checksum").alias("pop_checksum"),
        _or_null(pops, "push_number", "bigint"),
        _micros_or_null(pops, "pushed_at"),
    )
    if pushes is not None:
        pushed = pushes.select(
            "id",
            F.lit(1).alias("pushes"),
            F.lit(0).alias("pops"),
            F.col("checksum").alias("push_checksum"),
            F.col("number").alias("push_number"),
            F.unix_micros("at").alias("pushed_at"),
            F.unix_micros("due_at").alias("push_due"),
        )
        rows = rows.unionByName(pushed, allowMissingColumns=True)
    else:
        rows = rows.withColumns(
            {"push_checksum": F.lit(None).cast("string"), "push_due": F.lit(None).cast("bigint")}
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
    """For each kind of error, how often a message has it."""
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
    examples: dict[str, list[str]] = {}
    for name, column in _wrong().items():
        if getattr(result, name):
            few = messages.where(column > 0).select("id").orderBy("id").limit(SHOWN).collect()
            examples[name] = [row.id for row in few]
    return examples


def _check_order(spark: "SparkSession", messages: DataFrame, result: VerifyResult) -> None:
    """Count overtaken pops: the log in sorted pieces, checked in parallel."""
    pops = messages.select(F.explode("popped").alias("pop"), "push_number", "pushed_at", "id")
    known = pops.select("push_number", "pushed_at", "id", "pop.number", "pop.at").where(
        F.col("push_number").isNotNull()
    )
    counted = known.agg(F.count("*").alias("all"), F.count("number").alias("numbered")).first()
    assert counted is not None  # noqa: S101  # an aggregate has a row
    if not counted["all"]:
        return
    # Numbers are drawn as pops run; times may be those of commits.
    position = "number" if counted["numbered"] == counted["all"] else "at"
    pieces = max(2, math.ceil(counted["all"] / _PIECE_ROWS))
    log = (
        known.where(F.col(position).isNotNull())
        .select(
            F.col(position).alias("position"),
            "push_number",
            F.col("pushed_at").cast("double").alias("pushed"),
            "id",
        )
        .repartitionByRange(pieces, "position")
        .sortWithinPartitions("position", "push_number")
        .select(F.spark_partition_id().alias("piece"), "push_number", "pushed", "id")
        .persist()
    )
    try:
        with _batches(spark):
            fronts = _fronts(log)
            rows = log.mapInArrow(_checker(fronts), _OVERTAKEN).collect()
    finally:
        log.unpersist()
    result.overtaken = sum(row["overtaken"] for row in rows)
    result.farthest = max((row["farthest"] for row in rows), default=0)
    ids = [id_ for row in sorted(rows, key=lambda one: one["piece"]) for id_ in row["ids"]]
    if ids:
        result.examples["overtaken"] = ids[:SHOWN]


_FRONTS = "piece int, number bigint, pushed double"
_OVERTAKEN = "piece int, overtaken bigint, farthest bigint, ids array<string>"


@contextmanager
def _batches(spark: "SparkSession") -> Iterator[None]:
    """Larger Arrow batches than the pipeline's sessions are configured with."""
    was = spark.conf.get(_BATCH)
    spark.conf.set(_BATCH, "20000")
    try:
        yield
    finally:
        spark.conf.set(_BATCH, was or "10000")


def _fronts(log: DataFrame) -> dict[int, list[Point]]:
    """For each piece the front of all before it."""
    own: dict[int, list[Point]] = {}
    for row in log.mapInArrow(_front_of, _FRONTS).collect():
        own.setdefault(row["piece"], []).append((row["number"], row["pushed"]))
    pieces = sorted(own)
    return dict(zip(pieces, before([own[piece] for piece in pieces]), strict=True))


def _front_of(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    front, piece = Front(), None
    for batch in batches:
        front.judged(*_points(batch))
        piece = batch.column(0)[0].as_py() if batch.num_rows else piece
    if piece is not None:
        numbers, pushed = zip(*front.points, strict=True)
        columns = [
            pa.array([piece] * len(numbers), pa.int32()),
            pa.array(numbers, pa.int64()),
            pa.array(pushed, pa.float64()),
        ]
        yield pa.RecordBatch.from_arrays(columns, names=["piece", "number", "pushed"])


def _checker(
    fronts: dict[int, list[Point]],
) -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    def check(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        front, piece, overtaken, farthest = Front(), None, 0, 0
        ids: list[str] = []
        for batch in batches:
            if not batch.num_rows:
                continue
            if piece is None:
                piece = batch.column(0)[0].as_py()
                front = Front(fronts[piece])
            by = front.judged(*_points(batch))
            overtaken += int(np.count_nonzero(by))
            farthest = max(farthest, int(by.max()))
            some = np.flatnonzero(by)[: SHOWN - len(ids)]
            ids += batch.column(3).take(pa.array(some)).to_pylist()
        if piece is not None:
            columns = [
                pa.array([piece], pa.int32()),
                pa.array([overtaken], pa.int64()),
                pa.array([farthest], pa.int64()),
                pa.array([ids], pa.list_(pa.string())),
            ]
            names = ["piece", "overtaken", "farthest", "ids"]
            yield pa.RecordBatch.from_arrays(columns, names=names)

    return check


def _points(batch: "pa.RecordBatch") -> tuple[Numbers, Numbers]:
    """Numbers, and times with NaN for null."""
    return batch.column(1).to_numpy(), batch.column(2).to_numpy(zero_copy_only=False)
