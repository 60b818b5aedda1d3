"""Whether a queue's figures reach their limits, and which findings operators have silenced.

What is silenced or acknowledged is shown but counts as no problem. A silence holds until its time;
an acknowledgement until the finding ends or becomes more severe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from console.catalog import STUCK_AFTER_SECONDS, Queue
from console.catalog.decisions import Decision
from console.figures import ERROR_LIMIT, ERROR_SHARE, FULL, JUDGED, LIMITS, OVERDUE, Figure, Limit
from console.formats import parse_duration

if TYPE_CHECKING:
    from console.monitor.owners import Claim
    from console.monitor.subscribers import SubscriberSnapshot


class JudgedFigures(Protocol):
    """A queue's figures by the names of `console.figures`, as far as limits need to know more."""

    @property
    def ready(self) -> int | None: ...
    @property
    def errors(self) -> int | None: ...
    @property
    def capacity(self) -> int | None: ...
    @property
    def estimated(self) -> tuple[str, ...]: ...
    @property
    def slowest(self) -> SubscriberSnapshot | None: ...


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
class Limits:
    """The values from which a figure is a warning, and critical. None: never."""

    warning: float | None = None
    critical: float | None = None

    def exceeded(self, value: float | None) -> tuple[Severity, float] | None:
        """The most severe limit that is reached, and its level; an unknown value reaches none."""
        for level, limit in ((Severity.CRITICAL, self.critical), (Severity.WARNING, self.warning)):
            if limit is not None and value is not None and value >= limit:
                return level, limit
        return None


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Thresholds:
    stuck_after_seconds: float
    limits: Mapping[str, Limits] = field(default_factory=dict)
    """By the names of `figures.LIMITS`; those that are not there are not limited."""
    runbooks: Mapping[str, str] = field(default_factory=dict)
    """Addresses or texts that say what to do about a finding, by its code."""

    def __getitem__(self, name: str) -> Limits:
        return self.limits.get(name, NO_LIMITS)

    def with_limits(self, **limits: Limits) -> Thresholds:
        """With these instead of its own."""
        return replace(self, limits={**self.limits, **limits})

    def of(self, limit: Limit, seen: JudgedFigures) -> Limits:
        """The limits of a figure, for what the queue holds now."""
        if limit is not ERROR_LIMIT or self[limit.name] != NO_LIMITS:
            return self[limit.name]
        held, share = (seen.ready or 0) + (seen.errors or 0), self[ERROR_SHARE.name]
        return Limits(_errors(share.warning, held), _errors(share.critical, held))


def _errors(share: float | None, held: int) -> int | None:
    return None if share is None else max(ERRORS_LEAST, math.ceil(share * held))


ERRORS_LEAST = 10
"""Fewer are no warning: one error may be all that an idle queue holds."""


def _default(written: float | str | None) -> float | None:
    return parse_duration(written) if isinstance(written, str) else written


DEFAULTS = Thresholds(
    STUCK_AFTER_SECONDS,
    {
        limit.name: Limits(*map(_default, limit.defaults))
        for limit in LIMITS.values()
        if limit.defaults != (None, None)
    },
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
        if self.figure == FULL.name and self.value >= 1:
            return f"full: it takes no more pushes{self._slowest}"
        if self.figure == OVERDUE.name and math.isinf(self.value):
            return "due at -infinity"
        if self.figure == OVERDUE.name and not self.value:
            return "none overdue"
        limit = LIMITS[self.figure]
        value = limit.unit.text(self.value, estimated=self.estimated)
        return limit.words.format(value) + self._slowest

    @property
    def _slowest(self) -> str:
        return f", {self.subscriber} is slowest" if self.subscriber else ""

    @property
    def reason(self) -> str:
        """The text with the limit, unless that is obvious."""
        plainly = self.figure == "gap_share" or (self.figure, self.limit) == ("errors", 1)
        return self.text if plainly else f"{self.text} (limit {self.limit_text})"

    @property
    def limit_text(self) -> str:
        """`10,000`, `90 %`, `1 min`."""
        return LIMITS[self.figure].unit.text(self.limit)


def judge(figures: JudgedFigures, thresholds: Thresholds) -> tuple[Exceeded, ...]:
    """The figures that have reached a limit, the most severe first."""
    reached = _exceeded(figures, thresholds)
    return tuple(
        sorted(reached, key=lambda exceeded: (-exceeded.level, exceeded.figure != FULL.name))
    )


def _exceeded(figures: JudgedFigures, thresholds: Thresholds) -> Iterator[Exceeded]:
    for limit, figure in JUDGED:
        value = value_of(limit, figure, figures)
        if value is not None and (exceeded := thresholds.of(limit, figures).exceeded(value)):
            estimated = figure.name in figures.estimated
            by = slowest_subscriber(figures) if limit is FULL else ""
            yield Exceeded(limit.name, value, exceeded[1], exceeded[0], estimated, by)


def slowest_subscriber(figures: JudgedFigures) -> str:
    """The subscriber that determines a ring's gap; empty: there is none, or not known."""
    return "" if figures.slowest is None else figures.slowest.subscriber


def value_of(limit: Limit, figure: Figure, seen: JudgedFigures) -> float | None:
    """What is judged. Of a ring the part of it that is in use; below 0 if pops wait ahead."""
    value: float | None = getattr(seen, figure.name)
    if limit is not FULL:
        return value
    return value / seen.capacity if value is not None and seen.capacity else None


LIMIT, LIMIT_CRITICAL = "limit_reached", "limit_critical"


def silences_of(decisions: Sequence[Decision], queue: Queue) -> tuple[Decision, ...]:
    """The decisions about findings of the queue, or of all queues."""
    here = {("", ""), (queue.schema, queue.name)}
    return tuple(
        decision
        for decision in decisions
        if decision.code and (decision.schema, decision.queue) in here
    )


def is_about(decision: Decision, code: str, which: str = "") -> bool:
    """Whether it concerns the code, or `CODE:which` as in `limit_reached:depth`."""
    return decision.code in {code, f"{code}:{which}"}


def silence_for(
    decisions: Sequence[Decision], code: str, level: Severity, which: str = ""
) -> Decision | None:
    """The decision that silences a finding of that severity; None: none does."""
    found = (decision for decision in decisions if is_about(decision, code, which))
    return next(
        (
            decision
            for decision in found
            if decision.kind == "silence" or level <= acknowledged_severity(decision)
        ),
        None,
    )


def acknowledged_severity(acknowledged: Decision) -> Severity:
    known = {severity.word: severity for severity in Severity}
    return known.get(acknowledged.severity, Severity.OK)


def limit_code(level: Severity) -> str:
    return LIMIT_CRITICAL if level is Severity.CRITICAL else LIMIT


def limit_silence(decisions: Sequence[Decision], exceeded: Exceeded) -> Decision | None:
    codes = {limit_code(exceeded.level)}
    if exceeded.figure == FULL.name:  # an installed ring that fills has codes of its own
        codes.add("full" if exceeded.value >= 1 else "filling")
    found = (
        silence_for(decisions, code, exceeded.level, exceeded.figure) for code in sorted(codes)
    )
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
