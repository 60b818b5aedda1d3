"""A ring's slots in one strip."""

from hypothesis import given
from hypothesis import strategies as st

from console.doctor.ring_map import SlotMap, SlotRange
from console.engines import open_database
from console.tui.open_connection import OpenConnection
from console.tui.screens.overview import RingSlots
from console.tui.widgets.slot_map import Slot, SlotStrip, cells_of, slot_of
from tests.tui.feeds import queue
from tests.tui.opened import opened

STATES = ("ready", "free", "orphan", "hole", "pushing", "popping", "parked", "missing", "void")


def ranges_of(states: str) -> list[SlotRange]:
    """A slot a letter, one range each."""
    names = {"r": "ready", "f": "free", "o": "orphan", "h": "hole", "p": "popping"}
    return [SlotRange(n, n, names[one], 1, n, n) for n, one in enumerate(states)]


@given(st.lists(st.sampled_from(STATES), min_size=1, max_size=60), st.integers(1, 80))
def test_a_cell_shows_the_gravest_of_its_slots_and_every_slot_has_one(
    states: list[str], width: int
) -> None:
    ranges = [SlotRange(n, n, state, 1, None, None) for n, state in enumerate(states)]
    cells = cells_of(ranges, len(states), width)
    assert len(cells) == min(width, len(states))
    assert max(cells) == max(map(slot_of, states))
    for conn, cell in enumerate(cells):
        mine = [s for n, s in enumerate(states) if n * len(cells) // len(states) == conn]
        assert cell == max(map(slot_of, mine))


def test_long_ranges_are_the_same_as_many_short_ones() -> None:
    long = [
        SlotRange(0, 499, "ready", 500, 0, 499),
        SlotRange(500, 999, "free", 500, None, None),
    ]
    assert cells_of(long, 1000, 10) == [Slot.LIVE] * 5 + [Slot.FREE] * 5


async def test_the_heads_stand_under_their_slots() -> None:
    async with opened() as console:
        strip = SlotStrip()
        await console.overview.mount(strip)
        strip.draw(ranges_of("rrffohpr"), 8, 60, pop_head=8, push_head=10, label="slots ")
        marks, heads = strip.said.splitlines()
        assert marks == "slots ■■□□✖◇▣■"
        assert heads == "      ▲ ▲ pop 8, push 10"
        strip.draw([SlotRange(0, 99, "free", 100, None, None)], 100, 60, 120, 1_150)
        assert strip.said.splitlines()[1] == "    pop 120 ▲                 ▲ push 1,150"
        strip.draw([SlotRange(0, 99, "free", 100, None, None)], 100, 60, 193, 195)
        assert strip.said.splitlines()[1] == " " * 37 + "pop 193, push 195 ▲ ▲"
        strip.draw([SlotRange(0, 99, "free", 100, None, None)], 100, 50, 120, 180, lines=2)
        assert strip.said.splitlines() == [
            "□" * 50,
            " " * 20 + "▲ pop 120",
            "□" * 50,
            " " * 30 + "▲ push 180",
        ]


def a_map(pop: int, push: int) -> SlotMap:
    ranges = (SlotRange(0, 49, "ready", 50, 0, 49), SlotRange(50, 99, "free", 50, None, None))
    return SlotMap(ranges, 100, pop, push)


async def test_a_large_overview_has_the_slots_of_the_ring_under_the_cursor() -> None:
    where = OpenConnection(
        "prod-orders", open_database("postgresql+psycopg://nobody@127.0.0.1:1/none")
    )
    rings = (queue("one", "ring", gap=5, capacity=100), queue("two", "ring", gap=5, capacity=100))
    async with opened(size=(160, 48), connections=[where]) as console:
        await console.give(queue("mail"), *rings)
        slots = console.overview.query_one(RingSlots)
        # No server answers there: that is told, and no slot is made up.
        while "cannot be mapped" not in slots.said:
            console.overview.draw()
            await console.pilot.pause(0.02)
        slots.show_map((("prod-orders", "public", "one"), a_map(0, 50)))
        console.overview.draw()
        assert "slots of one (100)  ■" in slots.said
        assert "▲ push 50" in slots.said
        slots.show_map((("prod-orders", "public", "two"), a_map(7, 57)))
        console.overview.draw()
        assert "▲ push 50" in slots.said, "the map of another ring"
        await console.press("G")
        assert console.cursor == "two"
        assert "slots of two" in slots.said
        assert "■" not in slots.said
        await console.pilot.resize_terminal(80, 24)
        await console.pilot.pause()
        assert not slots.display
