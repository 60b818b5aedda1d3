"""The doctor's scans of entire tables: how much they read, and what they report as unread."""

import re
from typing import Any, LiteralString

import psycopg
import pytest

from console.doctor import claims, messages, row_scan
from console.doctor.context import CheckContext, check_context
from console.doctor.repairs import IncompleteMessages
from tests.contract.plans import Recorder, Statement
from tests.contract.variants import Variant
from tests.faults.harness.queue import CLAIM, SPLIT, STATUS, FaultyQueue, Use

pytestmark = pytest.mark.thinned(3)


# ---------------------------------------------------------------------------------------- bounds


def test_unread_claims_and_states_are_reported(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_scan, "CHUNK_ROWS", 20)
    client = use(STATUS, 100)
    for message in client.pop_many(50):
        assert client.complete(message)
    assert len(client.pop_many(50)) == 50
    assert client.diagnosed().verdict == "all clear"
    monkeypatch.setattr(row_scan, "MOST_ROWS", 40)
    report = "\n".join(client.diagnosed().unseen)
    assert "claims and their owners: 40 rows" in report
    assert re.search(r"states of rows: 40 rows .* those that are done; the others were not", report)


@pytest.mark.parametrize("bound", ["rows", "seconds"])
def test_unread_rows_are_reported(use: Use, bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_scan, "CHUNK_ROWS", 20)
    client = use(SPLIT, 100)
    assert client.rows_changed("DELETE FROM {data} WHERE id IN (10, 90)") == 2
    client.run("UPDATE {table} SET attempts = 7 WHERE id IN (5, 95)")
    if bound == "rows":
        monkeypatch.setattr(row_scan, "MOST_ROWS", 40)
    patience = 0.0 if bound == "seconds" else 60.0
    with check_context(client.database, client.queue, patience_seconds=patience) as context:
        (missing,) = messages.PAYLOAD_CHECKS.run(context)
        (poison,) = messages.ATTEMPT_CHECKS.run(context)
    assert missing.evidence["ids"] == ["90"], "the newest first"
    assert poison.evidence["ready"]["ids"] == ["5"], "in the order of pops"  # type: ignore[index]
    scanned_rows = 40 if bound == "rows" else 20
    report = "\n".join(context.unseen)
    assert f"messages without their payload: {scanned_rows} rows" in report
    assert f"up to id {100 - scanned_rows} were not" in report
    assert "payloads without a message" in report
    assert re.search(rf"popped too often: {scanned_rows} rows .* those that are ready", report)
    assert not client.diagnosed(patience_seconds=patience).healthy


# ----------------------------------------------------------------------------------------- plans


def load(client: FaultyQueue) -> None:
    """Many messages, every other one done if the design keeps these, and no statistics."""
    client.run("ALTER TABLE {table} SET (autovacuum_enabled = off)")
    client.run(_LOAD[client.queue.design.name])
    if client.queue.design.name != "claim":
        client.drop_constraints(client.queue.table, "c")


_LOAD: dict[str, LiteralString] = {
    "claim": "INSERT INTO {table} (payload) SELECT 'x' FROM generate_series(1, 20000)",
    "status": "INSERT INTO {table} (text_data, status, done_at) SELECT 'x', 2 * (n % 2), "
    "CASE WHEN n % 2 = 1 THEN now() - n * interval '1 ms' END "
    "FROM generate_series(1, 20000) AS s (n)",
    "split": "WITH meta AS (INSERT INTO {table} (status, done_at) SELECT 2 * (n % 2), "
    "CASE WHEN n % 2 = 1 THEN now() - n * interval '1 ms' END "
    "FROM generate_series(1, 20000) AS s (n) RETURNING id) "
    "INSERT INTO {data} (id, text_data) SELECT id, 'x' FROM meta",
}


