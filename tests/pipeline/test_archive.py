"""archive on a real server, its tasks in this process: what goes, what stays, what is refused."""

import errno
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import text

from console import sql
from console.actions import execute, plan
from console.actions.archive import Archive, Purge
from console.actions.restore import Restore
from console.actions.rows import Mover
from console.audit import EntryFilter as Entries
from console.audit import entries
from console.errors import ConsoleError, RefusedError, UsageError
from console.monitor.filters import parse
from console.monitor.scan_query import MessageSource
from console.pipeline import guard
from console.pipeline.archive import delete, export, files, job
from console.pipeline.archive import plan as planning
from console.pipeline.archive.files import pq
from console.pipeline.archive.plan import ArchiveRequest
from console.pipeline.archive.row_sums import RowSums
from console.pipeline.lake import DamagedError, Lake
from console.pipeline.session import Item, Plain, Work
from tests.contract.client import Client
from tests.pipeline.conftest import Use
from tests.pipeline.test_lake import fail
from tests.servers import wait_until

AT_ONCE = ArchiveRequest(retention=0.0)
"""All that the archive has."""


class Between(Plain):
    """As plain tasks; before the first task of one kind something else happens."""

    def __init__(self, work: Work, first: Callable[[], object]) -> None:
        self._work = work
        self._first = first

    def run(
        self, work: Work, items: Sequence[Item], *more: Any, **how: Any
    ) -> list[dict[str, Any]]:
        if work == self._work:
            self._first()
        return super().run(work, items, *more, **how)


def run(
    client: Client,
    lake: Lake,
    wanted: ArchiveRequest = AT_ONCE,
    tasks: Plain | None = None,
    range_rows: int = 100_000,
) -> list[job.ArchiveResult]:
    offered = job.offer(client.database, client.queue, lake, wanted, range_rows=range_rows)
    return job.archive(client.database, offered, lake, tasks or Plain(), batch=7)


def range_manifests(lake: Lake) -> list[str]:
    paths = lake.files("_manifests/archive")
    return [path for path in paths if path.rsplit("/", 1)[-1].startswith("range-")]


def lie(lake: Lake) -> list[dict[str, Any]]:
    """All rows that readers find in the lake."""
    found: list[dict[str, Any]] = []
    for path in lake.data_files("archive"):
        with lake.reading(path) as file:
            found += pq.read_table(file).to_pylist()
    return found


def payloads(lake: Lake) -> Counter[str]:
    return Counter(row["payload"].decode() for row in lie(lake))


def execute_sql(client: Client, statement: str, **values: object) -> list[Any]:
    """A statement with the names of the queue's tables put in."""
    dialect = client.database.product.dialect
    for suffix in ("archive", "meta", "data", ""):
        name = f"{client.queue.name}_{suffix}" if suffix else client.queue.name
        whole = ".".join(sql.quote_identifier(dialect, n) for n in (client.queue.schema, name))
        statement = statement.replace(f"<{suffix}>", whole)
    with client.database.transaction("prepare a test") as connection:
        result = connection.execute(text(statement), values)
        return list(result.all()) if result.returns_rows else []


def archived(client: Client) -> list[int]:
    return [row[0] for row in execute_sql(client, "SELECT archive_id FROM <archive> ORDER BY 1")]


def popped(client: Client, count: int) -> list[str]:
    """So many messages that were pushed and popped; their payloads."""
    sent = [f"{client.queue.name} {number}" for number in range(count)]
    client.push_many(sent)
    assert len(client.drain()) == count
    return sent


def act(client: Client, verb: Callable[[MessageSource], Mover], *words: str) -> int:
    """An operator's verb; how many messages it moved."""
    with client.database.transaction("read the queue", read_only=True) as connection:
        source = MessageSource.of(connection, client.queue)
    mover = verb(source)
    made = plan.make(client.database, mover, parse(words))
    return execute.execute(client.database, mover, made).ledger.out


