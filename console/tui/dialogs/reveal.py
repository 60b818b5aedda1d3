"""Asks whether what the masks hide is to be shown."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from console.tui.dialogs.dialog import Dialog
from console.tui.text import plain


class RevealDialog(Dialog[bool]):
    """True: it is to be shown. Nothing but `y` says so."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "show it", tooltip="show it; the audit will have it"),
        Binding("n,escape,q,enter", "answer(False)", "leave it hidden"),
    ]

    def __init__(self, queue: str, message: str) -> None:
        super().__init__()
        self._queue = queue
        self._message = message

    def compose(self) -> ComposeResult:
        """What will be shown, and who will know."""
        with Vertical(classes="dialog") as panel:
            panel.border_title = "Reveal"
            panel.border_subtitle = "y shows it · Escape leaves it hidden"
            words = (
                f"Show the message {plain(self._message)} of {plain(self._queue)} without its "
                "masks?\n\nWho did that, when, and of which message will be in the audit."
            )
            yield Static(Text(words))

    def action_answer(self, answer: bool) -> None:  # noqa: FBT001  # from the key map
        """Go back with it."""
        self.dismiss(answer)
