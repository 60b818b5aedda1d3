"""The console's application: feeds bring readings, the store keeps them, screens draw them."""

import asyncio
import contextlib
import gc
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from rich.style import Style
from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.dom import DOMNode
from textual.filter import LineFilter
from textual.screen import Screen
from textual.widgets import Input

from console.config.file_reader import FILTERS, QUEUE_FILTERS
from console.doctor.watcher import Doctor, DoctorUpdate, Watcher
from console.errors import ConsoleError
from console.monitor.limits import Severity
from console.monitor.sampler import Reading, WorkLimiter
from console.tui.context import FEW_CONNECTIONS, Context, Feed, NewDiagnoses, NewReading, Setup
from console.tui.dialogs.dialog import PasswordDialog
from console.tui.findings import QueueKey
from console.tui.jobs import JobFinished
from console.tui.navigator import Navigator
from console.tui.open_connection import OpenConnection, PendingConnection
from console.tui.recordings import ConnectionRecorder, recordings_in
from console.tui.screens.live import LiveScreen
from console.tui.screens.overview import OverviewScreen
from console.tui.store import Store, Traits
from console.tui.terminal import THEMES, ControlCharFilter, TerminalDriver
from console.tui.text import STYLE_NAMES, plain
from console.views.doctor import FindingKey

if TYPE_CHECKING:
    from textual.actions import ActionParseResult

    from console.tui.command import CommandContext, VisibleFilter


CONTROL_CHAR_FILTER = ControlCharFilter()
_MOUNTING_SECONDS = 0.005
_OPENED_SECONDS = 10.0
_EXAMINED_SECONDS = 5.0
"""How long other connections wait for the doctor of one, whose server may be silent."""
_REST = 20.0
"""The doctors of many connections together use a twentieth of a processor."""


def _palette() -> type[Provider]:
    from console.tui.dialogs.command_line import ConsoleCommands  # noqa: PLC0415  # not before it is opened

    return ConsoleCommands


