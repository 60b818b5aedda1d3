"""Messages of a queue, a page at a time from the server: filtered, marked, opened, acted on."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input

from console.errors import ConsoleError, UsageError
from console.formats import clock
from console.monitor import messages
from console.monitor.filter_line import line_of, words_of
from console.monitor.filters import NOTHING, Filters, parse
from console.monitor.message import Message
from console.monitor.messages import MOST_MESSAGES, Page
from console.monitor.saved import expand
from console.monitor.walks import walks_of
from console.tui.board import Key, QueueView
from console.tui.desk import Desk
from console.tui.dialogs.command import show_twin
from console.tui.jobs import Question
from console.tui.tabs.keys import take_keys
from console.tui.tabs.pace import Pace
from console.tui.text import figure, plain
from console.tui.widgets.message_table import MessageTable, by_row, loaded
from console.tui.widgets.telling import say, told
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words

PAGE = 100
_MORE = 200
_MOST = 10_000
"""So many messages stand in the list at most; who wants others says which."""
_BACK = "take back what is typed, marked or filtered"
_FIGURES = {"error": "errors"}
"""State -> its count among a queue's figures, where that has another name."""


@dataclass(frozen=True)
class Ask:
    """What is asked of the server."""

    filters: Filters
    reverse: bool
    after: str | None = None
    """Go on there; None: from the beginning."""
    limit: int = PAGE
    again: bool = False
    """The same as before, to see what has become of it."""


@dataclass(frozen=True)
class Answer:
    """A page, and what was asked for."""

    ask: Ask
    page: Page


