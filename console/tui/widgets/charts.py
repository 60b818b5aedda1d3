"""How a queue's figures went, as charts: gaps are gaps, and nothing from a name is ever drawn.

The only module that knows plotext. Each chart builds a figure of its own each time: plotext's own
is one for all.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container
from textual.widget import Widget
from textual_plotext.plot import Plot

from console import formats
from console.designs import design
from console.monitor import QueueSnapshot
from console.tui.series import SPANS, Key, Run, Series, Span, figures_of
from console.tui.text import figure
from console.tui.widgets.axis import (
    scale,
    scale_count,
    scale_seconds,
    short_count,
    short_seconds,
    ticks,
)
from console.tui.widgets.tones import TONE_CLASSES, tone

WIDE, HIGH = 120, 40
"""From this size of the screen on all charts stand side by side; below it is one at a time."""
LEAST_HEIGHT = 20
"""A screen that has fewer lines needs them for words."""
_MOST = 4
_HIGH_CHART = 9
_LOW_CHART = 7
_CELLS_OF_LABEL = 7
_LINES_OF_AXIS = 2
_LONGEST_SECONDS = 10.0
"""So long a chart may lag behind, however long a time a dot of it stands for."""
_DOTS = 2
"""So many dots has a cell side by side."""

Pieces = tuple[tuple[str, str], ...]
"""Text, each piece with its tone."""


@dataclass(frozen=True)
class Moment:
    """What time it is, and how times of day are shown."""

    now: float
    """By `time.monotonic()`, as the series have it."""
    utc: datetime
    zone: tzinfo | None


@dataclass(frozen=True)
class Kind:
    """What is along the upright axis."""

    words: Callable[[float], str]
    top: Callable[[float], float]
    """Up to where it goes for the highest figure."""


@dataclass(frozen=True)
class Curve:
    """One line of a chart, or the area below it: two in one chart differ without any colour."""

    runs: tuple[Run, ...]
    tone: str
    area: bool = False


@dataclass(frozen=True)
class Drawing:
    """All that a chart shows. Moments are `time.monotonic()`."""

    words: Pieces
    """The line above it."""
    curves: tuple[Curve, ...]
    kind: Kind
    span: Span
    moment: Moment
    marked: float | None = None
    """A moment that is pointed at."""


class Chart(Widget):
    """One chart under one line of words."""

    COMPONENT_CLASSES: ClassVar[set[str]] = TONE_CLASSES

    def __init__(self, phase: float = 0.0) -> None:
        """`phase`, from 0 to 1: so that several charts are not drawn anew at one moment."""
        super().__init__(classes="chart")
        self._phase = phase
        self._made_of: tuple[object, ...] = ()
        self._plot = Text()
        self._drawing: Drawing | None = None
        self._corner = ""

    def show(self, drawing: Drawing, corner: str) -> None:
        """Show this from now on; `corner` stands at the end of its words."""
        if (drawing, corner) != (self._drawing, self._corner):
            self._drawing, self._corner = drawing, corner
            self.refresh()

    @property
    def drawing(self) -> Drawing | None:
        """What it shows."""
        return self._drawing

    def render(self) -> Text:
        """The words, and below them what there is room for."""
        drawing = self._drawing
        width, height = self.size
        if drawing is None or width < 2 or height < 1:
            return Text()
        shown = self._words(drawing, width)
        rest = height - 1
        if rest > _LINES_OF_AXIS and width > 3 * _CELLS_OF_LABEL:
            shown.append("\n")
            if any(curve.runs for curve in drawing.curves):
                shown.append_text(self._plotted(drawing, width, rest))
            else:
                shown.append("  nothing seen yet", tone(self, "quiet"))
        return shown

    def _plotted(self, drawing: Drawing, width: int, height: int) -> Text:
        """Built anew when it would look otherwise: a figure takes 10 ms, in which nothing moves."""
        dot = drawing.span.seconds / (width * _DOTS)
        runs = tuple(len(curve.runs) for curve in drawing.curves)
        moment = math.floor(drawing.moment.now / min(dot, _LONGEST_SECONDS) + self._phase)
        look = (drawing.span, drawing.moment.zone, self.app.theme, drawing.marked)
        made_of = (width, height, *look, runs, moment)
        if made_of != self._made_of:
            self._made_of = made_of
            self._plot = Text.from_ansi(self._built(drawing, width, height))
        return self._plot

    def _words(self, drawing: Drawing, width: int) -> Text:
        line = Text(no_wrap=True)
        for text, mood in drawing.words:
            line.append(text, tone(self, mood))
        line.truncate(width, overflow="ellipsis")
        space = width - line.cell_len - len(self._corner)
        if space > 0:
            line.append(" " * space + self._corner, tone(self, "quiet"))
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
        plot.axes_color(quiet)
        plot.ticks_color(quiet)
        bottom, top = extent(drawing)
        plot.ylim(bottom, top)
        plot.xlim(-drawing.span.seconds, 0)
        labels = [bottom, *([0] if bottom < 0 else []), *([top / 2] if height > 5 else []), top]
        plot.yticks(labels, [f"{drawing.kind.words(y):>{_CELLS_OF_LABEL - 1}}" for y in labels])
        moment = drawing.moment
        room = width - _CELLS_OF_LABEL
        plot.xticks(*ticks(drawing.span.seconds, room, moment.utc, moment.zone))
        dots = (width - _CELLS_OF_LABEL) * _DOTS
        for curve in drawing.curves:
            colour = self._colour(curve.tone)
            for run in curve.runs:
                xs, ys = _thinned(run, drawing, dots)
                if xs and curve.area:
                    plot.plot(xs, ys, marker="hd", color=colour, fillx=True)
                elif len(xs) == 1:
                    plot.scatter(xs, ys, marker="braille", color=colour)
                elif xs:
                    plot.plot(xs, ys, marker="braille", color=colour)
        if drawing.marked is not None:
            plot.vline(
                max(-drawing.span.seconds, drawing.marked - moment.now), self._colour("warning")
            )
        built: str = plot.build()
        return built.rstrip("\n")

    def _colour(self, name: str) -> tuple[int, int, int] | str:
        found = tone(self, name).color
        if found is None:
            return "default"
        red, green, blue = found.get_truecolor()
        return red, green, blue


def extent(drawing: Drawing) -> tuple[float, float]:
    """From 0 (or below, where figures are) up to what leaves room above the highest."""
    ys = [y for curve in drawing.curves for run in curve.runs for _, y in run]
    lowest = min(ys, default=0.0)
    bottom = -drawing.kind.top(-lowest) if lowest < 0 else 0.0
    return bottom, drawing.kind.top(max(0.0, *ys) if ys else 0.0)


def _thinned(run: Run, drawing: Drawing, dots: int) -> tuple[list[float], list[float]]:
    """The highest point of each dot's width; plotext is slow, and no more can be seen."""
    highest: dict[int, tuple[float, float]] = {}
    for at, value in run:
        x = min(0.0, at - drawing.moment.now)
        if x < -drawing.span.seconds:
            continue
        dot = int((x / drawing.span.seconds + 1) * dots)
        if dot not in highest or value > highest[dot][1]:
            highest[dot] = (x, value)
    return [x for x, _ in highest.values()], [y for _, y in highest.values()]


