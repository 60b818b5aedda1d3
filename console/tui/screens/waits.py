"""What the sessions of a connection's server wait for."""

from rich.text import Text
from textual.app import ComposeResult

from console.tui.desk import Desk
from console.tui.screens.live import LiveScreen
from console.tui.tabs.waits_pane import WaitsPane
from console.tui.text import plain
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words


class WaitsScreen(LiveScreen):
    """Looks while it is in sight; a look that is slow holds nothing up."""

    def __init__(self, desk: Desk, connection: str) -> None:
        super().__init__(desk)
        self.connection = connection
        self.pane = WaitsPane(desk, connection)

    def body(self) -> ComposeResult:
        """Of which connection, and the pane."""
        yield Words(classes="pane-head", id="waits-of")
        yield self.pane

    def draw_body(self, now: float, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        """Look again, as often as it may be."""
        title = self.query_one("#waits-of", Words)
        said = Text("Waits of ", tone(title, "quiet"))
        said.append(plain(self.connection), tone(title, "strong"))
        if self.connection not in self.desk.places:
            said.append("  There is no such connection.", tone(title, "critical"))
        title.say(said)
        self.pane.draw(paused=paused)
        self.pane.look()
