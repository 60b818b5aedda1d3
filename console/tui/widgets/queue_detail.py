"""The queue under the cursor in words: its whole name, what is wrong, and what has no column."""

from rich.text import Text

from console import formats
from console.monitor import QueueSnapshot
from console.tui.board import QueueView
from console.tui.text import figure, first_line, plain, whole_seconds
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words

_FIGURES = (
    ("push_per_second", "push/s"),
    ("pop_per_second", "pop/s"),
    ("claimed", "claimed"),
    ("scheduled", "scheduled"),
    ("done", "done"),
)


class QueueDetail(Words):
    """Two lines, whatever is in them."""

    def draw(self, view: QueueView | None) -> None:
        """Say it of this queue."""
        if view is None:
            self.say(Text())
            return
        width = max(20, self.app.size.width - 2)
        lines = [self._verdict(view), self._figures(view.snapshot)]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        self.say(Text("\n").join(lines))

    def _verdict(self, view: QueueView) -> Text:
        snapshot = view.snapshot
        line = Text(no_wrap=True)
        line.append(plain(f"{snapshot.schema}.{snapshot.queue}"), tone(self, "strong"))
        line.append(f"  {snapshot.design}", tone(self, "quiet"))
        if view.place:
            line.append(f"  on {view.place}", tone(self, "quiet"))
        if view.stale_seconds is not None:
            why = "cannot be reached" if view.unreachable else "no answer"
            since = whole_seconds(view.stale_seconds)
            line.append(f"  {why}, figures are {since} old", tone(self, "critical"))
        for acting in view.snapshot.acting:
            line.append(f"  {plain(acting.words)}", tone(self, "strong"))
        mood = {0: "quiet", 1: "warning", 2: "critical"}[view.health.level]
        words = ", ".join(map(first_line, view.health.reasons))
        if not words and view.stale_seconds is None:
            words = "nothing wrong in the figures"
        line.append(f"  {words}", tone(self, mood))
        return line

    def _figures(self, snapshot: QueueSnapshot) -> Text:
        """What the narrow table leaves out, and what never has a column."""
        line = Text(no_wrap=True)
        for name, words in _FIGURES:
            text = figure(snapshot, name)
            if text != formats.NOT_APPLICABLE:
                line.append(f"{text} {words}  ", tone(self, "quiet"))
        if snapshot.capacity is not None:
            used = figure(snapshot, "gap")
            line.append(f"{used} of {snapshot.capacity:,} slots", tone(self, "quiet"))
        return line
