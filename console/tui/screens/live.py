"""What all screens have in common: they draw when something came, and only while they are seen."""

import math
import time
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Input

from console.tui.closable import Closable
from console.tui.context import FEW_CONNECTIONS, Context
from console.tui.text import Paragraph, open_input, plain, style_of
from console.tui.widgets.summary import BackgroundLine, ConnectionLines, KeyFooter

if TYPE_CHECKING:
    from console.tui.app import ConsoleApp

_OFTEN_SECONDS = 1.25
"""Readings that come within this time of each other keep what is counted in seconds true."""

_TOGETHER_SECONDS = 0.5
"""What many connections bring within this time is drawn at once."""


class ScreenHead(Paragraph):
    """One line, cut off where the screen is narrow; an error below it is never cut off."""

    def draw(self, line: Text, error: str = "") -> None:
        text = line.copy()
        text.truncate(max(20, self.app.size.width - 2), overflow="ellipsis")
        if error:
            text.append(f"\n✖ {' '.join(error.splitlines())}", style_of(self, "critical"))
        self.set_text(text)


class LiveScreen(Closable, Screen[None]):
    """A screen that follows the store. It never waits, and changes nothing by a single key."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pause", "pause", tooltip="freeze the screen; sampling goes on"),
        Binding("r", "refresh_now", "now", show=False, tooltip="refresh all databases now"),
        Binding(
            "plus,equals_sign",
            "interval(1)",
            "interval",
            show=False,
            key_display="+ -",
            tooltip="longer refresh interval",
        ),
        Binding(
            "minus", "interval(-1)", "more often", show=False, tooltip="shorter refresh interval"
        ),
        Binding(
            "u",
            "zone",
            "zone",
            show=False,
            tooltip="times in UTC, or in the display zone (else local)",
        ),
        Binding("b", "running", "running", show=False, tooltip="actions running here"),
        Binding("escape,q", "out", "back", show=False, tooltip="one level back; never quits"),
    ]

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context
        self.paused_at: float | None = None
        self._scheduled = False
        self.came_at = -math.inf
        """When there was a reading last, by `time.monotonic()`."""

    @property
    def navigator(self) -> "ConsoleApp":
        return self.context.navigator

    def compose(self) -> ComposeResult:
        """Connections on top, the keys at the bottom, `body` between them."""
        yield ConnectionLines(id="connections")
        yield from self.body()
        yield BackgroundLine(id="background")
        yield KeyFooter()

    def body(self) -> ComposeResult:
        yield from ()

    def on_mount(self) -> None:
        self.draw()
        self.set_interval(1.0, self.draw_times)

    def readings_came(self) -> None:
        """Draw once for all that has come together; of many connections something always comes."""
        self.came_at = time.monotonic()
        if not self._scheduled and self.is_seen:
            self._scheduled = True
            if len(self.context.feeds) > FEW_CONNECTIONS:
                self.set_timer(_TOGETHER_SECONDS, self.draw)
            else:
                self.call_later(self.draw)

    def draw_times(self) -> None:
        """They run on without any reading; one that comes every second brings them."""
        if time.monotonic() - self.came_at > _OFTEN_SECONDS:
            self.draw()

    def draw(self) -> None:
        """Everything, from the store as it is now; a screen that nobody sees costs nothing."""
        self._scheduled = False
        if not self.is_seen:
            return
        now = self.context.clock.monotonic()
        views = self.context.store.connections(now)
        many = len(views) > FEW_CONNECTIONS
        most = 2 if many else max(2, self.app.size.height // 8)
        lines = self.query_one(ConnectionLines)
        lines.draw(views, self.context.corner_text, most, plain(self.about) if many else None)
        self.draw_body(now, paused=self.paused_at is not None)
        runs = [one for one in self.context.action_runs.all if one.number != self.shown_action]
        self.query_one(BackgroundLine).draw(runs, self._not_recorded, self._played)

    @property
    def _not_recorded(self) -> str:
        recordings = self.context.recordings
        return "" if recordings is None else recordings.problem

    @property
    def _played(self) -> str:
        replay = self.context.replay
        return "" if replay is None else replay.line(self.context.zone, self.app.size.width - 2)

    @property
    def about(self) -> str:
        """The connection that the screen is about: of many it is the one that is told of. Empty:
        none."""
        key = getattr(self, "key", None)
        return key[0] if isinstance(key, tuple) else getattr(self, "connection", None) or ""

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
        if self.is_mounted:
            self.draw()

    def on_resize(self) -> None:
        """Another size has other columns and other room for words."""
        if self.is_mounted:
            self.draw()

    @property
    def shown_action(self) -> int:
        """The number of the action that a screen shows itself; 0: none."""
        return 0

    def action_running(self) -> None:
        self.navigator.open_running()

    def action_pause(self) -> None:
        """Hold the screen still, or let it go on; of a recording: hold that, or play on."""
        if self.context.replay is not None:
            self.context.replay.player.turn()
            self.draw()
            return
        self.paused_at = self.context.clock.monotonic() if self.paused_at is None else None
        self.draw()

    def action_zone(self) -> None:
        self.context.toggle_zone()
        self.draw()

    def action_refresh_now(self) -> None:
        self.context.sample_now()

    def action_interval(self, step: int) -> None:
        self.context.change_interval(step)
        self.draw()

    def action_out(self) -> None:
        """One level out. Never out of the console."""
        if len(self.app.screen_stack) > 1:
            self.app.pop_screen()

    def paused_head(self, head: Widget, title: str) -> Text:
        """How the line on top of a screen begins: that it is held still, if it is; what it is."""
        line = Text()
        if self.paused_at is not None:
            line.append(" PAUSED ", style_of(head, "paused"))
            line.append(" ")
        return line.append(title, style_of(head, "strong"))


def filter_keys(tooltip: str) -> list[BindingType]:
    """Keys that move the focus have priority: what is typed right after them goes the new way."""
    return [
        Binding("slash", "filter", "filter", key_display="/", priority=True, tooltip=tooltip),
        Binding("enter", "keep_filter", "keep it", priority=True),
        Binding("escape", "clear_filter", "all", priority=True),
        Binding("escape,q", "out", "back", show=False, tooltip="one level back; never quits"),
    ]


class FilteredScreen(LiveScreen):
    """A screen of one table, with a line for its filter: `#filter`; its keys are `filter_keys`."""

    NOT_WHILE_TYPING: ClassVar[frozenset[str]] = frozenset(
        {"filter", "open", "pause", "refresh_now", "interval", "zone", "out"}
    )
    """While a filter is typed, the keys of these are letters."""

    @property
    def listed(self) -> Widget:
        """The table that is filtered."""
        raise NotImplementedError

    @property
    def is_filtered(self) -> bool:
        return bool(self.query_one("#filter", Input).value)

    def check_action(self, action: str, _parameters: object) -> bool | None:
        if not self.is_mounted:
            return True
        typing = bool(self.query_one("#filter").display)
        if action == "clear_filter":
            return typing or self.is_filtered
        if action == "keep_filter":
            return typing
        return not typing or action not in self.NOT_WHILE_TYPING

    def action_filter(self) -> None:
        line = self.query_one("#filter", Input)
        open_input(line, line.value)

    def action_keep_filter(self) -> None:
        self.set_focus(self.listed)
        self.query_one("#filter").display = False
        self.refresh_bindings()

    def action_clear_filter(self) -> None:
        self.query_one("#filter", Input).value = ""
        self.action_keep_filter()
