"""The tab Slots of a ring: which slots are in use, and which messages are lost."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from console import formats
from console.catalog import Queue
from console.doctor.slot_map import SlotMap, SlotRange, read_slot_map
from console.monitor.scans import By, ScanKey, scans_of
from console.tui.open_connection import OpenConnection
from console.tui.tabs.tab import ReadingTab
from console.tui.text import TextView, describe_error, style_of
from console.tui.views import QueueView
from console.tui.widgets.queue_columns import LONGEST_SUBSCRIBER
from console.tui.widgets.slot_map import (
    CELL_STYLES,
    POP_HEAD,
    PUSH_HEAD,
    CellState,
    SlotMapView,
    cell_state,
    runs,
    strip_cells,
)

_ALWAYS = ("ready", "free", "orphan", "hole", "missing")
"""Shown even if there are none."""
_STATES = (
    *("ready", "parked", "free", "pushing", "popping", "awaited"),
    *("orphan", "hole", "void", "missing", "broken"),
)
_PLURALS = {"orphan": "orphans", "hole": "holes", "void": "voids"}
_STYLES = {CellState.LOST: "warning", CellState.STRANDED: "critical"}
_MEANS = {
    "ready": "a message that a pop will fetch",
    "parked": "a message whose number is parked for a pop: it is popped before the others",
    "free": "free; a push will use it",
    "pushing": "a push has its number and has not committed",
    "popping": "a pop has its number and has not committed",
    "awaited": "a pop came before its message; the message is popped as soon as it arrives",
    "orphan": "a message that no pop will ever fetch",
    "hole": "its number was consumed, and no message will come",
    "void": "its number could not be used; the pop that draws it drops it",
    "missing": "the slot has no row",
    "broken": "the row contradicts itself",
}
_HOLDS_A_MESSAGE = {"ready", "parked", "popping", "orphan", "broken"}


@dataclass(frozen=True)
class QueueSlotMap:
    queue: Queue
    map: SlotMap


class SubscriberSlots(TextView):
    """A row of marks for each subscriber's slots and next pop, the slowest first."""

    def draw(self, maps: Sequence[SlotMap], width: int, most: int) -> None:
        """In at most `most` lines; none where the ring has no subscribers."""
        ordered = sorted(
            maps, key=lambda slot_map: -1 if slot_map.next_pop is None else slot_map.next_pop
        )
        shown = ordered if len(ordered) <= most else ordered[: most - 1]
        name_width = min(
            LONGEST_SUBSCRIBER, max((len(slot_map.subscriber) for slot_map in ordered), default=0)
        )
        lines = [self._row(slot_map, name_width, width) for slot_map in shown]
        if len(shown) < len(ordered):
            more = formats.numbered(len(ordered) - len(shown), "subscriber")
            lines.append(Text(f"{more} less far behind", style_of(self, "quiet")))
        self.display = bool(lines)
        self.set_text(Text("\n").join(lines))

    def _row(self, of: SlotMap, name_width: int, width: int) -> Text:
        name = formats.plain(of.subscriber)[:LONGEST_SUBSCRIBER].ljust(name_width)
        cells = strip_cells(of.ranges, max(of.capacity, 1), max(1, width - name_width - 1))
        row = Text(f"{name} ", style_of(self, "quiet"), no_wrap=True)
        for text, slot in runs(cells):
            row.append(text, style_of(self, CELL_STYLES.get(slot, "")))
        if of.next_pop is not None and of.capacity:
            at = name_width + 1 + of.next_pop % of.capacity * len(cells) // of.capacity
            row = Text.assemble(row[:at], (POP_HEAD, style_of(self, "strong")), row[at + 1 :])
        return row


