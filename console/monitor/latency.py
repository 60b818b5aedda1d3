"""How long messages waited for their pop, and how long they were processed.

Waiting: from push (or the due time, if later) to the first pop. Processing: from the last pop to
done or error. Every few seconds a statement reads the latest of each by an index; those of the last
`WITHIN_SECONDS` are kept. So the figures are of a sample, and cost the same at any depth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from console import formats
from console.catalog import Kind, Queue
from console.designs import Flow
from console.figures import LATENCIES, LATENCY_KINDS, PERCENTILES
from console.monitor.rates import QueueName, key_of

EVERY_SECONDS = 10.0
WITHIN_SECONDS = 300.0
"""A message counts for this long after its pop or its end; the statements say the same."""
MOST = 1_000
"""The latest messages of a queue that are kept."""
FEWEST = 10
"""Fewer messages have no percentiles."""

FIGURES = tuple(figure.name for figure in LATENCIES)
"""Their names in recordings, charts and history."""


@dataclass(frozen=True)
class Percentiles:
    """Of a duration in seconds. None: not known; `unknown` says why."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    messages: int | None = None
    """How many were read; None: not known."""
    period_seconds: float | None = None
    """How long ago the first of them was popped or finished."""
    unknown: str = ""

    @property
    def values(self) -> tuple[float | None, ...]:
        return self.p50, self.p95, self.p99

    @property
    def text(self) -> str:
        """`p50 12 ms, p95 30 ms, p99 80 ms (200 messages of 4 min)`, or `? (why)`."""
        if self.p50 is None:
            return f"{formats.UNKNOWN} ({self.unknown})" if self.unknown else formats.UNKNOWN
        pairs = zip(PERCENTILES, self.values, strict=True)
        cuts = ", ".join(f"p{at} {formats.duration(value or 0.0)}" for at, value in pairs)
        if self.messages is None or self.period_seconds is None:
            return cuts
        period = formats.duration(max(1, round(self.period_seconds)))
        return f"{cuts} ({formats.numbered(self.messages, 'message')} of {period})"

    def as_json(self) -> dict[str, object]:
        return {
            **{f"p{at}_seconds": v for at, v in zip(PERCENTILES, self.values, strict=True)},
            "messages": self.messages,
            "period_seconds": self.period_seconds,
            "unknown": self.unknown,
        }


@dataclass(frozen=True)
class Latency:
    waiting: Percentiles
    processing: Percentiles

    @property
    def labels_and_texts(self) -> tuple[tuple[str, str], ...]:
        """Both; on one line if neither is known for the same reason."""
        if self.waiting.unknown and self.waiting.unknown == self.processing.unknown:
            return ((" and ".join(LATENCY_KINDS), self.waiting.text),)
        return ((LATENCY_KINDS[0], self.waiting.text), (LATENCY_KINDS[1], self.processing.text))

    @property
    def figures(self) -> dict[str, float | None]:
        return dict(zip(FIGURES, (*self.waiting.values, *self.processing.values), strict=True))

    @classmethod
    def recorded(cls, figures: Mapping[str, object]) -> Latency | None:
        """None: not recorded, or not known then."""
        known = [v if isinstance(v, float) else None for v in map(figures.get, FIGURES)]
        if known == [None] * len(FIGURES):
            return None
        waiting, processing = (
            Percentiles(p50, p95, p99, unknown="not known then" if p50 is None else "")
            for p50, p95, p99 in (known[:3], known[3:])
        )
        return cls(waiting, processing)

    def as_json(self) -> dict[str, object]:
        return {"waiting": self.waiting.as_json(), "processing": self.processing.as_json()}


@dataclass(frozen=True)
class TimesRow:
    """One message. Null: it has no such duration."""

    schema: str
    queue: str
    id: str
    waiting_seconds: float | None
    popped_seconds_ago: float | None
    processing_seconds: float | None
    ended_seconds_ago: float | None


def statement_of(queue: Queue) -> str:
    """The statement that reads its latency; empty: none can."""
    if all(impossible(queue)):
        return ""
    archived = queue.options.get("archive_at_pop") == "on"
    return "archive_times" if archived else "times"


