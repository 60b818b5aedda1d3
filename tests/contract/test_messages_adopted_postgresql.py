"""Messages of adopted tables: what the columns contain is shown, anything else is unknown."""

import json
from collections.abc import Mapping

import pytest

from console.actions import execute, message_action
from console.actions.requeue import Requeue
from console.catalog import Queue
from console.clock import FarTime
from console.designs import DESIGNS
from console.engines import Database
from console.errors import ConsoleError, TooSlowError, UsageError
from console.features.presets.adopt import adopt
from console.monitor import scan_query
from console.monitor.errors import error_groups
from console.monitor.filters import parse
from console.monitor.message import Message
from console.monitor.messages import message, read_page
from console.monitor.scan_query import MessageSource
from tests.contract.test_adopt_postgresql import TABLES, check_figures, make, run, sampled_queue

pytestmark = pytest.mark.thinned(3)

STATES = {
    "naive": {"ready": ["1", "2", "3"]},
    "fifo": {"ready": ["1", "2", "3"]},
    "stack": {"ready": ["3", "2", "1"]},
    "heap": {"ready": ["1", "2", "3"]},
    "pending": {"ready": ["1", "2"], "scheduled": ["3", "4"]},
    "claim": {"ready": ["1", "2", "3"], "claimed": ["4", "5"], "error": ["9"]},
    "status": {"ready": ["1", "2", "3"], "claimed": ["4", "5"], "error": ["9"], "done": ["7", "6"]},
    "ring": {"ready": ["11", "12", "13"]},
}
STATES["split"] = STATES["status"]
"""Design -> the ids of each state, in the order in which they are shown."""
PAYLOADS = {"ready": ("ready", "a", "b", "c", "x"), "error": ("error",)}
NAMES = sorted(TABLES)


def shown(
    database: Database,
    queue: Queue,
    *words: str,
    reverse: bool = False,
    payload_bytes: int | None = None,
) -> list[Message]:
    page = read_page(database, queue, parse(words), reverse=reverse, payload_bytes=payload_bytes)
    return list(page.messages)


def required_roles(name: str) -> Mapping[str, str]:
    """The roles that the design requires."""
    roles = {*DESIGNS[name].needed_roles, *(("size",) if name == "ring" else ())}
    return {role: column for role, column in TABLES[name].roles.items() if role in roles}


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_messages_are_listed_by_state_and_page_by_page(new_database: Database, name: str) -> None:
    queue = make(new_database, name)
    for state, ids in STATES[name].items():
        assert [m.id for m in shown(new_database, queue, f"state={state}")] == ids
        last = shown(new_database, queue, f"state={state}", reverse=True)
        assert [m.id for m in last] == ids[::-1]
        assert [m.id for m in shown(new_database, queue, f"id={ids[0]}", f"state={state}")] == ids[
            :1
        ]
    found: list[str | None] = []
    after = None
    while True:
        page = read_page(new_database, queue, limit=1, after=after)
        found += [m.id for m in page.messages]
        if page.next is None:
            break
        after = page.next.text
    assert found == [id_ for ids in STATES[name].values() for id_ in ids]
    # And the values of its columns.
    roles = TABLES[name].roles
    for listed in shown(new_database, queue, payload_bytes=100):
        assert listed.pushed_at is not None
        assert listed.age_seconds is not None
        assert listed.payload is not None
        assert listed.payload_bytes == len(str(listed.payload))
        assert (listed.attempts is not None) == ("attempts" in roles)
        assert (listed.due_at is not None) == ("due_at" in roles)
        if listed.state in {"claimed", "error", "done"}:
            assert listed.claimed_by == "w"
        assert listed.error == ("no" if listed.state == "error" else None)
        again = message(new_database, queue, listed.key, payload_bytes=100)
        assert again is not None
        assert (again.id, again.payload) == (listed.id, listed.payload)


