"""The rollup tables, as pure functions from Arrow table to Arrow table.

Several consoles (sources) may have sampled a queue at the same time. Each source's samples of a
minute are aggregated first. Then the source with the most samples represents the minute, so that
nothing counts twice; only maxima are taken over all sources.

All sums are of integers, so the order of rows makes no difference. Texts are sorted and grouped by
rank. The stored columns `samples` and `examinations` are counts: for a finding, of those that found
it, and of all of its queue.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from console.features.history.rollup_files import (
    GAMMA,
    LEAST,
    MEANS,
    PERCENTILES,
    QUEUE,
    WIDTHS,
    ZERO,
    value_of,
)
from console.figures import PER_SECOND

pc: Any = pyarrow.compute
Numbers = np.ndarray[Any, Any]

_OF_KIND = {
    "samples": QUEUE,
    "findings": (*QUEUE, "code", "severity"),
    "waits": (*QUEUE, "wait_kind", "wait"),
}
"""The columns that identify a row within a period."""
_TIME = pa.timestamp("us", tz="UTC")
_SUMS = tuple(f"{name}_{of}" for name in MEANS for of in ("weight", "total"))
_ADDED = ("samples", "problems", "estimates", *_SUMS)
_HIGHEST = tuple(f"{name}_max" for name in MEANS)
_LAST = pc.ScalarAggregateOptions(skip_nulls=False, min_count=0)


def minutes(kind: str, rows: pa.Table, microseconds: Numbers | None = None) -> pa.Table:
    """The minute table of recorded rows, which have a `source`.

    `microseconds`: of samples, for how long the rates of each hold.
    """
    if kind == "samples":
        return _sample_minutes(rows, microseconds)
    rows = rows.filter(pc.is_valid(rows.column("at")))
    return {"findings": _finding_minutes, "waits": _wait_minutes}[kind](rows)


def wider(kind: str, table: pa.Table, width: str) -> pa.Table:
    """From a minute table to hours, from an hour table to days."""
    return {"samples": _wider_samples, "findings": _wider_findings, "waits": _wider_waits}[kind](
        table, WIDTHS[width]
    )


# -- groups


def ranks(table: pa.Table, names: Sequence[str]) -> tuple[Numbers, pa.Table]:
    """Each row's rank by these texts, and a table of the distinct texts by rank."""
    combined = np.zeros(table.num_rows, np.int64)
    sizes, texts = [], []
    for name in names:
        filled = pc.fill_null(table.column(name), "").combine_chunks()
        coded = filled.dictionary_encode()
        order = pc.sort_indices(coded.dictionary).to_numpy()
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        texts.append(coded.dictionary.take(pa.array(order)))
        sizes.append(max(len(order), 1))
        combined = combined * sizes[-1] + rank[coded.indices.to_numpy()]
    distinct, row_ranks = np.unique(combined, return_inverse=True)
    columns = []
    for size, of in zip(reversed(sizes), reversed(texts), strict=True):
        distinct, at = np.divmod(distinct, size)
        columns.append(of.take(pa.array(at)))
    return row_ranks, pa.table(dict(zip(names, reversed(columns), strict=True)))


def _floor(column: pa.ChunkedArray, seconds: int) -> Numbers:
    """The beginnings of the periods, in microseconds."""
    micros = numbers(column)
    return micros - np.mod(micros, seconds * 1_000_000)


def numbers(column: pa.ChunkedArray) -> Numbers:
    """Of a column of times or integers without nulls."""
    values: Numbers = column.cast(pa.int64()).to_numpy()
    return values


def _grouped(rows: pa.Table, keys: Sequence[str], *aggregates: tuple[Any, ...]) -> pa.Table:
    """Each aggregate has the name of its column; sorted by the keys."""
    result = rows.group_by(list(keys), use_threads=False).aggregate(list(aggregates))
    columns = {key: result.column(key) for key in keys}
    columns |= {
        aggregate[0]: result.column(f"{aggregate[0]}_{aggregate[1]}") for aggregate in aggregates
    }
    return _sorted(pa.table(columns), *keys)


