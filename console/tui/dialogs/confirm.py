"""A question that is answered by typing: no single key changes data."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input

from console.tui.dialogs.dialog import Dialog
from console.tui.text import plain
from console.tui.widgets.paragraph import Paragraph
from console.tui.widgets.tones import tone


class ConfirmDialog(Dialog[bool]):
    """True where the word that is wanted was typed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "no", "back", show=False, tooltip="nothing is done"),
    ]

    def __init__(self, title: str, lines: Sequence[str], name: str, *, by_name: bool) -> None:
        """`by_name`: only the name will do; else y does too."""
        super().__init__()
        self._about = title
        self._lines = lines
        self._word = name
        self._by_name = by_name

    def compose(self) -> ComposeResult:
        """What it is about, and where to type."""
        with Vertical(id="confirming", classes="dialog") as panel:
            panel.border_title = plain(self._about)
            panel.border_subtitle = "Escape: nothing is done"
            yield Paragraph(Text("\n".join(map(plain, self._lines))))
            wanted = plain(self._word) if self._by_name else "y"
            yield Paragraph(Text(f"\nType {wanted} and Enter."), id="confirm-words")
            yield Input(id="confirm", compact=True)

    def on_mount(self) -> None:
        """The question has the keys."""
        self.set_focus(self.query_one(Input))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Only the word that is wanted does."""
        event.stop()
        word = event.value.strip()
        if word == self._word or (not self._by_name and word.lower() in {"y", "yes"}):
            self.dismiss(result=True)
            return
        words = self.query_one("#confirm-words", Paragraph)
        words.say(Text(f"\n{plain(word)!r} is not it: nothing was done.", tone(words, "critical")))

    def action_no(self) -> None:
        """Back, and nothing is done."""
        self.dismiss(result=False)
