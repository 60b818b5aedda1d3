"""SQL to be read before it runs: highlighted, scrolled both ways, copied as it is."""

from typing import ClassVar

from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
from pygments.token import Comment, Keyword, Literal, Token  # type: ignore[import-untyped]
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import ScrollableContainer

from console.tui.text import plain
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words

_LEXERS = {"postgresql": "postgresql", "mssql": "tsql"}
_TONES = (
    (Comment, "quiet"),
    (Keyword, "strong"),
    (Literal, "trend"),
    (Token.Name.Builtin, "strong"),
)


class SqlView(ScrollableContainer, can_focus=True):
    """Data, never markup: what would move the cursor or colour the screen is made visible."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "up", show=False),
        Binding("down,j", "scroll_down", "down", show=False),
        Binding("left,h", "scroll_left", "to the left", show=False),
        Binding("right,l", "scroll_right", "to the right", show=False),
        Binding("home,g", "scroll_home", "first line", show=False),
        Binding("end,G", "scroll_end", "last line", show=False),
        Binding("y", "copy", "copy", show=False, tooltip="copy the SQL"),
    ]

    def __init__(self, text: str = "", engine: str = "", *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.text = text
        self._engine = engine

    def compose(self) -> ComposeResult:
        """As wide as its longest line."""
        yield Words(id="sql-text")

    def on_mount(self) -> None:
        """Draw what it was made with."""
        self._draw()

    def show(self, text: str, engine: str) -> None:
        """Show this from now on, from its beginning."""
        if (text, engine) != (self.text, self._engine):
            self.text, self._engine = text, engine
            self._draw()
            self.scroll_home(animate=False)

    def _draw(self) -> None:
        words = self.query_one(Words)
        drawn = Text(no_wrap=True)
        lexer = get_lexer_by_name(_LEXERS.get(self._engine, "sql"), stripnl=False)
        safe = "\n".join(map(plain, self.text.expandtabs(4).split("\n")))
        for kind, value in lexer.get_tokens(safe):
            name = next((name for of, name in _TONES if kind in of), "")
            drawn.append(value, tone(words, name))
        words.say(drawn)

    def action_copy(self) -> None:
        """As it is, to be run by the engine's own client."""
        self.app.copy_to_clipboard(self.text)
        self.notify("The SQL is copied.")
