"""Whether a queue's figures reach their limits, and which findings operators have silenced.

What is silenced or acknowledged is shown but counts as no problem. A silence holds until its time;
an acknowledgement until the finding ends or becomes more severe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Generic, TypeVar

from console.catalog import STUCK_AFTER_SECONDS, Queue
from console.decisions import Decision
from console.formats import count, duration

if TYPE_CHECKING:
    from console.monitor.owners import Claim
    from console.monitor.snapshot import QueueSnapshot

N = TypeVar("N", int, float)


class Severity(IntEnum):
    """Of a figure, a finding or the state of a queue; higher is worse."""

    OK = 0
    NOTE = 1
    """Worth knowing; nothing is unhealthy."""
    UNKNOWN = 2
    """What has to be judged is not known: neither good nor bad."""
    WARNING = 3
    CRITICAL = 4
    """Messages are stuck, lost or about to be, or a critical limit is reached."""

    @property
    def mark(self) -> str:
        """One character that shows it without colour."""
        return " ·?!✖"[self]

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Limits(Generic[N]):
    """The values from which a figure is a warning, and critical. None: never."""

    warning: N | None = None
    critical: N | None = None

    def exceeded(self, value: N | None) -> tuple[Severity, N] | None:
        """The most severe limit that is reached, and its level; an unknown value reaches none."""
        for level, limit in ((Severity.CRITICAL, self.critical), (Severity.WARNING, self.warning)):
            if limit is not None and value is not None and value >= limit:
                return level, limit
        return None


@dataclass(frozen=True)
class Thresholds:
    stuck_after_seconds: float
    depth: Limits[int]
    age_seconds: Limits[float]
    gap_share: Limits[float]
    """Of a ring's capacity; 1 is full."""
    errors: Limits[int]
    errors_share: Limits[float] = Limits()
    """Of the ready and failed messages, from ERRORS_LEAST on; used if `errors` has no limit."""
    overdue_seconds: Limits[float] = Limits(300.0)
    """Since the due time of a message that was not taken."""

    def errors_of(self, figures: QueueSnapshot) -> Limits[int]:
        """The limits of the error count, for what the queue holds now."""
        if self.errors != Limits():
            return self.errors
        held = (figures.ready or 0) + (figures.errors or 0)
        return Limits(
            *(_errors(one, held) for one in (self.errors_share.warning, self.errors_share.critical))
        )


def _errors(share: float | None, held: int) -> int | None:
    return None if share is None else max(ERRORS_LEAST, math.ceil(share * held))


ERRORS_LEAST = 10
"""Fewer are no warning: one error may be all that an idle queue holds."""

DEFAULTS = Thresholds(
    STUCK_AFTER_SECONDS,
    Limits(),
    Limits(),
    gap_share=Limits(0.9, 1.0),
    errors=Limits(),
    errors_share=Limits(0.1),
)
"""Where nothing is configured."""

ThresholdsOf = Callable[[str], Thresholds]
"""By a queue's name."""


def defaults_of(_: str) -> Thresholds:
    return DEFAULTS


@dataclass(frozen=True)
class Exceeded:
    figure: str
    """As configured: `depth`, `age`, `overdue`, `gap_share`, `errors`; also `stuck`."""
    value: float
    limit: float
    level: Severity
    estimated: bool = False
    subscriber: str = ""
    """The slowest one, which has that value."""

    def as_json(self) -> dict[str, object]:
        return {
            "figure": self.figure,
            "value": self.value,
            "limit": self.limit,
            "level": self.level.word,
        }

    @property
    def text(self) -> str:
        """`12,480 ready`, `93 % full`."""
        if self.figure == "gap_share":
            # Rounded down: at 99.9 % it still takes pushes.
            by = f", {self.subscriber} is slowest" if self.subscriber else ""
            full = "full: it takes no more pushes"
            return (full if self.value >= 1 else f"{_share(self.value)} full") + by
        if self.figure == "age":
            return f"oldest {duration(self.value)}"
        if self.figure == "overdue":
            if math.isinf(self.value):
                return "due at -infinity"
            return f"due {duration(self.value)} ago" if self.value else "none overdue"
        noun = {"depth": "ready", "errors": "in error", "stuck": "stuck"}[self.figure]
        return f"{count(int(self.value), estimated=self.estimated)} {noun}"

    @property
    def reason(self) -> str:
        """The text with the limit, unless that is obvious."""
        plainly = self.figure == "gap_share" or (self.figure, self.limit) == ("errors", 1)
        return self.text if plainly else f"{self.text} (limit {self.limit_text})"

    @property
    def limit_text(self) -> str:
        """`10,000`, `90 %`, `1 min`."""
        if self.figure == "gap_share":
            return _share(self.limit)
        return duration(self.limit) if self.figure in _SECONDS else count(int(self.limit))


