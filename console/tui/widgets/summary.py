"""The lines of every screen: connections, what runs here, keys; on the overview what is wrong."""

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
from console.tui.findings import FindingView
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

if TYPE_CHECKING:
    from textual.binding import Binding


class KeyFooter(Widget):
    """As Textual's footer, which has a widget for each key: these were laid out, styled and painted
    again at each opening and each step of the focus, at a third of what the rest of a screen took.
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
        """Each with whether it works now, and what it does in more words."""
        self._hovered: int | None = None

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self.bindings_changed)
        self.bindings_changed(self.screen)

    def on_unmount(self) -> None:
        self.screen.bindings_updated_signal.unsubscribe(self)

    def bindings_changed(self, screen: Screen[object]) -> None:
        """A screen that follows a database asks for it at every sample."""
        if screen.app.app_focus and screen is self.screen:
            # Of several keys for one thing the first.
            by_action: dict[str, tuple[Binding, bool, str]] = {}
            for _, binding, works, tooltip in screen.active_bindings.values():
                if binding.show:
                    by_action.setdefault(binding.action, (binding, works, tooltip))
            shown = tuple(by_action.values())
            if shown != self._shown:
                self._shown = shown
                self.refresh()

    @property
    def labels(self) -> list[tuple[str, str]]:
        """Each key as it is shown, and what it does, with their blanks."""
        shown = (one[0] for one in self._shown)
        return [(f" {self.app.get_key_display(one)} ", f"{one.description} ") for one in shown]

    def render_line(self, y: int) -> Strip:  # noqa: ARG002  # there is one
        base, segments = self.rich_style, list[Segment]()
        for place, ((key, does), (_, works, _)) in enumerate(
            zip(self.labels, self._shown, strict=True)
        ):
            style = base if works else base + Style(dim=True)
            if place == self._hovered:
                style += self.get_component_rich_style("key-footer--hover", partial=True)
            bold = self.get_component_rich_style("key-footer--key", partial=True)
            segments += [Segment(key, style + bold), Segment(does, style)]
        return Strip(segments).adjust_cell_length(self.size.width, base)

    def _at(self, x: int) -> int | None:
        end = 0
        for place, (key, does) in enumerate(self.labels):
            end += cell_len(key) + cell_len(does)
            if x < end:
                return place
        return None

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if (place := self._at(event.x)) is not None:
            binding, works, _ = self._shown[place]
            if works:
                self.app.simulate_key(binding.key)
            else:
                self.app.bell()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        self._hover(self._at(event.x))

    def on_leave(self) -> None:
        self._hover(None)

    def _hover(self, place: int | None) -> None:
        if place != self._hovered:
            self._hovered = place
            self.tooltip = None if place is None else self._shown[place][2] or None
            self.refresh()


class BackgroundLine(TextView):
    """What runs here, and how far it is; else what is not recorded, or what is replayed. Not there
    at all while there is nothing to say."""

    DEFAULT_CSS: ClassVar[str] = "BackgroundLine { height: 1; padding: 0 1; display: none; }"

    def draw(self, running: Sequence[ActionRun], problem: str = "", played: str = "") -> None:
        """Show these; several are counted, and the newest is told. Else what went wrong."""
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
    """At most `most` lines; if there are more connections, the last line counts the others."""

    def draw(
        self, views: Sequence[ConnectionView], right: str, most: int, first: str | None = None
    ) -> None:
        """`right` is written at the end of the first line: the interval and the time. `first`: of
        very many the one that matters here, if any; of each there is no more than a line."""
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
        """How the others are, in one line."""
        bad = sum(view.level > Severity.NOTE for view in views)
        opening = sum(view.link is Link.OPENING for view in views)
        told = [f"{bad} of them do not answer"] * bool(bad)
        told += [f"{opening} of them still connecting"] * bool(opening)
        told += ["all of them answer"] * (not told)
        told += ["PRODUCTION among them"] * any(view.production for view in views)
        return Text(f"+ {len(views)} more connections, {', '.join(told)}", style_of(self, "quiet"))

    def _lines(self, view: ConnectionView, room: int) -> list[Text]:
        """What went wrong stands behind the rest if there is room, else on a line of its own.

        So does who enforces the rights; the rights themselves are never cut off for it.
        """
        line, below = self._line(view, room, view.rights), [view.why] if view.why else []
        if line.cell_len > room and " " in view.rights:
            line = self._line(view, room, view.rights.split()[0].rstrip(","))
            below.insert(0, view.rights)
        if len(below) == 1 and line.cell_len + 2 + cell_len(below[0]) <= room:
            return [line.append(f"  {below[0]}", style_of(self, "quiet"))]
        return [line, *(Text(f"  {text}", style_of(self, "quiet")) for text in below)]

    def _line(self, view: ConnectionView, room: int, rights: str) -> Text:
        style = SEVERITY_STYLES.get(view.level, "good")
        if view.link in {Link.OPENING, Link.UNRECORDED}:
            style = "quiet"
        line = Text(no_wrap=True)
        line.append(_MARKS.get(view.link, "✖") + " ", style_of(self, style))
        # However long the name and small the screen: PRODUCTION is never cut off.
        kept = len("●    PRODUCTION  " if view.production else "●  ")
        if view.color:
            line.append(MARK, style_of(self, mark_style(view.color)))
            kept += len(MARK)
        line.append(shorten(view.name, max(1, min(_LONGEST_NAME, room - kept))))
        if view.production:
            line.append("  ")
            line.append(" PRODUCTION ", style_of(self, "production"))
        alive = view.link is Link.ALIVE
        state = formats.duration(view.latency_seconds or 0.0) if alive else link_text(view)
        line.append("  " + state, "" if style == "good" else style_of(self, style))
        if rights:
            line.append("  " + rights, style_of(self, "quiet"))
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


class Summary(TextView):
    """The gravest first; `all clear` only where everything was examined just now."""

    def draw(self, table: QueueTable, shown: int, said: SummaryFacts) -> None:
        """Say it; `shown`: how many queues the table has after its filter."""
        line = Text(no_wrap=True)
        if said.paused_seconds is not None:
            line.append(f" PAUSED {whole_seconds(said.paused_seconds)} ", style_of(self, "paused"))
            line.append("  ")
        if said.hint:
            line.append(f"{plain(said.hint)}   ", style_of(self, "strong"))
        end = self._table_words(table, shown)
        room = max(20, self.app.size.width - 2) - line.cell_len - end.cell_len
        self._say_findings(line, said, bool(table.views), room)
        line.append_text(end)
        self.set_text(line)

    def _say_findings(self, line: Text, said: SummaryFacts, any_queues: bool, room: int) -> None:  # noqa: FBT001
        if not said.findings:
            if any_queues and said.all_clear.text:
                style = "good" if said.all_clear.clear else "quiet"
                line.append(shorten(said.all_clear.text, room - 3), style_of(self, style))
                line.append("   ")
            return
        start = line.cell_len
        line.append("FINDINGS  ", style_of(self, "quiet"))
        levels = Counter(view.level for view in said.findings if view.is_problem)
        if critical := levels[Severity.CRITICAL]:
            line.append(f"✖ {critical} critical", style_of(self, "critical"))
            line.append("  ")
        if warnings := levels[Severity.WARNING]:
            words = f"! {formats.numbered(warnings, 'warning')}"
            line.append(words, style_of(self, "warning"))
            line.append("  ")
        if said.out_of_sight:
            line.append(f"Tab ↓{said.out_of_sight}", style_of(self, "strong"))
            line.append("  ")
        line.append(" ")
        if said.all_clear.blind:
            left = room - (line.cell_len - start)
            line.append(shorten(said.all_clear.text, max(20, left - 3)), style_of(self, "warning"))
            line.append("   ")

    def _table_words(self, table: QueueTable, shown: int) -> Text:
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
