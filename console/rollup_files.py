"""The rollup tables, for their writers and readers: widths, paths, columns, percentile sketches.

    <lake>/rollup/{minute,hour,day}/<kind>/connection=C/date=D/*.parquet
    <lake>/_manifests/rollup/connection=C/date=D.json

A figure with a mean has `<name>_weight` and `<name>_total`, integers, so that minutes add up to
hours exactly in any order; `<name>_avg`, their quotient; and `<name>_max`.
"""

from pathlib import Path
from urllib.parse import quote

from console import state

WIDTHS = {"minute": 60, "hour": 3600, "day": 86_400}
"""Seconds per row, the narrowest first."""
KINDS = ("samples", "findings", "waits")

COUNTS = (
    *("ready", "scheduled", "claimed", "stuck", "errors", "done"),
    *("gap", "capacity", "holders"),
)
"""Means over samples. Total: the sum; weight: the samples in which it was known."""
LATENCIES = tuple(
    f"{kind}_p{percent}_seconds" for kind in ("waiting", "processing") for percent in (50, 95, 99)
)
"""Of messages, as each sample measured them."""
SECONDS = ("age_seconds", "held_seconds", "latency_seconds", *LATENCIES)
"""Means over samples. Total: the sum in milliseconds, of latencies in microseconds."""
RATES = ("push_per_second", "pop_per_second")
"""Means over time. Weight: microseconds; total: millionths of a message."""
MEANS = (*COUNTS, *SECONDS, *RATES)

SCALES = {
    **dict.fromkeys((*COUNTS, *RATES), 1),
    "age_seconds": 1_000,
    "held_seconds": 1_000,
    **dict.fromkeys(("latency_seconds", *LATENCIES), 1_000_000),
}
"""Units of a total per unit of the mean."""
MOST = {
    **dict.fromkeys(COUNTS, 1e12),
    **dict.fromkeys(RATES, 1e7),
    "age_seconds": 1e10,
    "held_seconds": 1e10,
    "latency_seconds": 1e6,
    **dict.fromkeys(LATENCIES, 1e7),
}
"""A larger value is an error, and counts as unknown: so the totals of a day fit a bigint."""

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


def default_lake() -> str:
    """In this user's state."""
    return str(state.folder() / "lake")


def existing_default_lake() -> str | None:
    """None where the pipeline has never written to it."""
    path = default_lake()
    return path if Path(path).is_dir() else None


def folder(width: str, kind: str, connection: str) -> str:
    return f"rollup/{width}/{kind}/{connection_part(connection)}"


def manifests(connection: str) -> str:
    return f"_manifests/rollup/{connection_part(connection)}"


def manifest(connection: str, day: object) -> str:
    """Says which segments a day was made from."""
    return f"{manifests(connection)}/date={day}.json"


def connection_part(connection: str) -> str:
    """The name of a connection's folder."""
    return f"connection={quote(connection, safe='')}"