def audit(client: Client) -> list[tuple[str, int, str]]:
    with client.database.transaction("read the audit", read_only=True) as connection:
        wanted = Entries(client.queue.schema, client.queue.name, job.VERB)
        found = entries(connection, wanted)
    return [(entry.verb, entry.done, entry.outcome) for entry in reversed(found)]


@pytest.fixture
def filled(use: Use) -> Client:
    """30 popped messages."""
    client = use("fifo", archive_at_pop="on")
    popped(client, 30)
    return client


def test_all_of_it_goes_once(filled: Client, lake: Lake) -> None:
    before = archived(filled)
    (done,) = run(filled, lake, range_rows=10)
    assert (done.exported, done.deleted, done.withdrawn, done.files) == (30, 30, 0, 3)
    assert sorted(row["archive_id"] for row in lie(lake)) == before
    assert archived(filled) == []
    assert audit(filled) == [(job.VERB, 30, "done")]
    assert run(filled, lake) == [], "nothing is left"
    popped(filled, 5)
    (more,) = run(filled, lake)
    assert (more.exported, more.deleted) == (5, 5)
    assert len(lie(lake)) == 35
    kept = lake.files("_manifests/archive")
    assert not [path for path in kept if "/deletes/" in path], "its files hold what was deleted"
    ended = [lake.read_json(path) for path in kept if path.endswith("done.json")]
    assert sorted(one["deleted"] for one in ended) == [5, 30], "runs of one moment are in no order"
    assert all(one["deleted"] == one["rows"]["delete"] for one in ended)


@pytest.mark.parametrize("content", ["slot", "apart"])
def test_of_a_ring_with_subscribers_each_message_goes_once(
    use: Use, lake: Lake, content: str
) -> None:
    client = use("ring", archive_at_pop="on", subscribers="a,b,c", content=content)
    sent = subscribers_popped(client, 30)
    (done,) = run(client, lake, range_rows=10)
    assert (done.exported, done.deleted, done.withdrawn) == (30, 30, 0)
    assert payloads(lake) == Counter(sent)


def subscribers_popped(client: Client, count: int) -> list[str]:
    """So many messages that were pushed, and popped by each subscriber of the ring."""
    return popped(replace(client, queue=client.queue.views[0]), count)


def test_an_offer_changes_nothing(filled: Client, lake: Lake) -> None:
    offered = job.offer(filled.database, filled.queue, lake, AT_ONCE, range_rows=10)
    assert (offered.rows, len(offered.made.ranges), offered.unfinished) == (30, 3, None)
    assert lake.files("") == []
    assert len(archived(filled)) == 30
    assert offered.as_json()["rows"] == 30
    assert "30 rows" in offered.lines()[0]


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
def test_values_are_those_of_the_database(use: Use, lake: Lake, name: str, kind: str) -> None:
    """Exact bytes, microseconds, times at changes of clocks, and null is not empty."""
    client = use(name, payload=kind)
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
    whole = (
        "SELECT archive_id, CAST(id AS text) AS id, "
        + ("payload" if kind == "bytes" else "convert_to(CAST(payload AS text), 'UTF8')")
        + " AS payload, pushed_at, done_at, state, attempts, error, reason, "
        + ("title" if title else "CAST(NULL AS text) AS title")
        + (", due_at" if due else ", CAST(NULL AS timestamptz) AS due_at")
        + ", archived_at FROM <archive> ORDER BY archive_id"
    )
    there = [dict(row._mapping) for row in execute_sql(client, whole)]
    assert len(there) == len(VALUES[kind])
    (done,) = run(client, lake, range_rows=4)
    assert done.deleted == len(there)
    found = sorted(lie(lake), key=lambda row: int(row["archive_id"]))
    assert [{k: row[k] for k in files.SCHEMA.names} for row in found] == [
        {**row, "payload": bytes(row["payload"])} for row in there
    ]
    for path in lake.data_files("archive"):
        with lake.reading(path) as file:
            assert pq.read_schema(file).metadata[files.KIND] == kind.encode()


