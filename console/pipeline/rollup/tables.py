"""Rollup tables as pure functions from Arrow table to Arrow table.

Several consoles may have sampled one queue at once. Each is a source: what one source saw in a
minute is put together first. Of the sources of a minute then the one that looked most often speaks
for it, so that nobody's look is counted twice; only the highest is taken of all.

Every sum is one of whole numbers, so the order of rows changes nothing. Texts are sorted and
grouped by their ranks.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

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
    value_of,
)

pc: Any = pyarrow.compute
Numbers = np.ndarray[Any, Any]

QUEUE = ("schema", "queue")
_OF_KIND = {
    "samples": QUEUE,
    "findings": (*QUEUE, "code", "severity"),
    "waits": (*QUEUE, "kind", "wait"),
}
"""By what the rows of a period are told apart."""
_TIME = pa.timestamp("us", tz="UTC")
_SUMS = tuple(f"{name}_{of}" for name in MEANS for of in ("weight", "total"))
_ADDED = ("looks", "problems", "estimates", *_SUMS)
_HIGHEST = tuple(f"{name}_max" for name in MEANS)
_LAST = pc.ScalarAggregateOptions(skip_nulls=False, min_count=0)


def minutes(kind: str, seen: pa.Table, microseconds: Numbers | None = None) -> pa.Table:
    """The minute table of rows of a kind, which have the columns of its records and `source`.

    Of samples `microseconds` says for how long each of them speaks.
    """
    if kind == "samples":
        return _sample_minutes(seen, microseconds)
    known = seen.filter(pc.is_valid(seen.column("at")))
    return {"findings": _finding_minutes, "waits": _wait_minutes}[kind](known)


def wider(kind: str, table: pa.Table, width: str) -> pa.Table:
    """The hour table of a minute table, the day table of that."""
    return {"samples": _wider_samples, "findings": _wider_findings, "waits": _wider_waits}[kind](
        table, WIDTHS[width]
    )


# -- groups


def ranks(table: pa.Table, names: Sequence[str]) -> tuple[Numbers, pa.Table]:
    """Of each row the rank of its texts among all that there are, and these, in that order."""
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
    found, place = np.unique(combined, return_inverse=True)
    columns = []
    for size, of in zip(reversed(sizes), reversed(texts), strict=True):
        found, at = np.divmod(found, size)
        columns.append(of.take(pa.array(at)))
    return place, pa.table(dict(zip(names, reversed(columns), strict=True)))


def _floor(column: pa.ChunkedArray, seconds: int) -> Numbers:
    """The moments at which the periods of so many seconds began, in microseconds."""
    micros = numbers(column)
    return micros - np.mod(micros, seconds * 1_000_000)


def numbers(column: pa.ChunkedArray) -> Numbers:
    """Of a column of moments or whole numbers without nulls."""
    found: Numbers = column.cast(pa.int64()).to_numpy()
    return found


def _grouped(rows: pa.Table, keys: Sequence[str], *how: tuple[Any, ...]) -> pa.Table:
    """Aggregates, each under the name of its column, in the order of the keys."""
    found = rows.group_by(list(keys), use_threads=False).aggregate(list(how))
    columns = {key: found.column(key) for key in keys}
    columns |= {one[0]: found.column(f"{one[0]}_{one[1]}") for one in how}
    return _sorted(pa.table(columns), *keys)


def _sorted(rows: pa.Table, *keys: str) -> pa.Table:
    """Nulls before all else, as the least."""
    order = [
        (key.removeprefix("-"), "descending" if key[0] == "-" else "ascending") for key in keys
    ]
    return rows.take(pc.sort_indices(rows, order, null_placement="at_start"))


def _with(rows: pa.Table, **columns: Any) -> pa.Table:
    """Columns added, or in place of those of that name."""
    found = {name: rows.column(name) for name in rows.column_names}
    return pa.table(found | columns)


def _told(rows: pa.Table, names: pa.Table, *rest: str) -> pa.Table:
    """`begin`, the texts of the ranks in `name`, and these columns."""
    texts = names.take(rows.column("name"))
    begin = rows.column("begin").cast(pa.timestamp("us")).cast(_TIME)
    columns = {name: texts.column(name) for name in texts.column_names}
    return pa.table({"begin": begin, **columns, **{name: rows.column(name) for name in rest}})


# -- samples


def _sample_minutes(seen: pa.Table, microseconds: Numbers | None) -> pa.Table:
    name, names = ranks(seen, QUEUE)
    count = seen.num_rows
    columns: dict[str, Any] = {
        "begin": pa.array(_floor(seen.column("at"), WIDTHS["minute"])),
        "name": pa.array(name),
        "source": seen.column("source"),
        "design": seen.column("design"),
        "looks": pa.array(np.ones(count, np.int64)),
        "problems": _any(seen.column("problem")),
        "estimates": _any(seen.column("estimated")),
    }
    for of in MEANS:
        value = _sane(seen.column(of), of)
        weight = microseconds if of in RATES else np.ones(count, np.int64)
        by = weight if of in RATES else SCALES[of]
        total = pc.round(
            pc.multiply(value.cast(pa.float64()), by), round_mode="half_towards_infinity"
        )
        columns[f"{of}_weight"] = pc.if_else(pc.is_valid(value), pa.array(weight), None)
        columns[f"{of}_total"] = total.cast(pa.int64())
        columns[f"{of}_max"] = value
    rows = pa.table(columns)
    bucket = _bucket(_sane(seen.column("latency_seconds"), "latency_seconds"))
    by_source = ("begin", "name", "source")
    buckets = _with(rows.select(by_source), bucket=bucket, number=columns["looks"])
    return _samples_told(*_spoken_for(*_added_up(rows, buckets, by_source)), names)


def _any(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.not_equal(pc.fill_null(texts, ""), "").cast(pa.int64())


def _sane(values: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Figures that can be added up: no infinity, no NaN, nothing that cannot be."""
    known = pc.less_equal(pc.abs(values.cast(pa.float64())), MOST[name])
    return pc.if_else(known, values, None)


