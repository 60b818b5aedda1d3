"""The first screen: every connection, and every queue of all of them, live."""

from collections.abc import Sequence
from datetime import UTC, tzinfo
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Input, Static

from console import formats
from console.tui.board import Board, Link, QueueView
from console.tui.feed import Clock, Feed
from console.tui.filters import parse
from console.tui.health import Level
from console.tui.text import plain
from console.tui.widgets.connection_lines import ConnectionLines
from console.tui.widgets.keyed_table import KeyedTable
from console.tui.widgets.queue_detail import QueueDetail
from console.tui.widgets.queue_table import QueueTable
from console.tui.widgets.summary import Summary
from console.tui.widgets.words import Words

_ACTIONS = {
    "filter",
    "keep_filter",
    "clear_filter",
    "sort",
    "reverse",
    "pause",
    "look_now",
    "interval",
    "zone",
    "out",
}
_HINT_SECONDS = 3.0
INTERVALS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class OverviewScreen(Screen[None]):
    """Draws what the board knows. It never asks a database and changes nothing."""

    # Keys that move the focus have priority: what is typed right after them goes the new way.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/", priority=True, tooltip="filter"),
        Binding("enter", "keep_filter", "keep it", priority=True),
        Binding("escape", "clear_filter", "all", priority=True),
        Binding("s", "sort", "sort", tooltip="sort by the next column"),
        Binding("S", "reverse", "reverse", show=False, tooltip="turn the order round"),
        Binding("space", "pause", "pause", tooltip="hold the table still; sampling goes on"),
        Binding("r", "look_now", "now", tooltip="look at all databases now"),
        Binding(
            "plus,equals_sign",
            "interval(1)",
            "interval",
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
        Binding("escape,q", "out", "out", show=False, tooltip="one level out; never quits"),
    ]

    def __init__(
        self,
        board: Board,
        feeds: Sequence[Feed],
        clock: Clock,
        *,
        banner: str = "",
        zone: tzinfo | None = UTC,
    ) -> None:
        super().__init__()
        self._board = board
        self._feeds = feeds
        self._clock = clock
        self._banner = banner
        # Where times are shown in UTC anyway, the other zone is the machine's own.
        self._zones: tuple[tzinfo | None, tzinfo | None] = (zone, None if zone is UTC else UTC)
        self._paused_at: float | None = None
        self._scheduled = False
        self._hint_until = 0.0

    def compose(self) -> ComposeResult:
        """From the top: connections, what is wrong in all, the queues, the one under the cursor."""
        yield ConnectionLines(id="connections")
        if self._banner:
            yield Static(Text(plain(self._banner)), id="banner")
        yield Summary(id="summary")
        yield QueueTable()
        yield Words(id="empty")
        yield QueueDetail(id="detail")
        yield Input(id="filter", placeholder="name or design, or field:value as in errors:>0")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Times on the screen run on without any reading."""
        self.query_one("#filter").display = False
        self.query_one("#empty").display = False
        self.query_one(QueueTable).focus()
        self.draw()
        self.set_interval(1.0, self.draw)

    def readings_came(self) -> None:
        """Draw once for all readings that have come together."""
        if not self._scheduled:
            self._scheduled = True
            self.call_later(self.draw)

    def draw(self) -> None:
        """Everything, from the board as it is now; a screen that nobody sees costs nothing."""
        self._scheduled = False
        if not self._is_seen():
            return
        now = self._clock.monotonic()
        table = self.query_one(QueueTable)
        if self._paused_at is None:
            table.draw(self._board.queues(now))
        self._draw_connections(now)
        self._draw_words(now)

    def _is_seen(self) -> bool:
        """Dialogs leave what is under them in sight; other screens do not."""
        stack = self.app.screen_stack
        if not self.is_attached or self not in stack:
            return False
        return all(isinstance(above, ModalScreen) for above in stack[stack.index(self) + 1 :])

    def _draw_connections(self, now: float) -> None:
        seconds = max((feed.interval_seconds for feed in self._feeds), default=0.0)
        time = formats.clock(self._clock.utc(), self._zones[0])
        right = f"every {seconds:g} s · {time}"
        most = max(2, self.app.size.height // 8)
        lines = self.query_one(ConnectionLines)
        lines.draw(self._board.connections(now), right, most)

    def _draw_words(self, now: float) -> None:
        table = self.query_one(QueueTable)
        shown = table.shown
        paused = None if self._paused_at is None else now - self._paused_at
        hint = "Ctrl-Q quits" if now < self._hint_until else ""
        answers = [view.link is Link.ALIVE for view in self._board.connections(now)]
        self.query_one(Summary).draw(
            table, len(shown), all_answer=all(answers), paused_seconds=paused, hint=hint
        )
        self.query_one(QueueDetail).draw(table.view)
        empty = self.query_one("#empty", Words)
        empty.say(Text("" if shown else self._why_empty(table.views, now)))
        if empty.display == bool(shown):
            empty.display = not shown
            table.set_class(not shown, "-empty")

    def _why_empty(self, views: Sequence[QueueView], now: float) -> str:
        table = self.query_one(QueueTable)
        if views:
            return f"No queue matches {table.filter.text!r}. Escape shows all {len(views)} again."
        connections = self._board.connections(now)
        if any(not view.ever_answered and view.level is Level.OK for view in connections):
            return "Looking for queues ..."
        if not any(view.ever_answered for view in connections):
            return "No database answers yet. The console goes on trying."
        return (
            "There are no queues here yet.\n\n"
            "Install one:           dbq-console install fifo orders\n"
            "What there is:         dbq-console designs\n"
            "See it with traffic:   dbq-console demo"
        )

    def on_screen_resume(self) -> None:
        """It is in sight again."""
        self.draw()

    def on_resize(self) -> None:
        """Another size has other columns and other room for words."""
        if self.is_mounted:
            self.draw()

    def on_keyed_table_cursor_moved(self) -> None:
        """The operator has moved to another queue."""
        self.query_one(QueueDetail).draw(self.query_one(QueueTable).view)

    def on_keyed_table_title_clicked(self, event: KeyedTable.TitleClicked) -> None:
        """A click on a column's title sorts by it."""
        self.query_one(QueueTable).sort_by(event.column)
        self._draw_words(self._clock.monotonic())

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.query_one(QueueTable).sort_next()
        self._draw_words(self._clock.monotonic())

    def action_reverse(self) -> None:
        """Turn the order round."""
        self.query_one(QueueTable).reverse()
        self._draw_words(self._clock.monotonic())

    def check_action(
        self,
        action: str,
        parameters: tuple[object, ...],  # noqa: ARG002  # Textual's signature
    ) -> bool | None:
        """While a filter is typed, all keys but its own two are letters."""
        if action not in _ACTIONS or not self.is_mounted:
            return True
        typing = bool(self.query_one("#filter").display)
        if action == "clear_filter":
            return typing or bool(self.query_one(QueueTable).filter)
        return typing == (action == "keep_filter")

    def action_filter(self) -> None:
        """Open the filter line."""
        line = self.query_one("#filter", Input)
        line.display = True
        self.set_focus(line)  # at once; focus() would let the next keys go the old way
        self.refresh_bindings()

    def on_input_changed(self, event: Input.Changed) -> None:
        """The table follows every letter."""
        table = self.query_one(QueueTable)
        table.filter = parse(event.value)
        table.draw()
        self._draw_words(self._clock.monotonic())
        self.refresh_bindings()

    def action_keep_filter(self) -> None:
        """Go back to the table and leave the filter as it is."""
        self.set_focus(self.query_one(QueueTable))
        self.query_one("#filter").display = False
        self.refresh_bindings()

    def action_clear_filter(self) -> None:
        """Show all queues again."""
        self.query_one("#filter", Input).value = ""
        self.action_keep_filter()

    def action_out(self) -> None:
        """One level out: of the filter, if there is one. Never out of the console."""
        if self.query_one(QueueTable).filter:
            self.action_clear_filter()
        else:
            self._hint_until = self._clock.monotonic() + _HINT_SECONDS
            self.draw()

    def action_pause(self) -> None:
        """Hold the table still, or let it go on."""
        self._paused_at = self._clock.monotonic() if self._paused_at is None else None
        self.draw()

    def action_zone(self) -> None:
        """Show times of day in UTC, or in the display zone."""
        self._zones = (self._zones[1], self._zones[0])
        self.draw()

    def action_look_now(self) -> None:
        """Look at all databases now, those too that are waiting to be tried again."""
        for feed in self._feeds:
            feed.look_now()

    def action_interval(self, step: int) -> None:
        """Look less or more often."""
        for feed in self._feeds:
            longer = [s for s in INTERVALS if s > feed.interval_seconds]
            shorter = [s for s in INTERVALS if s < feed.interval_seconds]
            found = longer[:1] if step > 0 else shorter[-1:]
            feed.interval_seconds = found[0] if found else feed.interval_seconds
            self._board.intervals[feed.name] = feed.interval_seconds
            if step < 0:
                feed.look_now()
        self.draw()
