"""The console on a recording: every screen as it was, at any pace, and nothing can be done."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from console.catalog import Queue
from console.monitor.limits import ThresholdsOf
from console.monitor.sampler import Reading
from console.tui.app import ConsoleApp
from console.tui.context import FEW_CONNECTIONS, Setup
from console.tui.dialogs.dialog import SeekDialog
from console.tui.findings import QueueKey
from console.tui.replay import Replay, moment_of
from console.tui.replay_thread import Position, ReplayThread, Shown, take
from console.tui.store import Store
from console.tui.terminal import DEFAULT_APPEARANCE, Appearance
from console.tui.text import plain

_RIGHTS = "a recording"
_NOTHING = "A recording: nothing can be done from here."


class _Still:
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


class ShownNow(Message):
    """The replay's thread has something to show."""

    def __init__(self, shown: Shown) -> None:
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
        monotonic: Callable[[], float] = time.monotonic,
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
        super().__init__([_Still(name) for name in replay.connections], setup)
        self._traits = {name: self._seen(setup.traits(name)) for name in replay.connections}
        self._monotonic = monotonic
        self._replay = replay
        self.context.replay = replay
        self._projector = ReplayThread(replay, self._store_at, self._show)

    def _store_at(self, moment: datetime) -> Store:
        intervals = dict.fromkeys(self._replay.connections, 1.0)
        return Store(intervals, moment.timestamp(), self._traits, recorded=True)

    def _show(self, shown: Shown) -> None:
        # The loop may be gone by now; then nobody wants to see it.
        with contextlib.suppress(RuntimeError):
            self.post_message(ShownNow(shown))

    def on_mount(self) -> None:
        self._projector.start()

    def on_unmount(self) -> None:
        self._projector.stop()

    def on_shown_now(self, message: ShownNow) -> None:
        shown = message.shown
        if isinstance(shown, Position):
            # Another store, not the old one: it would know what came later.
            self.context.store = shown.store
            self._replay.player.arrive(shown.at)
        else:
            for frame in shown.frames:
                take(self.context.store, frame)
            self._replay.player.reach(shown.until)
        if isinstance(shown, Position) or shown.frames:
            self._draw()
        self._projector.shown()

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
