"""A recording that is played: where it is, how fast it goes; every screen as it was then."""

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
        """How many seconds it goes on in one."""
        return self._speed

    @property
    def target(self) -> datetime | None:
        """Where somebody wants it to go; None: on."""
        return self._target

    @property
    def ended(self) -> bool:
        return self._at >= self.last

    @property
    def next_at(self) -> datetime:
        """Where it is to be next, if it plays on: at the last moment it is held."""
        with self._lock:
            self._read_at = self._monotonic()
            if not self._playing:
                return self._at
            ran = min(self._read_at - self._since, _LONGEST_STEP_SECONDS) * self._speed
            return min(self._at + timedelta(seconds=ran), self.last)

    def advance_to(self, at: datetime) -> None:
        with self._lock:
            self._at, self._since = at, self._read_at

    def arrive(self, at: datetime) -> None:
        """It is where it was wanted, unless somewhere else is wanted by now."""
        with self._lock:
            self._at, self._since = at, self._monotonic()
            if self._target == at:
                self._target = None

    def toggle(self) -> None:
        with self._lock:
            self._playing, self._since = not self._playing, self._monotonic()

    def change_speed(self, step: int) -> None:
        with self._lock:
            place = SPEEDS.index(self._speed) + step
            self._speed = SPEEDS[max(0, min(place, len(SPEEDS) - 1))]

    def seek(self, at: datetime) -> None:
        """Want it at a moment; before the first it begins, after the last it ends."""
        with self._lock:
            self._target = max(self.first, min(at, self.last))

    def skip(self, seconds: float) -> None:
        """Want it some seconds further on, or back; of several wishes each counts."""
        self.seek((self._target or self._at) + timedelta(seconds=seconds))

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

    def corner_text(self, zone: tzinfo | None) -> str:
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


_RIGHTS = "a recording"
_NOTHING = "A recording: nothing can be done from here."


class _NoFeed:
    """In the place of a feed: the replay's own thread brings what there is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.interval_seconds = 1.0

    def start(self, deliver: Callable[[Reading], None]) -> None:
        """Nothing comes from here."""

    def sample_now(self) -> None:
        """There is nothing to examine."""

    def stop(self, timeout_seconds: float = 0.0) -> None:  # of the protocol
        """It never began."""


class ReplayReady(Message):
    """The replay's thread has something to show."""

    def __init__(self, shown: ReplayStep) -> None:
        super().__init__()
        self.shown = shown


def _fleets(names: Sequence[str]) -> dict[str, str]:
    """Connections by their fleet: a recording knows them by FLEET/HOST, and may be seen where the
    fleet is not configured."""
    fleets = {name: name.partition("/")[0] for name in names if "/" in name}
    several = Counter(fleets.values())
    return {name: fleet for name, fleet in fleets.items() if several[fleet] > 1}


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
        """`thresholds`, `groups`: of connections that are configured still."""
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
        # The loop may be gone by now; then nobody wants to see it.
        with contextlib.suppress(RuntimeError):
            self.post_message(ReplayReady(shown))

    def on_mount(self) -> None:
        self._player_thread.start()

    def on_unmount(self) -> None:
        self._player_thread.stop()

    def on_replay_ready(self, message: ReplayReady) -> None:
        shown = message.shown
        if isinstance(shown, Position):
            # Another store, not the old one: it would know what came later.
            self.context.store = shown.store
            self._replay.player.arrive(shown.at)
        else:
            for frame in shown.frames:
                apply_frame(self.context.store, frame)
            self._replay.player.advance_to(shown.until)
        if isinstance(shown, Position) or shown.frames:
            self._draw()
        self._player_thread.mark_shown()

    # Where it goes.

    def action_skip(self, seconds: int) -> None:
        self._replay.player.skip(seconds)

    def action_speed(self, step: int) -> None:
        self._replay.player.change_speed(step)
        self._draw()

    def action_seek(self) -> None:
        self.push_screen(SeekDialog(self._where), self._go)

    def _where(self, text: str) -> datetime:
        player = self._replay.player
        return moment_of(text, player.first, player.last, self.context.zone)

    def _go(self, moment: datetime | None) -> None:
        if moment is not None:
            self._replay.player.seek(moment)

    # What a recording has not.

    def _refuse(self, words: str) -> None:
        self.notify(plain(words), severity="warning", markup=False, timeout=4)

    def _nothing(self, *_: object, **__: object) -> None:
        self._refuse(_NOTHING)

    add_connection = open_actions = open_install = open_adopt = _nothing
    open_smoke = open_bench = _nothing

    def open_message(self, *_: object, **__: object) -> None:
        self._refuse("A recording has no messages: payloads are never recorded.")

    def open_messages(self, key: QueueKey, words: Sequence[str] = ()) -> None:  # noqa: ARG002
        """The tab says so."""
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
        self._refuse(f"{verb}: {_NOTHING[0].lower()}{_NOTHING[1:]}")

    def open_audit(self, *_: object, **__: object) -> None:
        """Actions are marks of a queue's history."""
        self._refuse("A recording has no audit; a queue's History shows its actions.")

    def open_runs(self, *_: object, **__: object) -> None:
        """They are this machine's now, and none of the recording's."""
        self._refuse("A recording has no runs; dbq-console pipeline runs lists this machine's.")

    def open_pipeline(self, verb: str, *_: object, **__: object) -> None:
        self._refuse(f"pipeline {verb}: {_NOTHING[0].lower()}{_NOTHING[1:]}")

    def examine(self, key: QueueKey | None = None) -> None:  # noqa: ARG002
        """The doctor's word is as it was recorded."""
        self._refuse("A recording: what the doctor said then is shown; it cannot look again.")
