"""Rollup tables as pure functions from DataFrame to DataFrame.

Several consoles may have sampled one queue at once. Each is a source: what one source saw in a
minute is put together first. Of the sources of a minute then the one that looked most often speaks
for it, so that nobody's look is counted twice; only the highest is taken of all.

Every sum is one of whole numbers, so the order of rows changes nothing.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, GroupedData, Window
from pyspark.sql import functions as F  # noqa: N812  # as everybody has it

from console.rollup_files import (
    ERROR_WORDS,
    GAMMA,
    LEAST,
    MEANS,
    MOST,
    PERCENTILES,
    RATES,
    RELATIVE_ERROR,
    SCALES,
    WIDTHS,
    ZERO,
)

LONGEST_LOOK_SECONDS = 300
"""A rate speaks for the time since the sample before, but for no more: then nobody looked."""

_QUEUE = ("schema", "queue")
_SAMPLES = ("begin", *_QUEUE)
_DATE = "_date"
_FINDINGS = (*_SAMPLES, "code", "severity")
_WAITS = (*_SAMPLES, "kind", "wait")

_SUMS = tuple(f"{name}_{of}" for name in MEANS for of in ("weight", "total"))
_ADDED = ("looks", "problems", "estimates", *_SUMS)
_HIGHEST = tuple(f"{name}_max" for name in MEANS)


def minutes(kind: str, seen: DataFrame) -> DataFrame:
    """The minute table of rows of a kind, which have the columns of its records and `source`."""
    return {"samples": _sample_minutes, "findings": _finding_minutes, "waits": _wait_minutes}[kind](
        seen
    )


def wider(kind: str, table: DataFrame, width: str) -> DataFrame:
    """The hour table of a minute table, the day table of either."""
    seconds = WIDTHS[width]
    if kind == "findings":
        return _wider_findings(table, seconds)
    shifted = _shifted(table, seconds)
    if kind == "waits":
        return _wait_columns(_waits_added_up(shifted))
    return _told(_added_up(_together(_taken_apart(shifted)), _SAMPLES))


def _shifted(table: DataFrame, seconds: int) -> DataFrame:
    return table.withColumn("begin", _floor("begin", seconds))


# -- samples


def _sample_minutes(seen: DataFrame) -> DataFrame:
    by_source = _added_up(_looks(seen), (*_SAMPLES, "source"))
    return _told(_spoken_for(by_source))


def _looks(seen: DataFrame) -> DataFrame:
    """Each sample as a row of what is added up."""
    at = F.unix_micros("at")
    known = seen.where(F.col("at").isNotNull() & F.col("queue").isNotNull()).withColumns(
        {
            "schema": F.coalesce("schema", F.lit("")),
            "begin": _floor("at", WIDTHS["minute"]),
        }
    )
    one = Window.partitionBy("source", *_QUEUE, _DATE).orderBy("at")
    since = F.coalesce(at - F.lag(at).over(one), F.lead(at).over(one) - at, F.lit(1_000_000))
    longest = F.lit(LONGEST_LOOK_SECONDS * 1_000_000)
    timed = _together(known).withColumn("_us", F.least(since, longest))
    columns: list[Column] = [
        *(F.col(name) for name in (*_SAMPLES, "source", _DATE)),
        F.col("design"),
        F.lit(1).cast("bigint").alias("looks"),
        F.when(F.coalesce("problem", F.lit("")) != "", 1).otherwise(0).alias("problems"),
        F.when(F.coalesce("estimated", F.lit("")) != "", 1).otherwise(0).alias("estimates"),
        F.lit(1).cast("int").alias("sources"),
        _bucket(_sane("latency_seconds")).alias("bucket"),
        F.lit(1).cast("bigint").alias("number"),
    ]
    for name in MEANS:
        value, rate = _sane(name), name in RATES
        weight = F.col("_us") if rate else F.lit(1).cast("bigint")
        total = value * (weight if rate else F.lit(SCALES[name]))
        columns += [
            F.when(value.isNotNull(), weight).alias(f"{name}_weight"),
            F.round(total).cast("bigint").alias(f"{name}_total"),
            value.alias(f"{name}_max"),
        ]
    return timed.select(*columns)


def _sane(name: str) -> Column:
    """A figure that can be added up: no infinity, no NaN, nothing that cannot be."""
    value = F.col(name)
    # NaN is above everything.
    return F.when(F.abs(value) <= F.lit(MOST[name]), value)


def _bucket(value: Column) -> Column:
    place = F.ceil(F.log(value) / F.log(F.lit(GAMMA))).cast("int")
    return F.when(value <= LEAST, F.lit(ZERO)).when(value > LEAST, place)


def _added_up(parts: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Parts of rows, each with at most one bucket of a sketch, as whole rows."""
    by_bucket = _sums(parts.groupBy(_DATE, *keys, "bucket"), F.sum("number").alias("number"))
    entry = F.when(F.col("bucket").isNotNull(), F.struct("bucket", "number"))
    return _sums(
        by_bucket.groupBy(_DATE, *keys), F.sort_array(F.collect_list(entry)).alias("entries")
    )


