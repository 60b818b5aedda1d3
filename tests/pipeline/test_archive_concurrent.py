"""archive with concurrent work: restores, locked rows, other runs and lakes, late tasks."""

import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from console import sql
from console.actions.restore import Restore
from console.engines import open_database
from console.errors import RefusedError
from console.pipeline import leases
from console.pipeline.archive import export, files, job
from console.pipeline.archive import plan as planning
from console.pipeline.lake import Lake
from console.pipeline.spark import Item, Work
from tests.contract.client import Client
from tests.local_tasks import LocalTasks
from tests.pipeline.archive_tools import (
    NO_RETENTION,
    HookedTasks,
    act,
    archived_keys,
    execute_sql,
    payloads,
    range_manifests,
    rows_in_lake,
    run,
    stop_at,
)


def test_rows_restored_during_a_run_stay_in_the_database(filled: Client, lake: Lake) -> None:
    def restore() -> int:
        return act(filled, lambda source: Restore(source, popped=True), "limit=4")

    (done,) = run(filled, lake, tasks=HookedTasks(files.verify, restore), range_rows=10)
    assert (done.exported, done.deleted, done.withdrawn) == (30, 26, 4)
    back = Counter(str(message.payload) for message in filled.drain())
    assert sum(back.values()) == 4
    assert not back.keys() & payloads(lake).keys()
    assert sum(payloads(lake).values()) == 26
    manifests = [lake.read_json(path) for path in range_manifests(lake)]
    assert sum(manifest["rows"] for manifest in manifests) == 26, "the manifests say what is there"
    assert not any(files.verify(one)["wrong"] for one in files.items(lake, manifests))
    (more,) = run(filled, lake)
    assert more.deleted == 4, "popped again, they are new in the archive"


def test_a_file_whose_rows_were_all_restored_is_removed(filled: Client, lake: Lake) -> None:
    def restore() -> int:
        return act(filled, lambda source: Restore(source, popped=True))

    (done,) = run(filled, lake, tasks=HookedTasks(files.verify, restore), range_rows=10)
    assert (done.deleted, done.withdrawn, done.files) == (0, 30, 0)
    assert lake.files("archive") == []


