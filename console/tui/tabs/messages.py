"""The tab Messages of a queue."""

from typing import ClassVar

from textual.app import ComposeResult

from console.tui.board import Key, QueueView
from console.tui.desk import Desk
from console.tui.tabs.message_pane import MessagePane
from console.tui.tabs.tab import QueueTab


class MessagesTab(QueueTab):
    """All its messages, a page at a time."""

    NAME: ClassVar[str] = "messages"
    TITLE: ClassVar[str] = "Messages"

    def __init__(self, desk: Desk, key: Key) -> None:
        super().__init__(desk, key)
        self.pane = MessagePane(desk, key)

    def compose(self) -> ComposeResult:
        """The list and what is said of it."""
        yield self.pane

    def look(self) -> None:
        """What has become of the list."""
        self.pane.look()

    def draw(self, view: QueueView | None, *, paused: bool) -> None:
        """The figures came anew."""
        self.pane.draw(view, paused=paused)
