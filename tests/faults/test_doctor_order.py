"""The order of archived pops: real violations are found, healthy traffic raises no alarm."""

from contextlib import suppress
from dataclasses import replace
from typing import Any, LiteralString

import psycopg
import pytest

from console.actions import execute, message_action, pop
from console.actions.archive import Purge
from console.actions.restore import Restore
from console.catalog import Kind, installed_queue
from console.designs import DESIGNS
from console.doctor import order, ring
from console.doctor.context import check_context
from console.doctor.finding import Finding
from console.errors import TooSlowError
from console.monitor.sample_queries import limit_transaction
from console.monitor.scan_query import MessageSource
from tests.contract.plans import Recorder
from tests.contract.traffic import Traffic
from tests.contract.variants import Variant
from tests.faults.harness.queue import FaultyQueue, Use, variant


def archiving(design: str, **options: str) -> Variant:
    return variant(design, archive_at_pop="on", **options)


STRICT = archiving("fifo", order="strict")
PENDING, LAX, RING, NAIVE = map(archiving, ("pending", "fifo", "ring", "naive"))
CHECKED = [STRICT, PENDING, LAX, RING, NAIVE]


def order_findings(client: FaultyQueue) -> list[Finding]:
    return client.found(order.CHECKS, client.known)


def evidence_of(client: FaultyQueue, code: str) -> dict[str, Any]:
    (finding,) = order_findings(client)
    assert finding.code.name == code
    assert finding.cause
    assert finding.consequence
    assert finding.since is not None
    assert "payload" not in str(finding.evidence)
    return dict(finding.evidence)


def ids(evidence: dict[str, Any]) -> list[int]:
    return [message["id"] for message in evidence["messages"]]


POP_BY_HAND: LiteralString = (
    "WITH popped AS (DELETE FROM {table} WHERE id = %s RETURNING *) "
    "INSERT INTO {archive} (id, payload, pushed_at, done_at, state, attempts, reason) "
    "SELECT id, payload, pushed_at, clock_timestamp(), 'done', 1, 'pop' FROM popped"
)
POP_EARLY: LiteralString = (
    "WITH popped AS (DELETE FROM {table} WHERE due_time > clock_timestamp() RETURNING *) "
    "INSERT INTO {archive} (id, payload, pushed_at, due_at, done_at, state, attempts, reason) "
    "SELECT id, payload, pushed_at, due_time, clock_timestamp(), 'done', 1, 'pop' FROM popped"
)


# --------------------------------------------------------------------------------------- faults


def test_a_broken_strict_order_is_found(use: Use) -> None:
    client = use(STRICT, 5)
    assert client.pop()
    client.run(POP_BY_HAND, 5)
    assert order_findings(client) == [], "no other message was popped after it yet"
    assert client.pop()
    evidence = evidence_of(client, "order_broken")
    assert (evidence["count"], ids(evidence)) == (1, [2])
    assert evidence["messages"][0]["after"] == 5
    assert len(client.drain()) == 2
    evidence = evidence_of(client, "order_broken")
    assert (evidence["pops"], ids(evidence), evidence["farthest"]) == (5, [2, 3, 4], 1)


def test_pops_of_a_strict_queue_with_lax_code_are_found(use: Use) -> None:
    """A pop skips a message that another one holds, which is then rolled back."""
    client = use(STRICT, 3)
    queue = installed_queue(client.queue.schema, client.queue.name, DESIGNS["fifo"], LAX.options)
    lax = FaultyQueue(client.database, queue)
    client.change_code(
        ("FOR UPDATE", "FOR UPDATE SKIP LOCKED"), ("PERFORM pg_advisory", "PERFORM 1; -- ")
    )
    with client.database.transaction("pop") as connection:
        assert pop.pop_many(connection, queue, 1)
        assert [message.id for message in lax.pop_many(1)] == ["2"]
        connection.rollback()
    assert len(lax.drain()) == 2
    assert ids(evidence_of(client, "order_broken")) == [1]


@pytest.mark.parametrize("due", ["now() + interval '1 hour'", "'infinity'"])
def test_a_message_popped_before_it_was_due_is_found(use: Use, due: LiteralString) -> None:
    client = use(PENDING, 3)
    client.run("UPDATE {table} SET due_time = " + due + " WHERE id = 2")
    assert len(client.drain()) == 2
    assert order_findings(client) == []
    client.run(POP_EARLY)
    evidence = evidence_of(client, "popped_early")
    assert (evidence["pops"], ids(evidence)) == (3, [2])