_CLAIM: dict[str, LiteralString] = {
    "claim": "UPDATE {table} AS m SET processing_started_at = now() - n.n * interval '1 us', "
    "claimed_by = 'me' FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM {table} "
    "LIMIT 5000) AS n WHERE n.id = m.id",
    **dict.fromkeys(
        ("status", "split"),
        "UPDATE {table} SET status = 1, claimed_by = 'me', "
        "claimed_at = now() - id * interval '1 us' WHERE status = 0 AND id % 4 = 0",
    ),
}


def start_recorder(context: CheckContext) -> Recorder:
    with context.transaction() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        return Recorder(driver)


def labelled(label: str, recorder: Recorder) -> list[Statement]:
    return [statement for statement in recorder.take() if label in statement.text]


def rows_read(statement: Statement, relation: str) -> float:
    nodes = [node for node in statement.nodes() if node.get("Relation Name") == relation]
    return sum(
        float(node["Actual Rows"]) * int(node["Actual Loops"])
        + int(node.get("Rows Removed by Filter", 0))
        for node in nodes
    )


@pytest.mark.long
@pytest.mark.parametrize("variant", [CLAIM, STATUS, SPLIT], ids=str)
def test_each_chunk_reads_its_rows_and_no_more(
    use: Use, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_scan, "CHUNK_ROWS", 4_000)
    client, design = use(variant), variant.design.name
    load(client)
    queue = client.queue
    with check_context(client.database, queue, patience_seconds=600.0) as context:
        recorder = start_recorder(context)
        assert list(messages.ATTEMPT_CHECKS.run(context)) == []
        scanned = labelled("common.retried", recorder)
        client.run(_CLAIM[design])
        assert list(claims.CHECKS.run(context)) == []
        statements = recorder.take()
        contradictions = [
            statement for statement in statements if "common.contradictions" in statement.text
        ]
        claimed = [statement for statement in statements if "common.claimed" in statement.text]
        assert list(messages.PAYLOAD_CHECKS.run(context)) == []
        chunks = labelled("split.missing_payloads", recorder)
        assert context.unseen == []
    check(scanned, queue.table, buffers=4_400)
    check(contradictions, queue.table, buffers=4_400)
    check(claimed, queue.table, buffers=18_000)
    if design != "claim":
        full = [
            contradiction
            for contradiction in contradictions
            if rows_read(contradiction, queue.table) >= row_scan.CHUNK_ROWS
        ]
        assert len(full) == 5 + 2
    full = [one for one in claimed if rows_read(one, queue.table) >= row_scan.CHUNK_ROWS]
    assert len(full) == 2, "once before the owners are looked up, and once after it"
    full = [one for one in scanned if rows_read(one, queue.table) == row_scan.CHUNK_ROWS]
    assert len(full) == (5 if design == "claim" else 2)
    if design == "split":
        assert len(chunks) == 6
        check(chunks, queue.table, buffers=18_000)
        check(chunks, f"{queue.name}_data", buffers=18_000)


AHEAD = 64
"""An incremental sort by time and id reads each of its groups of rows to the end."""


def check(statements: list[Statement], table: str, buffers: int) -> None:
    assert statements
    for statement in statements:
        assert rows_read(statement, table) <= row_scan.CHUNK_ROWS + AHEAD
        assert not statement.sequential()
        assert statement.buffers <= buffers


def test_missing_payloads_says_how_far_it_scanned(use: Use) -> None:
    client = use(SPLIT, 10)
    rest: dict[str, Any] = {
        "most": 3,
        "stuck_after": 300.0,
        "gone": client.database.product.array([]),
    }
    with check_context(client.database, client.queue) as context:
        (row,) = context.query(IncompleteMessages, "missing_payloads", newest=7, **rest)
        assert (row.rows_read, row.lowest, row.ready) == (3, 5, 0)
        (row,) = context.query(IncompleteMessages, "missing_payloads", newest=0, **rest)
        assert (row.rows_read, row.lowest) == (0, None)


def test_only_split_queues_are_checked_for_payloads() -> None:
    assert messages.PAYLOAD_CHECKS.applies(SPLIT.queue("s", "q"))
    assert not messages.PAYLOAD_CHECKS.applies(STATUS.queue("s", "q"))