def _sorted(rows: pa.Table, *keys: str) -> pa.Table:
    """By keys, `-key` descending; nulls first."""
    order = [
        (key.removeprefix("-"), "descending" if key[0] == "-" else "ascending") for key in keys
    ]
    return rows.take(pc.sort_indices(rows, order, null_placement="at_start"))


def _with(rows: pa.Table, **columns: Any) -> pa.Table:
    """Columns added or replaced."""
    return pa.table({name: rows.column(name) for name in rows.column_names} | columns)


def _select(rows: pa.Table, names: pa.Table, *rest: str) -> pa.Table:
    """`begin`, the texts for the ranks in `name`, and these columns."""
    texts = names.take(rows.column("name"))
    begin = rows.column("begin").cast(pa.timestamp("us")).cast(_TIME)
    columns = {name: texts.column(name) for name in texts.column_names}
    return pa.table({"begin": begin, **columns, **{name: rows.column(name) for name in rest}})


# -- samples


def _sample_minutes(samples: pa.Table, microseconds: Numbers | None) -> pa.Table:
    name, names = ranks(samples, QUEUE)
    count = samples.num_rows
    columns: dict[str, Any] = {
        "begin": pa.array(_floor(samples.column("at"), WIDTHS["minute"])),
        "name": pa.array(name),
        "source": samples.column("source"),
        "design": samples.column("design"),
        "samples": pa.array(np.ones(count, np.int64)),
        "problems": _has_text(samples.column("problem")),
        "estimates": _has_text(samples.column("estimated")),
    }
    for of, unit in MEANS.items():
        value = _plausible(samples.column(of), of)
        weight = microseconds if unit is PER_SECOND else np.ones(count, np.int64)
        factor = weight if unit is PER_SECOND else unit.scale
        total = pc.round(
            pc.multiply(value.cast(pa.float64()), factor), round_mode="half_towards_infinity"
        )
        columns[f"{of}_weight"] = pc.if_else(pc.is_valid(value), pa.array(weight), None)
        columns[f"{of}_total"] = total.cast(pa.int64())
        columns[f"{of}_max"] = value
    rows = pa.table(columns)
    bucket = _bucket(_plausible(samples.column("latency_seconds"), "latency_seconds"))
    by_source = ("begin", "name", "source")
    buckets = _with(rows.select(by_source), bucket=bucket, number=columns["samples"])
    return _sample_columns(*_one_source(*_summed(rows, buckets, by_source)), names)


