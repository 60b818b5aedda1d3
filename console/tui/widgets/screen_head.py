"""The first line of a screen that is not the overview: what it shows, and what went wrong."""

from rich.text import Text

from console.tui.widgets.paragraph import Paragraph
from console.tui.widgets.tones import tone


class ScreenHead(Paragraph):
    """One line, cut off where the screen is narrow; an error below it is never cut off."""

    def draw(self, line: Text, error: str = "") -> None:
        """Show these."""
        text = line.copy()
        text.truncate(max(20, self.app.size.width - 2), overflow="ellipsis")
        if error:
            text.append(f"\n✖ {' '.join(error.splitlines())}", tone(self, "critical"))
        self.say(text)
