"""The doctor on every design but the ring's numbers: faults made for real, and no false alarm.

Each fault is made by SQL or by a session that is left open or ended; each repair is run, and the
doctor looks again.
"""

import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import text

from console import sql
from console.actions import maintain_plan
from console.actions.adopt import adopt, forget
from console.catalog import INTERFACE_VERSION, Queue
from console.designs import DESIGNS, designs_on
from console.doctor import common, repairs, sessions
from console.doctor.consumption import Consumption
from console.doctor.examine import examine
from console.doctor.families import CODES
from console.doctor.finding import Diagnosis, Finding
from console.doctor.repairs import NO_PAYLOAD
from console.engines import open_database
from console.monitor.limits import DEFAULTS, Limits, Severity, Thresholds
from console.monitor.sample_queries import be_careful
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import fill
from tests.contract.installs import known
from tests.contract.test_every_statement import rows_checked, running
from tests.contract.traffic import Traffic
from tests.contract.variants import SMALL_RING, Variant
from tests.servers import Server, connect, wait_until
from tests.unit.test_doctor_statements import of_the_doctor

pytestmark = pytest.mark.thinned(3)

SOON = 0.05
"""A threshold that is over at once."""
PATIENCE = 2.0
LINE = 125
"""A summary is one line of a screen: about 100 characters, and the names of a queue in it."""
IMPATIENT = replace(DEFAULTS, stuck_after_seconds=SOON)
MANY_ERRORS = replace(DEFAULTS, errors_share=Limits())


def variant(design: str, **options: str) -> Variant:
    return Variant(DESIGNS[design], options)


IN_HAND = variant("ring", size=SMALL_RING, in_hand="on")
CLAIMING = [
    *(variant(name) for name in ("claim", "status", "split")),
    *(variant("split", dequeue="two_step"), IN_HAND),
]
SOME = [variant("claim"), IN_HAND]
KEEPING = variant("fifo", archive_at_pop="on")
DELETING = [variant(name) for name in ("naive", "heap", "fifo", "stack", "pending")]
HERE = [*DELETING, *CLAIMING, variant("ring", size=SMALL_RING), variant("fifo", order="strict")]
"""Each way to push and to pop on PostgreSQL, but for archive_at_pop."""


def diagnosed(
    client: Client,
    thresholds: Thresholds = DEFAULTS,
    queue: Queue | None = None,
    patience_seconds: float = PATIENCE,
    consumption: Consumption | None = None,
) -> Diagnosis:
    """That nobody consumes is `test_doctor_consumption`'s: here no message waits for an hour."""
    (found,) = examine(
        client.database,
        [queue or client.queue],
        thresholds_of=lambda _: thresholds,
        patience_seconds=patience_seconds,
        consumption=consumption or Consumption(3600.0, waits=False),
    )
    for finding in found.findings:
        assert len(finding.summary) <= LINE, finding.summary
        assert "\n" not in finding.summary
    return found


def names(diagnosis: Diagnosis) -> list[str]:
    return [finding.code.name for finding in diagnosis.findings]


def grave(diagnosis: Diagnosis) -> list[Finding]:
    return [one for one in diagnosis.findings if one.code.severity is not Severity.NOTE]


def the(diagnosis: Diagnosis, code: str) -> Finding:
    """The one finding of that code, with all that a finding has to say."""
    (found,) = [finding for finding in diagnosis.findings if finding.code.name == code]
    assert found.summary
    assert found.evidence
    assert found.cause
    assert found.consequence
    assert "payload 0" not in str(found.as_json())
    return found


def evidence_of(finding: Finding) -> dict[str, Any]:
    return dict(finding.evidence)


def mend(client: Client, finding: Finding) -> Sequence[str]:
    assert finding.repair is not None
    assert finding.repair.summary
    assert finding.repair.plan(client.database)
    return finding.repair.run(client.database)


def run(client: Client, statement: LiteralString, *values: object) -> None:
    """`{table}` is the queue's main table, `{queue}` its name, `{x_suffix}` its other tables."""
    queue = client.queue
    table = f"{queue.name}_in_hand" if queue.design.name == "ring" else queue.table
    with connect(client.url) as connection:
        made = SQL(statement).format(
            table=Identifier(queue.schema, table),
            data=Identifier(queue.schema, f"{queue.name}_data"),
            pop=Identifier(queue.schema, f"{queue.name}_pop"),
        )
        connection.execute(made, values)


def popped_by(connection: psycopg.Connection, client: Client, *, bound: bool = False) -> str:
    """The id of one message that the session has popped."""
    arguments = SQL("'worker-7', {}").format(bound) if client.queue.finishes else SQL("")
    pop = Identifier(client.queue.schema, f"{client.queue.name}_pop")
    row = connection.execute(SQL("SELECT id FROM {}({})").format(pop, arguments)).fetchone()
    assert row is not None
    return str(row[0])


def filled(use: Use, of: Variant, count: int = 5) -> Client:
    client = use(of)
    assert None not in client.push_many(client.payloads(*range(count)))
    return client


def test_every_code_is_named_once() -> None:
    assert len({code.name for code in CODES}) == len(CODES)


