"""Lines of every screen: connections, running actions, keys; and the overview's summary."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from console import formats
from console.monitor.limits import Severity
from console.tui.jobs import ActionRun
from console.tui.text import (
    MARK,
    SEVERITY_STYLES,
    TextView,
    mark_style,
    plain,
    shorten,
    style_of,
    whole_seconds,
)
from console.tui.views import AllClear, ConnectionView, Link, link_text
from console.tui.widgets.queue_table import QueueTable
from console.views.doctor import FindingView

if TYPE_CHECKING:
    from textual.binding import Binding


class KeyFooter(Widget):
    """Like Textual's Footer, without a widget for each key: they would be laid out and styled again
    at each change of focus, at a third of the cost of the rest of a screen.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"key-footer--key", "key-footer--hover"}
    DEFAULT_CSS = """
    KeyFooter {
        dock: bottom; height: 1; background: $footer-background;
        color: $footer-description-foreground;
        .key-footer--key { color: $footer-key-foreground; text-style: bold; }
        .key-footer--hover { background: $block-hover-background; }
    }
    """
    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__()
        self._shown: tuple[tuple[Binding, bool, str], ...] = ()
        """Each with whether it is enabled, and its tooltip."""
        self._hovered: int | None = None

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self.bindings_changed)
        self.bindings_changed(self.screen)

    def on_unmount(self) -> None:
        self.screen.bindings_updated_signal.unsubscribe(self)

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Called at every sample on a screen that follows a database."""
        if screen.app.app_focus and screen is self.screen:
            # Of several keys for one action the first.
            by_action: dict[str, tuple[Binding, bool, str]] = {}
            for _, binding, enabled, tooltip in screen.active_bindings.values():
                if binding.show:
                    by_action.setdefault(binding.action, (binding, enabled, tooltip))
            shown = tuple(by_action.values())
            if shown != self._shown:
                self._shown = shown
                self.refresh()

    @property
    def labels(self) -> list[tuple[str, str]]:
        """Each key as displayed, and its description, with blanks."""
        shown = (one[0] for one in self._shown)
        return [(f" {self.app.get_key_display(one)} ", f"{one.description} ") for one in shown]

    def render_line(self, y: int) -> Strip:  # noqa: ARG002  # there is one
        base, segments = self.rich_style, list[Segment]()
        for index, ((key, description), (_, enabled, _)) in enumerate(
            zip(self.labels, self._shown, strict=True)
        ):
            style = base if enabled else base + Style(dim=True)
            if index == self._hovered:
                style += self.get_component_rich_style("key-footer--hover", partial=True)
            bold = self.get_component_rich_style("key-footer--key", partial=True)
            segments += [Segment(key, style + bold), Segment(description, style)]
        return Strip(segments).adjust_cell_length(self.size.width, base)

    def _at(self, x: int) -> int | None:
        end = 0
        for index, (key, description) in enumerate(self.labels):
            end += cell_len(key) + cell_len(description)
            if x < end:
                return index
        return None

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if (index := self._at(event.x)) is not None:
            binding, enabled, _ = self._shown[index]
            if enabled:
                self.app.simulate_key(binding.key)
            else:
                self.app.bell()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        self._hover(self._at(event.x))

    def on_leave(self) -> None:
        self._hover(None)

    def _hover(self, index: int | None) -> None:
        if index != self._hovered:
            self._hovered = index
            self.tooltip = None if index is None else self._shown[index][2] or None
            self.refresh()


class BackgroundLine(TextView):
    """Running actions and their progress; else what is not recorded, or what is replayed. Hidden
    if there is nothing to show."""

    DEFAULT_CSS: ClassVar[str] = "BackgroundLine { height: 1; padding: 0 1; display: none; }"

    def draw(self, running: Sequence[ActionRun], problem: str = "", played: str = "") -> None:
        """The number of runs and the newest one; else the problem or the replay."""
        shown = bool(running or problem or played)
        if self.display != shown:
            self.display = shown
        if not running:
            room = max(10, self.app.size.width - 2)
            words = f"! {problem}" if problem else played
            self.set_text(
                Text(shorten(words, room), style_of(self, "warning" if problem else "strong"))
            )
            return
        newest = running[-1]
        line = Text("▶ ", style_of(self, "strong"))
        more = f"{len(running)} actions are running here; " if len(running) > 1 else ""
        hint = "   b shows them"
        room = max(10, self.app.size.width - 4 - len(hint))
        failed = newest.error is not None
        line.append(
            shorten(f"{more}{newest.summary}", room), style_of(self, "critical" if failed else "")
        )
        line.append(hint, style_of(self, "quiet"))
        self.set_text(line)


_MARKS = {Link.OPENING: "○", Link.ALIVE: "●", Link.SILENT: "!", Link.UNRECORDED: "○"}
_LONGEST_NAME = 32


class ConnectionLines(TextView):
    """A line per connection; the last of `most` lines summarizes the rest."""

    def draw(
        self, views: Sequence[ConnectionView], right: str, most: int, first: str | None = None
    ) -> None:
        """`right`: the end of the first line. `first`: show this connection first, and only one
        line for each."""
        if not views:
            self.set_text(Text())
            return
        width = max(20, self.app.size.width - 2)
        worst_first = sorted(views, key=lambda view: (view.name != first, -view.level))
        shown = list(views) if len(views) <= most else worst_first[: most - 1]
        corner = Text("  " + right, style_of(self, "quiet"))
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
        self.set_text(Text("\n").join(lines))

    def _rest(self, views: Sequence[ConnectionView]) -> Text:
        """The state of the others, in one line."""
        bad = sum(view.level > Severity.NOTE for view in views)
        opening = sum(view.link is Link.OPENING for view in views)
        parts = [f"{bad} of them do not answer"] * bool(bad)
        parts += [f"{opening} of them still connecting"] * bool(opening)
        parts += ["all of them answer"] * (not parts)
        parts += ["PRODUCTION among them"] * any(view.production for view in views)
        return Text(f"+ {len(views)} more connections, {', '.join(parts)}", style_of(self, "quiet"))

    def _lines(self, view: ConnectionView, room: int) -> list[Text]:
        """An error, what the server is, and who enforces the rights, get lines of their own if
        there is no room; the rights themselves are never cut off."""
        server, rights = plain(view.server), view.rights
        word = rights.partition(" ")[0].rstrip(",;")
        line, below = self._line(view, room, server, rights), [view.why]
        if line.cell_len > room:
            line, below = self._line(view, room, rights), [server, view.why]
        if line.cell_len > room and word != rights:
            line, below = self._line(view, room, word), [server, rights, view.why]
        below = [one for one in below if one]
        if len(below) == 1 and line.cell_len + 2 + cell_len(below[0]) <= room:
            return [line.append(f"  {below[0]}", style_of(self, "quiet"))]
        return [line, *(Text(f"  {text}", style_of(self, "quiet")) for text in below)]

    def _line(self, view: ConnectionView, room: int, *facts: str) -> Text:
        style = SEVERITY_STYLES.get(view.level, "good")
        if view.link in {Link.OPENING, Link.UNRECORDED}:
            style = "quiet"
        line = Text(no_wrap=True)
        line.append(_MARKS.get(view.link, "✖") + " ", style_of(self, style))
        # PRODUCTION is never cut off.
        reserved = len("●    PRODUCTION  " if view.production else "●  ")
        standby = plain(view.standby_words)
        reserved += cell_len(standby)
        if view.color:
            line.append(MARK, style_of(self, mark_style(view.color)))
            reserved += len(MARK)
        line.append(shorten(view.name, max(1, min(_LONGEST_NAME, room - reserved))))
        if view.production:
            line.append("  ")
            line.append(" PRODUCTION ", style_of(self, "production"))
        if standby:
            current = view.standby is not None and view.standby.current
            line.append(f"  {standby}", style_of(self, "strong" if current else "warning"))
        alive = view.link is Link.ALIVE
        state = formats.duration(view.latency_seconds or 0.0) if alive else link_text(view)
        line.append("  " + state, "" if style == "good" else style_of(self, style))
        for fact in filter(None, facts):
            line.append("  " + fact, style_of(self, "quiet"))
        return line


@dataclass(frozen=True)
class SummaryFacts:
    """The input of the summary, besides the table."""

    findings: Sequence[FindingView]
    all_clear: AllClear
    out_of_sight: int = 0
    """Findings out of view; Tab shows them."""
    paused_seconds: float | None = None
    hint: str = ""


class Summary(TextView):
    """Counts of findings and queues; `all clear` only after a complete examination."""

    def draw(self, table: QueueTable, shown: int, facts: SummaryFacts) -> None:
        """`shown`: how many queues match the filter."""
        line = Text(no_wrap=True)
        if facts.paused_seconds is not None:
            line.append(f" FROZEN {whole_seconds(facts.paused_seconds)} ", style_of(self, "paused"))
            line.append("  ")
        if facts.hint:
            line.append(f"{plain(facts.hint)}   ", style_of(self, "strong"))
        end = self._table_text(table, shown)
        room = max(20, self.app.size.width - 2) - line.cell_len - end.cell_len
        self._append_findings(line, facts, room, any_queues=bool(table.views))
        line.append_text(end)
        self.set_text(line)

    def _append_findings(
        self, line: Text, facts: SummaryFacts, room: int, *, any_queues: bool
    ) -> None:
        if not facts.findings:
            if any_queues and facts.all_clear.text:
                style = "good" if facts.all_clear.clear else "quiet"
                line.append(shorten(facts.all_clear.text, room - 3), style_of(self, style))
                line.append("   ")
            return
        start = line.cell_len
        line.append("FINDINGS  ", style_of(self, "quiet"))
        levels = Counter(view.level for view in facts.findings if view.is_problem)
        if critical := levels[Severity.CRITICAL]:
            line.append(f"✖ {critical} critical", style_of(self, "critical"))
            line.append("  ")
        if warnings := levels[Severity.WARNING]:
            words = f"! {formats.numbered(warnings, 'warning')}"
            line.append(words, style_of(self, "warning"))
            line.append("  ")
        if facts.out_of_sight:
            line.append(f"Tab ↓{facts.out_of_sight}", style_of(self, "strong"))
            line.append("  ")
        line.append(" ")
        if facts.all_clear.blind:
            left = room - (line.cell_len - start)
            line.append(shorten(facts.all_clear.text, max(20, left - 3)), style_of(self, "warning"))
            line.append("   ")

    def _table_text(self, table: QueueTable, shown: int) -> Text:
        line = Text(no_wrap=True)
        if stale := sum(view.stale_seconds is not None for view in table.views):
            line.append(f"{stale} stale", style_of(self, "stale"))
            line.append("   ")
        total = len(table.views)
        if table.filter:
            words = f"{shown} of {total} match {plain(table.filter.text)}"
            line.append(words, style_of(self, "strong"))
        elif total:
            line.append(formats.numbered(total, "queue"))
        if total:
            arrow = "▼" if table.descending else "▲"
            line.append(f"   by {table.sort_column.sort_label} {arrow}", style_of(self, "quiet"))
        return line
