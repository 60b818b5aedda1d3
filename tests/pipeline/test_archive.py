"""archive on a real server, tasks in this process: what is archived, kept and refused."""

import json
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from console.actions.archive import Archive, Purge
from console.actions.restore import Restore
from console.engines import open_database
from console.features.lake.archive import files, job
from console.features.lake.archive.plan import ArchiveRequest
from console.features.lake.lake import Lake
from tests.contract.client import Client
from tests.pipeline.archive_tools import (
    NO_RETENTION,
    act,
    archived_keys,
    audit,
    execute_sql,
    payloads,
    push_and_pop,
    rows_in_lake,
    run,
    stop_at,
)
from tests.pipeline.conftest import NewQueue
from tests.servers.poolers import PROGRAM, pgbouncer, through


def test_every_row_is_archived_once_and_a_preview_changes_nothing(
    filled: Client, lake: Lake
) -> None:
    before = archived_keys(filled)
    offered = job.find(filled.database, filled.queue, lake, NO_RETENTION)
    assert (offered.rows, offered.left, offered.unfinished) == (30, 0, None)
    assert lake.files("") == []
    assert archived_keys(filled) == before
    assert offered.as_json()["rows"] == 30
    assert "30 rows" in offered.lines()[0]
    (done,) = run(filled, lake, part_rows=10)
    assert (done.exported, done.deleted, done.files) == (30, 30, 3)
    assert sorted(row["archive_id"] for row in rows_in_lake(lake)) == before
    assert archived_keys(filled) == []
    assert audit(filled) == [(job.VERB, 30, "done")]
    assert run(filled, lake) == [], "nothing is left"
    push_and_pop(filled, 5)
    (more,) = run(filled, lake)
    assert (more.exported, more.deleted) == (5, 5)
    assert len(rows_in_lake(lake)) == 35
    assert more.seconds.keys() == {"export", "verify", "delete"}, "nothing was in doubt"


@pytest.mark.skipif(PROGRAM is None, reason="needs Debian's pgbouncer")
def test_rows_leave_through_a_pooler_with_their_times(filled: Client, lake: Lake) -> None:
    """Startup options are refused there, and the database's own time zone is another one."""
    name = filled.database.url.database
    execute_sql(filled, f"ALTER DATABASE {name} SET timezone = 'Asia/Tokyo'")
    before = archived_keys(filled)
    direct = filled.database.url.render_as_string(hide_password=False)
    with pgbouncer(direct, size=4) as url, closing(open_database(direct)) as database:
        client = Client(through(url, database), filled.queue)
        (done,) = run(client, lake, part_rows=10)
        assert database.pooled
    assert (done.exported, done.deleted) == (30, 30)
    assert sorted(row["archive_id"] for row in rows_in_lake(lake)) == before
    ages = [datetime.now(UTC) - row["pushed_at"] for row in rows_in_lake(lake)]
    assert all(timedelta() < age < timedelta(hours=1) for age in ages)