def test_times_that_no_file_has_room_for_end_at_its_bounds(use: Use, lake: Lake) -> None:
    client = use("pending", archive_at_pop="on")
    execute_sql(
        client,
        "INSERT INTO <archive> (id, payload, pushed_at, due_at, state, attempts, reason) "
        "VALUES (1, 'x', '-infinity', 'infinity', 'done', 1, 'pop'), "
        "(2, 'x', '0044-03-15 BC', '20000-01-01', 'done', 1, 'pop')",
    )
    run(client, lake)
    assert {(row["pushed_at"], row["due_at"]) for row in lie(lake)} == {(EXTREMES[4], EXTREMES[5])}


def test_what_was_purged_stays_for_its_retention(filled: Client, lake: Lake) -> None:
    filled.push_many(["purged 1", "purged 2"])
    assert act(filled, Purge) == 2
    old = "UPDATE <archive> SET archived_at = archived_at - interval '8 days' WHERE payload = :p"
    execute_sql(filled, old, p="purged 1")
    (done,) = run(filled, lake, ArchiveRequest())
    assert done.deleted == 31
    assert payloads(lake)["purged 1"] == 1
    assert execute_sql(filled, "SELECT payload FROM <archive>") == [("purged 2",)]
    assert act(filled, Restore) == 1, "restore still finds it"


def test_popped_ones_may_be_kept_for_a_while_too(filled: Client, lake: Lake) -> None:
    old = "UPDATE <archive> SET archived_at = archived_at - interval '2 hours' WHERE id <= 10"
    execute_sql(filled, old)
    (done,) = run(filled, lake, ArchiveRequest(older=3600.0))
    assert done.deleted == 10
    assert len(archived(filled)) == 20


@pytest.mark.parametrize("name", [pytest.param("status", marks=pytest.mark.long), "split"])
def test_done_rows_go_from_where_they_lie(use: Use, lake: Lake, name: str) -> None:
    client = use(name)
    client.push_many([f"message {number}" for number in range(12)])
    for at, message in enumerate(client.pop_many(11)):
        assert client.complete(message) if at < 9 else client.fail(message, "boom")
    act(client, Archive, "limit=2")
    (done,) = run(client, lake, ArchiveRequest(retention=0.0, done_older=0.0), range_rows=4)
    assert (done.exported, done.deleted) == (9, 9)
    found = lie(lake)
    assert sorted(row["archive_id"] is None for row in found) == [False] * 2 + [True] * 7
    assert {(row["state"], row["attempts"], row["title"]) for row in found} == {("done", 1, "")}
    status = client.status()
    assert (status.ready, status.claimed, status.errors, status.done) == (1, 0, 2, 0)
    if name == "split":
        assert execute_sql(client, "SELECT count(*) FROM <data>") == [(3,)]
    assert run(client, lake, ArchiveRequest(retention=0.0, done_older=0.0)) == []


def test_a_done_row_that_began_again_stays(use: Use, lake: Lake) -> None:
    """Its attempts are others: it is not the row that was exported."""
    client = use("status")
    client.push_many(["one", "other"])
    for message in client.pop_many(2):
        client.complete(message)
    raise_one = "UPDATE <> SET attempts = 2 WHERE text_data = 'one'"
    between = Between(_verify(), lambda: execute_sql(client, raise_one))
    (done,) = run(client, lake, ArchiveRequest(done_older=0.0), between)
    assert (done.exported, done.deleted, done.withdrawn) == (2, 1, 1)
    assert payloads(lake) == Counter({"other": 1})
    assert client.status().done == 1


def _verify() -> Work:
    from console.pipeline.archive.files import verify  # noqa: PLC0415

    return verify


