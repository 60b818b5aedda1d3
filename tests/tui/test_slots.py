"""A ring's slots: the map, its cells and counts, zooming to one slot, and the strip."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from textual.app import ComposeResult

from console.catalog import installed_queue
from console.designs import design
from console.doctor.slot_map import SlotMap, SlotRange
from console.engines import open_database
from console.errors import ConnectionFailedError
from console.monitor.scans import read_key, scans_of
from console.monitor.subscribers import SubscriberSnapshot
from console.tui.open_connection import OpenConnection
from console.tui.screens.overview import RingSlots
from console.tui.screens.queue import QueueScreen
from console.tui.tabs.slots import QueueSlotMap, SlotsTab, message_key
from console.tui.widgets.slot_map import CellState, SlotMapView, SlotStrip, cell_state, strip_cells
from tests.tui.feeds import nine_queues, queue
from tests.tui.opened import Opened, Plain, opened

RING = design("ring")
QUEUE = installed_queue("public", "orders", RING, RING.complete_options({}))
KEY = ("prod-orders", "public", "orders")


def run(state: str, first: int, last: int, number: int | None = None) -> SlotRange:
    count = last - first + 1
    end = None if number is None else number + count - 1
    return SlotRange(first, last, state, count, number, end)


MAP = SlotMap(
    (
        run("free", 0, 1022),
        run("orphan", 1023, 1043, 1023),
        run("ready", 1044, 5855, 1044),
        run("hole", 5856, 5878, 5856),
        run("free", 5879, 7999),
        run("missing", 8000, 8001),
        run("free", 8002, 9999),
    ),
    10_000,
    1044,
    5856,
)


class Alone(Plain):
    """An application with only the map."""

    def compose(self) -> ComposeResult:
        yield SlotMapView()


@st.composite
def maps(draw: st.DrawFn) -> SlotMap:
    """Any ring: ranges of any states in a row."""
    states = ("free", "ready", "orphan", "hole", "parked", "pushing", "missing", "not known yet")
    ranges, slot = [], 0
    for state in draw(st.lists(st.sampled_from(states), min_size=1, max_size=30)):
        size = draw(st.integers(1, 3000))
        ranges.append(run(state, slot, slot + size - 1, 100_000 + slot))
        slot += size
    heads = st.none() | st.integers(0, 10**9)
    return SlotMap(tuple(ranges), slot, draw(heads), draw(heads))


async def test_every_slot_is_in_one_cell_and_counted_once_at_every_zoom() -> None:
    """For any ring and any keys: the window's cells are its slots, the counts add up to them."""
    app = Alone()
    async with app.run_test(size=(40, 10)) as pilot:
        view = app.query_one(SlotMapView)
        steps = {
            "i": view.zoom_in,
            "o": view.zoom_out,
            "n": lambda: view.action_trouble(1),
            "N": lambda: view.action_trouble(-1),
            "g": view.action_first,
            "G": view.action_last,
            "u": lambda: view.action_line(-1),
            "d": lambda: view.action_line(1),
            "l": lambda: view.action_move(-1),
            "r": lambda: view.action_move(1),
        }

        @settings(max_examples=40)
        @given(maps(), st.lists(st.sampled_from("ionNgGudlr"), max_size=12))
        def holds(found: SlotMap, keys: list[str]) -> None:
            while view.zoom_out():
                pass
            view.show(found)
            for key in keys:
                steps[key]()  # type: ignore[no-untyped-call]
                first, last = view.window
                assert 0 <= first <= view.cursor <= last < found.capacity
                cells = view.cells
                assert (cells[0][0], cells[-1][1]) == (first, last)
                assert all(one[1] + 1 == next_[0] for one, next_ in pairwise(cells))
                assert sum(view.counts(view.window).values()) == last - first + 1
                assert view.cell[0] <= view.cursor <= view.cell[1]
                assert len(view.render().plain.replace("\n", "")) == len(cells)
                part = next(view.ranges_in((view.cursor, view.cursor)))
                assert part.first_number == part.last_number == 100_000 + view.cursor

        holds()
        await pilot.pause()