# ------------------------------------------------------------------------------------ all clear


@pytest.mark.parametrize("of", HERE, ids=str)
def test_healthy_traffic_raises_no_alarm(use: Use, of: Variant, long: bool) -> None:
    client = filled(use, of, 50)
    ends_at = time.monotonic() + (600 / len(HERE) if long else 0)
    traffic = Traffic(client, consumers=3, backlog=100, late=0.3, late_seconds=0.1)
    with traffic.going_on():
        looks = 0
        while looks < 2 or time.monotonic() < ends_at:
            diagnosis = diagnosed(client, consumption=Consumption())
            looks += 1
            assert [one.summary for one in grave(diagnosis)] == []
            assert diagnosis.unseen == ()


def test_all_queues_are_looked_at(use: Use) -> None:
    clients = [filled(use, one, 1) for one in DELETING]
    found = examine(
        clients[0].database,
        patience_seconds=PATIENCE,
        consumption=Consumption(3600.0, waits=False),
    )
    assert {one.queue.name for one in found} >= {client.queue.name for client in clients}


# --------------------------------------------------------------------------------------- claims


@pytest.mark.parametrize("of", [*SOME, variant("status")], ids=str)
def test_a_claim_whose_owner_died_is_released(use: Use, of: Variant) -> None:
    client = filled(use, of)
    with closing(connect(client.url)) as consumer:
        id_ = popped_by(consumer, client, bound=True)
        assert diagnosed(client).verdict == "all clear"
        with connect(client.url) as other:
            other.execute("SELECT pg_terminate_backend(%s, 30000)", [consumer.info.backend_pid])
    finding = the(diagnosed(client), "claims_gone")
    assert [owner["ids"] for owner in evidence_of(finding)["by_owner"]] == [[id_]]
    assert finding.repair is not None
    assert finding.repair.unattended
    mend(client, finding)
    assert diagnosed(client).verdict == "all clear"
    assert id_ in [message.id for message in client.drain()]


def test_who_left_without_being_bound_is_gone_only_beyond_the_threshold(use: Use) -> None:
    client = filled(use, variant("claim"))
    with closing(connect(client.url)) as consumer:
        popped_by(consumer, client)
    assert diagnosed(client).verdict == "all clear"

    def seen() -> bool:
        return "claims_gone" in names(diagnosed(client, IMPATIENT))

    wait_until(seen, "the claim is old, and its session is gone")


@pytest.mark.parametrize("of", [variant("claim"), IN_HAND], ids=str)
def test_who_is_alive_is_named_and_not_released_by_itself(use: Use, of: Variant) -> None:
    client = filled(use, of)
    with closing(connect(client.url)) as consumer:
        consumer.execute("SET application_name = 'slow-worker'")
        popped_by(consumer, client)
        wait_until(lambda: bool(client.status(SOON).stuck), "it is old")
        finding = the(diagnosed(client, IMPATIENT), "claims_alive")
        assert f"session {consumer.info.backend_pid}" in finding.summary
        assert "slow-worker" in finding.summary
        assert finding.repair is not None
        assert not finding.repair.unattended
        assert "--force" in finding.repair.command
        mend(client, finding)
        assert "claims_alive" not in names(diagnosed(client, IMPATIENT))
    assert len(client.drain()) == 5


def test_a_claim_of_somebody_whom_nobody_knows_wants_a_word(use: Use) -> None:
    client = filled(use, variant("claim"))
    client.pop_many(1)
    run(client, "UPDATE {table} SET claimed_by = 'the pooler' WHERE claimed_by IS NOT NULL")
    assert diagnosed(client).verdict == "all clear"
    wait_until(lambda: bool(client.status(SOON).stuck), "it is old")
    finding = the(diagnosed(client, IMPATIENT), "claims_unknown")
    assert finding.repair is not None
    assert not finding.repair.unattended
    assert "--unknown" in finding.repair.command
    mend(client, finding)
    assert "claims_unknown" not in names(diagnosed(client, IMPATIENT))


@pytest.mark.parametrize("of", SOME, ids=str)
def test_claimed_rows_without_a_claimant(use: Use, of: Variant) -> None:
    """The finding and its repair agree: whoever claimed a young one may be at work on it."""
    client = filled(use, of)
    old, young = client.pop_many(2)
    run(client, "UPDATE {table} SET claimed_by = NULL")
    assert diagnosed(client).verdict == "all clear"
    age(client, old.id)
    finding = the(diagnosed(client), "claims_nobody")
    assert finding.evidence["ids"] == [old.id]
    assert finding.evidence["count"] == 1
    assert finding.repair is not None
    assert not finding.repair.unattended
    mend(client, finding)
    assert diagnosed(client).verdict == "all clear"
    assert client.complete(young), "it was skipped"
    assert old.id in [message.id for message in client.drain()]


def age(client: Client, *ids: str) -> None:
    """Let the claims be an hour older."""
    column = "processing_started_at" if client.queue.design.name == "claim" else "claimed_at"
    queue = client.queue
    table = f"{queue.name}_in_hand" if queue.design.name == "ring" else queue.table
    with connect(client.url) as connection:
        connection.execute(
            SQL(
                "UPDATE {} SET {c} = {c} - interval '1 hour' WHERE CAST(id AS text) = ANY(%s)"
            ).format(Identifier(table), c=Identifier(column)),
            [list(ids)],
        )


