"""archive on a failing lake or database: no row is deleted that the lake does not safely have."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from console.actions.restore import Restore
from console.errors import ConsoleError, RefusedError
from console.pipeline.archive import delete, files, job
from console.pipeline.archive.digests import RowHashSum
from console.pipeline.archive.files import pq
from console.pipeline.lake import DamagedError, Lake
from tests.contract.client import Client
from tests.local_tasks import LocalTasks
from tests.pipeline.archive_tools import (
    NO_RETENTION,
    HookedTasks,
    act,
    another_value,
    archived_keys,
    audit,
    damage,
    execute_sql,
    range_manifests,
    rows_in_lake,
    run,
    stop_at,
)
from tests.pipeline.test_lake import fail


def flip(data: bytes) -> bytes:
    """Flip one bit of the first keys."""
    at = data.index(b"\x28\xb5\x2f\xfd") + 12  # in the first frame of zstd
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def another_kind(data: bytes) -> bytes:
    """The same rows; the file declares another kind of payload."""
    table = pq.read_table(pa.BufferReader(data)).replace_schema_metadata({files.KIND: b"json"})
    written = pa.BufferOutputStream()
    pq.write_table(table, written)
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
def test_a_changed_file_stops_the_run_before_anything_is_deleted(
    filled: Client, lake: Lake, change: Callable[[bytes], bytes], why: str
) -> None:
    damaging = HookedTasks(files.verify, lambda: damage(lake, "-000001-", change))
    with pytest.raises(DamagedError, match="1 of 3 ranges") as error:
        run(filled, lake, tasks=damaging, range_rows=10)
    assert why in str(error.value)
    assert len(archived_keys(filled)) == 30
    assert audit(filled) == [(job.VERB, 0, "failed")]
    (done,) = run(filled, lake)
    assert (done.rows["export"], done.deleted) == (10, 30), "that range is written anew"
    assert len(rows_in_lake(lake)) == 30


def test_a_missing_file_stops_the_run(filled: Client, lake: Lake) -> None:
    damaging = HookedTasks(files.verify, lambda: lake.remove(lake.data_files("archive")[0]))
    with pytest.raises(DamagedError, match="it is missing"):
        run(filled, lake, tasks=damaging, range_rows=10)
    (done,) = run(filled, lake)
    assert done.deleted == 30


def test_a_range_with_a_damaged_manifest_is_exported_again_and_counted(
    filled: Client, lake: Lake
) -> None:
    stop_at(filled, lake, "verify")
    damage(lake, "range-000001.json", lambda data: data[:20])
    damage(lake, "range-000002.json", lambda data: data.replace(b'"range": 2', b'"range": 7'))
    (done,) = run(filled, lake)
    assert (done.exported_again, done.rows["export"], done.deleted) == (2, 20, 30)
    assert len(rows_in_lake(lake)) == 30


def test_a_manifest_damaged_after_rows_were_deleted_stops_the_run(
    filled: Client, lake: Lake
) -> None:
    stop_at(filled, lake, "delete")
    assert len(archived_keys(filled)) == 23, "one batch is gone"
    damage(lake, "range-000001.json", lambda data: data[:20])
    for _ in range(2):
        with pytest.raises(DamagedError, match=r"range-000001\.json is damaged"):
            run(filled, lake)
    assert len(archived_keys(filled)) == 23


def as_an_earlier_version(lake: Lake) -> None:
    """Rewrite the manifests of ranges as they were before there were digests of columns."""
    for path in range_manifests(lake):
        manifest = lake.read_json(path)
        total = RowHashSum()
        for file in manifest["files"]:
            del file["sha256"]
            file.update(files.read(lake, file["path"], "text", RowHashSum()).as_json())
            files.read(lake, file["path"], "text", total)
        lake.write_json(path, manifest | total.as_json())


@pytest.mark.parametrize("phase", ["verify", "delete", "withdraw"])
def test_a_run_begun_by_an_earlier_version_is_finished(
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
        damage(lake, "-000001-", another_value)
        with pytest.raises(DamagedError, match=r"1 of 3 ranges(.|\n)*other values"):
            run(filled, lake)
    act(filled, lambda source: Restore(source, popped=True), "limit=2")
    run(filled, lake)
    in_queue = len(filled.drain())
    assert len(rows_in_lake(lake)) + in_queue == 30, "nothing is lost, nothing is there twice"
    manifests = [lake.read_json(path) for path in range_manifests(lake)]
    assert sum(manifest["rows"] for manifest in manifests) == len(rows_in_lake(lake))
    assert not any(files.verify(one)["wrong"] for one in files.items(lake, manifests))


def test_only_verified_keys_are_deleted(filled: Client, lake: Lake) -> None:
    stop_at(filled, lake, "delete")
    damage(lake, "-000001-", lambda data: another_value(data, "archive_id"))
    with pytest.raises(DamagedError, match="Its keys are not those that were written"):
        run(filled, lake)
    assert len(archived_keys(filled)) == 20, "the range before it went"


@pytest.mark.parametrize("where", ["read", "written"])
def test_a_file_is_rewritten_only_with_its_verified_rows(
    filled: Client, lake: Lake, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Withdrawn rows are removed from it; those that stay exist nowhere else."""
    read, write = files.batches, files.Writer.write

    def dropping(file: Any, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        for batch in read(file, columns):
            yield batch if columns else batch.slice(1)

    def doubling(writer: files.Writer, batch: pa.RecordBatch) -> None:
        write(writer, batch)
        writer._pending.append(batch)

    def restore() -> None:
        act(filled, lambda source: Restore(source, popped=True), "limit=4")
        before.update({path: lake.size(path) for path in lake.data_files("archive")})
        if where == "read":
            monkeypatch.setattr(delete, "batches", dropping)
        else:
            monkeypatch.setattr(files.Writer, "write", doubling)

    before: dict[str, int] = {}
    with pytest.raises(DamagedError, match="were written"):
        run(filled, lake, tasks=HookedTasks(files.verify, restore))
    assert {path: lake.size(path) for path in lake.data_files("archive")} == before
    monkeypatch.undo()
    (done,) = run(filled, lake)
    assert (done.deleted, done.withdrawn) == (26, 4)


def test_a_damaged_plan_stops_the_run(filled: Client, lake: Lake) -> None:
    stop_at(filled, lake, "delete")
    damage(lake, "plan.json", lambda _: b'{"format": "dbq-console archive plan", "version": 1}')
    with pytest.raises(DamagedError):
        run(filled, lake)
    assert len(archived_keys(filled)) == 23


def test_an_action_missing_from_the_audit_stops_the_run(filled: Client, lake: Lake) -> None:
    """Only the audit knows what was deleted, and whether it is the database of the plan."""
    stop_at(filled, lake, "delete")
    execute_sql(filled, "DELETE FROM dbq.action WHERE verb = :verb", verb=job.VERB)
    with pytest.raises(DamagedError, match="not in this database's audit"):
        run(filled, lake)
    assert len(archived_keys(filled)) == 23


@pytest.mark.parametrize(
    ("phase", "number"),
    [
        ("verify", errno.EROFS),
        ("delete", errno.ENOSPC),
        pytest.param("verify", errno.ENOSPC, marks=pytest.mark.long),
        pytest.param("delete", errno.EROFS, marks=pytest.mark.long),
    ],
)
def test_a_run_on_a_full_or_read_only_lake_fails_and_can_be_continued(
    filled: Client, tmp_path: Path, number: int, phase: str
) -> None:
    lake = Lake(tmp_path / "lake")
    offered = job.preview(filled.database, filled.queue, lake, NO_RETENTION, range_rows=10)

    def on_progress(now: str, **_: int) -> None:
        if now == phase:
            fail(lake, number, after=50)

    error = RefusedError if number == errno.EROFS else ConsoleError
    with pytest.raises(error, match=r"is full|cannot be written"):
        job.archive(filled.database, offered, lake, LocalTasks(), on_progress=on_progress, batch=7)
    again = Lake(tmp_path / "lake")
    left = len(archived_keys(filled))
    (done,) = run(filled, again)
    assert done.deleted == 30
    assert done.rows["delete"] == left
    assert len(rows_in_lake(again)) == 30


def test_a_lost_database_is_reported_and_the_run_can_be_continued(
    filled: Client, lake: Lake
) -> None:
    ours = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    def on_progress(now: str, *, rows: int, **_: int) -> None:
        if now == "delete" and rows == 17:
            execute_sql(filled, ours)

    offered = job.preview(filled.database, filled.queue, lake, NO_RETENTION, range_rows=10)
    with pytest.raises(ConsoleError):
        job.archive(filled.database, offered, lake, LocalTasks(), on_progress=on_progress, batch=7)
    (done,) = run(filled, lake)
    assert done.deleted == 30
    assert len(rows_in_lake(lake)) == 30