class MessagePane(Vertical):
    """A list that moves only when it is told to, and a line above it that says what it is."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # It has priority: what is typed right after it goes into the line. What is typed before
        # Enter is in it, for that has none.
        Binding("slash", "filter", "filter", key_display="/", priority=True, tooltip="filter"),
        Binding("escape", "back", "back", show=False, priority=True, tooltip=_BACK),
        Binding("q", "back", "back", show=False, tooltip=_BACK),
        Binding("enter", "open", "open", tooltip="open the message"),
        Binding("a", "act", "actions", tooltip="act on what is marked, or on this one"),
        Binding("t", "state(1)", "state", show=False, tooltip="messages of the next state only"),
        Binding("T", "state(-1)", "state back", show=False, tooltip="of the state before"),
        Binding(
            "s",
            "turn",
            "order",
            show=False,
            tooltip="from the other end: newest or oldest first",
        ),
        Binding("r", "look_again", "now", show=False, tooltip="look again now"),
        Binding("y", "copy", "copy", show=False, tooltip="copy the ids of what is marked"),
        Binding("o", "twin", "command", show=False, tooltip="the command line that shows the same"),
    ]

    _messages: dict[str, Message]
    _at: datetime | None = None
    """When they were looked at."""

    def __init__(self, desk: Desk, key: Key, words: Iterable[str] = ()) -> None:
        """`words`: the filters that it begins with."""
        super().__init__()
        self.desk = desk
        self.key = key
        self.first_filters = parse(words)
        """What Escape goes back to."""
        self.asked = Ask(self.first_filters, reverse=False)
        """What the list in sight is the answer to."""
        self._wanted = self.asked
        """What the operator asked for last; the answer may be on its way."""
        self.page: Page | None = None
        """The last one that came."""
        self.paused = False
        self._messages = {}
        self._error: ConsoleError | None = None
        self._view: QueueView | None = None
        self._loading = False
        self._pace = Pace(desk.clock.monotonic, 5.0)
        self._question: Question[Answer] = Question(self, self.show_answer, self.fail)

    def compose(self) -> ComposeResult:
        """What is shown, the messages, the line for the filter."""
        yield Words(classes="pane-head")
        yield MessageTable()
        yield Input(
            classes="pane-filter",
            placeholder="state=error older=10m error~TEXT id=17 @SAVED",
            select_on_focus=False,
        )

    def on_mount(self) -> None:
        """The line for the filter comes when it is asked for."""
        self.query_one(Input).display = False
        self.draw(self._view, paused=self.paused)
        take_keys(self, self.table)

    @property
    def table(self) -> MessageTable:
        """The list."""
        return self.query_one(MessageTable)

    # What is asked, and what comes of it.

    def look(self) -> None:
        """Ask again what has become of the list, where that costs little and moves nothing."""
        first_page = len(self._messages) <= PAGE
        if self._pace.due and first_page and not self.paused:
            self._ask(replace(self.asked, after=None, limit=PAGE, again=True), wait=False)

    def look_now(self) -> None:
        """Ask again, for as much as is in the list."""
        limit = min(max(PAGE, len(self._messages)), MOST_MESSAGES)
        self._ask(replace(self.asked, after=None, limit=limit, again=True))

    def open(self, words: Iterable[str]) -> None:
        """Another list altogether, with these filters to begin with."""
        self.first_filters = parse(words)
        self._messages, self.page, self._at = {}, None, None
        self.table.clear_marks()
        self._ask(Ask(self.first_filters, reverse=False))

    def _ask(self, ask: Ask, *, wait: bool = True) -> None:
        place = self.desk.place(self.key)
        if place is None or (not wait and self._question.under_way):
            return
        _, schema, name = self.key

        def work() -> Answer:
            queue = place.find(schema, name)
            found = messages.look(
                place.database,
                queue,
                ask.filters,
                limit=ask.limit,
                after=ask.after,
                reverse=ask.reverse,
                masks=place.masks,
            )
            return Answer(ask, found)

        self._pace.asked()
        self._loading = not ask.again
        self._wanted = self._wanted if ask.again else ask
        self._question.ask(work, wait=wait)
        self._draw_head()

    def show_answer(self, answer: Answer) -> None:
        """A page has come: another list, the same again, or what comes after it."""
        self._pace.answered()
        ask, page = answer.ask, answer.page
        if ask.after is not None:
            self._messages |= by_row([*page.messages])
        else:
            self._messages = by_row(page.messages)
        self.asked, self.page, self._at = ask, page, self.desk.clock.utc()
        self._error, self._loading = None, False
        same = ask.again or ask.after is not None
        self.table.zone = self.desk.zone
        if not same:
            self.table.clear_marks()
        self.table.show_messages(page.queue, self._messages, keep=same)
        if not same:
            self.table.move_cursor(0)
        self._draw_head()

    def fail(self, error: ConsoleError) -> None:
        """What is shown stays as it is."""
        self._pace.answered()
        self._error, self._loading, self._wanted = error, False, self.asked
        self._draw_head()

    def on_message_table_wants_more(self) -> None:
        """Go on where the last page ended."""
        if self.page is None or self.page.next is None or self._loading:
            return
        if len(self._messages) >= _MOST:
            self.fail(
                UsageError(f"The list ends at {_MOST:,} messages.", next_step="Use a filter.")
            )
            return
        self._ask(replace(self.asked, after=self.page.next.text, limit=_MORE, again=False))

    # What is drawn.

    def draw(self, view: QueueView | None, *, paused: bool) -> None:
        """The board has something new; the list has not."""
        self._view, self.paused = view, paused
        if self.is_mounted and self.query(MessageTable):
            if self.table.zone != self.desk.zone:
                self.table.zone = self.desk.zone
                self.table.redraw()
            self._draw_head()

    def on_marked_table_marks_changed(self) -> None:
        """Say how many."""
        self._draw_head()
        self.refresh_bindings()

    def _draw_head(self) -> None:
        if not self.query(Words):
            return
        head = self.query_one(".pane-head", Words)
        lines = [self._line_of_states(head), self._line_of_the_list(head)]
        if self._error is not None:
            lines += [told(head, self._error)]
        say(head, lines)

    def _line_of_states(self, head: Words) -> Text:
        line = Text("t", tone(head, "quiet"), no_wrap=True)
        chosen = self.asked.filters.state
        states = self.page.queue.states if self.page else ()
        for state in ("all", *states):
            if state == (chosen or "all"):
                line.append(f"▸{state} ", tone(head, "sorted"))
            else:
                line.append(f" {state} ", tone(head, "quiet"))
        line.append(f"  s {self._order()}", tone(head, "quiet"))
        if self._at is not None:
            line.append(f"  as of {clock(self._at, self.desk.zone)}", tone(head, "quiet"))
        return line

    def _order(self) -> str:
        ask = self.asked
        if self.page is None or ask.filters.state is None:
            return "turned round" if ask.reverse else "order"
        walk = next((w for w in walks_of(self.page.queue) if w.state == ask.filters.state), None)
        if walk is None:
            return "order"
        return "newest first" if walk.newest_first != ask.reverse else "oldest first"

    def _line_of_the_list(self, head: Words) -> Text:
        line = Text(no_wrap=True)
        if self.page is None:
            line.append("Looking ..." if self._loading else "", tone(head, "quiet"))
            return line
        table = self.table
        if table.all_matching:
            line.append(self._all_words(), tone(head, "sorted"))
        elif marks := table.marks:
            line.append(f"{len(marks):,} marked", tone(head, "sorted"))
        if line:
            line.append("  ")
        line.append(self._list_words())
        if self._loading:
            line.append("  looking ...", tone(head, "quiet"))
        rest = replace(self.asked.filters, state=None)
        if rest != NOTHING:
            line.append(f"  filter {plain(line_of(rest.words))}", tone(head, "strong"))
        return line

    def _all_words(self) -> str:
        """How many "all matching" are is for the plan to count; some of it may be known."""
        filters = self.asked.filters
        known = ""
        if filters.state is not None and not filters.narrowing and self._view is not None:
            known = figure(self._view.snapshot, _FIGURES.get(filters.state, filters.state))
            known = f": {known} now"
        return f"all matching{known}, up to the plan's cut-off"

    def _list_words(self) -> str:
        page = self.page
        if page is None or (not self._messages and page.complete):
            return "No messages." if replace(self.asked.filters, state=None) == NOTHING else "None."
        more = page.next is not None or not page.complete
        words = loaded(self._messages, more=more)
        if not page.complete:
            words += " (enough was read for one look)"
        return words

    @property
    def filter_line(self) -> str:
        """What the list is filtered by, as it is typed; empty: by nothing."""
        return line_of(self.asked.filters.words)

    # What the operator does.

    @property
    def typing(self) -> bool:
        """Whether the line for the filter is open."""
        return bool(self.query_one(Input).display)

    @property
    def narrowed(self) -> bool:
        """Whether Escape has something to take back."""
        changed = self.asked.filters != self.first_filters
        return bool(self.table.marks) or self.table.all_matching or changed

    def check_action(
        self,
        action: str,
        parameters: tuple[object, ...],  # noqa: ARG002  # Textual's signature
    ) -> bool | None:
        """While a filter is typed, all keys but its own two are letters."""
        if not self.is_mounted or not self.query(Input):
            return True
        if action == "back":
            return self.typing or self.narrowed or self._error is not None
        return not self.typing or action not in {"filter", "open"}

    def action_filter(self) -> None:
        """Open the line for the filter, with what holds now."""
        line = self.query_one(Input)
        written = self.filter_line
        line.value = f"{written} " if written else ""
        line.display = True
        line.cursor_position = len(line.value)
        self.screen.set_focus(line)  # at once; focus() would let the next keys go the old way
        self.refresh_bindings()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Ask for what the line says; what cannot be read is said, and changes nothing."""
        event.stop()
        try:
            filters = parse(expand(words_of(event.value), self.desk.filters(self.key)))
        except UsageError as error:
            self.fail(error)
            return
        self._close_line()
        self._ask(Ask(filters, self.asked.reverse))

    def action_back(self) -> None:
        """Take back the last of: what is typed, what was said, the marks, the filter."""
        if self.typing:
            self._close_line()
        elif self.table.marks or self.table.all_matching:
            self.table.clear_marks()
        elif self._error is not None:
            self._error = None
        else:
            self._ask(Ask(self.first_filters, self.asked.reverse))
        self._draw_head()

    def _close_line(self) -> None:
        self.screen.set_focus(self.table)
        self.query_one(Input).display = False
        self._error = None
        self.refresh_bindings()

    def action_state(self, step: int) -> None:
        """Messages of the next state, or of all."""
        if self.page is None:
            return
        states = (None, *self.page.queue.states)
        wanted = self._wanted
        now = wanted.filters.state
        place = states.index(now) if now in states else 0
        chosen = states[(place + step) % len(states)]
        self._ask(Ask(replace(wanted.filters, state=chosen), wanted.reverse))

    def action_turn(self) -> None:
        """Each state from its other end."""
        self._ask(Ask(self._wanted.filters, not self._wanted.reverse))

    def action_look_again(self) -> None:
        """Look again now, at this list and at the figures."""
        self.desk.look_now()
        self.look_now()

    def action_open(self) -> None:
        """Open the message under the cursor."""
        message = self.table.message
        if message is None:
            return
        if not message.key:
            self._tell("This queue has no order in which its messages could be found again.")
            return
        self.desk.ways.open_message(self.key, message.key)

    def action_act(self) -> None:
        """Act on all that match, or those that are marked, or the one under the cursor."""
        table = self.table
        if table.all_matching:
            self.desk.ways.open_actions(self.key, self.asked.filters.words)
            return
        ids = [message.id for message in table.meant_messages]
        if None in ids:
            self._tell("These messages have no id of their own: act on them by a filter, with *.")
            return
        states = {message.state for message in table.meant_messages}
        state = states.pop() if len(states) == 1 else ""
        self.desk.ways.open_actions(self.key, [f"id={one}" for one in ids], state)

    def action_copy(self) -> None:
        """The ids of the marked messages, or of the one under the cursor, to the clipboard."""
        ids = [message.id for message in self.table.meant_messages if message.id is not None]
        if ids:
            self.app.copy_to_clipboard("\n".join(map(plain, ids)))
            self._tell(f"copied {plain(ids[0])}" if len(ids) == 1 else f"copied {len(ids):,} ids")

    def action_twin(self) -> None:
        """The command line that shows the same."""
        filters = [word for one in self.asked.filters.words for word in ("--filter", one)]
        words = [*filters, *(["--reverse"] if self.asked.reverse else [])]
        show_twin(self, self.desk.place(self.key), "messages", self.key, words)

    def _tell(self, words: str) -> None:
        self.notify(words, markup=False)