_OF_STATUS: dict[str, LiteralString] = {
    "claimed_undated": "SET claimed_at = NULL WHERE status = 1",
    "done_undated": "SET done_at = NULL WHERE status = 2",
    "done_with_error": "SET errors = 'late' WHERE status = 2",
    "error_undated": "SET done_at = NULL WHERE status = 4",
}
ILLEGAL: dict[str, dict[str, LiteralString]] = {
    "status": _OF_STATUS,
    "split": _OF_STATUS,
    "claim": {
        "error_undated": "SET done_at = NULL WHERE errors IS NOT NULL",
        "error_unclaimed": "SET processing_started_at = NULL WHERE errors IS NOT NULL",
    },
}
"""What `illegal` tells -> what makes it."""


@pytest.mark.parametrize("design", ILLEGAL)
def test_rows_that_contradict_their_state(use: Use, design: str) -> None:
    client = use(variant(design))
    fill(client)
    assert not grave(diagnosed(client, MANY_ERRORS))
    made: set[str] = set()
    for wrong, change in ILLEGAL[design].items():
        run(client, "UPDATE {table} " + change)
        made.add(wrong)
        assert set(the(diagnosed(client, MANY_ERRORS), "state_illegal").evidence) == made


@pytest.mark.parametrize("design", ["status"])
def test_a_status_that_nobody_knows(use: Use, design: str) -> None:
    client = filled(use, variant(design))
    with connect(client.url) as connection:
        row = connection.execute(
            "SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid = %s::regclass",
            [f'"{client.queue.table}"'],
        ).fetchone()
        assert row is not None
        table = Identifier(client.queue.table)
        connection.execute(
            SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(table, Identifier(row[0]))
        )
    assert names(diagnosed(client)) == ["constraint_missing"]
    run(client, "UPDATE {table} SET status = 7 WHERE id = 3")
    found = the(diagnosed(client), "status_unknown")
    assert found.evidence["ids"] == ["3"]
    # What to judge by is told, and it tells that row.
    words, _, statement = found.needs.partition("\n")
    assert words.startswith("needs your judgement: ")
    with connect(client.url) as connection:
        assert connection.execute(statement.encode()).fetchall() == [(3, 7)]


@pytest.mark.parametrize("design", ["status", "split", "ring"])
def test_a_check_that_was_dropped_is_a_finding_and_made_again(use: Use, design: str) -> None:
    options = {"size": SMALL_RING} if design == "ring" else {}
    client = filled(use, variant(design, **options))
    of = f"{client.queue.name}_config" if design == "ring" else client.queue.table
    with connect(client.url) as connection:
        checks = connection.execute(
            "SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid = %s::regclass",
            [f'"{of}"'],
        ).fetchall()
        assert len(checks) == (2 if design == "ring" else 1)
        for (name,) in checks:
            drop = SQL("ALTER TABLE {} DROP CONSTRAINT {}")
            connection.execute(drop.format(Identifier(of), Identifier(name)))
    found = the(diagnosed(client), "constraint_missing")
    assert len(evidence_of(found)["missing"]) == len(checks)
    assert found.command.startswith("dbq-console doctor ")
    assert "--fix --code constraint_missing" in found.command
    mend(client, found)
    assert "constraint_missing" not in names(diagnosed(client))
    wrong = SQL("size = -1") if design == "ring" else SQL("status = 9")
    update = SQL("UPDATE {} SET {}").format(Identifier(of), wrong)
    with connect(client.url) as connection, pytest.raises(psycopg.errors.CheckViolation):
        connection.execute(update)


@pytest.mark.parametrize("of", CLAIMING[2:4], ids=str)
def test_a_message_without_its_payload_stops_no_pop_for_long(use: Use, of: Variant) -> None:
    client = filled(use, of)
    run(client, "DELETE FROM {data} WHERE id = 1")
    finding = the(diagnosed(client), "payload_missing")
    assert finding.evidence["ids"] == ["1"]
    assert client.pop() is None, "as the finding says"
    with connect(client.url) as connection:  # two_step has claimed it
        table = Identifier(client.queue.table)
        connection.execute(SQL("UPDATE {} SET status = 0, claimed_at = NULL").format(table))
    mend(client, finding)
    assert [message.id for message in client.drain()] == ["2", "3", "4", "5"]
    after = diagnosed(client, MANY_ERRORS)
    assert not grave(after)
    assert the(after, "payload_lost").evidence["ids"] == ["1"]
    with connect(client.url) as connection:
        query = SQL("SELECT errors FROM {} WHERE status = 4").format(Identifier(client.queue.table))
        assert connection.execute(query).fetchall() == [(NO_PAYLOAD,)]


