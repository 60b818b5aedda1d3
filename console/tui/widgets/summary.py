"""The lines of every screen: connections, what runs here; on the overview how much is wrong."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text

from console import formats
from console.monitor.limits import Severity
from console.tui.findings import FindingView
from console.tui.jobs import Running
from console.tui.text import (
    MARK,
    SEVERITY_TONES,
    Words,
    color_tone,
    plain,
    shorten,
    tone,
    whole_seconds,
)
from console.tui.views import AllClear, ConnectionView, Link, link_words
from console.tui.widgets.queue_table import QueueTable

# One line at the bottom of every screen: what runs here, and how far it is; else what is not
# recorded, or what is replayed.


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
        more = f"{len(running)} actions are running here; " if len(running) > 1 else ""
        hint = "   b shows them"
        room = max(10, self.app.size.width - 4 - len(hint))
        failed = newest.error is not None
        line.append(
            shorten(f"{more}{newest.words}", room), tone(self, "critical" if failed else "")
        )
        line.append(hint, tone(self, "quiet"))
        self.say(line)


_MARKS = {Link.OPENING: "○", Link.ALIVE: "●", Link.SILENT: "!", Link.UNRECORDED: "○"}
_LONGEST_NAME = 32


class ConnectionLines(Words):
    """At most `most` lines; if there are more connections, the last line counts the others."""

    def draw(
        self, views: Sequence[ConnectionView], right: str, most: int, first: str | None = None
    ) -> None:
        """`right` is written at the end of the first line: the interval and the time. `first`: of
        very many the one that matters here, if any; of each there is no more than a line."""
        if not views:
            self.say(Text())
            return
        width = max(20, self.app.size.width - 2)
        worst_first = sorted(views, key=lambda view: (view.name != first, -view.level))
        shown = list(views) if len(views) <= most else worst_first[: most - 1]
        corner = Text("  " + right, tone(self, "quiet"))
        lines: list[Text] = []
        for view in shown:
            room = width - (0 if lines else cell_len(corner.plain))
            lines += self._lines(view, room)[: None if first is None else 1]
        if len(views) > len(shown):
            lines.append(self._rest(worst_first[most - 1 :]))
        lines[0].truncate(width - cell_len(corner.plain), overflow="ellipsis", pad=True)
        lines[0].append_text(corner)
        for line in lines[1:]:
            line.truncate(width, overflow="ellipsis")
        self.say(Text("\n").join(lines))

    def _rest(self, views: Sequence[ConnectionView]) -> Text:
        """How the others are, in one line."""
        bad = sum(view.level > Severity.NOTE for view in views)
        opening = sum(view.link is Link.OPENING for view in views)
        told = [f"{bad} of them do not answer"] * bool(bad)
        told += [f"{opening} of them still connecting"] * bool(opening)
        told += ["all of them answer"] * (not told)
        told += ["PRODUCTION among them"] * any(view.production for view in views)
        return Text(f"+ {len(views)} more connections, {', '.join(told)}", tone(self, "quiet"))

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
        mood = SEVERITY_TONES.get(view.level, "good")
        if view.link in {Link.OPENING, Link.UNRECORDED}:
            mood = "quiet"
        line = Text(no_wrap=True)
        line.append(_MARKS.get(view.link, "✖") + " ", tone(self, mood))
        # However long the name and small the screen: PRODUCTION is never cut off.
        kept = len("●    PRODUCTION  " if view.production else "●  ")
        if view.color:
            line.append(MARK, tone(self, color_tone(view.color)))
            kept += len(MARK)
        line.append(shorten(view.name, max(1, min(_LONGEST_NAME, room - kept))))
        if view.production:
            line.append("  ")
            line.append(" PRODUCTION ", tone(self, "production"))
        alive = view.link is Link.ALIVE
        state = formats.duration(view.latency_seconds or 0.0) if alive else link_words(view)
        line.append("  " + state, "" if mood == "good" else tone(self, mood))
        if rights:
            line.append("  " + rights, tone(self, "quiet"))
        return line


@dataclass(frozen=True)
class SummaryFacts:
    """What the line is made from, besides the table."""

    findings: Sequence[FindingView]
    all_clear: AllClear
    out_of_sight: int = 0
    """Findings that have to be scrolled to: Tab shows them."""
    paused_seconds: float | None = None
    hint: str = ""


class Summary(Words):
    """The gravest first; `all clear` only where everything was examined just now."""

    def draw(self, table: QueueTable, shown: int, said: SummaryFacts) -> None:
        """Say it; `shown`: how many queues the table has after its filter."""
        line = Text(no_wrap=True)
        if said.paused_seconds is not None:
            line.append(f" PAUSED {whole_seconds(said.paused_seconds)} ", tone(self, "paused"))
            line.append("  ")
        if said.hint:
            line.append(f"{plain(said.hint)}   ", tone(self, "strong"))
        end = self._table_words(table, shown)
        room = max(20, self.app.size.width - 2) - line.cell_len - end.cell_len
        self._say_findings(line, said, bool(table.views), room)
        line.append_text(end)
        self.say(line)

    def _say_findings(self, line: Text, said: SummaryFacts, any_queues: bool, room: int) -> None:  # noqa: FBT001
        if not said.findings:
            if any_queues and said.all_clear.words:
                mood = "good" if said.all_clear.clear else "quiet"
                line.append(shorten(said.all_clear.words, room - 3), tone(self, mood))
                line.append("   ")
            return
        start = line.cell_len
        line.append("FINDINGS  ", tone(self, "quiet"))
        levels = Counter(view.level for view in said.findings if view.grave)
        if critical := levels[Severity.CRITICAL]:
            line.append(f"✖ {critical} critical", tone(self, "critical"))
            line.append("  ")
        if warnings := levels[Severity.WARNING]:
            words = f"! {formats.numbered(warnings, 'warning')}"
            line.append(words, tone(self, "warning"))
            line.append("  ")
        if said.out_of_sight:
            line.append(f"Tab ↓{said.out_of_sight}", tone(self, "strong"))
            line.append("  ")
        line.append(" ")
        if said.all_clear.blind:
            left = room - (line.cell_len - start)
            line.append(shorten(said.all_clear.words, max(20, left - 3)), tone(self, "warning"))
            line.append("   ")

    def _table_words(self, table: QueueTable, shown: int) -> Text:
        line = Text(no_wrap=True)
        if stale := sum(view.stale_seconds is not None for view in table.views):
            line.append(f"{stale} stale", tone(self, "stale"))
            line.append("   ")
        total = len(table.views)
        if table.filter:
            words = f"{shown} of {total} match {plain(table.filter.text)}"
            line.append(words, tone(self, "strong"))
        elif total:
            line.append(formats.numbered(total, "queue"))
        if total:
            arrow = "▼" if table.descending else "▲"
            line.append(f"   by {table.sort_column.words} {arrow}", tone(self, "quiet"))
        return line
