"""The slots of a ring: which are in use, and what is lost in it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from console.catalog import Queue
from console.doctor.ring_map import SlotMap, SlotRange, whole_map
from console.errors import ConsoleError
from console.monitor.walks import By, walks_of
from console.monitor.walks import Key as Place
from console.tui.board import Key, QueueView
from console.tui.desk import Desk
from console.tui.jobs import Question
from console.tui.tabs.pace import Pace
from console.tui.tabs.tab import QueueTab
from console.tui.text import said, whole_seconds
from console.tui.widgets.slot_map import POP_HEAD, PUSH_HEAD, SlotMapView
from console.tui.widgets.slot_strip import Slot, slot_of
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words

_ALWAYS = ("ready", "free", "orphan", "hole", "missing")
"""Said even where there are none."""
_STATES = (
    *("ready", "parked", "free", "pushing", "popping", "awaited"),
    *("orphan", "hole", "void", "missing", "broken"),
)
_PLURALS = {"orphan": "orphans", "hole": "holes", "void": "voids"}
_TONES = {Slot.LOST: "warning", Slot.STRANDED: "critical"}
_MEANS = {
    "ready": "a message that a pop will ask for",
    "parked": "a message whose number waits for a pop: it is popped before the others",
    "free": "nothing; a push will use it",
    "pushing": "a push has its number and has not ended",
    "popping": "a pop has its number and has not ended",
    "awaited": "a pop came before its message; the message is popped as soon as it is there",
    "orphan": "a message that no pop will ever ask for",
    "hole": "its number is spent, and no message will come",
    "void": "its number could not be used; the pop that draws it drops it",
    "missing": "the slot has no row",
    "broken": "the row contradicts itself",
}
_HOLDS_A_MESSAGE = {"ready", "parked", "popping", "orphan", "broken"}


@dataclass(frozen=True)
class Found:
    """A map and of which queue it is."""

    queue: Queue
    map: SlotMap


class SlotsTab(QueueTab):
    """The map, what is under its cursor, and how many of each there are."""

    NAME: ClassVar[str] = "slots"
    TITLE: ClassVar[str] = "Slots"
    EVERY_SECONDS: ClassVar[float] = 1.0
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "closer", "closer", tooltip="zoom in; a single slot opens its message"),
        Binding("escape,q,backspace", "back", "back", show=False, tooltip="zoom out"),
        Binding("r", "look_again", "now", show=False, tooltip="read the slots now"),
    ]

    def __init__(self, desk: Desk, key: Key) -> None:
        super().__init__(desk, key)
        self.found: Found | None = None
        self._found_at = 0.0
        self._error: ConsoleError | None = None
        self._pace = Pace(desk.clock.monotonic, 2.0)
        self._question: Question[Found] = Question(self, self.show_found, self.fail)

    @classmethod
    def applies(cls, view: QueueView) -> bool:
        """Rings have slots."""
        return view.snapshot.capacity is not None or "capacity" in view.snapshot.unknown

    def compose(self) -> ComposeResult:
        """How many there are of each, the map, what is under the cursor."""
        yield Words(id="slot-counts")
        yield SlotMapView()
        yield Words(id="slot-detail")

    def on_mount(self) -> None:
        """Nothing is known yet."""
        self._draw_words()

    @property
    def view(self) -> SlotMapView:
        """The map."""
        return self.query_one(SlotMapView)

    # What is asked, and what comes of it.

    def look(self) -> None:
        """Read the slots; all of them, so seldom where the ring is large."""
        if self._pace.due:
            self._ask(wait=False)

    def action_look_again(self) -> None:
        """Read the slots, and look at all databases, now."""
        self.desk.look_now()
        self._ask()

    def _ask(self, *, wait: bool = True) -> None:
        place, (_, schema, name) = self.place, self.key
        if place is None or (not wait and self._question.under_way):
            return

        def work() -> Found:
            queue = place.find(schema, name)
            return Found(queue, whole_map(place.database, queue))

        self._pace.asked()
        self._question.ask(work, wait=wait)

    def show_found(self, found: Found) -> None:
        """The slots as they were a moment ago."""
        self._pace.answered()
        self.found, self._found_at = found, self.desk.clock.monotonic()
        self._error = None
        if self.is_whole:
            self.view.show(found.map)
            self._draw_words()

    def fail(self, error: ConsoleError) -> None:
        """What was seen last stays, with its age."""
        self._pace.answered()
        self._error = error
        if self.is_whole:
            self._draw_words()

    # What is drawn.

    def draw(self, view: QueueView | None, *, paused: bool) -> None:  # noqa: ARG002
        """The map has a clock of its own; only its age runs on."""
        if self.is_whole and not paused:
            self._draw_words()

    def on_slot_map_view_moved(self) -> None:
        """Something else is under the cursor."""
        self._draw_words()

    def _draw_words(self) -> None:
        head, foot = self.query_one("#slot-counts", Words), self.query_one("#slot-detail", Words)
        if self.found is None:
            words = "Reading the slots ..." if self._error is None else said(self._error)
            head.say(Text(words, tone(head, "quiet" if self._error is None else "critical")))
            foot.say(Text())
            return
        head.say(self._counts(head, self.found.map))
        foot.say(self._detail(foot, self.found.map))

    def _counts(self, head: Words, found: SlotMap) -> Text:
        line = Text()
        if self._error is not None:
            age = whole_seconds(self.desk.clock.monotonic() - self._found_at)
            line.append(f"as it was {age} ago: {said(self._error)}\n", tone(head, "critical"))
        size = found.capacity
        counts = self.view.counts((0, max([size - 1, *(one.last_slot for one in found.ranges)])))
        for state in _STATES:
            count = counts.pop(state, 0)
            if count or state in _ALWAYS:
                line.append_text(_piece(head, state, count))
        for state, count in counts.items():
            line.append_text(_piece(head, state, count))
        return line.append(f"of {size:,}", tone(head, "quiet"))

    def _detail(self, foot: Words, found: SlotMap) -> Text:
        view, line = self.view, Text(no_wrap=True, overflow="ellipsis")
        parts = list(view.parts(view.cell))
        first, last = view.cell
        low, high = view.window
        where = f"slots {low:,} to {high:,}, " if view.zoomed else ""
        size = last - first + 1
        each = "" if size == 1 else f"a cell is {size:,} slots, "
        if first == last and parts:
            part = parts[0]
            number = "" if part.first_number is None else f", number {part.first_number:,}"
            line.append(f"slot {first:,}{number}: {part.state}", tone(foot, "strong"))
            line.append(f"  {_MEANS.get(part.state, '')}", tone(foot, "quiet"))
            if part.state in _HOLDS_A_MESSAGE:
                line.append("  Enter opens it", tone(foot, "quiet"))
        else:
            line.append(f"slots {first:,} to {last:,}: ", tone(foot, "strong"))
            line.append(", ".join(_told(parts)))
            line.append("  Enter comes closer", tone(foot, "quiet"))
        line.append("\n")
        self._say_heads(line, foot, found)
        back = ", Escape goes back" if view.zoomed else ""
        line.append(f"{where}{each}n: the next loss{back}", tone(foot, "quiet"))
        return line

    def _say_heads(self, line: Text, foot: Words, found: SlotMap) -> None:
        heads = ((POP_HEAD, "pop", found.next_pop), (PUSH_HEAD, "push", found.next_push))
        for mark, name, number in heads:
            line.append(f"{mark} {name} ", tone(foot, "strong"))
            line.append("?   " if number is None else f"{number:,}   ")

    # Where one can go.

    def action_closer(self) -> None:
        """Zoom in, down to a slot; then to its message."""
        if self.view.zoom_in() or self.found is None:
            return
        part = next(iter(self.view.parts(self.view.cell)), None)
        if part is not None and part.state in _HOLDS_A_MESSAGE and part.first_number is not None:
            self.ways.open_message(self.key, message_key(self.found.queue, part.first_number))

    def action_back(self) -> None:
        """Zoom out."""
        self.view.zoom_out()

    def check_action(
        self,
        action: str,
        parameters: tuple[object, ...],  # noqa: ARG002  # Textual's signature
    ) -> bool | None:
        """Where the whole ring is in sight, its keys go out of the screen."""
        return action != "back" or (self.is_whole and self.view.zoomed)


def message_key(queue: Queue, number: int) -> str:
    """The message of that number, as a page of messages would name it."""
    walk = next(walk for walk in walks_of(queue) if walk.by is By.NUMBER)
    return Place(walk.name, id=str(number)).text


def _piece(head: Words, state: str, count: int) -> Text:
    slot = slot_of(state)
    mood = _TONES.get(slot, "quiet") if count else "quiet"
    words = state if count == 1 else _PLURALS.get(state, state)
    return Text.assemble(
        (f"{slot.mark} ", tone(head, mood)), f"{count:,} ", (words, tone(head, mood)), "   "
    )


def _told(parts: list[SlotRange]) -> Iterator[str]:
    """`38 ready, 2 orphans (numbers 17 to 18)`."""
    counts: dict[str, int] = {}
    for part in parts:
        counts[part.state] = counts.get(part.state, 0) + part.count
    for state, count in counts.items():
        words = state if count == 1 else _PLURALS.get(state, state)
        numbers = [p.first_number for p in parts if p.state == state and p.first_number is not None]
        lasts = [p.last_number for p in parts if p.state == state and p.last_number is not None]
        span = (
            f" ({min(numbers):,} to {max(lasts):,})"
            if numbers and slot_of(state) >= Slot.LOST
            else ""
        )
        yield f"{count:,} {words}{span}"
