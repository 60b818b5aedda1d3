"""Who waits for what and for whom: the tab of a queue, the screen of a connection, their pane."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from console import catalog
from console.errors import ConsoleError
from console.formats import clock, duration, numbered
from console.monitor import waits as labels
from console.monitor.activity import Activity, Key, Session
from console.monitor.wait_graph import Node
from console.monitor.waits import Wait, WaitReport, watch
from console.tui.context import Context
from console.tui.dialogs.dialog import show_equivalent_command
from console.tui.findings import QueueKey
from console.tui.jobs import LatestQuery
from console.tui.open_connection import OpenConnection
from console.tui.screens.live import LiveScreen
from console.tui.tabs.tab import QueueTab, take_focus
from console.tui.text import (
    TextView,
    error_text,
    plain,
    show_lines,
    show_parts,
    sparkline,
    style_of,
)
from console.tui.views import QueueView
from console.tui.widgets.keyed_table import Column, KeyedTable, or_unknown
from console.tui.widgets.waits_chart import LOOKS, Past, WaitsChart, key_of, past_of

WAITS_DROP_ORDER = ("meaning", "sessions", "trend", "waited")
_TREND = 16
_RUNNING = "running"


def wait_columns(past: Sequence[Past]) -> tuple[Column[Wait], ...]:
    """`past`: the last samples, the newest last."""

    def trend(wait: Wait) -> str:
        if wait.share is None:
            return ""
        key, newest = key_of(wait), [*past][-_TREND:]
        shares = [None if one is None else one.get(key, 0.0) for one in newest]
        return sparkline([None if share is None else round(100 * share) for share in shares])

    return (
        Column("wait", "wait", lambda wait: plain(labels.wait_name(wait)), _wait_tone, 12, 34),
        _number("at_a_time", "at a time", "average", "{:.1f}", 9),
        _number("share", "of samples", "share", "{:.0%}", 8),
        _number("sessions", "sessions", "sessions", "{:,}", 8),
        Column("waited", "waited", _waited, "", 9, 16, align_right=True),
        Column("trend", "over time", trend, "trend", _TREND, _TREND),
        Column("meaning", "means", lambda wait: plain(wait.meaning or ""), "quiet", 30, 300),
    )


def _number(name: str, title: str, of: str, form: str, width: int) -> Column[Wait]:
    """`of`: the attribute of a wait; None where it is not counted that way."""

    def value(wait: Wait) -> str:
        return or_unknown(getattr(wait, of), form.format, "")

    return Column(name, title, value, "", width, width, align_right=True)


def _wait_tone(wait: Wait) -> str:
    idle = wait.kind in {None, "Client", "Activity"} or wait.wait == _RUNNING
    return "quiet" if idle else "strong"


def _waited(wait: Wait) -> str:
    """For waits that the server counts, not for those seen in samples."""
    if wait.share is not None:
        return ""
    return f"{duration((wait.ms or 0) / 1000)} {wait.count or 0:,}x"


@dataclass(frozen=True)
class Waiter:
    """A session in the tree of those that block each other."""

    session: Session
    branch: str = ""
    """What is drawn before its name."""
    deadlock: bool = False
    in_tree: bool = False
    """Whether it waits or is waited for."""


def waiters(activity: Activity) -> dict[str, Waiter]:
    """By a key that stays the same: the blocking trees, then the other sessions."""
    rows = {}
    for node, branch in _branches(activity.trees):
        session = activity.by_key[node.key]
        rows[repr(node.key)] = Waiter(session, branch, node.cut, in_tree=True)
    for session in activity.relevant_sessions:
        rows.setdefault(repr(session.key), Waiter(session))
    return rows


def _name(row: Waiter) -> str:
    key = row.session.key
    return row.branch + plain(
        str(key) if isinstance(key, int) else labels.session_title(row.session)
    )


def _waits_for(row: Waiter) -> str:
    session = row.session
    waits = session.wait_seconds if session.waits_for else session.transaction_seconds
    return or_unknown(waits, lambda seconds: duration(max(seconds, 0.0)))


def _does(row: Waiter) -> str:
    doing = labels.session_activity(row.session)
    return plain(f"DEADLOCK: {doing}" if row.deadlock else doing)


def _does_tone(row: Waiter) -> str:
    if row.deadlock:
        return "critical"
    return "warning" if row.in_tree and not row.session.blocked_by else ""


WAITERS: tuple[Column[Waiter], ...] = (
    Column("session", "session", _name, lambda row: "strong" if row.in_tree else "quiet", 12, 40),
    Column("for", "for", _waits_for, "", 9, 10, align_right=True),
    Column("does", "does", _does, _does_tone, 20, 80),
    Column("who", "who", lambda row: plain(labels.session_client(row.session)), "quiet", 12, 200),
)
_DEEPEST = 12
"""Branches are indented up to this depth."""


def _branches(trees: tuple[Node[Key], ...]) -> Iterator[tuple[Node[Key], str]]:
    """Every node with the branch before it, from the top; as deep as it may go."""
    left: list[tuple[Node[Key], str, str]] = [(tree, "", "") for tree in reversed(trees)]
    while left:
        node, branch, below = left.pop()
        yield node, branch
        deep = len(below) >= 3 * _DEEPEST
        last = len(node.waiters) - 1
        for place, waiter in reversed(list(enumerate(node.waiters))):
            here = below + ("└─ " if place == last else "├─ ")
            under = below if deep else below + ("   " if place == last else "│  ")
            left.append((waiter, here, under))


SAMPLE_SECONDS = 2.0
"""How long the sessions are sampled, a few times a second, for one report."""
_REST_SECONDS = 1.5
_CHART_FROM = 26
"""On a screen of fewer lines the lists need the chart's room."""
_QUEUE_LINES = 12
"""A queue's screen has so many more above the pane."""
_SMALL = 14
"""In fewer lines the texts give room to the lists."""


