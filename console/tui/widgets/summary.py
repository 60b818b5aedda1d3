"""One line on all queues: how many are in what state, and what the table below shows of them."""

from collections import Counter

from rich.text import Text

from console.tui.health import Level
from console.tui.text import plain, whole_seconds
from console.tui.widgets.queue_table import QueueTable
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words


class Summary(Words):
    """Worst first; `all clear` only where every queue was seen just now."""

    def draw(
        self,
        table: QueueTable,
        shown: int,
        *,
        all_answer: bool,
        paused_seconds: float | None = None,
        hint: str = "",
    ) -> None:
        """Say it of the table's queues; `all_answer`: no connection is without an answer."""
        line = Text(no_wrap=True)
        if paused_seconds is not None:
            line.append(f" PAUSED {whole_seconds(paused_seconds)} ", tone(self, "paused"))
            line.append("  ")
        self._say_states(line, table, all_answer=all_answer)
        total = len(table.views)
        if table.filter:
            words = f"{shown} of {total} match {plain(table.filter.text)}"
            line.append(words, tone(self, "strong"))
        elif total:
            line.append(f"{total} queue{'s' * (total != 1)}")
        if total:
            arrow = "▼" if table.descending else "▲"
            line.append(f"   by {table.sort_column.words} {arrow}", tone(self, "quiet"))
        if hint:
            line.append(f"   {hint}", tone(self, "strong"))
        self.say(line)

    def _say_states(self, line: Text, table: QueueTable, *, all_answer: bool) -> None:
        levels = Counter(view.level for view in table.views)
        stale = sum(view.stale_seconds is not None for view in table.views)
        if critical := levels[Level.CRITICAL]:
            line.append(f"✖ {critical} critical", tone(self, "critical"))
            line.append("   ")
        if warnings := levels[Level.WARNING]:
            line.append(f"! {warnings} warning{'s' * (warnings > 1)}", tone(self, "warning"))
            line.append("   ")
        if table.views and all_answer and not critical and not warnings:
            line.append("all clear", tone(self, "good"))
            line.append("   ")
        if stale:
            line.append(f"{stale} stale", tone(self, "stale"))
            line.append("   ")
