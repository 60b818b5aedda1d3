"""Charts of a queue's figures. Gaps stay gaps, and no untrusted text is drawn.

The only module that uses plotext. Each chart builds a figure of its own: plotext's module-level
one is shared.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Protocol

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget
from textual_plotext.plot import Plot

from console import figures, formats
from console.clock import scale, scale_count, scale_seconds, short_count, short_seconds, ticks
from console.designs import recorded
from console.figures import LATENCY_KINDS, PERCENTILES
from console.monitor.latency import Percentiles
from console.monitor.snapshot import QueueSnapshot
from console.tui.findings import QueueKey
from console.tui.series import SPANS, ChartSpan, Run, Series, figures_of
from console.tui.text import style_of

WIDE, HIGH = 120, 40
"""From this screen size on all charts are side by side; below it there is one at a time."""
MIN_HEIGHT = 20
"""A smaller screen needs its lines for text."""
_ROOMY = 32
"""On a lower screen the tab's list would have fewer than ten lines beside a chart."""
_MOST = 6
_FOUR = 4
_HIGH_CHART = 9
_LOW_CHART = 7
_CELLS_OF_LABEL = 7
_LINES_OF_AXIS = 2
_LONGEST_SECONDS = 10.0
"""How far a chart may lag behind, however long the time of one dot."""
_DOTS = 2
"""Dots per cell, side by side."""

Pieces = tuple[tuple[str, str], ...]
"""(text, style name) pairs."""


@dataclass(frozen=True)
class ChartTime:
    """The time, and the display zone."""

    now: float
    """By `time.monotonic()`, as the series have it."""
    utc: datetime
    zone: tzinfo | None


@dataclass(frozen=True)
class Axis:
    """The vertical axis."""

    format: Callable[[float], str]
    top: Callable[[float], float]
    """The end of the axis for a highest value."""


@dataclass(frozen=True)
class Curve:
    """A line of a chart, or the area below it: two differ without any colour."""

    runs: tuple[Run, ...]
    style: str
    area: bool = False


class Background(Protocol):
    """What is drawn behind the curves. Two that look the same are equal."""

    @property
    def highest(self) -> float:
        """Its highest value."""
        ...

    def marks(
        self, begin: float, end: float, top: float, size: tuple[int, int], /
    ) -> Mapping[str, tuple[Sequence[float], Sequence[float]]]:
        """Mark -> the positions that have it, in a chart from `begin` to `end` (times as of
        `timestamp()`) and 0 to `top`; `size`: its columns and rows."""
        ...


@dataclass(frozen=True)
class Drawing:
    """The content of a chart. Moments are `time.monotonic()`."""

    title: Pieces
    """The line above it."""
    curves: tuple[Curve, ...]
    axis: Axis
    span: ChartSpan
    moment: ChartTime
    marker: float | None = None
    """A highlighted moment."""
    notes: tuple[float, ...] = ()
    """Moments with an operator's note."""
    background: Background | None = None
    ahead_seconds: float = 0.0
    """How far the chart extends beyond now."""