def test_what_a_pop_holds_for_a_moment_is_set_aside_too(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pop meets the row without a payload first, and skips no row that it can lock."""
    client = filled(use, variant("split"))
    run(client, "DELETE FROM {data} WHERE id = 1")
    finding = the(diagnosed(client), "payload_missing")
    with closing(connect(client.url)) as consumer:
        consumer.execute("BEGIN")
        pop = SQL("SELECT id FROM {}()").format(Identifier(f"{client.queue.name}_pop"))
        assert consumer.execute(pop).fetchall() == []
        monkeypatch.setattr(repairs, "_TRIES", 2)
        monkeypatch.setattr(repairs, "_TRY_AGAIN_SECONDS", 0.0)
        assert "0 rows without a payload; 1 row left" in mend(client, finding)[0]

        def leave(_: float) -> None:
            consumer.execute("ROLLBACK")

        monkeypatch.setattr(repairs, "time", SimpleNamespace(sleep=leave))
        assert mend(client, finding) == ["marked as errors: 1 row without a payload"]
    assert not grave(diagnosed(client, MANY_ERRORS))


@pytest.mark.parametrize("how", ["by age", "by its owner"])
def test_a_half_in_a_claim_is_set_aside(use: Use, how: str) -> None:
    """No release takes it: there is nothing to give to the next one."""
    client = filled(use, variant("split", dequeue="two_step"))
    run(client, "DELETE FROM {data} WHERE id = 1")
    with closing(connect(client.url)) as consumer:
        pop = SQL("SELECT id FROM {}('worker', {})").format(
            Identifier(f"{client.queue.name}_pop"), how == "by its owner"
        )
        assert consumer.execute(pop).fetchall() == []
        young = diagnosed(client)
        assert names(young) == ["payload_lost"], "a living owner claimed it a moment ago"
        repairs.SetAside(client.queue, 1, DEFAULTS.stuck_after_seconds).run(client.database)
        assert names(diagnosed(client)) == ["payload_lost"], "and nobody takes it from him"
        if how == "by age":
            age(client, "1")
            finding = the(diagnosed(client), "payload_missing")
        else:
            with connect(client.url) as other:
                other.execute("SELECT pg_terminate_backend(%s, 30000)", [consumer.info.backend_pid])
            finding = the(diagnosed(client), "payload_missing")
        assert [one.code.name for one in grave(diagnosed(client))] == ["payload_missing"]
    assert finding.evidence["claimed"] == {"count": 1, "ids": ["1"]}
    assert finding.repair is not None
    assert finding.repair.unattended
    assert mend(client, finding) == ["marked as errors: 1 row without a payload"]
    assert names(diagnosed(client, MANY_ERRORS)) == ["payload_lost"]
    assert [message.id for message in client.drain()] == ["2", "3", "4", "5"]


def test_a_payload_without_its_message(use: Use) -> None:
    client = filled(use, variant("split"))
    run(client, "DELETE FROM {table} WHERE id = 2")
    diagnosis = diagnosed(client)
    assert the(diagnosis, "payload_alone").evidence["ids"] == ["2"]
    assert diagnosis.verdict == "notes"


@pytest.mark.parametrize("of", SOME, ids=str)
def test_a_message_that_was_tried_too_often(use: Use, of: Variant) -> None:
    client = filled(use, of)
    first, second = client.pop_many(2)
    assert client.fail(first, "no")
    run(client, "UPDATE {table} SET attempts = 4")
    assert "poison" not in names(diagnosed(client, MANY_ERRORS))
    run(client, "UPDATE {table} SET attempts = 5 WHERE claimed_by IS NOT NULL")
    found = the(diagnosed(client, MANY_ERRORS), "poison").evidence
    assert {state: kind["ids"] for state, kind in found.items()} == {  # type: ignore[index]
        "error": [first.id],
        "claimed": [second.id],
    }


@pytest.mark.parametrize("of", [*SOME, variant("status")], ids=str)
def test_an_index_that_is_gone_is_made_again(use: Use, of: Variant) -> None:
    client = filled(use, of)
    for index in secondary_indexes(client):
        with connect(client.url) as connection:
            connection.execute(SQL("DROP INDEX {}").format(Identifier(index)))
    finding = the(diagnosed(client), "index_missing")
    assert len(finding.evidence["missing"]) >= 3  # type: ignore[arg-type]
    mend(client, finding)
    assert diagnosed(client).verdict == "all clear"


def test_an_invalid_index_is_made_anew(use: Use) -> None:
    client = filled(use, variant("claim"))
    index, *_ = secondary_indexes(client)
    invalidate(client, index)
    finding = the(diagnosed(client), "index_invalid")
    assert finding.evidence["invalid"] == [index]
    mend(client, finding)
    assert diagnosed(client).verdict == "all clear"


def secondary_indexes(client: Client) -> list[str]:
    with connect(client.url) as connection:
        rows = connection.execute(
            "SELECT i.indexrelid::regclass::text FROM pg_index AS i "
            "JOIN pg_class AS t ON i.indrelid = t.oid "
            "WHERE starts_with(t.relname, %s) AND NOT i.indisunique ORDER BY 1",
            [client.queue.name],
        ).fetchall()
    return [str(row[0]).strip('"') for row in rows]


def invalidate(client: Client, index: str) -> None:
    """As an interrupted CREATE INDEX CONCURRENTLY leaves it."""
    with connect(client.url) as connection:
        connection.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass", [f'"{index}"']
        )


# ------------------------------------------------------------------------------------- sessions


@pytest.mark.parametrize("of", [variant("naive"), variant("heap"), variant("pending")], ids=str)
def test_a_session_that_holds_rows_is_named_and_ended(use: Use, of: Variant) -> None:
    client = filled(use, of)
    with closing(connect(client.url)) as holder:
        holder.execute("SET application_name = 'worker-7'")
        holder.execute("BEGIN")
        popped_by(holder, client)
        assert "rows_held" not in names(diagnosed(client))
        wait_until(lambda: "rows_held" in names(diagnosed(client, IMPATIENT)), "it is old")
        finding = the(diagnosed(client, IMPATIENT), "rows_held")
        assert finding.evidence["session"] == holder.info.backend_pid
        assert "worker-7" in finding.summary
        assert "sends nothing" in finding.cause
        assert finding.repair is not None
        assert not finding.repair.unattended
        mend(client, finding)
    assert "rows_held" not in names(diagnosed(client, IMPATIENT))
    assert len(client.drain()) == 5


def test_another_transaction_of_the_session_is_left_alone(use: Use) -> None:
    client = filled(use, variant("fifo"))
    with closing(connect(client.url)) as holder:
        holder.execute("BEGIN")
        popped_by(holder, client)
        wait_until(lambda: "rows_held" in names(diagnosed(client, IMPATIENT)), "it is old")
        finding = the(diagnosed(client, IMPATIENT), "rows_held")
        holder.execute("COMMIT")
        holder.execute("BEGIN")
        popped_by(holder, client)
        assert finding.repair is not None
        told = replace(finding.repair, older_seconds=3600.0).run(client.database)  # type: ignore[type-var]
        assert "skipped" in told[0]
        holder.execute("COMMIT")


def test_the_bottom_of_a_stack_starves(use: Use) -> None:
    client = filled(use, variant("stack"))
    run(client, "UPDATE {table} SET pushed_at = pushed_at - interval '2 hours' WHERE id = 1")
    assert "starved" not in names(diagnosed(client)), "nothing was popped"
    assert client.pop()
    client.push(client.payload(9))
    finding = the(diagnosed(client), "starved")
    assert finding.evidence["id"] == "1"
    run(client, "UPDATE {table} SET pushed_at = clock_timestamp()")
    assert diagnosed(client).verdict == "all clear"


def test_dead_rows_at_the_head_that_somebody_keeps(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "DEAD_ROWS", 100)
    client = filled(use, variant("fifo"), 300)
    with closing(connect(client.url)) as keeper:
        keeper.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        keeper.execute("SELECT pg_current_xact_id()")
        assert len(client.pop_many(250)) == 250

        def dead() -> bool:
            return maintain_plan.measure(client.database, client.queue).dead_rows >= 250

        wait_until(dead, "the server has counted the dead rows")
        assert "dead_head" not in names(diagnosed(client)), "nobody keeps them for long"
        finding = the(diagnosed(client, IMPATIENT), "dead_head")
        assert str(keeper.info.backend_pid) in finding.summary
    wait_until(lambda: "dead_head" not in names(diagnosed(client, IMPATIENT)), "the keeper is gone")


KEYED = [variant("naive"), variant("pending"), variant("split"), IN_HAND]


@pytest.mark.parametrize("of", KEYED, ids=str)
def test_a_key_that_is_gone(use: Use, of: Variant) -> None:
    client = filled(use, of)
    with connect(client.url) as connection:
        query = (
            "SELECT conname FROM pg_constraint WHERE contype IN ('p', 'u') "
            "AND conrelid = %s::regclass"
        )
        row = connection.execute(query, [f'"{client.queue.table}"']).fetchone()
        assert row is not None
        table, key = Identifier(client.queue.table), Identifier(row[0])
        connection.execute(SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(table, key))
    finding = the(diagnosed(client), "key_missing")
    assert client.queue.table in finding.summary
    assert finding.evidence["doubled"] == []
    assert finding.repair is not None
    assert not finding.repair.unattended
    assert "done" in "\n".join(mend(client, finding))
    assert diagnosed(client).verdict == "all clear"


@pytest.mark.parametrize("of", [variant("fifo"), variant("pending"), variant("split")], ids=str)
def test_a_key_that_stands_in_the_way_of_its_own(use: Use, of: Variant) -> None:
    client = filled(use, of)
    name = f"{client.queue.name}_data" if of.design.name == "split" else client.queue.table
    table, key = Identifier(name), Identifier(f"{name}_pkey")
    with connect(client.url) as connection:
        connection.execute(SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(table, key))
        connection.execute(
            SQL("INSERT INTO {t} SELECT * FROM {t} WHERE id IN (2, 3)").format(t=table)
        )
        finding = the(diagnosed(client), "key_missing")
        (first, second) = evidence_of(finding)["doubled"]
        assert [first[0], first[2]] == [name, 2]
        assert (first[1].split()[-1], second[1].split()[-1]) == ("2", "3")
        assert f"{name} has {first[1]} 2 times; 1 more"[:40] in finding.summary
        assert finding.repair is None
        connection.execute(
            SQL(
                "DELETE FROM {t} WHERE ctid = ANY(ARRAY("
                "SELECT max(ctid) FROM {t} WHERE id IN (2, 3) GROUP BY id))"
            ).format(t=table)
        )
    mend(client, the(diagnosed(client), "key_missing"))
    assert diagnosed(client).verdict == "all clear"


def test_a_key_that_could_not_be_made_leaves_nothing_behind(use: Use) -> None:
    client = filled(use, variant("fifo"))
    table, key = Identifier(client.queue.table), Identifier(f"{client.queue.name}_pkey")
    with connect(client.url) as connection:
        connection.execute(SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(table, key))
    finding = the(diagnosed(client), "key_missing")
    with connect(client.url) as connection:  # between the look and the repair
        connection.execute(SQL("INSERT INTO {t} SELECT * FROM {t} WHERE id = 2").format(t=table))
    assert "failed" in "\n".join(mend(client, finding))
    (found,) = evidence_of(the(diagnosed(client), "key_missing"))["doubled"]
    assert found == [client.queue.table, "2", 2]
    assert secondary_indexes(client) == []
    with connect(client.url) as connection:
        left = connection.execute(
            "SELECT count(*) FROM pg_index WHERE indrelid = %s::regclass",
            [f'"{client.queue.name}"'],
        ).fetchone()
    assert left == (0,)


# ------------------------------------------------------------------------------------- anywhere


@pytest.mark.parametrize("of", [*SOME, variant("fifo")], ids=str)
def test_a_function_that_is_missing_is_put_back(use: Use, of: Variant) -> None:
    client = filled(use, of, 1)
    run(client, "DROP FUNCTION {pop}")
    finding = the(diagnosed(client), "code_missing")
    assert finding.code.severity is Severity.CRITICAL
    assert finding.repair is not None
    assert finding.repair.unattended
    mend(client, finding)
    assert diagnosed(client).verdict == "all clear"
    assert client.pop() is not None


def test_code_that_was_changed_by_hand_is_shown_and_wants_a_word(use: Use) -> None:
    client = filled(use, variant("fifo"))
    with connect(client.url) as connection:
        row = connection.execute(
            "SELECT pg_get_functiondef(%s::regproc)", [f'"{client.queue.name}_pop"']
        ).fetchone()
        assert row is not None
        assert "SKIP LOCKED" in row[0]
        connection.execute(row[0].replace(" SKIP LOCKED", "").encode())
    finding = the(diagnosed(client), "code_changed")
    (difference,) = evidence_of(finding)["differences"]
    assert "SKIP LOCKED" in difference["shipped"]
    assert "SKIP LOCKED" not in difference["installed"]
    assert finding.repair is not None
    assert not finding.repair.unattended
    mend(client, finding)
    assert diagnosed(client).verdict == "all clear"


def test_an_older_version_is_a_note(use: Use) -> None:
    client = filled(use, variant("fifo"))
    run(client, "UPDATE dbq.queue SET version = 0 WHERE queue_name = %s", client.queue.name)
    older = known(client.database, client.queue)
    diagnosis = diagnosed(client, queue=older)
    assert diagnosis.healthy
    mend(client, the(diagnosis, "code_older"))
    assert diagnosed(client, queue=known(client.database, client.queue)).verdict == "all clear"


def test_a_newer_version_is_left_to_its_console(use: Use) -> None:
    client = filled(use, variant("fifo"))
    newer = replace(client.queue, version=INTERFACE_VERSION + 1)
    diagnosis = diagnosed(client, queue=newer)
    assert diagnosis.verdict == "notes"
    assert the(diagnosis, "code_older").repair is None


def test_a_table_that_is_gone_can_only_be_restored(use: Use) -> None:
    client = filled(use, variant("claim"))
    archive, aside = Identifier(f"{client.queue.name}_archive"), Identifier("aside")
    rename = SQL("ALTER TABLE {} RENAME TO {}")
    with connect(client.url) as connection:
        connection.execute(rename.format(archive, aside))
    finding = the(diagnosed(client), "code_missing")
    assert "_archive is missing" in finding.summary
    assert finding.repair is None
    with connect(client.url) as connection:
        connection.execute(rename.format(aside, archive))
    assert diagnosed(client).verdict == "all clear"


def test_limits_that_are_reached(use: Use) -> None:
    client = filled(use, variant("claim"))
    deep = replace(DEFAULTS, depth=Limits(3, 5))
    assert the(diagnosed(client, deep), "limit_critical").evidence["value"] == 5
    (taken,) = client.pop_many(1)
    assert the(diagnosed(client, deep), "limit_reached").evidence["figure"] == "depth"
    assert client.fail(taken, "no")
    assert (
        the(diagnosed(client, replace(DEFAULTS, errors=Limits(1))), "limit_reached").evidence[
            "figure"
        ]
        == "errors"
    )
    client.drain()
    assert not grave(diagnosed(client, deep))


def test_a_ring_that_fills_is_told_with_its_range(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = use(variant("ring", size="5000"))
    client.push_many(client.payloads(*range(3000)))
    still = diagnosed(client, patience_seconds=0.5)
    assert not grave(still), "it does not fill"
    over = threading.Event()

    def push() -> None:
        while not over.wait(0.02):
            client.push_many(client.payloads(1, 2, 3))

    with ThreadPoolExecutor(1) as pool:
        pushing = pool.submit(push)
        try:
            evidence = the(diagnosed(client, patience_seconds=0.8), "full_soon").evidence
            monkeypatch.setattr(common, "FULL_CRITICAL_SECONDS", 0.0)
            assert the(diagnosed(client, patience_seconds=0.8), "full_within_hour").evidence
        finally:
            over.set()
        pushing.result()
    soonest, middle, latest = (
        evidence[f"full_in_{which}"] for which in ("soonest_seconds", "seconds", "latest_seconds")
    )
    assert soonest <= middle <= latest  # type: ignore[operator]


@pytest.mark.parametrize("of", [IN_HAND], ids=str)
def test_a_burst_of_errors_with_its_first_message(use: Use, of: Variant) -> None:
    client = filled(use, of, 12)
    long = "no answer, try 0\n" + "Traceback " * 15
    for number, message in enumerate(client.pop_many(12)):
        assert client.fail(message, long if number == 0 else f"no answer, try {number}")
    finding = the(diagnosed(client, MANY_ERRORS), "error_burst")
    assert finding.evidence["recent"] == 12
    assert "no answer, try 0" in finding.summary
    assert len(finding.summary) <= 100
    assert finding.evidence["first_error"] == long
    # What masks hide is hidden before anything is cut off, so that no half of it is left.
    masks = [re.compile("try 0\nTrace(back)+")]
    (masked,) = examine(
        client.database, [client.queue], thresholds_of=lambda _: MANY_ERRORS, masks=masks
    )
    (hidden,) = (one for one in masked.findings if one.code.name == "error_burst")
    assert "no answer, ***" in hidden.summary
    assert str(hidden.evidence["first_error"]).startswith("no answer, ***")
    # The same all day long is no burst.
    client.push_many(client.payloads(*range(200)))
    for message in client.pop_many(200):
        assert client.fail(message, "as ever")
    run(
        client,
        "UPDATE {table} AS m SET done_at = clock_timestamp() - n.number * interval '100 seconds' "
        "FROM (SELECT id, row_number() OVER () AS number FROM {table}) AS n WHERE m.id = n.id",
    )
    assert not grave(diagnosed(client, MANY_ERRORS))


@pytest.mark.parametrize("design", ["split"])
def test_an_archive_that_lags(use: Use, design: str) -> None:
    client = filled(use, variant(design))
    for message in client.drain():
        assert client.complete(message)
    assert diagnosed(client).verdict == "all clear"
    run(client, "UPDATE {table} SET done_at = done_at - interval '2 days' WHERE id < 4")
    diagnosis = diagnosed(client)
    assert diagnosis.healthy
    finding = the(diagnosis, "archive_lags")
    assert finding.evidence["count"] == 3
    mend(client, finding)
    assert diagnosed(client).verdict == "all clear"


def test_bloat_is_a_note_and_is_mended(use: Use) -> None:
    client = filled(use, variant("fifo"))
    invalidate(client, f"{client.queue.name}_pkey")
    diagnosis = diagnosed(client)
    assert diagnosis.verdict == "notes"
    mend(client, the(diagnosis, "bloat"))
    assert diagnosed(client).verdict == "all clear"


def test_who_keeps_dead_rows_of_the_whole_database(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = filled(use, variant("fifo"))
    with closing(connect(client.url)) as keeper:
        keeper.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        keeper.execute("SELECT pg_current_xact_id()")
        assert "xmin_held" not in names(diagnosed(client))
        monkeypatch.setattr(common, "XMIN_NOTE_SECONDS", SOON)
        finding = the(diagnosed(client), "xmin_held")
        assert finding.evidence["session_id"] == keeper.info.backend_pid
        monkeypatch.setattr(common, "XMIN_WARNING_SECONDS", SOON)
        assert the(diagnosed(client), "xmin_held_long").code.severity is Severity.WARNING


def test_a_wait_is_explained(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "_WAITED_SECONDS", SOON)
    client = filled(use, variant("naive"))
    with closing(connect(client.url)) as holder, closing(connect(client.url)) as waiter:
        holder.execute("BEGIN")
        popped_by(holder, client)
        assert "waits" not in names(diagnosed(client))
        waiter.pgconn.send_query(f'SELECT id FROM "{client.queue.name}_pop"()'.encode())

        def told() -> list[Finding]:
            return [one for one in diagnosed(client).findings if one.code.name == "waits"]

        wait_until(lambda: bool(told()), "the pop waits")
        (finding,) = told()
        assert finding.evidence["sessions"] == [waiter.info.backend_pid]
        assert "Part of the design" in finding.cause
        holder.execute("ROLLBACK")


def test_somebody_elses_table_is_looked_at_by_what_is_mapped(use: Use) -> None:
    client = filled(use, variant("fifo"), 1)
    database = client.database
    with connect(client.url) as connection:
        connection.execute("DROP TABLE IF EXISTS jobs")
        connection.execute(
            "CREATE TABLE jobs (n int PRIMARY KEY, state int, body text, who text, "
            "at timestamptz, tries int)"
        )
        connection.execute("INSERT INTO jobs SELECT i, 0, 'x' FROM generate_series(1, 5) AS s (i)")
    roles = {"id": "n", "status": "state", "payload": "body"}
    bare = adopt(database, "public", "jobs", DESIGNS["status"], roles)
    seen = diagnosed(client, queue=bare)
    assert (seen.findings, seen.verdict) == ((), "unknown")
    assert "no column has their time" in "\n".join(seen.unseen)
    forget(database, bare)

    roles |= {"claimed_by": "who", "claimed_at": "at", "attempts": "tries"}
    theirs = adopt(database, "public", "jobs", DESIGNS["status"], roles)
    seen = diagnosed(client, queue=theirs)
    assert seen.findings == ()
    # No column tells how long they wait, and no order which is next.
    assert all(why.startswith("consumption not known") for why in seen.unseen)
    with connect(client.url) as connection:
        connection.execute("UPDATE jobs SET state = 9 WHERE n = 1")
        connection.execute(
            "UPDATE jobs SET state = 1, who = 'me', at = now() - interval '1 day', "
            "tries = 6 WHERE n = 2"
        )
    found = diagnosed(client, queue=theirs)
    assert set(names(found)) == {"status_unknown", "claims_unknown", "poison"}
    forget(database, theirs)


# --------------------------------------------------------------------------------------- unseen


def test_what_cannot_be_looked_at_is_told_and_never_all_clear(use: Use, server: Server) -> None:
    client = filled(use, variant("split"))
    with connect(client.url) as connection:
        connection.execute("DROP ROLE IF EXISTS dbq_test_blind")
        connection.execute("CREATE ROLE dbq_test_blind LOGIN PASSWORD 'blind'")
        connection.execute("GRANT USAGE ON SCHEMA dbq TO dbq_test_blind")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA dbq TO dbq_test_blind")
    url = client.database.url.set(username="dbq_test_blind", password="blind")
    blind = open_database(url.render_as_string(hide_password=False))
    try:
        diagnosis = diagnosed(Client(blind, client.queue))
        assert diagnosis.verdict == "unknown"
        assert not diagnosis.healthy
        told = "\n".join(diagnosis.unseen)
        for what in (
            "its figures",
            "claims and their owners",
            "messages without their payload",
            "permission denied",
        ):
            assert what in told
    finally:
        blind.close()
        with connect(client.url) as connection:
            connection.execute("DROP OWNED BY dbq_test_blind")
            connection.execute("DROP ROLE dbq_test_blind")


def test_every_statement_of_the_doctor_runs_and_fills_its_row_type(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running() as labels, rows_checked(monkeypatch):
        for of in (*CLAIMING, variant("stack"), KEEPING):
            client = use(of)
            fill(client)
            at_once = Limits(0.0001)
            diagnosed(client, replace(DEFAULTS, stuck_after_seconds=0.0, age_seconds=at_once))
        client = filled(use, variant("split"))
        run(client, "DELETE FROM {data} WHERE id = 1")
        mend(client, the(diagnosed(client), "payload_missing"))
        key = Identifier(f"{client.queue.table}_pkey")
        with connect(client.url) as connection:
            table = Identifier(client.queue.table)
            connection.execute(SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(table, key))
            connection.execute(
                SQL("INSERT INTO {t} SELECT * FROM {t} WHERE id = 2").format(t=table)
            )
        assert the(diagnosed(client), "key_missing").repair is None
    assert labels >= {"common.claimed", "common.contradictions"}
    product = client.database.product
    asked = {one.label for of in designs_on(product.name) for one in of_the_doctor(product, of)}
    # Of a standby alone.
    assert asked - labels <= {"doctor.recovering"}


@pytest.mark.parametrize("of", [*CLAIMING, variant("stack"), KEEPING], ids=str)
def test_no_statement_of_the_doctor_reads_a_whole_table(use: Use, of: Variant) -> None:
    """Whatever a planner thinks of a queue of which it has no statistics."""
    client = filled(use, of, 200)
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
    }
    explained = 0
    with client.database.session("explain", read_only=True) as session:
        for statement in of_the_doctor(product, queue.design.name):
            name = statement.name
            scope = queue.scope_of(name, product)
            asked = sql.query(statement, product.dialect, scope).text.partition("*/")[2]
            asked = re.sub(r"^\s*EXPLAIN \(.*?\)", "", asked)  # one is a plan itself
            if asked.strip(" \n;") == "" or name in {"indexes", "set_aside", "doubled"}:
                continue
            values = {word: value for word, value in bound.items() if f":{word}" in asked}
            with session.transaction("explain") as connection:
                be_careful(connection, client.database, 5.0)
                lines = connection.execute(text(f"EXPLAIN {asked}"), values).scalars().all()
            whole = [line for line in lines if "Seq Scan on" in line and queue.name in line]
            # A ring's slots are as many as ever, and its parked numbers are few.
            allowed = queue.design.name == "ring" and name == "pops"
            assert whole == [] or allowed, name
            explained += 1
    assert explained >= 2
