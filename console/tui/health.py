"""How a queue is, in one mark and in words, from its figures alone. The doctor proves more."""

from collections.abc import Sequence
from dataclasses import dataclass

from console import formats
from console.monitor import QueueSnapshot
from console.monitor.limits import DEFAULTS, Exceeded, Level, Thresholds, judge

__all__ = ["Health", "Level", "assess", "full_in_seconds", "stuck_words"]


@dataclass(frozen=True)
class Health:
    """The gravest level, and every reason there is, the gravest first."""

    level: Level
    reasons: tuple[str, ...] = ()


def assess(
    snapshot: QueueSnapshot,
    thresholds: Thresholds = DEFAULTS,
    exceeded: Sequence[Exceeded] | None = None,
) -> Health:
    """What the figures of one queue say. `exceeded`: what they were judged to be already."""
    if snapshot.problem:
        return Health(Level.WARNING, (snapshot.problem,))
    judged = judge(snapshot, thresholds) if exceeded is None else exceeded
    found: list[tuple[Level, str]] = []
    if snapshot.stuck:
        found.append((Level.WARNING, stuck_words(snapshot)))
    found += [(one.level, one.reason) for one in judged]
    found.sort(key=lambda one: -one[0])
    level = max((level for level, _ in found), default=Level.OK)
    return Health(level, tuple(reason for _, reason in found))


def stuck_words(snapshot: QueueSnapshot) -> str:
    """How many claims are stuck."""
    stuck = formats.count(snapshot.stuck or 0, estimated="stuck" in snapshot.estimated)
    return f"{stuck} stuck"


def full_in_seconds(snapshot: QueueSnapshot) -> float | None:
    """When the queue is full if push and pop go on as they do; None: not, or not known."""
    gap, capacity = snapshot.gap, snapshot.capacity
    push, pop = snapshot.push_per_second, snapshot.pop_per_second
    if gap is None or capacity is None:
        return None
    if gap >= capacity:
        return 0.0
    if push is None or pop is None or push <= pop:
        return None
    return (capacity - gap) / (push - pop)
