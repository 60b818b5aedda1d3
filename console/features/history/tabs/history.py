"""Its recorded past, and what happened.

Of the last hour, day, week or month.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container

from console import formats
from console.errors import ConsoleError
from console.features.history.forecast import SHADES, BandsOfHours, Forecast
from console.features.history.forecast import read as read_forecast
from console.features.history.points import History, Mark, Point, since
from console.features.history.rollup_files import existing_default_lake
from console.features.history.views.history import VIEW
from console.figures import AGE, CHARTS, ERRORS, FORECASTS, LATENCY_KINDS, PERCENTILES, READY
from console.tui.context import Context
from console.tui.findings import QueueKey
from console.tui.jobs import LatestQuery
from console.tui.series import ChartSpan, Run
from console.tui.tabs.tab import QueueTab
from console.tui.text import Paragraph, describe_error, first_line, plain, show_parts, style_of
from console.tui.views import QueueView
from console.tui.widgets.browser import LIST_KEYS, Browser
from console.tui.widgets.charts import (
    AXES,
    HIGH,
    RATES,
    SECONDS,
    WIDE,
    Axis,
    Chart,
    ChartTime,
    Curve,
    Drawing,
)
from console.tui.widgets.keyed_table import KeyedTable
from console.views.view import Source, View, no_database

SPANS = (
    ChartSpan("1 h", 3600.0, 10.0),
    ChartSpan("24 h", 86_400.0, 300.0),
    ChartSpan("7 d", 7 * 86_400.0, 1800.0),
    ChartSpan("30 d", 30 * 86_400.0, 7200.0),
)
_POINTS = 360
_MOST_CHARTS = 8
_FOUR = 4
_LEAST_PAUSE_SECONDS = 20.0
_PARTS = 240
"""A span is read again after this fraction of it: a month takes long to read."""
_FIGURES: Sequence[tuple[str, Axis, tuple[str, ...]]] = (
    *(
        (
            drawn[0].words if drawn[0] is AGE else " and ".join(one.title for one in drawn),
            AXES[drawn[0].unit],
            tuple(one.name for one in drawn),
        )
        for drawn in ((READY,), *(of for of in CHARTS.values() if READY not in of), (ERRORS,))
    ),
    *(
        (f"{kind} p50, p95, p99", SECONDS, tuple(f"{kind}_p{at}_seconds" for at in PERCENTILES))
        for kind in LATENCY_KINDS
    ),
)
_EXPECTED = {name: what for what, name in FORECASTS.items()}
_FIGURES_APART = (
    _FIGURES[0],
    *((f"{measure}/s", RATES, (name,)) for name, measure in _EXPECTED.items()),
    *_FIGURES[2:],
)
"""Where there is a forecast for each rate."""
_AHEAD = 4
"""A chart with a forecast goes on for this part of its span..."""
_WEEK_SECONDS = 7 * 86_400.0
"""... but for no more than a week: then the forecast repeats itself."""
_Recorded = tuple[History, Forecast]
_STYLES = ("trend", "warning", "critical")
_HOW_TO_RECORD = (
    "\n  This console records while it is open, unless turned off: --no-record,"
    "\n  or record = false in the configuration."
    "\n  dbq-console record always does, without a screen."
)


class HistoryTab(QueueTab, Browser):
    """Charts of what was recorded, and below them what happened: findings, actions."""

    NAME: ClassVar[str] = "history"
    TITLE: ClassVar[str] = "History"
    SHORT_TITLE: ClassVar[str] = "Hist"
    EVERY_SECONDS: ClassVar[float] = 30.0
    HAS_CHARTS: ClassVar[bool] = True
    VIEW: ClassVar[View[Any, Any]] = VIEW
    BINDINGS: ClassVar[list[BindingType]] = [
        *LIST_KEYS,
        Binding("z", "zoom(1)", "span", tooltip="the last 1 h, 24 h, 7 d, 30 d"),
        Binding("Z", "zoom(-1)", "the previous span", show=False),
        Binding(
            "right_square_bracket",
            "chart(1)",
            "the next chart, where one is shown at a time",
            show=False,
            key_display="[ ]",
        ),
        Binding("left_square_bracket", "chart(-1)", "previous", show=False),
    ]

    def __init__(self, context: Context, key: QueueKey) -> None:
        super().__init__(context, key)
        self.span = SPANS[0]
        self.result: History | None = None
        self.forecast = Forecast()
        self._result_span = SPANS[0]
        self._error: ConsoleError | None = None
        self._chart = 0
        self._read_at: float | None = None
        self.table = self.new_table()
        self._fetch: LatestQuery[_Recorded] = LatestQuery(self, self.show_result, self.show_error)

    @property
    def command(self) -> Sequence[str]:
        ahead = ["--forecast", f"{self._ahead_seconds / 60:.0f}m"] if self.forecast.hours else []
        return "history", "--since", self.span.title.replace(" ", ""), "--plot", *ahead

    @property
    def _ahead_seconds(self) -> float:
        """How far charts with a forecast go on."""
        return min(self.span.seconds / _AHEAD, _WEEK_SECONDS)

    def compose(self) -> ComposeResult:
        yield Paragraph(id="history-head")
        with Container(id="history-charts"):
            for index in range(_MOST_CHARTS):
                yield Chart(index / _MOST_CHARTS)
        yield self.table
        yield Paragraph(id="history-detail")
        yield self.hidden_filter()

    def on_mount(self) -> None:
        self._show()

    def poll(self) -> None:
        root, (connection, schema, name) = self.context.recordings_root, self.key
        now = self.context.clock.monotonic()
        pause = max(_LEAST_PAUSE_SECONDS, self.span.seconds / _PARTS)
        if root is None or (self._read_at is not None and 0 <= now - self._read_at < pause):
            return
        self._read_at = now
        span = since(self.context.clock.utc(), self.span.seconds)
        lake = None if self.context.replay is not None else existing_default_lake()
        of = {"root": root, "connection": connection, "span": span, "lake": lake}
        source = Source(no_database, schema, name, {**of, "most_points": _POINTS})

        def work() -> _Recorded:
            return self.VIEW.read(source), read_forecast(lake, connection, schema, name)

        self._fetch.submit(work)

    def show_result(self, result: _Recorded) -> None:
        self.result, self.forecast = result
        self._error, self._result_span = None, self.span
        self._show()

    def show_error(self, error: ConsoleError) -> None:
        self.result, self._error, self._read_at = None, error, None
        self._show()

    def draw(self, view: QueueView | None, *, paused: bool) -> None:  # noqa: ARG002
        if not paused:
            self._show()

    def on_resize(self, _: events.Resize) -> None:
        self._show()

    def _show(self) -> None:
        if not self.is_composed:
            return
        self._draw_marks()
        self._draw_charts()
        self.draw_texts()

    def draw_texts(self) -> None:
        head = self.query_one("#history-head", Paragraph)
        line = Text()
        for span in SPANS:
            line.append(
                f" {span.title} ", style_of(head, "sorted" if span is self.span else "quiet")
            )
        result = self.result
        if result is not None and self._result_span is self.span:
            step = formats.duration(result.step_seconds)
            line.append(
                f"  each point covers {step}: the highest; for rates, the mean",
                style_of(head, "quiet"),
            )
            if self.forecast.hours:
                line.append(f"  {' '.join(SHADES)} {self._forecast_text}", style_of(head, "quiet"))
            elif self.forecast.days:
                line.append(f"  {self.forecast.why}", style_of(head, "quiet"))
            self.append_filter(line, head)
            self.append_marks(line, head)
            if result.skipped:
                line.append(f"  {plain(result.skipped)}", style_of(head, "warning"))
        elif self.context.recordings_root is None:
            line.append("\n  Nothing is recorded here." + _HOW_TO_RECORD)
        elif self._error is not None:
            line.append(f"\n  {first_line(describe_error(self._error))}")
            line.append(_HOW_TO_RECORD if self.context.replay is None else "")
        else:
            line.append("  reading the recording ...", style_of(head, "quiet"))
        head.set_text(line)
        self._draw_detail()

    @property
    def _forecast_text(self) -> str:
        return f"90 % of such hours and their median, of {self.forecast.weeks} weeks"

    def _draw_detail(self) -> None:
        detail, mark = self.query_one("#history-detail", Paragraph), self.mark
        detail.display = mark is not None
        if mark is not None:
            show_parts(detail, self.VIEW.details(mark, self.context.display))

    @property
    def mark(self) -> Mark | None:
        return self.table.row

    def _draw_marks(self) -> None:
        marks = () if self.result is None else self.result.marks
        self.table.display = bool(marks) and self.size.height > 8
        self.table.columns = self.columns
        self.table.show({} if self.result is None else self.VIEW.rows(self.result))

    def _draw_charts(self) -> None:
        charts = self.query_one("#history-charts")
        drawings = list(self._drawings())
        charts.display = bool(drawings)
        size = self.app.size
        all_shown = size.width >= WIDE and size.height >= HIGH
        charts.set_class(all_shown, "-all")
        charts.set_class(all_shown and len(drawings) > _FOUR, "-five")
        for index, chart in enumerate(self.query(Chart)):
            chosen = all_shown or index == self._chart % max(1, len(drawings))
            chart.display = index < len(drawings) and chosen
            if chart.display:
                position = "" if all_shown else f"chart {index + 1} of {len(drawings)}   [ ]"
                chart.show(drawings[index], position)

    def _drawings(self) -> Iterator[Drawing]:
        result = self.result
        if result is None:
            return
        mark, end = self.mark, result.span.end
        moment = ChartTime(end.timestamp(), end, self.context.zone)
        marked = None if mark is None else mark.at.timestamp()
        noted = tuple(one.at.timestamp() for one in result.marks if one.kind == "note")
        known = [
            (title, kind, shown)
            for title, kind, names in (_FIGURES_APART if self.forecast.hours else _FIGURES)
            if (shown := [name for name in names if _is_known(result.points, name)])
        ]
        for title, kind, names in known:
            ahead = self._ahead_seconds
            bands = self._bands(result, names, ahead)
            curves = tuple(
                Curve(_runs(result, name), style, area=style == "trend" and not bands)
                for name, style in zip(names, _STYLES, strict=False)
            )
            most = max(p[n] or 0 for p in result.points for n in names)
            words = ((f"{title} ", "strong"), (f"up to {kind.format(most)}", "quiet"))
            drawing = Drawing(words, curves, kind, self._result_span, moment, marked, noted)
            yield replace(drawing, background=bands, ahead_seconds=ahead) if bands else drawing

    def _bands(self, result: History, names: Sequence[str], ahead: float) -> BandsOfHours | None:
        """The forecast, in a chart of a single rate."""
        measure = _EXPECTED.get(names[0]) if len(names) == 1 else None
        end = result.span.end + timedelta(seconds=ahead)
        bands = self.forecast.bands(measure, result.span.begin, end) if measure else ()
        return BandsOfHours(tuple(bands)) if bands else None

    def on_keyed_table_cursor_moved(self, event: KeyedTable.CursorMoved) -> None:
        event.stop()
        self._draw_charts()
        self._draw_detail()

    def on_marked_table_marks_changed(self) -> None:
        self.draw_texts()
        self.refresh_bindings()

    def action_zoom(self, step: int) -> None:
        self.span = SPANS[(SPANS.index(self.span) + step) % len(SPANS)]
        self._read_at = None
        self.draw_texts()
        self.poll()

    def action_chart(self, step: int) -> None:
        self._chart += step
        self._draw_charts()


TAB = HistoryTab


def _is_known(points: Sequence[Point], name: str) -> bool:
    return any(point[name] is not None for point in points)


def _runs(result: History, name: str) -> tuple[Run, ...]:
    """The known values of a figure; where samples were missed there is a gap."""
    return tuple(
        tuple((_middle(point.at, result), float(point[name] or 0.0)) for point in group)
        for points in result.runs
        for is_known, group in groupby(points, lambda point: point[name] is not None)
        if is_known
    )


def _middle(at: datetime, result: History) -> float:
    return min(at.timestamp() + result.step_seconds / 2, result.span.end.timestamp())
