"""The dialog that asks for a time of a recording."""

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
from console.tui.text import Paragraph, describe_error, style_of


class SeekDialog(Dialog[datetime | None]):
    """Asks for a time to go to; an error is shown above the line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "leave", show=False)
    ]

    def __init__(self, read: Callable[[str], datetime]) -> None:
        """`read`: parses a time; ConsoleError."""
        super().__init__()
        self._read = read

    def compose(self) -> ComposeResult:
        with Vertical(id="seek"):
            yield Paragraph(id="seek-prompt")
            yield Input(placeholder="03:00, or 2026-03-29T03:00", id="seek-time", compact=True)

    def on_mount(self) -> None:
        self.query_one("#seek-prompt", Paragraph).set_text(Text("Go to"))
        self.set_focus(self.query_one(Input))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        try:
            moment = self._read(event.value)
        except ConsoleError as error:
            prompt = self.query_one("#seek-prompt", Paragraph)
            prompt.set_text(Text(describe_error(error), style_of(prompt, "critical")))
        else:
            self.dismiss(moment)