class SlotsTab(ReadingTab[QueueSlotMap]):
    """The map, the slots under its cursor, and how many there are in each state."""

    NAME: ClassVar[str] = "slots"
    TITLE: ClassVar[str] = "Slots"
    EVERY_SECONDS: ClassVar[float] = 1.0
    PACE_SECONDS: ClassVar[float] = 2.0
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "closer", "closer", tooltip="zoom in; a single slot opens its message"),
        Binding("escape,q,backspace", "back", "zoom out", show=False),
    ]

    @classmethod
    def unavailable(cls, view: QueueView) -> str:
        snapshot = view.snapshot
        if snapshot.problem or snapshot.capacity is not None or "capacity" in snapshot.unknown:
            return ""
        return f"The design {snapshot.design} has no slots: only rings do."

    def compose(self) -> ComposeResult:
        yield TextView(id="slot-counts")
        yield SlotMapView()
        yield SubscriberSlots(id="slot-subscribers")
        yield TextView(id="slot-detail")

    @property
    def view(self) -> SlotMapView:
        return self.query_one(SlotMapView)

    def read(self, conn: OpenConnection) -> QueueSlotMap:
        queue = conn.find(*self.key[1:])
        return QueueSlotMap(queue, read_slot_map(conn.database, queue))

    def show(self, result: QueueSlotMap) -> None:
        self.view.show(result.map)

    def on_slot_map_view_moved(self) -> None:
        self.draw_texts()

    def draw_texts(self) -> None:
        head, foot = (
            self.query_one("#slot-counts", TextView),
            self.query_one("#slot-detail", TextView),
        )
        if self.result is None:
            words = "Reading the slots ..." if self.error is None else describe_error(self.error)
            head.set_text(
                Text(words, style_of(head, "quiet" if self.error is None else "critical"))
            )
            foot.set_text(Text())
            self.query_one(SubscriberSlots).draw((), 0, 0)
            return
        head.set_text(self._counts(head, self.result.map))
        foot.set_text(self._detail(foot, self.result.map))
        size, rows = self.app.size, self.query_one(SubscriberSlots)
        rows.draw(self.result.map.subscribers, max(20, size.width - 2), max(2, size.height // 4))

    def _counts(self, head: TextView, slot_map: SlotMap) -> Text:
        line = Text()
        if self.error is not None:
            line.append(
                f"{self.age_text}{describe_error(self.error)}\n", style_of(head, "critical")
            )
        if slot_map.subscribers:
            line.append(f"{slot_map.subscriber}  ", style_of(head, "strong"))
        size = slot_map.capacity
        counts = self.view.counts(
            (0, max([size - 1, *(slots.last_slot for slots in slot_map.ranges)]))
        )
        for state in _STATES:
            count = counts.pop(state, 0)
            if count or state in _ALWAYS:
                line.append_text(_piece(head, state, count))
        for state, count in counts.items():
            line.append_text(_piece(head, state, count))
        return line.append(f"of {size:,}", style_of(head, "quiet"))

    def _detail(self, foot: TextView, slot_map: SlotMap) -> Text:
        view, line = self.view, Text(no_wrap=True, overflow="ellipsis")
        parts = list(view.ranges_in(view.cell))
        first, last = view.cell
        low, high = view.window
        where = f"slots {low:,} to {high:,}, " if view.zoomed else ""
        size = last - first + 1
        each = "" if size == 1 else f"a cell is {size:,} slots, "
        if first == last and parts:
            part = parts[0]
            number = "" if part.first_number is None else f", number {part.first_number:,}"
            line.append(f"slot {first:,}{number}: {part.state}", style_of(foot, "strong"))
            line.append(f"  {_MEANS.get(part.state, '')}", style_of(foot, "quiet"))
            if part.state in _HOLDS_A_MESSAGE:
                line.append("  Enter opens it", style_of(foot, "quiet"))
        else:
            line.append(f"slots {first:,} to {last:,}: ", style_of(foot, "strong"))
            line.append(", ".join(_counted(parts)))
            line.append("  Enter zooms in", style_of(foot, "quiet"))
        line.append("\n")
        self._append_heads(line, foot, slot_map)
        back = ", Escape goes back" if view.zoomed else ""
        line.append(f"{where}{each}n: the next loss{back}", style_of(foot, "quiet"))
        return line

    def _append_heads(self, line: Text, foot: TextView, slot_map: SlotMap) -> None:
        heads = ((POP_HEAD, "pop", slot_map.next_pop), (PUSH_HEAD, "push", slot_map.next_push))
        for mark, name, number in heads:
            line.append(f"{mark} {name} ", style_of(foot, "strong"))
            line.append("?   " if number is None else f"{number:,}   ")

    def action_closer(self) -> None:
        """Zoom in, down to a slot; then open its message."""
        if self.view.zoom_in() or self.result is None:
            return
        part = next(iter(self.view.ranges_in(self.view.cell)), None)
        if part is not None and part.state in _HOLDS_A_MESSAGE and part.first_number is not None:
            self.navigator.open_message(self.key, message_key(self.result.queue, part.first_number))

    def action_back(self) -> None:
        self.view.zoom_out()

    def check_action(self, action: str, _parameters: object) -> bool | None:
        """Without a zoom, Escape leaves the screen."""
        return action != "back" or (self.is_composed and self.view.zoomed)


def message_key(queue: Queue, number: int) -> str:
    """The key of the message of that number, as a page of messages has it."""
    scan = next(scan for scan in scans_of(queue) if scan.by is By.NUMBER)
    return ScanKey(scan.name, id=str(number)).text


def _piece(head: TextView, state: str, count: int) -> Text:
    slot = cell_state(state)
    style = style_of(head, _STYLES.get(slot, "quiet") if count else "quiet")
    words = state if count == 1 else _PLURALS.get(state, state)
    return Text.assemble((f"{slot.mark} ", style), f"{count:,} ", (words, style), "   ")


def _counted(parts: list[SlotRange]) -> Iterator[str]:
    """`38 ready, 2 orphans (numbers 17 to 18)`."""
    counts: Counter[str] = Counter()
    for part in parts:
        counts[part.state] += part.count
    for state, count in counts.items():
        words = state if count == 1 else _PLURALS.get(state, state)
        numbers = [p.first_number for p in parts if p.state == state and p.first_number is not None]
        lasts = [p.last_number for p in parts if p.state == state and p.last_number is not None]
        span = (
            f" ({min(numbers):,} to {max(lasts):,})"
            if numbers and cell_state(state) >= CellState.LOST
            else ""
        )
        yield f"{count:,} {words}{span}"
