"""The tab SQL of a queue: its code as the server has it, beside what this console installs."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache, partial
from itertools import zip_longest
from typing import ClassVar

from rich.console import RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, ScrollableContainer
from textual.widgets import Static

from console.actions.upgrade import How, InstalledObject, parts
from console.engines import product
from console.tui.context import Context
from console.tui.findings import QueueKey
from console.tui.open_connection import OpenConnection
from console.tui.tabs.tab import ReadingTab
from console.tui.text import TextView, plain, style_of
from console.tui.widgets.keyed_table import KeyedTable
from console.views.view import Column

_LIST_WIDTH = 15
_DIFFERENCES = {
    How.MISSING: "is missing; this console would install this",
    How.OTHER: "differs from what this console installs",
    How.OTHER_SIGNATURE: "has another signature than what this console installs",
    How.HIDDEN: "is not visible to this login; this console would install this",
    How.OLDER: "lacks columns that this console installs",
}


@dataclass(frozen=True)
class QueueObjects:
    engine: str
    parts: tuple[InstalledObject, ...]


_SIDE_BY_SIDE = 110
"""From this width on two texts are shown side by side."""
_TAB = 4
INSTALLED, SHIPPED, BOTH = "+", "-", " "
"""Which of the two texts has a line."""
_STYLES = {INSTALLED: "warning", SHIPPED: "good", BOTH: ""}


@dataclass(frozen=True)
class Block:
    """Consecutive lines that are in both texts, or that replace each other."""

    same: bool
    installed: tuple[int, ...]
    shipped: tuple[int, ...]
    """Line numbers, from 0."""


class CodeView(ScrollableContainer, can_focus=True):
    """Scrolls by the arrow keys and by vi's."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "down", show=False),
        Binding("k", "scroll_up", "up", show=False),
        Binding("h", "scroll_left", "left", show=False),
        Binding("l", "scroll_right", "right", show=False),
        Binding("g", "scroll_home", "top", show=False),
        Binding("G", "scroll_end", "end", show=False),
    ]

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(id=id)
        self._shown: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield Static(id="code")

    def show(self, installed: str | None, shipped: str | None, engine: str, width: int) -> None:
        """One text, or a comparison of both where there are two."""
        split_width = width if width >= _SIDE_BY_SIDE else 0
        arguments = (installed, shipped, engine, split_width)
        if arguments == self._shown:
            return
        if self._shown[:2] != arguments[:2]:
            self.scroll_home(animate=False)
        self._shown = arguments
        self.query_one("#code", Static).update(self._drawn(installed, shipped, engine, split_width))

    def _drawn(
        self, installed: str | None, shipped: str | None, engine: str, split_width: int
    ) -> RenderableType:
        if installed is None or shipped is None:
            return highlighted(installed or shipped or "", engine)
        installed_lines, shipped_lines = (
            list(highlighted(text, engine).split()) for text in (installed, shipped)
        )
        blocks = aligned(installed, shipped)
        if not split_width:
            return self._unified(blocks, installed_lines, shipped_lines)
        return self._side_by_side(blocks, installed_lines, shipped_lines, split_width)

    def _unified(
        self, blocks: Sequence[Block], installed: Sequence[Text], shipped: Sequence[Text]
    ) -> Text:
        words = f"{INSTALLED} only as installed   {SHIPPED} only as this console installs it"
        lines = [Text(words, style_of(self, "quiet"))]
        for block in blocks:
            mark = BOTH if block.same else INSTALLED
            lines += [self._marked(mark, installed[at]) for at in block.installed]
            if not block.same:
                lines += [self._marked(SHIPPED, shipped[at]) for at in block.shipped]
        return Text("\n").join(lines)

    def _side_by_side(
        self,
        blocks: Sequence[Block],
        installed: Sequence[Text],
        shipped: Sequence[Text],
        width: int,
    ) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for head in ("as installed", "as this console installs it"):
            column = (width - 6) // 2
            table.add_column(Text(head, style_of(self, "quiet")), width=column, overflow="fold")
        for block in blocks:
            marks = (BOTH, BOTH) if block.same else (INSTALLED, SHIPPED)
            for left, right in zip_longest(block.installed, block.shipped):
                table.add_row(
                    Text() if left is None else self._marked(marks[0], installed[left]),
                    Text() if right is None else self._marked(marks[1], shipped[right]),
                )
        return table

    def _marked(self, mark: str, line: Text) -> Text:
        style = style_of(self, _STYLES[mark])
        if mark == BOTH:
            return Text(f"{mark} ", style, end="").append_text(line)
        return Text.assemble((f"{mark} {line.plain}", style))


