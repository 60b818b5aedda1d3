"""The console's application: feeds bring readings, the board keeps them, screens draw them."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, tzinfo
from pathlib import Path
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.theme import Theme

from console.monitor import Reading
from console.monitor.limits import ThresholdsOf
from console.tui.board import Board, Key, RightsWords
from console.tui.desk import Desk
from console.tui.feed import Clock, Feed
from console.tui.jobs import JobEnded
from console.tui.places import Place
from console.tui.screens.connections import ConnectionsScreen
from console.tui.screens.help import HelpScreen
from console.tui.screens.live import LiveScreen
from console.tui.screens.overview import OverviewScreen

_THEME = Theme(
    name="dbq",
    primary="#5aa9d6",
    secondary="#7f9bb0",
    accent="#5aa9d6",
    foreground="#d0d6dc",
    background="#12161b",
    surface="#12161b",
    panel="#1c232b",
    success="#7fb77e",
    warning="#e0af52",
    error="#f0696b",
    dark=True,
    # What is not the point stays readable, but stands back.
    variables={"quiet": "#8d98a3", "faint": "#6b7681", "trend": "#4f7f9f", "cursor": "#26475b"},
)


class ReadingCame(Message):
    """A feed has looked. Posted from the feed's thread; nothing in it can change any more."""

    def __init__(self, name: str, reading: Reading, at: float) -> None:
        super().__init__()
        self.name = name
        self.reading = reading
        self.at = at


class ConsoleApp(App[None]):
    """The whole console. Feeds, clock and terminal size are all that it needs from outside."""

    CSS_PATH = "console.tcss"
    TITLE = "dbq-console"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "help", key_display="?", tooltip="this page"),
        Binding("ctrl+q", "quit", "quit", priority=True, tooltip="quit, from anywhere, at once"),
    ]

    def __init__(  # noqa: PLR0913  # what a console is made of, each by its name
        self,
        feeds: Sequence[Feed] = (),
        *,
        places: Sequence[Place] = (),
        clock: Clock | None = None,
        banner: str = "",
        rights: str | Mapping[str, RightsWords] = "",
        production: Collection[str] = (),
        thresholds: Mapping[str, ThresholdsOf] | None = None,
        zone: tzinfo | None = UTC,
        config_path: Path | None = None,
    ) -> None:
        """`rights` are words for the connections' lines, one for all or each by its name.

        `production` are the names of those that are marked so, whatever their databases say;
        `zone` is the one in which times of day are shown (None: the machine's own).
        """
        # Without colours means without colours: greys would be colours too.
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        self.register_theme(_THEME)
        self.theme = _THEME.name
        intervals = {feed.name: feed.interval_seconds for feed in feeds}
        if len(intervals) < len(feeds):
            raise ValueError("two feeds of one name")
        clock = clock or Clock()
        board = Board(
            intervals,
            clock.monotonic(),
            rights=dict.fromkeys(intervals, rights) if isinstance(rights, str) else rights,
            production=production,
            thresholds=thresholds,
        )
        self.desk = Desk(
            board,
            clock,
            self,
            tuple(feeds),
            {place.name: place for place in places},
            zone,
            config_path,
        )
        self._overview = OverviewScreen(self.desk, banner=banner)

    def get_default_screen(self) -> Screen[None]:
        """What opens first: the overview, or how to get something to look at."""
        return self._overview if self.desk.feeds else ConnectionsScreen(self.desk.config_path)

    def on_mount(self) -> None:
        """Begin to look."""
        self._heed_signals()
        for feed in self.desk.feeds:
            feed.start(self._receiver(feed.name))

    def _receiver(self, name: str) -> Callable[[Reading], None]:
        """What a feed calls, in its own thread: it only ever posts."""

        def receive(reading: Reading) -> None:
            # The loop may be gone between two of the feed's looks; then nobody wants the reading.
            with contextlib.suppress(RuntimeError):
                self.post_message(ReadingCame(name, reading, self.desk.clock.monotonic()))

        return receive

    def on_reading_came(self, message: ReadingCame) -> None:
        """Keep it, and let the screens draw it."""
        self.desk.board.take(message.name, message.reading, message.at)
        for screen in self.screen_stack:
            if isinstance(screen, LiveScreen):
                screen.readings_came()

    def on_job_ended(self, message: JobEnded) -> None:
        """Work in a thread has come to its end: whoever wanted it is told."""
        message.told()

    def on_unmount(self) -> None:
        """Nobody is waited for: a feed may hang in a dead server."""
        for feed in self.desk.feeds:
            feed.stop()

    def action_help(self) -> None:
        """Show the keys."""
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen(self.screen.active_bindings.values()))

    # Where one can go from anywhere (`console.tui.desk.Ways`). Screens are loaded when they are
    # opened: the console shall start at once.

    def open_queue(self, key: Key, tab: str = "") -> None:
        """A queue's screen, on one of its tabs."""
        from console.tui.screens.queue import QueueScreen  # noqa: PLC0415

        self.push_screen(QueueScreen(self.desk, key, tab))

    def open_message(self, key: Key, message: str) -> None:
        """One message, by the key that a page of messages gave."""
        from console.tui.screens.message import MessageScreen  # noqa: PLC0415

        self.push_screen(MessageScreen(self.desk, key, message))

    def open_waits(self, connection: str) -> None:
        """What a server's sessions wait for."""
        from console.tui.screens.waits import WaitsScreen  # noqa: PLC0415

        self.push_screen(WaitsScreen(self.desk, connection))

    def open_actions(self, key: Key, words: Sequence[str] = ()) -> None:
        """The verbs that a queue has."""
        from console.tui.dialogs.verbs import VerbsDialog  # noqa: PLC0415

        self.push_screen(VerbsDialog(self.desk, key, words))

    def open_action(self, key: Key, verb: str, words: Sequence[str] = (), **options: str) -> None:
        """One verb's form."""
        from console.tui.screens.action import ActionScreen  # noqa: PLC0415

        self.push_screen(ActionScreen(self.desk, key, verb, words, options))

    def open_audit(self, connection: str = "", key: Key | None = None) -> None:
        """Who did what."""
        from console.tui.screens.audit import AuditScreen  # noqa: PLC0415

        self.push_screen(AuditScreen(self.desk, connection, key))

    def open_install(self, connection: str) -> None:
        """A new queue."""
        from console.tui.screens.install import InstallScreen  # noqa: PLC0415

        self.push_screen(InstallScreen(self.desk, connection))

    def open_adopt(self, connection: str) -> None:
        """A table that is a queue already."""
        from console.tui.screens.adopt import AdoptScreen  # noqa: PLC0415

        self.push_screen(AdoptScreen(self.desk, connection))

    def open_smoke(self, key: Key) -> None:
        """A trial of the queue's design."""
        from console.tui.screens.smoke import SmokeScreen  # noqa: PLC0415

        self.push_screen(SmokeScreen(self.desk, key))

    def open_connections(self) -> None:
        """The connections, and what is configured."""
        self.push_screen(ConnectionsScreen(self.desk.config_path))

    def examine(self, key: Key | None = None) -> None:
        """Let the doctor look now."""

    def _heed_signals(self) -> None:
        """Being ended or hung up gives the terminal back as quitting does."""
        if self.is_headless:
            return
        loop = asyncio.get_running_loop()
        for one in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(one, self.exit)
