"""The first screen: every connection, and every queue of all of them, live."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static

from console.tui.board import Link, QueueView
from console.tui.desk import Desk
from console.tui.filters import parse
from console.tui.health import Level
from console.tui.screens.live import LiveScreen
from console.tui.text import plain
from console.tui.widgets.keyed_table import KeyedTable
from console.tui.widgets.queue_detail import QueueDetail
from console.tui.widgets.queue_table import QueueTable
from console.tui.widgets.summary import Summary
from console.tui.widgets.words import Words

_ACTIONS = {
    "filter",
    "keep_filter",
    "clear_filter",
    "open",
    "sort",
    "reverse",
    "pause",
    "look_now",
    "interval",
    "zone",
    "out",
}
_HINT_SECONDS = 3.0


class OverviewScreen(LiveScreen):
    """Draws what the board knows. It never asks a database and changes nothing."""

    # Keys that move the focus have priority: what is typed right after them goes the new way.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/", priority=True, tooltip="filter"),
        Binding("enter", "keep_filter", "keep it", priority=True),
        Binding("escape", "clear_filter", "all", priority=True),
        Binding("enter", "open", "open", tooltip="open the queue"),
        Binding("s", "sort", "sort", tooltip="sort by the next column"),
        Binding("S", "reverse", "reverse", show=False, tooltip="turn the order round"),
    ]

    def __init__(self, desk: Desk, *, banner: str = "") -> None:
        super().__init__(desk)
        self._banner = banner
        self._hint_until = 0.0

    def body(self) -> ComposeResult:
        """From the top: what is wrong in all, the queues, the one under the cursor."""
        if self._banner:
            yield Static(Text(plain(self._banner)), id="banner")
        yield Summary(id="summary")
        yield QueueTable()
        yield Words(id="empty")
        yield QueueDetail(id="detail")
        yield Input(id="filter", placeholder="name or design, or field:value as in errors:>0")

    def on_mount(self) -> None:
        """The table has the keys."""
        self.query_one("#filter").display = False
        self.query_one("#empty").display = False
        self.query_one(QueueTable).focus()
        super().on_mount()

    def draw_body(self, now: float, *, paused: bool) -> None:
        """The table, and the words about it."""
        if not paused:
            self.query_one(QueueTable).draw(self.desk.board.queues(now))
        self._draw_words(now)

    def _draw_words(self, now: float) -> None:
        table = self.query_one(QueueTable)
        shown = table.shown
        paused = None if self.paused_at is None else now - self.paused_at
        hint = "Ctrl-Q quits" if now < self._hint_until else ""
        answers = [view.link is Link.ALIVE for view in self.desk.board.connections(now)]
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
        connections = self.desk.board.connections(now)
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

    def on_keyed_table_cursor_moved(self) -> None:
        """The operator has moved to another queue."""
        self.query_one(QueueDetail).draw(self.query_one(QueueTable).view)

    def on_keyed_table_title_clicked(self, event: KeyedTable.TitleClicked) -> None:
        """A click on a column's title sorts by it."""
        self.query_one(QueueTable).sort_by(event.column)
        self._draw_words(self.desk.clock.monotonic())

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.query_one(QueueTable).sort_next()
        self._draw_words(self.desk.clock.monotonic())

    def action_reverse(self) -> None:
        """Turn the order round."""
        self.query_one(QueueTable).reverse()
        self._draw_words(self.desk.clock.monotonic())

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
        self._draw_words(self.desk.clock.monotonic())
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
            self._hint_until = self.desk.clock.monotonic() + _HINT_SECONDS
            self.draw()