def test_what_is_restored_meanwhile_stays_in_the_database(filled: Client, lake: Lake) -> None:
    def restore() -> int:
        return act(filled, lambda source: Restore(source, popped=True), "limit=4")

    (done,) = run(filled, lake, tasks=Between(_verify(), restore), range_rows=10)
    assert (done.exported, done.deleted, done.withdrawn) == (30, 26, 4)
    back = Counter(str(message.payload) for message in filled.drain())
    assert sum(back.values()) == 4
    assert not back.keys() & payloads(lake).keys()
    assert sum(payloads(lake).values()) == 26
    told = [lake.read_json(path) for path in range_manifests(lake)]
    assert sum(manifest["rows"] for manifest in told) == 26, "the manifests say what is there"
    assert not any(files.verify(one)["wrong"] for one in files.items(lake, told))
    (more,) = run(filled, lake)
    assert more.deleted == 4, "popped again, they are new in the archive"


def test_a_file_whose_rows_were_all_restored_goes(filled: Client, lake: Lake) -> None:
    def restore() -> int:
        return act(filled, lambda source: Restore(source, popped=True))

    (done,) = run(filled, lake, tasks=Between(_verify(), restore), range_rows=10)
    assert (done.deleted, done.withdrawn, done.files) == (0, 30, 0)
    assert lake.files("archive") == []


