"""The line for the time to which a replay goes."""

from collections.abc import Callable
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input

from console.errors import ConsoleError
from console.tui.dialogs.dialog import Dialog
from console.tui.text import said
from console.tui.widgets.paragraph import Paragraph
from console.tui.widgets.tones import tone


class SeekDialog(Dialog[datetime | None]):
    """Enter goes there, Escape leaves it; what is no time is answered above the line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "leave", show=False),
    ]

    def __init__(self, read: Callable[[str], datetime]) -> None:
        """`read`: the moment that a text means; ConsoleError."""
        super().__init__()
        self._read = read

    def compose(self) -> ComposeResult:
        """What could be typed, and the line."""
        with Vertical(id="seek"):
            yield Paragraph(id="seek-words")
            yield Input(placeholder="03:00, or 2026-03-29T03:00", id="seek-time", compact=True)

    def on_mount(self) -> None:
        """The line has the keys."""
        self.query_one("#seek-words", Paragraph).say(Text("Go to"))
        self.set_focus(self.query_one(Input))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go there, or say why not."""
        event.stop()
        try:
            moment = self._read(event.value)
        except ConsoleError as error:
            words = self.query_one("#seek-words", Paragraph)
            words.say(Text(said(error), tone(words, "critical")))
        else:
            self.dismiss(moment)
