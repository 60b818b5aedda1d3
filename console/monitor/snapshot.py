"""Snapshots: the figures of one queue as they are shown, with what is estimated or unknown."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from types import MappingProxyType

from console.catalog import Acting, Queue
from console.catalog.decisions import Decision
from console.designs import Flow
from console.figures import (
    AGE,
    BY_NAME,
    COUNTED,
    COUNTS,
    ERRORS,
    FIGURES,
    GAP,
    HELD,
    HOLDERS,
    POP,
    PUSH,
    RING,
    SAMPLED,
    QueueFigures,
)
from console.formats import NOT_APPLICABLE, UNKNOWN
from console.monitor.latency import Latency
from console.monitor.limits import DEFAULTS, Thresholds, judge
from console.monitor.owners import SHOWN, Claim, Holder
from console.monitor.rates import Rates, StatusRow, known_age
from console.monitor.sample import QueueSample
from console.monitor.sequence_steps import Steps
from console.monitor.subscribers import SubscriberSnapshot, full_in, slowest, subscribers

_OPTIONAL = {one.name for one in FIGURES if one.optional}
_COUNTS = [one.name for one in COUNTS]


@dataclass(frozen=True)
class Filling:
    """When a ring is full at the usual rates of its hours."""

    seconds: float
    day: str
    """`Monday`."""

    @property
    def text(self) -> str:
        """`at Monday's rate: 03:40`."""
        minutes = math.ceil(round(self.seconds, 3) / 60)
        days, rest = divmod(minutes, 24 * 60)
        days_text = f"{days} d " if days else ""
        return f"at {self.day}'s rate: {days_text}{rest // 60:02}:{rest % 60:02}"

    def as_json(self) -> dict[str, object]:
        return {"seconds": round(self.seconds, 3), "day": self.day}


@dataclass(frozen=True)
class QueueSnapshot(QueueFigures):
    """One queue at one moment: its figures, as `console/figures.py` lists them, and more.

    None: not of this design or, if named in `unknown`, not known.
    """

    design: str
    connection: str
    estimated: tuple[str, ...]
    unknown: tuple[str, ...]
    problem: str = ""
    """Why everything is unknown."""
    slow: tuple[str, ...] = ()
    """Unknown because they took too long to read, mostly for dead rows at the queue's head."""
    claims: tuple[Claim, ...] | None = None
    """The oldest, with their owners."""
    held_by: tuple[Holder, ...] = ()
    acting: tuple[Acting, ...] = ()
    decisions: tuple[Decision, ...] = ()
    moment: datetime | None = field(default=None, compare=False)
    """When it was sampled, by the database's clock."""
    silences: tuple[Decision, ...] = ()
    """Findings of it that operators have silenced or acknowledged."""
    filling_per_second: tuple[float, float] | None = None
    """The lowest and highest growth of a ring's gap; negative: it shrinks."""
    pushed: float | None = field(default=None, compare=False)
    """Messages since the first sample, as in `Rates`."""
    popped: float | None = field(default=None, compare=False)
    latency: Latency | None = None
    subscribers: tuple[SubscriberSnapshot, ...] | None = None
    """Of a ring that has some; the queue's own gap is that of the slowest."""

    elsewhere: tuple[str, ...] = ()
    """Figures of which a library keeps the messages in another table, where nothing counts them."""

    filling: Filling | None = field(default=None, compare=False)
    """When the ring is full by its usual rates, if that says more than the present ones."""

    steps: Steps | None = field(default=None, compare=False)
    """How far the sequences of a ring went in the last samples; None: not known."""

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.connection, self.schema, self.queue)

    @property
    def paused(self) -> Decision | None:
        return next((decision for decision in self.decisions if decision.kind == "pause"), None)

    @property
    def slowest(self) -> SubscriberSnapshot | None:
        """The subscriber whose gap is the queue's; None: it has none, or not known."""
        return slowest(self.subscribers)

    @property
    def marks(self) -> tuple[str, ...]:
        """Its decisions for a narrow screen: `PAUSED 12 min, ann`."""
        return tuple(decision.mark(self.moment or decision.since) for decision in self.decisions)

    @property
    def full_in_seconds(self) -> float | None:
        """When the ring is full at the present rates; None: it is not filling, or not known."""
        return self._full_in(self._filling)

    @property
    def full_in_range_seconds(self) -> tuple[float | None, float | None]:
        """The soonest and the latest time (None: never), as far as rates vary."""
        slowest, fastest = self.filling_per_second or (None, None)
        return self._full_in(fastest), self._full_in(slowest)

    def resize_buys_seconds(self, capacity: int) -> float | None:
        """How much later a ring of that size is full; None: it is not filling, or not known."""
        now = self.full_in_seconds
        later = self._full_in(self._filling, capacity)
        return None if now is None or later is None else later - now

    def text_of(self, name: str) -> str:
        """A figure as text: `·` not applicable, `?` unknown, `≈` estimated."""
        value = getattr(self, name)
        if value is None:
            unknown = name in self.unknown or name in self.elsewhere
            return UNKNOWN if unknown else NOT_APPLICABLE
        return BY_NAME[name].unit.text(value, estimated=name in self.estimated)

    @property
    def _filling(self) -> float | None:
        if self.push_per_second is None or self.pop_per_second is None:
            return None
        return self.push_per_second - self.pop_per_second

    def _full_in(self, per_second: float | None, capacity: int | None = None) -> float | None:
        return full_in(self.gap, self.capacity if capacity is None else capacity, per_second)

    def as_json(self, thresholds: Thresholds = DEFAULTS) -> dict[str, object]:
        soonest, latest = self.full_in_range_seconds
        doubled = None if self.capacity is None else self.resize_buys_seconds(2 * self.capacity)
        return {
            "queue": self.queue,
            "design": self.design,
            **{name: getattr(self, name) for name in BY_NAME},
            "schema": self.schema,
            "connection": self.connection,
            "estimated": list(self.estimated),
            "unknown": list(self.unknown),
            "problem": self.problem,
            "slow": list(self.slow),
            "claims": None if self.claims is None else [asdict(claim) for claim in self.claims],
            "held_by": [asdict(holder) for holder in self.held_by],
            "full_in_seconds": self.full_in_seconds,
            "full_in_soonest_seconds": soonest,
            "full_in_latest_seconds": latest,
            "doubling_buys_seconds": doubled,
            "limits": [exceeded.as_json() for exceeded in judge(self, thresholds)],
            "acting": [acting.as_json() for acting in self.acting],
            "decisions": [decision.as_json() for decision in self.decisions],
            "latency": None if self.latency is None else self.latency.as_json(),
            "subscribers": None
            if self.subscribers is None
            else [snapshot.as_json() for snapshot in self.subscribers],
            "full_in_expected": None if self.filling is None else self.filling.as_json(),
        }


