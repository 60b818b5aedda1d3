"""The console's application: feeds bring readings, the board keeps them, screens draw them."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.filter import LineFilter
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input

from console.config.reading import FILTERS, QUEUE_FILTERS
from console.monitor import Reading
from console.monitor.limits import ThresholdsOf
from console.tui.board import Board, Key, RightsWords
from console.tui.desk import Desk
from console.tui.doctor_feed import DoctorFeed, Told
from console.tui.feed import Clock, Feed
from console.tui.findings import FindingView
from console.tui.jobs import JobEnded
from console.tui.opening import Opening
from console.tui.places import Place
from console.tui.recordings import PlaceRecording, Recordings
from console.tui.screens.connections import ConnectionsScreen
from console.tui.screens.help import HelpScreen
from console.tui.screens.live import LiveScreen
from console.tui.screens.overview import OverviewScreen
from console.tui.terminal import Harmless, TerminalDriver
from console.tui.text import plain
from console.tui.themes import DEFAULT_TASTE, THEMES, Taste

if TYPE_CHECKING:
    from console.tui.commands import InSight, Site


HARMLESS = Harmless()


def _palette() -> type[Provider]:
    from console.tui.palette import ConsoleCommands  # noqa: PLC0415  # not before it is opened

    return ConsoleCommands


class ReadingCame(Message):
    """A feed has looked. Posted from the feed's thread; nothing in it can change any more."""

    def __init__(self, name: str, reading: Reading, at: float) -> None:
        super().__init__()
        self.name = name
        self.reading = reading
        self.at = at


class DiagnosesCame(Message):
    """A doctor has looked. Posted from his thread; nothing in it can change any more."""

    def __init__(self, name: str, told: Told, at: float, moment: datetime) -> None:
        super().__init__()
        self.name = name
        self.told = told
        self.at = at
        self.moment = moment