@pytest.mark.parametrize("name", NAMES)
def test_fields_of_unmapped_roles_are_unknown(new_database: Database, name: str) -> None:
    queue = make(new_database, name, required_roles(name))
    check_figures(
        sampled_queue(new_database), {**TABLES[name].figures, **TABLES[name].without_roles}
    )
    roles = queue.roles
    for one in shown(new_database, queue, payload_bytes=100):
        assert (one.id is not None) == ("id" in roles)
        assert (one.pushed_at, one.attempts, one.claimed_by, one.error) == (None,) * 4
        assert (one.payload is not None) == ("payload" in roles)
        assert (one.payload_bytes is not None) == ("payload" in roles)
        since = one.state == "claimed" and "claimed_at" in roles
        assert (one.age_seconds is not None) == since
    total = sum(len(ids) for ids in STATES[name].values())
    assert len(shown(new_database, queue)) == total
    for word in ("older=1h", "claimed_by=w", "error~no", *(() if "id" in roles else ("id=1",))):
        with pytest.raises(UsageError, match="have no"):
            shown(new_database, queue, word)


def test_a_claim_queue_without_errors_shows_failed_claims_as_claims(new_database: Database) -> None:
    queue = make(new_database, "claim", required_roles("claim"))
    assert [m.id for m in shown(new_database, queue, "state=claimed")] == ["4", "5", "9"]
    with pytest.raises(UsageError, match="role error"):
        shown(new_database, queue, "state=error")
    with pytest.raises(UsageError, match="role error"):
        error_groups(new_database, queue)


@pytest.mark.long
@pytest.mark.parametrize("name", ["claim", "status", "split"])
def test_messages_are_filtered_by_age_owner_and_error_group(
    new_database: Database, name: str
) -> None:
    queue = make(new_database, name)

    def ids(*words: str) -> list[str | None]:
        return [m.id for m in shown(new_database, queue, *words)]

    assert ids("state=ready", "older=60s") == ["1"]
    assert ids("state=claimed", "older=5m") == ["5"]
    assert {m.state for m in shown(new_database, queue, "claimed_by=w")} == set(STATES[name]) - {
        "ready"
    }
    assert ids("claimed_by=somebody") == []
    (group,) = error_groups(new_database, queue).groups
    assert (group.wording, group.count, group.sample_id) == ("no", 1, "9")
    key = f"error-group={group.key}"
    assert ids(key) == ["9"]
    with new_database.transaction("read the queue", read_only=True) as connection:
        action = Requeue(MessageSource.of(connection, queue))
    action_plan = message_action.select(new_database, action, parse([key]))
    assert action_plan.count == 1
    assert execute.execute(new_database, action, action_plan).ledger.out == 1
    assert ids(key) == []


TYPES = {
    "jsonb": ("""'{"a": 12345678901234567890.10}'""", '{"a": 12345678901234567890.10}'),
    "json": ("""'{"a":  1}'""", '{"a":  1}'),
    "bytea": (r"'\x00ff41'", b"\x00\xffA"),
    "varchar(20)": ("'é'", "é"),
    "integer": ("42", "42"),
    "text[]": ("'{a,b}'", "{a,b}"),
}


@pytest.mark.long
@pytest.mark.parametrize("type_", TYPES)
def test_payloads_of_any_type_are_shown(postgresql: Database, type_: str) -> None:
    written, expected = TYPES[type_]
    table = f"payloads of {type_}"
    rows = f'CREATE TABLE "{table}" AS SELECT 1 AS id, CAST({written} AS {type_}) AS body'
    run(postgresql, rows)
    queue = adopt(postgresql, "public", table, DESIGNS["fifo"], {"id": "id", "payload": "body"})
    (listed,) = shown(postgresql, queue, payload_bytes=100)
    assert listed.payload == expected
    if type_ == "jsonb":
        assert json.loads(str(listed.payload))
        assert shown(postgresql, queue, "payload.a=12345678901234567890.10")
    elif type_ == "json":
        assert shown(postgresql, queue, "payload.a=1")
    else:
        with pytest.raises(UsageError, match="needs JSON"):
            shown(postgresql, queue, "payload.a=1")


