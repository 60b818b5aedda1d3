"""The Delta table `forecast` of a lake, for its writer and readers: columns, hours of the week.

    <lake>/forecast/connection=C/....parquet

A queue has a row for each hour of the week, or one without an hour where too little was recorded.
The figures are of the week `week`, and grow by the factor `growth` each week.

Hours are of the time zone in the rows: people live by local time, so in UTC the whole forecast
would be an hour off after each change to or from summer time.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

HOURS = 168
HOUR_SECONDS = 3600
WEEKS = 8
"""The most recent ones are used."""
LEAST_WEEKS = 3
"""An hour of the week that was recorded in fewer has no forecast."""
LEAST_DAYS = 7 * LEAST_WEEKS
"""A queue with fewer recorded days has none either."""
BAND_PERCENT = 90

MEASURES = ("pushes", "pops", "net")
"""Messages per hour. `net`: pushes minus pops."""
BOUNDS = ("low", "median", "high")
COLUMNS = tuple(f"{measure}_{bound}" for measure in MEASURES for bound in BOUNDS)

UTC_NAME = "UTC"


TABLE = "forecast"
PARTITIONS = ("connection",)


def columns() -> pa.Schema:
    """Without the partition."""
    import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once

    texts = [(name, pa.string()) for name in ("schema", "queue")]
    counts = [(name, pa.int64()) for name in ("hour", "days", "weeks", "week")]
    made = [("last_day", pa.date32()), ("zone", pa.string())]
    figures = [(name, pa.float64()) for name in ("growth", *COLUMNS)]
    time = ("made_at", pa.timestamp("us", tz="UTC"))
    return pa.schema([*texts, *counts, *made, time, *figures])


def week_and_hour(at: datetime, zone: tzinfo) -> tuple[int, int]:
    """The number of the week, and the hour in it: 0 is Monday, 00:00."""
    local = at.astimezone(zone)
    return (local.toordinal() - 1) // 7, local.weekday() * 24 + local.hour


def zone_named(name: str) -> tzinfo:
    """ValueError for an unknown name."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415  # verbs start at once

    if name == UTC_NAME:
        return UTC  # even where the machine has no time zone data
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError) as error:
        raise ValueError(f"the time zone {name!r} is not known here") from error


def name_of(zone: tzinfo | None) -> str:
    """Known on other machines too. None: this machine's zone, UTC where that has no name."""
    if zone is None:
        # A link to .../zoneinfo/Europe/Prague.
        _, linked, name = str(Path("/etc/localtime").resolve()).rpartition("/zoneinfo/")
        return name if linked else UTC_NAME
    return getattr(zone, "key", UTC_NAME)