@pytest.mark.parametrize("variant", [LAX, RING], ids=str)
def test_a_message_overtaken_by_many_in_a_lax_order_is_a_note(
    use: Use, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "FAR", 20)
    client = use(variant, 40)
    with client.database.transaction("pop") as connection:
        (held,) = pop.pop_many(connection, client.queue, 1)
        assert len(client.drain()) == 39
        connection.rollback()
    if variant is RING:  # its number is consumed: a repair returns the message
        run_repairs(client)
    assert [message.id for message in client.drain()] == [held.id]
    assert order_findings(client) == [], "a moment late"
    monkeypatch.setattr(order, "LATE_SECONDS", 0.0)
    evidence = evidence_of(client, "overtaken")
    assert (evidence["count"], evidence["farthest"], ids(evidence)) == (1, 39, [int(held.id)])


def run_repairs(client: FaultyQueue) -> None:
    for finding in client.found(ring.CHECKS):
        assert client.repair(finding)


# -------------------------------------------------------------------------------------- silence


def purge_and_restore(client: FaultyQueue) -> None:
    """Purge and restore all ready messages, as operators do."""
    with client.database.transaction("look", read_only=True) as connection:
        source = MessageSource.of(connection, client.queue)
    for action in (Purge(source), Restore(source)):
        planned = message_action.select(client.database, action)
        execute.execute(client.database, action, planned)


@pytest.mark.long
@pytest.mark.parametrize("variant", CHECKED, ids=str)
def test_healthy_traffic_raises_no_alarm(use: Use, variant: Variant) -> None:
    """Some transactions are rolled back, some are committed late."""
    client = use(variant, 30)
    traffic = Traffic(client, consumers=3, per_producer=90, backlog=60, rolled_back=0.1, late=0.2)
    acting = variant is not RING  # a purge of a ring drains it with its own pops
    with traffic.running() as producing:
        while not all(one.done() for one in producing):
            if acting:
                with suppress(TooSlowError):
                    purge_and_restore(client)
            assert order_findings(client) == []
    assert order_findings(client) == []
    (pops,) = client.run("SELECT count(*) FROM {archive} WHERE reason = 'pop'")
    assert pops > 50


def test_restored_or_renumbered_messages_do_not_break_the_order(use: Use) -> None:
    client = use(STRICT, 20)
    assert len(client.pop_many(10)) == 10
    with client.database.transaction("look", read_only=True) as connection:
        source = MessageSource.of(connection, client.queue)
    restore = Restore(source, popped=True)
    planned = message_action.select(client.database, restore)
    assert execute.execute(client.database, restore, planned).ledger.out == 10
    assert len(client.drain(3)) == 20
    assert order_findings(client) == []
    client.run("ALTER TABLE {table} ALTER COLUMN id RESTART WITH 1")
    client.push_many(client.payloads(*range(5)))
    assert len(client.drain()) == 5
    assert order_findings(client) == []


def test_old_pops_and_those_of_an_earlier_queue_of_that_name_are_ignored(use: Use) -> None:
    client = use(STRICT, 3)
    client.run(POP_BY_HAND, 3)
    assert len(client.drain()) == 2
    assert evidence_of(client, "order_broken")
    installed: LiteralString = "UPDATE dbq.queue SET installed_at = {} WHERE queue_name = %s"
    for moment, codes in (("clock_timestamp()", 0), ("clock_timestamp() - interval '1 h'", 1)):
        client.run(installed.replace("{}", moment), client.queue.name)
        assert len(order_findings(client)) == codes
    client.run("UPDATE {archive} SET done_at = done_at - interval '25 hours'")
    assert order_findings(client) == []


# ----------------------------------------------------------------------------------------- cost


def test_only_the_newest_rows_of_the_archive_are_read(use: Use) -> None:
    client = use(STRICT, 1)
    client.run(
        "INSERT INTO {archive} (id, payload, pushed_at, done_at, state, attempts, reason) "
        "SELECT n, 'x', clock_timestamp(), clock_timestamp(), 'done', 1, 'pop' "
        "FROM generate_series(1, 30000) AS s (n)"
    )
    with (
        check_context(client.database, client.queue) as context,
        context.transaction() as connection,
    ):
        limit_transaction(connection, client.database, 5.0)
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        recorder = Recorder(driver)
        rows = context.fetch(connection, order.PoppedRow, "popped")
        (statement,) = recorder.take()
    assert [row.id for row in rows] == list(range(20_001, 30_001))
    assert not statement.sequential()
    assert statement.buffers < 600


def test_only_installed_ordered_queues_that_archive_have_their_order_checked() -> None:
    for each in CHECKED:
        assert order.CHECKS.applies(each.queue("s", "q"))
        assert not order.CHECKS.applies(replace(each.queue("s", "q"), kind=Kind.ADOPTED))
    others = [archiving("heap"), archiving("stack"), variant("fifo", order="strict")]
    assert not any(order.CHECKS.applies(each.queue("s", "q")) for each in others)
