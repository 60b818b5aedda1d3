"""In the place of a tab that needs a database, where there is none: why it is empty."""

from rich.text import Text
from textual.app import ComposeResult

from console.tui.board import Key
from console.tui.desk import Desk
from console.tui.tabs.tab import QueueTab
from console.tui.widgets.paragraph import Paragraph
from console.tui.widgets.tones import tone

NOT_RECORDED = {
    "messages": "A recording has no messages: payloads are never recorded.",
    "errors": "A recording has no error texts: only how many errors there were.",
    "stuck": "A recording has no claims: only how many there were, and how many were stuck.",
    "waits": "A recording has no sessions to look at.",
    "slots": "A recording has no slots: only the gap of a ring.",
    "sql": "A recording has no code of the queue.",
    "audit": "A recording has no audit: History shows the actions that were recorded.",
}
"""Of tabs by their names; the others need no database."""


class AbsentTab(QueueTab):
    """Stands under the other's title, so that digits mean what they always do."""

    def __init__(self, desk: Desk, key: Key, other: type[QueueTab]) -> None:
        # The screen knows tabs by these, and so does the super class.
        self.NAME, self.TITLE = other.NAME, other.TITLE  # type: ignore[misc]
        super().__init__(desk, key)

    def compose(self) -> ComposeResult:
        """One sentence."""
        yield Paragraph(classes="absent")

    def on_mount(self) -> None:
        """Nothing will come."""
        words = self.query_one(Paragraph)
        words.say(Text(f"\n {NOT_RECORDED[self.NAME]}", tone(words, "quiet")))
