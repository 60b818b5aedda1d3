"""The slots of the ring under the cursor, on a screen that has room for them."""

from collections.abc import Sequence

from rich.text import Text

from console.doctor.ring_map import SlotMap, whole_map
from console.errors import ConsoleError
from console.tui import jobs
from console.tui.board import Key, QueueView
from console.tui.desk import Desk
from console.tui.tabs.pace import Pace
from console.tui.text import first_line, plain
from console.tui.widgets.slot_strip import SlotStrip
from console.tui.widgets.tones import tone

EVERY_SECONDS = 3.0
_LEAST_LINES = 36
_LEAST_COLUMNS = 100


class RingSlots(SlotStrip):
    """Asks only while it is in sight; where the screen is small it is not there."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(id="slots")
        self._desk = desk
        self._key: Key | None = None
        self._asked_of: Key | None = None
        self._map: SlotMap | None = None
        self._why = ""
        self._pace = Pace(desk.clock.monotonic, EVERY_SECONDS)
        self._question: jobs.Question[tuple[Key, SlotMap]] = jobs.Question(
            self, self.show_map, self._failed
        )

    def follow(self, under_cursor: QueueView | None, all_views: Sequence[QueueView]) -> None:
        """Show the ring under the cursor, else the one of before, else the first there is."""
        size = self.app.size
        room = size.height >= _LEAST_LINES and size.width >= _LEAST_COLUMNS
        rings = {view.key: view for view in all_views if self._can_be_mapped(view)}
        if under_cursor is not None and under_cursor.key in rings:
            self._key = under_cursor.key
        elif self._key not in rings:
            self._key = next(iter(rings), None)
        view = rings.get(self._key) if self._key is not None and room else None
        self.display = view is not None
        if view is None:
            return
        self._ask()
        self._show(view)

    def _can_be_mapped(self, view: QueueView) -> bool:
        return view.snapshot.capacity is not None and self._desk.place(view.key) is not None

    def _ask(self) -> None:
        key = self._key
        if key is None or (key == self._asked_of and not self._pace.due):
            return
        place = self._desk.place(key)
        if place is None:
            return
        if key != self._asked_of:
            self._map, self._why = None, ""
        self._asked_of = key
        self._pace.asked()

        def work() -> tuple[Key, SlotMap]:
            return key, whole_map(place.database, place.find(*key[1:]))

        self._question.ask(work)

    def show_map(self, answer: tuple[Key, SlotMap]) -> None:
        """The answer has come."""
        self._pace.answered()
        if answer[0] == self._key:
            self._map, self._why = answer[1], ""

    def _failed(self, error: ConsoleError) -> None:
        self._pace.answered()
        self._why = first_line(error.why or error.what)

    def _show(self, view: QueueView) -> None:
        label = f"slots of {view.label}  "
        if view.snapshot.capacity is not None:
            label = f"slots of {view.label} ({view.snapshot.capacity:,})  "
        if self._map is None or self._why:
            words = self._why and f"cannot be mapped now: {plain(self._why)}"
            self.say(Text(label + words + "\n", tone(self, "quiet"), no_wrap=True))
            return
        now, width = self._map, max(20, self.app.size.width - 2)
        heads = (now.next_pop, now.next_push)
        self.draw(now.ranges, now.capacity, width, *heads, label=label)