async def open_slots(console: Opened, slot_map: SlotMap = MAP) -> SlotsTab:
    await console.give(*nine_queues())
    console.app.open_queue(KEY, "slots")
    await console.pilot.pause()
    await console.pilot.pause()
    assert console.is_at(QueueScreen)
    tab = console.app.screen.query_one(SlotsTab)
    tab.show_result(QueueSlotMap(QUEUE, slot_map))
    await console.pilot.pause()
    return tab


async def test_the_map_zooms_from_the_entire_ring_to_one_orphan_and_back() -> None:
    async with opened() as console:
        opened_messages: list[tuple[object, str]] = []
        console.app.open_message = lambda *arguments: opened_messages.append(arguments)  # type: ignore[method-assign]
        tab = await open_slots(console)
        console.shows("4,812 ready", "21 orphans", "23 holes", "2 missing", "5,142 free")
        console.shows("pop 1,044", "push 5,856")
        await console.press("enter", "enter", "enter")
        assert opened_messages == [], "nothing is in the first slot"
        await console.press("escape", "n")
        assert "2 orphans (1,023 to 1,024)" in console.picture
        await console.press("enter")
        assert "slot 1,023, number 1,023: orphan" in console.picture
        await console.press("enter")
        assert opened_messages == [(KEY, "numbers,,1023")]
        tab.show_result(QueueSlotMap(QUEUE, replace(MAP, next_pop=1050)))
        assert tab.view.cursor == 1023
        await console.press("n", "enter")
        assert "slot 5,856, number 5,856: hole" in console.picture
        await console.press("escape")
        assert not tab.view.zoomed
        assert console.is_at(QueueScreen)
        await console.press("escape")
        assert not console.is_at(QueueScreen)


async def test_each_subscriber_has_a_row_of_marks_the_slowest_first() -> None:
    billing = SlotMap((run("free", 0, 9_999),), 10_000, 5856, 5856, "billing")
    search = replace(MAP, subscriber="search")
    async with opened() as console:
        tab = await open_slots(console, replace(search, subscribers=(billing, search)))
        lines = console.picture.split("\n")
        line_numbers = [
            at for name in ("search ", "billing ") for at in range(len(lines)) if name in lines[at]
        ]
        first, second = (lines[number].split() for number in line_numbers[-2:])
        assert (first[0], second[0], line_numbers[-1]) == (
            "search",
            "billing",
            line_numbers[-2] + 1,
        )
        assert set(second[1]) == {"□", "↑"}
        assert {"■", "✖", "◇", "□", "↑"} == set(first[1])
        assert "search  ■ 4,812 ready" in console.picture
        tab.show_result(QueueSlotMap(QUEUE, MAP))
        await console.pilot.pause()
        assert "billing" not in console.picture


def test_the_key_of_a_slots_message_can_be_read_by_the_list_of_messages() -> None:
    index, position = read_key(message_key(QUEUE, 1023), scans_of(QUEUE))
    assert position.id == "1023"
    assert scans_of(QUEUE)[index].chunks


async def test_an_error_is_shown_in_full_and_the_last_map_stays_with_its_age() -> None:
    async with opened() as console:
        await console.give(*nine_queues())
        console.app.open_queue(KEY, "slots")
        await console.pilot.pause()
        await console.pilot.pause()
        tab = console.app.screen.query_one(SlotsTab)
        assert "Reading the slots" in console.picture
        tab.show_error(ConnectionFailedError("Could not look.", why="refused", next_step="Try it."))
        await console.pilot.pause()
        console.shows("Could not look.", "refused", "Try it.")
        await console.press("n", "enter")
        tab.show_result(QueueSlotMap(QUEUE, MAP))
        console.clock.now += 42
        tab.show_error(ConnectionFailedError("Could not look at the slots.", why="\x1b[31mrefused"))
        await console.pilot.pause()
        console.shows("as it was 42 s ago", "refused")
        assert "\x1b" not in console.picture
        assert "21 orphans" in console.picture