@lru_cache(maxsize=64)
def highlighted(code: str, engine: str) -> Text:
    """Safe to show, in the terminal's own colours."""
    safe = "\n".join(map(plain, code.expandtabs(_TAB).splitlines()))
    syntax = Syntax("", product(engine).code_lexer, theme="ansi_dark", background_color="default")
    objects = syntax.highlight(safe)
    objects.rstrip()
    return objects


def aligned(installed: str, shipped: str) -> list[Block]:
    """Which lines of two texts are the same, and which replace each other."""
    installed_lines, shipped_lines = installed.splitlines(), shipped.splitlines()
    return [
        Block(tag == "equal", tuple(range(a, b)), tuple(range(c, d)))
        for tag, a, b, c, d in SequenceMatcher(
            None, installed_lines, shipped_lines, autojunk=False
        ).get_opcodes()
    ]


class SqlTab(ReadingTab[QueueObjects]):
    """A list of functions and tables, and the code of the one under the cursor."""

    NAME: ClassVar[str] = "sql"
    TITLE: ClassVar[str] = "SQL"
    EVERY_SECONDS: ClassVar[float] = 60.0
    PACE_SECONDS: ClassVar[float] = 0.0
    PAUSE: ClassVar[float] = 0
    COMMAND: ClassVar[Sequence[str]] = ("upgrade", "--dry-run")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "read", "scroll in the text", show=False),
        Binding("y", "copy", "copy", tooltip="copy the text as it is installed"),
    ]

    def __init__(self, context: Context, key: QueueKey) -> None:
        super().__init__(context, key)
        columns: tuple[Column[InstalledObject], ...] = (
            # A blank reserves the column: nothing moves when something differs.
            Column(
                "mark", "", lambda part: " " if part.how is None else "!", "warning", max_width=1
            ),
            Column("name", "installed", self._short_name, _name_style, _LIST_WIDTH, _LIST_WIDTH),
        )
        self.table = KeyedTable(columns, id="sql-parts")

    def compose(self) -> ComposeResult:
        yield TextView(id="sql-head")
        with Horizontal(id="sql-body"):
            yield self.table
            yield CodeView(id="sql-code")

    def read(self, conn: OpenConnection) -> QueueObjects:
        database = conn.database
        return QueueObjects(database.product.name, parts(database, conn.find(*self.key[1:])))

    def show(self, result: QueueObjects) -> None:
        self.table.show(_by_key(result.parts))

    def on_resize(self) -> None:
        if self.is_composed:
            self._draw_code()

    @property
    def part(self) -> InstalledObject | None:
        return self.table.row

    def _draw_code(self) -> None:
        part = self.part
        if part is not None and self.result is not None:
            view = self.query_one(CodeView)
            view.show(part.installed, part.shipped, self.result.engine, view.size.width)

    def draw_texts(self) -> None:
        self._draw_code()
        self.query_one("#sql-body").display = self.result is not None
        head = self.query_one("#sql-head", TextView)
        self.draw_head(head, "Reading the installed code ...", partial(self._summary, head))

    def _summary(self, head: TextView, objects: QueueObjects) -> Text:
        part = self.part
        differ = sum(installed_object.how is not None for installed_object in objects.parts)
        if part is not None and part.how is not None:
            text, style = f"{part.kind} {plain(part.name)} {_DIFFERENCES[part.how]}", "warning"
        elif differ:
            text = f"{differ} of {len(objects.parts)} differ from what this console installs"
            style = "warning"
        elif any(installed_object.kind == "function" for installed_object in objects.parts):
            text, style = "all as this console installs it", "good"
        else:
            text, style = "an adopted table: its code belongs to another program", "quiet"
        return Text(text, style_of(head, style), no_wrap=True, overflow="ellipsis")

    def on_keyed_table_cursor_moved(self, event: KeyedTable.CursorMoved) -> None:
        event.stop()
        self.draw_texts()

    def action_read(self) -> None:
        """Focus the text; Tab goes back to the list."""
        self.query_one(CodeView).focus()

    def action_copy(self) -> None:
        """The text as the server has it; where it has none, as it would be installed."""
        part = self.part
        if part is not None:
            self.app.copy_to_clipboard(part.installed or part.shipped or "")
            self.notify(f"copied {plain(part.name)}", markup=False, timeout=3)

    def _short_name(self, part: InstalledObject) -> str:
        """Without the queue's name, which is on the screen already."""
        return plain(part.name.removeprefix(self.key[2]) or part.name)


def _name_style(part: InstalledObject) -> str:
    return "quiet" if part.kind == "table" else ""


def _by_key(objects: tuple[InstalledObject, ...]) -> dict[str, InstalledObject]:
    """Functions of the same name that differ in their arguments are numbered."""
    parts: dict[str, InstalledObject] = {}
    for installed_object in objects:
        names = (
            repr((installed_object.kind, installed_object.name, number))
            for number in range(len(objects))
        )
        parts[next(name for name in names if name not in parts)] = installed_object
    return parts