def impossible(queue: Queue) -> tuple[str, str]:
    """Why waiting and processing cannot be known; empty: they can."""
    ring = queue.design.flow is Flow.NUMBERS
    if queue.kind is Kind.INSTALLED and queue.options.get("archive_at_pop") == "on":
        return "", "a pop ends the message here"
    if not queue.finishes:
        why = "a pop overwrites the slot's time" if ring else "a pop deletes the message"
        return why, why
    missing = {role: not ring and role not in queue.roles for role in ("pushed_at", "claimed_at")}
    waiting = next((f"no column is {role}" for role, none in missing.items() if none), "")
    if "done" not in queue.states:
        if queue.design.file:
            return waiting, "its preset does not say what is done"
        return waiting, "complete deletes the message"
    if queue.kind is Kind.ADOPTED:
        return waiting, "no index on the time of the end is known"
    return waiting, ""


@dataclass
class _Seen:
    """Of one queue: by message, when it was popped or finished by our clock, and the duration."""

    times: tuple[dict[object, tuple[float, float]], ...] = field(default_factory=lambda: ({}, {}))
    latency: Latency | None = None
    """Made of `times`; None: nothing was read yet."""


class LatencySamples:
    """The durations read of a database's messages; used by one thread. A new one is due."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = float("-inf")
        self._seen: dict[QueueName, _Seen] = {}

    @property
    def due(self) -> bool:
        """Whether it is time to read again; true once."""
        if (now := self._clock()) < self._next:
            return False
        self._next = now + EVERY_SECONDS
        return True

    def keep(self, known: Iterable[QueueName]) -> None:
        """Forget all queues but these."""
        kept = set(known)
        self._seen = {key: seen for key, seen in self._seen.items() if key in kept}

    def add(self, queues: Sequence[Queue], rows: Iterable[TimesRow]) -> None:
        now = self._clock()
        for queue in queues:
            self._seen.setdefault(key_of(queue), _Seen())
        for row in rows:
            waiting, processing = self._seen[row.schema, row.queue].times
            _add(waiting, row.id, now, row.popped_seconds_ago, row.waiting_seconds)
            # A message may be processed more than once.
            again = (row.id, row.processing_seconds)
            _add(processing, again, now, row.ended_seconds_ago, row.processing_seconds)
        for queue in queues:
            seen = self._seen[key_of(queue)]
            for times in seen.times:
                _forget(times, now)
            # Once for all samples until the next read: sorting many queues takes time.
            seen.latency = Latency(
                *(_percentiles(list(times.values()), now) for times in seen.times)
            )

    def fail(self, queue: Queue) -> None:
        """It could not be read: earlier messages say nothing about now."""
        unread = Percentiles(unknown="it could not be read, or not in time")
        self._seen[key_of(queue)] = _Seen(latency=Latency(unread, unread))

    def of(self, queue: Queue) -> Latency:
        seen = self._seen.get(key_of(queue))
        latency = _NOT_READ if seen is None or seen.latency is None else seen.latency
        waiting, processing = (
            Percentiles(unknown=why) if why else known
            for why, known in zip(
                impossible(queue), (latency.waiting, latency.processing), strict=True
            )
        )
        return Latency(waiting, processing)


_NOT_READ = Latency(Percentiles(unknown="not read yet"), Percentiles(unknown="not read yet"))


def _add(
    times: dict[object, tuple[float, float]],
    key: object,
    now: float,
    ago: float | None,
    seconds: float | None,
) -> None:
    """Leaves out negative durations: callers may pass times of their own."""
    if ago is not None and seconds is not None and seconds >= 0 and key not in times:
        times[key] = (now - ago, seconds)


def _forget(times: dict[object, tuple[float, float]], now: float) -> None:
    """Forget what is too old, and all but the latest."""
    latest = sorted(times.items(), key=lambda one: one[1][0])[-MOST:]
    times.clear()
    times.update((key, one) for key, one in latest if one[0] >= now - WITHIN_SECONDS)


def _percentiles(times: Sequence[tuple[float, float]], now: float) -> Percentiles:
    messages = len(times)
    if messages < FEWEST:
        within = formats.duration(WITHIN_SECONDS)
        why = f"{formats.numbered(messages, 'message')} seen in {within}, {FEWEST} are needed"
        return Percentiles(messages=messages, unknown=why)
    period = max(0.0, now - min(at for at, _ in times))
    return Percentiles(*cuts([seconds for _, seconds in times]), messages, period)


def cuts(seconds: Sequence[float]) -> tuple[float, float, float]:
    """The percentiles of two values or more, interpolated as SQL's PERCENTILE_CONT does it."""
    import statistics  # noqa: PLC0415  # a verb imports what it uses

    quantiles = statistics.quantiles(seconds, n=100, method="inclusive")
    p50, p95, p99 = (quantiles[percent - 1] for percent in PERCENTILES)
    return p50, p95, p99
