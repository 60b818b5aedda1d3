"""One queue: its figures, how they went, and its tabs."""

from dataclasses import replace
from datetime import timedelta
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widget import Widget

from console import formats
from console.catalog import Queue
from console.monitor.limits import defaults_of
from console.tui.board import Key, QueueView
from console.tui.desk import Desk
from console.tui.dialogs.command import show_twin
from console.tui.jobs import start
from console.tui.places import Place
from console.tui.screens.live import LiveScreen
from console.tui.tabs.absent import NOT_RECORDED, AbsentTab
from console.tui.tabs.audit_tab import AuditTab
from console.tui.tabs.errors import ErrorsTab
from console.tui.tabs.findings import FindingsTab
from console.tui.tabs.history import HistoryTab
from console.tui.tabs.messages import MessagesTab
from console.tui.tabs.slots import SlotsTab
from console.tui.tabs.sql import SqlTab
from console.tui.tabs.stuck import StuckTab
from console.tui.tabs.tab import QueueTab
from console.tui.tabs.waits import WaitsTab
from console.tui.text import whole_seconds
from console.tui.widgets.charts import Charts, Moment
from console.tui.widgets.figures_panel import FiguresPanel
from console.tui.widgets.tab_line import TabLine

TABS: tuple[type[QueueTab], ...] = (
    FindingsTab,
    MessagesTab,
    ErrorsTab,
    StuckTab,
    WaitsTab,
    SlotsTab,
    SqlTab,
    AuditTab,
    HistoryTab,
)
"""In the order of their digits; a queue has those that apply to it."""