def _sums(grouped: GroupedData, *more: Column) -> DataFrame:
    added = [F.sum(name).alias(name) for name in _ADDED]
    highest = [F.max(name).alias(name) for name in (*_HIGHEST, "sources", "design")]
    return grouped.agg(*added, *highest, *more)


def _together(rows: DataFrame) -> DataFrame:
    """A queue's day in one place: then nothing that follows has to move rows again."""
    return rows.withColumn(_DATE, F.to_date("begin")).repartition(_DATE, *_QUEUE)


def _taken_apart(table: DataFrame) -> DataFrame:
    """A table's rows as parts: each with its sums but no bucket, and beside it its buckets."""
    whole = table.select(*_SAMPLES, *_ADDED, *_HIGHEST, "sources", "design")
    buckets = table.select(*_SAMPLES, F.explode("latency_sketch").alias("bucket", "number"))
    return whole.unionByName(buckets, allowMissingColumns=True)


def _spoken_for(by_source: DataFrame) -> DataFrame:
    """Of each minute what the source that looked most often says, and the highest of all."""
    said = F.struct(*_ADDED, "entries", "design")
    spoken = by_source.groupBy(_DATE, *_SAMPLES).agg(
        F.max_by(said, F.struct("looks", -F.col("source"))).alias("said"),
        F.count_distinct("source").cast("int").alias("sources"),
        *[F.max(name).alias(name) for name in _HIGHEST],
    )
    return spoken.select(*_SAMPLES, "said.*", "sources", *_HIGHEST)


def _told(rows: DataFrame) -> DataFrame:
    """The columns of a table of samples, in their order."""
    means: list[Column] = []
    for name in MEANS:
        total, weight = F.col(f"{name}_total"), F.col(f"{name}_weight")
        mean = F.when(weight > 0, total.cast("double") / weight / F.lit(float(SCALES[name])))
        means += [F.col(f"{name}_max"), mean.alias(f"{name}_avg"), weight, total]
    error = {"relative_error": RELATIVE_ERROR, "gamma": GAMMA, "comment": ERROR_WORDS}
    sketch = F.map_from_entries("entries").cast("map<int,bigint>")
    return rows.select(
        *_SAMPLES,
        "design",
        "looks",
        "sources",
        "problems",
        "estimates",
        *means,
        *[
            _at_rank(percent).alias(f"latency_seconds_p{percent}", metadata=error)
            for percent in PERCENTILES
        ],
        sketch.alias("latency_sketch", metadata=error),
    )


def _at_rank(percent: int) -> Column:
    """The value of the bucket that holds the rank, from `entries` in order of their buckets."""
    entries = F.col("entries")
    total = F.aggregate(entries, F.lit(0).cast("bigint"), lambda n, entry: n + entry["number"])
    rank = F.greatest(F.ceil(total * percent / 100), F.lit(1))
    start = F.struct(F.lit(0).cast("bigint").alias("below"), F.lit(None).cast("int").alias("place"))

    def step(so_far: Column, entry: Column) -> Column:
        below = so_far["below"] + entry["number"]
        found = F.when(so_far["place"].isNull() & (below >= rank), entry["bucket"])
        return F.struct(below.alias("below"), F.coalesce(so_far["place"], found).alias("place"))

    place = F.aggregate(entries, start, step)["place"]
    return F.when(place == ZERO, F.lit(0.0)).otherwise(
        F.pow(F.lit(GAMMA), place) * (2 / (GAMMA + 1))
    )


