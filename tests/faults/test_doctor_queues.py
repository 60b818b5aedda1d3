"""The doctor on every design, except for a ring's numbers: sessions, limits, no false alarm.

Each fault is caused by SQL or by a session that stays open or is ended; each repair is run and
followed by another diagnosis. For claims and payloads see `test_doctor_claims`, for indexes, keys
and code `test_doctor_tables`.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import psycopg
import pytest
from sqlalchemy import text

from console import sql
from console.designs import designs_on
from console.doctor import general, sessions
from console.doctor.checks import CODES
from console.doctor.stopped_consumers import ConsumptionHistory
from console.engines import open_database
from console.monitor.limits import DEFAULTS, Limits, Severity
from console.monitor.sample_queries import limit_transaction
from tests.contract.filled import fill
from tests.contract.test_every_statement import labels_run, rows_checked
from tests.contract.traffic import Traffic, at_work
from tests.contract.variants import Variant
from tests.faults.harness.doctor import evidence_of, finding_of, without_notes
from tests.faults.harness.queue import (
    CLAIM,
    CLAIMING,
    DELETING,
    FIFO,
    HEAP,
    IMPATIENT,
    IN_HAND,
    MANY_ERRORS,
    NAIVE,
    PENDING,
    RING,
    SOON,
    SPLIT,
    STACK,
    STRICT,
    FaultyQueue,
    Use,
    variant,
)
from tests.servers import READ_CATALOG, connect, login, wait_until
from tests.tools.repairs import carry_out
from tests.unit.test_statement_columns import of_the_doctor

pytestmark = [pytest.mark.slow, pytest.mark.thinned(3)]

KEEPING = variant("fifo", archive_at_pop="on")
ALL = [*DELETING, *CLAIMING, RING, STRICT]
"""Every way to push and pop on PostgreSQL, except for archive_at_pop."""


def test_every_code_is_named_once() -> None:
    assert len({code.name for code in CODES}) == len(CODES)


@pytest.mark.parametrize("variant", ALL, ids=str)
def test_healthy_traffic_raises_no_alarm(use: Use, variant: Variant, long: bool) -> None:
    client = use(variant, 50)
    ends_at = time.monotonic() + (600 / len(ALL) if long else 0)
    traffic = Traffic(client, consumers=3, backlog=100, late=0.3, late_seconds=0.1)
    with traffic.running(min_finished=20):
        while True:
            found = client.diagnosed(consumption=ConsumptionHistory())
            assert [without_note.summary for without_note in without_notes(found)] == []
            assert found.unseen == ()
            if time.monotonic() > ends_at:
                break


# ------------------------------------------------------------------------------------- sessions


@contextmanager
def holding(client: FaultyQueue) -> Iterator[psycopg.Connection]:
    """A session with a message in an open transaction."""
    with closing(connect(client.url)) as holder:
        holder.execute("SET application_name = 'worker-7'")
        holder.execute("BEGIN")
        client.popped_by(holder)
        yield holder


@pytest.mark.parametrize("variant", [NAIVE, HEAP, PENDING], ids=str)
def test_a_session_that_holds_rows_is_named_and_ended(use: Use, variant: Variant) -> None:
    client = use(variant, 5)
    with holding(client) as holder:
        assert "rows_held" not in client.codes()
        wait_until(lambda: "rows_held" in client.codes(IMPATIENT), "it is old")
        finding = client.finding("rows_held", IMPATIENT)
        assert finding.evidence["session"] == holder.info.backend_pid
        assert "worker-7" in finding.summary
        assert "sends nothing" in finding.cause
        # Another transaction of the same session is not ended.
        holder.execute("COMMIT")
        holder.execute("BEGIN")
        client.popped_by(holder)
        assert finding.repair is not None
        texts = {**finding.repair.texts, "older": "1h"}
        lines = carry_out(replace(finding.repair, texts=texts), client.database)  # type: ignore[type-var]
        assert "skipped" in lines[0]
        wait_until(lambda: "rows_held" in client.codes(IMPATIENT), "it is old")
        client.repair(client.finding("rows_held", IMPATIENT), unattended=False)
    assert "rows_held" not in client.codes(IMPATIENT)
    assert len(client.drain()) == 4


def test_a_starving_message_at_the_bottom_of_a_stack_is_found(use: Use) -> None:
    client = use(STACK, 5)
    client.run("UPDATE {table} SET pushed_at = pushed_at - interval '2 hours' WHERE id = 1")
    assert "starved" not in client.codes(), "nothing was popped"
    assert client.pop()
    client.push(client.payload(9))
    assert client.finding("starved").evidence["id"] == "1"
    client.run("UPDATE {table} SET pushed_at = clock_timestamp()")
    assert client.diagnosed().verdict == "all clear"


def test_sessions_that_prevent_the_removal_of_dead_rows_are_found(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "DEAD_ROWS", 100)
    client = use(FIFO, 300)
    with closing(connect(client.url)) as keeper:
        keeper.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        keeper.execute("SELECT pg_current_xact_id()")
        assert len(client.pop_many(250)) == 250
        client.wait_for_dead_rows(250)
        assert not {"dead_head", "xmin_held"} & {*client.codes()}, "not for long"
        finding = client.finding("dead_head", IMPATIENT)
        assert str(keeper.info.backend_pid) in finding.summary
        monkeypatch.setattr(general, "XMIN_NOTE_SECONDS", SOON)
        finding = client.finding("xmin_held")
        assert finding.evidence["session_id"] == keeper.info.backend_pid
        monkeypatch.setattr(general, "XMIN_WARNING_SECONDS", SOON)
        assert client.finding("xmin_held_long").code.severity is Severity.WARNING
    wait_until(lambda: "dead_head" not in client.codes(IMPATIENT), "the session has ended")


def test_a_wait_is_explained(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(general, "_WAITED_SECONDS", SOON)
    client = use(NAIVE, 5)
    with holding(client) as holder, closing(connect(client.url)) as waiter:
        assert "waits" not in client.codes()
        waiter.pgconn.send_query(f'SELECT id FROM "{client.queue.name}_pop"()'.encode())
        wait_until(lambda: "waits" in client.codes(), "the pop waits")
        finding = client.finding("waits")
        assert finding.evidence["sessions"] == [waiter.info.backend_pid]
        assert "Part of the design" in finding.cause
        holder.execute("ROLLBACK")


# --------------------------------------------------------------------------------------- limits


def test_reached_limits_are_found(use: Use) -> None:
    client = use(CLAIM, 5)
    deep = DEFAULTS.with_limits(depth=Limits(3, 5))
    assert client.finding("limit_critical", deep).evidence["value"] == 5
    (taken,) = client.pop_many(1)
    assert client.finding("limit_reached", deep).evidence["figure"] == "depth"
    assert client.fail(taken, "no")
    any_error = DEFAULTS.with_limits(errors=Limits(1))
    assert client.finding("limit_reached", any_error).evidence["figure"] == "errors"
    client.drain()
    assert not without_notes(client.diagnosed(deep))


def test_the_time_until_a_filling_ring_is_full_has_a_range(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = use(variant("ring", size="5000"))
    client.push_many(client.payloads(*range(3000)))
    assert not without_notes(client.diagnosed(patience_seconds=0.5)), "it does not fill"
    pushes: Callable[[], object] = lambda: client.push_many(client.payloads(1, 2, 3))  # noqa: E731
    with at_work(iter(pushes, object()), pause_seconds=0.02):
        for _ in range(10):  # until it is seen to fill
            diagnosis = client.diagnosed(patience_seconds=0.8)
            if any(finding.code.name == "full_soon" for finding in diagnosis.findings):
                break
        evidence = evidence_of(finding_of(diagnosis, "full_soon"))
        monkeypatch.setattr(general, "FULL_CRITICAL_SECONDS", 0.0)
        assert client.finding("full_within_hour", patience_seconds=0.8).evidence
    soonest, middle, latest = (
        evidence[f"full_in_{which}"] for which in ("soonest_seconds", "seconds", "latest_seconds")
    )
    assert soonest <= middle <= latest


def test_a_burst_of_errors_is_reported_with_its_first_message(use: Use) -> None:
    client = use(IN_HAND, 12)
    long = "no answer, try 0\n" + "Traceback " * 15
    for number, message in enumerate(client.pop_many(12)):
        assert client.fail(message, long if number == 0 else f"no answer, try {number}")
    finding = client.finding("error_burst", MANY_ERRORS)
    assert finding.evidence["recent"] == 12
    assert "no answer, try 0" in finding.summary
    assert len(finding.summary) <= 100
    assert finding.evidence["first_error"] == long
    # Masks are applied before texts are cut off, so that no part of a masked text is left.
    masks = [re.compile("try 0\nTrace(back)+")]
    masked = client.diagnosis(MANY_ERRORS, masks=masks)
    hidden = finding_of(masked, "error_burst")
    assert "no answer, ***" in hidden.summary
    assert str(hidden.evidence["first_error"]).startswith("no answer, ***")
    # A constant rate of errors is not a burst.
    client.push_many(client.payloads(*range(200)))
    assert all(client.fail(message, "as ever") for message in client.pop_many(200))
    client.run(
        "UPDATE {table} AS m SET done_at = clock_timestamp() - n.number * interval '100 seconds' "
        "FROM (SELECT id, row_number() OVER () AS number FROM {table}) AS n WHERE m.id = n.id"
    )
    assert not without_notes(client.diagnosed(MANY_ERRORS))


def test_a_lagging_archive_is_found_and_repaired(use: Use) -> None:
    client = use(SPLIT, 5)
    assert all(client.complete(message) for message in client.drain())
    assert client.diagnosed().verdict == "all clear"
    client.run("UPDATE {table} SET done_at = done_at - interval '2 days' WHERE id < 4")
    assert client.diagnosed().healthy
    assert client.repaired("archive_lags").evidence["count"] == 3


# --------------------------------------------------------------------------------------- unseen


def test_unchecked_parts_are_reported_and_never_all_clear(use: Use) -> None:
    client = use(SPLIT, 5)
    with login(client.url, *READ_CATALOG) as url, closing(open_database(url)) as blind:
        diagnosis = FaultyQueue(blind, client.queue).diagnosed()
    assert diagnosis.verdict == "unknown"
    assert not diagnosis.healthy
    lines = "\n".join(diagnosis.unseen)
    for part in (
        "its figures",
        "claims and their owners",
        "messages without their payload",
        "permission denied",
    ):
        assert part in lines


def test_every_statement_of_the_doctor_runs_and_fills_its_row_type(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = replace(DEFAULTS, stuck_after_seconds=0.0).with_limits(age=Limits(0.0001))
    with labels_run() as labels, rows_checked(monkeypatch):
        for variant in (*CLAIMING, STACK, KEEPING):
            client = use(variant)
            fill(client)
            client.diagnosed(at_once)
        client = use(SPLIT, 5)
        client.run("DELETE FROM {data} WHERE id = 1")
        client.repair(client.finding("payload_missing"))
        client.drop_constraints(client.queue.table, "p")
        client.run("INSERT INTO {table} SELECT * FROM {table} WHERE id = 2")
        assert client.finding("key_missing").repair is None
    assert labels >= {"common.claimed", "common.contradictions"}
    product = client.database.product
    expected = {
        statement.label
        for design in designs_on(product.name)
        for statement in of_the_doctor(product, design)
    }
    # Only on a standby.
    assert expected - labels <= {"doctor.recovering"}


@pytest.mark.parametrize("variant", [*CLAIMING, STACK, KEEPING], ids=str)
def test_no_statement_of_the_doctor_reads_a_whole_table(use: Use, variant: Variant) -> None:
    """Even if the planner has no statistics of the queue."""
    client = use(variant, 200)
    product, queue = client.database.product, client.queue
    bound = {
        "stuck_after": 300.0,
        "newest": 2**63 - 1,
        "most": 100,
        "recent": 600.0,
        "error": "none",
        "schema": queue.schema,
        "tables": [queue.table],
        "gone": [],
        "library": True,
    }
    archive = f"{queue.name}_archive"
    names = {"relation_schema": queue.schema, "relation": archive, "id_column": "archive_id"}
    names |= {"sequence_schema": queue.schema, "sequence": f"{archive}_archive_id_seq"}
    names["reach"] = "1"
    explained = 0
    with client.database.session("explain", read_only=True) as session:
        for statement in of_the_doctor(product, queue.design.name):
            name = statement.name
            scope = queue.scope_of(name, product, **names)
            scope = replace(scope, options={**scope.options, "ids": "shown", "indexed": "yes"})
            query = sql.query(statement, product.dialect, scope).text.partition("*/")[2]
            query = re.sub(r"^\s*EXPLAIN \(.*?\)", "", query)  # one is an EXPLAIN itself
            if query.strip(" \n;") == "" or name in {
                "indexes",
                "fail_missing_payloads",
                "duplicate_keys",
                # contract/test_times_postgresql reads their plans.
                "far_times",
                "far_times_plan",
            }:
                continue
            values = {word: value for word, value in bound.items() if f":{word}" in query}
            with session.transaction("explain") as connection:
                limit_transaction(connection, client.database, 5.0)
                lines = connection.execute(text(f"EXPLAIN {query}"), values).scalars().all()
            scans = [line for line in lines if "Seq Scan on" in line and queue.name in line]
            scans = [line for line in scans if "_id_seq" not in line]  # one row
            # A ring has a fixed number of slots, and few parked numbers.
            allowed = queue.design.name == "ring" and name == "pops"
            assert scans == [] or allowed, name
            explained += 1
    assert explained >= 2
