"""The console on a recording: every screen as it was then."""

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from console.features.history.recordings.player import Player, Replay, moment_of
from console.features.history.recordings.replay_thread import (
    Position,
    ReplayStep,
    ReplayThread,
    apply_frame,
)
from console.features.history.recordings.seek import SeekDialog
from console.monitor.limits import ThresholdsOf
from console.monitor.sampler import Reading
from console.tui.app import ConsoleApp
from console.tui.context import FEW_CONNECTIONS, Clock, Setup
from console.tui.store import Store
from console.tui.terminal import DEFAULT_APPEARANCE, Appearance

_RIGHTS = "a recording"
NOT_RECORDED = {
    "verbs": "A recording: nothing can be done from here.",
    "messages": "A recording has no messages: payloads are never recorded.",
    "errors": "A recording has no error texts: only how many errors there were.",
    "stuck": "A recording has no claims: only how many there were, and how many were stuck.",
    "waits": "A recording has no sessions.",
    "consumers": "A recording has no sessions: consumers --recordings PATH lists who was seen.",
    "slots": "A recording has no slots: only the gap of a ring.",
    "sql": "A recording has no code of the queue.",
    "audit": "A recording has no audit: History shows the actions that were recorded.",
    "runs": "A recording has no runs; dbq-console pipeline runs lists this machine's.",
    "doctor": "A recording: it shows the findings of that time; the doctor cannot run again.",
}
"""What a console on it cannot do; the other tabs need no database."""


def _clock_of(player: Player) -> Clock:
    """Its time as the console's clock, so that ages are as they were then."""
    return Clock(monotonic=lambda: player.at.timestamp(), utc=lambda: player.at)  # noqa: PLW0108


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
            clock=_clock_of(replay.player),
            rights=_RIGHTS,
            thresholds=thresholds or {},
            zone=zone,
            appearance=appearance,
            groups=_fleets(replay.connections) | dict(groups or {}),
            lacks=NOT_RECORDED,
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
