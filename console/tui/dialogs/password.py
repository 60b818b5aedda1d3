"""A password that is typed, unseen. It is kept in memory for the connection, and nowhere else."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input

from console.config.passwords import Secret
from console.tui.desk import Desk
from console.tui.dialogs.dialog import Dialog
from console.tui.places import Place
from console.tui.text import plain
from console.tui.widgets.paragraph import Paragraph


class PasswordDialog(Dialog[None]):
    """For one connection. Escape leaves it without."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "not now", show=False, tooltip="leave it without"),
    ]

    def __init__(self, desk: Desk, place: Place) -> None:
        super().__init__()
        self._desk = desk
        self._place = place

    def compose(self) -> ComposeResult:
        """Whose password, and where to type it."""
        with Vertical(id="password", classes="dialog") as panel:
            panel.border_title = f"Log in to {plain(self._place.name)}"
            panel.border_subtitle = "Enter: log in · Escape: not now"
            if self._place.url:
                yield Paragraph(Text(plain(self._place.url)))
            yield Input(password=True, compact=True, placeholder="password")
            yield Paragraph(Text("It stays in this console's memory, as long as that runs."))

    def on_mount(self) -> None:
        """It has the keys."""
        self.set_focus(self.query_one(Input))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Connect with it now."""
        event.stop()
        credentials = self._place.credentials
        if credentials is not None and event.value:
            credentials.give(Secret(event.value))
            for feed in self._desk.feeds:
                if feed.name == self._place.name:
                    feed.look_now()
        event.input.clear()
        self.dismiss()
