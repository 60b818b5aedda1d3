"""The base classes of the screens. They draw new data, and only while they are in sight."""

import math
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key, Resize, ScreenResume
from textual.screen import ModalScreen, Screen
from textual.widget import Widget

from console import features
from console.tui.context import FEW_CONNECTIONS, Closable, Context
from console.tui.navigation import Navigation
from console.tui.text import Paragraph, plain, style_of
from console.tui.widgets.browser import Browser
from console.tui.widgets.summary import BackgroundLine, ConnectionLines, KeyFooter

_FRESH_SECONDS = 1.25
"""Ages on the screen need no drawing of their own within this time of a reading."""
_BATCH_SECONDS = 1.0
"""The readings of many connections within this time are drawn at once."""


class ScreenHead(Paragraph):
    """One line, cut off where the screen is narrow; an error below it is never cut off."""

    def draw(self, line: Text, error: str = "") -> None:
        text = line.copy()
        text.truncate(max(20, self.app.size.width - 2), overflow="ellipsis")
        if error:
            text.append(f"\n✖ {' '.join(error.splitlines())}", style_of(self, "critical"))
        self.set_text(text)


OUT = Binding("escape,q", "out", "one level back; never quits", show=False)


class LiveScreen(Closable, Screen[None]):
    """A screen that shows what is in the store."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pause", "freeze", tooltip="freeze the screen; sampling goes on"),
        Binding("r", "refresh_now", "refresh all databases now", show=False),
        Binding(
            "plus,equals_sign",
            "interval(1)",
            "longer refresh interval",
            show=False,
            key_display="+ -",
        ),
        Binding("minus", "interval(-1)", "shorter refresh interval", show=False),
        Binding("u", "zone", "times in UTC, or in the display zone (else local)", show=False),
        Binding("b", "running", "actions running here", show=False),
        OUT,
    ]

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context
        self.paused_at: float | None = None
        self._scheduled = False
        self._is_new = True
        self.last_reading_at = -math.inf
        """Of the last reading, by `time.monotonic()`."""

    @property
    def navigator(self) -> Navigation:
        return self.context.navigator

    def compose(self) -> ComposeResult:
        yield ConnectionLines(id="connections")
        yield from self.body()
        yield BackgroundLine(id="background")
        yield KeyFooter()

    def body(self) -> ComposeResult:
        yield from ()

    def on_mount(self) -> None:
        """Textual calls it after those of the subclasses."""
        self.draw()
        self.set_interval(1.0, self.draw_times)

    def schedule_draw(self) -> None:
        self.last_reading_at = time.monotonic()
        if not self._scheduled and self.is_in_sight:
            self._scheduled = True
            if len(self.context.feeds) > FEW_CONNECTIONS:
                self.set_timer(_BATCH_SECONDS, self.draw)
            else:
                self.call_later(self.draw)

    def draw_times(self) -> None:
        """Ages grow without any reading."""
        if time.monotonic() - self.last_reading_at > _FRESH_SECONDS:
            self.draw()

    def draw(self) -> None:
        """Everything, from the store as it is now, if the screen is in sight."""
        self._scheduled = False
        if not self.is_in_sight:
            return
        now = self.context.clock.monotonic()
        views = self.context.store.connections(now)
        many = len(views) > FEW_CONNECTIONS
        most = 2 if many else max(2, self.app.size.height // 8)
        lines = self.query_one(ConnectionLines)
        lines.draw(views, self.context.corner_text, most, plain(self.about) if many else None)
        self.draw_body(now, paused=self.paused_at is not None)
        runs = [run for run in self.context.action_runs.all if run.number != self.shown_action]
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
        """The connection whose state is shown where there are many; empty: none in particular."""
        key = getattr(self, "key", None)
        return key[0] if isinstance(key, tuple) else getattr(self, "connection", None) or ""

    def draw_body(self, now: float, *, paused: bool) -> None:
        """The body; while it is paused its figures stay as they are."""

    @property
    def is_in_sight(self) -> bool:
        """On top, or only under dialogs."""
        stack = self.app.screen_stack
        if not self.is_attached or self not in stack:
            return False
        return all(isinstance(above, ModalScreen) for above in stack[stack.index(self) + 1 :])

    def on_screen_resume(self, event: ScreenResume) -> None:
        """The first time it has just been styled and drawn."""
        if self._is_new:
            self._is_new = event.refresh_styles = False
        elif self.is_mounted:
            self.draw()

    def on_resize(self, event: Resize) -> None:
        """Textual would lay out and paint once more for the size of what it has just painted; but
        only then does it set the classes of a width."""
        if event.size == self.outer_size and not self.HORIZONTAL_BREAKPOINTS:
            event.prevent_default()
        if self.is_mounted:
            self.draw()

    @property
    def shown_action(self) -> int:
        """The number of the action run that the screen itself shows; 0: none."""
        return 0

    def on_key(self, event: Key) -> None:
        """A key that is not bound may be a feature's, for the row under the cursor."""
        for module in features.modules("rows"):
            module.pressed(self, event.character or "")

    def action_running(self) -> None:
        self.navigator.open_running()

    def action_pause(self) -> None:
        """Pause the screen or go on; in a replay, pause or play the recording."""
        if self.context.replay is not None:
            self.context.replay.toggle()
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
        """One level back; never leaves the console."""
        if len(self.app.screen_stack) > 1:
            self.app.pop_screen()

    def paused_head(self, head: Widget, title: str) -> Text:
        """The beginning of a screen's title line."""
        line = Text()
        if self.paused_at is not None:
            line.append(" FROZEN ", style_of(head, "paused"))
            line.append(" ")
        return line.append(title, style_of(head, "strong"))


class PolledScreen(LiveScreen, Browser):
    """A list that is read again every few seconds while it is in sight."""

    EVERY_SECONDS: ClassVar[float] = 5.0

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.table = self.new_table()

    def body(self) -> ComposeResult:
        yield ScreenHead(id=f"{self.VIEW.name}-head", classes="head")
        yield self.table
        yield Paragraph(id=f"{self.VIEW.name}-empty", classes="empty")
        yield Paragraph(id=f"{self.VIEW.name}-detail", classes="pane-detail")
        yield self.hidden_filter()

    def on_mount(self) -> None:
        self.query_one(".empty").display = False
        self.query_one(".pane-detail").display = False
        self.set_focus(self.table)
        self.reload()
        self.every(self.EVERY_SECONDS, self._poll)

    def draw_body(self, now: float, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        self.draw_texts()

    def reload(self) -> None:
        """Start a job that reads the table."""
        raise NotImplementedError

    def _poll(self) -> None:
        if self.is_in_sight and self.paused_at is None:
            self.reload()

    def show_rows(self, rows: Mapping[str, Any], why_empty: str) -> None:
        """The table, or a text in its place."""
        self.table.columns = self.columns
        self.table.show(rows)
        empty = self.query_one(".empty", Paragraph)
        empty.set_text(Text(why_empty))
        rows = self.table.rows
        empty.display = not rows
        self.table.display = bool(rows)
        if rows and self.focused is None:
            self.set_focus(self.table)

    def action_refresh_now(self) -> None:
        super().action_refresh_now()
        self.reload()