class ConsoleApp(Navigator):
    """The whole console. Feeds, clock and terminal size are its only inputs.

    The text styles are component classes of the app: with those of every widget they would be
    looked up at each restyling, a third of the cost of opening a queue.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"text--{name}" for name in STYLE_NAMES}

    CSS_PATH = str(Path(__file__).with_name("console.tcss"))
    TITLE = "dbq-console"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {_palette}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "help", key_display="?", tooltip="this page"),
        # In fields and dialogs too, where other keys are letters.
        Binding("f1", "help", "help", show=False, priority=True, tooltip="this page"),
        # It has priority: what is typed right after it goes into the line.
        Binding(
            "colon",
            "command_line",
            "command",
            show=False,
            key_display=":",
            priority=True,
            tooltip="enter a command",
        ),
        Binding(
            "ctrl+p",
            "command_palette",
            "commands",
            show=False,
            priority=True,
            tooltip="find a verb, a screen, a queue, a theme",
        ),
        Binding("ctrl+q", "quit", "quit", priority=True, tooltip="quit, from anywhere, at once"),
    ]

    _text_styles: Mapping[str, Style] = MappingProxyType({})
    _prepared = False

    def __init__(self, feeds: Sequence[Feed] = (), setup: Setup | None = None) -> None:
        setup = setup or Setup()
        if not os.environ.get("NO_COLOR", "?"):
            del os.environ["NO_COLOR"]  # empty means unset by its specification, but not to Textual
        # No greys either: they are colours too.
        super().__init__(
            driver_class=TerminalDriver, ansi_color=True if "NO_COLOR" in os.environ else None
        )
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = setup.appearance.theme
        intervals = {feed.name: feed.interval_seconds for feed in feeds}
        if len(intervals) < len(feeds):
            raise ValueError("two feeds of one name")
        traits = {name: self._adapt_colors(setup.traits(name)) for name in intervals}
        store = Store(intervals, setup.clock.monotonic(), traits)
        many = len(feeds) > FEW_CONNECTIONS
        slower = max(1.0, len(feeds) / FEW_CONNECTIONS)
        self.context = Context(
            store,
            setup.clock,
            self,
            tuple(feeds),
            {conn.name: conn for conn in setup.connections},
            setup.zone,
            setup.config_path,
            recordings=recordings_in(setup.recordings, slower),
            lacks=setup.lacks,
            saved=setup.appearance.saved,
        )
        self._overview = OverviewScreen(self.context, setup.banner, by_group=setup.by_group)
        self._turns: WorkLimiter | None = None
        """Limits the doctors of many connections; the first samples come before them."""
        if many:
            self._turns = WorkLimiter(
                1, _EXAMINED_SECONDS, rest=_REST, begins_after=_OPENED_SECONDS
            )
        self._watchers: dict[str, Watcher] = {}
        self._critical: dict[QueueKey, tuple[bool, set[FindingKey]]] = {}
        """Queue -> whether the doctor has examined it, and its critical findings."""
        for name, conn in self.context.connections.items():
            if name in intervals:
                store.expect_doctor(name)
                self._record(conn)

    def _adapt_colors(self, traits: Traits) -> Traits:
        return replace(traits, color="") if self.no_color else traits

    # Computed once for the whole application, so that a repaint is cheap.

    def notify_style_update(self) -> None:
        self._text_styles = {}
        super().notify_style_update()

    def style_named(self, name: str) -> Style:
        if not self._component_styles:
            self.stylesheet.apply(self)  # its first widgets are styled before it is
        if name not in self._text_styles:
            style = self.get_component_styles(f"text--{name}").partial_rich_style
            self._text_styles = {**self._text_styles, name: style}
        return self._text_styles[name]

    @property
    def _background_screens(self) -> list[Screen[Any]]:
        """None below an opaque screen: Textual would repaint both at each message to the covered
        one."""
        opaque = self.screen.styles.background.a == 1
        return [] if opaque else super()._background_screens

    def prepare(self) -> None:
        """After the first figures, import what is likely to be opened next."""
        if not self._prepared and not self.is_headless:
            self._prepared = True
            threading.Thread(target=_prepare, daemon=True).start()

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), CONTROL_CHAR_FILTER]

    def get_default_screen(self) -> Screen[None]:
        if self.context.feeds:
            return self._overview
        from console.tui.screens.connections import ConnectionsScreen  # noqa: PLC0415

        return ConnectionsScreen(self.context)

    def add_connection(self, opening: PendingConnection) -> None:
        """Add a connection and start sampling it."""
        if not self.can("verbs"):
            return
        context, conn, feed = self.context, opening.conn, opening.feed
        first = not context.feeds
        context.connections = {**context.connections, conn.name: conn}
        context.feeds = (*context.feeds, feed)
        traits = Traits(opening.rights, conn.production, conn.thresholds_of, conn.color, conn.group)
        now = context.clock.monotonic()
        context.store.add(conn.name, feed.interval_seconds, now, self._adapt_colors(traits))
        context.store.expect_doctor(conn.name)
        self._record(conn)
        self._watch(feed)
        if first:
            self.push_screen(self._overview)
        self.log_in()

    def log_in(self, name: str = "") -> None:
        """Ask for the password of one connection, or of all that need one typed."""
        for conn in reversed([*self.context.connections.values()]):
            wanted = conn.credentials is not None and (
                conn.credentials.is_typed if name else conn.credentials.needs_typing
            )
            if wanted and name in {"", conn.name}:
                self.push_screen(PasswordDialog(self.context, conn))

    def on_mount(self) -> None:
        self._handle_signals()
        for feed in self.context.feeds:
            self._watch(feed)
        if self._turns is not None:
            self.set_timer(_OPENED_SECONDS, self.prepare)
        self.log_in()

    def _watch(self, feed: Feed) -> None:
        """Start sampling, and the doctor unless the feed has no database."""
        receive, conn = self._on_reading(feed.name), self.context.connections.get(feed.name)
        if conn is None:
            feed.start(receive)
            return
        doctor = Doctor(conn.database, conn.thresholds_of, conn.masks, rights=conn.rights)
        on_update = self._on_examined(feed.name)
        watcher = Watcher(feed, doctor, on_reading=receive, on_update=on_update, turns=self._turns)
        self._watchers[feed.name] = watcher
        watcher.start()

    def _record(self, conn: OpenConnection) -> None:
        if self.context.recordings is not None:
            self.context.recordings.add(conn)

    def _recording(self, name: str) -> ConnectionRecorder | None:
        return None if self.context.recordings is None else self.context.recordings.get(name)

    def _on_reading(self, name: str) -> Callable[[Reading], None]:
        """The feed's callback, in its own thread: records and posts."""
        recording = self._recording(name)

        def receive(reading: Reading) -> None:
            if recording is not None:
                recording.on_reading(reading)
            # The event loop may have stopped between two samples.
            with contextlib.suppress(RuntimeError):
                self.post_message(NewReading(name, reading, self.context.clock.monotonic()))

        return receive

    def _on_examined(self, name: str) -> Callable[[DoctorUpdate], None]:
        """The watcher's callback, in the doctor's thread: records and posts."""
        recording = self._recording(name)

        def on_update(update: DoctorUpdate) -> None:
            if recording is not None:
                recording.add_diagnoses(update.diagnoses)
            with contextlib.suppress(RuntimeError):
                clock = self.context.clock
                self.post_message(NewDiagnoses(name, update, clock.monotonic(), clock.utc()))

        return on_update

    def on_new_reading(self, message: NewReading) -> None:
        store = self.context.store
        store.add_reading(message.name, message.reading, message.at)
        if message.reading.promoted_at == message.reading.taken_at is not None:
            self.notify_plain(f"{message.name} was a standby and is a primary now.")
        watcher = self._watchers.get(message.name)
        if watcher and (keys := store.needs_diagnosis(message.name, message.at)):
            watcher.prioritize([(schema, queue) for _, schema, queue in keys])
        self._draw(message.name)
        if self._turns is None:
            self.call_after_refresh(self.prepare)

    def on_new_diagnoses(self, message: NewDiagnoses) -> None:
        examined = message.examined
        self.context.store.add_diagnoses(
            message.name,
            examined.diagnoses,
            message.at,
            message.moment,
            next_seconds=examined.next_seconds,
            error=examined.error,
        )
        self._draw(message.name)

    def _draw(self, name: str = "") -> None:
        """Redraw the open screens. `name`: the connection with new data."""
        for screen in self.screen_stack:
            if isinstance(screen, LiveScreen):
                screen.schedule_draw()
        if self._has_new_critical(name):
            self.bell()

    def _has_new_critical(self, name: str) -> bool:
        """Whether a connection with `bell` has a new critical finding that is not silenced. Those
        of the first sample and of the doctor's first examination do not count as new."""
        conn, new = self.context.connections.get(name), False
        for row in self.context.store.rows(name) if conn is not None and conn.bell else ():
            critical = {
                finding_view.key
                for finding_view in row.findings
                if finding_view.level is Severity.CRITICAL and finding_view.silenced is None
            }
            examined, before = self._critical.get(row.key, (None, critical))
            if examined is (row.examined is not None):
                new = new or bool(critical - before)
            self._critical[row.key] = (row.examined is not None, critical)
        return new

    def on_job_finished(self, message: JobFinished) -> None:
        message.deliver()

    def on_unmount(self) -> None:
        """Actions stop after their batch. Feeds are not waited for: their servers may hang."""
        self.context.action_runs.stop()
        for feed in self.context.feeds:
            feed.stop()
        for watcher in self._watchers.values():
            watcher.stop()
        if self.context.recordings is not None:
            self.context.recordings.stop()

    async def run_action(
        self,
        action: "str | ActionParseResult",
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """A key typed ahead waits until its screen has widgets."""
        while default_namespace is self.screen and not self.screen.is_mounted:  # noqa: ASYNC110  # no event reports it
            await asyncio.sleep(_MOUNTING_SECONDS)
        return await super().run_action(action, default_namespace, namespaces)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In a field a colon is text, and dialogs have no command line."""
        if action == "command_line":
            return not (isinstance(self.focused, Input) or self.screen.is_modal)
        return super().check_action(action, parameters)

    def action_help(self) -> None:
        from console.tui.screens.help import HelpScreen  # noqa: PLC0415

        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen.of(self.screen))

    def command_context(self, screen: Screen[object]) -> "CommandContext":
        """Where a command is typed: it applies to the queue under the cursor."""
        from console.tui.command import CommandContext  # noqa: PLC0415

        key = getattr(screen, "key", None)
        if isinstance(screen, OverviewScreen):
            key = screen.queue_key
        themes = tuple(theme.name for theme in THEMES)
        in_sight = self._visible_filter(screen)
        return CommandContext(
            self.context, key if isinstance(key, tuple) else None, themes, in_sight
        )

    def _visible_filter(self, screen: Screen[object]) -> "VisibleFilter | None":
        """Of the overview, or of the visible list of messages."""
        from console.tui.command import VisibleFilter  # noqa: PLC0415
        from console.tui.tabs.messages import MessagesTab  # noqa: PLC0415

        if isinstance(screen, OverviewScreen):
            line = screen.filter_line
            return VisibleFilter(QUEUE_FILTERS, line) if line else None
        for pane in screen.query(MessagesTab):
            if pane.region and (line := pane.filter_line):
                return VisibleFilter(FILTERS, line)
        return None

    def action_command_palette(self) -> None:
        from console.tui.dialogs.command_line import Palette  # noqa: PLC0415

        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette"))

    def action_command_line(self) -> None:
        from console.tui.dialogs.command_line import CommandLineDialog  # noqa: PLC0415

        self.push_screen(CommandLineDialog(self.command_context(self.screen)))

    def run_command(self, line: str) -> None:
        from console.tui import commands  # noqa: PLC0415  # so that the console starts at once

        try:
            commands.run(self.command_context(self.screen), line)
        except ConsoleError as error:
            self.notify(plain(str(error)), severity="error", markup=False)

    def choose_theme(self, name: str) -> None:
        self.theme = name

    def notify_plain(self, text: str) -> None:
        self.notify(plain(text), markup=False)

    def examine(self, key: QueueKey | None = None) -> None:
        """Have the doctor examine one queue, or all, now."""
        if not self.can("doctor"):
            return
        for name, watcher in self._watchers.items():
            if key is None:
                watcher.request_diagnosis()
                self.context.store.mark_examining(name)
            elif key[0] == name:
                watcher.request_diagnosis(key[1:])
                self.context.store.mark_examining(name, key)

    def _handle_signals(self) -> None:
        """SIGTERM and SIGHUP restore the terminal as quitting does."""
        if self.is_headless:
            return
        loop = asyncio.get_running_loop()
        for one in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(one, self.exit)


def _prepare() -> None:
    import console.tui.screens.queue  # noqa: F401, PLC0415  # not before the first figures

    # Imported objects never become garbage; scanning them takes the collector 60 ms, in which no
    # key is painted.
    gc.freeze()
