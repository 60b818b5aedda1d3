"""How a queue is, in one mark and in words, from its figures alone. The doctor proves more."""

from dataclasses import dataclass
from enum import IntEnum

from console import formats
from console.monitor import QueueSnapshot

NEARLY_FULL = 0.9


class Level(IntEnum):
    """How grave it is; more is worse."""

    OK = 0
    WARNING = 1
    CRITICAL = 2

    @property
    def mark(self) -> str:
        """One cell that tells it without any colour."""
        return " !✖"[self]

    @property
    def word(self) -> str:
        """As a filter names it: `state:warning`."""
        return self.name.lower()


@dataclass(frozen=True)
class Health:
    """The gravest level, and every reason there is, the gravest first."""

    level: Level
    reasons: tuple[str, ...] = ()


def assess(snapshot: QueueSnapshot) -> Health:
    """What the figures of one queue say."""
    if snapshot.problem:
        return Health(Level.WARNING, (snapshot.problem,))
    found: list[tuple[Level, str]] = []
    if snapshot.stuck:
        found.append((Level.CRITICAL, f"{_count(snapshot, 'stuck')} stuck"))
    if snapshot.gap is not None and snapshot.capacity:
        filled = snapshot.gap / snapshot.capacity
        if filled >= 1:
            found.append((Level.CRITICAL, "full: it takes no more pushes"))
        elif filled >= NEARLY_FULL:
            found.append((Level.WARNING, f"{int(filled * 100)} % full"))
    if snapshot.errors:
        found.append((Level.WARNING, f"{_count(snapshot, 'errors')} in error"))
    found.sort(key=lambda one: -one[0])
    level = max((level for level, _ in found), default=Level.OK)
    return Health(level, tuple(reason for _, reason in found))


def _count(snapshot: QueueSnapshot, name: str) -> str:
    return formats.count(getattr(snapshot, name), estimated=name in snapshot.estimated)


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