class Chart(Widget):
    """A chart below its title."""

    def __init__(self, phase: float = 0.0) -> None:
        """`phase`, 0 to 1: so that several charts are not rebuilt at the same moment."""
        super().__init__(classes="chart")
        self._phase = phase
        self._drawing: Drawing | None = None
        self._corner = ""
        self._appearance: tuple[object, ...] = ()
        self._built_appearance: tuple[object, ...] = ()
        self._plot: list[Text] = []
        self._base = Style.null()

    def show(self, drawing: Drawing, corner: str) -> None:
        """Show this; `corner` goes to the end of the title."""
        before = (self._appearance, self._drawing and self._drawing.title, self._corner)
        self._drawing, self._corner, self._appearance = (
            drawing,
            corner,
            self._appearance_of(drawing),
        )
        if self._appearance != before[0]:
            self.refresh()
        elif (drawing.title, corner) != before[1:]:
            self.refresh(Region(0, 0, self.size.width, 1))

    @property
    def drawing(self) -> Drawing | None:
        return self._drawing

    def _appearance_of(self, drawing: Drawing) -> tuple[object, ...]:
        """While this is equal the plot looks the same, until it moves by a cell."""
        cell = drawing.span.seconds / max(1, self.size.width)
        runs = tuple(len(curve.runs) for curve in drawing.curves)
        moment = math.floor(drawing.moment.now / min(cell, _LONGEST_SECONDS) + self._phase)
        parts = (drawing.span, drawing.moment.zone, self.app.theme, drawing.marker, drawing.notes)
        more = (drawing.background, drawing.ahead_seconds)
        return (self.size, *parts, *more, runs, moment)

    def render_lines(self, crop: Region) -> list[Strip]:
        """The base style is looked up once, not for each line."""
        self._base = self.rich_style
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        line = Text()
        if self._drawing is not None and width > 1:
            rest = height - 1 if height - 1 > _LINES_OF_AXIS and width > 3 * _CELLS_OF_LABEL else 0
            below = self._plotted(self._drawing, width, rest) if y and rest else []
            line = below[y - 1] if y and y <= len(below) else line
            line = line if y else self._title_line(self._drawing, width)
        strip = Strip(line.render(self.app.console, end="")).apply_style(self._base)
        return strip.adjust_cell_length(width, self._base)

    def _plotted(self, drawing: Drawing, width: int, height: int) -> list[Text]:
        """Rebuilt only when it would look different: that takes 10 ms of the event loop."""
        if not any(curve.runs for curve in drawing.curves):
            return [Text("  nothing sampled yet", style_of(self, "quiet"))]
        # After a change of size or theme it is painted before the next `show`.
        if (appearance := self._appearance_of(drawing)) != self._built_appearance:
            self._appearance = self._built_appearance = appearance
            built = Text.from_ansi(self._built(drawing, width, height))
            self._plot = [*built.split("\n", allow_blank=True)]
        return self._plot

    def _title_line(self, drawing: Drawing, width: int) -> Text:
        line = Text(no_wrap=True)
        for text, style in drawing.title:
            line.append(text, style_of(self, style))
        line.truncate(width, overflow="ellipsis")
        space = width - line.cell_len - len(self._corner)
        if space > 0:
            line.append(" " * space + self._corner, style_of(self, "quiet"))
        return line

    def _built(self, drawing: Drawing, width: int, height: int) -> str:
        plot = Plot()
        plot.plotsize(width, height)
        plot._set_size(width, height)  # noqa: SLF001  # plotsize alone does not (textual-plotext #5)
        plot.theme("clear")
        plot.frame(frame=False)
        plot.xaxes(lower=True, upper=False)
        plot.yaxes(left=True, right=False)
        quiet = self._colour("stale")
        plot.ticks_color(quiet)
        bottom, top = y_limits(drawing)
        plot.ylim(bottom, top)
        plot.xlim(-drawing.span.seconds, drawing.ahead_seconds)
        labels = [bottom, *([0] if bottom < 0 else []), *([top / 2] if height > 5 else []), top]
        plot.yticks(labels, [f"{drawing.axis.format(y):>{_CELLS_OF_LABEL - 1}}" for y in labels])
        moment = drawing.moment
        room = width - _CELLS_OF_LABEL
        ahead = drawing.ahead_seconds
        last = moment.utc + timedelta(seconds=ahead)
        backs, tick_labels = ticks(drawing.span.seconds + ahead, room, last, moment.zone)
        plot.xticks([ahead + back for back in backs], tick_labels)
        self._draw_background(plot, drawing, top, (room, 2 * height))
        dots = (width - _CELLS_OF_LABEL) * _DOTS
        for curve in drawing.curves:
            colour = self._colour(curve.style)
            for run in curve.runs:
                xs, ys = _thinned(run, drawing, dots)
                if xs and curve.area:
                    plot.plot(xs, ys, marker="hd", color=colour, fillx=True)
                elif len(xs) == 1:
                    plot.scatter(xs, ys, marker="braille", color=colour)
                elif xs:
                    plot.plot(xs, ys, marker="braille", color=colour)
        lines = [(at, "strong") for at in drawing.notes]
        lines += [] if drawing.marker is None else [(drawing.marker, "warning")]
        for at, style in lines:
            plot.vline(max(-drawing.span.seconds, at - moment.now), self._colour(style))
        built: str = plot.build()
        return built.rstrip("\n")

    def _draw_background(
        self, plot: Plot, drawing: Drawing, top: float, size: tuple[int, int]
    ) -> None:
        if drawing.background is None:
            return
        now = drawing.moment.utc.timestamp()
        span = (now - drawing.span.seconds, now + drawing.ahead_seconds)
        for mark, (xs, ys) in drawing.background.marks(*span, top, size).items():
            if xs:
                plot.scatter([x - now for x in xs], ys, marker=mark, color=self._colour("quiet"))

    def _colour(self, name: str) -> tuple[int, int, int] | str:
        style_color = style_of(self, name).color
        if style_color is None:
            return "default"
        red, green, blue = style_color.get_truecolor()
        return red, green, blue


