"""Replaying a recording: position, speed, and every screen as it was then."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from pathlib import Path
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from console.catalog import Queue
from console.errors import UsageError
from console.formats import bare_moment, moment, offset
from console.monitor.limits import ThresholdsOf
from console.monitor.recording import segments
from console.monitor.recording.history import NothingRecordedError
from console.monitor.recording.reader import RecordReader
from console.monitor.recording.segments import LINKS
from console.monitor.sampler import Reading
from console.tui.app import ConsoleApp
from console.tui.context import FEW_CONNECTIONS, Clock, Setup
from console.tui.dialogs.dialog import SeekDialog
from console.tui.findings import QueueKey
from console.tui.replay_thread import Position, ReplayStep, ReplayThread, apply_frame
from console.tui.store import Store
from console.tui.terminal import DEFAULT_APPEARANCE, Appearance
from console.tui.text import plain

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

    @property
    def clock(self) -> Clock:
        """The replay's time as the console's clock, so that ages are as they were then."""
        return Clock(monotonic=lambda: self.at.timestamp(), utc=lambda: self.at)  # noqa: PLW0108


@dataclass(frozen=True)
class Replay:
    """A recording that is played."""

    root: Path
    connections: tuple[str, ...]
    player: Player

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


_RIGHTS = "a recording"
_NOT_POSSIBLE = "A recording: nothing can be done from here."


class _NoFeed:
    """A feed without readings: those come from the replay's thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.interval_seconds = 1.0

    def start(self, deliver: Callable[[Reading], None]) -> None:
        """Nothing to start."""

    def sample_now(self) -> None:
        """Nothing to sample."""

    def stop(self, timeout_seconds: float = 0.0) -> None:  # of the protocol
        """Nothing to stop."""


class ReplayReady(Message):
    """The replay's thread has loaded a step."""

    def __init__(self, shown: ReplayStep) -> None:
        super().__init__()
        self.shown = shown


def _fleets(names: Sequence[str]) -> dict[str, str]:
    """Connection -> fleet. Recordings name connections FLEET/HOST; the fleet may not be configured
    here."""
    fleets = {name: name.partition("/")[0] for name in names if "/" in name}
    sizes = Counter(fleets.values())
    return {name: fleet for name, fleet in fleets.items() if sizes[fleet] > 1}


class ReplayApp(ConsoleApp):
    """Plays a recording."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("comma", "skip(-10)", "10 s", key_display=", .", tooltip="10 s back"),
        Binding("full_stop", "skip(10)", "10 s", show=False, tooltip="10 s forward"),
        Binding("less_than_sign", "skip(-300)", "5 min", key_display="< >", tooltip="5 min back"),
        Binding("greater_than_sign", "skip(300)", "5 min", show=False, tooltip="5 min forward"),
        Binding("left_curly_bracket", "speed(-1)", "speed", key_display="{ }", tooltip="slower"),
        Binding("right_curly_bracket", "speed(1)", "faster", show=False, tooltip="faster"),
        Binding("at", "seek", "time", key_display="@", tooltip="enter a time to go to"),
    ]

    def __init__(
        self,
        replay: Replay,
        *,
        zone: tzinfo | None = UTC,
        thresholds: Mapping[str, ThresholdsOf] | None = None,
        groups: Mapping[str, str] | None = None,
        appearance: Appearance = DEFAULT_APPEARANCE,
    ) -> None:
        """`thresholds`, `groups`: for connections that are still configured."""
        setup = Setup(
            clock=replay.player.clock,
            rights=_RIGHTS,
            thresholds=thresholds or {},
            zone=zone,
            appearance=appearance,
            groups=_fleets(replay.connections) | dict(groups or {}),
            by_group=len(replay.connections) > FEW_CONNECTIONS,
        )
        super().__init__([_NoFeed(name) for name in replay.connections], setup)
        self._traits = {name: self._adapt_colors(setup.traits(name)) for name in replay.connections}
        self._replay = replay
        self.context.replay = replay
        self._player_thread = ReplayThread(replay, self._store_at, self._show)

    def _store_at(self, moment: datetime) -> Store:
        intervals = dict.fromkeys(self._replay.connections, 1.0)
        return Store(intervals, moment.timestamp(), self._traits, recorded=True)

    def _show(self, shown: ReplayStep) -> None:
        # The event loop may have stopped.
        with contextlib.suppress(RuntimeError):
            self.post_message(ReplayReady(shown))

    def on_mount(self) -> None:
        self._player_thread.start()

    def on_unmount(self) -> None:
        self._player_thread.stop()

    def on_replay_ready(self, message: ReplayReady) -> None:
        shown = message.shown
        if isinstance(shown, Position):
            # A new store: the old one has later data.
            self.context.store = shown.store
            self._replay.player.arrive(shown.at)
        else:
            for frame in shown.frames:
                apply_frame(self.context.store, frame)
            self._replay.player.advance_to(shown.until)
        if isinstance(shown, Position) or shown.frames:
            self._draw()
        self._player_thread.mark_shown()

    # Position and speed.

    def action_skip(self, seconds: int) -> None:
        self._replay.player.skip(seconds)

    def action_speed(self, step: int) -> None:
        self._replay.player.change_speed(step)
        self._draw()

    def action_seek(self) -> None:
        self.push_screen(SeekDialog(self._parse_moment), self._seek)

    def _parse_moment(self, text: str) -> datetime:
        player = self._replay.player
        return moment_of(text, player.first, player.last, self.context.zone)

    def _seek(self, moment: datetime | None) -> None:
        if moment is not None:
            self._replay.player.seek(moment)

    # What is not available in a recording.

    def _refuse(self, text: str) -> None:
        self.notify(plain(text), severity="warning", markup=False, timeout=4)

    def _refuse_all(self, *_: object, **__: object) -> None:
        self._refuse(_NOT_POSSIBLE)

    add_connection = open_actions = open_install = open_adopt = _refuse_all
    open_smoke = open_bench = _refuse_all

    def open_message(self, *_: object, **__: object) -> None:
        self._refuse("A recording has no messages: payloads are never recorded.")

    def open_messages(self, key: QueueKey, words: Sequence[str] = ()) -> None:  # noqa: ARG002
        """The tab says that there are none."""
        self.open_queue(key, "messages")

    def open_waits(self, *_: object, **__: object) -> None:
        self._refuse("A recording has no sessions.")

    def open_action(
        self,
        key: QueueKey,  # noqa: ARG002
        verb: str,
        words: Sequence[str] = (),  # noqa: ARG002
        queue: Queue | None = None,  # noqa: ARG002
        /,
        **options: str,  # noqa: ARG002
    ) -> None:
        self._refuse(f"{verb}: {_NOT_POSSIBLE[0].lower()}{_NOT_POSSIBLE[1:]}")

    def open_audit(self, *_: object, **__: object) -> None:
        """Actions are marks in a queue's history."""
        self._refuse("A recording has no audit; a queue's History shows its actions.")

    def open_runs(self, *_: object, **__: object) -> None:
        self._refuse("A recording has no runs; dbq-console pipeline runs lists this machine's.")

    def open_pipeline(self, verb: str, *_: object, **__: object) -> None:
        self._refuse(f"pipeline {verb}: {_NOT_POSSIBLE[0].lower()}{_NOT_POSSIBLE[1:]}")

    def examine(self, key: QueueKey | None = None) -> None:  # noqa: ARG002
        self._refuse(
            "A recording: it shows the findings of that time; the doctor cannot run again."
        )
