"""The subscribers of a ring: a line of figures each, a row of marks each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from console import formats
from console.monitor.snapshot import QueueSnapshot
from console.monitor.subscribers import SubscriberSnapshot
from console.tui.text import Words, tone
from console.tui.widgets.slot_map import POP_HEAD, STRIP_TONES, cells_of, runs

if TYPE_CHECKING:
    from textual.widget import Widget

    from console.doctor.ring_map import SlotMap

_LONGEST_NAME = 20
_INDENT = "  "


def slowest_first(snapshot: QueueSnapshot) -> list[SubscriberSnapshot]:
    """Those that are not known before all others."""

    def behind(one: SubscriberSnapshot) -> float:
        return float("inf") if one.gap is None else one.gap

    return sorted(snapshot.subscribers or (), key=behind, reverse=True)


def stands_out(snapshot: QueueSnapshot) -> str:
    """The slowest where it is plainly the one that fills the ring: of two that pop about as fast,
    now this one is behind and now the other, and that is no news. Else empty."""
    if snapshot.slowest is None:
        return ""
    gap, *others = [one.gap or 0 for one in slowest_first(snapshot)]
    alone = gap > 2 * max(others, default=0) + 1
    return snapshot.slowest.subscriber if alone or gap * 10 >= (snapshot.capacity or 1) else ""


def subscriber_lines(on: Widget, snapshot: QueueSnapshot, most: int, *, stale: bool) -> list[Text]:
    """The figures of each under one another, the slowest first; at most so many lines."""
    if "subscribers" in snapshot.unknown:
        return [Text(f"{_INDENT}subscribers {formats.UNKNOWN}", tone(on, "quiet"))]
    found = slowest_first(snapshot)
    shown = found if len(found) <= most else found[: most - 1]
    figures = [list(one.figures) for one in found]
    if all(one.parked == 0 for one in found):
        figures = [[piece for piece in told if piece[0] != "parked"] for told in figures]
    widths = [max(len(words) for _, words in column) for column in zip(*figures, strict=True)]
    name_width = min(_LONGEST_NAME, max((len(one.subscriber) for one in found), default=0))
    lines = []
    for one, told in zip(shown, figures, strict=False):
        line = Text(_INDENT, no_wrap=True)
        name = formats.plain(one.subscriber)[:_LONGEST_NAME].ljust(name_width)
        line.append(name, tone(on, "strong" if one is found[0] else ""))
        for (title, words), width in zip(told, widths, strict=True):
            line.append(f"  {title} ", tone(on, "quiet"))
            line.append(words.rjust(width), tone(on, "stale" if stale else ""))
        lines.append(line)
    if len(shown) < len(found):
        more = formats.numbered(len(found) - len(shown), "subscriber")
        lines.append(Text(f"{_INDENT}{more} less behind", tone(on, "quiet")))
    return lines


class SubscriberSlots(Words):
    """Each one's slots as a row of marks, the slowest first, with its next pop in it."""

    def draw(self, maps: Sequence[SlotMap], width: int, most: int) -> None:
        """Say them, in at most so many lines; nothing where the ring has no subscribers."""
        found = sorted(maps, key=lambda one: -1 if one.next_pop is None else one.next_pop)
        shown = found if len(found) <= most else found[: most - 1]
        name_width = min(_LONGEST_NAME, max((len(one.subscriber) for one in found), default=0))
        lines = [self._row(one, name_width, width) for one in shown]
        if len(shown) < len(found):
            more = formats.numbered(len(found) - len(shown), "subscriber")
            lines.append(Text(f"{more} less behind", tone(self, "quiet")))
        self.display = bool(lines)
        self.say(Text("\n").join(lines))

    def _row(self, of: SlotMap, name_width: int, width: int) -> Text:
        name = formats.plain(of.subscriber)[:_LONGEST_NAME].ljust(name_width)
        cells = cells_of(of.ranges, max(of.capacity, 1), max(1, width - name_width - 1))
        row = Text(f"{name} ", tone(self, "quiet"), no_wrap=True)
        for text, slot in runs(cells):
            row.append(text, tone(self, STRIP_TONES.get(slot, "")))
        if of.next_pop is not None and of.capacity:
            place = name_width + 1 + of.next_pop % of.capacity * len(cells) // of.capacity
            row = Text.assemble(row[:place], (POP_HEAD, tone(self, "strong")), row[place + 1 :])
        return row
