"""SQL with its words in colours. Of two texts, the lines that only one of them has are marked."""

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
from textual.containers import ScrollableContainer
from textual.widgets import Static

from console.tui.text import plain
from console.tui.widgets.tones import TONE_CLASSES, tone

_LEXERS = {"postgresql": "plpgsql", "mssql": "tsql"}
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

    COMPONENT_CLASSES: ClassVar[set[str]] = TONE_CLASSES
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
        """As large as the text."""
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
        lines = [Text(words, tone(self, "quiet"))]
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
            table.add_column(Text(head, tone(self, "quiet")), width=column, overflow="fold")
        for block in blocks:
            marks = (BOTH, BOTH) if block.same else (INSTALLED, SHIPPED)
            for here, there in zip_longest(block.installed, block.shipped):
                table.add_row(
                    Text() if here is None else self._marked(marks[0], installed[here]),
                    Text() if there is None else self._marked(marks[1], shipped[there]),
                )
        return table

    def _marked(self, mark: str, line: Text) -> Text:
        style = tone(self, _MOODS[mark])
        return (
            Text(f"{mark} ", style, end="").append_text(line)
            if mark == BOTH
            else Text.assemble((f"{mark} {line.plain}", style))
        )


@lru_cache(maxsize=64)
def highlighted(code: str, engine: str) -> Text:
    """The text as it is, safe to show, its words in the terminal's own colours."""
    safe = "\n".join(map(plain, code.expandtabs(_TAB).splitlines()))
    syntax = Syntax("", _LEXERS.get(engine, "sql"), theme="ansi_dark", background_color="default")
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
