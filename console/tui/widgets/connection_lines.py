"""A line for each connection: is it there, how quick, PRODUCTION in words, what went wrong."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from console import formats
from console.tui.board import ConnectionView, Link
from console.tui.health import Level
from console.tui.text import shorten, whole_seconds
from console.tui.widgets.tones import MARK, tone
from console.tui.widgets.words import Words

_MARKS = {Link.OPENING: "○", Link.ALIVE: "●", Link.SILENT: "!"}
_LONGEST_NAME = 32


class ConnectionLines(Words):
    """At most `most` lines; if there are more connections, the last line counts the others."""

    def draw(self, views: Sequence[ConnectionView], right: str, most: int) -> None:
        """`right` is written at the end of the first line: the interval and the time."""
        if not views:
            self.say(Text())
            return
        width = max(20, self.app.size.width - 2)
        worst_first = sorted(views, key=lambda view: -view.level)
        shown = list(views) if len(views) <= most else worst_first[: most - 1]
        corner = Text("  " + right, tone(self, "quiet"))
        lines: list[Text] = []
        for view in shown:
            room = width - (0 if lines else cell_len(corner.plain))
            lines += self._lines(view, room)
        if left := len(views) - len(shown):
            bad = sum(view.level > Level.OK for view in worst_first[most - 1 :])
            rest = f"{bad} of them without an answer" if bad else "all of them answer"
            lines.append(Text(f"+ {left} more connections, {rest}", tone(self, "quiet")))
        lines[0].truncate(width - cell_len(corner.plain), overflow="ellipsis", pad=True)
        lines[0].append_text(corner)
        for line in lines[1:]:
            line.truncate(width, overflow="ellipsis")
        self.say(Text("\n").join(lines))

    def _lines(self, view: ConnectionView, room: int) -> list[Text]:
        """What went wrong stands behind the rest if there is room, else on a line of its own.

        So does who enforces the rights; the rights themselves are never cut off for it.
        """
        line, below = self._line(view, room, view.rights), [view.why] if view.why else []
        if line.cell_len > room and " " in view.rights:
            line = self._line(view, room, view.rights.split()[0].rstrip(","))
            below.insert(0, view.rights)
        if len(below) == 1 and line.cell_len + 2 + cell_len(below[0]) <= room:
            return [line.append(f"  {below[0]}", tone(self, "quiet"))]
        return [line, *(Text(f"  {text}", tone(self, "quiet")) for text in below)]

    def _line(self, view: ConnectionView, room: int, rights: str) -> Text:
        mood = {Level.OK: "good", Level.WARNING: "warning", Level.CRITICAL: "critical"}[view.level]
        if view.link is Link.OPENING:
            mood = "quiet"
        line = Text(no_wrap=True)
        line.append(_MARKS.get(view.link, "✖") + " ", tone(self, mood))
        # However long the name and small the screen: PRODUCTION is never cut off.
        kept = len("●    PRODUCTION  " if view.production else "●  ")
        if view.color:
            line.append(MARK, tone(self, f"mark-{view.color}"))
            kept += len(MARK)
        line.append(shorten(view.name, max(1, min(_LONGEST_NAME, room - kept))))
        if view.production:
            line.append("  ")
            line.append(" PRODUCTION ", tone(self, "production"))
        line.append("  " + _state(view), "" if mood == "good" else tone(self, mood))
        if rights:
            line.append("  " + rights, tone(self, "quiet"))
        return line


def _state(view: ConnectionView) -> str:
    if view.link is Link.ALIVE:
        return formats.duration(view.latency_seconds or 0.0)
    since = whole_seconds(view.since_seconds)
    if view.link is Link.OPENING:
        return "connecting" if view.since_seconds < 1 else f"connecting {since}"
    if view.link is Link.SILENT:
        return f"no answer for {since}"
    words = view.link.value if view.ever_answered else "no connection"
    if view.link is Link.FAILING:
        words = view.link.value
    again = "now"
    if view.retry_in_seconds:
        again = f"in {whole_seconds(view.retry_in_seconds)}"
    return f"{words} {since}, again {again}"
