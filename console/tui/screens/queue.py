"""One queue: its figures, its charts and its tabs."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widget import Widget

from console import features, formats
from console.catalog import Queue
from console.filters import line_of
from console.monitor.limits import defaults_of
from console.tui.context import Context
from console.tui.dialogs.dialog import show_equivalent_command
from console.tui.findings import QueueKey
from console.tui.jobs import start_job
from console.tui.open_connection import OpenConnection
from console.tui.screens.audit import AuditTab
from console.tui.screens.live import LiveScreen
from console.tui.tabs import tabs_of_features
from console.tui.tabs.consumers import ConsumersTab
from console.tui.tabs.errors import ErrorsTab
from console.tui.tabs.findings import FindingsTab
from console.tui.tabs.messages import MessagesTab
from console.tui.tabs.slots import SlotsTab
from console.tui.tabs.sql import SqlTab
from console.tui.tabs.stuck import StuckTab
from console.tui.tabs.tab import QueueTab, TabBar, UnavailableTab
from console.tui.tabs.waits import WaitsTab
from console.tui.text import whole_seconds
from console.tui.views import QueueView
from console.tui.widgets.charts import Charts, ChartTime
from console.tui.widgets.queue_detail import FiguresPanel

KEYS = features.keys()
_OF_FEATURES = tabs_of_features()
_OWN_KEYS = {one.command: one.key for one in KEYS}
TABS: tuple[type[QueueTab], ...] = (
    FindingsTab,
    MessagesTab,
    ErrorsTab,
    StuckTab,
    WaitsTab,
    SlotsTab,
    SqlTab,
    AuditTab,
    *(tab for tab in _OF_FEATURES if tab.NAME not in _OWN_KEYS),
    ConsumersTab,
    *(tab for tab in _OF_FEATURES if tab.NAME in _OWN_KEYS),
)
"""In the order of their digits, the tenth has 0; then those with a key of their feature."""


class QueueScreen(LiveScreen):
    """Shows what is in the store; each tab reads its own data while it is shown."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "actions", "actions", tooltip="what can be done with this queue"),
        Binding("d", "examine", "doctor", tooltip="let the doctor examine this queue now"),
        Binding("w", "waits", "what the server's sessions wait for", show=False),
        Binding("z", "zoom", "charts of 5 min, 1 h, 24 h", show=False),
        Binding(
            "right_square_bracket",
            "chart(1)",
            "the next chart, where one is shown at a time",
            show=False,
        ),
        Binding("left_square_bracket", "chart(-1)", "the previous chart", show=False),
        Binding("c", "hide_charts", "hide or show the charts", show=False),
        *(Binding(one.key, f"feature('{one.key}')", one.help, show=False) for one in KEYS),
        Binding("o", "equivalent", "the equivalent command line", show=False),
        Binding("A", "audit", "who did what to this queue", show=False),
        *(
            Binding(
                str(number),
                f"tab({(number - 1) % 10})",
                "the tab of that number",
                show=False,
                key_display="0-9" if number == 0 else None,
            )
            for number in range(10)
        ),
    ]

    AUTO_FOCUS: ClassVar[str | None] = ""
    """The tab is focused once it has something to focus."""

    def __init__(self, context: Context, key: QueueKey, tab: str = "") -> None:
        super().__init__(context)
        self.key = key
        self.view: QueueView | None = None
        """The last figures of the queue."""
        self.gone = False
        """Whether the queue no longer exists."""
        self._first_tab = tab
        self._drawn_at = 0.0
        self._message_words: Sequence[str] = ()
        self._tabs: tuple[QueueTab, ...] = ()
        self._chosen: QueueTab | None = None
        self._polled_at: dict[str, float] = {}
        self.queue: Queue | None = None
        """As in the catalog, with its options; None: not read yet."""

    @property
    def conn(self) -> OpenConnection | None:
        return self.context.conn(self.key)

    def on_mount(self) -> None:
        self._load_options()

    def _load_options(self) -> None:
        conn = self.conn
        if conn is not None:
            start_job(self, lambda: conn.find(*self.key[1:]), self.show_options, lambda _: None)

    def show_options(self, queue: Queue) -> None:
        self.queue = queue
        self.draw()

    def body(self) -> ComposeResult:
        yield FiguresPanel(id="figures")
        yield Charts()
        yield TabBar()
        # If the queue is known already, its tab is painted together with the screen.
        self._update_view(self.context.clock.monotonic())
        with Container(id="tabs"):
            if self.view is not None:
                self._chosen = self._make_tabs(self.view)
                self._chosen.display = True
                yield self._chosen

    def draw_body(self, now: float, *, paused: bool) -> None:
        """A queue that no longer exists keeps its last figures."""
        if not paused or self.view is None:
            self._update_view(now)
        view = self.view
        if view is None:
            return
        self._draw_figures(view)
        if not paused:
            self._draw_charts(now)
        if not self._tabs:
            first = self._make_tabs(view)
            self.after_refresh(self.action_tab, self._tabs.index(first))
        self._draw_tab(now, paused=paused)

    def _update_view(self, now: float) -> None:
        view = self.context.store.queue(self.key, now)
        self.gone = view is None and self.view is not None
        if view is not None:
            self.view, self._drawn_at = view, now
        elif self.view is not None:
            self.view = replace(self.view, stale_seconds=now - self._drawn_at)

    def _draw_figures(self, view: QueueView) -> None:
        gone = ""
        if self.gone:
            since = self.context.store.series.sampled_at(self.key)
            back = self.context.clock.monotonic() - (self._drawn_at if since is None else since)
            at = self.context.clock.utc() - timedelta(seconds=back)
            clock, old = formats.clock(at, self.context.zone), whole_seconds(back)
            gone = f"no longer exists; last seen {clock}, {old} ago"
        thresholds = self.conn.thresholds_of if self.conn is not None else defaults_of
        panel = self.query_one(FiguresPanel)
        panel.draw(view, gone, self.queue, thresholds(self.key[2]))

    def _draw_charts(self, now: float) -> None:
        if self.view is not None:
            moment = ChartTime(now, self.context.clock.utc(), self.context.zone)
            charts = self.query_one(Charts)
            charts.replaced = self._chosen is not None and self._chosen.HAS_CHARTS
            charts.draw(self.context.store.series, self.key, self.view.snapshot, moment)

    def action_zoom(self) -> None:
        self.query_one(Charts).zoom()
        self._draw_charts(self.context.clock.monotonic())

    def action_chart(self, step: int) -> None:
        self.query_one(Charts).step(step)
        self._draw_charts(self.context.clock.monotonic())

    def action_hide_charts(self) -> None:
        charts = self.query_one(Charts)
        charts.hidden = not charts.folded
        self._draw_charts(self.context.clock.monotonic())

    @property
    def tab(self) -> QueueTab | None:
        return self._chosen

    def show_tab(self, name: str) -> None:
        self._first_tab = name
        named = (index for index, tab in enumerate(self._tabs) if name == tab.NAME)
        if (index := next(named, None)) is not None:
            self.after_refresh(self.action_tab, index)

    def filter_messages(self, words: Sequence[str]) -> None:
        """Now, or once the tab of messages is there: it comes with the queue's first figures."""
        self._message_words = words
        for tab in self._tabs:
            if isinstance(tab, MessagesTab) and tab.is_mounted:
                tab.open(words)
            elif isinstance(tab, MessagesTab):
                tab.begin_with(words)

    def _make_tabs(self, view: QueueView) -> QueueTab:
        """Make the tabs and return the one to show first."""
        self._tabs = tuple(self._make_tab(each, view) for each in TABS)
        for tab in self._tabs:
            tab.display = False
        return next(
            (queue_tab for queue_tab in self._tabs if self._first_tab == queue_tab.NAME),
            self._tabs[0],
        )

    def _make_tab(self, kind: type[QueueTab], view: QueueView) -> QueueTab:
        why = kind.unavailable(view) or self.context.lacks.get(kind.NAME, "")
        if why:
            return UnavailableTab(self.context, self.key, kind, why)
        if kind is MessagesTab:
            return MessagesTab(self.context, self.key, self._message_words)
        return kind(self.context, self.key)

    async def action_tab(self, index: int) -> None:
        """Show a tab, which is mounted when it is first shown."""
        if not 0 <= index < len(self._tabs):
            return
        chosen = self._tabs[index]
        if chosen is not self._chosen:
            self._chosen = chosen
            self._polled_at.pop(chosen.NAME, None)
            if chosen.parent is None:
                await self.query_one("#tabs").mount(chosen)
            # During the await yet another one may have been chosen.
            for tab in self._tabs:
                tab.display = tab is self._chosen
                tab.shown = tab.shown and tab.display
            self.draw()
        if not isinstance(self.focused, TabBar):
            # A widget that was hidden cannot be focused before it is laid out.
            self.after_refresh(self._focus_tab)

    def _focus_tab(self) -> None:
        if self._chosen is not None and self._chosen.is_mounted:
            self.set_focus(_focusable(self._chosen))

    async def on_tab_bar_selected(self, event: TabBar.Selected) -> None:
        await self.action_tab(event.index)

    def _draw_tab(self, now: float, *, paused: bool) -> None:
        chosen = self._chosen
        if chosen is None:
            return
        unavailable = [
            index for index, tab in enumerate(self._tabs) if isinstance(tab, UnavailableTab)
        ]
        titles = [queue_tab.TITLE for queue_tab in self._tabs]
        short = [queue_tab.SHORT_TITLE or queue_tab.TITLE for queue_tab in self._tabs]
        keys = [_OWN_KEYS[tab.NAME] for tab in self._tabs if tab.NAME in _OWN_KEYS]
        self.query_one(TabBar).draw(titles, self._tabs.index(chosen), unavailable, short, keys)
        if not chosen.is_mounted:
            return
        chosen.shown = True
        chosen.draw(None if self.gone else self.view, paused=paused)
        if self.focused is None:
            self._focus_tab()
        polled_at = self._polled_at.get(chosen.NAME)
        # A replay's clock can go back.
        due = polled_at is None or (not paused and not 0 <= now - polled_at < chosen.EVERY_SECONDS)
        if due and not self.gone:
            self._polled_at[chosen.NAME] = now
            chosen.poll()

    def on_screen_suspend(self) -> None:
        """Poll nothing while the screen is out of sight."""
        if self._chosen is not None:
            self._chosen.shown = False
            self._polled_at.pop(self._chosen.NAME, None)

    def action_refresh_now(self) -> None:
        super().action_refresh_now()
        if self.queue is None:
            self._load_options()
        if self._chosen is not None and not self.gone:
            self._polled_at[self._chosen.NAME] = self.context.clock.monotonic()
            self._chosen.refresh_now()

    def action_actions(self) -> None:
        if not self._refused():
            self.navigator.open_actions(self.key)

    def action_examine(self) -> None:
        if not self._refused():
            self.navigator.examine(self.key)
            self.draw()

    def action_waits(self) -> None:
        self.navigator.open_waits(self.key[0])

    def action_feature(self, key: str) -> None:
        """A key of a feature."""
        of = next(one for one in KEYS if one.key == key)
        words = [of.command, self.key[0]] if of.about_connection else [of.command]
        self.navigator.run_command(line_of(words))

    def action_equivalent(self) -> None:
        verb, *words = ("status",) if self._chosen is None else self._chosen.command
        show_equivalent_command(self, self.conn, verb, self.key, words)

    def action_audit(self) -> None:
        self.navigator.open_audit(self.key[0], self.key)

    def _refused(self) -> bool:
        if self.gone:
            self.notify("The queue no longer exists.", severity="warning", markup=False)
        return self.gone


def _focusable(tab: QueueTab) -> Widget | None:
    """The first focusable widget of a tab."""
    return next((widget for widget in tab.query("*").results(Widget) if widget.focusable), None)