def test_locked_rows_stay_in_the_database_and_are_removed_from_the_lake(
    filled: Client, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.pipeline.archive.delete._RETRY_SECONDS", (0.0,))
    keys = archived_keys(filled)
    with filled.database.transaction("hold rows") as connection:
        name = sql.quote_identifier(connection.dialect, f"{filled.queue.name}_archive")
        lock_rows = text(f"SELECT FROM public.{name} WHERE archive_id <= :key FOR UPDATE")
        connection.execute(lock_rows, {"key": keys[2]})
        (done,) = run(filled, lake)
    assert (done.deleted, done.withdrawn) == (27, 3)
    assert archived_keys(filled) == keys[:3]
    assert sorted(row["archive_id"] for row in rows_in_lake(lake)) == keys[3:]


@pytest.mark.parametrize("phase", ["export", "verify", "delete"])
def test_a_run_by_another_connection_name_finishes_the_plan_of_the_first(
    filled: Client, lake: Lake, phase: str
) -> None:
    sent = Counter(row[0] for row in execute_sql(filled, "SELECT payload FROM <archive>"))
    stop_at(filled, lake, phase)
    with closing(open_database(filled.url, label="the same by another name")) as other:
        offered = job.preview(other, filled.queue, lake, NO_RETENTION)
        assert offered.unfinished is not None
        (done,) = job.archive(other, offered, lake, LocalTasks())
    assert (done.plan, done.deleted) == (offered.unfinished.id, 30)
    assert payloads(lake) == sent, "of all files, those too that no manifest names"
    assert archived_keys(filled) == []


def test_an_unfinished_plan_of_another_database_is_not_touched(filled: Client, lake: Lake) -> None:
    """Its queue has the same name."""
    stop_at(filled, lake, "verify")
    (plan,) = (path for path in lake.files("_manifests") if path.endswith("/plan.json"))
    content = lake.read_json(plan)
    execute_sql(filled, "UPDATE dbq.action SET cutoff = cutoff + interval '1 second'")
    with closing(open_database(filled.url, label="another database")) as other:
        (done,) = run(replace(filled, database=other), lake)
    assert done.plan != content["id"]
    assert lake.read_json(plan) == content


def test_a_second_run_at_the_same_time_is_refused(filled: Client, lake: Lake) -> None:
    started, resume = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        assert resume.wait(30)

    first = threading.Thread(
        target=run, args=(filled, lake), kwargs={"tasks": HookedTasks(files.verify, wait)}
    )
    first.start()
    assert started.wait(30)
    try:
        with pytest.raises(RefusedError, match="Another run is working"):
            run(filled, lake)
    finally:
        resume.set()
        first.join()
    assert len(rows_in_lake(lake)) == 30


@pytest.mark.long
def test_there_are_enough_ranges_for_all_tasks(
    filled: Client, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Despite rows between them that are not archived; each row is in one range only."""
    monkeypatch.setattr(planning, "_LEAST_ROWS", 3)
    execute_sql(
        filled, "UPDATE <archive> SET archived_at = now() + '1 day' WHERE archive_id % 3 = 0"
    )
    for large in (100_000, 7):
        monkeypatch.setattr(planning, "RANGE_ROWS", large)
        offered = job.preview(filled.database, filled.queue, lake, NO_RETENTION, at_once=3)
        ranges = offered.plan.ranges
        assert len(ranges) >= 6
        assert sum(part.rows for part in ranges) == 20
        ends = [end for part in ranges for end in (part.after, part.last)]
        assert ends == sorted(ends)
    few = job.preview(filled.database, filled.queue, lake, NO_RETENTION, at_once=300)
    assert 6 <= len(few.plan.ranges) <= 10, "none smaller than is worth it"
    job.archive(filled.database, few, lake, LocalTasks())
    assert len(rows_in_lake(lake)) == 20


@pytest.mark.long
def test_runs_into_two_lakes_archive_each_row_once(
    filled: Client, lake: Lake, tmp_path: Path
) -> None:
    other = Lake(tmp_path / "other")
    (done,) = run(filled, lake, tasks=HookedTasks(files.verify, lambda: run(filled, other)))
    assert (done.deleted, done.withdrawn) == (0, 30)
    assert len(rows_in_lake(lake) + rows_in_lake(other)) == 30


def export_items(client: Client, lake: Lake) -> Iterator[Item]:
    """The items of the export tasks of a run."""
    found: list[Item] = []

    class RecordingTasks(LocalTasks):
        def run(self, work: Work, items: Sequence[Item], *more: Any, **how: Any) -> Any:
            found.extend(items if work == export.export else ())
            return super().run(work, items, *more, **how)

    run(client, lake, tasks=RecordingTasks())
    yield from found


def test_a_task_that_outlived_its_run_changes_nothing(filled: Client, lake: Lake) -> None:
    (late,) = export_items(filled, lake)
    before = {path: lake.size(path) for path in lake.files("")}
    with pytest.raises(RefusedError, match="too late"):
        export.export(late)
    assert {path: lake.size(path) for path in lake.files("")} == before


def test_a_task_whose_run_ends_while_it_reads_leaves_nothing(
    filled: Client, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies, a successor begins: the task removes the file it was about to rename."""
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


def test_another_row_with_the_key_of_an_exported_one_stays(filled: Client, lake: Lake) -> None:
    """A sequence was set back."""
    key, *_ = archived_keys(filled)

    def replace_row() -> None:
        execute_sql(filled, "DELETE FROM <archive> WHERE archive_id = :key", key=key)
        execute_sql(
            filled,
            "INSERT INTO <archive> (archive_id, id, payload, state, attempts, reason, archived_at) "
            "OVERRIDING SYSTEM VALUE VALUES (:key, 1, 'another', 'done', 1, 'pop', '2020-01-01')",
            key=key,
        )

    (done,) = run(filled, lake, tasks=HookedTasks(files.verify, replace_row))
    assert done.deleted == 30, "what nobody is known to have taken stays in the lake"
    assert execute_sql(filled, "SELECT payload FROM <archive>") == [("another",)]
    assert payloads(lake)["another"] == 0
    assert payloads(lake).total() == 30


TAKEN = "UPDATE dbq.lease SET holder = 'ann@elsewhere pid 1' WHERE name LIKE 'pipeline %'"


@pytest.mark.parametrize("work", [export.export, files.verify])
def test_a_run_that_lost_its_lease_changes_nothing_more(
    filled: Client, lake: Lake, work: Work
) -> None:
    """Its machine stood still, and another one has taken its place."""
    with pytest.raises(RefusedError, match=r"lease|too late"):
        run(filled, lake, tasks=HookedTasks(work, lambda: execute_sql(filled, TAKEN)))
    assert len(archived_keys(filled)) == 30
    assert bool(lake.files("archive")) == (work == files.verify)


def test_a_run_that_lost_its_lease_after_the_deletes_withdraws_nothing(
    filled: Client, lake: Lake
) -> None:
    restoring = HookedTasks(
        files.verify, lambda: act(filled, lambda one: Restore(one, popped=True), "limit=4")
    )
    offered = job.preview(filled.database, filled.queue, lake, NO_RETENTION)

    def on_progress(phase: str, /, *, done: int, of: int, **_: int) -> None:
        if phase == "delete" and done == of:
            execute_sql(filled, TAKEN)

    with pytest.raises(RefusedError, match="lease"):
        job.archive(filled.database, offered, lake, restoring, on_progress=on_progress)
    assert archived_keys(filled) == []
    assert len(rows_in_lake(lake)) == 30, "as they were exported"
    execute_sql(filled, "UPDATE dbq.lease SET until = now()")
    run(filled, lake)
    assert len(rows_in_lake(lake)) == 26


def test_the_lease_of_a_machine_that_was_lost_is_taken_when_it_ends(
    filled: Client, lake: Lake
) -> None:
    execute_sql(
        filled,
        "INSERT INTO dbq.lease VALUES (:name, 'ann@elsewhere pid 1', now() + '1 second')",
        name=leases.lease_name("run", lake.id(), filled.queue),
    )
    (done,) = run(filled, lake)
    assert done.deleted == 30


def test_a_holder_of_another_machine_that_renews_its_lease_is_at_work(
    filled: Client, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count()
    monkeypatch.setattr(leases, "_our_name", lambda: f"ann@elsewhere pid {next(numbers)}")
    monkeypatch.setattr(leases, "SECONDS", 6.0)
    name = leases.lease_name("run", lake.id(), filled.queue)
    with (
        leases.held(filled.database, name, RefusedError("never")),
        pytest.raises(RefusedError, match=r"Another run(.|\n)*ann@elsewhere pid 0"),
    ):
        run(filled, lake)
    (done,) = run(filled, lake)
    assert done.deleted == 30, "it was given back"


def test_of_two_attempts_at_a_range_the_first_counts(filled: Client, lake: Lake) -> None:
    """Spark repeats the task of an executor that it has lost, which may still be at work."""
    sent = Counter(row[0] for row in execute_sql(filled, "SELECT payload FROM <archive>"))

    class TwiceTasks(LocalTasks):
        def run(self, work: Work, items: Sequence[Item], *more: Any, **how: Any) -> Any:
            first = [work(item) for item in items]
            again = super().run(work, items, *more, **how)
            assert again == first
            return again

    (done,) = run(filled, lake, tasks=TwiceTasks(), range_rows=10)
    assert (done.deleted, done.files) == (30, 3)
    assert payloads(lake) == sent
    assert len(lake.data_files("archive")) == 3
