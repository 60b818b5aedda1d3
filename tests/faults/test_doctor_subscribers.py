"""The doctor on a ring with subscribers: a fault is one subscriber's, as is its repair."""

from contextlib import suppress
from functools import partial

import psycopg
import pytest
from psycopg.sql import SQL

from console.doctor import claims
from console.doctor.finding import Finding
from tests.faults.harness.doctor import numbers
from tests.faults.harness.ring import Make, Popped, Ring
from tests.servers import wait_until
from tests.tools.repairs import carry_out

pytestmark = pytest.mark.slow

Found = dict[tuple[str, str], Finding]


@pytest.fixture
def make(make: Make) -> Make:
    """Creates rings of 20 slots with the subscribers a and b."""
    return partial(make, subscribers="a,b")


def findings_by_code(ring: Ring) -> Found:
    """Findings by code and subscriber; each summary names its subscriber."""
    findings, unseen = ring.examine()
    assert unseen == []
    for one in findings:
        assert not one.subscriber or one.summary.startswith(f"{one.subscriber}: ")
    by = {(finding.code.name, finding.subscriber): finding for finding in findings}
    assert len(by) == len(findings)
    return by


def repair_all(ring: Ring, found: Found) -> None:
    for finding in found.values():
        assert ring.repair(finding)


@pytest.mark.parametrize(("content", "dies"), [("slot", True), ("apart", False)])
def test_a_pop_that_did_not_commit_is_an_orphan_of_its_subscriber(
    make: Make, content: str, *, dies: bool
) -> None:
    ring = make(content=content)
    texts = ring.fill(10)
    with suppress(psycopg.OperationalError), ring.connect() as caller:
        caller.execute("BEGIN")
        assert len(ring.of("b").pop_many(3, on=caller)) == 3
        if dies:
            pid = caller.info.backend_pid
            ring.session.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        else:
            caller.execute("ROLLBACK")
            caller.execute("SELECT pg_stat_force_next_flush()")
    found = findings_by_code(ring)
    assert list(found) == [("orphan", "b")]
    orphans = found["orphan", "b"]
    assert numbers(orphans) == [1, 2, 3]
    assert ("died" if dies else "rolled back") in orphans.cause
    assert orphans.repair is not None
    assert orphans.repair.summary == "park 3 orphans of b"
    assert ring.of("a").texts() == texts
    repair_all(ring, found)
    assert findings_by_code(ring) == {}
    assert ring.of("b").texts() == texts
    assert ring.of("a").texts() == []
    assert findings_by_code(ring) == {}


def test_a_hole_is_found_and_repaired_for_each_subscriber(make: Make) -> None:
    """One subscriber has reached and parked it, the other has not."""
    ring = make()
    texts = ring.fill(5)
    with ring.undone() as caller:
        assert ring.push("never", on=caller) == 6
    assert ring.push("behind") == 7
    assert ring.of("a").texts() == [*texts, "behind"]
    found = findings_by_code(ring)
    assert list(found) == [("hole", "a"), ("hole", "b")]
    assert [numbers(finding) for finding in found.values()] == [[6], [6]]
    parked = [finding.evidence["parked"] for finding in found.values()]
    assert parked == [1, 0]
    # The repair for one does not change the other's.
    repair_all(ring, {("hole", "a"): found["hole", "a"]})
    assert list(findings_by_code(ring)) == [("hole", "b")]
    repair_all(ring, findings_by_code(ring))
    assert findings_by_code(ring) == {}
    assert ring.of("b").texts() == [*texts, "behind"]
    assert findings_by_code(ring) == {}


def test_consumed_numbers_voids_and_laps_belong_to_one_subscriber(make: Make) -> None:
    ring = make(size=10)
    texts = ring.fill(5)
    assert ring.of("a").texts() == ring.of("b").texts() == texts
    a, b = ring.of("a"), ring.of("b")
    a.consume_numbers("pop", 4)
    b.consume_numbers("pop", 20)
    b.execute("INSERT INTO {parked} VALUES (2, 3, true, now())")
    found = findings_by_code(ring)
    assert list(found) == [("spent_beyond_ring", "b"), ("spent", "a"), ("stale_void", "b")]
    repair_all(ring, {key: finding for key, finding in found.items() if key[1] == "a"})
    repair_all(ring, {("stale_void", "b"): found["stale_void", "b"]})
    assert list(findings_by_code(ring)) == [("spent_beyond_ring", "b")]
    repair_all(ring, findings_by_code(ring))
    assert findings_by_code(ring) == {}
    texts = ring.fill(8)
    assert ring.of("a").texts() == ring.of("b").texts() == texts