async def test_the_slowest_subscriber_is_named_if_it_is_far_behind() -> None:
    billing = SubscriberSnapshot("billing", 3, 3, 1.5, 40.0, 0, None)
    search = SubscriberSnapshot("search", 95, 90, 7.25, 0.0, 0, 12.5)
    events = queue("events", "ring", gap=95, capacity=1000, subscribers=(billing, search))
    async with opened() as console:
        await console.give(events)
        console.shows("events » search", "95 of 1,000 slots  search is slowest")
        # About as far behind as the other one: they alternate.
        close = replace(events, gap=4, subscribers=(billing, replace(search, gap=4)))
        await console.give(close)
        assert "»" not in console.picture
        await console.press("enter")
        words = [line.split() for line in console.picture.split("\n") if "parked" not in line]
        assert ["search", "gap", "4"] in [line[:3] for line in words]
        assert ["billing", "gap", "3"] in [line[:3] for line in words]


STATES = ("ready", "free", "orphan", "hole", "pushing", "popping", "parked", "missing", "void")


def ranges_of(states: str) -> list[SlotRange]:
    """A range of one slot for each letter."""
    names = {"r": "ready", "f": "free", "o": "orphan", "h": "hole", "p": "popping"}
    return [SlotRange(n, n, names[one], 1, n, n) for n, one in enumerate(states)]


@given(st.lists(st.sampled_from(STATES), min_size=1, max_size=60), st.integers(1, 80))
def test_a_cell_shows_the_most_severe_of_its_slots_and_every_slot_has_a_cell(
    states: list[str], width: int
) -> None:
    ranges = [SlotRange(n, n, state, 1, None, None) for n, state in enumerate(states)]
    cells = strip_cells(ranges, len(states), width)
    assert len(cells) == min(width, len(states))
    assert max(cells) == max(map(cell_state, states))
    for index, cell in enumerate(cells):
        mine = [s for n, s in enumerate(states) if n * len(cells) // len(states) == index]
        assert cell == max(map(cell_state, mine))


def test_long_ranges_fill_their_share_of_the_cells() -> None:
    long = [SlotRange(0, 499, "ready", 500, 0, 499), SlotRange(500, 999, "free", 500, None, None)]
    assert strip_cells(long, 1000, 10) == [CellState.LIVE] * 5 + [CellState.FREE] * 5


async def test_the_heads_are_drawn_under_their_slots() -> None:
    async with opened() as console:
        strip = SlotStrip()
        await console.overview.mount(strip)
        strip.draw(ranges_of("rrffohpr"), 8, 60, pop_head=8, push_head=10, label="slots ")
        marks, heads = strip.plain_text.splitlines()
        assert marks == "slots ■■□□✖◇▣■"
        assert heads == "      ▲ ▲ pop 8, push 10"
        strip.draw([SlotRange(0, 99, "free", 100, None, None)], 100, 60, 120, 1_150)
        assert strip.plain_text.splitlines()[1] == "    pop 120 ▲                 ▲ push 1,150"
        strip.draw([SlotRange(0, 99, "free", 100, None, None)], 100, 60, 193, 195)
        assert strip.plain_text.splitlines()[1] == " " * 37 + "pop 193, push 195 ▲ ▲"
        strip.draw([SlotRange(0, 99, "free", 100, None, None)], 100, 50, 120, 180, lines=2)
        assert strip.plain_text.splitlines() == [
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
        # No server answers there: an error is shown, and no slots.
        while "cannot be mapped" not in slots.plain_text:
            console.overview.draw()
            await console.pilot.pause(0.02)
        slots.show_map((("prod-orders", "public", "one"), a_map(0, 50)))
        console.overview.draw()
        assert "slots of one (100)  ■" in slots.plain_text
        assert "▲ push 50" in slots.plain_text
        slots.show_map((("prod-orders", "public", "two"), a_map(7, 57)))
        console.overview.draw()
        assert "▲ push 50" in slots.plain_text, "the map of another ring"
        await console.press("G")
        assert console.cursor == "two"
        assert "slots of two" in slots.plain_text
        assert "■" not in slots.plain_text
        await console.resize(80, 24)
        assert not slots.display