class ConsoleApp(App[None]):
    """The whole console. Feeds, clock and terminal size are all that it needs from outside."""

    CSS_PATH = "console.tcss"
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
            tooltip="a command",
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
        recordings: Path | None = None,
        taste: Taste = DEFAULT_TASTE,
    ) -> None:
        """`rights` are words for the connections' lines, one for all or each by its name.

        `production` are the names of those that are marked so, whatever their databases say;
        `zone` is the one in which times of day are shown (None: the machine's own). `recordings`:
        the folder to which what is seen is recorded; None: nothing is.
        """
        if not os.environ.get("NO_COLOR", "?"):
            del os.environ["NO_COLOR"]  # empty it says nothing, by its own rule; not to Textual
        # Without colours means without colours: greys would be colours too.
        super().__init__(
            driver_class=TerminalDriver, ansi_color=True if "NO_COLOR" in os.environ else None
        )
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = taste.theme
        intervals = {feed.name: feed.interval_seconds for feed in feeds}
        if len(intervals) < len(feeds):
            raise ValueError("two feeds of one name")
        clock = clock or Clock()
        colors = {**taste.colors, **{one.name: one.color for one in places if one.color}}
        board = Board(
            intervals,
            clock.monotonic(),
            rights=dict.fromkeys(intervals, rights) if isinstance(rights, str) else rights,
            production=production,
            thresholds=thresholds,
            colors={} if self.no_color else colors,
        )
        self.desk = Desk(
            board,
            clock,
            self,
            tuple(feeds),
            {place.name: place for place in places},
            zone,
            config_path,
            recordings=None if recordings is None else Recordings(recordings),
            saved=taste.saved,
        )
        self._overview = OverviewScreen(self.desk, banner=banner)
        # A feed without a place is not a database's: nobody can look behind its readings.
        self._doctors = {
            name: DoctorFeed(place, self._hearer(name))
            for name, place in self.desk.places.items()
            if name in intervals
        }
        for name in self._doctors:
            board.expect_doctor(name)
            self._record(self.desk.places[name])

    def get_line_filters(self) -> Sequence[LineFilter]:
        """The last that is done to a line before it is drawn."""
        return [*super().get_line_filters(), HARMLESS]

    def get_default_screen(self) -> Screen[None]:
        """What opens first: the overview, or how to get something to look at."""
        return self._overview if self.desk.feeds else ConnectionsScreen(self.desk)

    def add_connection(self, opening: Opening) -> None:
        """One more connection, looked at from now on. It is known under its place's name."""
        desk, place, feed = self.desk, opening.place, opening.feed
        first = not desk.feeds
        desk.places = {**desk.places, place.name: place}
        desk.feeds = (*desk.feeds, feed)
        desk.board.add(
            place.name,
            feed.interval_seconds,
            desk.clock.monotonic(),
            rights=opening.rights,
            production=place.production,
            thresholds=opening.thresholds,
            color="" if self.no_color else place.color,
        )
        self._doctors[place.name] = DoctorFeed(place, self._hearer(place.name))
        desk.board.expect_doctor(place.name)
        self._record(place)
        feed.start(self._receiver(place.name))
        if first:
            self.push_screen(self._overview)
        self.log_in()

    def log_in(self, name: str = "") -> None:
        """Take the passwords that a person must type: of one connection, or of all that want it."""
        from console.tui.dialogs.password import PasswordDialog  # noqa: PLC0415

        for place in reversed([*self.desk.places.values()]):
            wanted = place.credentials is not None and (
                place.credentials.is_typed if name else place.credentials.wants_typing
            )
            if wanted and name in {"", place.name}:
                self.push_screen(PasswordDialog(self.desk, place))

    def on_mount(self) -> None:
        """Begin to look."""
        self._heed_signals()
        for feed in self.desk.feeds:
            feed.start(self._receiver(feed.name))
        self.log_in()

    def _record(self, place: Place) -> None:
        if self.desk.recordings is not None:
            self.desk.recordings.add(place)

    def _recording(self, name: str) -> PlaceRecording | None:
        return None if self.desk.recordings is None else self.desk.recordings.of(name)

    def _receiver(self, name: str) -> Callable[[Reading], None]:
        """What a feed calls, in its own thread: it records, and posts."""
        recording = self._recording(name)

        def receive(reading: Reading) -> None:
            if recording is not None:
                recording.saw(reading)
            # The loop may be gone between two of the feed's looks; then nobody wants the reading.
            with contextlib.suppress(RuntimeError):
                self.post_message(ReadingCame(name, reading, self.desk.clock.monotonic()))

        return receive

    def _hearer(self, name: str) -> Callable[[Told], None]:
        """What a doctor calls, in his own thread."""

        def hear(told: Told) -> None:
            recording = self._recording(name)
            if recording is not None:
                recording.told(told.diagnoses)
            with contextlib.suppress(RuntimeError):
                clock = self.desk.clock
                self.post_message(DiagnosesCame(name, told, clock.monotonic(), clock.utc()))

        return hear

    def on_reading_came(self, message: ReadingCame) -> None:
        """Keep it, let the screens draw it, and the doctor explain it."""
        board = self.desk.board
        board.take(message.name, message.reading, message.at)
        if doctor := self._doctors.get(message.name):
            doctor.saw(message.reading)
            if keys := board.unexplained(message.name, message.at):
                doctor.explain([(schema, queue) for _, schema, queue in keys])
        self._draw()

    def on_diagnoses_came(self, message: DiagnosesCame) -> None:
        """Keep them, and let the screens draw them."""
        told = message.told
        self.desk.board.take_diagnoses(
            message.name,
            told.diagnoses,
            message.at,
            message.moment,
            next_seconds=told.next_seconds,
            error=told.error,
        )
        self._draw()

    def _draw(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, LiveScreen):
                screen.readings_came()

    def on_job_ended(self, message: JobEnded) -> None:
        """Work in a thread has come to its end: whoever wanted it is told."""
        message.told()

    def on_unmount(self) -> None:
        """No feed is waited for: it may hang in a dead server. Actions end after their batch."""
        self.desk.running.stop()
        for feed in self.desk.feeds:
            feed.stop()
        for doctor in self._doctors.values():
            doctor.stop()
        if self.desk.recordings is not None:
            self.desk.recordings.end()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In a field a colon is a colon, and a dialog wants its answer first."""
        if action == "command_line":
            return not (isinstance(self.focused, Input) or self.screen.is_modal)
        return super().check_action(action, parameters)

    def action_help(self) -> None:
        """Show the keys."""
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen.of(self.screen))

    def site(self, screen: Screen[object]) -> "Site":
        """Where a command is typed: the queue under the cursor is the one that it is for."""
        from console.tui.commands import Site  # noqa: PLC0415

        key = getattr(screen, "key", None)
        if isinstance(screen, OverviewScreen):
            key = screen.queue_key
        themes = tuple(theme.name for theme in THEMES)
        in_sight = self._filter_in_sight(screen)
        return Site(self.desk, self, key if isinstance(key, tuple) else None, themes, in_sight)

    def _filter_in_sight(self, screen: Screen[object]) -> "InSight | None":
        """Of the overview, or of the list of messages that is not behind another tab."""
        from console.tui.commands import InSight  # noqa: PLC0415
        from console.tui.tabs.message_pane import MessagePane  # noqa: PLC0415

        if isinstance(screen, OverviewScreen):
            line = screen.filter_line
            return InSight(QUEUE_FILTERS, line) if line else None
        for pane in screen.query(MessagePane):
            if pane.region and (line := pane.filter_line):
                return InSight(FILTERS, line)
        return None

    def action_command_palette(self) -> None:
        """Everything that a command can do."""
        from console.tui.palette import Palette  # noqa: PLC0415

        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette"))

    def action_command_line(self) -> None:
        """The line behind `:`."""
        from console.tui.dialogs.command_line import CommandLineDialog  # noqa: PLC0415

        self.push_screen(CommandLineDialog(self.site(self.screen)))

    def choose_theme(self, name: str) -> None:
        """Other colours, for as long as the console runs."""
        self.theme = name

    def tell(self, words: str) -> None:
        """Something that was done, said for a moment."""
        self.notify(plain(words), markup=False)

    def open_messages(self, key: Key, words: Sequence[str] = ()) -> None:
        """A queue's messages, with a filter."""
        from console.tui.tabs.message_pane import MessagePane  # noqa: PLC0415

        self.open_queue(key, "messages")
        screen = self.screen

        def narrow(tries: int = 40) -> None:
            # The tabs come once the queue's first figures have been drawn.
            found = [pane for pane in screen.query(MessagePane) if pane.is_mounted]
            if found:
                found[0].open(words)
            elif tries and screen.is_attached:
                screen.set_timer(0.05, lambda: narrow(tries - 1))

        if words:
            screen.call_after_refresh(narrow)

    # Where one can go from anywhere (`console.tui.desk.Ways`). Screens are loaded when they are
    # opened: the console shall start at once.

    def open_queue(self, key: Key, tab: str = "") -> None:
        """A queue's screen, on one of its tabs."""
        from console.tui.screens.queue import QueueScreen  # noqa: PLC0415

        below = self.screen
        if isinstance(below, QueueScreen) and below.key == key:
            # As from a finding of that queue: Escape shall not lead through it twice.
            below.show_tab(tab)
        else:
            self.push_screen(QueueScreen(self.desk, key, tab))

    def open_finding(self, finding: FindingView) -> None:
        """A finding as it was shown: its evidence, and what mends it."""
        from console.tui.dialogs.finding import FindingDialog  # noqa: PLC0415

        self.push_screen(FindingDialog(self.desk, finding))

    def open_message(self, key: Key, message: str) -> None:
        """One message, by the key that a page of messages gave."""
        from console.tui.screens.message import MessageScreen  # noqa: PLC0415

        self.push_screen(MessageScreen(self.desk, key, message))

    def open_waits(self, connection: str) -> None:
        """What a server's sessions wait for."""
        from console.tui.screens.waits import WaitsScreen  # noqa: PLC0415

        self.push_screen(WaitsScreen(self.desk, connection))

    def open_actions(self, key: Key, words: Sequence[str] = (), state: str = "") -> None:
        """The verbs that a queue has."""
        from console.tui.dialogs.verbs import VerbsDialog  # noqa: PLC0415

        self.push_screen(VerbsDialog(self.desk, key, words, state))

    def open_action(self, key: Key, verb: str, words: Sequence[str] = (), **options: str) -> None:
        """One verb's form."""
        from console.tui.screens.action import ActionScreen  # noqa: PLC0415

        self.push_screen(ActionScreen(self.desk, key, verb, words, options))

    def open_running(self, number: int = 0) -> None:
        """An action that runs here; 0: the one that there is, or which of several."""
        from console.tui.dialogs.running import RunningDialog  # noqa: PLC0415
        from console.tui.screens.action import ActionScreen  # noqa: PLC0415

        runs = self.desk.running.all
        found = self.desk.running.get(number) if number else runs[0] if len(runs) == 1 else None
        if found is not None and found.verb == "smoke":
            from console.tui.screens.smoke import SmokeScreen  # noqa: PLC0415

            self.push_screen(SmokeScreen(self.desk, found.key, found))
        elif found is not None and found.verb == "bench":
            self.open_bench(found.key[0])
        elif found is not None:
            self.push_screen(ActionScreen(self.desk, found.key, found.verb, running=found))
        elif runs:
            self.push_screen(RunningDialog(self.desk))
        else:
            self.notify("No action runs here.", timeout=3)

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

    def open_runs(self, id_: str = "") -> None:
        """The runs of the pipeline on this machine."""
        from console.tui.screens.runs import RunsScreen  # noqa: PLC0415

        if isinstance(self.screen, RunsScreen):
            # As from the form of a rollup: Escape shall not lead through it twice.
            self.pop_screen()
        self.push_screen(RunsScreen(self.desk, id_))

    def open_pipeline(self, verb: str, key: Key | None = None, **options: str) -> None:
        """The form of a job of the pipeline."""
        from console.tui.screens.pipeline import PipelineScreen  # noqa: PLC0415

        self.push_screen(PipelineScreen(self.desk, verb, key, options))

    def open_bench(self, connection: str, **options: str) -> None:
        """How fast the designs are on a connection; the bench that runs, where one does."""
        from console.tui.screens.bench import BenchScreen  # noqa: PLC0415

        if isinstance(self.screen, BenchScreen):
            # Escape shall not lead through it twice.
            self.pop_screen()
        runs = [one for one in self.desk.running.all if one.verb == "bench"]
        self.push_screen(BenchScreen(self.desk, connection, options, runs[-1] if runs else None))

    def open_connections(self) -> None:
        """The connections, and what is configured."""
        self.push_screen(ConnectionsScreen(self.desk))

    def examine(self, key: Key | None = None) -> None:
        """Let the doctor look now: at one queue, or at all."""
        for name, doctor in self._doctors.items():
            if key is None:
                doctor.examine()
            elif key[0] == name:
                doctor.examine(key[1:])

    def _heed_signals(self) -> None:
        """Being ended or hung up gives the terminal back as quitting does."""
        if self.is_headless:
            return
        loop = asyncio.get_running_loop()
        for one in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(one, self.exit)