def _bucket(values: pa.ChunkedArray) -> pa.Array:
    found = values.to_numpy()
    known = ~np.isnan(found)
    some = known & (found > LEAST)
    places = np.full(len(found), ZERO, np.int64)
    places[some] = np.ceil(np.log(found[some]) / np.log(GAMMA)).astype(np.int64)
    return pa.array(places, mask=~known)


def _added_up(
    rows: pa.Table, buckets: pa.Table, keys: Sequence[str]
) -> tuple[pa.Table, pa.MapArray]:
    """Rows of the same keys as one; likewise their buckets, of which each key has one or null."""
    sums = [(name, "sum") for name in _ADDED]
    highest = [(name, "max") for name in (*_HIGHEST, "design")]
    if "sources" in rows.column_names:
        highest.append(("sources", "max"))
    added = _grouped(rows, keys, *sums, *highest)
    entries = _grouped(buckets, (*keys, "bucket"), ("number", "sum"))
    known = pc.is_valid(entries.column("bucket")).to_numpy()
    changes = np.zeros(entries.num_rows, bool)
    changes[:1] = True
    for key in keys:
        of = entries.column(key).to_numpy()
        changes[1:] |= of[1:] != of[:-1]
    starts = np.flatnonzero(changes)
    counts = np.add.reduceat(known.astype(np.int64), starts) if len(starts) else starts
    return added, _sketches(counts, entries.filter(pa.array(known)))


def _sketches(counts: Numbers, entries: pa.Table) -> pa.MapArray:
    """A map a row: of so many of the entries each."""
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    places = entries.column("bucket").combine_chunks().cast(pa.int32())
    number = entries.column("number").combine_chunks()
    return pa.MapArray.from_arrays(pa.array(offsets), places, number)


