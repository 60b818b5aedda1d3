"""The tab SQL of a queue: its own statements as the server has them, beside what is shipped."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
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
from console.tui.text import TextView, describe_error, plain, style_of
from console.tui.widgets.keyed_table import Column, KeyedTable

_LIST_WIDTH = 15
_WORDS = {
    How.MISSING: "is missing; this console would install this",
    How.OTHER: "differs from what this console installs",
    How.CALLED_OTHERWISE: "has another signature than what this console installs",
    How.HIDDEN: "is not visible to this login; this console would install this",
    How.OLDER: "lacks columns that this console installs",
}


@dataclass(frozen=True)
class QueueObjects:
    """All parts of a queue, on what engine."""

    engine: str
    parts: tuple[InstalledObject, ...]


_SIDE_BY_SIDE = 110
"""From so many cells on two texts stand beside each other."""
_TAB = 4
INSTALLED, SHIPPED, BOTH = "+", "-", " "
"""Which of two texts has a line."""
_MOODS = {INSTALLED: "warning", SHIPPED: "good", BOTH: ""}


@dataclass(frozen=True)
class Block:
    """Lines in a row that both texts have, or that stand for each other."""

    same: bool
    installed: tuple[int, ...]
    shipped: tuple[int, ...]
    """Places of the lines, from 0."""


class CodeView(ScrollableContainer, can_focus=True):
    """Give it texts by `show`. It scrolls by the arrows and by the vi keys."""

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
        """Show one text, or both where there are two; `width`: what there is room for."""
        beside = width if width >= _SIDE_BY_SIDE else 0
        asked = (installed, shipped, engine, beside)
        if asked == self._shown:
            return
        if self._shown[:2] != asked[:2]:
            self.scroll_home(animate=False)
        self._shown = asked
        self.query_one("#code", Static).update(self._drawn(installed, shipped, engine, beside))

    def _drawn(
        self, installed: str | None, shipped: str | None, engine: str, beside: int
    ) -> RenderableType:
        if installed is None or shipped is None:
            return highlighted(installed or shipped or "", engine)
        here, there = (list(highlighted(text, engine).split()) for text in (installed, shipped))
        blocks = aligned(installed, shipped)
        if not beside:
            return self._one_below_the_other(blocks, here, there)
        return self._side_by_side(blocks, here, there, beside)

    def _one_below_the_other(
        self, blocks: Sequence[Block], installed: Sequence[Text], shipped: Sequence[Text]
    ) -> Text:
        words = f"{INSTALLED} only as installed   {SHIPPED} only as this console installs it"
        lines = [Text(words, style_of(self, "quiet"))]
        for block in blocks:
            if block.same:
                lines += [self._marked(BOTH, installed[at]) for at in block.installed]
                continue
            lines += [self._marked(INSTALLED, installed[at]) for at in block.installed]
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
            for here, there in zip_longest(block.installed, block.shipped):
                table.add_row(
                    Text() if here is None else self._marked(marks[0], installed[here]),
                    Text() if there is None else self._marked(marks[1], shipped[there]),
                )
        return table

    def _marked(self, mark: str, line: Text) -> Text:
        style = style_of(self, _MOODS[mark])
        return (
            Text(f"{mark} ", style, end="").append_text(line)
            if mark == BOTH
            else Text.assemble((f"{mark} {line.plain}", style))
        )


@lru_cache(maxsize=64)
def highlighted(code: str, engine: str) -> Text:
    """The text as it is, safe to show, its words in the terminal's own colours."""
    safe = "\n".join(map(plain, code.expandtabs(_TAB).splitlines()))
    syntax = Syntax("", product(engine).code_lexer, theme="ansi_dark", background_color="default")
    found = syntax.highlight(safe)
    found.rstrip()
    return found


def aligned(installed: str, shipped: str) -> list[Block]:
    """Which lines of two texts are the same, and which stand for each other."""
    here, there = installed.splitlines(), shipped.splitlines()
    return [
        Block(tag == "equal", tuple(range(a, b)), tuple(range(c, d)))
        for tag, a, b, c, d in SequenceMatcher(None, here, there, autojunk=False).get_opcodes()
    ]


