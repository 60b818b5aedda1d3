"""The base classes of a queue's tabs. A tab queries the database only while it is shown."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget

from console import formats
from console.errors import ConsoleError
from console.tui.context import Context
from console.tui.dialogs.dialog import show_equivalent_command
from console.tui.findings import QueueKey
from console.tui.jobs import LatestQuery
from console.tui.navigation import Navigation
from console.tui.open_connection import OpenConnection
from console.tui.screens.live import LiveScreen
from console.tui.text import (
    Paragraph,
    TextView,
    describe_error,
    error_text,
    plain,
    show_lines,
    show_parts,
    style_of,
    whole_seconds,
)
from console.tui.views import QueueView
from console.tui.widgets.browser import LIST_KEYS, Browser
from console.views.view import Line, Source, Subject, View, no_database

T = TypeVar("T")
R = TypeVar("R")


_DIGITS = 10
"""Tabs with a digit; further ones have a key of their own."""


class TabBar(TextView, can_focus=True):
    """The titles of the tabs in one line; on a narrow screen short ones, then only their digits."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"tab-bar--active"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "step(-1)", "previous tab", show=False),
        Binding("right,l", "step(1)", "next tab", show=False),
    ]

    class Selected(Message):
        """Another tab is to be shown."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self) -> None:
        super().__init__(id="tab-bar")
        self._titles: tuple[str, ...] = ()
        self._active = 0
        self._ends: list[int] = []

    def draw(
        self,
        titles: Sequence[str],
        active: int,
        unavailable: Collection[int] = (),
        short: Sequence[str] = (),
        keys: Sequence[str] = (),
    ) -> None:
        """`unavailable`: the tabs that only say why they have nothing to show; `short`: the titles
        for a narrow screen; `keys`: of those that come after the ten with digits."""
        self._titles, self._active = tuple(titles), active
        width = max(1, self.app.size.width - 2)
        # A feature's tab may have no key.
        digits = [*"1234567890", *keys, *[""] * len(titles)][: len(titles)]
        texts = [f" {digit} {title} " for digit, title in zip(digits, titles, strict=True)]
        if sum(map(len, texts)) > width:
            texts = [text.lstrip() for text in texts]
        # Those without a digit go first. Titles are shortened, and then dropped, from the right,
        # those of unavailable tabs first; that of the one in sight is only shortened.
        order = sorted(range(len(titles)), key=lambda i: (i not in unavailable, -i))
        others = [index for index in order if index != active]
        named = [f"{digits[i]} {short[i]} " if i < _DIGITS else f"{short[i]} " for i in order]
        shorter = dict(zip(order, named, strict=True)) if short else {}
        steps = [
            *((index, "") for index in others if index >= _DIGITS),
            *((index, text) for index, text in shorter.items() if index != active),
            *((index, text) for index, text in shorter.items() if index == active),
            *((index, f"{digits[index]} ") for index in others),
        ]
        for index, text in steps:
            if len("".join(texts).rstrip()) > width and len(text) < len(texts[index]):
                texts[index] = text
        line = Text(no_wrap=True)
        self._ends = []
        mark = self.get_component_rich_style("tab-bar--active", partial=True)
        for index, text in enumerate(texts):
            style = style_of(self, "stale" if index in unavailable else "quiet")
            line.append(text, mark if index == active else style)
            self._ends.append(line.cell_len)
        self.set_text(line)

    def action_step(self, tabs: int) -> None:
        if self._titles:
            self.post_message(self.Selected((self._active + tabs) % len(self._titles)))

    def on_click(self, event: events.Click) -> None:
        index = next((i for i, end in enumerate(self._ends) if event.x - 1 < end), None)
        if index is not None:
            self.post_message(self.Selected(index))


DETAIL_FROM = 18
"""A screen of fewer lines has no room for details below a list."""


def take_focus(tab: Widget, first: Widget) -> None:
    """Focus a widget that did not exist yet when its screen looked for one to focus."""
    shown = all(one.display for one in tab.ancestors_with_self if isinstance(one, Widget))
    if shown and isinstance(tab.screen.focused, TabBar | None):
        tab.screen.set_focus(first)


class PacedQuery(LatestQuery[T]):
    """A repeated query. The pause after it grows with the time that it took."""

    def __init__(
        self,
        owner: Widget,
        done: Callable[[T], None],
        failed: Callable[[ConsoleError], None],
        now: Callable[[], float],
        every_seconds: float,
        pause: float = 19,
    ) -> None:
        """`pause`: its minimum, as a multiple of the time that the query took."""
        super().__init__(owner, self._timed(done), self._timed(failed))
        self._now = now
        self.every_seconds = every_seconds
        self._pause = pause
        self._submitted_at: float | None = None
        self._next_at = 0.0

    @property
    def due(self) -> bool:
        return self._submitted_at is None or self._now() >= self._next_at

    def submit(self, work: Callable[[], T], *, wait: bool = True) -> None:
        if wait or not self.busy:
            self._submitted_at = self._now()
            self._next_at = self._submitted_at + self.every_seconds
        super().submit(work, wait=wait)

    def _timed(self, call: Callable[[R], None]) -> Callable[[R], None]:
        def timed(value: R) -> None:
            if self._submitted_at is not None:
                took = self._now() - self._submitted_at
                self._next_at = self._now() + max(self.every_seconds - took, self._pause * took)
            call(value)

        return timed


class QueueTab(Vertical):
    """One tab of a queue."""

    NAME: ClassVar[str] = ""
    """As `open_queue` and tests name it."""
    TITLE: ClassVar[str] = ""
    SHORT_TITLE: ClassVar[str] = ""
    """At 80 columns; empty: the title is short."""
    COMMAND: ClassVar[Sequence[str]] = ("status",)
    """The verb that prints the same, and its options."""
    EVERY_SECONDS: ClassVar[float] = 5.0
    """How often `poll` is called while the tab is shown."""
    HAS_CHARTS: ClassVar[bool] = False
    """Whether charts of its own replace the screen's."""

    def __init__(self, context: Context, key: QueueKey) -> None:
        super().__init__(id=f"tab-{self.NAME}")
        self.context = context
        self.key = key
        self.shown = False
        """Whether this tab and its screen are in sight; set by the screen."""

    @classmethod
    def unavailable(cls, view: QueueView) -> str:  # noqa: ARG003  # most tabs apply to every queue
        """Why such a tab has nothing to show for a queue; empty: it has."""
        return ""

    @property
    def is_composed(self) -> bool:
        """False before its widgets are mounted, and while its screen is being closed."""
        return self.is_mounted and bool(self.children)

    @property
    def command(self) -> Sequence[str]:
        return self.COMMAND

    @property
    def conn(self) -> OpenConnection | None:
        return self.context.conn(self.key)

    @property
    def navigator(self) -> Navigation:
        return self.context.navigator

    def poll(self) -> None:
        """Start a job that reads what the tab shows, if that is due."""

    def refresh_now(self) -> None:
        """Read it now, as the operator requested."""
        self.poll()

    def draw(self, view: QueueView | None, *, paused: bool) -> None:
        """The store has new figures; None: the queue no longer exists."""


