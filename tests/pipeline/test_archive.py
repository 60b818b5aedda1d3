"""archive on a real server, tasks in this process: what is archived, kept and refused."""

import json
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from console.actions.archive import Archive, Purge
from console.actions.restore import Restore
from console.engines import open_database
from console.errors import UsageError
from console.pipeline.archive import files, job
from console.pipeline.archive.files import pq
from console.pipeline.archive.plan import ArchiveRequest
from console.pipeline.lake import Lake
from tests.contract.client import Client
from tests.pipeline.archive_tools import (
    NO_RETENTION,
    HookedTasks,
    act,
    archived_keys,
    audit,
    execute_sql,
    payloads,
    push_and_pop,
    rows_in_lake,
    run,
)
from tests.pipeline.conftest import NewQueue
from tests.poolers import PROGRAM, pgbouncer, through


def test_every_row_is_archived_once_and_a_preview_changes_nothing(
    filled: Client, lake: Lake
) -> None:
    before = archived_keys(filled)
    offered = job.preview(filled.database, filled.queue, lake, NO_RETENTION, range_rows=10)
    assert (offered.rows, len(offered.plan.ranges), offered.unfinished) == (30, 3, None)
    assert lake.files("") == []
    assert archived_keys(filled) == before
    assert offered.as_json()["rows"] == 30
    assert "30 rows" in offered.lines()[0]
    (done,) = run(filled, lake, range_rows=10)
    assert (done.exported, done.deleted, done.withdrawn, done.files) == (30, 30, 0, 3)
    assert sorted(row["archive_id"] for row in rows_in_lake(lake)) == before
    assert archived_keys(filled) == []
    assert audit(filled) == [(job.VERB, 30, "done")]
    assert run(filled, lake) == [], "nothing is left"
    push_and_pop(filled, 5)
    (more,) = run(filled, lake)
    assert (more.exported, more.deleted) == (5, 5)
    assert len(rows_in_lake(lake)) == 35
    kept = lake.files("_manifests/archive")
    assert not [path for path in kept if "/deletes/" in path], "its files hold what was deleted"
    ended = [lake.read_json(path) for path in kept if path.endswith("done.json")]
    assert sorted(one["deleted"] for one in ended) == [5, 30], "runs of one moment are in no order"
    assert all(one["deleted"] == one["rows"]["delete"] for one in ended)


@pytest.mark.skipif(PROGRAM is None, reason="needs Debian's pgbouncer")
def test_rows_leave_through_a_pooler_with_their_times(filled: Client, lake: Lake) -> None:
    """Startup options are refused there, and the database's own time zone is another one."""
    name = filled.database.url.database
    execute_sql(filled, f"ALTER DATABASE {name} SET timezone = 'Asia/Tokyo'")
    before = archived_keys(filled)
    direct = filled.database.url.render_as_string(hide_password=False)
    with pgbouncer(direct, size=4) as url, closing(open_database(direct)) as database:
        client = Client(through(url, database), filled.queue)
        (done,) = run(client, lake, range_rows=10)
        assert database.pooled
    assert (done.exported, done.deleted, done.withdrawn) == (30, 30, 0)
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
        + ("payload" if kind == "bytes" else "convert_to(CAST(payload AS text), 'UTF8')")
        + " AS payload, pushed_at, done_at, state, attempts, error, reason, "
        + ("title" if title else "CAST(NULL AS text) AS title")
        + (", due_at" if due else ", CAST(NULL AS timestamptz) AS due_at")
        + ", archived_at FROM <archive> ORDER BY archive_id"
    )
    stored = [dict(row._mapping) for row in execute_sql(client, query)]
    assert len(stored) == len(VALUES[kind])
    (done,) = run(client, lake, range_rows=4)
    assert done.deleted == len(stored)
    found = sorted(rows_in_lake(lake), key=lambda row: int(row["archive_id"]))
    assert [{k: row[k] for k in files.SCHEMA.names} for row in found] == [
        {**row, "payload": bytes(row["payload"])} for row in stored
    ]
    for path in lake.data_files("archive"):
        with lake.reading(path) as file:
            assert pq.read_schema(file).metadata[files.KIND] == kind.encode()


def test_times_out_of_the_range_of_a_file_become_its_bounds(
    new_queue: NewQueue, lake: Lake
) -> None:
    client = new_queue("pending", archive_at_pop="on")
    execute_sql(
        client,
        "INSERT INTO <archive> (id, payload, pushed_at, due_at, state, attempts, reason) "
        "VALUES (1, 'x', '-infinity', 'infinity', 'done', 1, 'pop'), "
        "(2, 'x', '0044-03-15 BC', '20000-01-01', 'done', 1, 'pop')",
    )
    run(client, lake)
    assert {(row["pushed_at"], row["due_at"]) for row in rows_in_lake(lake)} == {
        (EXTREMES[4], EXTREMES[5])
    }


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


@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param("status", marks=pytest.mark.long), "split"])
def test_done_rows_are_archived_from_the_queues_own_tables_too(
    new_queue: NewQueue, lake: Lake, name: str
) -> None:
    client = new_queue(name)
    client.push_many([f"message {number}" for number in range(12)])
    for at, message in enumerate(client.pop_many(11)):
        assert client.complete(message) if at < 9 else client.fail(message, "boom")
    act(client, Archive, "limit=2")
    (done,) = run(client, lake, ArchiveRequest(retention=0.0, done_older=0.0), range_rows=4)
    assert (done.exported, done.deleted) == (9, 9)
    found = rows_in_lake(lake)
    assert sorted(row["archive_id"] is None for row in found) == [False] * 2 + [True] * 7
    assert {(row["state"], row["attempts"], row["title"]) for row in found} == {("done", 1, "")}
    status = client.status()
    assert (status.ready, status.claimed, status.errors, status.done) == (1, 0, 2, 0)
    if name == "split":
        assert execute_sql(client, "SELECT count(*) FROM <data>") == [(3,)]
    assert run(client, lake, ArchiveRequest(retention=0.0, done_older=0.0)) == []


@pytest.mark.long
def test_a_done_row_that_changed_after_its_export_stays(new_queue: NewQueue, lake: Lake) -> None:
    """Its attempts differ: it is not the row that was exported."""
    client = new_queue("status")
    client.push_many(["one", "other"])
    for message in client.pop_many(2):
        client.complete(message)
    raise_one = "UPDATE <> SET attempts = 2 WHERE text_data = 'one'"
    hooked = HookedTasks(files.verify, lambda: execute_sql(client, raise_one))
    (done,) = run(client, lake, ArchiveRequest(done_older=0.0), hooked)
    assert (done.exported, done.deleted, done.withdrawn) == (2, 1, 1)
    assert payloads(lake) == Counter({"other": 1})
    assert client.status().done == 1


def test_done_older_is_refused_for_a_queue_that_keeps_no_done_rows(
    new_queue: NewQueue, lake: Lake
) -> None:
    client = new_queue("fifo")
    with pytest.raises(UsageError, match="keeps no done rows"):
        run(client, lake, ArchiveRequest(done_older=1.0))
    assert run(client, lake) == []
