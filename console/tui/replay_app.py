"""The console on a recording: every screen as it was, at any pace, and nothing can be done."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from console.monitor import Reading
from console.monitor.limits import ThresholdsOf
from console.tui.app import ConsoleApp
from console.tui.board import Board, Key
from console.tui.dialogs.seek import SeekDialog
from console.tui.opening import Opening
from console.tui.projector import Projector, Scene, Shown, take
from console.tui.replay import Replay, moment_of
from console.tui.text import plain
from console.tui.themes import DEFAULT_TASTE, Taste

_RIGHTS = "a recording"
_NOTHING = "A recording: nothing can be done from here."


class _Still:
    """In the place of a feed: the replay's own thread brings what there is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.interval_seconds = 1.0

    def start(self, deliver: Callable[[Reading], None]) -> None:
        """Nothing comes from here."""

    def look_now(self) -> None:
        """There is nothing to look at."""

    def stop(self) -> None:
        """It never began."""


class ShownNow(Message):
    """The replay's thread has something to show."""

    def __init__(self, shown: Shown) -> None:
        super().__init__()
        self.shown = shown


class ReplayApp(ConsoleApp):
    """Plays a recording."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("comma", "skip(-10)", "10 s", key_display=", .", tooltip="10 s back"),
        Binding("full_stop", "skip(10)", "10 s", show=False, tooltip="10 s further on"),
        Binding("less_than_sign", "skip(-300)", "5 m", key_display="< >", tooltip="5 m back"),
        Binding("greater_than_sign", "skip(300)", "5 m", show=False, tooltip="5 m further on"),
        Binding("left_curly_bracket", "speed(-1)", "speed", key_display="{ }", tooltip="slower"),
        Binding("right_curly_bracket", "speed(1)", "faster", show=False, tooltip="faster"),
        Binding("at", "seek", "time", key_display="@", tooltip="type the time to go to"),
    ]

    def __init__(
        self,
        replay: Replay,
        *,
        zone: tzinfo | None = UTC,
        thresholds: Mapping[str, ThresholdsOf] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        taste: Taste = DEFAULT_TASTE,
    ) -> None:
        """`thresholds`: of connections that are configured still."""
        self._thresholds_of = dict(thresholds or {})
        super().__init__(
            [_Still(name) for name in replay.connections],
            clock=replay.player.clock,
            rights=_RIGHTS,
            thresholds=self._thresholds_of,
            zone=zone,
            taste=taste,
        )
        self._marks = {} if self.no_color else taste.colors
        self._monotonic = monotonic
        self._replay = replay
        self.desk.replay = replay
        self._projector = Projector(replay, self._board_at, self._show)

    def _board_at(self, moment: datetime) -> Board:
        names = self._replay.connections
        return Board(
            dict.fromkeys(names, 1.0),
            moment.timestamp(),
            rights=dict.fromkeys(names, _RIGHTS),
            thresholds=self._thresholds_of,
            colors=self._marks,
        )

    def _show(self, shown: Shown) -> None:
        # The loop may be gone by now; then nobody wants to see it.
        with contextlib.suppress(RuntimeError):
            self.post_message(ShownNow(shown))

    def on_mount(self) -> None:
        """Begin to play."""
        self._projector.start()

    def on_unmount(self) -> None:
        """Nothing is waited for."""
        self._projector.stop()

    def on_shown_now(self, message: ShownNow) -> None:
        """What was seen then is what is known now."""
        shown = message.shown
        if isinstance(shown, Scene):
            # Another board, not the old one: it would know what came later.
            self.desk.board = shown.board
            self._replay.player.arrive(shown.at)
        else:
            for look in shown.looks:
                take(self.desk.board, look)
            self._replay.player.reach(shown.until)
        if isinstance(shown, Scene) or shown.looks:
            self._draw()
        self._projector.shown()

    # Where it goes.

    def action_skip(self, seconds: int) -> None:
        """On, or back."""
        self._replay.player.skip(seconds)

    def action_speed(self, step: int) -> None:
        """Slower, or faster."""
        self._replay.player.change_speed(step)
        self._draw()

    def action_seek(self) -> None:
        """The line for a time."""
        self.push_screen(SeekDialog(self._where), self._go)

    def _where(self, text: str) -> datetime:
        player = self._replay.player
        return moment_of(text, player.first, player.last, self.desk.zone)

    def _go(self, moment: datetime | None) -> None:
        if moment is not None:
            self._replay.player.seek(moment)

    # What a recording has not.

    def _refuse(self, words: str) -> None:
        self.notify(plain(words), severity="warning", markup=False, timeout=4)

    def add_connection(self, opening: Opening) -> None:  # noqa: ARG002  # the way's signature
        """Not to a recording."""
        self._refuse(_NOTHING)

    def open_message(self, key: Key, message: str) -> None:  # noqa: ARG002
        """Payloads are never recorded."""
        self._refuse("A recording has no messages: payloads are never recorded.")

    def open_messages(self, key: Key, words: Sequence[str] = ()) -> None:  # noqa: ARG002
        """The tab says so."""
        self.open_queue(key, "messages")

    def open_waits(self, connection: str) -> None:  # noqa: ARG002
        """There is no server to look at."""
        self._refuse("A recording has no sessions to look at.")

    def open_actions(self, key: Key, words: Sequence[str] = (), state: str = "") -> None:  # noqa: ARG002
        """None can be done."""
        self._refuse(_NOTHING)

    def open_action(
        self,
        key: Key,  # noqa: ARG002
        verb: str,
        words: Sequence[str] = (),  # noqa: ARG002
        **options: str,  # noqa: ARG002
    ) -> None:
        """None can be done."""
        self._refuse(f"{verb}: {_NOTHING[0].lower()}{_NOTHING[1:]}")

    def open_audit(self, connection: str = "", key: Key | None = None) -> None:  # noqa: ARG002
        """Actions are marks of a queue's history."""
        self._refuse("A recording has no audit; a queue's History shows its actions.")

    def open_install(self, connection: str) -> None:  # noqa: ARG002
        """Nothing can be done."""
        self._refuse(_NOTHING)

    def open_adopt(self, connection: str) -> None:  # noqa: ARG002
        """Nothing can be done."""
        self._refuse(_NOTHING)

    def open_smoke(self, key: Key) -> None:  # noqa: ARG002
        """Nothing can be done."""
        self._refuse(_NOTHING)

    def open_runs(self, id_: str = "") -> None:  # noqa: ARG002
        """They are this machine's now, and none of the recording's."""
        self._refuse("A recording has no runs; dbq-console pipeline runs lists this machine's.")

    def open_pipeline(
        self,
        verb: str,
        key: Key | None = None,  # noqa: ARG002
        **options: str,  # noqa: ARG002
    ) -> None:
        """None can be begun."""
        self._refuse(f"pipeline {verb}: {_NOTHING[0].lower()}{_NOTHING[1:]}")

    def open_bench(self, connection: str, **options: str) -> None:  # noqa: ARG002
        """There is no server to load."""
        self._refuse(_NOTHING)

    def examine(self, key: Key | None = None) -> None:  # noqa: ARG002
        """The doctor's word is as it was recorded."""
        self._refuse("A recording: what the doctor said then is shown; he cannot look again.")
