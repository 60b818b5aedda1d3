"""The first screen: every connection, what is wrong, and every queue of all of them, live."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static

from console.monitor.saved import MARK
from console.tui.board import Key, QueueView
from console.tui.desk import Desk
from console.tui.dialogs.command import show_twin
from console.tui.filters import expanded, parse
from console.tui.findings import FindingView
from console.tui.health import Level
from console.tui.screens.live import LiveScreen
from console.tui.text import plain
from console.tui.widgets.findings_table import FindingsTable
from console.tui.widgets.keyed_table import KeyedTable
from console.tui.widgets.queue_detail import QueueDetail
from console.tui.widgets.queue_table import QueueTable
from console.tui.widgets.ring_slots import RingSlots
from console.tui.widgets.summary import Said, Summary
from console.tui.widgets.words import Words

_PRIORITY = {"filter", "keep_filter", "clear_filter"}
_NOT_WHILE_TYPING = {
    *("open", "actions", "examine", "examine_all", "waits", "sort", "reverse", "group"),
    *("audit", "twin", "install", "connections", "pause", "look_now", "interval", "zone", "out"),
}
_HINT_SECONDS = 3.0
_FEW_LINES = 30
_MANY_LINES = 36
_FEWEST_FINDINGS = 4
_SHRINKS_AFTER_SECONDS = 20.0


class OverviewScreen(LiveScreen):
    """Draws what the board knows. It never asks a database and changes nothing."""

    # Keys that move the focus have priority: what is typed right after them goes the new way.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/", priority=True, tooltip="filter"),
        Binding("enter", "keep_filter", "keep it", priority=True),
        Binding("escape", "clear_filter", "all", priority=True),
        Binding("escape,q", "out", "out", show=False, tooltip="one level out; never quits"),
        Binding("enter", "open", "open", tooltip="open the queue, or the finding"),
        Binding("a", "actions", "actions", tooltip="what can be done with the queue"),
        Binding("d", "examine", "doctor", tooltip="let the doctor look at the queue now"),
        Binding("D", "examine_all", "doctor", show=False, tooltip="let him look at all queues now"),
        Binding("w", "waits", "waits", show=False, tooltip="what the server's sessions wait for"),
        Binding("s", "sort", "sort", show=False, tooltip="sort by the next column"),
        Binding("S", "reverse", "reverse", show=False, tooltip="turn the order round"),
        Binding(
            "v", "group", "group", show=False, tooltip="the queues of each connection together"
        ),
        Binding("A", "audit", "audit", show=False, tooltip="who did what on the connection"),
        Binding("P", "runs", "runs", show=False, tooltip="the runs of the pipeline"),
        Binding("B", "bench", "bench", show=False, tooltip="how fast each design is on the server"),
        Binding("o", "twin", "command", show=False, tooltip="the command line that shows the same"),
        Binding("i", "install", "install", show=False, tooltip="a new queue on the connection"),
        Binding("c", "connections", "connections", show=False, tooltip="the connections"),
    ]

    def __init__(self, desk: Desk, *, banner: str = "") -> None:
        super().__init__(desk)
        self._banner = banner
        self._hint = ""
        self._hint_until = 0.0
        self._findings: Sequence[FindingView] = ()
        self._finding_lines = 0
        self._fewer_since: float | None = None

    def body(self) -> ComposeResult:
        """From the top: what is wrong in all, the queues, the one under the cursor."""
        if self._banner:
            yield Static(Text(plain(self._banner)), id="banner")
        yield Summary(id="summary")
        yield FindingsTable(id="findings")
        yield QueueTable()
        yield Words(id="empty")
        yield RingSlots(self.desk)
        yield QueueDetail(id="detail")
        yield Input(id="filter", placeholder="name or design, field:value as in errors:>0, @SAVED")

    def on_mount(self) -> None:
        """The table has the keys."""
        for hidden in ("#filter", "#empty", "#findings", "#slots"):
            self.query_one(hidden).display = False
        self.query_one(FindingsTable).stays_on_top = True
        self.query_one(QueueTable).focus()
        super().on_mount()

    # What is drawn.

    def draw_body(self, now: float, *, paused: bool) -> None:
        """The tables, and the words about them."""
        if not paused:
            self.query_one(QueueTable).draw(self.desk.board.queues(now))
            self._findings = self.desk.board.findings(now)
        self._draw_findings(now)
        self._draw_words(now)

    def _draw_findings(self, now: float) -> None:
        table = self.query_one(FindingsTable)
        table.draw(self._findings, self.app.size.width - 1)
        lines = self._lines_for(len(self._findings), now)
        if lines != self._finding_lines:
            self._finding_lines = lines
            table.styles.height = lines
        if table.display != bool(lines):
            table.display = bool(lines)
            if not lines and table.has_focus:
                self.set_focus(self.query_one(QueueTable))
        # A line between the two tables, where there is one to spare.
        table.styles.margin = (0, 0, int(self.app.size.height > _FEW_LINES), 0)

    def _lines_for(self, found: int, now: float) -> int:
        """The panel grows at once and shrinks late: the queues below shall not jump about."""
        height = self.app.size.height
        most = _FEWEST_FINDINGS if height < _FEW_LINES else height // 5
        most = min(most, max(1, height // 6))  # a tiny terminal has queues too
        wanted = min(found, most)
        if wanted >= self._finding_lines or self._finding_lines > most or not found:
            self._fewer_since = None
            return wanted
        if self._fewer_since is None:
            self._fewer_since = now
        if now - self._fewer_since < _SHRINKS_AFTER_SECONDS:
            return self._finding_lines
        self._fewer_since = None
        return wanted

    def _draw_words(self, now: float) -> None:
        table = self.query_one(QueueTable)
        shown = table.keys
        said = Said(
            self._findings,
            self.desk.board.calm(now),
            max(0, len(self._findings) - self._finding_lines),
            None if self.paused_at is None else now - self.paused_at,
            self._hint if now < self._hint_until else "",
        )
        self.query_one(Summary).draw(table, table.count, said)
        self._draw_detail()
        self.query_one(RingSlots).follow(table.view, table.views)
        empty = self.query_one("#empty", Words)
        empty.say(Text("" if shown else self._why_empty(table.views, now)))
        if empty.display == bool(shown):
            empty.display = not shown
            table.set_class(not shown, "-empty")

    def _draw_detail(self) -> None:
        detail = self.query_one(QueueDetail)
        detail.set_class(self.app.size.height >= _MANY_LINES, "-tall")
        findings = self.query_one(FindingsTable)
        if findings.has_focus and findings.view is not None:
            detail.draw_finding(findings.view)
        else:
            detail.draw(self.query_one(QueueTable).view)

    def _why_empty(self, views: Sequence[QueueView], now: float) -> str:
        table = self.query_one(QueueTable)
        if views:
            text, known = table.filter.text, self.desk.saved.queues
            words = f"No queue matches {text!r}. Escape shows all {len(views)} again."
            if text.startswith(MARK) and known:
                words += f"\n\nSaved filters: {', '.join(f'{MARK}{name}' for name in known)}"
            return words
        connections = self.desk.board.connections(now)
        if any(not view.ever_answered and view.level is Level.OK for view in connections):
            return "Looking for queues ..."
        if not any(view.ever_answered for view in connections):
            return "No database answers yet. The console goes on trying."
        return (
            "There are no queues here yet.\n\n"
            "Install one:           i, or dbq-console install fifo orders\n"
            "What there is:         dbq-console designs\n"
            "See it with traffic:   dbq-console demo"
        )

    def hint(self, words: str) -> None:
        """Say something for a moment."""
        self._hint, self._hint_until = words, self.desk.clock.monotonic() + _HINT_SECONDS
        self.draw()

    def on_keyed_table_cursor_moved(self) -> None:
        """The operator has moved to another queue, or to another finding."""
        self._draw_detail()
        table = self.query_one(QueueTable)
        self.query_one(RingSlots).follow(table.view, table.views)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """What is told below is of the table that has the keys."""
        # A terminal that loses the focus gives it to no other widget: then nothing changes.
        findings = self.query_one(FindingsTable)
        findings.stays_on_top = event.widget is not findings
        self._draw_detail()

    def on_keyed_table_title_clicked(self, event: KeyedTable.TitleClicked) -> None:
        """A click on a column's title sorts by it."""
        self.query_one(QueueTable).sort_by(event.column)
        self._draw_words(self.desk.clock.monotonic())

    # What the keys mean.

    @property
    def finding(self) -> FindingView | None:
        """The finding under the cursor, where the findings have the keys."""
        table = self.query_one(FindingsTable)
        return table.view if table.has_focus else None

    @property
    def filter_line(self) -> str:
        """What the queues are filtered by, in words of its own; empty: by nothing."""
        return expanded(self.query_one(QueueTable).filter.text, self.desk.saved.queues)

    @property
    def queue_key(self) -> Key | None:
        """The queue that a key would be about."""
        finding = self.finding
        return self.query_one(QueueTable).queue_key if finding is None else finding.queue_key

    @property
    def connection(self) -> str | None:
        """The connection that a key would be about."""
        finding = self.finding
        if finding is not None:
            return finding.connection
        first = next(iter(self.desk.board.intervals), None)
        return self.query_one(QueueTable).connection or first

    def action_open(self) -> None:
        """The queue under the cursor, or the finding."""
        if (finding := self.finding) is not None:
            self.ways.open_finding(finding)
        elif (key := self.queue_key) is not None:
            self.ways.open_queue(key)

    def action_actions(self) -> None:
        """What can be done with the queue."""
        if (key := self.queue_key) is not None:
            self.ways.open_actions(key)
        else:
            self.hint("choose a queue first")

    def action_examine(self) -> None:
        """Let the doctor look at the queue now."""
        key = self.queue_key
        self.ways.examine(key)
        self.hint("the doctor looks at " + ("all queues" if key is None else key[2]))

    def action_examine_all(self) -> None:
        """Let the doctor look at all queues now."""
        self.ways.examine()
        self.hint("the doctor looks at all queues")

    def action_waits(self) -> None:
        """What the server's sessions wait for."""
        if (connection := self.connection) is not None:
            self.ways.open_waits(connection)

    def action_audit(self) -> None:
        """Who did what on the connection."""
        self.ways.open_audit(self.connection or "")

    def action_runs(self) -> None:
        """The runs of the pipeline on this machine."""
        self.ways.open_runs()

    def action_bench(self) -> None:
        """How fast each design is on the server."""
        if (connection := self.connection) is not None:
            self.ways.open_bench(connection)

    def action_twin(self) -> None:
        """The command line that shows the same, of one connection."""
        show_twin(self, self.desk.places.get(self.connection or ""), "status")

    def action_install(self) -> None:
        """A new queue on the connection."""
        if (connection := self.connection) is not None:
            self.ways.open_install(connection)

    def action_connections(self) -> None:
        """The connections."""
        self.ways.open_connections()

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.query_one(QueueTable).sort_next()
        self._draw_words(self.desk.clock.monotonic())

    def action_reverse(self) -> None:
        """Turn the order round."""
        self.query_one(QueueTable).reverse()
        self._draw_words(self.desk.clock.monotonic())

    def action_group(self) -> None:
        """The queues of each connection together, or all in one order."""
        self.query_one(QueueTable).group()
        self._draw_words(self.desk.clock.monotonic())

    def check_action(
        self,
        action: str,
        parameters: tuple[object, ...],  # noqa: ARG002  # Textual's signature
    ) -> bool | None:
        """While a filter is typed, all keys but its own two are letters."""
        if action not in _PRIORITY | _NOT_WHILE_TYPING or not self.is_mounted:
            return True
        typing = bool(self.query_one("#filter").display)
        if action == "clear_filter":
            return typing or bool(self.query_one(QueueTable).filter)
        return typing == (action == "keep_filter")

    def action_filter(self) -> None:
        """Open the filter line."""
        line = self.query_one("#filter", Input)
        line.display = True
        self.set_focus(line)  # at once; focus() would let the next keys go the old way
        self.refresh_bindings()

    def on_input_changed(self, event: Input.Changed) -> None:
        """The table follows every letter."""
        table = self.query_one(QueueTable)
        table.filter = parse(event.value, self.desk.saved.queues)
        table.draw()
        self._draw_words(self.desk.clock.monotonic())
        self.refresh_bindings()

    def action_keep_filter(self) -> None:
        """Go back to the table and leave the filter as it is."""
        self.set_focus(self.query_one(QueueTable))
        self.query_one("#filter").display = False
        self.refresh_bindings()

    def action_clear_filter(self) -> None:
        """Show all queues again."""
        self.query_one("#filter", Input).value = ""
        self.action_keep_filter()

    def action_out(self) -> None:
        """One level out: of the filter, if there is one. Never out of the console."""
        if self.query_one(QueueTable).filter:
            self.action_clear_filter()
        else:
            self.hint("Ctrl-Q quits")