def snapshot(
    sample: QueueSample,
    connection: str,
    rates: Rates | None = None,
    subscriber_rates: Mapping[str, Rates] = MappingProxyType({}),
) -> QueueSnapshot:
    """The snapshot of a sample; without rates, as of a single sample, those are unknown."""
    queue, row = sample.queue, sample.row
    applicable = _applicable(queue)
    rates = rates or Rates()
    values: dict[str, object] = _held(sample)
    if row is None:
        return _snapshot(sample, connection, values, [], applicable)
    counts, estimated = _counts(row, sample.estimates)
    if queue.design.archives:
        counts["done"] = sample.archived
        estimated += ["done"] if sample.archived else []
    by_subscriber = subscribers(sample.subscribers, row.capacity, subscriber_rates)
    behind = slowest(by_subscriber)
    values |= {
        **{figure.name: getattr(row, figure.name) for figure in SAMPLED},
        **{figure.name: figure.of(row) for figure in FIGURES if figure.of is not None},
        **counts,
        AGE.name: known_age(row.age_seconds),
        PUSH.name: rates.push,
        POP.name: rates.pop,
        "subscribers": by_subscriber,
        "claims": sample.claims,
    }
    if behind is not None:
        values[GAP.name] = behind.gap
    if row.age_seconds is None and counts.get("ready") == 0:
        applicable.remove(AGE.name)  # no message, no age
    return _snapshot(sample, connection, values, estimated, applicable, rates)


