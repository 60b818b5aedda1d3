"""A recording that is played: where it is, how fast it goes, and how the screen says so."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, time, timedelta, tzinfo
from pathlib import Path

from console.errors import UsageError
from console.formats import bare_moment, moment, offset
from console.monitor.recording import segments
from console.monitor.recording.history import NothingRecordedError
from console.monitor.recording.reader import RecordReader
from console.monitor.recording.segments import LINKS
from console.tui.context import Clock

SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0, 300.0)
_BEFORE_THE_END = timedelta(hours=1)
_LONGEST_STEP_SECONDS = 1.0
_KEYS = ", . 10 s   < > 5 min   { } speed   @ time"


class Player:
    """Where the replay is, and how fast it goes. Any thread may ask and say.

    It only moves when what is to be seen there is there to be seen (`reach`, `arrive`): a slow
    disk makes it slow, and never makes old figures of new ones.
    """

    def __init__(
        self, at: datetime, first: datetime, last: datetime, monotonic: Callable[[], float]
    ) -> None:
        self.first = first
        self.last = last
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._at = at
        self._since = monotonic()
        self._asked = self._since
        self._wanted: datetime | None = at
        self._playing = True
        self._speed = 1.0

    @property
    def at(self) -> datetime:
        return self._at

    @property
    def playing(self) -> bool:
        return self._playing

    @property
    def speed(self) -> float:
        """How many seconds it goes on in one."""
        return self._speed

    @property
    def wanted(self) -> datetime | None:
        """Where somebody wants it to go; None: on."""
        return self._wanted

    @property
    def ended(self) -> bool:
        return self._at >= self.last

    @property
    def following(self) -> datetime:
        """Where it is to be next, if it plays on: at the last moment it is held."""
        with self._lock:
            self._asked = self._monotonic()
            if not self._playing:
                return self._at
            ran = min(self._asked - self._since, _LONGEST_STEP_SECONDS) * self._speed
            return min(self._at + timedelta(seconds=ran), self.last)

    def reach(self, at: datetime) -> None:
        with self._lock:
            self._at, self._since = at, self._asked

    def arrive(self, at: datetime) -> None:
        """It is where it was wanted, unless somewhere else is wanted by now."""
        with self._lock:
            self._at, self._since = at, self._monotonic()
            if self._wanted == at:
                self._wanted = None

    def turn(self) -> None:
        with self._lock:
            self._playing, self._since = not self._playing, self._monotonic()

    def change_speed(self, step: int) -> None:
        with self._lock:
            place = SPEEDS.index(self._speed) + step
            self._speed = SPEEDS[max(0, min(place, len(SPEEDS) - 1))]

    def seek(self, at: datetime) -> None:
        """Want it at a moment; before the first it begins, after the last it ends."""
        with self._lock:
            self._wanted = max(self.first, min(at, self.last))

    def skip(self, seconds: float) -> None:
        """Want it some seconds further on, or back; of several wishes each counts."""
        self.seek((self._wanted or self._at) + timedelta(seconds=seconds))

    @property
    def clock(self) -> Clock:
        """The replay's time as the console's clock: figures are as old as they were then."""
        return Clock(monotonic=lambda: self.at.timestamp(), utc=lambda: self.at)  # noqa: PLW0108


@dataclass(frozen=True)
class Replay:
    """What is played."""

    root: Path
    connections: tuple[str, ...]
    player: Player

    def corner(self, zone: tzinfo | None) -> str:
        """How it goes, and where it is: `REPLAY ▶ 1x · 2026-03-29 03:00:05 UTC`."""
        player = self.player
        mark = "■ end" if player.ended else "▶" if player.playing else "‖"
        return f"REPLAY {mark} {player.speed:g}x · {moment(player.at, zone)}"

    def line(self, zone: tzinfo | None, width: int) -> str:
        """From when to when it is recorded, and how far that is; what there is room for."""
        player = self.player
        last = bare_moment(player.last, zone)
        if player.first.astimezone(zone).date() == player.last.astimezone(zone).date():
            last = last.partition(" ")[2]
        begin = f"recorded {bare_moment(player.first, zone)}"
        end = f"{last} {offset(player.last, zone)}"
        keys = f"   {_KEYS}" if width >= len(begin) + len(end) + len(_KEYS) + 20 else ""
        cells = width - len(begin) - len(end) - len(keys) - 2
        if cells < 8:
            return f"{begin} to {end}"
        whole = (player.last - player.first).total_seconds() or 1.0
        place = round((player.at - player.first).total_seconds() / whole * (cells - 1))
        bar = "─" * place + "●" + "─" * (cells - 1 - place)
        return f"{begin} {bar} {end}{keys}"


def open_replay(
    root: Path, at: str | None, zone: tzinfo | None, monotonic: Callable[[], float]
) -> Replay:
    """The recordings under a folder, of all connections, at a moment; without one: an hour before
    their end. UsageError; NothingRecordedError where there is nothing, or not at that moment.
    """
    if not root.is_dir():
        raise UsageError(
            f"There is no folder {str(root)!r}.",
            next_step="--replay needs a folder of recordings, as record writes them.",
        )
    spans = {name: first_and_last(root, name) for name in segments.connections(root)}
    known = {name: span for name, span in spans.items() if span is not None}
    if not known:
        raise NothingRecordedError(
            f"Nothing is recorded in {str(root)!r}.",
            next_step="The console records while it is open; dbq-console record always does.",
        )
    first = min(span[0] for span in known.values())
    last = max(span[1] for span in known.values())
    begin = max(first, last - _BEFORE_THE_END) if at is None else moment_of(at, first, last, zone)
    return Replay(root, tuple(known), Player(begin, first, last, monotonic))


def moment_of(text: str, first: datetime, last: datetime, zone: tzinfo | None) -> datetime:
    """What `03:00` or `2026-03-29T03:00` means; without an offset: in the zone.

    A time of day is of the last recorded day, or of the day before where it was not yet so late.
    UsageError for what is no time; NothingRecordedError for one that was not recorded.
    """
    word = text.strip()
    try:
        if ":" in word[:3] and "-" not in word and "T" not in word:
            day = last.astimezone(zone).date()
            of_day = time.fromisoformat(word if word[1] != ":" else f"0{word}")
            found = _in(datetime.combine(day, of_day), zone)
            before = _in(datetime.combine(day - timedelta(days=1), of_day), zone)
            found = before if found > last and before >= first else found
        else:
            found = _in(datetime.fromisoformat(word), zone)
    except ValueError:
        raise UsageError(
            f"{text!r} is not a time.",
            next_step="Use 03:00, 03:00:30, 2026-03-29T03:00 or 2026-03-29T03:00+02:00.",
        ) from None
    # What is written to the second means all of that second.
    if found < first < found + timedelta(seconds=1):
        found = first
    if not first <= found <= last:
        raise NothingRecordedError(
            f"Nothing is recorded at {moment(found, zone)}.",
            why=f"The recording goes from {moment(first, zone)} to {moment(last, zone)}.",
        )
    return found


def _in(at: datetime, zone: tzinfo | None) -> datetime:
    """A moment that tells no offset is one of the zone (None: the machine's own)."""
    if at.tzinfo is not None:
        return at
    return at.astimezone() if zone is None else at.replace(tzinfo=zone)


def first_and_last(root: Path, connection: str) -> tuple[datetime, datetime] | None:
    """From when to when there is a recording of a connection; None: there is none."""
    return RecordReader(root, connection).extent(LINKS)