EXTREMES = [
    datetime(2026, 3, 29, 0, 59, 59, 999_999, tzinfo=UTC),
    datetime(2026, 3, 29, 1, 0, tzinfo=UTC),
    datetime(2026, 10, 25, 0, 30, 0, 1, tzinfo=UTC),
    datetime(2026, 10, 25, 1, 30, 0, 1, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
]


VALUES: dict[str, list[str]] = {
    "text": ["", " ", "a\nb\t\\N\r", "ü😀e\u0301\u202e", "x" * 1_000_000, "'\"{}[]:name%s", "\x01"],
    "json": [
        "null",
        '""',
        '{"n": 12345678901234567890.000000000000000000001}',
        "[1e400, 1E-400, 0.1, -0]",
        '{"ü😀": "\\u0001\\n"}',
        json.dumps("x" * 1_000_000),
    ],
    "bytes": ["", "00", "fffe00", "80" * 1_000_000],
}


SHORT = {("pending", "text"), ("split", "json"), ("claim", "bytes")}


MATRIX = [
    pytest.param(name, kind, marks=[] if (name, kind) in SHORT else [pytest.mark.long])
    for name in ("pending", "claim", "status", "split")
    for kind in sorted(VALUES)
]


@pytest.mark.parametrize(("name", "kind"), MATRIX)
def test_archived_values_equal_those_of_the_database(
    new_queue: NewQueue, lake: Lake, name: str, kind: str
) -> None:
    """Exact bytes, microseconds, times at clock changes, and null as different from empty."""
    client = new_queue(name, payload=kind)
    number = "'{:08d}-0000-0000-0000-000000000000'" if name == "claim" else "{}"
    title = ", title" if name in {"status", "split"} else ""
    due = ", due_at" if name == "pending" else ""
    cast = {"text": "text", "json": "jsonb", "bytes": "text"}[kind]
    value = f"CAST(:payload AS {cast})" if kind != "bytes" else "decode(:payload, 'hex')"
    for at, payload in enumerate(VALUES[kind]):
        moment, empty = EXTREMES[at % len(EXTREMES)], [None, "", "boom ü"][at % 3]
        execute_sql(
            client,
            f"INSERT INTO <archive> (id, payload, pushed_at, done_at, state, attempts, error, "
            f"reason, archived_at{title}{due}) VALUES ({number.format(at + 1)}, {value}, :moment, "
            f":done, 'done', {2**31 - 1 - at}, :error, :reason, :archived"
            f"{', :error' if title else ''}{', :due' if due else ''})",
            payload=payload,
            moment=None if at % 3 == 1 else moment,
            done=None if at % 3 == 0 else moment,
            error=empty,
            reason=empty or "",
            archived=EXTREMES[at % 4].replace(year=2020),
            **({"due": moment} if due else {}),
        )
    query = (
        "SELECT archive_id, CAST(id AS text) AS id, "
        + ("payload" if kind == "bytes" else "CAST(payload AS text)")
        + " AS payload, pushed_at, done_at, state, attempts, error, reason, "
        + ("title" if title else "CAST(NULL AS text) AS title")
        + (", due_at" if due else ", CAST(NULL AS timestamptz) AS due_at")
        + ", archived_at, claimed_at, claimed_by, action_id FROM <archive> ORDER BY archive_id"
    )
    stored = [dict(row._mapping) for row in execute_sql(client, query)]
    assert len(stored) == len(VALUES[kind])
    (done,) = run(client, lake, part_rows=4)
    assert done.deleted == len(stored)
    found = sorted(rows_in_lake(lake), key=lambda row: int(row["archive_id"]))
    column, other = (
        ("payload_bytes", "payload") if kind == "bytes" else ("payload", "payload_bytes")
    )
    assert [{k: row[k] for k in files.SCHEMA.names} for row in found] == [
        {**row, column: row["payload"], other: None, "kind": kind, "more": None} for row in stored
    ]


def test_every_column_leaves(new_queue: NewQueue, lake: Lake) -> None:
    """Also those that others added, whatever their types, each as JSON has it."""
    client = new_queue("claim")
    client.push_many(["one", "other"])
    assert all(client.fail(message, "boom") for message in client.pop_many(2))
    assert act(client, Purge, "state=error") == 2
    execute_sql(
        client, 'ALTER TABLE <archive> ADD customer numeric, ADD "a b""ü" jsonb, ADD tags text[]'
    )
    execute_sql(client, "ALTER TABLE <archive> DROP tags, ADD raw json, ADD seen timestamptz")
    execute_sql(
        client,
        "UPDATE <archive> SET customer = 'NaN', \"a b\"\"ü\" = '[1e22, null]', seen = 'infinity', "
        "raw = CAST(:raw AS json), claimed_at = '0044-03-15 BC' WHERE payload = 'one'",
        raw='{"a": "\\u0000", "b":1e22}',
    )
    query = "SELECT claimed_by, action_id, claimed_at FROM <archive> WHERE payload = 'other'"
    ((claimed_by, action_id, claimed_at),) = execute_sql(client, query)
    run(client, lake)
    rows = {row["payload"]: row for row in rows_in_lake(lake)}
    other, one = rows["other"], rows["one"]
    assert (other["claimed_by"], other["action_id"], other["claimed_at"]) == (
        claimed_by,
        action_id,
        claimed_at,
    )
    assert claimed_by
    assert action_id
    assert one["claimed_at"] is None
    more = json.loads(one["more"])
    assert more.pop("claimed_at").endswith("BC")
    assert more == {
        "customer": "NaN",
        'a b"ü': [10**22, None],
        "raw": {"a": "\0", "b": 1e22},
        "seen": "infinity",
    }
    assert '"b":1e22' in one["more"], "it is not rewritten"
    assert json.loads(other["more"])["customer"] is None


def test_a_time_that_no_file_can_hold_is_kept_as_text(new_queue: NewQueue, lake: Lake) -> None:
    client = new_queue("pending", archive_at_pop="on")
    execute_sql(
        client,
        "INSERT INTO <archive> (id, payload, pushed_at, due_at, state, attempts, reason) "
        "VALUES (1, 'x', '-infinity', 'infinity', 'done', 1, 'pop'), "
        "(2, 'x', '0044-03-15 BC', '20000-01-01', 'done', 1, 'pop')",
    )
    (done,) = run(client, lake)
    assert done.deleted == 2
    rows = rows_in_lake(lake)
    assert {(row["pushed_at"], row["due_at"]) for row in rows} == {(None, None)}
    assert {(m["pushed_at"], m["due_at"]) for m in (json.loads(row["more"]) for row in rows)} == {
        ("-infinity", "infinity"),
        ("0044-03-15T00:00:00+00:00 BC", "20000-01-01T00:00:00+00:00"),
    }


TIMES_OF_NO_FILE = (
    "INSERT INTO <archive> (id, payload, state, attempts, reason, archived_at) "
    "VALUES (1, 'x', 'done', 1, 'pop', '-infinity'), (2, 'x', 'error', 1, 'purge', '-infinity'), "
    "(3, 'x', 'done', 1, 'pop', '0044-03-15 BC'), (4, 'x', 'done', 1, 'pop', 'infinity')"
)


@pytest.mark.parametrize("others", [False, True])
def test_rows_archived_at_a_time_that_no_file_can_hold_leave(
    new_queue: NewQueue, lake: Lake, others: bool
) -> None:
    client = new_queue("fifo", archive_at_pop="on")
    if others:
        execute_sql(client, "ALTER TABLE <archive> ADD COLUMN tenant text DEFAULT 't'")
    execute_sql(client, TIMES_OF_NO_FILE)
    offered = job.find(client.database, client.queue, lake, NO_RETENTION)
    assert "3 rows" in offered.lines()[0]
    (done,) = run(client, lake)
    assert (done.exported, done.deleted) == (3, 3)
    assert execute_sql(client, "SELECT id, CAST(archived_at AS text) FROM <archive>") == [
        (4, "infinity")
    ]
    rows = {row["id"]: row for row in rows_in_lake(lake)}
    assert {(row["archived_at"], str(row["date"])) for row in rows.values()} == {
        (None, "1970-01-01")
    }
    assert {id_: json.loads(row["more"])["archived_at"] for id_, row in rows.items()} == {
        "1": "-infinity",
        "2": "-infinity",
        "3": "0044-03-15T00:00:00+00:00 BC",
    }
    assert run(client, lake) == []


@pytest.mark.parametrize("phase", ["export", "verify", "delete"])
def test_a_stopped_run_goes_on_with_such_rows(new_queue: NewQueue, lake: Lake, phase: str) -> None:
    client = new_queue("fifo", archive_at_pop="on")
    execute_sql(client, TIMES_OF_NO_FILE)
    push_and_pop(client, 30)
    stop_at(client, lake, phase)
    run(client, lake)
    keys = Counter((row["archive_id"], row["archived_at"]) for row in rows_in_lake(lake))
    assert set(keys.values()) == {1}
    assert keys.total() == 33
    assert execute_sql(client, "SELECT count(*) FROM <archive>") == [(1,)]


def test_purged_messages_stay_in_the_database_for_their_retention(
    filled: Client, lake: Lake
) -> None:
    filled.push_many(["purged 1", "purged 2"])
    assert act(filled, Purge) == 2
    old = "UPDATE <archive> SET archived_at = archived_at - interval '8 days' WHERE payload = :p"
    execute_sql(filled, old, p="purged 1")
    (done,) = run(filled, lake, ArchiveRequest())
    assert done.deleted == 31
    assert payloads(lake)["purged 1"] == 1
    assert execute_sql(filled, "SELECT payload FROM <archive>") == [("purged 2",)]
    assert act(filled, Restore) == 1, "restore still finds it"


@pytest.mark.long
def test_popped_messages_stay_in_the_database_until_older_than_requested(
    filled: Client, lake: Lake
) -> None:
    old = "UPDATE <archive> SET archived_at = archived_at - interval '2 hours' WHERE id <= 10"
    execute_sql(filled, old)
    (done,) = run(filled, lake, ArchiveRequest(older=3600.0))
    assert done.deleted == 10
    assert len(archived_keys(filled)) == 20


def test_done_messages_go_by_the_verb_archive(new_queue: NewQueue, lake: Lake) -> None:
    client = new_queue("split")
    client.push_many([f"message {number}" for number in range(12)])
    for at, message in enumerate(client.pop_many(11)):
        assert client.complete(message) if at < 9 else client.fail(message, "boom")
    assert run(client, lake) == [], "the pipeline takes nothing out of the queue itself"
    assert act(client, Archive) == 9
    (done,) = run(client, lake)
    assert (done.exported, done.deleted) == (9, 9)
    assert {(row["state"], row["title"]) for row in rows_in_lake(lake)} == {("done", "")}
    status = client.status()
    assert (status.ready, status.claimed, status.errors, status.done) == (1, 0, 2, 0)
