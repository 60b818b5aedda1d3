"""Charts on a plain terminal, as text."""

import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

from console.monitor.recording.history import History

_LINES = 14
_CHARTS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("depth", ("ready", "claimed", "errors")),
    ("messages a second", ("push_per_second", "pop_per_second")),
    ("age of the oldest, seconds", ("age_seconds",)),
    ("push/pop sequence gap", ("gap",)),
)


def plot_of(found: History, zone: tzinfo | None) -> str:
    """Charts of what the queue has, under one another, as wide as the terminal."""
    import plotext  # type: ignore[import-untyped]  # noqa: PLC0415  # verbs shall start at once

    width = shutil.get_terminal_size((100, 24)).columns
    shown = []
    for title, names in _CHARTS:
        there = [name for name in names if any(getattr(p, name) is not None for p in found.points)]
        if not there:
            continue
        plotext.clear_figure()
        plotext.theme("clear")
        plotext.plotsize(width, _LINES)
        plotext.title(title)
        for name in there:
            for number, (xs, ys) in enumerate(_stretches(found, name)):
                label = (
                    None if number else name.replace("_per_second", "/s").removesuffix("_seconds")
                )
                plotext.plot(xs, ys, label=label, marker="braille")
        plotext.xticks(*_ticks(found, zone))
        # Room above the highest, where the names of the lines stand.
        highest = max(getattr(p, name) or 0 for p in found.points for name in there)
        plotext.ylim(0, max(1.0, highest * 1.3))
        shown.append(plotext.uncolorize(plotext.build()))
    return "\n".join(shown)


def _stretches(found: History, name: str) -> Iterator[tuple[list[float], list[float]]]:
    """Points in a row: where one is missing the line is broken."""
    for run in found.runs:
        xs: list[float] = []
        ys: list[float] = []
        for point in run:
            value = getattr(point, name)
            if value is not None:
                xs.append(point.at.timestamp())
                ys.append(float(value))
            elif xs:
                yield xs, ys
                xs, ys = [], []
        if xs:
            yield xs, ys


def _ticks(found: History, zone: tzinfo | None) -> tuple[list[float], list[str]]:
    first, last = found.points[0].at.timestamp(), found.points[-1].at.timestamp()
    places = [first + (last - first) * part / 4 for part in range(5)]
    times = [datetime.fromtimestamp(place, UTC).astimezone(zone) for place in places]
    form: Any = "%d %H:%M" if last - first > 86_400 else "%H:%M:%S"
    return places, [time.strftime(form) for time in times]
