"""What the doctor looks for in whole tables: in their middle too, a bounded stretch at a time."""

import re
from contextlib import closing
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from console.designs import DESIGNS
from console.doctor import claims, examination, messages
from console.doctor.consumption import Consumption
from console.doctor.examination import Examination, ask, open_examination
from console.doctor.examine import examine
from console.doctor.finding import Diagnosis, Finding
from console.doctor.repairs import IncompleteMessages
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import fill
from tests.contract.plans import Recorder, Statement
from tests.contract.variants import SMALL_RING, Variant
from tests.servers import connect

pytestmark = pytest.mark.thinned(3)

SPLIT = Variant(DESIGNS["split"], {})
IN_HAND = Variant(DESIGNS["ring"], {"size": SMALL_RING, "in_hand": "on"})
KEEPING = [Variant(DESIGNS[name], {}) for name in ("claim", "status")] + [SPLIT, IN_HAND]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many stretches in few rows."""
    monkeypatch.setattr(examination, "CHUNK_ROWS", 20)


def run(client: Client, statement: LiteralString) -> int:
    """`{table}` is the table of the states, `{data}` that of the payloads."""
    queue = client.queue
    table = f"{queue.name}_in_hand" if queue.design.name == "ring" else queue.table
    names = {"table": table, "data": f"{queue.name}_data"}
    made = SQL(statement).format(**{k: Identifier(queue.schema, v) for k, v in names.items()})
    with connect(client.url) as connection:
        return connection.execute(made).rowcount


def found(client: Client, patience_seconds: float = 60.0) -> tuple[dict[str, Finding], list[str]]:
    with open_examination(
        client.database,
        client.queue,
        patience_seconds=patience_seconds,
    ) as look:
        families = (
            *messages.INTEGRITY.examine(look),
            *messages.ATTEMPTS.examine(look),
            *claims.FAMILY.examine(look),
        )
        return {one.code.name: one for one in families}, look.unseen


def filled(use: Use, of: Variant, count: int) -> Client:
    client = use(of)
    assert None not in client.push_many(client.payloads(*range(count)))
    return client


# --------------------------------------------------------------------------------------- halves


@pytest.mark.usefixtures("short")
def test_a_half_in_the_middle_is_found_and_set_aside(use: Use) -> None:
    client = filled(use, SPLIT, 100)
    assert run(client, "DELETE FROM {data} WHERE id IN (1, 37, 38, 77)") == 4
    assert run(client, "DELETE FROM {table} WHERE id IN (20, 55)") == 2
    findings, unseen = found(client)
    assert unseen == []
    assert findings.keys() == {"payload_missing", "payload_alone"}
    evidence = findings["payload_missing"].evidence
    assert (evidence["count"], evidence["ids"]) == (4, ["77", "37", "38", "1"])
    assert findings["payload_alone"].evidence == {"count": 2, "ids": ["55", "20"]}
    repair = findings["payload_missing"].repair
    assert repair is not None
    assert "4 rows" in repair.run(client.database)[0]
    after, _ = found(client)
    assert after.keys() == {"payload_lost", "payload_alone"}
    assert sorted(after["payload_lost"].evidence["ids"]) == ["1", "37", "38", "77"]  # type: ignore[call-overload]
    assert len(client.drain()) == 94


@pytest.mark.usefixtures("short")
def test_what_comes_and_goes_meanwhile_is_no_half(use: Use) -> None:
    client = filled(use, SPLIT, 100)
    with closing(connect(client.url)) as other:
        push = SQL("SELECT {}('x')").format(Identifier(f"{client.queue.name}_push"))
        pop = SQL("SELECT id FROM {}()").format(Identifier(f"{client.queue.name}_pop"))
        other.execute("BEGIN")
        other.execute(push)
        other.execute(pop)
        assert found(client) == ({}, [])
        other.execute("COMMIT")
    assert found(client) == ({}, [])


# --------------------------------------------------------------------------------------- poison


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("of", KEEPING, ids=str)
def test_a_message_that_was_tried_too_often_in_the_middle(use: Use, of: Variant) -> None:
    client = filled(use, of, 200)
    taken = client.pop_many(130)
    for message in taken[:60]:
        assert client.fail(message, "no")
    if of is IN_HAND:  # what is ready there came back
        with connect(client.url) as connection:
            table = Identifier(f"{client.queue.name}_in_hand")
            connection.execute(
                SQL("UPDATE {} SET claimed_at = NULL WHERE id >= %s").format(table), [taken[95].id]
            )
    assert found(client) == ({}, [])
    tried: LiteralString = (
        "UPDATE {table} AS m SET attempts = 5 + n.place FROM (SELECT id, row_number() OVER "
        "(ORDER BY id) % 4 AS place FROM {table}) AS n WHERE m.id = n.id"
    )
    everybody = run(client, tried)
    findings, unseen = found(client)
    assert unseen == []
    evidence = findings["poison"].evidence
    assert evidence.keys() == {"ready", "claimed", "error"}
    assert sum(state["count"] for state in evidence.values()) == everybody  # type: ignore[index]
    assert {state["most_attempts"] for state in evidence.values()} == {8}  # type: ignore[index]
    assert run(client, "UPDATE {table} SET attempts = 4") == everybody
    assert found(client) == ({}, [])
    middle = taken[30].id
    with connect(client.url) as connection:
        name = f"{client.queue.name}_in_hand" if of is IN_HAND else client.queue.table
        connection.execute(
            SQL("UPDATE {} SET attempts = 9 WHERE id = %s").format(Identifier(name)), [middle]
        )
    findings, _ = found(client)
    assert findings["poison"].evidence == {
        "error": {"count": 1, "most_attempts": 9, "ids": [middle]}
    }


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("design", ["claim", "status"])
def test_a_state_without_its_time_is_looked_at_too(use: Use, design: str) -> None:
    client = use(Variant(DESIGNS[design], {}))
    fill(client, 60)
    assert (
        run(client, "UPDATE {table} SET done_at = NULL, attempts = 9 WHERE errors IS NOT NULL") == 2
    )
    findings, unseen = found(client)
    assert unseen == []
    assert findings["poison"].evidence["error"]["count"] == 2  # type: ignore[index]


# ---------------------------------------------------------------------------- claims and states


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("of", KEEPING, ids=str)
def test_claims_are_looked_at_in_their_middle_too(use: Use, of: Variant) -> None:
    """A young one, of an owner who is gone, behind many of one who is at work."""
    client = filled(use, of, 60)
    with closing(connect(client.url)) as living:
        pop_many = SQL("SELECT CAST(id AS text) FROM {}(%s, 'w', true)").format(
            Identifier(f"{client.queue.name}_pop_many")
        )
        assert len(living.execute(pop_many, [50]).fetchall()) == 50
        with closing(connect(client.url)) as dies:
            ((young,),) = dies.execute(pop_many, [1]).fetchall()
            assert found(client) == ({}, [])
            with connect(client.url) as other:
                other.execute("SELECT pg_terminate_backend(%s, 30000)", [dies.info.backend_pid])
        assert len(living.execute(pop_many, [9]).fetchall()) == 9
        findings, unseen = found(client)
        assert unseen == []
        assert findings.keys() == {"claims_gone"}
        owners = findings["claims_gone"].evidence["by_owner"]
        assert [owner["ids"] for owner in owners] == [[young]]  # type: ignore[attr-defined]
        repair = findings["claims_gone"].repair
        assert repair is not None
        repair.run(client.database)
        assert found(client) == ({}, [])


def drop_check(client: Client) -> None:
    """That of the states."""
    with connect(client.url) as connection:
        check = connection.execute(
            "SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid = %s::regclass",
            [f'"{client.queue.table}"'],
        ).fetchone()
        assert check is not None
        connection.execute(
            SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(
                Identifier(client.queue.table), Identifier(check[0])
            )
        )


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("design", ["status", "split"])
def test_a_row_that_contradicts_its_state_in_the_middle(use: Use, design: str) -> None:
    client = filled(use, Variant(DESIGNS[design], {}), 100)
    for message in client.pop_many(60):
        assert client.complete(message)
    drop_check(client)
    assert found(client) == ({}, [])
    run(client, "UPDATE {table} SET errors = 'late' WHERE id IN (30, 31)")
    run(client, "UPDATE {table} SET status = 9 WHERE id = 70")
    run(client, "UPDATE {table} SET done_at = NULL WHERE id BETWEEN 10 AND 45")
    findings, unseen = found(client)
    assert unseen == []
    assert findings["status_unknown"].evidence == {"count": 1, "ids": ["70"]}
    wrong = findings["state_illegal"].evidence
    assert wrong.keys() == {"done_with_error", "done_undated"}
    assert wrong["done_with_error"] == {"count": 2, "ids": ["31", "30"]}
    assert wrong["done_undated"]["count"] == 36  # type: ignore[index]


@pytest.mark.usefixtures("short")
def test_an_error_that_is_not_claimed_in_the_middle(use: Use) -> None:
    client = filled(use, Variant(DESIGNS["claim"], {}), 60)
    for message in client.pop_many(60):
        assert client.fail(message, "no")
    with connect(client.url) as connection:
        row = connection.execute(
            SQL("SELECT CAST(id AS text) FROM {} ORDER BY done_at OFFSET 30 LIMIT 1").format(
                Identifier(client.queue.table)
            )
        ).fetchone()
        assert row is not None
        middle = row[0]
        connection.execute(
            SQL("UPDATE {} SET processing_started_at = NULL WHERE id = %s").format(
                Identifier(client.queue.table)
            ),
            [middle],
        )
    findings, unseen = found(client)
    assert unseen == []
    assert findings["state_illegal"].evidence == {"error_unclaimed": {"count": 1, "ids": [middle]}}


@pytest.mark.usefixtures("short")
def test_claims_and_states_that_were_not_looked_at_are_told(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = filled(use, Variant(DESIGNS["status"], {}), 100)
    for message in client.pop_many(50):
        assert client.complete(message)
    assert len(client.pop_many(50)) == 50
    assert found(client) == ({}, [])
    monkeypatch.setattr(examination, "MOST_ROWS", 40)
    told = "\n".join(found(client)[1])
    assert "claims and their owners: 40 rows" in told
    assert re.search(r"states of rows: 40 rows .* those that are done, the others not", told)


# ---------------------------------------------------------------------------------------- bounds


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("bound", ["rows", "seconds"])
def test_what_was_not_looked_at_is_told(
    use: Use, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = filled(use, SPLIT, 100)
    run(client, "DELETE FROM {data} WHERE id IN (10, 90)")
    run(client, "UPDATE {table} SET attempts = 7 WHERE id IN (5, 95)")
    if bound == "rows":
        monkeypatch.setattr(examination, "MOST_ROWS", 40)
    patience = 0.0 if bound == "seconds" else 60.0
    findings, unseen = found(client, patience)
    assert findings["payload_missing"].evidence["ids"] == ["90"], "the newest come first"
    assert findings["poison"].evidence["ready"]["ids"] == ["5"], "what is popped first"  # type: ignore[index]
    looked = 40 if bound == "rows" else 20
    told = "\n".join(unseen)
    assert f"messages without their payload: {looked} rows" in told
    assert f"up to id {100 - looked} not" in told
    assert "payloads without a message" in told
    assert re.search(rf"popped too often: {looked} rows .* those that are ready", told)
    assert not diagnosed(client, patience).healthy


def diagnosed(client: Client, patience_seconds: float) -> Diagnosis:
    (diagnosis,) = examine(
        client.database,
        [client.queue],
        patience_seconds=patience_seconds,
        consumption=Consumption(3600.0, waits=False),
    )
    return diagnosis


# ----------------------------------------------------------------------------------------- plans


def load(client: Client) -> None:
    """Many messages, every other done where that is kept, and no statistics of them."""
    run(client, "ALTER TABLE {table} SET (autovacuum_enabled = off)")
    run(client, _LOAD[client.queue.design.name])
    if client.queue.design.name != "claim":
        drop_check(client)


_LOAD: dict[str, LiteralString] = {
    "claim": "INSERT INTO {table} (payload) SELECT 'x' FROM generate_series(1, 50000)",
    "status": "INSERT INTO {table} (text_data, status, done_at) SELECT 'x', 2 * (n % 2), "
    "CASE WHEN n % 2 = 1 THEN now() - n * interval '1 ms' END "
    "FROM generate_series(1, 50000) AS s (n)",
    "split": "WITH meta AS (INSERT INTO {table} (status, done_at) SELECT 2 * (n % 2), "
    "CASE WHEN n % 2 = 1 THEN now() - n * interval '1 ms' END "
    "FROM generate_series(1, 50000) AS s (n) RETURNING id) "
    "INSERT INTO {data} (id, text_data) SELECT id, 'x' FROM meta",
}


_CLAIM: dict[str, LiteralString] = {
    "claim": "UPDATE {table} AS m SET processing_started_at = now() - n.n * interval '1 us', "
    "claimed_by = 'me' FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM {table} "
    "LIMIT 12500) AS n WHERE n.id = m.id",
    **dict.fromkeys(
        ("status", "split"),
        "UPDATE {table} SET status = 1, claimed_by = 'me', "
        "claimed_at = now() - id * interval '1 us' WHERE status = 0 AND id % 4 = 0",
    ),
}


def recorded(look: Examination) -> Recorder:
    with look.moment() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        return Recorder(driver)


def of(label: str, recorder: Recorder) -> list[Statement]:
    return [one for one in recorder.take() if label in one.text]


def rows_read(statement: Statement, relation: str) -> float:
    nodes = [node for node in statement.nodes() if node.get("Relation Name") == relation]
    return sum(
        float(node["Actual Rows"]) * int(node["Actual Loops"])
        + int(node.get("Rows Removed by Filter", 0))
        for node in nodes
    )


@pytest.mark.parametrize("design", ["claim", "status", "split"])
def test_each_chunk_reads_its_rows_and_no_more(use: Use, design: str) -> None:
    client = use(Variant(DESIGNS[design], {}))
    load(client)
    queue = client.queue
    with open_examination(client.database, queue, patience_seconds=600.0) as look:
        recorder = recorded(look)
        assert list(messages.ATTEMPTS.examine(look)) == []
        scanned = of("common.tried", recorder)
        run(client, _CLAIM[design])
        assert list(claims.FAMILY.examine(look)) == []
        asked = recorder.take()
        stated = [one for one in asked if "common.contradictions" in one.text]
        claimed = [one for one in asked if "common.claimed" in one.text]
        assert list(messages.INTEGRITY.examine(look)) == []
        pieces = of("split.halves", recorder)
        assert look.unseen == []
    check(scanned, queue.table, buffers=11_000)
    check(stated, queue.table, buffers=11_000)
    check(claimed, queue.table, buffers=45_000)
    if design != "claim":
        full = [one for one in stated if rows_read(one, queue.table) >= examination.CHUNK_ROWS]
        assert len(full) == 5 + 2
    full = [one for one in claimed if rows_read(one, queue.table) >= examination.CHUNK_ROWS]
    assert len(full) == 2, "once before the look at the owners, and once after it"
    full = [one for one in scanned if rows_read(one, queue.table) == examination.CHUNK_ROWS]
    assert len(full) == (5 if design == "claim" else 2)
    if design == "split":
        assert len(pieces) == 6
        check(pieces, queue.table, buffers=45_000)
        check(pieces, f"{queue.name}_data", buffers=45_000)


AHEAD = 64
"""An incremental sort, by a time and then the id, reads its groups of rows to their end."""


def check(statements: list[Statement], table: str, buffers: int) -> None:
    assert statements
    for one in statements:
        assert rows_read(one, table) <= examination.CHUNK_ROWS + AHEAD
        assert not one.sequential()
        assert one.buffers <= buffers


def test_incomplete_says_how_far_it_went(use: Use) -> None:
    client = filled(use, SPLIT, 10)
    rest: dict[str, Any] = {
        "most": 3,
        "stuck_after": 300.0,
        "gone": client.database.product.array([]),
    }
    with open_examination(client.database, client.queue) as look:
        (row,) = ask(look, IncompleteMessages, "halves", newest=7, **rest)
        assert (row.looked, row.lowest, row.ready) == (3, 5, 0)
        (row,) = ask(look, IncompleteMessages, "halves", newest=0, **rest)
        assert (row.looked, row.lowest) == (0, None)


def test_of_whom_incomplete_are_looked_for() -> None:
    assert messages.INTEGRITY.applies(SPLIT.queue("s", "q"))
    assert not messages.INTEGRITY.applies(KEEPING[1].queue("s", "q"))
