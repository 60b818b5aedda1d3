"""One line on all: how much is wrong and how grave, and what the tables below show of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from console import formats
from console.tui.board import Calm
from console.tui.findings import FindingView
from console.tui.health import Level
from console.tui.text import plain, shorten, whole_seconds
from console.tui.widgets.queue_table import QueueTable
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words


@dataclass(frozen=True)
class Said:
    """What the line is made from, besides the table."""

    findings: Sequence[FindingView]
    calm: Calm
    out_of_sight: int = 0
    """Findings that the panel has no line for."""
    paused_seconds: float | None = None
    hint: str = ""


class Summary(Words):
    """The gravest first; `all clear` only where everything was looked at just now."""

    def draw(self, table: QueueTable, shown: int, said: Said) -> None:
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

    def _say_findings(self, line: Text, said: Said, any_queues: bool, room: int) -> None:  # noqa: FBT001
        if not said.findings:
            if any_queues and said.calm.words:
                mood = "good" if said.calm.clear else "quiet"
                line.append(shorten(said.calm.words, room - 3), tone(self, mood))
                line.append("   ")
            return
        start = line.cell_len
        line.append("FINDINGS  ", tone(self, "quiet"))
        levels = Counter(view.level for view in said.findings)
        if critical := levels[Level.CRITICAL]:
            line.append(f"✖ {critical} critical", tone(self, "critical"))
            line.append("  ")
        if warnings := levels[Level.WARNING]:
            words = f"! {formats.numbered(warnings, 'warning')}"
            line.append(words, tone(self, "warning"))
            line.append("  ")
        if said.out_of_sight:
            line.append(f"+{said.out_of_sight} more", tone(self, "strong"))
            line.append("  ")
        line.append(" ")
        if said.calm.blind:
            left = room - (line.cell_len - start)
            line.append(shorten(said.calm.words, max(20, left - 3)), tone(self, "warning"))
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