class SqlTab(ReadingTab[QueueObjects]):
    """A list of functions and tables, and the one under the cursor."""

    NAME: ClassVar[str] = "sql"
    TITLE: ClassVar[str] = "SQL"
    EVERY_SECONDS: ClassVar[float] = 60.0
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "read", "read", show=False, tooltip="scroll in the text"),
        Binding("y", "copy", "copy", tooltip="copy the text as it is installed"),
    ]

    def __init__(self, context: Context, key: QueueKey) -> None:
        super().__init__(context, key)
        columns: tuple[Column[InstalledObject], ...] = (
            # A blank keeps its place: nothing moves when something differs.
            Column("mark", "", lambda part: " " if part.how is None else "!", "warning", most=1),
            Column("name", "installed", self._short_name, _name_tone, _LIST_WIDTH, _LIST_WIDTH),
        )
        self.table = KeyedTable(columns, id="sql-parts")
        """Functions, then tables; what differs is marked."""

    @property
    def equivalent(self) -> tuple[str, Sequence[str]]:
        return "upgrade", ["--dry-run"]

    def compose(self) -> ComposeResult:
        yield TextView(id="sql-head")
        with Horizontal(id="sql-body"):
            yield self.table
            yield CodeView(id="sql-code")

    def poll(self) -> None:
        """Seldom, for they hardly ever change."""
        self.reload(wait=False)

    def read(self, conn: OpenConnection) -> QueueObjects:
        database = conn.database
        return QueueObjects(database.product.name, parts(database, conn.find(*self.key[1:])))

    def show(self, found: QueueObjects) -> None:
        self.table.show(_by_key(found.parts))

    def on_resize(self) -> None:
        """Another size may have room for two texts beside each other."""
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

    def draw_words(self) -> None:
        self._draw_code()
        self.query_one("#sql-body").display = self.result is not None
        head = self.query_one("#sql-head", TextView)
        if self.error is not None:
            old = "as it was read before: " if self.result is not None else ""
            head.set_text(Text(old + describe_error(self.error), style_of(head, "critical")))
        elif self.result is None:
            head.set_text(Text("Reading the installed code ...", style_of(head, "quiet")))
        else:
            head.set_text(self._told(head, self.result))

    def _told(self, head: TextView, found: QueueObjects) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        part = self.part
        if part is not None and part.how is not None:
            line.append(
                f"{part.kind} {plain(part.name)} {_WORDS[part.how]}", style_of(head, "warning")
            )
            return line
        other = sum(one.how is not None for one in found.parts)
        code = [one for one in found.parts if one.kind == "function"]
        if other:
            line.append(
                f"{other} of {len(found.parts)} differ from what this console installs",
                style_of(head, "warning"),
            )
        elif code:
            line.append("all as this console installs it", style_of(head, "good"))
        else:
            line.append(
                "an adopted table: its code belongs to another program", style_of(head, "quiet")
            )
        return line

    def on_keyed_table_cursor_moved(self, event: KeyedTable.CursorMoved) -> None:
        event.stop()
        self.draw_words()

    def action_read(self) -> None:
        """To the text; Tab goes back to the list."""
        self.query_one(CodeView).focus()

    def action_copy(self) -> None:
        """The text as the server has it (OSC 52); where it has none, as it would be installed."""
        part = self.part
        if part is not None:
            self.app.copy_to_clipboard(part.installed or part.shipped or "")
            self.notify(f"copied {plain(part.name)}", markup=False, timeout=3)

    def _short_name(self, part: InstalledObject) -> str:
        """What follows the queue's name in its own: that is on the screen already."""
        return plain(part.name.removeprefix(self.key[2]) or part.name)


def _name_tone(part: InstalledObject) -> str:
    return "quiet" if part.kind == "table" else ""


def _by_key(found: tuple[InstalledObject, ...]) -> dict[str, InstalledObject]:
    """Functions of one name may differ in their arguments: those are numbered."""
    parts: dict[str, InstalledObject] = {}
    for one in found:
        names = (repr((one.kind, one.name, number)) for number in range(len(found)))
        parts[next(name for name in names if name not in parts)] = one
    return parts