def y_limits(drawing: Drawing) -> tuple[float, float]:
    """From 0 (or below it for negative values) to some room above the highest value."""
    ys = [y for curve in drawing.curves for run in curve.runs for _, y in run]
    ys += [] if drawing.background is None else [drawing.background.highest]
    lowest = min(ys, default=0.0)
    bottom = -drawing.axis.top(-lowest) if lowest < 0 else 0.0
    return bottom, drawing.axis.top(max(0.0, *ys) if ys else 0.0)


def _thinned(run: Run, drawing: Drawing, dots: int) -> tuple[list[float], list[float]]:
    """The highest point per dot: plotext is slow, and more cannot be seen."""
    highest: dict[int, tuple[float, float]] = {}
    for at, value in run:
        x = min(0.0, at - drawing.moment.now)
        if x < -drawing.span.seconds:
            continue
        dot = int((x / drawing.span.seconds + 1) * dots)
        if dot not in highest or value > highest[dot][1]:
            highest[dot] = (x, value)
    return [x for x, _ in highest.values()], [y for _, y in highest.values()]


COUNTS = Axis(short_count, scale_count)
RATES = Axis(short_count, scale)
SECONDS = Axis(short_seconds, scale_seconds)
AXES = {figures.MESSAGES: COUNTS, figures.PER_SECOND: RATES, figures.SECONDS: SECONDS}


# The charts of a queue.


