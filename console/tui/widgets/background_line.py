"""One line at the bottom of every screen: what runs here, and how far it is; else what is not
recorded, or what is replayed."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text

from console.tui.running import Running
from console.tui.text import shorten
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words


class BackgroundLine(Words):
    """Not there at all while there is nothing to say."""

    DEFAULT_CSS: ClassVar[str] = "BackgroundLine { height: 1; padding: 0 1; display: none; }"

    def draw(self, running: Sequence[Running], problem: str = "", played: str = "") -> None:
        """Show these; several are counted, and the newest is told. Else what went wrong."""
        shown = bool(running or problem or played)
        if self.display != shown:
            self.display = shown
        if not running:
            room = max(10, self.app.size.width - 2)
            words = f"! {problem}" if problem else played
            self.say(Text(shorten(words, room), tone(self, "warning" if problem else "strong")))
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
