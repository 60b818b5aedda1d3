"""A ring with content=apart: large messages, crashes, slots and contents without each other."""

import hashlib
import random
from functools import partial

import pytest
from psycopg.sql import SQL

from console.actions import execute, message_action
from console.actions.install import contents, uninstall
from console.actions.restore import Restore
from console.doctor.context import check_context
from console.doctor.finding import Finding
from console.doctor.lost_numbers import ContentMismatch
from console.features.demo.embedded import EmbeddedServer
from console.monitor.scan_query import MessageSource
from console.verbs.queues import install_plan
from tests.faults.harness.clients import CONSUMER, PRODUCER, clients, settle
from tests.faults.harness.faults import crash
from tests.faults.harness.ring import Make, Popped, Ring, wait_for_server
from tests.tools.queues import queue_of
from tests.tools.repairs import carry_out

KB, MB = 1000, 1_000_000


@pytest.fixture
def make(make_own: Make) -> Make:
    """Creates rings with content=apart, on a server that tests may kill."""
    return partial(make_own, size=8, content="apart", partitions=3)


def bytes_of(number: int, size: int) -> str:
    """A message of this many bytes that does not compress well."""
    block = "".join(hashlib.sha256(f"{number} {i}".encode()).hexdigest() for i in range(1600))
    return (block * (size // len(block) + 1))[:size]


@pytest.mark.long
@pytest.mark.parametrize(
    "size", [100 * KB, *(pytest.param(size, marks=pytest.mark.long) for size in (5 * MB, 100 * MB))]
)
def test_large_messages_pass_through_the_ring_and_leave_no_content(make: Make, size: int) -> None:
    """One by one and in batches, more than once around the ring, through a relay."""
    ring = make(size=3)
    for lap in range(2):
        pushed = [bytes_of(3 * lap + number, size) for number in range(3)]
        assert ring.push(pushed[0]) is not None
        assert ring.push_many([*pushed[1:], "no room"])[-1] is None
        ring.relay(3 + lap)
        popped = ring.pop()
        assert popped is not None
        assert [popped.payload, *payloads(ring.pop_many(3))] == pushed
    assert ring.contents() == {}
    assert ring.findings() == {}


def payloads(popped: list[Popped]) -> list[str]:
    return [one.payload for one in popped]


def test_a_crash_during_a_push_and_a_pop_leaves_no_content_behind(
    own_server: EmbeddedServer, make: Make
) -> None:
    """A push and a pop of 1 MB are not committed when the server is killed."""
    ring = make()
    pushing, popping = ring.connect(), ring.connect()
    kept = [bytes_of(number, MB) for number in range(2)]
    assert None not in ring.push_many(kept)
    pushing.autocommit = popping.autocommit = False
    assert ring.push("lost with its transaction" * KB, on=pushing)
    assert ring.pop(on=popping) is not None
    crash(own_server)
    wait_for_server(ring.url)
    pushing.close()
    popping.close()
    assert sorted(ring.contents().values()) == sorted(kept)
    ring.repair_all()
    assert sorted(payloads(ring.drain())) == sorted(kept)
    assert ring.contents() == {}
    assert ring.findings() == {}


def test_a_push_that_finds_no_slot_leaves_no_content(make: Make) -> None:
    ring = make(size=4)
    with ring.connect() as other, other.transaction():
        other.execute(ring.sql("SELECT FROM {ring} WHERE slot IN (1, 2) FOR UPDATE"))
        assert ring.push("one") == 3
        assert ring.push_many(["two", "three"]) == [4, None]
        assert {(1, True), (2, True)} <= ring.parked()
        assert ring.contents() == {3: "one", 4: "two"}


def test_the_plan_of_install_names_the_chosen_content_option_first(make: Make) -> None:
    ring = make()
    for content, other in (("slot", "apart"), ("apart", "slot")):
        queue = queue_of("q", "ring", content=content)
        text = "\n".join(install_plan(ring.database, queue).lines)
        assert text.index(f"content={content}") < text.index(f"content={other}")


def test_a_pop_archives_the_content(make: Make) -> None:
    ring = make(archive_at_pop="on")
    ring.push_many(["one", "two", "three"])
    ring.pop()
    ring.pop_many(5)
    archived = ring.execute("SELECT id, payload FROM {archive} ORDER BY id")
    assert archived.fetchall() == [(1, "one"), (2, "two"), (3, "three")]
    assert ring.contents() == {}


def test_an_uninstall_counts_contents_that_have_no_slot(make: Make) -> None:
    """They are messages, which would be lost."""
    ring = make()
    ring.push_many(["one", "two"])
    ring.execute("DELETE FROM {ring} WHERE first_id = 2")
    with ring.database.transaction("count") as connection:
        assert contents(connection, ring.queue).live == 2
    uninstall(ring.database, ring.queue, keep_archive=False, with_messages=True)
    tables = "SELECT relname FROM pg_class WHERE relname ~ ('^' || %s || '(_|$)')"
    left = ring.session.execute(tables, [ring.queue.name])
    assert left.fetchall() == []


def delete_content(ring: Ring, number: int) -> None:
    for table in ring.content_tables:
        delete = SQL("DELETE FROM {} WHERE content_id = %s").format(table)
        ring.session.execute(delete, [number])


@pytest.mark.parametrize("batch", [0, 1])
def test_no_pop_stops_at_a_slot_without_its_content(make: Make, batch: int) -> None:
    """Its number is parked; pops continue, however often they read it."""
    ring = make()

    def pop() -> list[str]:
        return payloads(ring.take(batch))

    ring.push_many(["one", "two", "three"])
    delete_content(ring, 2)
    assert [pop(), pop(), pop()] == [["one"], ["three"], []]
    assert ring.parked() == {(2, False)}
    found = ring.finds("slot_without_content")
    assert found["slot_without_content"].evidence == {"count": 1, "ids": [2]}
    ring.repair_all()
    ring.finds("slot_without_content")  # not unattended
    # With its content from a backup it is a message again.
    insert = SQL("INSERT INTO {} VALUES (2, 'two')").format(ring.content_tables[2])
    ring.session.execute(insert)
    assert [pop(), pop()] == [["two"], []]
    assert ring.findings() == {}
    ring.push_many(["four", "five"])
    delete_content(ring, 4)
    (finding,) = ring.findings().values()
    ring.repair_until_clear(finding)
    assert [pop(), pop()] == [["five"], []]
    assert ring.measure().live == 0
    details = "SELECT detail FROM dbq.action WHERE queue_name = %s AND detail LIKE 'freed%%'"
    audited = ring.session.execute(details, [ring.queue.name])
    assert audited.fetchall() == [("freed: 1 slot whose message is LOST",)]


def test_a_content_without_a_slot_is_moved_into_the_archive(make: Make) -> None:
    """But not one of an open push or pop, nor one that a relay has moved to another slot."""
    ring = make()
    with ring.connect() as other:
        ring.push_many(["moved", "one", "two", "popping"])
        ring.relay(5)
        ring.execute(
            "UPDATE {ring} SET message_id = NULL, first_id = NULL,"
            " reference_count = 0 WHERE first_id IN (2, 3)"
        )
        with other.transaction(force_rollback=True):
            ring.push("pushing", on=other)
            assert ring.pop(on=other) is not None
            finding = findings_now(ring)["content_without_slot"]
            assert finding.evidence == {"count": 2, "ids": [2, 3]}
            assert finding.repair is not None
            lines = carry_out(finding.repair, ring.database)
            assert lines == ["moved into the archive: 2 contents without a slot"]
        archived = ring.execute(
            "SELECT id, payload, state, reason FROM {archive} ORDER BY id"
        ).fetchall()
        reason = "content without slot"
        assert archived == [(2, "one", "error", reason), (3, "two", "error", reason)]
        assert ring.contents() == {1: "moved", 4: "popping"}
    ring.repair_all()
    assert sorted(payloads(ring.drain())) == ["moved", "popping"]
    ring.relay()
    with ring.database.transaction("look", read_only=True) as reading:
        restoring = Restore(MessageSource.of(reading, ring.queue), reason=reason)
    done = execute.execute(
        ring.database, restoring, message_action.select(ring.database, restoring)
    )
    assert (done.ledger.out, done.ledger.into) == (2, 2)
    assert payloads(ring.drain()) == ["one", "two"]
    assert ring.findings() == {}


def findings_now(ring: Ring) -> dict[str, Finding]:
    findings, _ = ring.examine(patience_seconds=0.05)
    return {finding.code.name: finding for finding in findings}


@pytest.mark.long
def test_traffic_causes_no_content_mismatch(make: Make, long: bool) -> None:
    """Producers and consumers commit and roll back, with relays: slots and contents match."""
    ring = make(size=60)
    chance = random.Random(5)
    with clients(ring.url, chance) as workers, check_context(ring.database, ring.queue) as context:
        for calls in (PRODUCER, CONSUMER):
            workers.start(calls, ring.queue.name, count=2, rolled_back=0.02)
        workers.wait_for_progress(20_000)
        for _ in range(500 if long else 30):
            assert context.query_unlimited(ContentMismatch, "content_mismatches") == []
            if chance.random() < 0.1:
                ring.try_relay(chance)
        settle(workers, ring)
