"""The tab Waits of a queue."""

from typing import ClassVar

from textual.app import ComposeResult

from console.tui.board import Key, QueueView
from console.tui.desk import Desk
from console.tui.tabs.tab import QueueTab
from console.tui.tabs.waits_pane import WaitsPane


class WaitsTab(QueueTab):
    """What its sessions wait for, who holds up whom, what that means for this design."""

    NAME: ClassVar[str] = "waits"
    TITLE: ClassVar[str] = "Waits"
    EVERY_SECONDS: ClassVar[float] = 2.5

    def __init__(self, desk: Desk, key: Key) -> None:
        super().__init__(desk, key)
        self.pane = WaitsPane(desk, key[0], key)

    def compose(self) -> ComposeResult:
        """All of it is the pane's."""
        yield self.pane

    def look(self) -> None:
        """Look for a while."""
        self.pane.look()

    def draw(self, view: QueueView | None, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        """The board has something new."""
        self.pane.draw(paused=paused)
