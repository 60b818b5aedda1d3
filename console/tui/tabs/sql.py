"""The tab SQL of a queue: its own statements as the server has them, beside what is shipped."""

from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from console.actions.installed import Part, parts
from console.actions.upgrade import How
from console.errors import ConsoleError
from console.tui.board import Key, QueueView
from console.tui.desk import Desk
from console.tui.dialogs.command import show_twin
from console.tui.jobs import Question
from console.tui.tabs.tab import QueueTab
from console.tui.text import plain, said
from console.tui.widgets.code_view import CodeView
from console.tui.widgets.keyed_table import Cell, Cells, KeyedTable, TableColumn
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words

_LIST_WIDTH = 15
_WORDS = {
    How.MISSING: "is missing; this console would install this",
    How.OTHER: "differs from what this console installs",
    How.CALLED_OTHERWISE: "is called otherwise than what this console installs",
    How.HIDDEN: "cannot be seen by this login; this console would install this",
    How.OLDER: "lacks columns that this console installs",
}


@dataclass(frozen=True)
class Found:
    """All parts of a queue, on what engine."""

    engine: str
    parts: tuple[Part, ...]


class SqlTab(QueueTab):
    """A list of functions and tables, and the one under the cursor."""

    NAME: ClassVar[str] = "sql"
    TITLE: ClassVar[str] = "SQL"
    EVERY_SECONDS: ClassVar[float] = 60.0
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "read", "read", show=False, tooltip="scroll in the text"),
        Binding("y", "copy", "copy", tooltip="copy the text as it is installed"),
        Binding("o", "twin", "command", show=False, tooltip="the command line that compares"),
    ]

    def __init__(self, desk: Desk, key: Key) -> None:
        super().__init__(desk, key)
        self.found: Found | None = None
        self._error: ConsoleError | None = None
        self._question: Question[Found] = Question(self, self.show_found, self.fail)

    def compose(self) -> ComposeResult:
        """What there is, the list, the text."""
        yield Words(id="sql-head")
        with Horizontal(id="sql-body"):
            yield PartsTable()
            yield CodeView(id="sql-code")

    def on_mount(self) -> None:
        """Nothing is known yet."""
        self._draw_words()

    def look(self) -> None:
        """Read them: seldom, for they hardly ever change."""
        place, (_, schema, name) = self.place, self.key
        if place is None:
            return

        def work() -> Found:
            database = place.database
            return Found(database.product.name, parts(database, place.find(schema, name)))

        self._question.ask(work, wait=False)

    def show_found(self, found: Found) -> None:
        """What the server has."""
        self.found, self._error = found, None
        if not self.is_whole:
            return
        self.query_one(PartsTable).draw(found.parts, self.key[2])
        self._draw_code()
        self._draw_words()

    def fail(self, error: ConsoleError) -> None:
        """What was read last stays."""
        self._error = error
        if self.is_whole:
            self._draw_words()

    def draw(self, view: QueueView | None, *, paused: bool) -> None:  # noqa: ARG002
        """Another size may have room for two texts beside each other."""
        if self.is_whole and not paused:
            self._draw_code()

    def on_resize(self) -> None:
        """The same at once."""
        if self.is_whole:
            self._draw_code()

    @property
    def part(self) -> Part | None:
        """The one under the cursor."""
        return self.query_one(PartsTable).part

    def _draw_code(self) -> None:
        part = self.part
        if part is not None and self.found is not None:
            view = self.query_one(CodeView)
            view.show(part.installed, part.shipped, self.found.engine, view.size.width)

    def _draw_words(self) -> None:
        self.query_one("#sql-body").display = self.found is not None
        head = self.query_one("#sql-head", Words)
        if self._error is not None:
            old = "as it was read before: " if self.found is not None else ""
            head.say(Text(old + said(self._error), tone(head, "critical")))
        elif self.found is None:
            head.say(Text("Reading what is installed ...", tone(head, "quiet")))
        else:
            head.say(self._told(head, self.found))

    def _told(self, head: Words, found: Found) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        part = self.part
        if part is not None and part.how is not None:
            line.append(f"{part.kind} {plain(part.name)} {_WORDS[part.how]}", tone(head, "warning"))
            return line
        other = sum(one.how is not None for one in found.parts)
        code = [one for one in found.parts if one.kind == "function"]
        if other:
            line.append(
                f"{other} of {len(found.parts)} differ from what is shipped", tone(head, "warning")
            )
        elif code:
            line.append("all as this console installs it", tone(head, "good"))
        else:
            line.append("an adopted table: its code is somebody else's", tone(head, "quiet"))
        return line

    def on_keyed_table_cursor_moved(self, event: KeyedTable.CursorMoved) -> None:
        """Another one is under the cursor."""
        event.stop()
        self._draw_code()
        self._draw_words()

    def action_read(self) -> None:
        """To the text; Tab goes back to the list."""
        self.query_one(CodeView).focus()

    def action_copy(self) -> None:
        """The text as the server has it (OSC 52); where it has none, as it would be installed."""
        part = self.part
        if part is not None:
            self.app.copy_to_clipboard(part.installed or part.shipped or "")
            self.notify(f"copied {plain(part.name)}", markup=False, timeout=3)

    def action_twin(self) -> None:
        """The command that compares, and makes them alike."""
        show_twin(self, self.place, "upgrade", self.key, ["--dry-run"])


class PartsTable(KeyedTable):
    """Functions, then tables; what differs is marked."""

    def __init__(self) -> None:
        super().__init__(id="sql-parts")
        self._parts: dict[str, Part] = {}

    @property
    def part(self) -> Part | None:
        """The one under the cursor."""
        return self._parts.get(self.cursor_key or "")

    def draw(self, found: tuple[Part, ...], queue: str) -> None:
        """List these, by what follows the queue's name in theirs: that is on the screen already."""
        self._parts = {}
        for one in found:
            # Functions of one name may differ in their arguments.
            names = (repr((one.kind, one.name, number)) for number in range(len(found)))
            self._parts[next(name for name in names if name not in self._parts)] = one

        def cells_of(key: str) -> Cells:
            one = self._parts[key]
            mark = Cell("!" if one.how is not None else "", "warning")
            name = plain(one.name.removeprefix(queue) or one.name)
            return (mark, Cell(name, "quiet" if one.kind == "table" else ""))

        columns = (TableColumn("mark", "", 1), TableColumn("name", "installed", _LIST_WIDTH))
        self.show(columns, list(self._parts), cells_of)
