"""What all screens have in common: they draw when something came, and only while they are seen."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer

from console.tui.desk import Desk, Ways
from console.tui.widgets.background_line import BackgroundLine
from console.tui.widgets.connection_lines import ConnectionLines


class LiveScreen(Screen[None]):
    """A screen that follows the board. It never waits, and changes nothing by a single key."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pause", "pause", tooltip="hold the screen still; sampling goes on"),
        Binding("r", "look_now", "now", show=False, tooltip="look at all databases now"),
        Binding(
            "plus,equals_sign",
            "interval(1)",
            "interval",
            show=False,
            key_display="+ -",
            tooltip="look less often",
        ),
        Binding("minus", "interval(-1)", "more often", show=False, tooltip="look more often"),
        Binding(
            "u",
            "zone",
            "zone",
            show=False,
            tooltip="times in UTC, or in the display zone (else local)",
        ),
        Binding("b", "running", "what runs", show=False, tooltip="the actions that run here"),
        Binding("escape,q", "out", "out", show=False, tooltip="one level out; never quits"),
    ]

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self.desk = desk
        self.paused_at: float | None = None
        self._scheduled = False

    @property
    def ways(self) -> Ways:
        """Where one can go from here."""
        return self.desk.ways

    def compose(self) -> ComposeResult:
        """Connections on top, the keys at the bottom, `body` between them."""
        yield ConnectionLines(id="connections")
        yield from self.body()
        yield BackgroundLine(id="background")
        yield Footer(show_command_palette=False)

    def body(self) -> ComposeResult:
        """What is this screen's own."""
        yield from ()

    def on_mount(self) -> None:
        """Times on the screen run on without any reading."""
        self.draw()
        self.set_interval(1.0, self.draw)

    def readings_came(self) -> None:
        """Draw once for all that has come together."""
        if not self._scheduled:
            self._scheduled = True
            self.call_later(self.draw)

    def draw(self) -> None:
        """Everything, from the board as it is now; a screen that nobody sees costs nothing."""
        self._scheduled = False
        if not self.is_seen:
            return
        now = self.desk.clock.monotonic()
        most = max(2, self.app.size.height // 8)
        lines = self.query_one(ConnectionLines)
        lines.draw(self.desk.board.connections(now), self.desk.corner, most)
        self.draw_body(now, paused=self.paused_at is not None)
        runs = [one for one in self.desk.running.all if one.number != self.followed]
        self.query_one(BackgroundLine).draw(runs, self._not_recorded, self._played)

    @property
    def _not_recorded(self) -> str:
        recordings = self.desk.recordings
        return "" if recordings is None else recordings.problem

    @property
    def _played(self) -> str:
        replay = self.desk.replay
        return "" if replay is None else replay.line(self.desk.zone, self.app.size.width - 2)

    def draw_body(self, now: float, *, paused: bool) -> None:
        """What is this screen's own; figures stay as they are while it is paused."""

    @property
    def is_seen(self) -> bool:
        """Dialogs leave what is under them in sight; other screens do not."""
        stack = self.app.screen_stack
        if not self.is_attached or self not in stack:
            return False
        return all(isinstance(above, ModalScreen) for above in stack[stack.index(self) + 1 :])

    def on_screen_resume(self) -> None:
        """It is in sight again."""
        if self.is_mounted:
            self.draw()

    def on_resize(self) -> None:
        """Another size has other columns and other room for words."""
        if self.is_mounted:
            self.draw()

    @property
    def followed(self) -> int:
        """The number of the action that a screen shows itself; 0: none."""
        return 0

    def action_running(self) -> None:
        """Go to the action that runs here."""
        self.ways.open_running()

    def action_pause(self) -> None:
        """Hold the screen still, or let it go on; of a recording: hold that, or play on."""
        if self.desk.replay is not None:
            self.desk.replay.player.turn()
            self.draw()
            return
        self.paused_at = self.desk.clock.monotonic() if self.paused_at is None else None
        self.draw()

    def action_zone(self) -> None:
        """Show times of day in UTC, or in the display zone."""
        self.desk.turn_zone()
        self.draw()

    def action_look_now(self) -> None:
        """Look at all databases now."""
        self.desk.look_now()

    def action_interval(self, step: int) -> None:
        """Look less or more often."""
        self.desk.change_interval(step)
        self.draw()

    def action_out(self) -> None:
        """One level out. Never out of the console."""
        if len(self.app.screen_stack) > 1:
            self.app.pop_screen()