def drawings(
    series: Series, key: QueueKey, snapshot: QueueSnapshot, span: ChartSpan, moment: ChartTime
) -> list[Drawing]:
    """Depth, rates, gap (for others than rings the age of the oldest), waiting and processing times
    if known, sample latency."""

    def curve(name: str, style: str = "trend", *, area: bool = True) -> Curve:
        return Curve(series.runs(key, name, span, moment.now), style, area)

    def drawing(title: Pieces, kind: Axis, *curves: Curve) -> Drawing:
        return Drawing(title, curves, kind, span, moment)

    def now(name: str) -> tuple[str, str]:
        return snapshot.text_of(name), ""

    push, pop = ("▄ push/s ", "trend"), ("   ⠒⠒ pop/s ", "warning")
    result = [
        drawing((("ready ", "strong"), now("ready")), COUNTS, curve("ready")),
        drawing(
            (push, now("push_per_second"), pop, now("pop_per_second")),
            RATES,
            curve("push_per_second"),
            curve("pop_per_second", "warning", area=False),
        ),
    ]
    if "gap" in figures_of(snapshot):
        of = "" if snapshot.capacity is None else f" of {snapshot.capacity:,}"
        gap = (("gap ", "strong"), now("gap"), (of, "quiet"))
        result.append(drawing(gap, COUNTS, curve("gap")))
    elif recorded(snapshot.design).age_is_known:
        age = (("age of the oldest ", "strong"), now("age_seconds"))
        result.append(drawing(age, SECONDS, curve("age_seconds")))
    for kind in () if snapshot.latency is None else LATENCY_KINDS:
        curves = [
            curve(f"{kind}_p{percent}_seconds", style, area=style == "trend")
            for percent, style in zip(PERCENTILES, _CUTS, strict=True)
        ]
        known: Percentiles = getattr(snapshot.latency, kind)
        if known.messages is not None or any(one.runs for one in curves):
            result.append(drawing(_percentile_title(kind, known), SECONDS, *curves))
    latencies = series.latency(key[0], span, moment.now)
    last = formats.duration(latencies[-1][-1][1]) if latencies else formats.UNKNOWN
    latency = (("sample latency ", "strong"), (last, ""))
    return [*result, drawing(latency, SECONDS, Curve(latencies, "trend"))]


_CUTS = ("trend", "warning", "critical")
"""The styles of p50, p95, p99: the first is an area."""


def _percentile_title(kind: str, of: Percentiles) -> Pieces:
    if of.p50 is None:
        return ((f"{kind} ", "strong"), (of.text, ""))
    labels = zip(("▄ p50 ", "  ⠒⠒ p95 ", "  ⠒⠒ p99 "), of.values, _CUTS, strict=True)
    pieces = [
        ((sign, style), (formats.duration(value or 0.0), "")) for sign, value, style in labels
    ]
    return ((f"{kind} ", "strong"), *(piece for both in pieces for piece in both))


class Charts(Container):
    """All charts of a queue side by side; on a small screen one of them."""

    def __init__(self) -> None:
        super().__init__(id="charts")
        self.span = SPANS[0]
        self.hidden: bool | None = None
        """By the operator; None: only where a list needs the lines."""
        self.replaced = False
        """Whether other charts are visible instead."""
        self._chart_index = 0

    def compose(self) -> ComposeResult:
        for index in range(_MOST):
            yield Chart(index / _MOST)

    @property
    def all_at_once(self) -> bool:
        size = self.app.size
        return size.width >= WIDE and size.height >= HIGH

    @property
    def shown(self) -> list[Chart]:
        return [chart for chart in self.query(Chart) if chart.display] if self.display else []

    @property
    def folded(self) -> bool:
        return self.app.size.height < _ROOMY if self.hidden is None else self.hidden

    def zoom(self) -> None:
        """The next longer span; after the longest comes the shortest."""
        self.span = SPANS[(SPANS.index(self.span) + 1) % len(SPANS)]

    def step(self, charts: int) -> None:
        self._chart_index += charts

    def draw(
        self, series: Series, key: QueueKey, snapshot: QueueSnapshot, moment: ChartTime
    ) -> None:
        """Draw those that are visible."""
        size = self.app.size
        self.display = not (self.folded or self.replaced) and size.height >= MIN_HEIGHT
        if not self.display:
            return
        charts = drawings(series, key, snapshot, self.span, moment)
        every = self.all_at_once
        # By hand, since a class would have each chart styled again.
        self.styles.grid_size_columns = 1 if not every else 2 if len(charts) == _FOUR else 3
        self.styles.height = 2 * _HIGH_CHART if every else max(_LOW_CHART, size.height // 4)
        for index, chart in enumerate(self.query(Chart)):
            chart.display = index < len(charts) and (
                every or index == self._chart_index % len(charts)
            )
            if chart.display:
                of = "" if every else f" · ] chart {index + 1} of {len(charts)}"
                chart.show(charts[index], f"z {self.span.title}{of}")
