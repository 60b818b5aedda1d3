"""The forecast's table in the lake: its places, columns, and the hours of the week that it is by.

    <lake>/forecast/connection=C/<generation>.parquet
    <lake>/_manifests/forecast/connection=C.json

A table is written whole under a name of its own; the manifest, which names it, after it: readers
trust that alone. Whoever writes and whoever reads take it from here.

The hours of a week are those of one time zone, which the manifest names: what people do keeps to
their clocks, so in UTC all of it would be an hour off after a change to or from summer time.
"""

from datetime import UTC, datetime, tzinfo
from pathlib import Path

from console.rollup_files import connection_part

HOURS = 168
HOUR_SECONDS = 3600
WEEKS = 8
"""The last so many are looked at."""
LEAST_WEEKS = 3
"""An hour of the week that was seen in fewer has no forecast."""
LEAST_DAYS = 7 * LEAST_WEEKS
"""Nor has a queue of which there are fewer days."""
BAND_PERCENT = 90

MEASURES = ("pushes", "pops", "net")
"""Messages an hour. `net` is pushes less pops: by how much a queue grows."""
BOUNDS = ("low", "median", "high")
COLUMNS = tuple(f"{measure}_{bound}" for measure in MEASURES for bound in BOUNDS)

UTC_NAME = "UTC"


def folder(connection: str) -> str:
    """Where in the lake the tables of one connection lie."""
    return f"forecast/{connection_part(connection)}"


def manifest(connection: str) -> str:
    """Where it says which of them is meant."""
    return f"_manifests/forecast/{connection_part(connection)}.json"


def week_and_hour(at: datetime, zone: tzinfo) -> tuple[int, int]:
    """The number of the week that a moment is in, and the hour of it: 0 is Monday, 00:00."""
    local = at.astimezone(zone)
    return (local.toordinal() - 1) // 7, local.weekday() * 24 + local.hour


def hour_of_week(at: datetime, zone: tzinfo) -> int:
    """0 to 167, from Monday, 00:00 in that zone on."""
    return week_and_hour(at, zone)[1]


def zone_named(name: str) -> tzinfo:
    """ValueError where there is none of that name here."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415  # verbs start at once

    if name == UTC_NAME:
        return UTC  # also where the machine has no time zones
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError) as error:
        raise ValueError(f"no time zone {name!r} is known here") from error


def name_of(zone: tzinfo | None) -> str:
    """By which another machine knows it; None is this one's own, UTC where that has no name."""
    if zone is None:
        # A link into the time zones of the system: .../zoneinfo/Europe/Prague.
        _, found, name = str(Path("/etc/localtime").resolve()).rpartition("/zoneinfo/")
        return name if found else UTC_NAME
    return getattr(zone, "key", UTC_NAME)
