"""Recorded samples instead of a database: the console as it was, at any pace."""

import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from console.errors import ConsoleError
from console.monitor import Reading
from console.monitor.recording.reading import Reader, Span
from console.monitor.recording.records import LINKS, SAMPLES, Row, snapshot_of
from console.tui.feed import Clock

SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0, 300.0)
_TICK_SECONDS = 0.1
_AHEAD = timedelta(minutes=10)
_BEHIND = timedelta(minutes=1)


class Player:
    """Where the replay is, and how fast it goes. Any thread may ask and say."""

    def __init__(self, at: datetime, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._at = at
        self._since = monotonic()
        self.playing = True
        self.speed = 1.0
        self.jumps = 0
        """How often it went elsewhere than on."""

    @property
    def at(self) -> datetime:
        """The moment that is shown now."""
        with self._lock:
            return self._now()

    def _now(self) -> datetime:
        if not self.playing:
            return self._at
        return self._at + timedelta(seconds=(self._monotonic() - self._since) * self.speed)

    def _settle(self) -> None:
        self._at, self._since = self._now(), self._monotonic()

    def turn(self) -> None:
        """Play, or hold."""
        with self._lock:
            self._settle()
            self.playing = not self.playing

    def change_speed(self, step: int) -> None:
        """Slower (-1) or faster (1)."""
        with self._lock:
            self._settle()
            place = SPEEDS.index(self.speed) + step
            self.speed = SPEEDS[max(0, min(place, len(SPEEDS) - 1))]

    def seek(self, at: datetime) -> None:
        """Go to a moment."""
        with self._lock:
            self._at, self._since = at, self._monotonic()
            self.jumps += 1

    def skip(self, seconds: float) -> None:
        """Go some seconds on, or back."""
        self.seek(self.at + timedelta(seconds=seconds))

    @property
    def clock(self) -> Clock:
        """The replay's time as the console's clock: figures are as old as they were then."""
        return Clock(monotonic=lambda: self.at.timestamp(), utc=lambda: self.at)  # noqa: PLW0108


@dataclass(frozen=True)
class _Window:
    """What was read of the recording: looks in a span, by their times."""

    span: Span
    times: tuple[datetime, ...] = ()
    readings: tuple[Reading, ...] = ()

    def at(self, moment: datetime) -> tuple[datetime, Reading] | None:
        """The last look at or before a moment."""
        place = bisect_right(self.times, moment) - 1
        return None if place < 0 else (self.times[place], self.readings[place])


class ReplayFeed:
    """One connection's recording as a feed."""

    def __init__(self, root: Path, connection: str, player: Player) -> None:
        self.name = connection
        self.interval_seconds = 1.0
        self._reader = Reader(root, connection)
        self._player = player
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._deliver: Callable[[Reading], None] = lambda _: None
        self._thread = threading.Thread(target=self._run, name=f"replay {connection}", daemon=True)

    def start(self, deliver: Callable[[Reading], None]) -> None:
        """Begin; `deliver` is called in the feed's thread."""
        self._deliver = deliver
        self._thread.start()

    def look_now(self) -> None:
        """Show what is there now again."""
        self._wake.set()

    def stop(self) -> None:
        """Deliver nothing more."""
        self._stop.set()
        self._wake.set()

    def _run(self) -> None:
        begin = self._player.at
        window = _Window(Span(begin, begin))
        shown: tuple[int, datetime] | None = None
        while not self._stop.is_set():
            moment, jumps = self._player.at, self._player.jumps
            if moment not in window.span:
                window = self._read(moment)
            found = window.at(moment)
            if found is not None and shown != (jumps, found[0]) and not self._stop.is_set():
                shown = (jumps, found[0])
                self._deliver(found[1])
            self._wake.wait(_TICK_SECONDS)
            self._wake.clear()

    def _read(self, moment: datetime) -> _Window:
        span = Span(moment - _BEHIND, moment + _AHEAD)
        samples: dict[datetime, list[Row]] = {}
        for row in self._reader.rows(SAMPLES, span):
            samples.setdefault(row["at"], []).append(row)
        links = self._reader.rows(LINKS, span)
        readings = [self._reading(link, samples.get(link["at"], [])) for link in links]
        # A look that failed shows the figures of the last one that went well.
        for place, reading in enumerate(readings):
            if reading.error is not None and place:
                readings[place] = replace(reading, queues=readings[place - 1].queues)
        return _Window(span, tuple(link["at"] for link in links), tuple(readings))

    def _reading(self, link: Row, rows: list[Row]) -> Reading:
        error = None if link["error"] is None else ConsoleError(str(link["error"]))
        latency = link["latency_seconds"]
        return Reading(
            self.name,
            tuple(snapshot_of(row, self.name) for row in rows),
            latency_seconds=None if latency is None else float(str(latency)),
            error=error,
        )


def first_and_last(root: Path, connection: str) -> tuple[datetime, datetime] | None:
    """From when to when there is a recording of a connection; None: there is none."""
    always = Span(datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC))
    looks = Reader(root, connection).rows(LINKS, always, ["at"])
    return (looks[0]["at"], looks[-1]["at"]) if looks else None
