"""The doctor on rings: every fault is real, found with its numbers, and repaired."""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import psycopg
import pytest

from console.catalog.audit import EntryFilter, entries
from console.doctor import ring as doctor
from console.doctor.finding import Finding
from console.doctor.slot_map import read_slot_map
from console.doctor.watcher import Doctor
from console.errors import BusyError, ConnectionFailedError, RefusedError
from console.features.demo.embedded import EmbeddedServer
from console.monitor.sampler import Sampler
from tests.faults.harness.doctor import numbers
from tests.faults.harness.faults import crash
from tests.faults.harness.ring import Make, Ring, page_of_holes, wait_for_server
from tests.servers import kill_session, restart_as_standby
from tests.tools.repairs import carry_out, plan_repair


@pytest.fixture
def make(make_own: Make) -> Make:
    """Creates rings on a server that tests may kill."""
    return partial(make_own, size=50, max_bytes=100)


@pytest.fixture
def short_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full ring is watched only briefly."""
    monkeypatch.setattr(doctor, "_STANDSTILL_SECONDS", 0.05)


def lost_by_sequences(ring: Ring) -> tuple[list[int], list[int]]:
    """Orphans and holes of a ring without parked numbers: live below next_pop; the end's gap."""
    now = ring.measure()
    live = [number for _, number, _, _ in ring.live()]
    orphans = [number for number in live if number < now.next_pop]
    return orphans, list(range(max(live) + 1, now.next_push))


def check_lost(ring: Ring) -> dict[str, Finding]:
    """Exactly they are found."""
    found = ring.findings()
    assert (numbers(found["orphan"]), numbers(found["hole"])) == lost_by_sequences(ring)
    return found


def test_numbers_that_sequences_skip_in_a_crash_are_found_and_repaired(
    own_server: EmbeddedServer, make: Make
) -> None:
    """1,000 pushes, 507 pops, kill -9: each number is named, with the crash as its cause."""
    ring = make(size=2000)
    left = ring.fill(1000, popped=507)
    assert ring.findings() == {}
    crash(own_server)
    orphans, holes = lost_by_sequences(ring)
    assert orphans
    assert holes
    found = check_lost(ring)
    assert list(found) == ["orphan", "hole"]
    for finding in found.values():
        assert set(finding.evidence["causes"]) == {"crash"}  # type: ignore[call-overload]
        assert "the server crashed" in finding.cause
        assert finding.since is not None
        assert finding.as_json()["repair"] is not None
    assert [r.state for r in read_slot_map(ring.database, ring.queue).ranges] == [
        *("free", "orphan", "ready", "hole", "free")
    ]
    assert ring.repair_all() == [f"park {len(orphans)} orphans", f"make {len(holes)} holes void"]
    assert ring.findings() == {}
    popped = [ring.pop() for _ in range(len(left))]
    assert [message and message.payload for message in popped] == left
    assert ring.pop() is None
    assert ring.findings() == {}
    with ring.database.transaction("look") as session:
        acted = entries(session, EntryFilter(queue=ring.queue.name, verb="repair"))
    assert [(entry.done, entry.outcome) for entry in acted] == [
        (len(holes), "done"),
        (len(orphans), "done"),
    ]


def test_samples_around_a_crash_show_what_the_sequences_skipped(
    own_server: EmbeddedServer, make: Make
) -> None:
    """The numbers and times of the last sample before kill -9 and of the first one after it."""
    ring = make(size=2000)
    sampler, watching = Sampler(ring.database), Doctor(ring.database)
    ring.fill(100, popped=51)
    before, now = sampler.sample(), ring.measure()
    own_server.kill()
    assert isinstance(sampler.sample().error, ConnectionFailedError)
    own_server.restart()
    after, then = sampler.sample(), ring.measure()
    orphans, holes = lost_by_sequences(ring)
    (diagnosis,) = watching.diagnose([ring.queue], after.queues)
    found = {finding.code.name: finding for finding in diagnosis.findings}
    (first,), (last,) = (
        [one for one in seen.queues if one.queue == ring.queue.name] for seen in (before, after)
    )
    assert first.moment is not None
    assert last.moment is not None
    for code, sequence, lost, numbers_of in (
        ("orphan", "pop", orphans, (now.next_pop, then.next_pop)),
        ("hole", "push", holes, (now.next_push, then.next_push)),
    ):
        finding = found[code]
        assert finding.evidence["jumps"] == [
            {
                "sequence": sequence,
                "from": numbers_of[0],
                "from_at": first.moment.isoformat(),
                "to": numbers_of[1],
                "to_at": last.moment.isoformat(),
                "unused": len(lost),
                "server_changed": True,
                "reconnected": True,
            }
        ]
        assert 1 < len(lost) <= numbers_of[1] - numbers_of[0]
        assert f"the {sequence} sequence went from {numbers_of[0]:,} at " in finding.cause
        assert f"nobody used {len(lost):,} of them; in between the server re" in finding.cause


