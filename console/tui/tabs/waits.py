"""Who waits for what and for whom: the tab of a queue, the screen of a connection."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from console.errors import ConsoleError
from console.formats import duration, numbered
from console.monitor import waits as labels
from console.monitor.activity import Session
from console.monitor.waits import Wait, WaitReport
from console.tui.context import Context
from console.tui.findings import QueueKey
from console.tui.open_connection import OpenConnection
from console.tui.tabs.tab import ListTab
from console.tui.text import TextView, plain, sparkline, style_of
from console.tui.widgets.keyed_table import ListTable, MarkedTable
from console.tui.widgets.waits_chart import MAX_SAMPLES, SampleWaits, WaitsChart, average_waits
from console.views.view import Column, Part, Source, View
from console.views.waits import VIEW, WAITERS, Waiter, session_detail, wait_key, waiters

_TREND = 16


SAMPLE_SECONDS = 2.0
"""How long the sessions are sampled, a few times a second, for one report."""
_REST_SECONDS = 1.5
_CHART_FROM = 26
"""On a screen of fewer lines the lists need the chart's room."""
_QUEUE_LINES = 12
"""The lines above the tab on a queue's screen."""
_SMALL = 14
"""With fewer lines the texts leave their room to the lists."""


class WaitsTab(ListTab[WaitReport]):
    """Reads one report after another while it is shown: of one queue, or of all and the server."""

    VIEW: ClassVar[View[Any, Any]] = VIEW
    NAME: ClassVar[str] = "waits"
    TITLE: ClassVar[str] = "Waits"
    COMMAND: ClassVar[Sequence[str]] = ("waits",)
    EVERY_SECONDS: ClassVar[float] = 2.5
    VALUES: ClassVar[Mapping[str, Any]] = {"seconds": SAMPLE_SECONDS}
    PAUSE: ClassVar[float] = 0.5
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "act", "terminate session", tooltip="terminate the session under the cursor")
    ]

    def __init__(self, context: Context, key: QueueKey) -> None:
        """`key`: with an empty name, all queues of the connection."""
        self.queue_key = key if key[2] else None
        self._past: deque[SampleWaits] = deque(maxlen=MAX_SAMPLES)
        super().__init__(context, key)
        self.fetch.every_seconds = SAMPLE_SECONDS + _REST_SECONDS * (1 if self.queue_key else 2)
        self.waiters = ListTable(WAITERS, ("who",), removed_column="does", id="waits-tree")
        self._names: dict[str, str] = {}
        self._stopped = threading.Event()

    @property
    def columns(self) -> Sequence[Column[Wait]]:
        *others, meaning = super().columns
        return (
            *others,
            Column("trend", "over time", self._trend, "trend", _TREND, _TREND),
            meaning,
        )

    def _trend(self, wait: Wait) -> str:
        if wait.share is None:
            return ""
        key, newest = wait_key(wait), [*self._past][-_TREND:]
        shares = [None if one is None else one.get(key, 0.0) for one in newest]
        return sparkline([None if share is None else round(100 * share) for share in shares])

    @property
    def listed(self) -> MarkedTable[Any]:
        return self.waiters if self.waiters.has_focus else self.table

    def text_of(self, row: Wait | Waiter) -> str:
        if isinstance(row, Wait):
            return super().text_of(row)
        return "".join(text for text, _ in session_detail(row.session))

    def compose(self) -> ComposeResult:
        yield TextView(classes="pane-head", id="waits-head")
        yield WaitsChart()
        yield self.table
        yield self.waiters
        yield TextView(classes="pane-detail", id="waits-detail")
        yield self.hidden_filter()

    def on_unmount(self) -> None:
        """Stop sampling."""
        self._stopped.set()

    @property
    def session(self) -> Session | None:
        row = self.waiters.row
        return None if row is None else row.session

    def refresh_now(self) -> None:
        self.reload(wait=False)

    def source(self, conn: OpenConnection | None) -> Source:
        return replace(super().source(conn), stop=self._stopped)

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
        shown = replace(result, horizon=(), dead_rows={}) if self._is_small else result
        first, *others = super().summary(head, shown)
        samples = f"   {numbered(result.samples, 'sample')} in {duration(result.seconds)}"
        return [first.append(samples, style_of(head, "quiet")), *others]

    def detail(self) -> Sequence[Part]:
        session, wait = self.session, self.table.row
        if session is not None and (self.waiters.has_focus or wait is None):
            return session_detail(session)
        return super().detail()

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