COUNTS = Kind(short_count, scale_count)
RATES = Kind(short_count, scale)
SECONDS = Kind(short_seconds, scale_seconds)


# The charts of a queue.


def drawings(
    series: Series, key: Key, snapshot: QueueSnapshot, span: Span, moment: Moment
) -> list[Drawing]:
    """Depth, rates, the gap (of others than rings: the age of the oldest), latency."""

    def curve(name: str, mood: str = "trend", *, area: bool = True) -> Curve:
        return Curve(series.runs(key, name, span, moment.now), mood, area)

    def drawing(words: Pieces, kind: Kind, *curves: Curve) -> Drawing:
        return Drawing(words, curves, kind, span, moment)

    def now(name: str) -> tuple[str, str]:
        return figure(snapshot, name), ""

    push, pop = ("▄ push/s ", "trend"), ("   ⠒⠒ pop/s ", "warning")
    found = [
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
        found.append(drawing(gap, COUNTS, curve("gap")))
    elif design(snapshot.design).age_is_known:
        age = (("age of the oldest ", "strong"), now("age_seconds"))
        found.append(drawing(age, SECONDS, curve("age_seconds")))
    looks = series.latency(key[0], span, moment.now)
    last = formats.duration(looks[-1][-1][1]) if looks else formats.UNKNOWN
    latency = (("a look takes ", "strong"), (last, ""))
    return [*found, drawing(latency, SECONDS, Curve(looks, "trend"))]


class Charts(Container):
    """All charts of a queue side by side, or, on a small screen, one of them."""

    def __init__(self) -> None:
        super().__init__(id="charts")
        self.span = SPANS[0]
        self.hidden = False
        """Whether the operator wants the room for words."""
        self.spared = False
        """Whether there are other charts in sight."""
        self._place = 0

    def compose(self) -> ComposeResult:
        """As many as a queue can have."""
        for place in range(_MOST):
            yield Chart(place / _MOST)

    @property
    def all_at_once(self) -> bool:
        """Whether the screen has room for all of them."""
        size = self.app.size
        return size.width >= WIDE and size.height >= HIGH

    @property
    def shown(self) -> list[Chart]:
        """The charts in sight."""
        return [chart for chart in self.query(Chart) if chart.display] if self.display else []

    def zoom(self) -> None:
        """The next longer span; after the longest the shortest."""
        self.span = SPANS[(SPANS.index(self.span) + 1) % len(SPANS)]

    def step(self, charts: int) -> None:
        """Another chart, where there is one at a time."""
        self._place += charts

    def draw(self, series: Series, key: Key, snapshot: QueueSnapshot, moment: Moment) -> None:
        """Draw them; what is not in sight costs nothing."""
        size = self.app.size
        self.display = not (self.hidden or self.spared) and size.height >= LEAST_HEIGHT
        if not self.display:
            return
        found = drawings(series, key, snapshot, self.span, moment)
        every = self.all_at_once
        self.set_class(every, "-all")
        self.set_class(every and len(found) < _MOST, "-three")
        self.styles.height = 2 * _HIGH_CHART if every else max(_LOW_CHART, size.height // 4)
        for place, chart in enumerate(self.query(Chart)):
            chart.display = place < len(found) and (every or place == self._place % len(found))
            if chart.display:
                of = "" if every else f" · ] chart {place + 1} of {len(found)}"
                chart.show(found[place], f"z {self.span.title}{of}")
