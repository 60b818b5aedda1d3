"""What all tabs of a queue have in common: they ask only while they are seen."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

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
from console.tui.findings import QueueKey
from console.tui.jobs import LatestQuery
from console.tui.open_connection import OpenConnection
from console.tui.text import (
    Paragraph,
    TextView,
    error_text,
    plain,
    show_lines,
    show_parts,
    style_of,
    whole_seconds,
)
from console.tui.views import QueueView
from console.tui.widgets.keyed_table import KeyedTable

if TYPE_CHECKING:
    from console.tui.app import ConsoleApp

T = TypeVar("T")


class TabBar(TextView, can_focus=True):
    """One line, whatever the width: titles are lost before digits are."""

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
        self._chosen = 0
        self._ends: list[int] = []

    def draw(self, titles: Sequence[str], chosen: int, absent: Collection[int] = ()) -> None:
        """Say them; `absent`: those that have nothing to show, and only say why."""
        self._titles, self._chosen = tuple(titles), chosen
        width = max(1, self.app.size.width - 2)
        digits = [(place + 1) % 10 for place in range(len(titles))]
        texts = [f" {digit} {title} " for digit, title in zip(digits, titles, strict=True)]
        if sum(map(len, texts)) > width:
            texts = [text.lstrip() for text in texts]
        # Those that only say why they have nothing first, then from the right but for the last.
        last = len(titles) - 1
        for place in sorted(range(len(titles)), key=lambda at: (at not in absent, at == last, -at)):
            if sum(map(len, texts)) > width and place != chosen:
                texts[place] = f"{digits[place]} "
        line = Text(no_wrap=True)
        self._ends = []
        mark = self.get_component_rich_style("tab-bar--active", partial=True)
        for place, text in enumerate(texts):
            mood = "stale" if place in absent else "quiet"
            line.append(text, mark if place == chosen else style_of(self, mood))
            self._ends.append(line.cell_len)
        self.set_text(line)

    def action_step(self, tabs: int) -> None:
        if self._titles:
            self.post_message(self.Selected((self._chosen + tabs) % len(self._titles)))

    def on_click(self, event: events.Click) -> None:
        place = next((p for p, end in enumerate(self._ends) if event.x - 1 < end), None)
        if place is not None:
            self.post_message(self.Selected(place))


DETAIL_FROM = 18
"""On a screen of fewer lines than these a list needs the lines of what is said below it."""


def take_keys(tab: Widget, first: Widget) -> None:
    """Its screen looked for somebody to take them before there was anybody."""
    shown = all(one.display for one in tab.ancestors_with_self if isinstance(one, Widget))
    if shown and isinstance(tab.screen.focused, TabBar | None):
        tab.screen.set_focus(first)


_PAUSE = 19
"""The pause after an answer is at least so many times as long as it took."""


class RefreshPace:
    """When it is due again, after how long the last answer took."""

    def __init__(
        self, now: Callable[[], float], every_seconds: float, pause: float = _PAUSE
    ) -> None:
        """`pause`: 0 for what takes its pauses itself."""
        self._pause = pause
        self._now = now
        self._every = every_seconds
        self._asked_at: float | None = None
        self._next = 0.0

    @property
    def due(self) -> bool:
        """Whether it may be asked again without anybody having said so."""
        return self._asked_at is None or self._now() >= self._next

    def asked(self) -> None:
        self._asked_at = self._now()
        self._next = self._asked_at + self._every

    def answered(self) -> None:
        if self._asked_at is not None:
            took = self._now() - self._asked_at
            self._next = self._now() + max(self._every - took, self._pause * took)


class QueueTab(Vertical):
    """One tab. Its queue is given by key: what has that key is what it shows, and acts on."""

    NAME: ClassVar[str] = ""
    """As `open_queue` and tests name it."""
    TITLE: ClassVar[str] = ""
    EVERY_SECONDS: ClassVar[float] = 5.0
    """How often `look` is called while the tab is in sight."""
    HAS_CHARTS: ClassVar[bool] = False
    """Whether it takes the room of the screen's charts for charts of its own."""

    def __init__(self, context: Context, key: QueueKey) -> None:
        super().__init__(id=f"tab-{self.NAME}")
        self.context = context
        self.key = key
        self.shown = False
        """Whether it is the tab in sight, of a screen in sight. Its screen keeps this."""

    @classmethod
    def unavailable(cls, view: QueueView) -> str:  # noqa: ARG003  # most are there for every queue
        """Why a queue has nothing to show in such a tab; empty: it has."""
        return ""

    @property
    def is_composed(self) -> bool:
        """Whether its parts are there: not before it is made, nor while its screen is closed."""
        return self.is_mounted and bool(self.children)

    @property
    def equivalent(self) -> tuple[str, Sequence[str]]:
        """The command that shows the same, and its options."""
        return "status", ()

    @property
    def conn(self) -> OpenConnection | None:
        return self.context.conn(self.key)

    @property
    def navigator(self) -> "ConsoleApp":
        return self.context.navigator

    def poll(self) -> None:
        """Ask what it shows: when it comes into sight, now and then, and when `r` is pressed.

        It only starts a job (`console.tui.jobs`); the answer draws.
        """

    def draw(self, view: QueueView | None, *, paused: bool) -> None:
        """The store has something new; None: the queue is gone."""