def _has_text(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.not_equal(pc.fill_null(texts, ""), "").cast(pa.int64())


def _plausible(values: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Without infinities, NaN and values beyond the most of its unit."""
    plausible = pc.less_equal(pc.abs(values.cast(pa.float64())), MEANS[name].most)
    return pc.if_else(plausible, values, None)


def _bucket(values: pa.ChunkedArray) -> pa.Array:
    seconds = values.to_numpy()
    known = ~np.isnan(seconds)
    some = known & (seconds > LEAST)
    buckets = np.full(len(seconds), ZERO, np.int64)
    buckets[some] = np.ceil(np.log(seconds[some]) / np.log(GAMMA)).astype(np.int64)
    return pa.array(buckets, mask=~known)


def _summed(rows: pa.Table, buckets: pa.Table, keys: Sequence[str]) -> tuple[pa.Table, pa.MapArray]:
    """One row per key, and its sketch; `buckets` has rows for every key, some of null."""
    sums = [(name, "sum") for name in _ADDED]
    highest = [(name, "max") for name in (*_HIGHEST, "design")]
    if "sources" in rows.column_names:
        highest.append(("sources", "max"))
    summed = _grouped(rows, keys, *sums, *highest)
    entries = _grouped(buckets, (*keys, "bucket"), ("number", "sum"))
    known = pc.is_valid(entries.column("bucket")).to_numpy()
    changes = np.zeros(entries.num_rows, bool)
    changes[:1] = True
    for key in keys:
        of = entries.column(key).to_numpy()
        changes[1:] |= of[1:] != of[:-1]
    starts = np.flatnonzero(changes)
    counts = np.add.reduceat(known.astype(np.int64), starts) if len(starts) else starts
    return summed, _sketches(counts, entries.filter(pa.array(known)))


def _sketches(counts: Numbers, entries: pa.Table) -> pa.MapArray:
    """A map per row, each of so many entries."""
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    buckets = entries.column("bucket").combine_chunks().cast(pa.int32())
    number = entries.column("number").combine_chunks()
    return pa.MapArray.from_arrays(pa.array(offsets), buckets, number)


def _one_source(by_source: pa.Table, sketches: pa.MapArray) -> tuple[pa.Table, pa.MapArray]:
    """Per minute the row of the source with the most samples, with the maxima of all."""
    rows = _with(
        by_source, first=pa.array(np.arange(by_source.num_rows)), sources=by_source.column("source")
    )
    highest = [(name, "max") for name in _HIGHEST]
    grouped = _grouped(
        _sorted(rows, "begin", "name", "-samples", "source"),
        ("begin", "name"),
        ("first", "first"),
        ("sources", "count_distinct"),
        *highest,
    )
    first = grouped.column("first")
    maxima = {name: grouped.column(name) for name in _HIGHEST}
    sources = grouped.column("sources").cast(pa.int32())
    rows = _with(by_source.take(first), sources=sources, **maxima)
    return rows, sketches.take(first.combine_chunks())


def _wider_samples(table: pa.Table, seconds: int) -> pa.Table:
    name, names = ranks(table, QUEUE)
    rows = _with(table, begin=pa.array(_floor(table.column("begin"), seconds)), name=pa.array(name))
    keys = ("begin", "name")
    sketches = table.column("latency_sketch").combine_chunks()
    parent = np.repeat(np.arange(table.num_rows), np.diff(sketches.offsets.to_numpy()))
    row_keys = rows.select(keys)
    nulls = pa.nulls(table.num_rows, pa.int32())
    buckets = pa.concat_tables(
        [
            _with(row_keys, bucket=nulls, number=nulls.cast(pa.int64())),
            _with(row_keys.take(pa.array(parent)), bucket=sketches.keys, number=sketches.items),
        ]
    )
    return _sample_columns(*_summed(rows, buckets, keys), names)


def _sample_columns(rows: pa.Table, sketches: pa.MapArray, names: pa.Table) -> pa.Table:
    """In their order."""
    columns: dict[str, Any] = {}
    for name, unit in MEANS.items():
        total, weight = rows.column(f"{name}_total"), rows.column(f"{name}_weight")
        some = pc.if_else(pc.greater(weight, 0), weight, None).cast(pa.float64())
        mean = pc.divide(pc.divide(total.cast(pa.float64()), some), float(unit.scale))
        columns |= {f"{name}_max": rows.column(f"{name}_max"), f"{name}_avg": mean}
        columns |= {f"{name}_weight": weight, f"{name}_total": total}
    for percent in PERCENTILES:
        columns[f"latency_seconds_p{percent}"] = _at_rank(sketches, percent)
    columns["latency_sketch"] = sketches
    table = _select(rows, names, "design", "samples", "sources", "problems", "estimates")
    return _with(table, **columns)


def _at_rank(sketches: pa.MapArray, percent: int) -> pa.Array:
    """The value of the bucket with the rank; null for an empty sketch."""
    offsets = sketches.offsets.to_numpy()
    upto = np.concatenate([[0], np.cumsum(sketches.items.to_numpy())])
    below, total = upto[offsets[:-1]], upto[offsets[1:]] - upto[offsets[:-1]]
    rank = np.maximum(np.ceil(total * percent / 100), 1).astype(np.int64)
    at = np.searchsorted(upto, below + rank) - 1
    buckets = np.append(sketches.keys.to_numpy(), ZERO)[np.minimum(at, len(sketches.keys))]
    distinct, index = np.unique(buckets, return_inverse=True)
    values = np.array([value_of(int(one)) for one in distinct])[index]
    return pa.array(values, mask=total == 0)


# -- findings


_FOUND = ("first_at", "last_at", "summary")


def _finding_minutes(findings: pa.Table) -> pa.Table:
    name, names = ranks(findings, _OF_KIND["findings"])
    at = findings.column("at")
    rows = _with(
        findings.select(["source", "summary"]),
        begin=pa.array(_floor(at, WIDTHS["minute"])),
        name=pa.array(name),
        queue=pa.array(ranks(findings, QUEUE)[0]),
        samples=at,
        first_at=at,
        last_at=at,
    )
    examinations = _grouped(
        _with(rows, examinations=at),
        ("begin", "queue", "source"),
        ("examinations", "count_distinct"),
    )
    by_source = _grouped(
        _sorted(rows, "last_at", "summary"),
        ("begin", "name", "source"),
        ("queue", "first"),
        ("samples", "count_distinct"),
        *_latest(),
    )
    both = by_source.join(examinations, ["begin", "queue", "source"])
    chosen = _grouped(
        _sorted(both, "examinations", "samples", "-source"),
        ("begin", "name"),
        ("samples", "last"),
        ("examinations", "last"),
    )
    latest = _grouped(_sorted(both, "last_at", "summary"), ("begin", "name"), *_latest())
    return _finding_columns(_with(chosen, **{n: latest.column(n) for n in _FOUND}), names)


def _wider_findings(table: pa.Table, seconds: int) -> pa.Table:
    name, names = ranks(table, _OF_KIND["findings"])
    queue = pa.array(ranks(table, QUEUE)[0])
    rows = _with(table, name=pa.array(name), of=queue)
    # In every period, even where the finding was absent.
    examinations = _grouped(rows, ("begin", "of"), ("examinations", "max"))
    begins = [pa.array(_floor(one.column("begin"), seconds)) for one in (rows, examinations)]
    examinations = _grouped(
        _with(examinations, begin=begins[1]), ("begin", "of"), ("examinations", "sum")
    )
    grouped = _grouped(
        _sorted(_with(rows, begin=begins[0]), "last_at", "summary"),
        ("begin", "name"),
        ("of", "first"),
        ("samples", "sum"),
        *_latest(),
    )
    return _finding_columns(
        _sorted(grouped.join(examinations, ["begin", "of"]), "begin", "name"), names
    )


def _latest() -> list[tuple[Any, ...]]:
    """For rows sorted by `last_at` and `summary`."""
    return [("first_at", "min"), ("last_at", "max"), ("summary", "last", _LAST)]


def _finding_columns(rows: pa.Table, names: pa.Table) -> pa.Table:
    return _select(rows, names, "samples", "examinations", *_FOUND)


# -- waits


def _wait_minutes(waits: pa.Table) -> pa.Table:
    waits = _with(waits, wait_kind=waits.column("kind"))
    name, names = ranks(waits, _OF_KIND["waits"])
    sessions = pc.fill_null(waits.column("sessions"), 0)
    rows = pa.table(
        {
            "begin": pa.array(_floor(waits.column("at"), WIDTHS["minute"])),
            "name": pa.array(name),
            "source": waits.column("source"),
            "samples": waits.column("at"),
            "sessions_total": sessions,
            "sessions_max": sessions,
        }
    )
    by_source = _grouped(
        rows,
        ("begin", "name", "source"),
        ("samples", "count_distinct"),
        ("sessions_total", "sum"),
        ("sessions_max", "max"),
    )
    chosen = _grouped(
        _sorted(by_source, "samples", "-source"),
        ("begin", "name"),
        ("samples", "last"),
        ("sessions_total", "last"),
        ("sessions_max", "max"),
    )
    return _wait_columns(chosen, names)


def _wider_waits(table: pa.Table, seconds: int) -> pa.Table:
    name, names = ranks(table, _OF_KIND["waits"])
    rows = _with(table, begin=pa.array(_floor(table.column("begin"), seconds)), name=pa.array(name))
    added = [("samples", "sum"), ("sessions_total", "sum"), ("sessions_max", "max")]
    return _wait_columns(_grouped(rows, ("begin", "name"), *added), names)


def _wait_columns(rows: pa.Table, names: pa.Table) -> pa.Table:
    return _select(rows, names, "samples", "sessions_total", "sessions_max")
