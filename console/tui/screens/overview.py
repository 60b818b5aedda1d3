"""The first screen: all connections, the findings, and every queue."""

import math
from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static

from console import features
from console.doctor.slot_map import SlotMap, read_slot_map
from console.errors import ConsoleError
from console.filters import MARK, line_of
from console.monitor.limits import Severity
from console.tui.context import Context
from console.tui.dialogs.dialog import show_equivalent_command
from console.tui.findings import QueueKey
from console.tui.screens.live import OUT, LiveScreen
from console.tui.tabs.findings import FindingsTable
from console.tui.tabs.tab import PacedQuery
from console.tui.text import TextView, first_line, plain, style_of
from console.tui.views import QueueView, expand_saved, parse
from console.tui.widgets.browser import Exporting, Filtered, filter_keys
from console.tui.widgets.keyed_table import KeyedTable
from console.tui.widgets.queue_detail import QueueDetail
from console.tui.widgets.queue_table import QueueTable
from console.tui.widgets.slot_map import SlotStrip
from console.tui.widgets.summary import Summary, SummaryFacts
from console.views.doctor import FindingView
from console.views.status import VIEW

KEYS = features.keys()
_HINT_SECONDS = 3.0
_FEW_LINES = 30
_MANY_LINES = 36
_FEWEST_FINDINGS = 4
_SHRINKS_AFTER_SECONDS = 20.0
_READING_SECONDS = 5.0
"""After a key or the mouse, for this long no row moves unless the operator moves it."""


_RING_SECONDS = 3.0
_LEAST_LINES = 36
_LEAST_COLUMNS = 100


_RingMap = tuple[QueueKey, SlotMap]


class RingSlots(SlotStrip):
    """Shown, and read, only on a screen that has room for it."""

    def __init__(self, context: Context) -> None:
        super().__init__(id="slots")
        self._app_context = context
        self._key: QueueKey | None = None
        self._read_key: QueueKey | None = None
        self._map: SlotMap | None = None
        self._why = ""
        self._fetch: PacedQuery[_RingMap] = PacedQuery(
            self, self.show_map, self._failed, context.clock.monotonic, _RING_SECONDS
        )

    def follow(self, under_cursor: QueueView | None, all_views: Sequence[QueueView]) -> None:
        """Show the ring under the cursor, else the one shown before, else the first."""
        size = self.app.size
        room = size.height >= _LEAST_LINES and size.width >= _LEAST_COLUMNS
        rings = {view.key: view for view in all_views if self._can_be_mapped(view)}
        if under_cursor is not None and under_cursor.key in rings:
            self._key = under_cursor.key
        elif self._key not in rings:
            self._key = next(iter(rings), None)
        view = rings.get(self._key) if self._key is not None and room else None
        self.display = view is not None
        if view is None:
            return
        self._load()
        self._show(view)

    def _can_be_mapped(self, view: QueueView) -> bool:
        return view.snapshot.capacity is not None and self._app_context.conn(view.key) is not None

    def _load(self) -> None:
        key = self._key
        if key is None or (key == self._read_key and not self._fetch.due):
            return
        conn = self._app_context.conn(key)
        if conn is None:
            return
        if key != self._read_key:
            self._map, self._why = None, ""
        self._read_key = key

        def work() -> _RingMap:
            return key, read_slot_map(conn.database, conn.find(*key[1:]))

        self._fetch.submit(work)

    def show_map(self, result: _RingMap) -> None:
        key, ring_map = result
        if key == self._key:
            self._map, self._why = ring_map, ""

    def _failed(self, error: ConsoleError) -> None:
        self._why = first_line(error.why or error.what)

    def _show(self, view: QueueView) -> None:
        label = f"slots of {view.label}  "
        if view.snapshot.capacity is not None:
            size = f"{view.snapshot.capacity:,}"
            by = "" if self._map is None else self._map.subscriber
            label = f"slots of {view.label} ({', '.join(filter(None, (size, by)))})  "
        if self._map is None or self._why:
            words = self._why and f"cannot be mapped now: {plain(self._why)}"
            self.set_text(Text(label + words + "\n", style_of(self, "quiet"), no_wrap=True))
            return
        now, width = self._map, max(20, self.app.size.width - 2)
        heads = (now.next_pop, now.next_push)
        self.draw(now.ranges, now.capacity, width, *heads, label=label)


