"""One line at the bottom of every screen: what runs here, and how far it is."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text

from console.tui.running import Running
from console.tui.text import shorten
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words


class BackgroundLine(Words):
    """Not there at all while nothing runs."""

    DEFAULT_CSS: ClassVar[str] = "BackgroundLine { height: 1; padding: 0 1; display: none; }"

    def draw(self, running: Sequence[Running]) -> None:
        """Show these; several are counted, and the newest is told."""
        if self.display != bool(running):
            self.display = bool(running)
        if not running:
            return
        newest = running[-1]
        line = Text("▶ ", tone(self, "strong"))
        more = f"{len(running)} actions run here; " if len(running) > 1 else ""
        hint = "   b goes there"
        room = max(10, self.app.size.width - 4 - len(hint))
        failed = newest.error is not None
        line.append(
            shorten(f"{more}{newest.words}", room), tone(self, "critical" if failed else "")
        )
        line.append(hint, tone(self, "quiet"))
        self.say(line)