def test_the_subscriber_that_fills_a_ring_is_named_and_deleted_rows_of_popped_are_owed(
    make: Make,
) -> None:
    ring = make(size=10)
    texts = ring.fill(10)
    assert ring.of("a").texts() == texts
    assert list(findings_by_code(ring)) == [("full", "b")]
    assert [m.payload for m in _first(ring.of("b"), 4)] == texts[:4]
    delete = "DELETE FROM {popped} WHERE subscriber = 2 AND slot IN (7, 8)"
    ring.execute(delete)
    found = {key: one for key, one in findings_by_code(ring).items() if key[0] == "slot_count"}
    assert list(found) == [("slot_count", "b")]
    (finding,) = found.values()
    assert finding.evidence["missing"] == [[7, 8]]
    assert finding.repair is not None
    assert not finding.repair.unattended
    repair_all(ring, found)
    assert ring.of("b").texts() == texts[4:]
    assert findings_by_code(ring) == {}


def _first(ring: Ring, n: int) -> list[Popped]:
    return [*ring.pop_many(n)]


def test_a_slot_without_its_content_is_freed_for_subscribers_that_are_owed_it(make: Make) -> None:
    ring = make(content="apart", partitions=1)
    texts = ring.fill(4)
    assert ring.of("a").texts() == texts
    assert len(_first(ring.of("b"), 2)) == 2
    for number in (1, 3):  # one that both have popped is not lost
        (table,) = ring.content_tables
        delete = SQL("DELETE FROM {} WHERE content_id = %s").format(table)
        ring.session.execute(delete, [number])
    found = findings_by_code(ring)
    assert list(found) == [("slot_without_content", "")]
    assert found["slot_without_content", ""].evidence["ids"] == [3]
    repair_all(ring, found)
    assert ring.parked() == {(3, True)}
    assert ring.of("b").texts() == texts[3:]
    assert findings_by_code(ring) == {}


_BREAKS = {
    6: "reference_count = 0",
    7: "reference_count = 2",
    8: "message_id = NULL",
    9: "message_id = message_id + 1003",
    10: "message_id = message_id - 1",
}
"""Number -> the change made to its slot by hand."""


@pytest.mark.parametrize("after_relay", [False, True])
@pytest.mark.parametrize("content", ["slot", "apart"])
def test_contradictory_slots_are_owed_to_subscribers_that_have_not_popped_them(
    make: Make, content: str, *, after_relay: bool
) -> None:
    """None is lost; if its number is lost, a subscriber that has popped it gets it again."""
    ring = make(content=content)
    texts = ring.fill(12)
    for name, count in (("a", 8), ("b", 4)):
        assert len(ring.of(name).pop_many(count)) == count
    if after_relay:
        ring.relay()
    slots = {number: slot for slot, _, number, _ in ring.of("b").live()}
    for number, change in _BREAKS.items():
        broken = f"UPDATE {{ring}} SET {change} WHERE slot = {slots.get(number, number)}"
        ring.execute(broken)
    found = {key: one for key, one in findings_by_code(ring).items() if key[0] == "slot_mismatch"}
    mismatch = found["slot_mismatch", ""]
    reported = mismatch.evidence["slots"]
    assert isinstance(reported, list)
    assert [one["slot"] for one in reported] == sorted(slots[n] for n in _BREAKS)
    repair_all(ring, found)
    received = {name: ring.of(name).texts() for name in "ab"}
    assert sorted(received["b"]) == sorted(texts[4:])
    popped_again = {texts[number - 1] for number in _BREAKS} if after_relay else set()
    assert set(texts[8:]) <= set(received["a"]) <= {*texts[8:], *popped_again}
    assert len(received["a"]) == len(set(received["a"]))
    assert findings_by_code(ring) == {}


def test_claims_of_a_gone_owner_are_released(make: Make) -> None:
    ring = make(in_hand="on")
    ring.fill(1)
    call = ring.sql("SELECT payload FROM {pop}(%s, NULL, true)")
    assert ring.session.execute(call, ["a"]).fetchone() is not None
    with ring.connect() as dead:
        assert dead.execute(call, ["b"]).fetchone() is not None
    wait_until(lambda: len(ring.found(claims.CHECKS)) == 1, "the server has noticed")
    (finding,) = ring.found(claims.CHECKS)
    assert (finding.code.name, finding.subscriber) == ("claims_gone", "b")
    assert finding.repair is not None
    assert carry_out(finding.repair, ring.database)
    assert ring.found(claims.CHECKS) == []
    assert ring.session.execute(call, ["a"]).fetchone() is None
    assert ring.session.execute(call, ["b"]).fetchone() == ("message 1",)
