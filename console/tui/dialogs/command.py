"""The command line's twin of what a screen would do: shown, and copied."""

from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Static

from console.tui.board import Key
from console.tui.dialogs.dialog import Dialog
from console.tui.places import Place
from console.tui.text import plain
from console.tui.twin import twin


def show_twin(
    owner: Widget,
    place: Place | None,
    verb: str,
    key: Key | None = None,
    words: Iterable[str] = (),
) -> None:
    """The command line that does or shows the same as what `owner` does or shows."""
    owner.app.push_screen(CommandDialog(twin(place, verb, key, words)))


class CommandDialog(Dialog[None]):
    """One command. It goes to the clipboard when the dialog opens, and again by y."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,o,enter", "dismiss", "close", show=False),
        Binding("y", "copy", "copy", tooltip="copy the command once more"),
    ]

    def __init__(self, command: str, words: str = "") -> None:
        """`words`: what is to be known of it."""
        super().__init__()
        self.command = command
        self._words = words

    def compose(self) -> ComposeResult:
        """The command as it is to be pasted, whole."""
        with Vertical(id="command") as panel:
            panel.border_title = "The same on the command line"
            panel.border_subtitle = "copied   Escape closes"
            yield Static(Text(plain(self.command), overflow="fold"))
            if self._words:
                yield Static(Text(self._words), classes="quiet")

    def on_mount(self) -> None:
        """Most want it copied."""
        self.action_copy()

    def action_copy(self) -> None:
        """To the terminal's clipboard (OSC 52)."""
        self.app.copy_to_clipboard(self.command)
