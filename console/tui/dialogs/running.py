"""The actions that run here, to go back to one of several."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from console.tui.desk import Desk
from console.tui.dialogs.dialog import Dialog
from console.tui.widgets.choices import Choices


class RunningDialog(Dialog[None]):
    """Enter opens one. Nothing is stopped from here."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "close", show=False),
        Binding("j", "move('cursor_down')", "down", show=False),
        Binding("k", "move('cursor_up')", "up", show=False),
    ]

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._desk = desk

    def compose(self) -> ComposeResult:
        """One line each."""
        with Vertical(id="verbs") as panel:
            panel.border_title = "Actions that run here"
            panel.border_subtitle = "Enter opens one   Escape closes"
            runs = self._desk.running.all
            yield Choices(*(Option(Text(one.words), id=str(one.number)) for one in runs))

    def on_mount(self) -> None:
        """How far they are goes on."""
        self.set_interval(1.0, self._draw)

    def _draw(self) -> None:
        options = self.query_one(OptionList)
        for one in self._desk.running.all:
            if options.get_option_index(str(one.number)) is not None:
                options.replace_option_prompt(str(one.number), Text(one.words))

    def action_move(self, way: str) -> None:
        """As the arrows do."""
        getattr(self.query_one(OptionList), f"action_{way}")()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Go back to it."""
        self.app.pop_screen()
        self._desk.ways.open_running(int(event.option.id or 0))
