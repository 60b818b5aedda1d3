"""Who waits for what and for whom: the tab of a queue, the screen of a connection."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from console import catalog
from console.errors import ConsoleError
from console.formats import duration, numbered
from console.monitor import waits as labels
from console.monitor.activity import Activity, Key, Session
from console.monitor.wait_graph import Node
from console.monitor.waits import Wait, WaitReport, watch
from console.tui.context import Context
from console.tui.dialogs.dialog import show_equivalent_command
from console.tui.findings import QueueKey
from console.tui.open_connection import OpenConnection
from console.tui.screens.live import LiveScreen
from console.tui.tabs.tab import TableTab
from console.tui.text import (
    TextView,
    plain,
    sparkline,
    style_of,
)
from console.tui.widgets.keyed_table import Column, KeyedTable, or_unknown
from console.tui.widgets.waits_chart import (
    MAX_SAMPLES,
    SampleWaits,
    WaitsChart,
    average_waits,
    wait_key,
)

WAITS_DROP_ORDER = ("meaning", "sessions", "trend", "waited")
_TREND = 16
_RUNNING = "running"


def wait_columns(past: Sequence[SampleWaits]) -> tuple[Column[Wait], ...]:
    """`past`: the last samples, the newest last."""

    def trend(wait: Wait) -> str:
        if wait.share is None:
            return ""
        key, newest = wait_key(wait), [*past][-_TREND:]
        shares = [None if one is None else one.get(key, 0.0) for one in newest]
        return sparkline([None if share is None else round(100 * share) for share in shares])

    return (
        Column("wait", "wait", lambda wait: plain(labels.wait_name(wait)), _wait_style, 12, 34),
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


def _wait_style(wait: Wait) -> str:
    idle = wait.kind in {None, "Client", "Activity"} or wait.wait == _RUNNING
    return "quiet" if idle else "strong"


def _waited(wait: Wait) -> str:
    """Only for waits that the server counts, not for sampled ones."""
    if wait.share is not None:
        return ""
    return f"{duration((wait.ms or 0) / 1000)} {wait.count or 0:,}x"


@dataclass(frozen=True)
class Waiter:
    """A session in the tree of those that block each other."""

    session: Session
    branch: str = ""
    """Drawn before its name."""
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


def _does_style(row: Waiter) -> str:
    if row.deadlock:
        return "critical"
    return "warning" if row.in_tree and not row.session.blocked_by else ""


WAITERS: tuple[Column[Waiter], ...] = (
    Column("session", "session", _name, lambda row: "strong" if row.in_tree else "quiet", 12, 40),
    Column("for", "for", _waits_for, "", 9, 10, align_right=True),
    Column("does", "does", _does, _does_style, 20, 80),
    Column("who", "who", lambda row: plain(labels.session_client(row.session)), "quiet", 12, 200),
)
_DEEPEST = 12
"""Branches are indented up to this depth."""


def _branches(trees: tuple[Node[Key], ...]) -> Iterator[tuple[Node[Key], str]]:
    """Every node with the branch drawn before it, from the top."""
    stack: list[tuple[Node[Key], str, str]] = [(tree, "", "") for tree in reversed(trees)]
    while stack:
        node, branch, below = stack.pop()
        yield node, branch
        deep = len(below) >= 3 * _DEEPEST
        last = len(node.waiters) - 1
        for index, waiter in reversed(list(enumerate(node.waiters))):
            here = below + ("└─ " if index == last else "├─ ")
            under = below if deep else below + ("   " if index == last else "│  ")
            stack.append((waiter, here, under))


SAMPLE_SECONDS = 2.0
"""How long the sessions are sampled, a few times a second, for one report."""
_REST_SECONDS = 1.5
_CHART_FROM = 26
"""On a screen of fewer lines the lists need the chart's room."""
_QUEUE_LINES = 12
"""The lines above the tab on a queue's screen."""
_SMALL = 14
"""With fewer lines the texts leave their room to the lists."""