@pytest.fixture
def while_waiting(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Calls to make in the second during which the message of a parked number is watched."""
    calls: list[Callable[[], object]] = []

    def run_all(_: float) -> None:
        while calls:
            calls.pop(0)()

    monkeypatch.setattr(doctor, "_STRANDED_SECONDS", 0.0)
    monkeypatch.setattr("console.doctor.ring.time.sleep", run_all)
    return calls


@pytest.mark.parametrize(
    ("at", "old"), [("-infinity", "there since -infinity"), ("0044-03-15Z BC", "the oldest 7")]
)
def test_a_message_that_pops_leave_behind_is_found(
    make: Make, while_waiting: list[Callable[[], object]], at: str, old: str
) -> None:
    """Its parked number waits for its turn among holes; without holes the next pop takes it."""
    ring = make(size=2000)
    number = page_of_holes(ring)
    ring.finds("hole")  # without pops it is just ready

    ring.execute(f"UPDATE {{ring}} SET time = '{at}' WHERE message_id = {number}")
    while_waiting.append(ring.pop)
    found = ring.finds("parked_stranded", "hole")
    evidence = found["parked_stranded"].evidence
    assert old in found["parked_stranded"].summary
    assert (evidence["count"], evidence["numbers"], evidence["ids"]) == (1, [number], [number])
    assert (evidence["parked"], evidence["parked_holes"]) == (129, 128)
    assert found["parked_stranded"].since is not None
    ring.execute("UPDATE {ring} SET time = now()")

    with ring.undone() as caller:
        while_waiting.append(lambda: ring.pop_many(1, on=caller))
        ring.finds("hole")  # the pop that runs now holds it

    ring.repair_until_clear(found["parked_stranded"])
    taken = ring.pop()
    assert taken is not None
    assert taken.id == number


def test_numbers_lost_by_a_killed_backend_are_found_and_repaired(
    own_server: EmbeddedServer, make: Make
) -> None:
    """kill -9 of a backend makes the server recover, without a new start time."""
    ring = make(size=500)
    left = ring.fill(300, popped=100)
    with suppress(psycopg.OperationalError), ring.connect() as victim:
        victim.execute("BEGIN")
        assert ring.pop(on=victim)
        assert kill_session(ring.url, victim.info.backend_pid)
    wait_for_server(ring.url)
    found = check_lost(ring)
    assert 101 in numbers(found["orphan"])
    assert "the server crashed" in found["orphan"].cause
    ring.repair_all()
    assert ring.texts() == left
    assert ring.findings() == {}


def test_losses_of_a_failover_are_found_and_a_standby_is_not_checked(
    own_server: EmbeddedServer, make: Make
) -> None:
    """A standby's sequences are up to 32 numbers ahead, and stay so when it is promoted."""
    ring = make()
    left = ring.fill(40, popped=10)
    own_server.kill()
    restart_as_standby(own_server)
    findings, unseen = ring.examine()
    assert (findings, len(unseen)) == ([], 1)
    with pytest.raises(RefusedError, match="standby"):
        read_slot_map(ring.database, ring.queue)
    with ring.connect() as connection:
        connection.execute("SELECT pg_promote()")
    promoted = check_lost(ring)
    assert "the server is on timeline 2" in promoted["orphan"].cause
    ring.repair_all()
    assert ring.texts() == left
    assert ring.findings() == {}


def test_orphans_and_holes_of_rollbacks_are_not_blamed_on_a_crash(make: Make) -> None:
    """A rolled back pop; a rolled back push, before and after a pop has drawn its number."""
    ring = make()
    left = ring.fill(20, popped=5)
    with ring.undone() as caller:
        assert ring.pop(on=caller)
        assert ring.push("never", on=caller) == 21
    assert ring.push("message 21") == 22
    assert ring.popped() == left[1]
    found = ring.finds("orphan", "hole")
    assert (numbers(found["orphan"]), numbers(found["hole"])) == ([6], [21])
    assert found["hole"].evidence["not_drawn_yet"] == 1
    assert "rolled back" in found["orphan"].cause
    assert "crash" not in found["orphan"].cause + found["hole"].cause
    # Pops reach the hole and park it; the message after it is popped nevertheless.
    popped = [message.payload for message in ring.pop_many(30)]
    assert popped == [*left[2:], "message 21"]
    found = ring.findings()
    assert (numbers(found["orphan"]), numbers(found["hole"])) == ([6], [21])
    assert found["hole"].evidence["parked"] == 1
    assert ring.repair_all() == ["park 1 orphan", "drop 1 parked hole"]
    assert ring.popped() == left[0]
    assert ring.findings() == {}
    assert ring.parked() == set()


def test_numbers_of_open_transactions_are_not_lost_and_their_sessions_are_named(make: Make) -> None:
    """Nor does a repair change them, not even one planned before the transaction started."""
    ring = make()
    ring.fill(20, popped=5)
    with ring.undone() as caller:
        assert ring.pop(on=caller)
    with ring.connect() as holder:
        (orphan,) = ring.findings().values()
        holder.execute("BEGIN")
        assert ring.pop(on=holder)
        assert ring.push("message 21", on=holder)
        assert ring.push("message 22")
        findings, unseen = ring.examine(patience_seconds=0.1)
        assert findings == []
        assert len(unseen) == 2
        assert all(f"pid {holder.info.backend_pid} " in line for line in unseen)
        assert "6-7" in unseen[1] or "6-7" in unseen[0]
        slots = read_slot_map(ring.database, ring.queue, patience_seconds=0.1).ranges
        states = {r.state for r in slots}
        assert states == {"free", "popping", "ready", "pushing"}
        object.__setattr__(orphan.repair, "patience_seconds", 0.1)
        assert orphan.repair is not None
        with pytest.raises(BusyError, match=f"pid {holder.info.backend_pid} "):
            carry_out(orphan.repair, ring.database)
        assert ring.parked() == set()
        # The doctor waits for a transaction that ends soon.
        later = threading.Timer(0.3, holder.execute, ["COMMIT"])
        later.start()
        findings, unseen = ring.examine()
        later.join()
        assert (len(findings), unseen) == (1, [])
        assert numbers(findings[0]) == [6]
        ring.repair_all()
        assert ring.findings() == {}
        assert len(ring.texts()) == 16


def test_consumed_pop_numbers_are_parked_before_messages_get_them(make: Make) -> None:
    ring = make()
    ring.fill(20, popped=20)
    ring.consume_numbers("pop", 7)
    found = ring.finds("spent")
    assert numbers(found["spent"]) == list(range(21, 28))
    assert ring.repair_all() == ["park 7 consumed pop numbers"]
    assert ring.findings() == {}  # parked ahead of the pushes, like waiting pops
    sent = [f"later {number}" for number in range(10)]
    ring.push_many(sent)
    assert ring.texts() == sent
    assert ring.findings() == {}


def test_more_consumed_pop_numbers_than_slots_require_a_relay(make: Make) -> None:
    """It is the first finding, before the ring's others."""
    ring = make(size=10)
    ring.fill(5, popped=3)
    ring.consume_numbers("pop", 20)
    found = ring.findings()
    assert list(found)[:2] == ["spent_beyond_ring", "orphan"]
    first = found["spent_beyond_ring"]
    assert first.repair is not None
    assert not first.repair.unattended
    assert plan_repair(first.repair, ring.database).requires_name
    assert first.repair.command == f"dbq-console relay '{ring.queue.name}'"
    ring.repair_until_clear(first)
    assert ring.texts() == ["message 4", "message 5"]


def test_pops_ahead_by_more_than_the_ring_size_require_a_relay(make: Make) -> None:
    """Even if all their numbers are parked: only a moved sequence gets that far ahead."""
    ring = make(size=5)
    for _ in range(3):
        assert ring.findings() == {}
        ring.consume_numbers("pop", 2)
        assert ring.repair_all() == ["park 2 consumed pop numbers"]
    found = ring.finds("pop_ahead")
    ring.repair_until_clear(found["pop_ahead"])
    sent = ring.fill(5)
    assert ring.texts() == sent


@pytest.mark.usefixtures("short_standstill")
def test_a_ring_with_more_skipped_push_numbers_than_slots_is_lapped(make: Make) -> None:
    """It is full of holes: void numbers let pops continue, a relay makes room at once."""
    for relay in (False, True):
        ring = make(size=10)
        ring.fill(5, popped=3)
        ring.consume_numbers("push", 12)
        assert ring.push("no room") is None
        found = ring.findings()
        assert set(found) == {"full", "lapped", "hole"}
        assert numbers(found["hole"]) == list(range(6, 18))
        if relay:
            ring.repair_until_clear(found["lapped"])
        else:
            assert ring.repair_all() == ["make 12 holes void"]
            assert set(ring.findings()) == {"full"}
        assert ring.texts() == ["message 4", "message 5"]
        assert ring.findings() == {}
        assert ring.push("room")


def test_many_or_old_holes_are_more_than_a_note(make: Make) -> None:
    ring = make(size=10)
    for _ in range(2):
        ring.consume_numbers("push", 8)
        assert ring.pop() is None
    found = ring.finds("holes_pile_up")
    assert numbers(found["holes_pile_up"]) == list(range(1, 17))
    ring.execute("DELETE FROM {parked} WHERE number > 1")
    ring.finds("hole")
    ring.execute("UPDATE {parked} SET parked_at = now() - interval '61 min'")
    found = ring.finds("holes_pile_up")
    assert "1 h 01 min" in found["holes_pile_up"].summary
    assert ring.repair_all() == ["drop 1 parked hole"]
    assert ring.findings() == {}
    assert ring.parked() == set()


def test_a_void_number_whose_pop_was_rolled_back_is_a_note(make: Make) -> None:
    ring = make()
    ring.fill(5, popped=5)
    ring.consume_numbers("push")
    assert ring.repair_all() == ["make 1 hole void"]
    with ring.undone() as caller:
        assert ring.pop(on=caller) is None
    found = ring.finds("stale_void")
    assert numbers(found["stale_void"]) == [6]
    assert ring.repair_all() == ["drop 1 void number"]
    assert ring.findings() == {}
    assert ring.parked() == set()
