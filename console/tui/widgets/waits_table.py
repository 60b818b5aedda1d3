"""What was waited for: how much of it there was now, and over the last looks."""

from collections import deque
from collections.abc import Sequence

from rich.segment import Segment
from rich.text import Text
from textual.strip import Strip
from textual.widget import Widget

from console.formats import duration
from console.monitor import wait_words as words
from console.monitor.waits import Wait
from console.tui.text import plain, sparkline
from console.tui.widgets.fitting import Wish
from console.tui.widgets.keyed_table import Cell
from console.tui.widgets.list_table import ListTable
from console.tui.widgets.tones import TONE_CLASSES, tone

LOOKS = 60
"""So many looks are remembered."""
_TREND = 16
_WISHES = (
    Wish("wait", "wait", least=12, most=34),
    Wish("at_a_time", "at a time", least=9, most=9, right=True),
    Wish("share", "of looks", least=8, most=8, right=True),
    Wish("sessions", "sessions", least=8, most=8, right=True),
    Wish("waited", "waited", least=9, most=16, right=True),
    Wish("trend", "over time", least=_TREND, most=_TREND),
    Wish("meaning", "means", least=30, most=300),
)
_LOST_FIRST = ("meaning", "sessions", "trend", "waited")
_RUNNING = "running"


class WaitsTable(ListTable):
    """A line each wait, what most sessions waited for first."""

    def __init__(self) -> None:
        super().__init__(_WISHES, _LOST_FIRST, id="waits")
        self._waits: dict[str, Wait] = {}

    @property
    def wait(self) -> Wait | None:
        """The wait under the cursor."""
        return self._waits.get(self.cursor_key or "")

    def show_waits(self, waits: Sequence[Wait], past: Sequence["Past"]) -> None:
        """Show these; `past`: what the last looks saw, the newest last."""
        self._waits = {key_of(wait): wait for wait in waits}
        self.show_rows({key: _row(wait, key, past) for key, wait in self._waits.items()})


Past = dict[str, float] | None
"""Wait -> how many sessions waited so at a time, in one look; None: it could not be seen."""


def key_of(wait: Wait) -> str:
    """What stays the same from look to look; counters and sessions stand on lines of their own."""
    return repr((wait.kind, wait.wait, wait.share is None))


def past_of(waits: Sequence[Wait]) -> dict[str, float]:
    """What is remembered of a look."""
    return {key_of(w): w.average for w in waits if w.average is not None}


def _row(wait: Wait, key: str, past: Sequence[Past]) -> dict[str, Cell]:
    counted = wait.share is None
    seen = [None if look is None else round(100 * look.get(key, 0.0)) for look in past[-_TREND:]]
    waited = f"{duration((wait.ms or 0) / 1000)} {wait.count or 0:,}x" if counted else ""
    quiet = "quiet" if wait.kind in {None, "Client", "Activity"} or wait.wait == _RUNNING else ""
    return {
        "wait": Cell(plain(words.name_of(wait)), quiet or "strong"),
        "at_a_time": Cell("" if wait.average is None else f"{wait.average:.1f}"),
        "share": Cell("" if wait.share is None else f"{wait.share:.0%}"),
        "sessions": Cell("" if wait.sessions is None else f"{wait.sessions:,}"),
        "waited": Cell(waited),
        "trend": Cell("" if counted else sparkline(seen), "trend"),
        "meaning": Cell(plain(wait.meaning or ""), "quiet"),
    }


_FILLS = (("█", "critical"), ("▓", "warning"), ("▒", "trend"), ("░", "quiet"), ("·", "good"))


class WaitsChart(Widget):
    """Sessions at a time, stacked by what they waited for, a column a look. Fills and colours."""

    COMPONENT_CLASSES = TONE_CLASSES

    def __init__(self) -> None:
        super().__init__(id="waits-chart")
        self._past: deque[Past] = deque(maxlen=LOOKS)
        self._names: dict[str, str] = {}

    def show_past(self, past: Sequence[Past], names: dict[str, str]) -> None:
        """`names`: how the waits are called."""
        self._past = deque(past, maxlen=LOOKS)
        self._names = names
        self.refresh()

    @property
    def ranked(self) -> list[str]:
        """The waits that have a fill of their own: those with most sessions."""
        total: dict[str, float] = {}
        for look in self._past:
            for key, average in (look or {}).items():
                total[key] = total.get(key, 0.0) + average
        return sorted(total, key=lambda key: -total[key])

    def stacks(self, height: int) -> tuple[float, list[list[int] | None]]:
        """The highest stack, in sessions; and of each look the cells of each fill."""
        ranked = self.ranked
        shown, most = ranked[: len(_FILLS) - 1], 0.0
        sums: list[list[float] | None] = []
        for look in self._past:
            if look is None:
                sums.append(None)
                continue
            parts = [look.get(key, 0.0) for key in shown]
            parts += [0.0] * (len(_FILLS) - 1 - len(parts))
            sums.append([*parts, max(0.0, sum(look.values()) - sum(parts))])
            most = max(most, sum(look.values()))
        scale = height / most if most else 0.0
        return most, [None if one is None else _cells(one, scale) for one in sums]

    def render_line(self, y: int) -> Strip:
        """The legend stands to the right of the columns."""
        base, width = self.rich_style, self.size.width
        most, stacks = self.stacks(self.size.height)
        legend = self._legend(y)
        room = max(0, width - max((one.cell_len for one in map(self._legend, range(5))), default=0))
        axis = f"{most:5.1f} " if y == 0 else "    0 " if y == self.size.height - 1 else "      "
        segments = [Segment(axis, base + tone(self, "quiet"))]
        level = self.size.height - y
        columns = stacks[-max(0, room - len(axis) - 2) :] if room > len(axis) + 2 else []
        for stack in columns:
            sign, name = _at(stack, level)
            segments.append(Segment(sign, base + tone(self, name)))
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
    """The cells of each part; what there is at all has at least one."""
    return [max(1, round(part * scale)) if part > 0.005 else 0 for part in parts]


def _at(stack: list[int] | None, level: int) -> tuple[str, str]:
    """What stands at a height: 1 is the lowest. A look that failed leaves a gap."""
    if stack is None:
        return " ", ""
    for cells, fill in zip(stack, _FILLS, strict=True):
        level -= cells
        if level <= 0:
            return fill
    return " ", ""