# -- findings


def _finding_minutes(seen: DataFrame) -> DataFrame:
    known = seen.where(F.col("at").isNotNull()).select(
        _floor("at", WIDTHS["minute"]).alias("begin"),
        *[F.coalesce(name, F.lit("")).alias(name) for name in (*_QUEUE, "code", "severity")],
        *("source", "at", "summary"),
    )
    one = ("source", *_SAMPLES)
    looked = known.groupBy(*one).agg(F.count_distinct("at").alias("looked"))
    by_source = known.groupBy("source", *_FINDINGS).agg(
        F.count_distinct("at").alias("looks"),
        F.min("at").alias("first_at"),
        F.max("at").alias("last_at"),
        F.max(F.struct("at", "summary"))["summary"].alias("summary"),
    )
    said = F.struct("looks", "looked")
    spoken = (
        by_source.join(looked, list(one))
        .groupBy(*_FINDINGS)
        .agg(
            F.max_by(said, F.struct("looked", "looks", -F.col("source"))).alias("said"),
            *_latest(),
        )
    )
    return _finding_columns(spoken.select("*", "said.*"))


def _wider_findings(table: DataFrame, seconds: int) -> DataFrame:
    # Of every minute, also of those in which this one was not found.
    looked = _shifted(
        table.groupBy(*_SAMPLES).agg(F.max("looked").alias("looked")), seconds
    ).groupBy(*_SAMPLES)
    found = _shifted(table, seconds).groupBy(*_FINDINGS)
    return _finding_columns(
        found.agg(F.sum("looks").alias("looks"), *_latest()).join(
            looked.agg(F.sum("looked").alias("looked")), list(_SAMPLES)
        )
    )


def _latest() -> list[Column]:
    return [
        F.max_by("summary", F.struct("last_at", "summary")).alias("summary"),
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
    ]


def _finding_columns(rows: DataFrame) -> DataFrame:
    return rows.select(*_FINDINGS, "looks", "looked", "first_at", "last_at", "summary")


# -- waits


def _wait_minutes(seen: DataFrame) -> DataFrame:
    known = seen.where(F.col("at").isNotNull()).select(
        _floor("at", WIDTHS["minute"]).alias("begin"),
        *[F.coalesce(name, F.lit("")).alias(name) for name in (*_QUEUE, "kind", "wait")],
        *("source", "at"),
        F.coalesce("sessions", F.lit(0)).alias("sessions"),
    )
    by_source = known.groupBy("source", *_WAITS).agg(
        F.count_distinct("at").alias("looks"),
        F.sum("sessions").alias("sessions_total"),
        F.max("sessions").alias("sessions_max"),
    )
    said = F.struct("looks", "sessions_total")
    spoken = by_source.groupBy(*_WAITS).agg(
        F.max_by(said, F.struct("looks", -F.col("source"))).alias("said"),
        F.max("sessions_max").alias("sessions_max"),
    )
    return _wait_columns(spoken.select(*_WAITS, "said.*", "sessions_max"))


def _waits_added_up(rows: DataFrame) -> DataFrame:
    return rows.groupBy(*_WAITS).agg(
        F.sum("looks").alias("looks"),
        F.sum("sessions_total").alias("sessions_total"),
        F.max("sessions_max").alias("sessions_max"),
    )


def _wait_columns(rows: DataFrame) -> DataFrame:
    return rows.select(*_WAITS, "looks", "sessions_total", "sessions_max")


def _floor(name: str, seconds: int) -> Column:
    """The moment at which the period of so many seconds began."""
    micros = F.unix_micros(name)
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(seconds * 1_000_000)))