def test_rows_in_others_hands_stay_and_leave_the_lake(
    filled: Client, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.pipeline.archive.delete._PASSES_SECONDS", (0.0,))
    keys = archived(filled)
    with filled.database.transaction("hold rows") as connection:
        name = sql.quote_identifier(connection.dialect, f"{filled.queue.name}_archive")
        hold = text(f"SELECT FROM public.{name} WHERE archive_id <= :key FOR UPDATE")
        connection.execute(hold, {"key": keys[2]})
        (done,) = run(filled, lake)
    assert (done.deleted, done.withdrawn) == (27, 3)
    assert archived(filled) == keys[:3]
    assert sorted(row["archive_id"] for row in lie(lake)) == keys[3:]


def test_a_second_run_is_refused(filled: Client, lake: Lake) -> None:
    started, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        assert go_on.wait(30)

    first = threading.Thread(
        target=run, args=(filled, lake), kwargs={"tasks": Between(_verify(), wait)}
    )
    first.start()
    assert started.wait(30)
    try:
        with pytest.raises(RefusedError, match="Another run is working"):
            run(filled, lake)
    finally:
        go_on.set()
        first.join()
    assert len(lie(lake)) == 30


def test_there_are_ranges_enough_for_all_who_work(
    filled: Client, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is between them that does not go, and each row in one range only."""
    monkeypatch.setattr(planning, "_LEAST_ROWS", 3)
    execute_sql(
        filled, "UPDATE <archive> SET archived_at = now() + '1 day' WHERE archive_id % 3 = 0"
    )
    for large in (100_000, 7):
        monkeypatch.setattr(planning, "RANGE_ROWS", large)
        offered = job.offer(filled.database, filled.queue, lake, AT_ONCE, at_once=3)
        ranges = offered.made.ranges
        assert len(ranges) >= 6
        assert sum(part.rows for part in ranges) == 20
        ends = [end for part in ranges for end in (part.after, part.last)]
        assert ends == sorted(ends)
    few = job.offer(filled.database, filled.queue, lake, AT_ONCE, at_once=300)
    assert 6 <= len(few.made.ranges) <= 10, "none smaller than is worth it"
    job.archive(filled.database, few, lake, Plain())
    assert len(lie(lake)) == 20


def test_two_lakes_share_what_there_is(filled: Client, lake: Lake, tmp_path: Path) -> None:
    other = Lake(tmp_path / "other")
    (done,) = run(filled, lake, tasks=Between(_verify(), lambda: run(filled, other)))
    assert (done.deleted, done.withdrawn) == (0, 30)
    assert len(lie(lake) + lie(other)) == 30


def items(client: Client, lake: Lake) -> Iterator[Item]:
    """The tasks that a run gives out, while it runs."""
    found: list[Item] = []

    class Keeping(Plain):
        def run(self, work: Work, items: Sequence[Item], *more: Any, **how: Any) -> Any:
            found.extend(items if work == export.export else ())
            return super().run(work, items, *more, **how)

    run(client, lake, tasks=Keeping())
    yield from found


def test_a_task_that_outlived_its_run_changes_nothing(filled: Client, lake: Lake) -> None:
    (late,) = items(filled, lake)
    before = {path: lake.size(path) for path in lake.files("")}
    with pytest.raises(RefusedError, match="too late"):
        export.export(late)
    with filled.database.autocommit("lock") as connection:
        work = guard.resource("work", lake.id(), filled.queue)

        def is_free() -> bool:
            with guard.locked(connection, work, "exclusive") as got:
                return got

        # A client that has closed does not wait for its session to end.
        wait_until(is_free, "its session lets go")
        with guard.locked(connection, work, "exclusive") as got:
            assert got
            with pytest.raises(RefusedError, match="too late"):
                export.export(late)
    assert {path: lake.size(path) for path in lake.files("")} == before


def test_a_task_whose_run_ends_while_it_reads_leaves_nothing(
    filled: Client, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies, a successor begins: what the task was about to rename goes."""
    end = "UPDATE dbq.action SET ended_at = now() WHERE ended_at IS NULL"
    read = export._Adbc.batches

    def batches(reader: Any, statement: str) -> Iterator[Any]:
        yield from read(reader, statement)
        execute_sql(filled, end)

    with monkeypatch.context() as patch:
        patch.setattr(export._Adbc, "batches", batches)
        with pytest.raises(RefusedError, match="too late"):
            run(filled, lake)
    assert lake.files("archive") == []
    (done,) = run(filled, lake)
    assert done.deleted == 30


def damage(lake: Lake, part: str, change: Callable[[bytes], bytes]) -> None:
    """Change what lies in the one file whose path holds this."""
    (path,) = [path for path in lake.files("") if part in path]
    file = Path(lake.path(path))
    file.write_bytes(change(file.read_bytes()))


def flip(data: bytes) -> bytes:
    """One bit of the first keys."""
    at = data.index(b"\x28\xb5\x2f\xfd") + 12  # in the first frame of zstd
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def another_kind(data: bytes) -> bytes:
    """The same rows; the file says that they are of another kind."""
    table = pq.read_table(pa.BufferReader(data)).replace_schema_metadata({files.KIND: b"json"})
    written = pa.BufferOutputStream()
    pq.write_table(table, written)
    return bytes(written.getvalue())


def another_value(data: bytes, name: str = "attempts") -> bytes:
    """The same rows, a value of the first one another."""
    table = pq.read_table(pa.BufferReader(data))
    at, values = table.schema.names.index(name), table.column(name).to_pylist()
    other = pa.array([values[0] + 1_000, *values[1:]], table.schema.field(name).type)
    written = pa.BufferOutputStream()
    pq.write_table(table.set_column(at, table.schema.field(name), other), written)
    return bytes(written.getvalue())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (another_value, "other values in attempts"),
        (lambda data: data[: len(data) // 2], ""),
        pytest.param(lambda _: b"", "", marks=pytest.mark.long),
        (another_kind, "its kind of payload is not"),
        (flip, ""),
    ],
    ids=["a value", "half-written", "empty", "another kind", "a bit"],
)
def test_a_file_that_is_not_as_written_stops_before_anything_is_deleted(
    filled: Client, lake: Lake, change: Callable[[bytes], bytes], why: str
) -> None:
    spoil = Between(_verify(), lambda: damage(lake, "-000001.parquet", change))
    with pytest.raises(DamagedError, match="1 of 3 ranges") as told:
        run(filled, lake, tasks=spoil, range_rows=10)
    assert why in str(told.value)
    assert len(archived(filled)) == 30
    assert audit(filled) == [(job.VERB, 0, "failed")]
    (done,) = run(filled, lake)
    assert (done.rows["export"], done.deleted) == (10, 30), "that range is written anew"
    assert len(lie(lake)) == 30


def test_a_file_that_is_gone_stops_too(filled: Client, lake: Lake) -> None:
    spoil = Between(_verify(), lambda: lake.remove(lake.data_files("archive")[0]))
    with pytest.raises(DamagedError, match="it is missing"):
        run(filled, lake, tasks=spoil, range_rows=10)
    (done,) = run(filled, lake)
    assert done.deleted == 30


def stop_at(client: Client, lake: Lake, phase: str) -> None:
    """A run of three ranges that ends where a phase begins."""

    class Stopped(Exception):  # noqa: N818
        pass

    def told(now: str, **_: int) -> None:
        if now == phase:
            raise Stopped

    offered = job.offer(client.database, client.queue, lake, AT_ONCE, range_rows=10)
    with pytest.raises(Stopped):
        job.archive(client.database, offered, lake, Plain(), told=told, batch=7)


def test_a_damaged_manifest_is_counted_and_written_anew(filled: Client, lake: Lake) -> None:
    stop_at(filled, lake, "verify")
    damage(lake, "range-000001.json", lambda data: data[:20])
    damage(lake, "range-000002.json", lambda data: data.replace(b'"range": 2', b'"range": 7'))
    (done,) = run(filled, lake)
    assert (done.exported_again, done.rows["export"], done.deleted) == (2, 20, 30)
    assert len(lie(lake)) == 30


def test_one_that_is_damaged_after_rows_were_deleted_stops(filled: Client, lake: Lake) -> None:
    stop_at(filled, lake, "delete")
    assert len(archived(filled)) == 23, "one batch is gone"
    damage(lake, "range-000001.json", lambda data: data[:20])
    for _ in range(2):
        with pytest.raises(DamagedError, match=r"range-000001\.json is damaged"):
            run(filled, lake)
    assert len(archived(filled)) == 23


def as_an_earlier_version(lake: Lake) -> None:
    """The manifests of ranges as they were before there were digests of columns."""
    for path in range_manifests(lake):
        manifest = lake.read_json(path)
        whole = RowSums()
        for file in manifest["files"]:
            del file["sha256"]
            file.update(files.read(lake, file["path"], "text", RowSums()).as_json())
            files.read(lake, file["path"], "text", whole)
        lake.write_json(path, manifest | whole.as_json())


@pytest.mark.parametrize("phase", ["verify", "delete", "withdraw"])
def test_what_an_earlier_version_began_is_finished(
    filled: Client, lake: Lake, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if phase == "withdraw":
        monkeypatch.setattr(delete, "withdraw", lambda *_: 1 / 0)
        act(filled, lambda source: Restore(source, popped=True), "limit=4")
        with pytest.raises(ZeroDivisionError):
            run(filled, lake, range_rows=10)
        monkeypatch.undo()
    else:
        stop_at(filled, lake, phase)
    as_an_earlier_version(lake)
    if phase == "verify":
        damage(lake, "-000001.parquet", another_value)
        with pytest.raises(DamagedError, match=r"1 of 3 ranges(.|\n)*other values"):
            run(filled, lake)
    act(filled, lambda source: Restore(source, popped=True), "limit=2")
    run(filled, lake)
    there = len(filled.drain())
    assert len(lie(lake)) + there == 30, "nothing is lost, nothing is there twice"
    manifests = [lake.read_json(path) for path in range_manifests(lake)]
    assert sum(manifest["rows"] for manifest in manifests) == len(lie(lake))
    assert not any(files.verify(one)["wrong"] for one in files.items(lake, manifests))


def test_only_keys_that_were_verified_are_deleted(filled: Client, lake: Lake) -> None:
    stop_at(filled, lake, "delete")
    damage(lake, "-000001.parquet", lambda data: another_value(data, "archive_id"))
    with pytest.raises(DamagedError, match="Its keys are not those that were written"):
        run(filled, lake)
    assert len(archived(filled)) == 20, "the range before it went"


@pytest.mark.parametrize("where", ["read", "written"])
def test_a_file_is_rewritten_only_as_it_was_verified(
    filled: Client, lake: Lake, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Rows that are withdrawn leave it; those that stay are nowhere else any more."""
    read, write = files.batches, files.Writer.write

    def dropping(file: Any, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        for batch in read(file, columns):
            yield batch if columns else batch.slice(1)

    def doubling(writer: files.Writer, batch: pa.RecordBatch) -> None:
        write(writer, batch)
        writer._waiting.append(batch)

    def restore() -> None:
        act(filled, lambda source: Restore(source, popped=True), "limit=4")
        before.update({path: lake.size(path) for path in lake.data_files("archive")})
        if where == "read":
            monkeypatch.setattr(delete, "batches", dropping)
        else:
            monkeypatch.setattr(files.Writer, "write", doubling)

    before: dict[str, int] = {}
    with pytest.raises(DamagedError, match="were written"):
        run(filled, lake, tasks=Between(_verify(), restore))
    assert {path: lake.size(path) for path in lake.data_files("archive")} == before
    monkeypatch.undo()
    (done,) = run(filled, lake)
    assert (done.deleted, done.withdrawn) == (26, 4)


@pytest.mark.parametrize("part", ["plan.json", "/deletes/"])
def test_a_damaged_plan_or_intent_stops(filled: Client, lake: Lake, part: str) -> None:
    stop_at(filled, lake, "delete")
    damage(lake, part, lambda _: b'{"format": "dbq-console archive plan", "version": 1}')
    with pytest.raises(DamagedError):
        run(filled, lake)
    assert len(archived(filled)) == 23


def test_an_audit_that_forgot_stops(filled: Client, lake: Lake) -> None:
    """Only it knows whether the last batch came true."""
    stop_at(filled, lake, "delete")
    execute_sql(filled, "DELETE FROM dbq.action WHERE verb = :verb", verb=job.VERB)
    with pytest.raises(DamagedError, match="not in the database's audit"):
        run(filled, lake)
    assert len(archived(filled)) == 23


@pytest.mark.parametrize(
    ("phase", "number"),
    [
        ("verify", errno.EROFS),
        ("delete", errno.ENOSPC),
        pytest.param("verify", errno.ENOSPC, marks=pytest.mark.long),
        pytest.param("delete", errno.EROFS, marks=pytest.mark.long),
    ],
)
def test_a_lake_that_takes_no_more(filled: Client, tmp_path: Path, number: int, phase: str) -> None:
    lake = Lake(tmp_path / "lake")
    offered = job.offer(filled.database, filled.queue, lake, AT_ONCE, range_rows=10)

    def told(now: str, **_: int) -> None:
        if now == phase:
            fail(lake, number, after=50)

    error = RefusedError if number == errno.EROFS else ConsoleError
    with pytest.raises(error, match=r"is full|cannot be written"):
        job.archive(filled.database, offered, lake, Plain(), told=told, batch=7)
    again = Lake(tmp_path / "lake")
    left = len(archived(filled))
    (done,) = run(filled, again)
    assert done.deleted == 30
    assert done.rows["delete"] == left
    assert len(lie(again)) == 30


def test_a_lost_database_is_told_and_the_run_goes_on_later(filled: Client, lake: Lake) -> None:
    ours = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    def told(now: str, *, rows: int, **_: int) -> None:
        if now == "delete" and rows == 17:
            execute_sql(filled, ours)

    offered = job.offer(filled.database, filled.queue, lake, AT_ONCE, range_rows=10)
    with pytest.raises(ConsoleError):
        job.archive(filled.database, offered, lake, Plain(), told=told, batch=7)
    (done,) = run(filled, lake)
    assert done.deleted == 30
    assert len(lie(lake)) == 30


def test_what_it_is_not_for(use: Use, lake: Lake) -> None:
    client = use("fifo")
    with pytest.raises(UsageError, match="keeps no done rows"):
        run(client, lake, ArchiveRequest(done_older=1.0))
    assert run(client, lake) == []
