"""The tab Messages of a queue: a list that is read from the server page by page."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from console.errors import ConsoleError, UsageError
from console.filters import expand, line_of, words_of
from console.formats import clock, numbered
from console.monitor.filters import NOTHING, Filters, parse
from console.monitor.message import Message
from console.monitor.messages import MOST_MESSAGES, Page
from console.monitor.scans import scans_of
from console.tui.context import Context
from console.tui.findings import QueueKey
from console.tui.tabs.tab import PacedQuery, QueueTab, take_focus
from console.tui.text import TextView, error_text, open_input, plain, show_lines, style_of
from console.tui.views import QueueView
from console.tui.widgets.browser import Exporting
from console.tui.widgets.keyed_table import MarkedTable
from console.views.messages import VIEW, by_key, columns_of, read
from console.views.view import Source

PAGE = 100
_MORE = 200
_MOST = 10_000
"""The list is no longer than this: for other messages there are filters."""
_BACK = "undo typing, marks or filter"
_FIGURES = {"error": "errors"}
"""State -> its count among a queue's figures, where the names differ."""


@dataclass(frozen=True)
class PageRequest:
    filters: Filters
    reverse: bool
    after: str | None = None
    """Continue behind this key; None: from the beginning."""
    limit: int = PAGE
    is_refresh: bool = False
    """Whether it only refreshes the list."""


@dataclass(frozen=True)
class LoadedPage:
    request: PageRequest
    page: Page