@pytest.mark.parametrize(
    ("type_", "ids"),
    [
        ("text", ["a,b", "it's", "é 😀"]),
        ("uuid", [f"550e8400-e29b-41d4-a716-44665544000{n}" for n in range(3)]),
        ("numeric", ["1.5", "2", "10"]),
        ("numeric(20,0)", ["1", "2", "10"]),
        ("smallint", ["-1", "2", "10"]),
        ("date", ["2026-11-21", "2026-11-22"]),
    ],
)
def test_messages_with_ids_of_any_type_can_be_paged_and_found(
    postgresql: Database, type_: str, ids: list[str]
) -> None:
    rows = ", ".join(f"('{id_.replace(chr(39), chr(39) * 2)}', 'x')" for id_ in ids)
    table = f"ids of {type_}"
    script = f'CREATE TABLE "{table}" (id {type_}, body text); INSERT INTO "{table}" VALUES {rows}'
    run(postgresql, script)
    queue = adopt(postgresql, "public", table, DESIGNS["fifo"], {"id": "id", "payload": "body"})
    found = shown(postgresql, queue)
    assert [listed.id for listed in found] == ids
    for at, listed in enumerate(found):
        rest = read_page(postgresql, queue, after=listed.key).messages
        assert [one.id for one in rest] == ids[at + 1 :]
        assert [one.id for one in shown(postgresql, queue, f"id={listed.id}")] == [listed.id]
    with postgresql.transaction("read the queue", read_only=True) as connection:
        unordered = MessageSource.of(connection, queue).why_not_by_age("ready")
    assert bool(unordered) == (type_ in {"text", "uuid", "date"})
    if type_ in {"uuid", "smallint"}:
        for no_id in ("x", "99999"):
            with pytest.raises(UsageError, match="is not a key"):
                shown(postgresql, queue, f"id={no_id}")


def test_a_due_time_can_be_infinity(new_database: Database) -> None:
    run(new_database, "CREATE TABLE t (due timestamptz, body text)")
    run(new_database, "INSERT INTO t SELECT 'infinity', n FROM generate_series(1, 5) AS n")
    roles = {"due_at": "due", "payload": "body"}
    queue = adopt(new_database, "public", "t", DESIGNS["pending"], roles)
    first = read_page(new_database, queue, limit=2)
    assert [(listed.state, listed.due_at, listed.id) for listed in first.messages] == [
        ("scheduled", FarTime("infinity"), None)
    ] * 2
    assert first.next is not None
    assert len(read_page(new_database, queue, after=first.next.text).messages) == 3


def test_an_adopted_view_without_an_order_cannot_be_paged(new_database: Database) -> None:
    run(
        new_database, "CREATE VIEW t AS SELECT n AS id, 'x' AS body FROM generate_series(1, 5) AS n"
    )
    queue = adopt(new_database, "public", "t", DESIGNS["heap"], {"id": "id", "payload": "body"})
    page = read_page(new_database, queue, limit=3)
    assert (len(page.messages), page.next, page.complete) == (3, None, False)
    page = read_page(new_database, queue, limit=5)
    assert (len(page.messages), page.next, page.complete) == (5, None, True)
    assert [listed.id for listed in shown(new_database, queue, "id=4")] == ["4"]
    with pytest.raises(UsageError, match="no order"):
        read_page(new_database, queue, after="ready")
    as_fifo = dict(queue.roles)
    run(new_database, "CREATE VIEW v AS SELECT * FROM t")
    ordered = adopt(new_database, "public", "v", DESIGNS["fifo"], as_fifo)
    assert read_page(new_database, ordered, limit=3).next is not None


def test_a_list_that_no_index_serves_times_out_with_advice(
    new_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_query, "STATEMENT_SECONDS", 0.5)
    run(
        new_database,
        "CREATE VIEW t AS SELECT n AS id, 'x' AS body FROM generate_series(1, 5) AS n,"
        " LATERAL (SELECT pg_sleep(n)) AS slow",
    )
    queue = adopt(new_database, "public", "t", DESIGNS["fifo"], {"id": "id", "payload": "body"})
    with pytest.raises(TooSlowError) as slow:
        read_page(new_database, queue)
    assert "statement" in slow.value.why
    assert "found by an index" in slow.value.next_step


def test_a_missing_table_is_an_error(new_database: Database) -> None:
    queue = make(new_database, "fifo")
    run(new_database, 'DROP TABLE "Their Queue"')
    with pytest.raises(ConsoleError, match="Could not read the messages of 'Their Queue'"):
        read_page(new_database, queue)
