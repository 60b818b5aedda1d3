"""What to expect of a queue's hours, as `pipeline rollup` has calculated from the last weeks.

Too few days have no forecast, nor has an hour of the week that was recorded too seldom.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any

from console.features.history import forecast_files
from console.features.history.forecast_files import (
    BOUNDS,
    HOUR_SECONDS,
    HOURS,
    LEAST_DAYS,
    MEASURES,
)
from console.features.history.reader import Rollups
from console.formats import numbered
from console.monitor.snapshot import Filling, QueueSnapshot

LEAST_GROWTH = 0.01
"""Of the pushes of an hour: less growth is within the error of measured rates, which adds up over a
week."""
_KEEPS = timedelta(days=14)
_NONE_YET = "no forecast: dbq-console pipeline rollup makes one from 3 weeks of recordings"


@dataclass(frozen=True)
class Band:
    """Messages an hour: 90 % are between low and high, half above the median."""

    low: float
    median: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def times(self, factor: float) -> "Band":
        return Band(self.low * factor, self.median * factor, self.high * factor)


@dataclass(frozen=True)
class Expected:
    """What to expect of one hour of the week. None: recorded too seldom."""

    pushes: Band | None = None
    pops: Band | None = None
    net: Band | None = None

    @property
    def growth(self) -> float | None:
        """Messages by which the queue certainly grows in it; negative: it shrinks."""
        if self.net is None or self.pushes is None:
            return None
        sure = self.net.low > 0 and self.net.median >= LEAST_GROWTH * self.pushes.median
        return self.net.median if sure else min(0.0, self.net.median)

    def times(self, factor: float) -> "Expected":
        bands = (getattr(self, name) for name in MEASURES)
        return Expected(*(None if band is None else band.times(factor) for band in bands))

    def as_json(self) -> dict[str, float | None]:
        """`pushes_low` to `net_high`, as the table has them."""
        bands = {name: getattr(self, name) for name in MEASURES}
        return {
            f"{name}_{bound}": None if band is None else round(getattr(band, bound), 3)
            for name, band in bands.items()
            for bound in BOUNDS
        }


_UNKNOWN = Expected()


@dataclass(frozen=True)
class Forecast:
    hours: Mapping[int, Expected] = field(default_factory=dict)
    """By the hour of the week. Empty: there is no forecast, and `why` says why."""
    zone: tzinfo = UTC
    """Of the hours of the week."""
    weeks: int = 0
    days: int = 0
    made_at: datetime | None = None
    why: str = ""
    last_day: date | None = None
    week: int = 0
    """Of which the hours are, as `week_and_hour` counts them."""
    growth: float = 1.0
    """The factor from a week to the next one."""

    def holds(self, now: datetime) -> bool:
        old = self.last_day is not None and now.date() - self.last_day > _KEEPS
        return bool(self.hours) and not old

    def at(self, moment: datetime) -> Expected:
        week, hour = forecast_files.week_and_hour(moment, self.zone)
        expected = self.hours.get(hour, _UNKNOWN)
        return expected if self.growth == 1.0 else expected.times(self.growth ** (week - self.week))

    def between(self, begin: datetime, end: datetime) -> Iterator[tuple[datetime, Expected]]:
        """The hours of a period, by their beginnings, that have a forecast."""
        if not self.hours:
            return
        moment = hour_of(begin)
        while moment < end:
            if (expected := self.at(moment)) != _UNKNOWN:
                yield moment, expected
            moment += timedelta(hours=1)

    def filling(self, seen: QueueSnapshot, now: datetime) -> Filling | None:
        """When a ring is full; None: within an hour at its present rate, or not in a week at the
        usual ones."""
        gap, capacity, present = seen.gap, seen.capacity, seen.full_in_seconds
        if not self.holds(now) or gap is None or capacity is None or gap >= capacity:
            return None
        if present is not None and present <= HOUR_SECONDS:
            return None
        seconds = full_after(capacity, gap, self._growths(now))
        if seconds is None:
            return None
        return Filling(seconds, f"{(now + timedelta(seconds=seconds)).astimezone(self.zone):%A}")

    def with_filling(self, seen: QueueSnapshot, now: datetime) -> QueueSnapshot:
        filling = self.filling(seen, now)
        return seen if filling is None else replace(seen, filling=filling)

    def _growths(self, now: datetime) -> Iterator[tuple[float, float | None]]:
        """Of the hours of a week from now: the seconds (of the first, the rest) and the growth."""
        moment, end = now, now + timedelta(hours=HOURS)
        while moment < end:
            after = hour_of(moment) + timedelta(hours=1)
            yield (after - moment).total_seconds(), self.at(moment).growth
            moment = after

    def bands(self, measure: str, begin: datetime, end: datetime) -> list[tuple[datetime, Band]]:
        found = ((at, getattr(expected, measure)) for at, expected in self.between(begin, end))
        return [(at, band) for at, band in found if band is not None]

    def as_json(self, begin: datetime, end: datetime) -> dict[str, object]:
        return {
            "why": self.why,
            "zone": forecast_files.name_of(self.zone),
            "weeks": self.weeks,
            "days": self.days,
            "made_at": None if self.made_at is None else self.made_at.isoformat(),
            "hours": [
                {"at": at.isoformat(), **expected.as_json()}
                for at, expected in self.between(begin, end)
            ],
            "growth": round(self.growth, 4),
        }


SHADES = ("░", "▒")
"""The marks of a band in a chart: its area, and the line of the medians."""
Cells = tuple[list[float], list[float]]
"""Positions of marks in a chart: times as of `timestamp()`, and messages a second."""


def cells(
    bands: Iterable[tuple[datetime, Band]],
    begin: float,
    end: float,
    top: float,
    size: tuple[int, int],
) -> tuple[Cells, Cells]:
    """The area of the bands and the line of the medians in a chart from `begin` to `end` and 0 to
    `top`; `size`: its columns and rows."""
    columns, rows = size
    across, up = (end - begin) / columns, top / rows
    by_column: defaultdict[int, list[Band]] = defaultdict(list)
    for at, band in bands:
        first, last = (int((at.timestamp() + s - begin) // across) for s in (0, HOUR_SECONDS - 1))
        for column in range(max(0, first), min(columns - 1, last) + 1):
            by_column[column].append(band)
    area: Cells = ([], [])
    line: Cells = ([], [])
    for column, found in sorted(by_column.items()):
        x = begin + (column + 0.5) * across
        ends = (min(one.low for one in found), max(one.high for one in found))
        low, high = (int(one / HOUR_SECONDS // up) for one in ends)
        for row in range(low, min(high, rows - 1) + 1):
            area[0].append(x)
            area[1].append((row + 0.5) * up)
        line[0].append(x)
        line[1].append(sum(one.median for one in found) / len(found) / HOUR_SECONDS)
    return area, line


@dataclass(frozen=True)
class BandsOfHours:
    """The background of a chart: bands by the beginnings of their hours."""

    bands: tuple[tuple[datetime, Band], ...]

    @property
    def highest(self) -> float:
        """In messages a second."""
        return max(band.high for _, band in self.bands) / HOUR_SECONDS

    def marks(
        self, begin: float, end: float, top: float, size: tuple[int, int]
    ) -> dict[str, Cells]:
        return dict(zip(SHADES, cells(self.bands, begin, end, top, size), strict=True))


def hour_of(moment: datetime) -> datetime:
    """The beginning of its hour, in UTC, where every hour has 60 minutes."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def full_after(
    capacity: float, gap: float, growths: Iterable[tuple[float, float | None]]
) -> float | None:
    """In how many seconds it is full; None: not in that time, or not known.

    `growths`: seconds, and messages an hour by which the gap grows meanwhile; None ends it.
    """
    passed = 0.0
    for seconds, growth in growths:
        if growth is None:
            return None
        after = gap + growth * seconds / HOUR_SECONDS
        if after >= capacity:
            return passed + (capacity - gap) / growth * HOUR_SECONDS
        gap, passed = max(0.0, after), passed + seconds
    return None


