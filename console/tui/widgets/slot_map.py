"""A ring's slots: a strip for the overview, and a map that zooms down to a single slot."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget

from console.doctor.slot_map import SlotMap, SlotRange
from console.tui.text import TextView, style_of

# The strip: one or more lines of cells, with the two heads below.
#
# A cell is one slot or many; it shows the most severe state among them.

_HEAD = "▲"


class CellState(IntEnum):
    """What a cell shows; if its slots differ, the highest."""

    UNSEEN = 0
    FREE = 1
    LIVE = 2
    IN_PROGRESS = 3
    """A push or a pop has drawn its number and not committed."""
    LOST = 4
    """A number that will never have a message, or that waits for one."""
    STRANDED = 5
    """A message that no pop will get, or a broken slot."""

    @property
    def mark(self) -> str:
        """One character, which needs no colour."""
        return " □■▣◇✖"[self]


CELL_STYLES = {
    CellState.FREE: "quiet",
    CellState.LIVE: "trend",
    CellState.IN_PROGRESS: "strong",
    CellState.LOST: "warning",
    CellState.STRANDED: "critical",
}
_STATES = {
    "free": CellState.FREE,
    "ready": CellState.LIVE,
    "parked": CellState.LIVE,
    "popping": CellState.IN_PROGRESS,
    "pushing": CellState.IN_PROGRESS,
    "awaited": CellState.LOST,
    "hole": CellState.LOST,
    "void": CellState.LOST,
}


def cell_state(state: str) -> CellState:
    """The cell state for a state of `slot_map`; unknown ones stand out."""
    return _STATES.get(state, CellState.STRANDED)


def strip_cells(ranges: Sequence[SlotRange], capacity: int, count: int) -> list[CellState]:
    """`count` cells for the whole ring, or one per slot if that is fewer."""
    count = min(count, capacity)
    cells = [CellState.UNSEEN] * count
    for slots in ranges:
        shown = cell_state(slots.state)
        last = min(slots.last_slot, capacity - 1)
        for index in range(slots.first_slot * count // capacity, last * count // capacity + 1):
            cells[index] = max(cells[index], shown)
    return cells


class SlotStrip(TextView):
    """A strip of cells for a whole ring."""

    def draw(
        self,
        ranges: Sequence[SlotRange],
        capacity: int,
        width: int,
        pop_head: int | None = None,
        push_head: int | None = None,
        *,
        lines: int = 1,
        label: str = "",
    ) -> None:
        """The heads are the next numbers of the two sequences; None: unknown.

        `width`: of a line; `label` (safe to show) precedes the first one.
        """
        room = max(1, width - len(label))
        cells = strip_cells(ranges, max(capacity, 1), room * max(lines, 1))
        heads = {
            name: number % capacity * len(cells) // capacity
            for name, number in (("pop", pop_head), ("push", push_head))
            if number is not None and capacity > 0
        }
        numbers = {"pop": pop_head, "push": push_head}
        drawn = Text(no_wrap=True)
        for start in range(0, len(cells), room):
            drawn.append(label if not start else "\n" + " " * len(label), style_of(self, "quiet"))
            for text, slot in runs(cells[start : start + room]):
                drawn.append(text, style_of(self, CELL_STYLES.get(slot, "")))
            line_heads = sorted(
                (position - start, name, f"{numbers[name]:,}")
                for name, position in heads.items()
                if start <= position < start + room
            )
            if line_heads:
                drawn.append(
                    "\n" + " " * len(label) + _heads(line_heads, room), style_of(self, "strong")
                )
        self.set_text(drawn)


def runs(cells: Sequence[CellState]) -> Iterator[tuple[str, CellState]]:
    start = 0
    for index in range(1, len(cells) + 1):
        if index == len(cells) or cells[index] != cells[start]:
            yield cells[start].mark * (index - start), cells[start]
            start = index


def _heads(heads: Sequence[tuple[int, str, str]], width: int) -> str:
    """A mark under each head, with its name and number if there is room."""
    marks = [" "] * width
    for position, _, _ in heads:
        marks[position] = _HEAD
    # The left head is labelled to its left and the right one to its right, if possible.
    each = []
    for index, (position, name, number) in enumerate(heads):
        text = f"{name} {number}"
        starts = [position - len(text) - 1, position + 2]
        each.append((text, starts if index == 0 and len(heads) > 1 else starts[::-1]))
    both = ", ".join(text for text, _ in each)
    together = [(both, [heads[0][0] - len(both) - 1, heads[-1][0] + 2])]
    for texts in (each, together):
        line = [*marks]
        if all(_write(line, text, starts) for text, starts in texts):
            return "".join(line).rstrip()
    return "".join(marks).rstrip()


def _write(line: list[str], text: str, starts: Sequence[int]) -> bool:
    """Write it at the first position where it touches nothing else; whether there is one."""
    for start in starts:
        end = start + len(text)
        if start < 0 or end > len(line) or set(line[start:end]) - {" "}:
            continue
        if set(line[max(0, start - 1) : end + 1]) <= {" ", _HEAD}:
            line[start:end] = text
            return True
    return False


POP_HEAD, PUSH_HEAD, BOTH_HEADS = "↑↓↕"
_ZOOM_FACTOR = 10
"""The factor of one zoom step, if possible."""
Window = tuple[int, int]
"""First and last slot."""


class SlotMapView(Widget, can_focus=True):
    """The map of a ring. The cursor is a slot, and stays on it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"slot-map--cursor", "slot-map--head"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1)", "one cell left", show=False),
        Binding("right,l", "move(1)", "one cell right", show=False),
        Binding("up,k", "line(-1)", "one line up", show=False),
        Binding("down,j", "line(1)", "one line down", show=False),
        Binding("home,g", "first", "first slot", show=False),
        Binding("end,G", "last", "last slot", show=False),
        Binding("n", "trouble(1)", "next loss", tooltip="the next orphan, hole or missing slot"),
        Binding("N", "trouble(-1)", "previous loss", show=False, tooltip="the previous one"),
    ]

    class Moved(Message):
        """The cursor or the window has moved."""

    def __init__(self) -> None:
        super().__init__(id="slot-map")
        self.map: SlotMap | None = None
        self.cursor = 0
        """A slot."""
        self._windows: list[Window] = []
        """The zoomed windows, the innermost last."""
        self._firsts: list[int] = []

    def show(self, slot_map: SlotMap) -> None:
        """Show a newer map, in the same window unless the ring's size has changed."""
        if self.map is not None and self.map.capacity != slot_map.capacity:
            self._windows.clear()
        self.map = slot_map
        self._firsts = [slots.first_slot for slots in slot_map.ranges]
        self.cursor = max(0, min(self.cursor, slot_map.capacity - 1))
        self.refresh()

    # Geometry.

    @property
    def window(self) -> Window:
        if self._windows:
            return self._windows[-1]
        return 0, max(0, (self.map.capacity if self.map is not None else 1) - 1)

    @property
    def zoomed(self) -> bool:
        return bool(self._windows)

    @property
    def cells(self) -> list[Window]:
        first, last = self.window
        slots = last - first + 1
        count = min(slots, max(1, self.size.width) * max(1, self.size.height))
        ends = [first + index * slots // count for index in range(count + 1)]
        return [(ends[index], ends[index + 1] - 1) for index in range(count)]

    @property
    def cell(self) -> Window:
        cells = self.cells
        return cells[self._cell_index(cells)]

    def ranges_in(self, window: Window) -> Iterator[SlotRange]:
        """The map's ranges in this window, clipped to it."""
        if self.map is None:
            return
        first, last = window
        at = max(0, bisect_right(self._firsts, first) - 1)
        for slots in self.map.ranges[at:]:
            if slots.first_slot > last:
                return
            if slots.last_slot >= first:
                yield _cut(slots, first, last)

    def counts(self, window: Window) -> Counter[str]:
        counts: Counter[str] = Counter()
        for slots in self.ranges_in(window):
            counts[slots.state] += slots.count
        return counts

    @property
    def heads(self) -> dict[int, str]:
        """Slot -> the mark of the head that is there."""
        if self.map is None or not self.map.capacity:
            return {}
        size = self.map.capacity
        pop = None if self.map.next_pop is None else self.map.next_pop % size
        push = None if self.map.next_push is None else self.map.next_push % size
        if pop is not None and pop == push:
            return {pop: BOTH_HEADS}
        marks = ((pop, POP_HEAD), (push, PUSH_HEAD))
        return {slot: mark for slot, mark in marks if slot is not None}

    def _cell_index(self, cells: list[Window]) -> int:
        return max(0, bisect_right(cells, (self.cursor, self.window[1])) - 1)

    # Drawing.

    def render(self) -> Text:
        shown = Text(no_wrap=True)
        width = max(1, self.size.width)
        cells = self.cells if self.map is not None else []
        cursor_index = self._cell_index(cells) if cells else -1
        styles = self._styles()
        heads = sorted(self.heads.items())
        run, style = "", ""
        for index, window in enumerate(cells):
            text, name = self._cell(window, [mark for slot, mark in heads if _in(slot, window)])
            name = "cursor" if index == cursor_index else name
            if name != style:
                shown.append(run, styles[style])
                run, style = "", name
            run += "\n" * (index > 0 and index % width == 0) + text
        return shown.append(run, styles[style])

    def _cell(self, window: Window, heads: list[str]) -> tuple[str, str]:
        """Its mark, and the name of its style."""
        if heads:
            return heads[0] if len(heads) == 1 else BOTH_HEADS, "head"
        slot = max(
            (cell_state(slots.state) for slots in self.ranges_in(window)), default=CellState.UNSEEN
        )
        return slot.mark, CELL_STYLES.get(slot, "")

    def _styles(self) -> dict[str, Style]:
        """By name; once for all cells."""
        own = {
            name: self.get_component_rich_style(f"slot-map--{name}", partial=True)
            for name in ("cursor", "head")
        }
        return own | {name: style_of(self, name) for name in ("", *CELL_STYLES.values())}

    # Moving.

    def move_to(self, slot: int) -> None:
        first, last = self.window
        self.cursor = max(first, min(slot, last))
        self._moved()

    def _moved(self) -> None:
        self.refresh()
        self.post_message(self.Moved())

    def zoom_in(self) -> bool:
        """Zoom to the cell under the cursor; False if that is a single slot."""
        first, last = self.cell
        if self.map is None or first == last:
            return False
        # The window includes neighbours, to use the whole view.
        low, high = self.window
        room = max(1, self.size.width) * max(1, self.size.height)
        slots = max(last - first + 1, min(room, (high - low + 1) // _ZOOM_FACTOR))
        start = max(low, min((first + last) // 2 - slots // 2, high - slots + 1))
        self._windows.append((start, min(high, start + slots - 1)))
        self._moved()
        return True

    def zoom_out(self) -> bool:
        """One step back; False if the whole ring is visible."""
        if not self._windows:
            return False
        self._windows.pop()
        self._moved()
        return True

    def action_move(self, cells: int) -> None:
        known = self.cells
        index = max(0, min(self._cell_index(known) + cells, len(known) - 1))
        self.move_to(known[index][0])

    def action_line(self, lines: int) -> None:
        self.action_move(lines * max(1, self.size.width))

    def action_first(self) -> None:
        self.move_to(self.window[0])

    def action_last(self) -> None:
        self.move_to(self.window[1])

    def action_trouble(self, step: int) -> None:
        """To the next or previous lost slot, around the ends of the ring."""
        if self.map is None:
            return
        lost = [
            slots.first_slot
            for slots in self.map.ranges
            if cell_state(slots.state) >= CellState.LOST
        ]
        if not lost:
            return
        after = [slot for slot in lost if slot > self.cursor]
        before = [slot for slot in lost if slot < self.cursor]
        slot = (after or lost)[0] if step > 0 else (before or lost)[-1]
        while self._windows and not _in(slot, self.window):
            self._windows.pop()
        self.move_to(min(slot, self.map.capacity - 1))

    def on_resize(self) -> None:
        """The cells change, and so what is under the cursor."""
        self._moved()

    def on_click(self, event: events.Click) -> None:
        index, cells = event.y * max(1, self.size.width) + event.x, self.cells
        if index < len(cells):
            self.move_to(cells[index][0])


def _in(slot: int, window: Window) -> bool:
    return window[0] <= slot <= window[1]


def _cut(slots: SlotRange, first: int, last: int) -> SlotRange:
    """The part of a range in a window; its numbers increase with its slots."""
    start, end = max(slots.first_slot, first), min(slots.last_slot, last)
    count = min(slots.count, end - start + 1)
    if slots.first_number is None:
        return SlotRange(start, end, slots.state, count, None, None)
    number = slots.first_number + start - slots.first_slot
    return SlotRange(start, end, slots.state, count, number, number + end - start)
