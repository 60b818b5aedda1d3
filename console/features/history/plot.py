"""A queue's recorded history and forecast as charts for a plain terminal."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, tzinfo

from console import clock
from console.cli.context import aligned
from console.features.history.forecast import SHADES, Band, Forecast, cells
from console.features.history.points import History
from console.figures import CHARTS, FORECASTS, LATENCY_KINDS, PERCENTILES
from console.formats import UNKNOWN, bare_moment, moment, numbered, rate

_LINES = 14
_CHARTS = [
    *((title, [figure.name for figure in drawn]) for title, drawn in CHARTS.items()),
    *((kind, [f"{kind}_p{at}_seconds" for at in PERCENTILES]) for kind in LATENCY_KINDS),
]
_RATES = {name: what for what, name in FORECASTS.items()}
_EXPECTED = [
    (f"{what} a second (░ 90 % of such hours, ▒ their median)", [name])
    for name, what in _RATES.items()
]
"""Instead of the chart of both rates: each rate with its forecast band."""


def plot_of(history: History, zone: tzinfo | None, known: Forecast | None, end: datetime) -> str:
    """Charts of the figures that the queue has, as wide as the terminal. The forecast `known` is
    drawn behind the rates, up to `end`."""
    charts, expected = list(_CHARTS), known if known is not None and known.hours else None
    if expected is not None:
        charts[1:2] = _EXPECTED
    return "\n".join(
        _chart(history, zone, title, there, None if expected is None else (expected, end))
        for title, names in charts
        if (there := [n for n in names if any(p[n] is not None for p in history.points)])
    )


def _chart(
    history: History,
    zone: tzinfo | None,
    title: str,
    names: Sequence[str],
    expected: tuple[Forecast, datetime] | None,
) -> str:
    import plotext  # type: ignore[import-untyped]  # noqa: PLC0415  # slow to import

    width = shutil.get_terminal_size((100, 24)).columns
    begin, end = history.points[0].at, history.points[-1].at
    bands: list[tuple[datetime, Band]] = []
    if expected is not None:
        end = expected[1]
        measure = _RATES.get(names[0])
        bands = expected[0].bands(measure, begin, end) if measure else []
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width, _LINES)
    plotext.title(title)
    # Room above the highest value for the legend.
    highest = max(p[name] or 0 for p in history.points for name in names)
    top, words = _scale(names[0], 1.2 * max([highest, *(b.high / 3600 for _, b in bands)]))
    span = (begin.timestamp(), end.timestamp())
    for mark, points in zip(SHADES, cells(bands, *span, top, (width, 2 * _LINES)), strict=True):
        if bands:
            plotext.scatter(*points, marker=mark)
    for name in names:
        for number, (xs, ys) in enumerate(_segments(history, name)):
            label = None if number else name.replace("_per_second", "/s").removesuffix("_seconds")
            plotext.plot(xs, ys, label=label, marker="braille")
    for one in history.marks:
        if one.kind == "note":
            plotext.vline(one.at.timestamp())
    if expected is not None:
        plotext.xlim(*span)
    backs, texts = clock.ticks(span[1] - span[0], width, end, zone)
    plotext.xticks([span[1] + back for back in backs], texts)
    plotext.ylim(0, top)
    plotext.yticks([0, top / 2, top], [words(0), words(top / 2), words(top)])
    built: str = plotext.uncolorize(plotext.build())
    return built


def _segments(history: History, name: str) -> Iterator[tuple[list[float], list[float]]]:
    """Runs of consecutive points: the line is broken where one is missing."""
    for run in history.runs:
        xs: list[float] = []
        ys: list[float] = []
        for point in run:
            value = point[name]
            if value is not None:
                xs.append(point.at.timestamp() + history.step_seconds / 2)
                ys.append(float(value))
            elif xs:
                yield xs, ys
                xs, ys = [], []
        if xs:
            yield xs, ys


def _scale(name: str, highest: float) -> tuple[float, Callable[[float], str]]:
    """The upper end of the axis, and the format of its labels."""
    if name.endswith("_seconds"):
        return clock.scale_seconds(highest), clock.short_seconds
    if name.endswith("_per_second"):
        return clock.scale(highest), clock.short_count
    return clock.scale_count(highest), clock.short_count


def expected_lines(
    known: Forecast, zone: tzinfo | None, begin: datetime, end: datetime
) -> list[str]:
    """The forecast, one line per hour; else why there is none."""
    if not known.hours:
        return [known.why]
    rows = [("expected from", "push/s", "90 %", "pop/s", "90 %")]
    for at, hour in known.between(begin, end):
        rows.append((bare_moment(at, zone), *_band(hour.pushes), *_band(hour.pops)))
    made = "" if known.made_at is None else f", made {moment(known.made_at, zone)}"
    weeks = numbered(known.weeks, "week")
    growth = f", {known.growth - 1:+.1%} a week" if known.growth != 1.0 else ""
    return [
        *aligned(rows),
        f"the median of the same hours of the last {weeks}, and the band with 90 %{growth}{made}",
    ]


def _band(band: Band | None) -> tuple[str, str]:
    if band is None:
        return UNKNOWN, UNKNOWN
    low, median, high = (rate(one / 3600) for one in (band.low, band.median, band.high))
    return median, f"{low} to {high}"
