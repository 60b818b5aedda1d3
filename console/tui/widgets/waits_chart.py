"""What sessions waited for: a stacked column per sample."""

from collections import deque
from collections.abc import Sequence

from rich.segment import Segment
from rich.text import Text
from textual.strip import Strip
from textual.widget import Widget

from console.monitor.waits import Wait
from console.tui.text import style_of
from console.views.waits import wait_key

MAX_SAMPLES = 60
SampleWaits = dict[str, float] | None
"""Wait -> average number of waiting sessions in one sample; None: the sample failed."""


def average_waits(waits: Sequence[Wait]) -> dict[str, float]:
    return {wait_key(w): w.average for w in waits if w.average is not None}


_FILLS = (("█", "critical"), ("▓", "warning"), ("▒", "trend"), ("░", "quiet"), ("·", "good"))


class WaitsChart(Widget):
    """Average sessions, stacked by wait, a column per sample."""

    def __init__(self) -> None:
        super().__init__(id="waits-chart")
        self._samples: deque[SampleWaits] = deque(maxlen=MAX_SAMPLES)
        self._names: dict[str, str] = {}

    def show_samples(self, past: Sequence[SampleWaits], names: dict[str, str]) -> None:
        self._samples = deque(past, maxlen=MAX_SAMPLES)
        self._names = names
        self.refresh()

    @property
    def ranked(self) -> list[str]:
        """All waits, those with most sessions first."""
        total: dict[str, float] = {}
        for sample in self._samples:
            for key, average in (sample or {}).items():
                total[key] = total.get(key, 0.0) + average
        return sorted(total, key=lambda key: -total[key])

    def stacks(self, height: int) -> tuple[float, list[list[int] | None]]:
        """The highest stack in sessions; and per sample the cells of each fill."""
        ranked = self.ranked
        shown, most = ranked[: len(_FILLS) - 1], 0.0
        sums: list[list[float] | None] = []
        for sample in self._samples:
            if sample is None:
                sums.append(None)
                continue
            parts = [sample.get(key, 0.0) for key in shown]
            parts += [0.0] * (len(_FILLS) - 1 - len(parts))
            sums.append([*parts, max(0.0, sum(sample.values()) - sum(parts))])
            most = max(most, sum(sample.values()))
        scale = height / most if most else 0.0
        return most, [None if one is None else _cells(one, scale) for one in sums]

    def render_line(self, y: int) -> Strip:
        """The legend is to the right of the columns."""
        base, width = self.rich_style, self.size.width
        most, stacks = self.stacks(self.size.height)
        legend = self._legend(y)
        room = max(
            0, width - max((text.cell_len for text in map(self._legend, range(5))), default=0)
        )
        axis = f"{most:5.1f} " if y == 0 else "    0 " if y == self.size.height - 1 else "      "
        segments = [Segment(axis, base + style_of(self, "quiet"))]
        level = self.size.height - y
        columns = stacks[-max(0, room - len(axis) - 2) :] if room > len(axis) + 2 else []
        for stack in columns:
            sign, name = _at(stack, level)
            segments.append(Segment(sign, base + style_of(self, name)))
        strip = Strip(segments).adjust_cell_length(room, base)
        right = Strip([Segment(legend.plain, base)])
        return Strip.join([strip, right]).adjust_cell_length(width, base)

    def _legend(self, y: int) -> Text:
        ranked = self.ranked
        if y < min(len(ranked), len(_FILLS) - 1):
            return Text(f"{_FILLS[y][0]} {self._names.get(ranked[y], '?')[:30]} ")
        if y == len(_FILLS) - 1 and len(ranked) > y:
            return Text(f"{_FILLS[y][0]} {len(ranked) - y} others ")
        return Text()


def _cells(parts: Sequence[float], scale: float) -> list[int]:
    """The cells of each part, at least one if it is not 0."""
    return [max(1, round(part * scale)) if part > 0.005 else 0 for part in parts]


def _at(stack: list[int] | None, level: int) -> tuple[str, str]:
    """The fill at a level; 1 is the lowest. A failed sample leaves a gap."""
    if stack is None:
        return " ", ""
    for cells, fill in zip(stack, _FILLS, strict=True):
        level -= cells
        if level <= 0:
            return fill
    return " ", ""