class QueueScreen(LiveScreen):
    """Draws what the board knows of one queue; each tab asks for itself, while it is in sight."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "actions", "actions", tooltip="what can be done with this queue"),
        Binding("d", "examine", "doctor", tooltip="let the doctor look at this queue now"),
        Binding("w", "waits", "waits", show=False, tooltip="what the server's sessions wait for"),
        Binding("z", "zoom", "zoom", show=False, tooltip="charts of 5 m, 1 h, 24 h"),
        Binding(
            "right_square_bracket",
            "chart(1)",
            "chart",
            show=False,
            tooltip="another chart, where there is one at a time",
        ),
        Binding(
            "left_square_bracket", "chart(-1)", "chart", show=False, tooltip="the chart before"
        ),
        Binding("c", "hide_charts", "charts", show=False, tooltip="without charts, or with them"),
        Binding("P", "runs", "runs", show=False, tooltip="the runs of the pipeline"),
        Binding("B", "bench", "bench", show=False, tooltip="how fast each design is on the server"),
        Binding("o", "twin", "command", show=False, tooltip="the command line that shows the same"),
        Binding("A", "audit", "audit", show=False, tooltip="who did what to this queue"),
        *(
            Binding(
                str(number),
                f"tab({number - 1})",
                "tab",
                show=False,
                key_display="1-9" if number == 1 else None,
                tooltip="the tab of that number",
            )
            for number in range(1, 10)
        ),
    ]

    AUTO_FOCUS: ClassVar[str | None] = ""
    """The tab in sight has the keys, once there is something in it."""

    def __init__(self, desk: Desk, key: Key, tab: str = "") -> None:
        super().__init__(desk)
        self.key = key
        self.view: QueueView | None = None
        """The queue as it was seen last."""
        self.gone = False
        """Whether it is no longer among the queues of its connection."""
        self._wanted = tab
        self._drawn_at = 0.0
        self._tabs: tuple[QueueTab, ...] = ()
        self._chosen: QueueTab | None = None
        self._looked_at: dict[str, float] = {}
        self.queue: Queue | None = None
        """As the catalog has it, with its options; None: not known yet."""

    @property
    def place(self) -> Place | None:
        """The queue's connection."""
        return self.desk.place(self.key)

    def on_mount(self) -> None:
        """The options do not change: they are asked for once."""
        super().on_mount()
        self._ask_options()

    def _ask_options(self) -> None:
        place, (_, schema, name) = self.place, self.key
        if place is not None:
            start(self, lambda: place.find(schema, name), self.show_options, lambda _: None)

    def show_options(self, queue: Queue) -> None:
        """The queue as the catalog has it."""
        self.queue = queue
        self.draw()

    def body(self) -> ComposeResult:
        """From the top: the figures, how they went, the tabs."""
        yield FiguresPanel(id="figures")
        yield Charts()
        yield TabLine()
        yield Container(id="tabs")

    # What is drawn.

    def draw_body(self, now: float, *, paused: bool) -> None:
        """Figures and the tab in sight; a queue that is gone keeps its last figures."""
        if not paused or self.view is None:
            self._see(now)
        view = self.view
        if view is None:
            return
        self._draw_figures(view)
        if not paused:
            self._draw_charts(now)
        if not self._tabs:
            self._make_tabs(view)
        self._draw_tab(now, paused=paused)

    def _see(self, now: float) -> None:
        views = self.desk.board.queues(now)
        seen = next((view for view in views if view.key == self.key), None)
        self.gone = seen is None and self.view is not None
        if seen is not None:
            self.view, self._drawn_at = seen, now
        elif self.view is not None:
            self.view = replace(self.view, stale_seconds=now - self._drawn_at)

    def _draw_figures(self, view: QueueView) -> None:
        gone = ""
        if self.gone:
            since = self.desk.board.series.seen_at(self.key)
            back = self.desk.clock.monotonic() - (self._drawn_at if since is None else since)
            at = self.desk.clock.utc() - timedelta(seconds=back)
            clock, old = formats.clock(at, self.desk.zone), whole_seconds(back)
            gone = f"is gone: it was there last at {clock}, {old} ago"
        thresholds = self.place.thresholds_of if self.place is not None else defaults_of
        panel = self.query_one(FiguresPanel)
        panel.draw(view, gone, self.queue, thresholds(self.key[2]))

    def _draw_charts(self, now: float) -> None:
        if self.view is not None:
            moment = Moment(now, self.desk.clock.utc(), self.desk.zone)
            charts = self.query_one(Charts)
            charts.spared = self._chosen is not None and self._chosen.HAS_CHARTS
            charts.draw(self.desk.board.series, self.key, self.view.snapshot, moment)

    def action_zoom(self) -> None:
        """Charts of a longer time; after the longest the shortest."""
        self.query_one(Charts).zoom()
        self._draw_charts(self.desk.clock.monotonic())

    def action_chart(self, step: int) -> None:
        """Another chart, where there is one at a time."""
        self.query_one(Charts).step(step)
        self._draw_charts(self.desk.clock.monotonic())

    def action_hide_charts(self) -> None:
        """Charts make room for words, or come back."""
        charts = self.query_one(Charts)
        charts.hidden = not charts.hidden
        self._draw_charts(self.desk.clock.monotonic())

    # The tabs.

    @property
    def tab(self) -> QueueTab | None:
        """The tab in sight."""
        return self._chosen

    def show_tab(self, name: str) -> None:
        """Have the tab of that name in sight, if there is one."""
        self._wanted = name
        named = (place for place, one in enumerate(self._tabs) if name == one.NAME)
        if (place := next(named, None)) is not None:
            self.call_later(self.action_tab, place)

    def _make_tabs(self, view: QueueView) -> None:
        self._tabs = tuple(self._made(each) for each in TABS if each.applies(view))
        for one in self._tabs:
            one.display = False
        named = (place for place, one in enumerate(self._tabs) if self._wanted == one.NAME)
        self.call_after_refresh(self.action_tab, next(named, 0))

    def _made(self, kind: type[QueueTab]) -> QueueTab:
        if self.desk.replay is not None and kind.NAME in NOT_RECORDED:
            return AbsentTab(self.desk, self.key, kind)
        return kind(self.desk, self.key)

    async def action_tab(self, place: int) -> None:
        """Have another tab in sight. It is made when it is wanted for the first time."""
        if not 0 <= place < len(self._tabs):
            return
        chosen = self._tabs[place]
        if chosen is not self._chosen:
            self._chosen = chosen
            self._looked_at.pop(chosen.NAME, None)
            if chosen.parent is None:
                await self.query_one("#tabs").mount(chosen)
            # By now, somebody may have wanted yet another one.
            for one in self._tabs:
                one.display = one is self._chosen
                one.shown = one.shown and one.display
            self.draw()
        if not isinstance(self.focused, TabLine):
            # What was not in sight until now takes no keys before it is laid out.
            self.call_after_refresh(self._focus_tab)

    def _focus_tab(self) -> None:
        if self._chosen is not None and self._chosen.is_mounted:
            self.set_focus(_focusable(self._chosen))

    async def on_tab_line_chosen(self, event: TabLine.Chosen) -> None:
        """By the arrows, or a click."""
        await self.action_tab(event.place)

    def _draw_tab(self, now: float, *, paused: bool) -> None:
        chosen = self._chosen
        if chosen is None:
            return
        self.query_one(TabLine).draw([one.TITLE for one in self._tabs], self._tabs.index(chosen))
        if not chosen.is_mounted:
            return
        chosen.shown = True
        chosen.draw(None if self.gone else self.view, paused=paused)
        if self.focused is None:
            self._focus_tab()
        looked_at = self._looked_at.get(chosen.NAME)
        # The clock of a replay may have been turned back.
        due = looked_at is None or (not paused and not 0 <= now - looked_at < chosen.EVERY_SECONDS)
        if due and not self.gone:
            self._look(chosen, now)

    def _look(self, tab: QueueTab, now: float) -> None:
        self._looked_at[tab.NAME] = now
        tab.look()

    def on_screen_suspend(self) -> None:
        """Out of sight: nothing is asked."""
        if self._chosen is not None:
            self._chosen.shown = False
            self._looked_at.pop(self._chosen.NAME, None)

    # Where one can go.

    def action_look_now(self) -> None:
        """Look at all databases now, and at what the tab in sight shows."""
        super().action_look_now()
        if self.queue is None:
            self._ask_options()
        if self._chosen is not None and not self.gone:
            self._look(self._chosen, self.desk.clock.monotonic())

    def action_actions(self) -> None:
        """What can be done with this queue."""
        if not self._refused():
            self.ways.open_actions(self.key)

    def action_examine(self) -> None:
        """Let the doctor look at this queue now."""
        if not self._refused():
            self.ways.examine(self.key)

    def action_waits(self) -> None:
        """What the server's sessions wait for."""
        self.ways.open_waits(self.key[0])

    def action_runs(self) -> None:
        """The runs of the pipeline on this machine."""
        self.ways.open_runs()

    def action_bench(self) -> None:
        """How fast each design is on the server."""
        self.ways.open_bench(self.key[0])

    def action_twin(self) -> None:
        """The command line that shows the same as the tab in sight, or else as the figures."""
        verb = "status" if self._chosen is None else self._chosen.TWIN
        show_twin(self, self.place, verb, self.key)

    def action_audit(self) -> None:
        """Who did what to this queue; also to one that is gone."""
        self.ways.open_audit(self.key[0], self.key)

    def _refused(self) -> bool:
        if self.gone:
            self.notify("The queue is no longer there.", severity="warning", markup=False)
        return self.gone


def _focusable(tab: QueueTab) -> Widget | None:
    """What takes the keys of a tab: the first in it that can."""
    return next((one for one in tab.query("*").results(Widget) if one.focusable), None)
