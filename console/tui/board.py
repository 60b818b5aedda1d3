"""What is known of every connection and queue now, from the readings as they come.

Screens draw the views that the board gives; they are frozen, so a paused screen just keeps them.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from console.errors import ConnectionFailedError, ConsoleError
from console.monitor import QueueSnapshot, Reading
from console.monitor.limits import ThresholdsOf, defaults_of
from console.rights import Login
from console.tui.health import Health, Level, assess, full_in_seconds
from console.tui.text import first_line, plain

SILENT_AFTER_SECONDS = 5.0
"""A connection that is this much later than its interval says nothing: its figures are old."""
BUCKET_SECONDS = 5.0
"""One cell of a trend: the most that were ready in that time."""
TREND_CELLS = 60

Key = tuple[str, str, str]
"""Connection, schema and name: one queue, whatever the screen does."""


RightsWords = str | Callable[[Login | None], str]
"""What may be done by a connection: in words, or once it is known what its login could do."""


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
    stale_seconds: float | None = None
    """How old the figures are, where the connection gives no new ones."""
    unreachable: bool = False

    @property
    def connection(self) -> str:
        """The connection's name, as the board calls it."""
        return self.key[0]

    @property
    def level(self) -> Level:
        """A queue that cannot be reached is critical, whatever its last figures said."""
        return Level.CRITICAL if self.unreachable else self.health.level


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


@dataclass
class _Connection:
    """What is kept of one connection between readings."""

    name: str
    opened_at: float
    answer: Reading | None = None
    answered_at: float = 0.0
    error: ConsoleError | None = None
    failed_at: float = 0.0
    retry_at: float | None = None
    trends: dict[Key, Trend] = field(default_factory=dict)


class Board:
    """All connections, in the order in which they were given."""

    def __init__(
        self,
        intervals: Mapping[str, float],
        now: float,
        *,
        rights: Mapping[str, RightsWords] | None = None,
        production: Collection[str] = (),
        thresholds: Mapping[str, ThresholdsOf] | None = None,
    ) -> None:
        """Of connections by name: `production` are marked so whatever their databases say."""
        self._connections = {name: _Connection(name, now) for name in intervals}
        self.intervals = dict(intervals)
        """Connection -> the pause between two looks, in seconds."""
        self._rights = rights or {}
        self._production = frozenset(production)
        self._thresholds = thresholds or {}

    def take(self, name: str, reading: Reading, at: float) -> None:
        """Take a reading of a connection in, as it came at `at`."""
        connection = self._connections[name]
        if reading.error is not None:
            if connection.error is None:
                connection.failed_at = at
            connection.error = reading.error
            connection.retry_at = at + (reading.retry_seconds or 0.0)
            return
        connection.answer, connection.answered_at = reading, at
        connection.error = connection.retry_at = None
        trends = {}
        for snapshot in reading.queues:
            key = _key(name, snapshot)
            trends[key] = connection.trends.get(key) or Trend()
            trends[key].add(at, snapshot.ready)
        connection.trends = trends

    def connections(self, now: float) -> tuple[ConnectionView, ...]:
        """Every connection as it is now."""
        return tuple(self._connection(one, now) for one in self._connections.values())

    def _connection(self, one: _Connection, now: float) -> ConnectionView:
        answered = one.answer is not None
        last = one.answered_at if answered else one.opened_at
        link = self._link(one, now)
        retry = None if one.retry_at is None else max(0.0, one.retry_at - now)
        return ConnectionView(
            name=plain(one.name),
            link=link,
            since_seconds=0.0 if link is Link.ALIVE else max(0.0, now - last),
            ever_answered=answered,
            latency_seconds=one.answer.latency_seconds if one.answer is not None else None,
            retry_in_seconds=retry,
            production=one.name in self._production
            or (one.answer is not None and one.answer.production),
            rights=self._rights_of(one),
            why=first_line(one.error.why or one.error.what) if one.error is not None else "",
        )

    def _rights_of(self, one: _Connection) -> str:
        words = self._rights.get(one.name, "")
        if isinstance(words, str):
            return words
        return words(one.answer.login if one.answer is not None else None)

    def _link(self, one: _Connection, now: float) -> Link:
        if one.error is not None:
            lost = isinstance(one.error, ConnectionFailedError)
            return Link.LOST if lost else Link.FAILING
        if one.answer is None:
            return Link.OPENING
        # An idle database is looked at less often than its interval says.
        pause = max(self.intervals[one.name], one.answer.next_seconds or 0.0)
        late = now - one.answered_at > pause + SILENT_AFTER_SECONDS
        return Link.SILENT if late else Link.ALIVE

    def queues(self, now: float) -> tuple[QueueView, ...]:
        """Every queue of every connection as it is now, in the order of the readings."""
        return tuple(
            view for one in self._connections.values() for view in self._queues_of(one, now)
        )

    def _queues_of(self, one: _Connection, now: float) -> list[QueueView]:
        if one.answer is None:
            return []
        link = self._link(one, now)
        stale = None if link is Link.ALIVE else max(0.0, now - one.answered_at)
        place = plain(one.name) if len(self._connections) > 1 else ""
        names = Counter(snapshot.queue for snapshot in one.answer.queues)
        thresholds_of = self._thresholds.get(one.name, defaults_of)
        return [
            QueueView(
                key=_key(one.name, snapshot),
                label=plain(
                    snapshot.queue
                    if names[snapshot.queue] == 1
                    else f"{snapshot.schema}.{snapshot.queue}"
                ),
                snapshot=snapshot,
                health=assess(snapshot, thresholds_of(snapshot.queue)),
                full_in_seconds=full_in_seconds(snapshot),
                trend=one.trends[_key(one.name, snapshot)].cells(now),
                place=place,
                stale_seconds=stale,
                unreachable=link in {Link.LOST, Link.FAILING},
            )
            for snapshot in one.answer.queues
        ]


def _key(connection: str, snapshot: QueueSnapshot) -> Key:
    return (connection, snapshot.schema, snapshot.queue)
