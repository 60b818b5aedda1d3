"""A recording that is played: its range, the position in it, and the speed."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, time, timedelta, tzinfo
from pathlib import Path

from console.errors import UsageError
from console.features.history import segments
from console.features.history.points import NothingRecordedError
from console.features.history.reader import RecordReader
from console.features.history.segments import LINKS
from console.formats import bare_moment, moment, offset

SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0, 300.0)
_BEFORE_THE_END = timedelta(hours=1)
_LONGEST_STEP_SECONDS = 1.0
_KEYS = ", . 10 s   < > 5 min   { } speed   @ time"


class Player:
    """Position and speed of a replay. Thread-safe.

    It only moves when the data is loaded (`advance_to`, `arrive`): a slow disk makes the replay
    slow, but never makes figures look old.
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
        self._read_at = self._since
        self._target: datetime | None = at
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
        """Recorded seconds per second."""
        return self._speed

    @property
    def target(self) -> datetime | None:
        """The position to seek to; None: play on."""
        return self._target

    @property
    def at_end(self) -> bool:
        return self._at >= self.last

    @property
    def next_at(self) -> datetime:
        """The next position; it stops at the last moment."""
        with self._lock:
            self._read_at = self._monotonic()
            if not self._playing:
                return self._at
            seconds = min(self._read_at - self._since, _LONGEST_STEP_SECONDS) * self._speed
            return min(self._at + timedelta(seconds=seconds), self.last)

    def advance_to(self, at: datetime) -> None:
        with self._lock:
            self._at, self._since = at, self._read_at

    def arrive(self, at: datetime) -> None:
        """A seek is done; a newer one stays pending."""
        with self._lock:
            self._at, self._since = at, self._monotonic()
            if self._target == at:
                self._target = None

    def toggle(self) -> None:
        with self._lock:
            self._playing, self._since = not self._playing, self._monotonic()

    def change_speed(self, step: int) -> None:
        with self._lock:
            index = SPEEDS.index(self._speed) + step
            self._speed = SPEEDS[max(0, min(index, len(SPEEDS) - 1))]

    def seek(self, at: datetime) -> None:
        """Go to a moment, within the recording."""
        with self._lock:
            self._target = max(self.first, min(at, self.last))

    def skip(self, seconds: float) -> None:
        """Go some seconds forward or back; several skips add up."""
        self.seek((self._target or self._at) + timedelta(seconds=seconds))


@dataclass(frozen=True)
class Replay:
    """A recording that is played."""

    root: Path
    connections: tuple[str, ...]
    player: Player

    def toggle(self) -> None:
        """Pause it, or play on."""
        self.player.toggle()

    def corner_text(self, zone: tzinfo | None) -> str:
        """`REPLAY ▶ 1x · 2026-03-29 03:00:05 UTC`."""
        player = self.player
        mark = "■ end" if player.at_end else "▶" if player.playing else "‖"
        return f"REPLAY {mark} {player.speed:g}x · {moment(player.at, zone)}"

    def line(self, zone: tzinfo | None, width: int) -> str:
        """The recorded range with the position in it, and keys, as far as there is room."""
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
        total = (player.last - player.first).total_seconds() or 1.0
        position = round((player.at - player.first).total_seconds() / total * (cells - 1))
        bar = "─" * position + "●" + "─" * (cells - 1 - position)
        return f"{begin} {bar} {end}{keys}"


def open_replay(
    root: Path, at: str | None, zone: tzinfo | None, monotonic: Callable[[], float]
) -> Replay:
    """The recordings of all connections in a folder, at a moment; by default an hour before their
    end. UsageError; NothingRecordedError if there are none, or none at that moment.
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
    """Parse `03:00` or `2026-03-29T03:00`; without an offset it is in the zone.

    A time of day means its last occurrence. UsageError if it is not a time; NothingRecordedError if
    it was not recorded.
    """
    word = text.strip()
    try:
        if ":" in word[:3] and "-" not in word and "T" not in word:
            day = last.astimezone(zone).date()
            of_day = time.fromisoformat(word if word[1] != ":" else f"0{word}")
            parsed = _in_zone(datetime.combine(day, of_day), zone)
            before = _in_zone(datetime.combine(day - timedelta(days=1), of_day), zone)
            parsed = before if parsed > last and before >= first else parsed
        else:
            parsed = _in_zone(datetime.fromisoformat(word), zone)
    except ValueError:
        raise UsageError(
            f"{text!r} is not a time.",
            next_step="Use 03:00, 03:00:30, 2026-03-29T03:00 or 2026-03-29T03:00+02:00.",
        ) from None
    # A time given in seconds means the whole second.
    if parsed < first < parsed + timedelta(seconds=1):
        parsed = first
    if not first <= parsed <= last:
        raise NothingRecordedError(
            f"Nothing is recorded at {moment(parsed, zone)}.",
            why=f"The recording goes from {moment(first, zone)} to {moment(last, zone)}.",
        )
    return parsed


def _in_zone(at: datetime, zone: tzinfo | None) -> datetime:
    """A time without an offset is in the zone (None: the machine's own)."""
    if at.tzinfo is not None:
        return at
    return at.astimezone() if zone is None else at.replace(tzinfo=zone)


def first_and_last(root: Path, connection: str) -> tuple[datetime, datetime] | None:
    """The recorded range of a connection; None: it has none."""
    return RecordReader(root, connection).extent(LINKS)
