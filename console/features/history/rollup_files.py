"""The Delta table `rollup` of a lake, for its writer and readers: partitions, columns, sketches.

    <lake>/rollup/connection=C/date=D/<kind>-<width>-....parquet

A figure with a mean has `<name>_weight` and `<name>_total`, integers, so that minutes add up to
hours exactly in any order; `<name>_avg`, their quotient; and `<name>_max`. Each kind has columns of
its own, the others are null. The kind `segments` says from which segments of recordings a day was
made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from console import state
from console.features.history.lake_tables import TableFile
from console.figures import LATENCIES, MESSAGES, PER_SECOND, SAMPLE_LATENCY, SECONDS, of_unit

if TYPE_CHECKING:
    import pyarrow as pa

WIDTHS = {"minute": 60, "hour": 3600, "day": 86_400}
"""Seconds per row, the narrowest first."""
KINDS = ("samples", "findings", "waits")

MEANS = {
    figure.name: figure.unit
    for figure in (
        *(*of_unit(MESSAGES), *of_unit(SECONDS), SAMPLE_LATENCY, *LATENCIES),
        *of_unit(PER_SECOND),
    )
}
"""Name -> unit. Of counts and seconds the means over samples; total: the sum, in the unit's scale;
weight: the samples in which it was known. Of rates the means over time; weight: microseconds;
total: millionths of a message."""

LONGEST_SAMPLE_SECONDS = 300
"""A rate holds for the time since the previous sample, but for no longer than this."""

# A sketch counts values by bucket: bucket i is for values above GAMMA**(i-1), up to GAMMA**i.
RELATIVE_ERROR = 0.01
"""The largest of a percentile, to the value at its rank."""
GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
LEAST = 1e-9
"""Up to this a value counts as 0 seconds, in the bucket ZERO."""
ZERO = -(2**31)
PERCENTILES = (50, 95, 99)
ERROR_COMMENT = (
    f"within {RELATIVE_ERROR:.0%} of the value at its rank, in a minute, an hour and a day alike"
)


def value_of(bucket: int) -> float:
    """For all values of a bucket: within RELATIVE_ERROR of each."""
    return 0.0 if bucket == ZERO else 2 * GAMMA**bucket / (GAMMA + 1)


@dataclass(frozen=True)
class DayMadeOf:
    """Segments of a day, as (kind, name)."""

    used: frozenset[tuple[str, str]]
    damaged: frozenset[tuple[str, str]]


def days_made_of(
    files: Iterable[TableFile], read: Callable[[str], list[dict[str, Any]]]
) -> dict[tuple[str, str], DayMadeOf]:
    """Of each connection and day in a table. `read`: a file's rows."""
    found = {}
    for file in files:
        if file.partition["kind"] == SEGMENTS and (rows := read(file.path)):
            names = [(row["segment_kind"], row["segment"], row["damaged"]) for row in rows]
            found[file.partition["connection"], file.partition["date"]] = DayMadeOf(
                frozenset((kind, name) for kind, name, damaged in names if not damaged),
                frozenset((kind, name) for kind, name, damaged in names if damaged),
            )
    return found


MERGED = "merged-"
"""How the names of files begin that have several segments of a recording."""
MERGED_NAMES = "segments"
"""In their metadata: a JSON list."""


def merged_names(metadata: Any) -> frozenset[str]:
    """From a merged file's metadata. ValueError."""
    return frozenset(json.loads((metadata.metadata or {}).get(MERGED_NAMES.encode(), b"[]")))


def default_lake() -> str:
    """In this user's state."""
    return str(state.folder() / "lake")


def existing_default_lake() -> str | None:
    """None where the pipeline has never written to it."""
    path = default_lake()
    return path if Path(path).is_dir() else None


TABLE = "rollup"
PARTITIONS = ("connection", "date", "kind", "width")
SEGMENTS = "segments"
"""The kind of the rows that name a day's segments; their width is `day`."""
QUEUE = ("schema", "queue")


def columns() -> pa.Schema:
    """Of all kinds, without the partitions."""
    import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once

    time, text, count, figure = pa.timestamp("us", tz="UTC"), pa.string(), pa.int64(), pa.float64()
    fields = [("begin", time), *((name, text) for name in (*QUEUE, "design")), ("samples", count)]
    fields += [("sources", pa.int32()), ("problems", count), ("estimates", count)]
    for name, unit in MEANS.items():
        fields += [(f"{name}_max", count if unit is MESSAGES else figure), (f"{name}_avg", figure)]
        fields += [(f"{name}_weight", count), (f"{name}_total", count)]
    fields += [(name, figure) for name in _PERCENTILES]
    fields += [("latency_sketch", pa.map_(pa.int32(), count))]
    fields += [(name, text) for name in ("code", "severity", "summary", "wait_kind", "wait")]
    fields += [("examinations", count), ("first_at", time), ("last_at", time)]
    fields += [("sessions_total", count), ("sessions_max", count)]
    fields += [("segment_kind", text), ("segment", text), ("damaged", pa.bool_())]
    error = {"relative_error": f"{RELATIVE_ERROR}", "gamma": f"{GAMMA}", "comment": ERROR_COMMENT}
    estimated = {"latency_sketch", *_PERCENTILES}
    return pa.schema(
        [pa.field(name, of, metadata=error if name in estimated else None) for name, of in fields]
    )


_PERCENTILES = tuple(f"latency_seconds_p{percent}" for percent in PERCENTILES)


def connection_part(connection: str) -> str:
    """The name of a connection's folder."""
    return f"connection={quote(connection, safe='')}"
