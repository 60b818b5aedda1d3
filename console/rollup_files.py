"""The tables of a rollup: their widths, names, places, and the sketch that percentiles come from.

    <lake>/rollup/{minute,hour,day}/<kind>/connection=C/date=D/*.parquet
    <lake>/_manifests/rollup/connection=C/date=D.json

Whoever writes them and whoever reads them take it from here. Of a quantity that has a mean there
are `<name>_weight` and `<name>_total`, whole numbers, so that minutes add up to hours exactly
whatever their order; `<name>_avg`, which is their quotient; and `<name>_max`.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

from console import state

WIDTHS = {"minute": 60, "hour": 3600, "day": 86_400}
"""The seconds of a row, the narrowest first."""
KINDS = ("samples", "findings", "waits")

COUNTS = (
    *("ready", "scheduled", "claimed", "stuck", "errors", "done"),
    *("gap", "capacity", "holders"),
)
"""Means over samples. Total: the sum; weight: the samples in which it was known."""
LATENCIES = tuple(
    f"{kind}_p{percent}_seconds" for kind in ("waiting", "processing") for percent in (50, 95, 99)
)
"""How long messages waited and work on them took, as each sample had it."""
SECONDS = ("age_seconds", "held_seconds", "latency_seconds", *LATENCIES)
"""Means over samples. Total: the sum in milliseconds; of latencies in microseconds."""
RATES = ("push_per_second", "pop_per_second")
"""Means over time. Weight: microseconds; total: millionths of a message."""
MEANS = (*COUNTS, *SECONDS, *RATES)

SCALES = {
    **dict.fromkeys((*COUNTS, *RATES), 1),
    "age_seconds": 1_000,
    "held_seconds": 1_000,
    **dict.fromkeys(("latency_seconds", *LATENCIES), 1_000_000),
}
"""So many of a total's units are one of the mean's."""
MOST = {
    **dict.fromkeys(COUNTS, 1e12),
    **dict.fromkeys(RATES, 1e7),
    "age_seconds": 1e10,
    "held_seconds": 1e10,
    "latency_seconds": 1e6,
    **dict.fromkeys(LATENCIES, 1e7),
}
"""What is beyond is no figure but a fault, and unknown: so the totals of a day fit a bigint."""

LONGEST_LOOK_SECONDS = 300
"""A rate speaks for the time since the sample before, but for no more: then nobody looked."""

RELATIVE_ERROR = 0.01
"""So far at most a percentile is from the value at its rank."""
GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
LEAST = 1e-9
"""What is not above it counts as 0 seconds."""
ZERO = -(2**31)
"""The bucket of that."""
PERCENTILES = (50, 95, 99)
ERROR_WORDS = (
    f"within {RELATIVE_ERROR:.0%} of the value at its rank, in a minute, an hour and a day alike"
)


def bucket(value: float) -> int:
    """Where a value is counted: bucket i holds what is above GAMMA**(i-1) and up to GAMMA**i."""
    return ZERO if value <= LEAST else math.ceil(math.log(value) / math.log(GAMMA))


def value_of(place: int) -> float:
    """What stands for all values of a bucket: none of them is farther off than RELATIVE_ERROR."""
    return 0.0 if place == ZERO else 2 * GAMMA**place / (GAMMA + 1)


def merged(sketches: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """One sketch of all that they have counted; exact."""
    found: dict[int, int] = {}
    for sketch in sketches:
        for place, number in sketch.items():
            found[place] = found.get(place, 0) + number
    return found


def percentile(sketch: Mapping[int, int], percent: float) -> float | None:
    """The value at rank ceil(percent * n / 100), within RELATIVE_ERROR; None of nothing."""
    rank = max(1, math.ceil(percent * sum(sketch.values()) / 100))
    below = 0
    for place, number in sorted(sketch.items()):
        below += number
        if below >= rank:
            return value_of(place)
    return None


def mean(name: str, total: int, weight: int) -> float | None:
    """The mean of a quantity in its own unit; None where it was never known."""
    return total / weight / SCALES[name] if weight else None


def default_lake() -> str:
    """Where a lake is that nobody names: in the state of this user."""
    return str(state.folder() / "lake")


def existing_default_lake() -> str | None:
    """Where this user's pipeline puts what it is not told a lake for; None where it never has."""
    place = default_lake()
    return place if Path(place).is_dir() else None


def folder(width: str, kind: str, connection: str) -> str:
    return f"rollup/{width}/{kind}/{connection_part(connection)}"


def manifests(connection: str) -> str:
    return f"_manifests/rollup/{connection_part(connection)}"


def manifest(connection: str, day: object) -> str:
    """Where it says of what segments a day was made."""
    return f"{manifests(connection)}/date={day}.json"


def connection_part(connection: str) -> str:
    """The folder's name of a connection: whatever its name is, one name of a file."""
    return f"connection={quote(connection, safe='')}"