class ReadingTab(QueueTab, Generic[T]):
    """A tab that shows what was read last, with what went wrong since."""

    PACE_SECONDS: ClassVar[float] = 5.0
    """The least time between two readings that nobody asked for."""

    def __init__(self, context: Context, key: QueueKey) -> None:
        super().__init__(context, key)
        self.result: T | None = None
        self.result_at: datetime | None = None
        self._found_monotonic = 0.0
        self.error: ConsoleError | None = None
        """Why the last reading failed."""
        self.paused = False
        self.pace = RefreshPace(context.clock.monotonic, self.PACE_SECONDS)
        self.question: LatestQuery[T] = LatestQuery(self, self.show_result, self.show_error)

    def read(self, conn: OpenConnection) -> T:
        """What there is now. In the thread of a job: waits; ConsoleError."""
        raise NotImplementedError

    def show(self, found: T) -> None:
        """It has been read anew, or the screen has another size, or other words for times."""

    def draw_words(self) -> None:
        """What is said of it, and of what went wrong."""

    def on_mount(self) -> None:
        self.draw_words()

    def poll(self) -> None:
        if self.pace.due:
            self.reload(wait=False)

    def reload(self, *, wait: bool = True) -> None:
        """Read it now; `wait=False`: not at all where that is being done."""
        conn = self.conn
        if conn is not None and (wait or not self.question.busy):
            self.pace.asked()
            self.question.submit(lambda: self.read(conn), wait=wait)

    def show_result(self, found: T) -> None:
        self.pace.answered()
        clock = self.context.clock
        self.result, self.error, self.result_at = found, None, clock.utc()
        self._found_monotonic = clock.monotonic()
        if self.is_composed:
            self.show(found)
            self.draw_words()

    def show_error(self, error: ConsoleError) -> None:
        """What was read last stays."""
        self.pace.answered()
        self.error = error
        if self.is_composed:
            self.draw_words()

    def draw(self, view: QueueView | None, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        self.paused = paused
        if self.is_composed:
            self.draw_words()

    def as_of(self, found: Text, blanks: str = "   ") -> None:
        """Say behind a line when that was."""
        if self.result_at is not None:
            at = formats.clock(self.result_at, self.context.zone)
            found.append(f"{blanks}as of {at}", style_of(self.query_one(TextView), "quiet"))

    @property
    def old(self) -> str:
        """Before what went wrong: how old that is which is shown; empty: nothing is."""
        if self.result_at is None:
            return ""
        age = self.context.clock.monotonic() - self._found_monotonic
        return f"as it was {whole_seconds(age)} ago: "

    def action_refresh_now(self) -> None:
        self.context.sample_now()
        self.reload()


class TableTab(ReadingTab[T]):
    """A table under a line that sums it up; below it, on a screen that has room, what is known of
    the row under the cursor. It is not read again while the screen is paused."""

    COPIED: ClassVar[str] = "copied"
    """What is said when that was copied."""
    table: KeyedTable[Any]

    def compose(self) -> ComposeResult:
        yield TextView(classes="pane-head", id=f"{self.NAME}-head")
        yield self.table
        yield TextView(classes="pane-detail", id=f"{self.NAME}-detail")

    def on_mount(self) -> None:
        super().on_mount()
        take_keys(self, self.table)

    def poll(self) -> None:
        if not self.paused:
            super().poll()

    @property
    def wrong(self) -> ConsoleError | None:
        return self.error

    def summary(self, head: TextView) -> list[Text]:
        """The lines above the table; without what went wrong."""
        raise NotImplementedError

    def detail(self) -> list[tuple[str, str]]:
        """Of the row under the cursor: texts, each with its style."""
        raise NotImplementedError

    def draw_words(self) -> None:
        head = self.query_one(f"#{self.NAME}-head", TextView)
        first, *others = self.summary(head)
        wrong = [] if self.wrong is None else [error_text(head, self.wrong)]
        show_lines(head, [first, *wrong, *others])
        words, parts = self.query_one(f"#{self.NAME}-detail", TextView), self.detail()
        words.display = bool(parts) and self.app.size.height >= DETAIL_FROM
        show_parts(words, parts)

    def on_keyed_table_cursor_moved(self) -> None:
        self.draw_words()

    def action_copy(self) -> None:
        if parts := self.detail():
            self.app.copy_to_clipboard("".join(text for text, _ in parts))
            self.notify(self.COPIED, markup=False)


NOT_RECORDED = {
    "messages": "A recording has no messages: payloads are never recorded.",
    "errors": "A recording has no error texts: only how many errors there were.",
    "stuck": "A recording has no claims: only how many there were, and how many were stuck.",
    "waits": "A recording has no sessions.",
    "consumers": "A recording has no sessions: consumers --recordings PATH lists who was seen.",
    "slots": "A recording has no slots: only the gap of a ring.",
    "sql": "A recording has no code of the queue.",
    "audit": "A recording has no audit: History shows the actions that were recorded.",
}
"""Of tabs by their names; the others need no database."""


class UnavailableTab(QueueTab):
    """Stands under the other's title, so that digits mean what they always do."""

    def __init__(self, context: Context, key: QueueKey, other: type[QueueTab], why: str) -> None:
        self._why = why
        # The screen knows tabs by these, and so does the super class.
        self.NAME, self.TITLE = other.NAME, other.TITLE  # type: ignore[misc]
        super().__init__(context, key)

    def compose(self) -> ComposeResult:
        yield Paragraph(classes="absent")

    def on_mount(self) -> None:
        words = self.query_one(Paragraph)
        words.set_text(Text(f"\n {plain(self._why)}", style_of(words, "quiet")))
