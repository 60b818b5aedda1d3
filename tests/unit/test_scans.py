"""Scans: those of a queue, their keys as text, and the chunks of a ring and of a heap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.catalog import Kind, Queue
from console.designs import DESIGNS
from console.errors import UsageError
from console.monitor.filters import parse
from console.monitor.scans import (
    By,
    Extent,
    Scan,
    ScanKey,
    beyond,
    next_chunk,
    read_key,
    scans_for,
    scans_of,
)
from tests.contract.variants import ALL

NUMBERS = Scan("numbers", By.NUMBER, "ready")
LOCATIONS = Scan("ready", By.LOCATION, "ready")


def test_the_scans_of_a_queue_show_all_its_states() -> None:
    for variant in ALL:
        queue = variant.queue("s", "q", variant.engines[0])
        scans = scans_of(queue)
        assert tuple(dict.fromkeys(scan.state for scan in scans)) == queue.states, variant
        assert len({(scan.name, scan.by) for scan in scans}) == len(scans), variant
        for state in queue.states:
            assert {scan.state for scan in scans_for(queue, parse([f"state={state}"]))} == {state}


def adopted(name: str, *roles: str) -> Queue:
    design = DESIGNS[name]
    columns = dict.fromkeys((*design.needed_roles, *roles), "column")
    return Queue("s", "t", design, {}, columns, kind=Kind.ADOPTED)


def test_a_state_that_no_column_shows_has_no_scan() -> None:
    assert [scan.state for scan in scans_of(adopted("claim"))] == ["ready", "claimed"]
    assert "error" in [scan.state for scan in scans_of(adopted("claim", "error"))]
    assert "error" in [scan.state for scan in scans_of(adopted("status"))]


def test_scans_in_which_nothing_can_match_are_left_out() -> None:
    queue = adopted("status", "error", "claimed_by")
    assert [scan.state for scan in scans_for(queue, parse(["error~x"]))] == ["error"]
    states = [scan.state for scan in scans_for(queue, parse(["claimed_by=x"]))]
    assert states == ["claimed", "error", "done"]
    (scan,) = scans_for(queue, parse(["id=1"]))
    assert (scan.name, scan.state) == ("any", "")


TIMED = (
    Scan("ready", By.ID, "ready"),
    Scan("error", By.TIME, "error"),
    Scan("error", By.ID, "error", dated=False),
    LOCATIONS,
)

KEYS = {
    "ready": (0, ScanKey("ready")),
    "ready,,17": (0, ScanKey("ready", id="17")),
    "ready,,a,b": (0, ScanKey("ready", id="a,b")),
    "error": (1, ScanKey("error")),
    "error,2026-11-21T19:07:45.123+00,17": (
        1,
        ScanKey("error", "2026-11-21T19:07:45.123+00", "17"),
    ),
    "error,2026-11-21 19:07:45+05:30,17": (1, ScanKey("error", "2026-11-21 19:07:45+05:30", "17")),
    "error,infinity,17": (1, ScanKey("error", "infinity", "17")),
    "error,,17": (2, ScanKey("error", id="17", dated=False)),
    "error,,": (2, ScanKey("error", dated=False)),
}


@pytest.mark.parametrize("text", KEYS)
def test_keys_are_read(text: str) -> None:
    assert read_key(text, TIMED) == KEYS[text]
    assert read_key(KEYS[text][1].text, TIMED)[1].text == KEYS[text][1].text


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "ready,17", "ready,2026-11-21 19:07:45,17", "error,now,17", "ready,,a\0b"),
        *("error,2026-11-21T19:07,", "done,,17", "error,2026-11-21 19:07:45' OR 1=1,17"),
    ],
)
def test_invalid_keys_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a position in this list"):
        read_key(text, TIMED)


@given(
    st.sampled_from(TIMED[:3]),
    st.datetimes(),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1),
)
def test_a_key_survives_the_command_line(scan: Scan, at: object, id_: str) -> None:
    key = ScanKey(scan.name, str(at) if scan.by is By.TIME else "", id_, scan.dated)
    index, found = read_key(key.text, TIMED)
    assert TIMED[index] == scan
    assert (found.time.replace("T", " "), found.id) == (key.time, id_)


def chunks(scan: Scan, extent: Extent, room: int, *, down: bool) -> list[tuple[int, int]]:
    key, found = None, []
    while chunk := next_chunk(scan, extent, key, down=down, room=room):
        found.append(chunk)
        key = beyond(scan, chunk, down=down)
        assert len(found) < 1000
    return found


@given(
    st.integers(1, 50), st.integers(-5, 200), st.integers(1, 70), st.integers(1, 30), st.booleans()
)
def test_chunks_contain_each_number_once_and_none_spans_two_laps(
    first: int, length: int, slots: int, room: int, down: bool
) -> None:
    extent = Extent(first, first + length - 1, slots)
    found = chunks(NUMBERS, extent, room, down=down)
    numbers = [n for low, high in found for n in range(low, high + 1)]
    assert sorted(numbers) == list(range(first, first + length))
    assert found == sorted(found, reverse=down)
    for low, high in found:
        assert high - low < room
        assert low // slots == high // slots


@given(st.integers(0, 200), st.integers(1, 30), st.booleans())
def test_chunks_of_pages_contain_every_page(last: int, room: int, down: bool) -> None:
    found = chunks(LOCATIONS, Extent(0, last, None), room, down=down)
    pages = {page for low, high in found for page in range(low, high + 1)}
    assert pages == set(range(last + 1))
    assert all(high - low < room for low, high in found)


@pytest.mark.parametrize("down", [False, True])
def test_the_key_s_page_is_read_again_for_the_rows_after_the_key(down: bool) -> None:
    extent = Extent(0, 9, None)
    chunk = next_chunk(LOCATIONS, extent, ScanKey("ready", id="(5,7)"), down=down, room=100)
    assert chunk == ((0, 5) if down else (5, 9))


def test_a_heap_of_one_page_has_one_chunk_and_an_empty_one_none() -> None:
    assert chunks(LOCATIONS, Extent(0, 0, None), 10, down=True) == [(0, 0)]
    assert chunks(LOCATIONS, Extent(0, -1, None), 10, down=False) == []
