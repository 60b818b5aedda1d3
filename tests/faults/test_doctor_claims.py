"""Wrong claims, states and payloads are found in the middle of long tables, and repaired."""

from contextlib import closing
from types import SimpleNamespace
from typing import Any, LiteralString

import psycopg
import pytest

from console.actions.execute import plan
from console.actions.requeue import Release
from console.doctor import repairs, row_scan
from console.doctor.repairs import NO_PAYLOAD
from console.monitor.limits import DEFAULTS, Severity
from tests.contract.message_actions import source_of
from tests.contract.variants import Variant
from tests.faults.harness.doctor import codes_of, evidence_of, finding_of, without_notes
from tests.faults.harness.queue import (
    CLAIM,
    IMPATIENT,
    IN_HAND,
    MANY_ERRORS,
    RING,
    SOON,
    SPLIT,
    STATUS,
    TWO_STEP,
    Use,
)
from tests.servers import connect, execute, wait_until
from tests.tools.repairs import carry_out

pytestmark = [pytest.mark.thinned(3), pytest.mark.usefixtures("short_chunks")]

SOME = [CLAIM, IN_HAND]
KEEPING = [CLAIM, STATUS, SPLIT, IN_HAND]


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of few rows, so that tables have several."""
    monkeypatch.setattr(row_scan, "CHUNK_ROWS", 12)


# --------------------------------------------------------------------------------------- claims


@pytest.mark.parametrize("variant", KEEPING, ids=str)
def test_a_claim_whose_owner_died_is_released(use: Use, variant: Variant) -> None:
    """A recent claim, after many claims of a live owner."""
    client = use(variant, 30)
    with closing(connect(client.url)) as living:
        client.popped_by(living, 20, bound=True)
        with closing(connect(client.url)) as dies:
            ((young, _),) = client.popped_by(dies, bound=True)
            assert client.diagnosed().verdict == "all clear"
            client.end_session(dies)
        client.popped_by(living, 8, bound=True)
        found = client.diagnosed()
        assert codes_of(found) == ["claims_gone"]
        finding = finding_of(found, "claims_gone")
        assert [owner["ids"] for owner in evidence_of(finding)["by_owner"]] == [[young]]
        client.repair(finding, unattended=True)
        assert client.diagnosed().verdict == "all clear"
        assert young in [message.id for message in client.drain()]


def test_an_unbound_owner_is_gone_only_after_the_threshold(use: Use) -> None:
    client = use(CLAIM, 5)
    with closing(connect(client.url)) as consumer:
        client.popped_by(consumer)
    assert client.diagnosed().verdict == "all clear"

    def gone_found() -> bool:
        return "claims_gone" in client.codes(IMPATIENT)

    wait_until(gone_found, "the claim is old, and its session is gone")


def test_force_releases_a_young_claim_whose_session_is_gone(use: Use) -> None:
    """As it does one whose owner is alive or unknown."""
    client = use(CLAIM, 1)
    with closing(connect(client.url)) as consumer:
        client.popped_by(consumer)
        client.end_session(consumer)
    source = source_of(client)
    for force in (False, True):
        action = Release(source, stuck_after_seconds=3600.0, force=force)
        assert plan(client.database, action).run_to_end().done == force


@pytest.mark.parametrize("variant", SOME, ids=str)
def test_claims_of_a_live_owner_are_not_released_unattended(use: Use, variant: Variant) -> None:
    client = use(variant, 5)
    with closing(connect(client.url)) as consumer:
        consumer.execute("SET application_name = 'slow-worker'")
        client.popped_by(consumer)
        wait_until(lambda: bool(client.status(SOON).stuck), "it is old")
        finding = client.finding("claims_alive", IMPATIENT)
        assert f"session {consumer.info.backend_pid}" in finding.summary
        assert "slow-worker" in finding.summary
        client.repair(finding, unattended=False)
        assert finding.repair is not None
        assert "--force" in finding.repair.command
        assert "claims_alive" not in client.codes(IMPATIENT)
    assert len(client.drain()) == 5


def test_claims_of_unknown_owners_need_an_option(use: Use) -> None:
    client = use(CLAIM, 5)
    client.pop_many(1)
    client.run("UPDATE {table} SET claimed_by = 'the pooler' WHERE claimed_by IS NOT NULL")
    assert client.diagnosed().verdict == "all clear"
    wait_until(lambda: bool(client.status(SOON).stuck), "it is old")
    finding = client.finding("claims_unknown", IMPATIENT)
    client.repair(finding, unattended=False)
    assert finding.repair is not None
    assert "--unknown" in finding.repair.command
    assert "claims_unknown" not in client.codes(IMPATIENT)


@pytest.mark.parametrize("variant", SOME, ids=str)
def test_old_claims_without_an_owner_are_released(use: Use, variant: Variant) -> None:
    """Neither finding nor repair includes a recent claim, which may be in progress."""
    client = use(variant, 5)
    old, young = client.pop_many(2)
    client.run("UPDATE {table} SET claimed_by = NULL")
    assert client.diagnosed().verdict == "all clear"
    client.age(old.id)
    finding = client.finding("claims_nobody")
    assert (finding.evidence["count"], finding.evidence["ids"]) == (1, [old.id])
    carry_out(finding.repair, client.database, DEFAULTS)
    assert client.diagnosed().verdict == "all clear"
    assert client.complete(young), "it was skipped"
    assert old.id in [message.id for message in client.drain()]


# --------------------------------------------------------------------------------------- states

_OF_STATUS: dict[str, tuple[int, LiteralString]] = {
    "claimed_undated": (52, "claimed_at = NULL"),
    "done_undated": (10, "done_at = NULL"),
    "done_with_error": (12, "errors = 'late'"),
    "error_undated": (36, "done_at = NULL"),
}
ILLEGAL: dict[str, dict[str, tuple[int, LiteralString]]] = {
    "status": _OF_STATUS,
    "split": _OF_STATUS,
    "claim": {
        "error_undated": (36, "done_at = NULL"),
        "error_unclaimed": (34, "processing_started_at = NULL"),
    },
}
"""Evidence of `state_illegal` -> index of the popped message, and the change that causes it."""


@pytest.mark.parametrize("variant", [STATUS, SPLIT, CLAIM], ids=str)
def test_rows_that_contradict_their_state_are_found(use: Use, variant: Variant) -> None:
    client = use(variant, 64)
    taken = client.pop_many(56)
    assert all(client.complete(message) for message in taken[:24])
    assert all(client.fail(message, "no") for message in taken[24:48])
    assert client.codes(MANY_ERRORS) == ["error_burst"]
    expected: dict[str, Any] = {}
    one: LiteralString = " WHERE CAST(id AS text) = %s"
    for contradiction, (index, change) in ILLEGAL[variant.design.name].items():
        client.run("UPDATE {table} SET " + change + one, taken[index].id)
        expected[contradiction] = {"count": 1, "ids": [taken[index].id]}
        assert client.finding("state_illegal", MANY_ERRORS).evidence == expected
    # Attempts are checked even if the time is missing.
    client.run("UPDATE {table} SET attempts = 9" + one, taken[36].id)
    tried = client.finding("poison", MANY_ERRORS).evidence
    assert tried == {"error": {"count": 1, "most_attempts": 9, "ids": [taken[36].id]}}


@pytest.mark.parametrize("variant", [STATUS, SPLIT], ids=str)
def test_an_invalid_status_is_found(use: Use, variant: Variant) -> None:
    client = use(variant, 40)
    assert client.drop_constraints(client.queue.table, "c") == 1
    assert client.codes() == ["constraint_missing"]
    client.run("UPDATE {table} SET status = 7 WHERE id = 30")
    found = client.finding("status_unknown")
    assert found.evidence == {"count": 1, "ids": ["30"]}
    # The SQL of the judgement returns that row.
    words, _, statement = found.judgement_text.partition("\n")
    assert words.startswith("needs your judgement: ")
    assert execute(client.url, statement) == [(30, 7)]


@pytest.mark.parametrize("variant", [STATUS, SPLIT, RING], ids=str)
def test_a_dropped_check_constraint_is_found_and_created_again(use: Use, variant: Variant) -> None:
    client = use(variant, 5)
    table = f"{client.queue.name}_config" if variant is RING else client.queue.table
    count = client.drop_constraints(table, "c")
    assert count == (2 if variant is RING else 1)
    found = client.finding("constraint_missing")
    assert len(evidence_of(found)["missing"]) == count
    assert found.command.startswith("dbq-console doctor ")
    assert "--fix --code constraint_missing" in found.command
    client.repair(found)
    assert "constraint_missing" not in client.codes()
    contradiction: LiteralString = "size = -1" if variant is RING else "status = 9"
    with pytest.raises(psycopg.errors.CheckViolation):
        client.run("UPDATE {of} SET " + contradiction, of=table)


@pytest.mark.parametrize("variant", KEEPING, ids=str)
def test_messages_with_too_many_attempts_are_found(use: Use, variant: Variant) -> None:
    client = use(variant, 80)
    taken = client.pop_many(52)
    assert all(client.fail(message, "no") for message in taken[:24])
    if variant is IN_HAND:  # ready rows in it have been returned
        client.run("UPDATE {table} SET claimed_at = NULL WHERE id >= %s", taken[38].id)
    assert client.codes(MANY_ERRORS) == ["error_burst"]
    changed_rows = client.rows_changed(
        "UPDATE {table} AS m SET attempts = 5 + n.place FROM (SELECT id, row_number() OVER "
        "(ORDER BY id) % 4 AS place FROM {table}) AS n WHERE m.id = n.id"
    )
    found = evidence_of(client.finding("poison", MANY_ERRORS))
    assert found.keys() == {"ready", "claimed", "error"}
    assert sum(state["count"] for state in found.values()) == changed_rows
    assert {state["most_attempts"] for state in found.values()} == {8}
    assert client.rows_changed("UPDATE {table} SET attempts = 4") == changed_rows
    assert client.codes(MANY_ERRORS) == ["error_burst"]
    middle = taken[12].id
    client.run("UPDATE {table} SET attempts = 9 WHERE id = %s", middle)
    found = evidence_of(client.finding("poison", MANY_ERRORS))
    assert found == {"error": {"count": 1, "most_attempts": 9, "ids": [middle]}}


# ------------------------------------------------------------------------------------- payloads


@pytest.mark.parametrize("variant", [SPLIT, TWO_STEP], ids=str)
def test_rows_without_payloads_and_payloads_without_rows_are_found(
    use: Use, variant: Variant
) -> None:
    client = use(variant, 40)
    assert client.rows_changed("DELETE FROM {data} WHERE id IN (1, 12, 20, 31)") == 4
    assert client.rows_changed("DELETE FROM {table} WHERE id IN (8, 22)") == 2
    found = client.diagnosed()
    missing, alone = finding_of(found, "payload_missing"), finding_of(found, "payload_alone")
    assert (missing.evidence["count"], missing.evidence["ids"]) == (4, ["31", "20", "12", "1"])
    assert alone.evidence == {"count": 2, "ids": ["22", "8"]}
    assert alone.code.severity is Severity.NOTE
    assert client.pop() is None, "as the finding says"
    client.run("UPDATE {table} SET status = 0, claimed_at = NULL")  # two_step has claimed it
    assert client.repair(missing) == ["marked as errors: 4 rows without a payload"]
    assert len(client.drain()) == 34
    after = client.diagnosed(MANY_ERRORS)
    assert not without_notes(after)
    lost = evidence_of(finding_of(after, "payload_lost"))["ids"]
    assert sorted(lost) == ["1", "12", "20", "31"]
    assert client.run("SELECT errors FROM {table} WHERE status = 4") == [NO_PAYLOAD] * 4


def test_rows_that_a_pop_locks_briefly_are_marked_as_errors_too(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pop locks the row without a payload first, as it skips only locked rows."""
    client = use(SPLIT, 5)
    client.run("DELETE FROM {data} WHERE id = 1")
    finding = client.finding("payload_missing")
    with closing(connect(client.url)) as consumer:
        consumer.execute("BEGIN")
        assert consumer.execute(client.sql("SELECT id FROM {pop}()")).fetchall() == []
        monkeypatch.setattr(repairs, "_ATTEMPTS", 2)
        monkeypatch.setattr(repairs, "_RETRY_SECONDS", 0.0)
        assert "0 rows without a payload; 1 row left" in client.repair(finding)[0]

        def roll_back(_: float) -> None:
            consumer.execute("ROLLBACK")

        monkeypatch.setattr(repairs, "time", SimpleNamespace(sleep=roll_back))
        assert client.repair(finding) == ["marked as errors: 1 row without a payload"]
    assert not without_notes(client.diagnosed(MANY_ERRORS))


