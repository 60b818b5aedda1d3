"""When a figure left its usual band: change points by a robust CUSUM over minute values.

Usual is the median of a time of reference, its scale 1.4826 x the median of the distances to it
(MAD), but at least a tenth of the median and the figure's own floor. Each minute's distance from
the median, in scales, is cut off at CLIP, so that one odd minute proves nothing. What exceeds SLACK
is added up and never falls below zero; above THRESHOLD the figure has left its band: in the minute
that splits best into two levels what came since the sum left zero. It is back with the second
minute in a row within SLACK.

The time of reference is the first of these that is known: the forecast's band (pushes and pops);
the same time of day on at least three of the last seven days, minute by minute; the hour before;
the minutes before.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import fmean, median

from console.features.history.forecast import Band, Forecast
from console.features.history.forecast_files import HOUR_SECONDS
from console.features.history.points import Point
from console.features.why.events import FIGURE, Event
from console.features.why.recorded import QueueRecord
from console.figures import (
    AGE,
    CLAIMED,
    ERRORS,
    FORECASTS,
    GAP,
    LATENCIES,
    LATENCY,
    LATENCY_KINDS,
    MESSAGES,
    POP,
    PUSH,
    READY,
    SAMPLE_LATENCY,
    STUCK,
    Figure,
    Unit,
)

SLACK, THRESHOLD, CLIP = 1.0, 8.0, 5.0
"""In scales."""
SHARE = 0.1
"""The least scale, as a part of the median."""
_MAD = 1.4826
_OF_BAND = 1.645
"""Scales from the median to the edge of a band that holds 90 %."""
_WINDOW = timedelta(hours=2)
_HOUR = timedelta(hours=1)
SPAN = _WINDOW + _HOUR
"""What is read: the time in question, and the hour before it."""
DAYS = 7
_LEAST_DAYS = 3
_LEAST_MINUTES = 8
"""With fewer, nothing is known to be usual; of the hour before, and of a day, 20."""
_ENOUGH_MINUTES = 20
_DAY = 1440
_AROUND = 7
"""Minutes before and after a minute that are of the same time of day."""
_HOURS = {figure: measure for measure, figure in FORECASTS.items()}
"""What the forecast has of a figure."""
_BACK = 2
_LAST = 3
"""The minutes whose median is what a figure is now."""


@dataclass(frozen=True)
class Measure:
    name: str
    title: str
    unit: Unit
    floor: float
    """The least scale."""
    harm: int = 0
    """The direction that harms: 1 up, -1 down, 0 neither."""
    level: bool = False
    """What adds up until someone clears it: usual is what it was just before."""


def _measure(figure: Figure, floor: float, harm: int = 0, *, level: bool = False) -> Measure:
    return Measure(figure.name, figure.title, figure.unit, floor, harm, level)


NEW_ERRORS, _SESSIONS = "new_errors", "sessions"
_WAITING, _PROCESSING = (
    next(one for one in LATENCIES if one.name == f"{kind}_p95_seconds") for kind in LATENCY_KINDS
)
MEASURES = {
    one.name: one
    for one in (
        _measure(POP, 0.5),
        _measure(PUSH, 0.5),
        _measure(READY, 20, 1),
        _measure(AGE, 5.0, 1),
        Measure(NEW_ERRORS, "new errors a minute", MESSAGES, 1, 1),
        _measure(STUCK, 1, 1, level=True),
        Measure(_SESSIONS, "sessions of consumers", MESSAGES, 0.5),
        Measure("lock_waits", "sessions that wait for a lock", MESSAGES, 1),
        _measure(_PROCESSING, 0.05, 1),
        _measure(_WAITING, 0.25, 1),
        _measure(CLAIMED, 5),
        _measure(GAP, 20, 1),
        Measure(SAMPLE_LATENCY.name, SAMPLE_LATENCY.title, LATENCY, 0.02),
    )
}
"""In the order in which they are shown."""


@dataclass(frozen=True)
class Usual:
    median: float
    scale: float
    basis: str
    """What it is from."""


@dataclass(frozen=True)
class Change:
    """That a figure left its usual band."""

    measure: Measure
    at: datetime
    until: datetime | None
    """When it was back; None: it is not."""
    direction: int
    value: float
    """The median of the last minutes outside."""
    usual: Usual
    before: bool = False
    """It was outside from the beginning: it left earlier."""

    @property
    def harms(self) -> bool:
        return self.direction == self.measure.harm

    @property
    def share(self) -> float:
        """By how much of what is usual it changed."""
        return abs(self.value - self.usual.median) / max(self.usual.median, self.measure.floor)

    @property
    def words(self) -> str:
        """`pop/s fell: usually 310.0, now 20.0`. It has the value of now beside the time of its
        beginning: so each says which it is."""
        text = self.measure.unit.text
        verb, now = (
            "rose" if self.direction > 0 else "fell",
            "now" if self.until is None else "then",
        )
        usual, value = text(self.usual.median), text(self.value)
        return f"{self.measure.title} {verb}: usually {usual}, {now} {value}"

    @property
    def event(self) -> Event:
        return Event(self.at, FIGURE, self.measure.title, self.words, self.until, opens="history")

    def as_json(self) -> dict[str, object]:
        return {
            "figure": self.measure.name,
            "at": self.at.isoformat(),
            "until": None if self.until is None else self.until.isoformat(),
            "earlier": self.before,
            "usual": self.usual.median,
            "now": self.value,
            "basis": self.usual.basis,
            "words": self.words,
        }


Minutes = Sequence[tuple[datetime, float]]


def values_of(record: QueueRecord, points: Sequence[Point]) -> dict[str, Minutes]:
    """The known minute values of each figure."""
    found: dict[str, Minutes] = {}
    for name in MEASURES:
        values = ((point.at, point.figures.get(name)) for point in points)
        found[name] = [(at, float(value)) for at, value in values if value is not None]
    errors = ((point.at, point.figures.get(ERRORS.name)) for point in points)
    found[NEW_ERRORS] = [
        (at, max(0.0, after - before))
        for (_, before), (at, after) in pairwise(errors)
        if before is not None and after is not None
    ]
    locks: dict[datetime, dict[datetime, int]] = defaultdict(lambda: defaultdict(int))
    for row in record.waits:
        if _is_lock(row["kind"], row["wait"]):
            locks[_minute(row["at"])][row["at"]] += row["sessions"] or 0
    if record.waits or record.links:
        found["lock_waits"] = [
            (point.at, float(max(locks[point.at].values()) if point.at in locks else 0))
            for point in points
        ]
    found[_SESSIONS] = [*_sessions(record)]
    return found


def _is_lock(kind: str | None, wait: str | None) -> bool:
    return kind == "Lock" or (wait or "").startswith("LCK_")


def _minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)


def _sessions(record: QueueRecord) -> Iterator[tuple[datetime, float]]:
    """The fewest of each minute: of consumers, not of those that only push."""
    fewest: dict[datetime, dict[datetime, int]] = defaultdict(lambda: defaultdict(int))
    for row in record.consumers:
        pops = "pop" in str(row["does"] or "").split(",")
        fewest[_minute(row["at"])][row["at"]] += (row["sessions"] or 0) if pops else 0
    for at, sums in sorted(fewest.items()):
        yield at, float(min(sums.values()))


def usual_of(values: Sequence[float], measure: Measure, basis: str) -> Usual:
    middle = median(values)
    spread = _MAD * median(abs(value - middle) for value in values)
    return Usual(middle, max(spread, SHARE * abs(middle), measure.floor), basis)


def excursions(values: Minutes, usuals: Sequence[Usual]) -> Iterator[tuple[int, int | None, int]]:
    """The times outside the usual band: the first minute, the first one back, the direction.
    `usuals`: of each minute."""
    for direction in (1, -1):
        distances = [
            direction * (value - usual.median) / usual.scale
            for (_, value), usual in zip(values, usuals, strict=True)
        ]
        total, begin, outside, back = 0.0, 0, False, 0
        for number, distance in enumerate(distances):
            if outside:
                back = back + 1 if distance <= SLACK else 0
                if back == _BACK:
                    end = number - _BACK + 1
                    yield _step(distances[:end], begin), end, direction
                    total, begin, outside, back = 0.0, number + 1, False, 0
                continue
            total = max(0.0, total + _clipped(distance) - SLACK)
            if not total:
                begin = number + 1
            outside = total > THRESHOLD
        if outside:
            yield _step(distances, begin), None, direction


def _clipped(distance: float) -> float:
    return max(-CLIP, min(CLIP, distance))


def _step(distances: Sequence[float], begin: int) -> int:
    """The minute in which the figure changed: the one that splits best into two levels what came
    since the sum left zero, which may have grown slowly before, as by the time of day."""
    early = max(0, begin - _LAST)
    known = [_clipped(one) for one in distances[early:]]

    def apart(split: int) -> float:
        """How much of the squares the two levels explain."""
        low, high = known[:split], known[split:]
        return float(len(low) * len(high) * (fmean(high) - fmean(low)) ** 2)

    best = max(range(max(1, begin - early), len(known)), key=apart, default=0)
    if best and fmean(known[best:]) - fmean(known[:best]) > SLACK:
        return early + best
    return begin


def changes_of(
    record: QueueRecord, earlier: Mapping[str, Sequence[Minutes]], forecast: Forecast
) -> tuple[list[Change], str]:
    """Every figure that left its band, in order of time; and the basis of most, empty if nothing
    is known to be usual. `earlier`: the same hours of each day before."""
    found: list[Change] = []
    bases: list[str] = []
    for name, values in values_of(record, record.points).items():
        measure = MEASURES[name]
        usuals, inside = _reference(record, measure, values, earlier.get(name, ()), forecast)
        if usuals:
            bases.append(usuals[0].basis)
        found += (_change(measure, usuals, inside, *one) for one in excursions(inside, usuals))
    return sorted(found, key=lambda one: one.at), max(bases, key=bases.count, default="")


def _change(
    measure: Measure,
    usuals: Sequence[Usual],
    values: Minutes,
    first: int,
    back: int | None,
    direction: int,
) -> Change:
    outside = [value for _, value in values[first:back]]
    until = None if back is None else values[back][0]
    usual = usuals[len(values) - 1 if back is None else back - 1]
    value = median(outside[-_LAST:])
    return Change(measure, values[first][0], until, direction, value, usual, first == 0)


def _reference(
    record: QueueRecord,
    measure: Measure,
    values: Minutes,
    earlier: Sequence[Minutes],
    forecast: Forecast,
) -> tuple[Sequence[Usual], Minutes]:
    """The minutes to compare, and what is usual in each; nothing where that is not known."""
    end = record.span.end
    window = [(at, value) for at, value in values if at >= end - _WINDOW]
    if measure.name in _HOURS and forecast.holds(end):
        bands = [getattr(forecast.at(at), _HOURS[measure.name]) for at, _ in window]
        if window and None not in bands:
            return [_of_band(band, measure) for band in bands], window
    days = [day for day in earlier if len(day) >= _ENOUGH_MINUTES]
    if window and len(days) >= _LEAST_DAYS and not measure.level:
        return _of_days(days, [at for at, _ in window], measure), window
    before = [value for at, value in values if at < end - _WINDOW]
    if len(before) >= _ENOUGH_MINUTES:
        return [usual_of(before, measure, "the hour before")] * len(window), window
    half = min(len(values) // 2, 60)
    if half < _LEAST_MINUTES:
        return (), ()
    usual = usual_of([value for _, value in values[:half]], measure, f"the {half} minutes before")
    return [usual] * (len(values) - half), values[half:]


def _of_band(band: Band, measure: Measure) -> Usual:
    middle = band.median / HOUR_SECONDS
    scale = max(band.high - band.median, band.median - band.low) / _OF_BAND / HOUR_SECONDS
    return Usual(middle, max(scale, SHARE * middle, measure.floor), "the forecast's band")


def _of_days(days: Sequence[Minutes], window: Sequence[datetime], measure: Measure) -> list[Usual]:
    """Of each minute: of the minutes around it, on all days."""
    basis = f"the same hours of {len(days)} days"
    of_minute: dict[int, list[float]] = defaultdict(list)
    for day in days:
        for at, value in day:
            of_minute[_of_day(at)].append(value)
    usuals = []
    for at in window:
        around = range(_of_day(at) - _AROUND, _of_day(at) + _AROUND + 1)
        near = [value for minute in around for value in of_minute.get(minute % _DAY, ())]
        known = near or [value for values in of_minute.values() for value in values]
        usuals.append(usual_of(known, measure, basis))
    return usuals


def _of_day(at: datetime) -> int:
    return at.hour * 60 + at.minute
