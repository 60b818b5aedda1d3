"""The queue under the cursor in words: its whole name, what is wrong, and what has no column."""

from rich.text import Text

from console import formats
from console.tui.board import QueueView
from console.tui.findings import FindingView
from console.tui.health import Level
from console.tui.text import figure, first_line, plain, whole_seconds
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words

_TONES = {Level.OK: "quiet", Level.WARNING: "warning", Level.CRITICAL: "critical"}
_MANY_LINES = 36
_FIGURES = (
    ("push_per_second", "push/s"),
    ("pop_per_second", "pop/s"),
    ("claimed", "claimed"),
    ("scheduled", "scheduled"),
    ("done", "done"),
)


class QueueDetail(Words):
    """Two lines, or four on a large screen, whatever is in them."""

    def draw(self, view: QueueView | None) -> None:
        """Say it of this queue."""
        if view is None:
            self.say(Text())
            return
        width = max(20, self.app.size.width - 2)
        lines = [self._verdict(view), self._figures(view)]
        if self.app.size.height >= _MANY_LINES:
            gravest = next((one for one in view.findings if one.finding is not None), None)
            lines += [self._why(gravest), self._more_of(gravest)]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        self.say(Text("\n").join(lines))

    def draw_finding(self, view: FindingView | None) -> None:
        """Say it of this finding: the whole line, and what mends it or why it is so."""
        if view is None:
            self.say(Text())
            return
        width = max(20, self.app.size.width - 2)
        head = Text(no_wrap=True)
        head.append(view.label, tone(self, "strong"))
        head.append(f"  {view.code}", tone(self, "quiet"))
        if view.place:
            head.append(f"  on {view.place}", tone(self, "quiet"))
        head.append(f"  {view.summary}", tone(self, _TONES[view.level]))
        lines = [head, self._more_of(view, "Enter: ")]
        if self.app.size.height >= _MANY_LINES:
            lines = [head, self._why(view), *lines[1:], Text()]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        self.say(Text("\n").join(lines))

    def _more_of(self, view: FindingView | None, key: str = "mended by: ") -> Text:
        """What mends it; else what comes of it."""
        if view is None or view.finding is None:
            return Text()
        if view.mends:
            return Text(key, tone(self, "quiet")).append(view.mends, tone(self, "strong"))
        return Text(first_line(view.finding.consequence), tone(self, "quiet"))

    def _why(self, view: FindingView | None) -> Text:
        why = "" if view is None or view.finding is None else view.finding.cause
        return Text(first_line(why), tone(self, "quiet"))

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
        found = [one for one in view.findings if one.level > Level.OK]
        words = ", ".join(one.summary for one in found)
        if not words and view.stale_seconds is None:
            clear = view.diagnosis is not None and view.diagnosis.healthy
            words = "all clear" if clear else "nothing wrong in the figures"
        mood = _TONES[max((one.level for one in found), default=Level.OK)]
        line.append(f"  {words}", tone(self, mood))
        if view.diagnosis is not None and view.diagnosis.unseen:
            unseen = first_line(view.diagnosis.unseen[0])
            line.append(f"  not looked at: {unseen}", tone(self, "quiet"))
        return line

    def _figures(self, view: QueueView) -> Text:
        """What the narrow table leaves out, and what never has a column."""
        line, snapshot = Text(no_wrap=True), view.snapshot
        for name, words in _FIGURES:
            text = figure(snapshot, name)
            if text != formats.NOT_APPLICABLE:
                line.append(f"{text} {words}  ", tone(self, "quiet"))
        if snapshot.capacity is not None:
            used = figure(snapshot, "gap")
            line.append(f"{used} of {snapshot.capacity:,} slots  ", tone(self, "quiet"))
        if view.examined_seconds is not None:
            ago = whole_seconds(view.examined_seconds)
            line.append(f"the doctor looked {ago} ago", tone(self, "quiet"))
        return line
