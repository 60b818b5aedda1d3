"""Subscribers of a ring: the next number, what can be popped, and the pop rate of each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from console.designs import Flow
from console.formats import ESTIMATE, NOT_APPLICABLE, UNKNOWN, count, duration, rate
from console.monitor.rates import QueueName, Rates, RateWindow, StatusRow, known_age

_FULL = "full"
"""It fills the ring now."""


@dataclass(frozen=True)
class SubscriberRow:
    """What `subscriber_status` returns. None: not known, or too many to count."""

    schema: str
    queue: str
    subscriber: str
    number: int
    next_push: int | None
    next_pop: int | None
    ready: int | None
    parked: int | None
    age_seconds: float | None

    @property
    def gap(self) -> int | None:
        if self.next_push is None or self.next_pop is None:
            return None
        return self.next_push - self.next_pop


@dataclass(frozen=True)
class SubscriberRows:
    """Those of one queue in the order of their numbers; `at` is by `clock.elapsed()`."""

    rows: tuple[SubscriberRow, ...]
    at: float

    @classmethod
    def by_queue(
        cls, rows: Sequence[SubscriberRow], at: float
    ) -> Mapping[QueueName, SubscriberRows]:
        found: dict[QueueName, list[SubscriberRow]] = {}
        for row in sorted(rows, key=lambda one: one.number):
            found.setdefault((row.schema, row.queue), []).append(row)
        return {key: cls(tuple(own), at) for key, own in found.items()}


@dataclass(frozen=True)
class SubscriberSnapshot:
    """One subscriber at one moment, in the units of QueueSnapshot. None: not known."""

    subscriber: str
    gap: int | None
    ready: int | None
    age_seconds: float | None
    """None too where nothing is ready."""
    pop_per_second: float | None
    parked: int | None
    """Pops that wait for a message."""
    full_in_seconds: float | None
    """When it alone fills the ring at the present rates; None: it does not, or not known."""
    estimated: bool = False
    popped: float | None = field(default=None, compare=False)
    """Messages since the first sample, as in `Rates`."""

    @property
    def is_valid(self) -> bool:
        """Whether each value has its type: records may be damaged or forged."""
        counts, seconds = (self.gap, self.ready, self.parked), (self.age_seconds,)
        figures = (*counts, *seconds, self.pop_per_second, self.full_in_seconds)
        numbers = [figure for figure in figures if figure is not None]
        return isinstance(self.subscriber, str) and all(
            isinstance(number, int | float) and math.isfinite(number) for number in numbers
        )

    @property
    def figures(self) -> Iterator[tuple[str, str]]:
        """Label and text of each figure: `("age", "3 s")`."""
        for name, value in (("gap", self.gap), ("ready", self.ready)):
            estimated = self.estimated and name == "ready"
            yield name, UNKNOWN if value is None else count(value, estimated=estimated)
        age = NOT_APPLICABLE if self.ready == 0 else UNKNOWN
        yield "age", age if self.age_seconds is None else duration(self.age_seconds)
        yield "pop/s", UNKNOWN if self.pop_per_second is None else rate(self.pop_per_second)
        yield "parked", UNKNOWN if self.parked is None else count(self.parked)
        never = UNKNOWN if None in (self.gap, self.pop_per_second) else NOT_APPLICABLE
        seconds = self.full_in_seconds
        full = never if seconds is None else ESTIMATE + duration(seconds) if seconds else _FULL
        yield "full in", full

    @property
    def text(self) -> str:
        """`billing, gap 12, ready 12, age 3 s, pop/s 40, parked 0`."""
        known = [figure for figure in self.figures if figure[1] != NOT_APPLICABLE]
        figures = [_FULL if value == _FULL else f"{name} {value}" for name, value in known]
        return ", ".join([self.subscriber, *figures])

    def as_json(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "popped"}


def to_text(subscribers: Sequence[SubscriberSnapshot] | None) -> str:
    """The form in which recordings keep them; `from_text` reads it."""
    return "" if not subscribers else json.dumps([snapshot.as_json() for snapshot in subscribers])


def from_text(text: object) -> tuple[SubscriberSnapshot, ...] | None:
    """As recorded; None: not recorded, or no valid record."""
    try:
        records = json.loads(str(text or "null"))
        names = {field.name for field in fields(SubscriberSnapshot)}
        snapshots = tuple(
            SubscriberSnapshot(**{name: value for name, value in record.items() if name in names})
            for record in records
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    return snapshots if all(snapshot.is_valid for snapshot in snapshots) else None


def subscribers(
    seen: SubscriberRows | None, capacity: int | None, rates: Mapping[str, Rates]
) -> tuple[SubscriberSnapshot, ...] | None:
    """Without rates, as of a single sample, those are unknown."""
    if seen is None:
        return None
    return tuple(_one(row, capacity, rates.get(row.subscriber) or Rates()) for row in seen.rows)


def _one(row: SubscriberRow, capacity: int | None, rates: Rates) -> SubscriberSnapshot:
    estimated = row.ready is None and row.gap is not None
    return SubscriberSnapshot(
        subscriber=row.subscriber,
        gap=row.gap,
        ready=max(0, row.gap or 0) if estimated else row.ready,
        age_seconds=known_age(row.age_seconds),
        pop_per_second=rates.pop,
        parked=row.parked,
        full_in_seconds=full_in(row.gap, capacity, rates.net),
        estimated=estimated,
        popped=rates.popped,
    )


def slowest(of: Sequence[SubscriberSnapshot] | None) -> SubscriberSnapshot | None:
    """The one that fills the ring; None: there is none, or not known."""
    if not of or any(snapshot.gap is None for snapshot in of):
        return None
    return max(of, key=lambda snapshot: snapshot.gap or 0)


def full_in(gap: int | None, capacity: int | None, per_second: float | None) -> float | None:
    """In how many seconds a growing gap fills the ring; None: it does not, or not known."""
    if gap is None or capacity is None:
        return None
    if gap >= capacity:
        return 0.0
    if per_second is None or per_second <= 0:
        return None
    return (capacity - gap) / per_second


class SubscriberWindows:
    """A `RateWindow` for each subscriber of one queue."""

    def __init__(self) -> None:
        self._windows: dict[str, RateWindow] = {}

    def add(self, seen: SubscriberRows | None, row: StatusRow | None) -> Mapping[str, Rates]:
        """Add a sample; the rates of each subscriber in it."""
        if seen is None or row is None:
            self._windows.clear()
            return {}
        self._windows = {
            subscriber_row.subscriber: self._windows.get(subscriber_row.subscriber)
            or RateWindow(Flow.NUMBERS)
            for subscriber_row in seen.rows
        }
        return {
            subscriber_row.subscriber: self._windows[subscriber_row.subscriber].add(
                seen.at,
                replace(row, next_push=subscriber_row.next_push, next_pop=subscriber_row.next_pop),
                counts_rows=False,
            )
            for subscriber_row in seen.rows
        }