def _spoken_for(by_source: pa.Table, sketches: pa.MapArray) -> tuple[pa.Table, pa.MapArray]:
    """Of each minute what the source that looked most often says, and the highest of all."""
    placed = _with(
        by_source, place=pa.array(np.arange(by_source.num_rows)), sources=by_source.column("source")
    )
    ordered = _sorted(placed, "begin", "name", "-looks", "source")
    ordered = _with(ordered, first=ordered.column("place"))
    highest = [(name, "max") for name in _HIGHEST]
    spoken = _grouped(
        ordered, ("begin", "name"), ("first", "first"), ("sources", "count_distinct"), *highest
    )
    first = spoken.column("first")
    said = by_source.take(first)
    of_all = {name: spoken.column(name) for name in _HIGHEST}
    sources = spoken.column("sources").cast(pa.int32())
    return _with(said, sources=sources, **of_all), sketches.take(first.combine_chunks())


def _wider_samples(table: pa.Table, seconds: int) -> pa.Table:
    name, names = ranks(table, QUEUE)
    rows = _with(table, begin=pa.array(_floor(table.column("begin"), seconds)), name=pa.array(name))
    keys = ("begin", "name")
    sketches = table.column("latency_sketch").combine_chunks()
    parent = np.repeat(np.arange(table.num_rows), np.diff(sketches.offsets.to_numpy()))
    mine = rows.select(keys)
    nothing = pa.nulls(table.num_rows, pa.int32())
    buckets = pa.concat_tables(
        [
            _with(mine, bucket=nothing, number=nothing.cast(pa.int64())),
            _with(mine.take(pa.array(parent)), bucket=sketches.keys, number=sketches.items),
        ]
    )
    return _samples_told(*_added_up(rows, buckets, keys), names)


def _samples_told(rows: pa.Table, sketches: pa.MapArray, names: pa.Table) -> pa.Table:
    """The columns of a table of samples, in their order."""
    columns: dict[str, Any] = {}
    for name in MEANS:
        total, weight = rows.column(f"{name}_total"), rows.column(f"{name}_weight")
        some = pc.if_else(pc.greater(weight, 0), weight, None).cast(pa.float64())
        mean = pc.divide(pc.divide(total.cast(pa.float64()), some), float(SCALES[name]))
        columns |= {f"{name}_max": rows.column(f"{name}_max"), f"{name}_avg": mean}
        columns |= {f"{name}_weight": weight, f"{name}_total": total}
    for percent in PERCENTILES:
        columns[f"latency_seconds_p{percent}"] = _at_rank(sketches, percent)
    columns["latency_sketch"] = sketches
    told = _told(rows, names, "design", "looks", "sources", "problems", "estimates")
    error = {"relative_error": f"{RELATIVE_ERROR}", "gamma": f"{GAMMA}", "comment": ERROR_WORDS}
    estimated = {"latency_sketch", *(f"latency_seconds_p{percent}" for percent in PERCENTILES)}
    told = _with(told, **columns)
    return told.cast(
        pa.schema(
            field.with_metadata(error) if field.name in estimated else field
            for field in told.schema
        )
    )


def _at_rank(sketches: pa.MapArray, percent: int) -> pa.Array:
    """The value of the bucket that holds the rank; null of nothing."""
    offsets = sketches.offsets.to_numpy()
    upto = np.concatenate([[0], np.cumsum(sketches.items.to_numpy())])
    below, total = upto[offsets[:-1]], upto[offsets[1:]] - upto[offsets[:-1]]
    rank = np.maximum(np.ceil(total * percent / 100), 1).astype(np.int64)
    at = np.searchsorted(upto, below + rank) - 1
    places = np.append(sketches.keys.to_numpy(), ZERO)[np.minimum(at, len(sketches.keys))]
    found, place = np.unique(places, return_inverse=True)
    values = np.array([value_of(int(one)) for one in found])[place]
    return pa.array(values, mask=total == 0)


# -- findings


_FOUND = ("first_at", "last_at", "summary")


