"""What screens draw: connections and queues at one moment, frozen: a paused screen keeps them."""

from collections import deque
from dataclasses import dataclass
from enum import Enum

from console.doctor.finding import Diagnosis
from console.monitor import QueueSnapshot
from console.tui.findings import FindingView, Key
from console.tui.health import Health, Level

BUCKET_SECONDS = 5.0
"""One cell of a trend: the most that were ready in that time."""
TREND_CELLS = 60


class Link(Enum):
    """How a connection is."""

    OPENING = "connecting"
    ALIVE = "alive"
    SILENT = "no answer"
    FAILING = "cannot look"
    LOST = "lost"


@dataclass(frozen=True)
class ConnectionView:
    """One connection at one moment."""

    name: str
    link: Link
    since_seconds: float
    """How long it has been without an answer; 0 while alive."""
    ever_answered: bool = False
    latency_seconds: float | None = None
    retry_in_seconds: float | None = None
    production: bool = False
    rights: str = ""
    """What may be done by it, and who enforces that, in words."""
    why: str = ""
    color: str = ""
    """The mark beside its name; empty: none."""

    @property
    def level(self) -> Level:
        """Alive and opening are fine."""
        if self.link in {Link.ALIVE, Link.OPENING}:
            return Level.OK
        return Level.WARNING if self.link is Link.SILENT else Level.CRITICAL


@dataclass(frozen=True)
class QueueView:
    """One queue at one moment."""

    key: Key
    label: str
    """Its name, with the schema where the name alone would not do; safe to show."""
    snapshot: QueueSnapshot
    health: Health
    full_in_seconds: float | None
    trend: tuple[int | None, ...]
    """The most that were ready in each of the last buckets, the newest last; None: not seen."""
    place: str = ""
    """Its connection, where there are several; safe to show."""
    color: str = ""
    """Of the connection's mark; empty: none."""
    stale_seconds: float | None = None
    """How old the figures are, where the connection gives no new ones."""
    unreachable: bool = False
    diagnosis: Diagnosis | None = None
    """What the doctor said last; None: he has not looked yet."""
    examined_seconds: float | None = None
    """How long ago that was."""
    findings: tuple[FindingView, ...] = ()
    """The doctor's, notes too, and what only the figures say; the gravest first."""

    @property
    def connection(self) -> str:
        """The connection's name, as the board calls it."""
        return self.key[0]

    @property
    def level(self) -> Level:
        """A queue that cannot be reached is critical, whatever its last figures said."""
        if self.unreachable:
            return Level.CRITICAL
        return max((one.level for one in self.findings), default=Level.OK)


@dataclass(frozen=True)
class Calm:
    """What is said where nothing is found: `clear` only after a look at everything."""

    words: str
    clear: bool = False
    blind: bool = False
    """The doctor himself is in trouble: that is told whatever else is found."""


class Trend:
    """The most that were ready, in buckets of time."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int | None]] = deque(maxlen=TREND_CELLS)

    def add(self, at: float, ready: int | None) -> None:
        """Take in what was ready at a moment."""
        bucket = int(at // BUCKET_SECONDS)
        if self._seen and self._seen[-1][0] == bucket:
            before = self._seen.pop()[1]
            known = [count for count in (before, ready) if count is not None]
            ready = max(known, default=None)
        self._seen.append((bucket, ready))

    def cells(self, now: float) -> tuple[int | None, ...]:
        """The last TREND_CELLS buckets, up to the one of now."""
        last = int(now // BUCKET_SECONDS)
        by_bucket = dict(self._seen)
        return tuple(by_bucket.get(bucket) for bucket in range(last - TREND_CELLS + 1, last + 1))
