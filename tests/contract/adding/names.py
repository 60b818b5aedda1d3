"""A screen: the names of all known queues."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from console.tui.screens.live import LiveScreen
from console.tui.text import TextView, plain


class NamesScreen(LiveScreen):
    """The names of the queues, in one line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "upper", "upper case", tooltip="the names in upper case")
    ]

    upper = False

    def body(self) -> ComposeResult:
        """One line of text."""
        yield TextView(id="names")

    def draw_body(self, now: float, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        """The names."""
        names = ", ".join(plain(view.key[2]) for view in self.context.store.queues(now))
        self.query_one("#names", TextView).set_text(Text(names.upper() if self.upper else names))

    def action_upper(self) -> None:
        """Switch upper case on or off."""
        self.upper = not self.upper
        self.schedule_draw()