class WaitsTab(TableTab[WaitReport]):
    """Reads one report after another while it is shown: of one queue, or of all and the server."""

    NAME: ClassVar[str] = "waits"
    TITLE: ClassVar[str] = "Waits"
    COMMAND: ClassVar[Sequence[str]] = ("waits",)
    EVERY_SECONDS: ClassVar[float] = 2.5
    PAUSE: ClassVar[float] = 0.5
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "act", "terminate session", tooltip="terminate the session under the cursor"),
        Binding("y", "copy", "copy the details below", show=False),
    ]

    def __init__(self, context: Context, key: QueueKey) -> None:
        """`key`: with an empty name, all queues of the connection."""
        self.queue_key = key if key[2] else None
        super().__init__(context, key)
        self.fetch.every_seconds = SAMPLE_SECONDS + _REST_SECONDS * (1 if self.queue_key else 2)
        self._past: deque[SampleWaits] = deque(maxlen=MAX_SAMPLES)
        self.table = KeyedTable(wait_columns(self._past), WAITS_DROP_ORDER, id="waits")
        self.waiters = KeyedTable(WAITERS, ("who",), removed_column="does", id="waits-tree")
        self._names: dict[str, str] = {}
        self._stopped = threading.Event()

    def compose(self) -> ComposeResult:
        yield TextView(classes="pane-head", id="waits-head")
        yield WaitsChart()
        yield self.table
        yield self.waiters
        yield TextView(classes="pane-detail", id="waits-detail")

    def on_unmount(self) -> None:
        """Stop sampling."""
        self._stopped.set()

    @property
    def session(self) -> Session | None:
        row = self.waiters.row
        return None if row is None else row.session

    def refresh_now(self) -> None:
        self.reload(wait=False)

    def read(self, conn: OpenConnection) -> WaitReport:
        key = self.queue_key
        return watch(
            conn.database,
            [conn.find(*key[1:])] if key else catalog.in_use(conn.database),
            seconds=SAMPLE_SECONDS,
            sleep=self._stopped.wait,
            stop_requested=self._stopped.is_set,
        )

    def show(self, result: WaitReport) -> None:
        waits = self.waits
        self._past.append(average_waits(waits) if result.samples else None)
        self._names |= {wait_key(wait): plain(labels.wait_name(wait)) for wait in waits}
        self.table.show({wait_key(wait): wait for wait in waits})
        self.waiters.show(waiters(result.activity), keep=True)
        self.query_one(WaitsChart).show_samples([*self._past], self._names)

    def show_error(self, error: ConsoleError) -> None:
        self._past.append(None)
        super().show_error(error)

    @property
    def waits(self) -> list[Wait]:
        waits = self.result.waits if self.result else ()
        key = self.queue_key
        return [
            wait
            for wait in waits
            if (wait.queue and (wait.queue.schema, wait.queue.name)) == (key and key[1:])
        ]

    def draw_texts(self) -> None:
        super().draw_texts()
        detail, chart = self.query_one("#waits-detail", TextView), self.query_one(WaitsChart)
        detail.display = bool(self.detail())
        detail.styles.max_height = 3 if self._is_small else 6
        least = _CHART_FROM + (_QUEUE_LINES if self.queue_key else 0)
        chart.display = bool(self._past) and self.app.size.height >= least
        self.table.styles.height = min(len(self.waits) + 1, max(3, self.size.height // 3))

    @property
    def _is_small(self) -> bool:
        return self.size.height < _SMALL

    def summary(self, head: TextView, result: WaitReport) -> list[Text]:
        line, report = Text(no_wrap=True), result
        if report.samples and report.activity.trees:
            waiting = numbered(report.activity.waiting, "session")
            verb = "waits" if report.activity.waiting == 1 else "wait"
            line.append(f"{waiting} {verb} for another", style_of(head, "warning"))
            observed = f" (in {report.samples_with_waiters} of {report.samples} samples)"
            line.append(observed, style_of(head, "quiet"))
        elif report.samples:
            line.append("No session waits for another.", style_of(head, "good"))
        self.append_time(line)
        samples = f"   {numbered(report.samples, 'sample')} in {duration(report.seconds)}"
        line.append(samples, style_of(head, "quiet"))
        shows_horizon = report.samples and not self._is_small
        return [
            line,
            *(
                Text(plain(text), style_of(head, "quiet"), no_wrap=True)
                for text in (labels.horizon_lines(report) if shows_horizon else ())
            ),
            *(
                Text(f"Not visible: {plain(why)}", style_of(head, "warning"))
                for why in report.missing.values()
            ),
        ]

    def detail(self) -> list[tuple[str, str]]:
        session, wait = self.session, self.table.row
        if session is not None and (self.waiters.has_focus or wait is None):
            does = f"{labels.session_client(session)}; {labels.session_activity(session)}"
            parts = [(f"{plain(labels.session_title(session))}  ", "strong"), (plain(does), "")]
            if session.locks:
                parts.append((f"\nlocks {plain(labels.lock_summary(session))}", "quiet"))
            if session.query:
                parts.append((f"\n{plain(labels.session_statement(session))}", "quiet"))
            return parts
        if wait is None:
            return []
        return [
            (f"{plain(labels.wait_name(wait))}  {labels.wait_amount(wait)}\n", "strong"),
            (plain(wait.meaning or "Nothing is known about this wait."), ""),
        ]

    def on_descendant_focus(self) -> None:
        if self.is_composed:
            self.draw_texts()

    def action_act(self) -> None:
        session = self.session
        if session is None:
            self.notify("There is no session under the cursor.", markup=False)
            return
        key = self.queue_key or self._queue_of(session)
        if key is None:
            self.notify("This session has nothing to do with any queue.", markup=False)
            return
        self.navigator.open_action(key, "end-session", session=str(session.key))

    def _queue_of(self, session: Session) -> QueueKey | None:
        """A queue that the session touches, else one of a session that waits for it."""
        sessions = self.result.activity.sessions if self.result else ()
        queues = session.queues or [
            queue for s in sessions if session.key in s.blocked_by for queue in s.queues
        ]
        return (self.key[0], *queues[0]) if queues else None


class WaitsScreen(LiveScreen):
    """The waits of a connection."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "equivalent", "the equivalent command line", show=False),
    ]

    def __init__(self, context: Context, connection: str) -> None:
        super().__init__(context)
        self.connection = connection
        self.tab = WaitsTab(context, (connection, "", ""))

    def body(self) -> ComposeResult:
        yield TextView(classes="pane-head", id="waits-title")
        yield self.tab

    def action_refresh_now(self) -> None:
        super().action_refresh_now()
        self.tab.refresh_now()

    def action_equivalent(self) -> None:
        show_equivalent_command(self, self.tab.conn, "waits")

    def draw_body(self, now: float, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        title = self.query_one("#waits-title", TextView)
        text = Text("Waits of ", style_of(title, "quiet"))
        text.append(plain(self.connection), style_of(title, "strong"))
        if self.connection not in self.context.connections:
            text.append("  There is no such connection.", style_of(title, "critical"))
        title.set_text(text)
        self.tab.draw(None, paused=paused)
        self.tab.poll()
