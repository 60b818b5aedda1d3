"""Its greeting."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult

from console.tui.tabs.tab import QueueTab
from console.tui.text import Paragraph


class GreetingsTab(QueueTab):
    """Greets a queue."""

    NAME: ClassVar[str] = "greetings"
    TITLE: ClassVar[str] = "Greetings"

    def compose(self) -> ComposeResult:
        yield Paragraph(Text(f"good night, {self.key[2]}"))


TAB = GreetingsTab