class WaitsPane(Vertical):
    """Reads one report after another while it is shown."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "act", "terminate session", tooltip="terminate the session under the cursor"),
        Binding("y", "copy", "copy", show=False, tooltip="copy the details below"),
        Binding("o", "equivalent", "command", show=False, tooltip="the equivalent command line"),
    ]

    _at: datetime | None = None
    """When the report was read."""

    def __init__(self, context: Context, connection: str, key: QueueKey | None = None) -> None:
        """`key`: one queue; None: all of the connection's, and the server."""
        super().__init__()
        self.context = context
        self.connection = connection
        self.key = key
        self.report: WaitReport | None = None
        self.paused = False
        self._past: deque[Past] = deque(maxlen=LOOKS)
        self.table = KeyedTable(wait_columns(self._past), WAITS_DROP_ORDER, id="waits")
        self.waiters = KeyedTable(WAITERS, ("who",), removed_column="does", id="waits-tree")
        self._names: dict[str, str] = {}
        self._error: ConsoleError | None = None
        self._rests_until = 0.0
        self._stopped = threading.Event()
        self._fetch: LatestQuery[WaitReport] = LatestQuery(self, self.show_report, self.show_error)

    def compose(self) -> ComposeResult:
        yield TextView(classes="pane-head", id="waits-head")
        yield WaitsChart()
        yield self.table
        yield self.waiters
        yield TextView(classes="pane-detail", id="waits-detail")

    def on_mount(self) -> None:
        self.query_one(WaitsChart).display = False
        self.draw(paused=self.paused)
        take_focus(self, self.table)

    def on_unmount(self) -> None:
        """Stop sampling."""
        self._stopped.set()

    @property
    def conn(self) -> OpenConnection | None:
        return self.context.connections.get(self.connection)

    @property
    def session(self) -> Session | None:
        row = self.waiters.row
        return None if row is None else row.session

    def poll(self) -> None:
        rested = self.context.clock.monotonic() >= self._rests_until
        if rested and not self.paused and not self._fetch.busy:
            self.reload()

    def reload(self) -> None:
        conn = self.conn
        if conn is None:
            return
        key = self.key

        def work() -> WaitReport:
            return watch(
                conn.database,
                [conn.find(key[1], key[2])] if key else catalog.in_use(conn.database),
                seconds=SAMPLE_SECONDS,
                sleep=self._stopped.wait,
                asked_to_end=self._stopped.is_set,
            )

        self._fetch.submit(work, wait=False)
        self.draw(paused=self.paused)

    def show_report(self, report: WaitReport) -> None:
        self._rest()
        self.report, self._error, self._at = report, None, self.context.clock.utc()
        waits = self.waits
        self._past.append(past_of(waits) if report.samples else None)
        self._names |= {key_of(wait): plain(labels.wait_name(wait)) for wait in waits}
        self.table.show({key_of(wait): wait for wait in waits})
        self.waiters.show(waiters(report.activity), keep=True)
        self.query_one(WaitsChart).show_past([*self._past], self._names)
        self.draw(paused=self.paused)

    def show_error(self, error: ConsoleError) -> None:
        self._rest()
        self._error = error
        self._past.append(None)
        self.draw(paused=self.paused)

    def _rest(self) -> None:
        """Leave the server alone for a while, longer after a report of all queues."""
        seconds = _REST_SECONDS if self.key else 2 * _REST_SECONDS
        self._rests_until = self.context.clock.monotonic() + seconds

    @property
    def waits(self) -> list[Wait]:
        if self.report is None:
            return []
        if self.key is None:
            return [wait for wait in self.report.waits if wait.queue is None]
        _, schema, name = self.key
        return [
            wait
            for wait in self.report.waits
            if wait.queue is not None and (wait.queue.schema, wait.queue.name) == (schema, name)
        ]

    def draw(self, *, paused: bool) -> None:
        self.paused = paused
        if not self.is_mounted or not self.query("#waits-head"):
            return
        head = self.query_one("#waits-head", TextView)
        lines = [self._summary(head)]
        if self.report is not None:
            lines += [
                Text(plain(line), style_of(head, "quiet"), no_wrap=True)
                for line in labels.horizon_lines(self.report)
                if self.report.samples and not self._is_small
            ]
            lines += [
                Text(f"Not visible: {plain(why)}", style_of(head, "warning"))
                for why in self.report.missing.values()
            ]
        if self._error is not None:
            lines.append(error_text(head, self._error))
        show_lines(head, lines)
        self._draw_detail()
        chart = self.query_one(WaitsChart)
        enough = self.app.size.height >= _CHART_FROM + (_QUEUE_LINES if self.key else 0)
        chart.display = bool(enough and self._past)
        waits = len(self.waits)
        self.table.styles.height = min(waits + 1, max(3, self.size.height // 3))

    @property
    def _is_small(self) -> bool:
        return self.size.height < _SMALL

    def _summary(self, head: TextView) -> Text:
        line = Text(no_wrap=True)
        report = self.report
        if report is None:
            line.append("" if self._error else "Reading ...", style_of(head, "quiet"))
            return line
        if report.samples:
            trees = report.activity.trees
            if trees:
                waiting = numbered(report.activity.waiting, "session")
                verb = "waits" if report.activity.waiting == 1 else "wait"
                line.append(f"{waiting} {verb} for another", style_of(head, "warning"))
                seen = f" (in {report.samples_with_waiters} of {report.samples} samples)"
                line.append(seen, style_of(head, "quiet"))
            else:
                line.append("No session waits for another.", style_of(head, "good"))
        if self._at is not None:
            line.append(f"   as of {clock(self._at, self.context.zone)}", style_of(head, "quiet"))
        samples = f"   {numbered(report.samples, 'sample')} in {duration(report.seconds)}"
        line.append(samples, style_of(head, "quiet"))
        return line

    def _draw_detail(self) -> None:
        detail = self.query_one("#waits-detail", TextView)
        parts = self._detail()
        detail.display = bool(parts)
        detail.styles.max_height = 3 if self._is_small else 6
        show_parts(detail, parts)

    def _detail(self) -> list[tuple[str, str]]:
        """What is known of the session or wait under the cursor."""
        session, wait = self.session, self.table.row
        if session is not None and (self.waiters.has_focus or wait is None):
            said = [
                (f"{plain(labels.session_title(session))}  ", "strong"),
                (
                    plain(f"{labels.session_client(session)}; {labels.session_activity(session)}"),
                    "",
                ),
            ]
            if session.locks:
                said.append((f"\nlocks {plain(labels.lock_summary(session))}", "quiet"))
            if session.query:
                said.append((f"\n{plain(labels.session_statement(session))}", "quiet"))
            return said
        if wait is None:
            return []
        means = wait.meaning or "Nothing is known about this wait."
        return [
            (f"{plain(labels.wait_name(wait))}  {labels.wait_amount(wait)}\n", "strong"),
            (plain(means), ""),
        ]

    def on_keyed_table_cursor_moved(self) -> None:
        self._draw_detail()

    def on_descendant_focus(self) -> None:
        if self.query("#waits-detail"):
            self._draw_detail()

    def action_act(self) -> None:
        session = self.session
        if session is None:
            self.notify("There is no session under the cursor.", markup=False)
            return
        key = self.key or self._queue_of(session.queues)
        if key is None:
            self.notify("This session is not connected with any queue.", markup=False)
            return
        self.context.navigator.open_action(key, "end-session", session=str(session.key))

    def _queue_of(self, queues: Sequence[tuple[str, str]]) -> QueueKey | None:
        """The first of these; else a queue of a session that waits for the one under the cursor."""
        activity = self.report.activity if self.report else None
        if not queues and activity is not None:
            session = self.session
            waiters = (s for s in activity.sessions if session and session.key in s.blocked_by)
            queues = [queue for waiter in waiters for queue in waiter.queues]
        return (self.connection, *queues[0]) if queues else None

    def action_copy(self) -> None:
        if parts := self._detail():
            self.app.copy_to_clipboard("".join(text for text, _ in parts))
            self.notify("copied", markup=False)

    def action_equivalent(self) -> None:
        show_equivalent_command(self, self.conn, "waits", self.key)


class WaitsTab(QueueTab):
    NAME: ClassVar[str] = "waits"
    TITLE: ClassVar[str] = "Waits"
    EVERY_SECONDS: ClassVar[float] = 2.5

    def __init__(self, context: Context, key: QueueKey) -> None:
        super().__init__(context, key)
        self.pane = WaitsPane(context, key[0], key)

    def compose(self) -> ComposeResult:
        yield self.pane

    def poll(self) -> None:
        self.pane.poll()

    def refresh_now(self) -> None:
        self.pane.reload()

    def draw(self, view: QueueView | None, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        self.pane.draw(paused=paused)


class WaitsScreen(LiveScreen):
    def __init__(self, context: Context, connection: str) -> None:
        super().__init__(context)
        self.connection = connection
        self.pane = WaitsPane(context, connection)

    def body(self) -> ComposeResult:
        yield TextView(classes="pane-head", id="waits-of")
        yield self.pane

    def action_refresh_now(self) -> None:
        super().action_refresh_now()
        self.pane.reload()

    def draw_body(self, now: float, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        title = self.query_one("#waits-of", TextView)
        said = Text("Waits of ", style_of(title, "quiet"))
        said.append(plain(self.connection), style_of(title, "strong"))
        if self.connection not in self.context.connections:
            said.append("  There is no such connection.", style_of(title, "critical"))
        title.set_text(said)
        self.pane.draw(paused=paused)
        self.pane.poll()