def _held(sample: QueueSample) -> dict[str, object]:
    if sample.holders is None:
        return {}
    ages = [holder.held_seconds for holder in sample.holders if holder.held_seconds is not None]
    return {HOLDERS.name: len(sample.holders), HELD.name: max(ages, default=None)}


def _applicable(queue: Queue) -> list[str]:
    has = {"", *queue.states, *([RING] if queue.design.flow is Flow.NUMBERS else [])}
    names = [figure.name for figure in FIGURES if figure.needs in has and figure is not HOLDERS]
    if queue.subscribers and not queue.subscriber:
        names.append("subscribers")
    if "claimed" in has:
        names.append("claims")
    return [*names, HOLDERS.name]


def _counts(
    row: StatusRow, estimates: Mapping[str, float | None] | None
) -> tuple[dict[str, int | None], list[str]]:
    """The counts by state, and which of them are estimates."""
    counted: dict[str, int | None] = {name: getattr(row, name) for name in _COUNTS}
    found = {state: _estimate(row, state, estimates) for state in row.over()}
    if row.stuck is not None and row.stuck > COUNTED:
        found["stuck"] = found.get("claimed", COUNTED)
    if row.capacity is not None and (row.ready is None or row.ready > COUNTED):
        # A ring that is too deep to count is as deep as its gap, except for holes; unless it is the
        # parked numbers that are too many.
        gap_is_deep = row.gap is not None and row.gap > COUNTED
        found["ready"] = max(row.ready or 0, row.gap or 0) if gap_is_deep else row.ready
    counted |= found
    return counted, [name for name in _COUNTS if found.get(name) is not None]


def _estimate(
    row: StatusRow, state: str, estimates: Mapping[str, float | None] | None
) -> int | None:
    """About how many rows a state has that was not counted to its end; at least what was counted.

    Without an estimate: the engine's statistics minus the other states, if these were counted.
    """
    rows = (estimates or {}).get(state)
    if rows is None and len(row.over()) == 1:
        rows = row.uncounted()
    return None if rows is None else max(COUNTED, round(rows))


def _snapshot(
    sample: QueueSample,
    connection: str,
    values: Mapping[str, object],
    estimated: Iterable[str],
    applicable: Sequence[str],
    rates: Rates | None = None,
) -> QueueSnapshot:
    queue = sample.queue
    shown = dict.fromkeys(BY_NAME) | {name: values.get(name) for name in applicable}
    unknown = tuple(name for name in applicable if shown[name] is None and name not in _OPTIONAL)
    return QueueSnapshot(
        queue=queue.name,
        design=queue.design.name,
        schema=queue.schema,
        connection=connection,
        estimated=tuple(name for name in estimated if name in applicable),
        unknown=unknown,
        problem=sample.problem,
        slow=tuple(name for name in sample.slow if name in unknown),
        held_by=(sample.holders or ())[:SHOWN],
        acting=sample.acting,
        decisions=sample.decisions,
        moment=sample.moment,
        silences=sample.silences,
        filling_per_second=None if rates is None else rates.net_range,
        pushed=None if rates is None else rates.pushed,
        popped=None if rates is None else rates.popped,
        latency=sample.latency,
        elsewhere=(ERRORS.name,) if queue.design.errors_elsewhere else (),
        **shown,
    )