@pytest.mark.parametrize("how", ["by age", "by its owner"])
def test_a_claimed_row_without_a_payload_is_marked_as_an_error(use: Use, how: str) -> None:
    """A release does not free it, as there is no payload to return."""
    client = use(TWO_STEP, 5)
    client.run("DELETE FROM {data} WHERE id = 1")
    with closing(connect(client.url)) as consumer:
        pop = client.sql("SELECT id FROM {pop}('worker', %s)")
        assert consumer.execute(pop, [how == "by its owner"]).fetchall() == []
        assert client.codes() == ["payload_lost"], "a live owner claimed it just now"
        repairs.MarkAsErrors(client.queue, 1, DEFAULTS.stuck_after_seconds).run(client.database)
        assert client.codes() == ["payload_lost"], "the repair leaves it to its owner"
        if how == "by age":
            client.age("1")
        else:
            client.end_session(consumer)
        found = client.diagnosed()
        assert [without_note.code.name for without_note in without_notes(found)] == [
            "payload_missing"
        ]
    finding = finding_of(found, "payload_missing")
    assert finding.evidence["claimed"] == {"count": 1, "ids": ["1"]}
    assert client.repair(finding, unattended=True) == ["marked as errors: 1 row without a payload"]
    assert client.codes(MANY_ERRORS) == ["payload_lost"]
    assert [message.id for message in client.drain()] == ["2", "3", "4", "5"]


def test_an_owner_that_came_while_the_repair_runs_is_not_gone(use: Use) -> None:
    client = use(TWO_STEP, 5)
    client.run("DELETE FROM {data} WHERE id = 1")
    with client.database.transaction("repair") as connection:
        connection.exec_driver_sql("SELECT count(*) FROM pg_stat_activity")  # as the audit does
        with closing(connect(client.url)) as consumer:
            consumer.execute(client.sql("SELECT id FROM {pop}('worker', true)"))
            where = {"newest": row_scan.NEWEST, "most": row_scan.CHUNK_ROWS}
            limit = DEFAULTS.stuck_after_seconds
            found, gone = repairs.incomplete_messages(connection, client.queue, limit, **where)
    assert (found.kept, found.stuck, gone) == (1, 0, [])


def test_messages_of_open_transactions_are_not_incomplete(use: Use) -> None:
    client = use(SPLIT, 20)
    with closing(connect(client.url)) as other:
        other.execute("BEGIN")
        other.execute(client.sql("SELECT {push}('x')"))
        other.execute(client.sql("SELECT id FROM {pop}()"))
        assert client.diagnosed().verdict == "all clear"
        other.execute("COMMIT")
    assert client.diagnosed().verdict == "all clear"
