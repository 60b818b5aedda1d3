"""An error on a screen: what could not be done, why, and what to do next."""

from collections.abc import Sequence

from rich.text import Text
from textual.widget import Widget

from console.errors import ConsoleError
from console.tui.text import plain
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words


def told(widget: Widget, error: ConsoleError) -> Text:
    """All three parts, in as many lines as they take, in the tones of the widget."""
    said = Text(plain(error.what), tone(widget, "critical"))
    for part in (error.why, error.next_step):
        for line in part.splitlines():
            said.append(f"\n{plain(line)}", tone(widget, "quiet"))
    return said


def say(words: Words, lines: Sequence[Text]) -> None:
    """Show these lines; one that is not to be wrapped is cut off at the screen's edge."""
    width = max(20, words.app.size.width - 2)
    for line in lines:
        if line.no_wrap:
            line.truncate(width, overflow="ellipsis")
    words.say(Text("\n").join(lines))