_SECONDS = {"age", "overdue"}


def judge(figures: QueueSnapshot, thresholds: Thresholds) -> tuple[Exceeded, ...]:
    """The figures that have reached a limit, the most severe first."""
    return tuple(sorted(_exceeded(figures, thresholds), key=lambda one: -one.level))


def _exceeded(figures: QueueSnapshot, thresholds: Thresholds) -> Iterator[Exceeded]:
    if found := thresholds.gap_share.exceeded(share := _filled(figures)):
        by = slowest_subscriber(figures)
        yield Exceeded("gap_share", share or 0.0, found[1], found[0], subscriber=by)
    if found := thresholds.depth.exceeded(figures.ready):
        estimated = "ready" in figures.estimated
        yield Exceeded("depth", figures.ready or 0, found[1], found[0], estimated)
    if found := thresholds.age_seconds.exceeded(figures.age_seconds):
        yield Exceeded("age", figures.age_seconds or 0.0, found[1], found[0])
    if found := thresholds.errors_of(figures).exceeded(figures.errors):
        estimated = "errors" in figures.estimated
        yield Exceeded("errors", figures.errors or 0, found[1], found[0], estimated)


def slowest_subscriber(figures: QueueSnapshot) -> str:
    """The subscriber that determines a ring's gap; empty: there is none, or not known."""
    return "" if figures.slowest is None else figures.slowest.subscriber


def _filled(figures: QueueSnapshot) -> float | None:
    """The part of a ring that is in use; below 0 if pops wait ahead."""
    if figures.gap is None or not figures.capacity:
        return None
    return figures.gap / figures.capacity


def _share(part: float) -> str:
    return f"{int(part * 100 + 1e-9)} %"


LIMIT, LIMIT_CRITICAL = "limit_reached", "limit_critical"


def silences_of(decisions: Sequence[Decision], queue: Queue) -> tuple[Decision, ...]:
    """The decisions about findings of the queue, or of all queues."""
    here = {("", ""), (queue.schema, queue.name)}
    return tuple(one for one in decisions if one.code and (one.schema, one.queue) in here)


def is_about(one: Decision, code: str, which: str = "") -> bool:
    """Whether it concerns the code, or `CODE:which` as in `limit_reached:depth`."""
    return one.code in {code, f"{code}:{which}"}


def silence_for(
    decisions: Sequence[Decision], code: str, level: Severity, which: str = ""
) -> Decision | None:
    """The decision that silences a finding of that severity; None: none does."""
    found = (one for one in decisions if is_about(one, code, which))
    return next(
        (one for one in found if one.kind == "silence" or level <= acknowledged_severity(one)), None
    )


def acknowledged_severity(acknowledged: Decision) -> Severity:
    known = {one.word: one for one in Severity}
    return known.get(acknowledged.severity, Severity.OK)


def limit_code(level: Severity) -> str:
    return LIMIT_CRITICAL if level is Severity.CRITICAL else LIMIT


def limit_silence(decisions: Sequence[Decision], one: Exceeded) -> Decision | None:
    codes = {limit_code(one.level)}
    if one.figure == "gap_share":  # an installed ring that fills has codes of its own
        codes.add("full" if one.value >= 1 else "filling")
    found = (silence_for(decisions, code, one.level, one.figure) for code in sorted(codes))
    return next(filter(None, found), None)


def stuck_silence(
    decisions: Sequence[Decision], stuck: int | None, oldest_first: Sequence[Claim] | None
) -> Decision | None:
    """The silence of stuck claims, if each known code of them is silenced."""
    codes = {_code(claim) for claim in (oldest_first or ())[: stuck or 0]}
    found = [silence_for(decisions, code, Severity.WARNING) for code in sorted(codes)]
    return found[0] if found and all(found) else None


def _code(claim: Claim) -> str:
    return f"claims_{claim.owner}" if claim.claimed_by else "claims_nobody"
