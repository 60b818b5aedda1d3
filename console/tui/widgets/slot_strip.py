"""A ring's slots as one strip of cells, or as several lines of it, with the two heads under it.

A cell stands for one slot or for many; of many it shows the gravest state there is among them.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum

from rich.text import Text

from console.doctor.ring_map import SlotRange
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words

_HEAD = "▲"


class Slot(IntEnum):
    """What a cell shows; the higher one is shown where a cell has several."""

    UNSEEN = 0
    FREE = 1
    LIVE = 2
    MOVING = 3
    """A push or a pop has its number and has not ended."""
    LOST = 4
    """A number that will never have a message, or that waits for one."""
    STRANDED = 5
    """A message that no pop will ask for, or a slot that is broken."""

    @property
    def mark(self) -> str:
        """One cell that tells it without any colour."""
        return " □■▣◇✖"[self]


_TONES = {
    Slot.FREE: "quiet",
    Slot.LIVE: "trend",
    Slot.MOVING: "strong",
    Slot.LOST: "warning",
    Slot.STRANDED: "critical",
}
_STATES = {
    "free": Slot.FREE,
    "ready": Slot.LIVE,
    "parked": Slot.LIVE,
    "popping": Slot.MOVING,
    "pushing": Slot.MOVING,
    "awaited": Slot.LOST,
    "hole": Slot.LOST,
    "void": Slot.LOST,
}
_LEGEND = (
    (Slot.LIVE, "live"),
    (Slot.FREE, "free"),
    (Slot.MOVING, "under way"),
    (Slot.LOST, "hole, void, awaited"),
    (Slot.STRANDED, "orphan, broken"),
)


def slot_of(state: str) -> Slot:
    """What a state of `slot_map` is shown as; one that is not known yet is not hidden."""
    return _STATES.get(state, Slot.STRANDED)


def cells_of(ranges: Sequence[SlotRange], capacity: int, count: int) -> list[Slot]:
    """So many cells for the whole ring; fewer where it has fewer slots."""
    count = min(count, capacity)
    cells = [Slot.UNSEEN] * count
    for one in ranges:
        shown = slot_of(one.state)
        last = min(one.last_slot, capacity - 1)
        for place in range(one.first_slot * count // capacity, last * count // capacity + 1):
            cells[place] = max(cells[place], shown)
    return cells


class SlotStrip(Words):
    """Draw it again whenever there is a newer map: heads and cells move in place."""

    def draw(  # one picture
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
        """The heads are the next numbers of the two sequences; None: not known.

        `width` is what a line may take, `label` (safe to show) stands before the first one.
        """
        room = max(1, width - len(label))
        cells = cells_of(ranges, max(capacity, 1), room * max(lines, 1))
        heads = {
            name: number % capacity * len(cells) // capacity
            for name, number in (("pop", pop_head), ("push", push_head))
            if number is not None and capacity > 0
        }
        numbers = {"pop": pop_head, "push": push_head}
        drawn = Text(no_wrap=True)
        for start in range(0, len(cells), room):
            drawn.append(label if not start else "\n" + " " * len(label), tone(self, "quiet"))
            for text, slot in _runs(cells[start : start + room]):
                drawn.append(text, tone(self, _TONES.get(slot, "")))
            here = sorted(
                (place - start, name, f"{numbers[name]:,}")
                for name, place in heads.items()
                if start <= place < start + room
            )
            if here:
                drawn.append("\n" + " " * len(label) + _heads(here, room), tone(self, "strong"))
        self.say(drawn)

    def legend(self) -> Text:
        """What the marks mean, for a line of its own."""
        line = Text(no_wrap=True)
        for slot, words in _LEGEND:
            line.append(slot.mark, tone(self, _TONES[slot]))
            line.append(f" {words}   ", tone(self, "quiet"))
        return line


def _runs(cells: Sequence[Slot]) -> Iterator[tuple[str, Slot]]:
    start = 0
    for place in range(1, len(cells) + 1):
        if place == len(cells) or cells[place] != cells[start]:
            yield cells[start].mark * (place - start), cells[start]
            start = place


def _heads(here: Sequence[tuple[int, str, str]], width: int) -> str:
    """A mark under each head, with its name and number where there is room for them."""
    marks = [" "] * width
    for place, _, _ in here:
        marks[place] = _HEAD
    # The left one speaks to its left and the right one to its right, where they can.
    each = []
    for turn, (place, name, number) in enumerate(here):
        text = f"{name} {number}"
        places = [place - len(text) - 1, place + 2]
        each.append((text, places if turn == 0 and len(here) > 1 else places[::-1]))
    both = ", ".join(text for text, _ in each)
    together = [(both, [here[0][0] - len(both) - 1, here[-1][0] + 2])]
    for texts in (each, together):
        line = [*marks]
        if all(_write(line, text, places) for text, places in texts):
            return "".join(line).rstrip()
    return "".join(marks).rstrip()


def _write(line: list[str], text: str, places: Sequence[int]) -> bool:
    """Write it where it touches nothing else; whether there is such a place."""
    for start in places:
        end = start + len(text)
        if start < 0 or end > len(line) or set(line[start:end]) - {" "}:
            continue
        if set(line[max(0, start - 1) : end + 1]) <= {" ", _HEAD}:
            line[start:end] = text
            return True
    return False