class MessagesTab(QueueTab, Exporting):
    """A list of messages under two lines that say what is in it; also part of the tab Errors."""

    NAME: ClassVar[str] = "messages"
    TITLE: ClassVar[str] = "Messages"
    SHORT_TITLE: ClassVar[str] = "Msgs"

    BINDINGS: ClassVar[list[BindingType]] = [
        # With priority, so that what is typed right after it goes into the filter. Enter has none,
        # so that what is typed before it is already there.
        Binding("slash", "filter", "filter", key_display="/", priority=True, tooltip="filter"),
        Binding("escape", "back", _BACK, show=False, priority=True),
        Binding("q", "back", _BACK, show=False),
        Binding("enter", "open", "open", tooltip="open the message"),
        Binding("a", "act", "actions", tooltip="act on the marked ones, or on this one"),
        Binding("t", "state(1)", "messages of the next state only", show=False),
        Binding("T", "state(-1)", "of the previous state", show=False),
        # The server sorts: of a list that is read page by page only its order can be reversed.
        Binding("s,S", "reverse", "reverse sort: newest or oldest first", show=False),
        Binding("y", "copy", "copy the ids of the marked ones", show=False),
        Binding("E", "export", "write the list, or the marked rows, to a CSV file", show=False),
    ]

    def __init__(self, context: Context, key: QueueKey, words: Iterable[str] = ()) -> None:
        """`words`: the first filters."""
        super().__init__(context, key)
        self.begin_with(words)
        self.page: Page | None = None
        """The last one loaded."""
        self.paused = False
        self.table = MarkedTable[Message]((), VIEW.drop_order, removed_column=VIEW.removed_column)
        self._messages: dict[str, Message] = {}
        self._loaded_at: datetime | None = None
        self._zone: tzinfo | None = context.zone
        """Of the times in the list."""
        self._error: ConsoleError | None = None
        self._view: QueueView | None = None
        self._loading = False
        self._fetch: PacedQuery[LoadedPage] = PacedQuery(
            self, self.show_page, self.show_error, context.clock.monotonic, 5.0
        )

    @property
    def command(self) -> Sequence[str]:
        filters = [word for one in self.request.filters.words for word in ("--filter", one)]
        return "messages", *filters, *(["--reverse"] if self.request.reverse else [])

    def compose(self) -> ComposeResult:
        yield TextView(classes="pane-head")
        yield self.table
        yield Input(
            classes="pane-filter",
            placeholder="state=error older=10m error~TEXT id=17 @SAVED",
            select_on_focus=False,
        )

    def on_mount(self) -> None:
        self.query_one(Input).display = False
        self.draw(self._view, paused=self.paused)
        take_focus(self, self.table)

    def poll(self) -> None:
        """Refresh the list while it is no longer than a page: that is cheap and moves nothing."""
        if self._fetch.due and len(self._messages) <= PAGE and not self.paused:
            self._load(replace(self.request, after=None, limit=PAGE, is_refresh=True), wait=False)

    def refresh_now(self) -> None:
        limit = min(max(PAGE, len(self._messages)), MOST_MESSAGES)
        self._load(replace(self.request, after=None, limit=limit, is_refresh=True))

    def begin_with(self, words: Iterable[str]) -> None:
        """Before it is mounted."""
        self.first_filters = parse(words)
        """Those that Escape goes back to."""
        self.request = PageRequest(self.first_filters, reverse=False)
        """Of the list that is shown."""
        self._last_request = self.request
        """The operator's last; its page may not have been loaded yet."""

    def open(self, words: Iterable[str]) -> None:
        """Load another list, with these first filters."""
        self.first_filters = parse(words)
        self._messages, self.page, self._loaded_at = {}, None, None
        self.table.clear_marks()
        self._load(PageRequest(self.first_filters, reverse=False))

    def _load(self, request: PageRequest, *, wait: bool = True) -> None:
        conn = self.conn
        if conn is None or (not wait and self._fetch.busy):
            return

        values = {
            "filters": request.filters,
            "limit": request.limit,
            "after": request.after,
            "reverse": request.reverse,
        }
        source = Source(lambda: conn.database, *self.key[1:], values, conn.masks)
        self._loading = not request.is_refresh
        if not request.is_refresh:
            self._last_request = request
        self._fetch.submit(lambda: LoadedPage(request, read(source).page), wait=wait)
        self._draw_head()

    def show_page(self, loaded_page: LoadedPage) -> None:
        request, page = loaded_page.request, loaded_page.page
        kept = {} if request.after is None else self._messages
        self._messages = kept | by_key([*page.messages])
        self.request, self.page, self._loaded_at = request, page, self.context.clock.utc()
        self._error, self._loading = None, False
        same = request.is_refresh or request.after is not None
        if not same:
            self.table.clear_marks()
        self._choose_columns({**self.table.rows, **self._messages} if same else self._messages)
        self.table.show(self._messages, keep=same)
        if not same:
            self.table.move_cursor(0)
        self._draw_head()

    def _choose_columns(self, messages: Mapping[str, Message]) -> None:
        if self.page is not None:
            self._zone = self.context.zone
            self.table.columns = columns_of(
                self.page.queue, messages.values(), self.context.display
            )

    def show_error(self, error: ConsoleError) -> None:
        self._error, self._loading, self._last_request = error, False, self.request
        self._draw_head()

    def on_keyed_table_at_end(self) -> None:
        if self.page is None or self.page.next is None or self._loading:
            return
        if len(self._messages) >= _MOST:
            self.show_error(
                UsageError(f"The list ends at {_MOST:,} messages.", next_step="Use a filter.")
            )
            return
        self._load(replace(self.request, after=self.page.next.text, limit=_MORE, is_refresh=False))

    def draw(self, view: QueueView | None, *, paused: bool) -> None:
        self._view, self.paused = view, paused
        if self.is_mounted and self.table.is_mounted:
            if self._zone != self.context.zone:
                self._choose_columns(self.table.rows)
                self.table.draw()
            self._draw_head()

    def on_marked_table_marks_changed(self) -> None:
        self._draw_head()
        self.refresh_bindings()

    def _draw_head(self) -> None:
        if not self.query(TextView):
            return
        head = self.query_one(".pane-head", TextView)
        lines = [self._line_of_states(head), self._line_of_the_list(head)]
        if self._error is not None:
            lines += [error_text(head, self._error)]
        show_lines(head, lines)

    def _line_of_states(self, head: TextView) -> Text:
        line = Text("t", style_of(head, "quiet"), no_wrap=True)
        chosen = self.request.filters.state
        states = self.page.queue.states if self.page else ()
        for state in ("all", *states):
            if state == (chosen or "all"):
                line.append(f"▸{state} ", style_of(head, "sorted"))
            else:
                line.append(f" {state} ", style_of(head, "quiet"))
        line.append(f"  s {self._order()}", style_of(head, "quiet"))
        if self._loaded_at is not None:
            line.append(
                f"  as of {clock(self._loaded_at, self.context.zone)}", style_of(head, "quiet")
            )
        return line

    def _order(self) -> str:
        reverse, state = self.request.reverse, self.request.filters.state
        if self.page is None or state is None:
            return "reversed" if reverse else "order"
        scan = next((scan for scan in scans_of(self.page.queue) if scan.state == state), None)
        if scan is None:
            return "order"
        return "newest first" if scan.newest_first != reverse else "oldest first"

    def _line_of_the_list(self, head: TextView) -> Text:
        line = Text(no_wrap=True)
        if self.page is None:
            line.append("Reading ..." if self._loading else "", style_of(head, "quiet"))
            return line
        table = self.table
        if table.all_matching:
            line.append(self._all_matching_text(), style_of(head, "sorted"))
        elif marks := table.marks:
            line.append(f"{len(marks):,} marked", style_of(head, "sorted"))
        if line:
            line.append("  ")
        line.append(self._count_text())
        if self._loading:
            line.append("  reading ...", style_of(head, "quiet"))
        rest = replace(self.request.filters, state=None)
        if rest != NOTHING:
            line.append(f"  filter {plain(line_of(rest.words))}", style_of(head, "strong"))
        return line

    def _all_matching_text(self) -> str:
        """Only the plan counts all matching messages; their number may be known before that."""
        filters = self.request.filters
        known = ""
        if filters.state is not None and not filters.narrowing and self._view is not None:
            known = self._view.snapshot.text_of(_FIGURES.get(filters.state, filters.state))
            known = f": {known} now"
        return f"all matching{known}, up to the plan's cut-off"

    def _count_text(self) -> str:
        page = self.page
        if page is None or (not self._messages and page.complete):
            return (
                "No messages." if replace(self.request.filters, state=None) == NOTHING else "None."
            )
        more = page.next is not None or not page.complete
        words = numbered(len(self._messages), "message") + (", more below" if more else "")
        if not page.complete:
            words += " (the search stopped at its limit)"
        return words

    @property
    def filter_line(self) -> str:
        """As it is typed; empty: no filter."""
        return line_of(self.request.filters.words)

    @property
    def typing(self) -> bool:
        return bool(self.query_one(Input).display)

    @property
    def narrowed(self) -> bool:
        """Whether Escape has marks or filters to undo."""
        changed = self.request.filters != self.first_filters
        return bool(self.table.marks) or self.table.all_matching or changed

    def check_action(self, action: str, _parameters: object) -> bool | None:
        if not self.is_mounted or self.query_one_optional(Input) is None:
            return True
        if action == "back":
            return self.typing or self.narrowed or self._error is not None
        return not self.typing or action not in {"filter", "open"}

    def action_filter(self) -> None:
        line = self.filter_line
        open_input(self.query_one(Input), f"{line} " if line else "")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        try:
            filters = parse(expand(words_of(event.value), self.context.filters(self.key)))
        except UsageError as error:
            self.show_error(error)
            return
        self._close_line()
        self._load(PageRequest(filters, self.request.reverse))

    def action_back(self) -> None:
        """Undo the first of these: typing, marks, an error, the filter."""
        if self.typing:
            self._close_line()
        elif self.table.marks or self.table.all_matching:
            self.table.clear_marks()
        elif self._error is not None:
            self._error = None
        else:
            self._load(PageRequest(self.first_filters, self.request.reverse))
        self._draw_head()

    def _close_line(self) -> None:
        self.screen.set_focus(self.table)
        self.query_one(Input).display = False
        self._error = None
        self.refresh_bindings()

    def action_state(self, step: int) -> None:
        if self.page is None:
            return
        states = (None, *self.page.queue.states)
        last = self._last_request
        index = states.index(last.filters.state) if last.filters.state in states else 0
        chosen = states[(index + step) % len(states)]
        self._load(PageRequest(replace(last.filters, state=chosen), last.reverse))

    def action_reverse(self) -> None:
        last = self._last_request
        self._load(PageRequest(last.filters, not last.reverse))

    def action_open(self) -> None:
        message = self.table.row
        if message is None:
            return
        if not message.key:
            self._notify_plain(
                "This queue has no order in which its messages could be found again."
            )
            return
        self.navigator.open_message(self.key, message.key)

    def action_act(self) -> None:
        """Act on all that match, on the marked ones, or on the one under the cursor."""
        table = self.table
        if table.all_matching:
            self.navigator.open_actions(self.key, self.request.filters.words)
            return
        selected = table.selected_rows
        ids = [message.id for message in selected]
        if None in ids:
            self._notify_plain("These messages have no id: act on them by a filter, with *.")
            return
        states = {message.state for message in selected}
        state = states.pop() if len(states) == 1 else ""
        self.navigator.open_actions(self.key, [f"id={one}" for one in ids], state)

    def action_copy(self) -> None:
        ids = [message.id for message in self.table.selected_rows if message.id is not None]
        if ids:
            self.app.copy_to_clipboard("\n".join(map(plain, ids)))
            self._notify_plain(
                f"copied {plain(ids[0])}" if len(ids) == 1 else f"copied {len(ids):,} ids"
            )

    def action_export(self) -> None:
        """Those that are loaded: the verb writes all that match."""
        page = self.page
        if page is None:
            return
        more = not self.table.marks and (page.next is not None or not page.complete)
        rest = "; there are more: messages --export FILE writes all" if more else ""
        # Not the table's own columns: their titles have an offset, and times in files are in UTC.
        shown = {column.name for column in self.table.columns}
        columns = [one for one in VIEW.columns(self.context.display) if one.name in shown]
        self.export(VIEW.name, self.table.marked_or_all, columns, rest)

    def _notify_plain(self, text: str) -> None:
        self.notify(text, markup=False)