def _finding_minutes(seen: pa.Table) -> pa.Table:
    name, names = ranks(seen, _OF_KIND["findings"])
    at = seen.column("at")
    rows = _with(
        seen.select(["source", "summary"]),
        begin=pa.array(_floor(at, WIDTHS["minute"])),
        name=pa.array(name),
        queue=pa.array(ranks(seen, QUEUE)[0]),
        looks=at,
        first_at=at,
        last_at=at,
    )
    looked = _grouped(
        _with(rows, looked=at), ("begin", "queue", "source"), ("looked", "count_distinct")
    )
    by_source = _grouped(
        _sorted(rows, "last_at", "summary"),
        ("begin", "name", "source"),
        ("queue", "first"),
        ("looks", "count_distinct"),
        *_latest(),
    )
    both = by_source.join(looked, ["begin", "queue", "source"])
    spoken = _grouped(
        _with(
            _sorted(both, "looked", "looks", "-source"),
        ),
        ("begin", "name"),
        ("looks", "last"),
        ("looked", "last"),
    )
    latest = _grouped(_sorted(both, "last_at", "summary"), ("begin", "name"), *_latest())
    return _findings_told(_with(spoken, **{n: latest.column(n) for n in _FOUND}), names)


def _wider_findings(table: pa.Table, seconds: int) -> pa.Table:
    name, names = ranks(table, _OF_KIND["findings"])
    queue = pa.array(ranks(table, QUEUE)[0])
    rows = _with(table, name=pa.array(name), of=queue)
    # Of every period, also of those in which this one was not found.
    looked = _grouped(rows, ("begin", "of"), ("looked", "max"))
    begins = [pa.array(_floor(one.column("begin"), seconds)) for one in (rows, looked)]
    looked = _grouped(_with(looked, begin=begins[1]), ("begin", "of"), ("looked", "sum"))
    found = _grouped(
        _sorted(_with(rows, begin=begins[0]), "last_at", "summary"),
        ("begin", "name"),
        ("of", "first"),
        ("looks", "sum"),
        *_latest(),
    )
    return _findings_told(_sorted(found.join(looked, ["begin", "of"]), "begin", "name"), names)


def _latest() -> list[tuple[Any, ...]]:
    """Of rows in order of `last_at` and `summary`."""
    return [("first_at", "min"), ("last_at", "max"), ("summary", "last", _LAST)]


def _findings_told(rows: pa.Table, names: pa.Table) -> pa.Table:
    return _told(rows, names, "looks", "looked", *_FOUND)


# -- waits


def _wait_minutes(seen: pa.Table) -> pa.Table:
    name, names = ranks(seen, _OF_KIND["waits"])
    sessions = pc.fill_null(seen.column("sessions"), 0)
    rows = pa.table(
        {
            "begin": pa.array(_floor(seen.column("at"), WIDTHS["minute"])),
            "name": pa.array(name),
            "source": seen.column("source"),
            "looks": seen.column("at"),
            "sessions_total": sessions,
            "sessions_max": sessions,
        }
    )
    by_source = _grouped(
        rows,
        ("begin", "name", "source"),
        ("looks", "count_distinct"),
        ("sessions_total", "sum"),
        ("sessions_max", "max"),
    )
    spoken = _grouped(
        _sorted(by_source, "looks", "-source"),
        ("begin", "name"),
        ("looks", "last"),
        ("sessions_total", "last"),
        ("sessions_max", "max"),
    )
    return _waits_told(spoken, names)


def _wider_waits(table: pa.Table, seconds: int) -> pa.Table:
    name, names = ranks(table, _OF_KIND["waits"])
    rows = _with(table, begin=pa.array(_floor(table.column("begin"), seconds)), name=pa.array(name))
    added = [("looks", "sum"), ("sessions_total", "sum"), ("sessions_max", "max")]
    return _waits_told(_grouped(rows, ("begin", "name"), *added), names)


def _waits_told(rows: pa.Table, names: pa.Table) -> pa.Table:
    return _told(rows, names, "looks", "sessions_total", "sessions_max")