class OverviewScreen(LiveScreen, Filtered, Exporting):
    """Shows what the store knows."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *filter_keys("filter"),
        OUT,
        Binding("enter", "open", "open", tooltip="open the queue, the finding; fold a connection"),
        Binding("a", "actions", "actions", tooltip="what can be done with the queue"),
        Binding("d", "examine", "doctor", tooltip="let the doctor examine the queue now"),
        Binding("D", "examine_all", "let the doctor examine all queues now", show=False),
        Binding("w", "waits", "what the server's sessions wait for", show=False),
        Binding("s", "sort", "sort by the next column", show=False),
        Binding("S", "reverse", "reverse sort", show=False),
        Binding("y", "copy", "copy the queue's name", show=False),
        Binding("E", "export", "write the queues that match to a CSV file", show=False),
        Binding("v", "group", "group queues by connection", show=False),
        Binding("z", "fold", "fold all groups and connections, or open them", show=False),
        Binding("A", "audit", "who did what on the connection", show=False),
        *(Binding(one.key, f"feature('{one.key}')", one.help, show=False) for one in KEYS),
        Binding("o", "equivalent", "the equivalent command line", show=False),
        Binding("i", "install", "install a queue on the connection", show=False),
        Binding("c", "connections", "the connections", show=False),
    ]

    def __init__(self, context: Context, banner: str = "", *, by_group: bool = False) -> None:
        super().__init__(context)
        self._banner = banner
        self._by_group = by_group
        self._hint = ""
        self._hint_until = 0.0
        self._findings: Sequence[FindingView] = ()
        self._finding_lines = 0
        self._fewer_since: float | None = None
        self._input_at = -math.inf
        """When the operator last used a key or the mouse."""

    def body(self) -> ComposeResult:
        if self._banner:
            yield Static(Text(plain(self._banner)), id="banner")
        yield Summary(id="summary")
        yield FindingsTable(id="findings")
        yield QueueTable(grouped=self._by_group)
        yield TextView(id="empty")
        yield RingSlots(self.context)
        yield QueueDetail(id="detail")
        yield Input(id="filter", placeholder="name or design, a term as in errors>0, @SAVED")

    def on_mount(self) -> None:
        for hidden in ("#filter", "#empty", "#findings", "#slots"):
            self.query_one(hidden).display = False
        self.query_one(FindingsTable).stays_on_top = True
        self.listed.focus()

    def draw_body(self, now: float, *, paused: bool) -> None:
        if not paused:
            store = self.context.store
            connections = dict(zip(store.intervals, store.connections(now), strict=True))
            keep = self._is_read(now)
            self.listed.show_queues(store.queues(now), connections, keep_order=keep)
            self._findings = store.findings(now)
        self._draw_findings(now)
        self._draw_texts(now)

    def _is_read(self, now: float) -> bool:
        return now - self._input_at < _READING_SECONDS

    def _note_input(self) -> None:
        self._input_at = self.context.clock.monotonic()

    on_mouse_down = on_mouse_scroll_down = on_mouse_scroll_up = _note_input

    def on_key(self, event: events.Key) -> None:  # noqa: ARG002  # Textual calls the base's, too
        self._note_input()

    def _draw_findings(self, now: float) -> None:
        table = self.query_one(FindingsTable)
        table.show_findings(self._findings, keep_order=table.has_focus and self._is_read(now))
        lines = self._lines_for(len(self._findings), now)
        if lines != self._finding_lines:
            self._finding_lines = lines
            table.styles.height = lines
        if table.display != bool(lines):
            table.display = bool(lines)
            if not lines and table.has_focus:
                self.set_focus(self.listed)
        # An empty line between the two tables, if there is room.
        table.styles.margin = (0, 0, int(self.app.size.height > _FEW_LINES), 0)

    def _lines_for(self, count: int, now: float) -> int:
        """At most a fifth of the screen and the lines that the queues leave empty.

        The panel grows unless the operator is reading, and shrinks late, so that the queues below
        do not jump about.
        """
        height = self.app.size.height
        queues = self.listed
        empty = queues.size.height - queues.HEADER_LINES - len(queues.keys)
        most = _FEWEST_FINDINGS if height < _FEW_LINES else height // 5
        most = min(most, max(1, height // 6))  # even a tiny terminal shows queues
        most = max(most, self._finding_lines + empty)
        lines = min(count, most)
        if lines > self._finding_lines and self._is_read(now):
            return self._finding_lines
        if lines >= self._finding_lines or self._finding_lines > most or not count:
            self._fewer_since = None
            return lines
        if self._fewer_since is None:
            self._fewer_since = now
        if now - self._fewer_since < _SHRINKS_AFTER_SECONDS:
            return self._finding_lines
        self._fewer_since = None
        return lines

    def _draw_texts(self, now: float) -> None:
        table = self.listed
        shown = table.keys
        facts = SummaryFacts(
            self._findings,
            self.context.store.all_clear(now),
            max(0, len(self._findings) - self._finding_lines),
            None if self.paused_at is None else now - self.paused_at,
            self._hint if now < self._hint_until else "",
        )
        self.query_one(Summary).draw(table, table.count, facts)
        self._draw_detail()
        empty = self.query_one("#empty", TextView)
        empty.set_text(Text("" if shown else self._why_empty(table.views, now)))
        if empty.display == bool(shown):
            empty.display = not shown
            table.set_class(not shown, "-empty")

    def _draw_detail(self) -> None:
        detail, table = self.query_one(QueueDetail), self.listed
        detail.set_class(self.app.size.height >= _MANY_LINES, "-tall")
        findings = self.query_one(FindingsTable)
        if findings.has_focus and findings.row is not None:
            detail.draw_finding(findings.row)
        elif table.group is not None:
            detail.draw_group(table.group)
        else:
            detail.draw(self._as_of_now(table.view))
        # No ring for a connection's own line: it has no particular one.
        self.query_one(RingSlots).follow(table.view, table.views if table.group is None else ())

    def _as_of_now(self, view: QueueView | None) -> QueueView | None:
        if view is None or self.paused_at is not None:
            return view
        return self.context.store.queue(view.key, self.context.clock.monotonic()) or view

    def _why_empty(self, views: Sequence[QueueView], now: float) -> str:
        table = self.listed
        if views:
            text, known = table.filter.text, self.context.saved.queues
            reason = f"No queue matches {text!r}. Escape shows all {len(views)} again."
            if table.filter.problem:
                reason += f"\n\nNot understood: {table.filter.problem}"
            if text.startswith(MARK) and known:
                reason += f"\n\nSaved filters: {', '.join(f'{MARK}{name}' for name in known)}"
            return reason
        connections = self.context.store.connections(now)
        if any(not view.ever_answered and view.level is Severity.OK for view in connections):
            return "Searching for queues ..."
        if not any(view.ever_answered for view in connections):
            return "No database answers yet. The console keeps trying."
        return (
            "There are no queues here yet.\n\n"
            "Install one:           i, or dbq-console install fifo orders\n"
            "The designs:           dbq-console designs\n"
            "See it with traffic:   dbq-console demo"
        )

    def hint(self, text: str) -> None:
        self._hint, self._hint_until = text, self.context.clock.monotonic() + _HINT_SECONDS
        self.draw()

    def on_keyed_table_cursor_moved(self) -> None:
        self._draw_detail()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        # Not when the terminal loses the focus: then no other widget gets it.
        findings = self.query_one(FindingsTable)
        findings.stays_on_top = event.widget is not findings
        self._draw_detail()

    def on_keyed_table_title_clicked(self, event: KeyedTable.TitleClicked) -> None:
        self.listed.sort_by(event.column)
        self._draw_texts(self.context.clock.monotonic())

    @property
    def finding(self) -> FindingView | None:
        table = self.query_one(FindingsTable)
        return table.row if table.has_focus else None

    @property
    def filter_line(self) -> str:
        """With saved filters expanded; empty: no filter."""
        return expand_saved(self.listed.filter.text, self.context.saved.queues)

    @property
    def queue_key(self) -> QueueKey | None:
        finding = self.finding
        return self.listed.queue_key if finding is None else finding.queue_key

    @property
    def about(self) -> str:
        """None in particular: the line is about the worst."""
        return ""

    @property
    def connection(self) -> str | None:
        finding = self.finding
        if finding is not None:
            return finding.connection
        table = self.listed
        if table.row is None:
            return next(iter(self.context.store.intervals), None)
        return table.row.connection

    def _chosen(self) -> str | None:
        """The connection, for an action that needs one."""
        if self.connection == "":
            self.hint("choose a connection first")
        return self.connection or None

    def action_open(self) -> None:
        if (finding := self.finding) is not None:
            self.navigator.open_finding(finding)
        elif (key := self.queue_key) is not None:
            self.navigator.open_queue(key)
        else:
            self.listed.toggle_fold()

    def action_actions(self) -> None:
        if (key := self.queue_key) is not None:
            self.navigator.open_actions(key)
        else:
            self.hint("choose a queue first")

    def action_examine(self) -> None:
        key = self.queue_key
        if key is None and self.listed.group is not None:
            self.hint("choose a queue first; D: all queues of all connections")
            return
        self.navigator.examine(key)
        self.hint("the doctor examines " + ("all queues" if key is None else key[2]))

    def action_examine_all(self) -> None:
        self.navigator.examine()
        self.hint("the doctor is examining all queues")

    def action_waits(self) -> None:
        if (connection := self._chosen()) is not None:
            self.navigator.open_waits(connection)

    def action_audit(self) -> None:
        self.navigator.open_audit(self.connection or "")

    def action_feature(self, key: str) -> None:
        """A key of a feature."""
        of = next(one for one in KEYS if one.key == key)
        if not of.about_connection:
            self.navigator.run_command(of.command)
        elif (connection := self._chosen()) is not None:
            self.navigator.run_command(line_of([of.command, connection]))

    def action_equivalent(self) -> None:
        if (connection := self._chosen()) is not None:
            show_equivalent_command(self, self.context.connections.get(connection), "status")

    def action_install(self) -> None:
        if (connection := self._chosen()) is not None:
            self.navigator.open_install(connection)

    def action_connections(self) -> None:
        self.navigator.open_connections()

    def action_sort(self) -> None:
        self.listed.sort_next()
        self._draw_texts(self.context.clock.monotonic())

    def action_reverse(self) -> None:
        self.listed.reverse()
        self._draw_texts(self.context.clock.monotonic())

    def action_copy(self) -> None:
        if (key := self.queue_key) is not None:
            self.app.copy_to_clipboard(f"{key[1]}.{key[2]}")
            self.hint(f"copied {plain(key[2])}")

    def action_export(self) -> None:
        """Also those that are folded."""
        rows = [view.snapshot for view in self.listed.matching]
        self.export(VIEW.name, rows, VIEW.columns(self.context.display))

    def action_group(self) -> None:
        self.listed.toggle_grouping()
        self._draw_texts(self.context.clock.monotonic())

    def action_fold(self) -> None:
        self.listed.fold_all()
        self._draw_texts(self.context.clock.monotonic())

    @property
    def listed(self) -> QueueTable:
        return self.query_one(QueueTable)

    @property
    def is_filtered(self) -> bool:
        return bool(self.listed.filter)

    def on_input_changed(self, event: Input.Changed) -> None:
        table = self.listed
        table.filter = parse(event.value, self.context.saved.queues)
        table.show_queues()
        self._draw_texts(self.context.clock.monotonic())
        self.refresh_bindings()

    def action_out(self) -> None:
        """Clear the filter, if there is one; never leave the console."""
        if self.is_filtered:
            self.action_clear_filter()
        else:
            self.hint("Ctrl-Q quits")