def read(lake: str | None, connection: str, schema: str, queue: str) -> Forecast:
    """Of one queue. ConsoleError: the lake cannot be read."""
    return of_all(lake, connection).get((schema, queue), Forecast(why=_NONE_YET))


def of_all(lake: str | None, connection: str) -> dict[tuple[str, str], Forecast]:
    """Of every queue of the connection that is in the lake."""
    if lake is None:
        return {}
    by_queue: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in Rollups(lake, connection).forecast_rows():
        by_queue[row["schema"], row["queue"]].append(row)
    found = {}
    with suppress(KeyError, TypeError, ValueError):  # no rows of this console
        for key, rows in by_queue.items():
            found[key] = _of_rows(rows)
    return found


def _of_rows(rows: list[dict[str, Any]]) -> Forecast:
    first = rows[0]
    hours = {
        row["hour"]: Expected(*(_band(row, one) for one in MEASURES))
        for row in rows
        if row["hour"] is not None
    }
    why = "" if hours else _too_short(first["days"], first["last_day"])
    zone = forecast_files.zone_named(first["zone"])
    weeks, days, made_at = first["weeks"] or 0, first["days"], first["made_at"]
    week, growth = first["week"] or 0, first["growth"] or 1.0
    return Forecast(hours, zone, weeks, days, made_at, why, first["last_day"], week, growth)


def _too_short(days: int, last: date | None) -> str:
    """How much history there is, and when it will be enough."""
    short = f"no forecast: {numbered(days, 'day')} of history, {LEAST_DAYS} are needed"
    if last is None:
        return f"{short}; no rate of it was recorded"
    enough = last + timedelta(days=max(1, LEAST_DAYS - days))
    return f"{short}; if every day is recorded and rolled up, there are enough on {enough}"


def _band(row: Mapping[str, Any], name: str) -> Band | None:
    known = [one for bound in BOUNDS if (one := row[f"{name}_{bound}"]) is not None]
    return Band(*known) if len(known) == len(BOUNDS) else None