class ReadingTab(QueueTab, Generic[T]):
    """A tab that shows what it read last, and why a later reading failed."""

    PACE_SECONDS: ClassVar[float] = 5.0
    """The least time between two readings that the operator did not ask for."""
    PAUSE: ClassVar[float] = 19
    """... and at least this multiple of the time that a reading took."""

    def __init__(self, context: Context, key: QueueKey) -> None:
        super().__init__(context, key)
        self.result: T | None = None
        self.result_at: datetime | None = None
        self._result_monotonic = 0.0
        self.error: ConsoleError | None = None
        """Why the last reading failed."""
        self.paused = False
        now = context.clock.monotonic
        self.fetch: PacedQuery[T] = PacedQuery(
            self, self.show_result, self.show_error, now, self.PACE_SECONDS, self.PAUSE
        )

    def read(self, conn: OpenConnection) -> T:
        """Called in a job's thread."""
        raise NotImplementedError

    def show(self, result: T) -> None:
        """Show a new result in the tab's table."""

    def draw_texts(self) -> None:
        """Show the texts around the table: a summary, the error."""

    def on_mount(self) -> None:
        self.draw_texts()

    def poll(self) -> None:
        if self.fetch.due:
            self.reload(wait=False)

    def refresh_now(self) -> None:
        self.reload()

    def reload(self, *, wait: bool = True) -> None:
        """Read it now; `wait=False`: not if it is being read already."""
        conn = self.conn
        if conn is not None:
            self.fetch.submit(lambda: self.read(conn), wait=wait)

    def show_result(self, result: T) -> None:
        clock = self.context.clock
        self.result, self.error, self.result_at = result, None, clock.utc()
        self._result_monotonic = clock.monotonic()
        if self.is_composed:
            self.show(result)
            self.draw_texts()

    def show_error(self, error: ConsoleError) -> None:
        """The last result stays."""
        self.error = error
        if self.is_composed:
            self.draw_texts()

    def draw(self, view: QueueView | None, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        self.paused = paused
        if self.is_composed:
            self.draw_texts()

    def append_time(self, line: Text) -> None:
        """Add to the line when the result was read."""
        if self.result_at is not None:
            at = formats.clock(self.result_at, self.context.zone)
            line.append(f"   as of {at}", style_of(self.query_one(TextView), "quiet"))

    def draw_head(self, head: TextView, reading: str, summary: Callable[[T], Text]) -> None:
        """Show the error, or that it is being read, or the summary of the result."""
        if self.error is not None:
            head.set_text(
                Text(self.age_text + describe_error(self.error), style_of(head, "critical"))
            )
        elif self.result is None:
            head.set_text(Text(reading, style_of(head, "quiet")))
        else:
            head.set_text(summary(self.result))

    @property
    def age_text(self) -> str:
        """How old the result is, to precede an error; empty: there is none."""
        if self.result_at is None:
            return ""
        age = self.context.clock.monotonic() - self._result_monotonic
        return f"as it was {whole_seconds(age)} ago: "


class ListTab(ReadingTab[T], Browser):
    """A list between a summary and, on a screen that has room, details of the row under the cursor.
    Nothing is read while the screen is paused."""

    BINDINGS: ClassVar[list[BindingType]] = [*LIST_KEYS]
    KEEPS_ROWS: ClassVar[bool] = False
    """Whether the row under the cursor stays when it is no longer in the list."""
    VALUES: ClassVar[Mapping[str, Any]] = {}
    """Of the list's parameters, where they differ from those of the command line."""

    def __init__(self, context: Context, key: QueueKey) -> None:
        super().__init__(context, key)
        self.table = self.new_table()
        self._zone = context.zone

    def compose(self) -> ComposeResult:
        yield TextView(classes="pane-head", id=f"{self.NAME}-head")
        yield self.table
        yield TextView(classes="pane-detail", id=f"{self.NAME}-detail")
        yield self.hidden_filter()

    def on_mount(self) -> None:
        take_focus(self, self.table)

    def poll(self) -> None:
        if not self.paused:
            super().poll()

    def reload(self, *, wait: bool = True) -> None:
        conn = self.conn
        if conn is not None or self.VIEW.subject is Subject.MACHINE:
            self.fetch.submit(lambda: self.read(conn), wait=wait)

    def source(self, conn: OpenConnection | None) -> Source:
        _, schema, name = self.key
        values = {**self.VIEW.default_values(), **self.VALUES}
        if conn is None:
            return Source(no_database, values=values)
        return Source(
            lambda: conn.database,
            schema or None,
            name or None,
            values,
            conn.masks,
            conn.thresholds_of,
            conn.settings_of,
        )

    def read(self, conn: OpenConnection | None) -> T:
        result: T = self.VIEW.read(self.source(conn))
        return result

    def show(self, result: T) -> None:
        self.table.columns = self.columns
        self.table.show(self.VIEW.rows(result), keep=self.KEEPS_ROWS)

    def draw(self, view: QueueView | None, *, paused: bool) -> None:
        if self.is_composed and self._zone != self.context.zone:
            self._zone, self.table.columns = self.context.zone, self.columns
            self.table.draw()
        super().draw(view, paused=paused)

    @property
    def shown_error(self) -> ConsoleError | None:
        return self.error

    def summary(self, head: TextView, result: T) -> list[Text]:
        """The lines above the table, without the error. Only warnings are never cut off."""
        first, *others = self.VIEW.summary_lines(result, self.context.display)
        line = assembled(head, first)
        self.append_filter(line, head)
        self.append_marks(line, head)
        self.append_time(line)
        return [line, *(assembled(head, one) for one in others)]

    def detail(self) -> Sequence[tuple[str, str]]:
        """Details of the row under the cursor: texts, each with the name of its style."""
        row = self.table.row
        return [] if row is None else self.VIEW.details(row, self.context.display)

    def draw_texts(self) -> None:
        head = self.query_one(f"#{self.NAME}-head", TextView)
        reading = Text("" if self.error else "Reading ...", style_of(head, "quiet"))
        lines = [reading] if self.result is None else self.summary(head, self.result)
        errors = [] if self.shown_error is None else [error_text(head, self.shown_error)]
        show_lines(head, [lines[0], *errors, *lines[1:]])
        detail, parts = self.query_one(f"#{self.NAME}-detail", TextView), self.detail()
        detail.display = bool(parts) and self.app.size.height >= DETAIL_FROM
        show_parts(detail, parts)

    def on_keyed_table_cursor_moved(self) -> None:
        self.draw_texts()

    def on_marked_table_marks_changed(self) -> None:
        self.draw_texts()
        self.refresh_bindings()


Tab = TypeVar("Tab", bound=ListTab[Any])


def assembled(head: TextView, line: Line) -> Text:
    """Warnings wrap; other lines are cut off at the screen's edge."""
    styled = ((text, style_of(head, style)) for text, style in line)
    wraps = [style for _, style in line] == ["warning"]
    return Text.assemble(*styled, no_wrap=not wraps)


def tab_of(view: View[Any, Any]) -> type[ListTab[Any]]:
    """A tab that shows just this list."""
    of: dict[str, Any] = {"NAME": view.name, "VIEW": view, "COMMAND": (view.name,)}
    return type(f"{view.title}Tab", (ListTab,), of)


class ListScreen(LiveScreen, Generic[Tab]):
    """A list of a connection, of a queue, or of this machine."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "equivalent", "the equivalent command line", show=False)
    ]

    def __init__(self, context: Context, kind: type[Tab], key: QueueKey) -> None:
        """`key`: with empty names where there is none."""
        super().__init__(context)
        self.connection = key[0]
        self.tab = kind(context, key)

    def body(self) -> ComposeResult:
        yield TextView(classes="pane-head", id=f"{self.tab.NAME}-title")
        yield self.tab

    def action_refresh_now(self) -> None:
        super().action_refresh_now()
        self.tab.refresh_now()

    def action_equivalent(self) -> None:
        key = self.tab.key if self.tab.key[2] else None
        show_equivalent_command(self, self.tab.conn, self.tab.command[0], key)

    def draw_body(self, now: float, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        title = self.query_one(f"#{self.tab.NAME}-title", TextView)
        text = Text(f"{self.tab.VIEW.title} of ", style_of(title, "quiet"))
        _, schema, name = self.tab.key
        of = f"{schema}.{name} on {self.connection}" if name else self.connection or "this machine"
        text.append(plain(of), style_of(title, "strong"))
        if self.connection and self.connection not in self.context.connections:
            text.append("  There is no such connection.", style_of(title, "critical"))
        title.set_text(text)
        self.tab.draw(None, paused=paused)
        self.tab.poll()


class UnavailableTab(QueueTab):
    """Takes another tab's position and title, so that each digit always means the same tab."""

    def __init__(self, context: Context, key: QueueKey, other: type[QueueTab], why: str) -> None:
        self._why = why
        # The screen and the base class read these.
        self.NAME, self.TITLE = other.NAME, other.TITLE  # type: ignore[misc]
        self.SHORT_TITLE = other.SHORT_TITLE  # type: ignore[misc]
        super().__init__(context, key)

    def compose(self) -> ComposeResult:
        yield Paragraph(classes="absent")

    def on_mount(self) -> None:
        paragraph = self.query_one(Paragraph)
        paragraph.set_text(Text(f"\n {plain(self._why)}", style_of(paragraph, "quiet")))
