"""archive with concurrent work: restores, open pops, other runs and lakes, late tasks."""

import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from console import sql
from console.actions import message_action
from console.actions.install import uninstall
from console.actions.restore import RESERVED, Restore
from console.engines import Timeouts, open_database
from console.errors import BusyError, RefusedError
from console.features.lake import leases
from console.features.lake.archive import export, files, job
from console.features.lake.archive import plan as planning
from console.features.lake.lake import DamagedError, Lake
from console.features.lake.spark import Item, Work
from console.monitor.filters import parse
from console.monitor.scan_query import MessageSource
from tests.contract.client import Client, call_pop
from tests.pipeline.archive_tools import (
    NO_RETENTION,
    HookedTasks,
    act,
    archived_keys,
    execute_sql,
    payloads,
    push_and_pop,
    rows_in_lake,
    run,
    stop_at,
)
from tests.servers import wait_until
from tests.tools.local_tasks import LocalTasks
from tests.tools.queues import install_queue

pytestmark = pytest.mark.slow


def restore_popped(client: Client, *words: str) -> int:
    return act(client, lambda source: Restore(source, popped=True), *words)


@pytest.mark.parametrize("work", [export.export, files.verify])
def test_restore_leaves_reserved_rows_alone(filled: Client, lake: Lake, work: Work) -> None:
    restored: list[int] = []
    hook = HookedTasks(work, lambda: restored.append(restore_popped(filled)))
    (done,) = run(filled, lake, tasks=hook, part_rows=10)
    assert restored == [0]
    assert (done.exported, done.deleted) == (30, 30)
    assert sum(payloads(lake).values()) == 30
    assert filled.drain() == []


def test_restore_says_which_rows_are_on_their_way(filled: Client, lake: Lake) -> None:
    stop_at(filled, lake, "verify")
    with filled.database.transaction("read the queue", read_only=True) as connection:
        action = Restore(MessageSource.of(connection, filled.queue), popped=True)
    planned = message_action.select(filled.database, action, parse([]))
    assert planned.excluded == {RESERVED: 30}
    assert job.cancel(filled.database, filled.queue, lake) == 30
    assert restore_popped(filled) == 30


@contextmanager
def half_restored(client: Client, key: int) -> Iterator[None]:
    """While the body runs, a restore of this row has not committed yet."""
    with client.database.transaction("restore by hand") as connection:
        within = client.queue.scope(connection)
        sql.run(connection, "pipeline.add_plan", within)
        sql.values(connection, str, "fifo.lock_lake_plan", within)
        name = sql.quote_identifier(connection.dialect, f"{client.queue.name}_archive")
        delete = text(f"DELETE FROM public.{name} WHERE archive_id = :key")
        connection.execute(delete, {"key": key})
        yield


def waiting(client: Client, statement: str) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE :p"
    return execute_sql(client, query, p=f"%{statement}%") != [(0,)]


def test_rows_are_reserved_after_a_restore_that_began_before(filled: Client, lake: Lake) -> None:
    first, *others = archived_keys(filled)
    run_of = threading.Thread(target=run, args=(filled, lake))
    with half_restored(filled, first):
        run_of.start()
        wait_until(lambda: waiting(filled, "pipeline."), "the run waits for the restore")
    run_of.join()
    assert sorted(row["archive_id"] for row in rows_in_lake(lake)) == others


def test_a_row_whose_pop_is_still_open_goes_with_the_next_plan(filled: Client, lake: Lake) -> None:
    """It drew its archive_id before others that are archived, and commits after they left."""
    filled.push_many(["open"])
    with filled.database.transaction("pop") as connection:
        assert call_pop(connection, filled.queue) is not None
        filled.push_many(["later"])
        assert len(filled.drain()) == 1
        (done,) = run(filled, lake, part_rows=10)
        assert done.deleted == 31
    assert payloads(lake)["open"] == 0
    assert execute_sql(filled, "SELECT payload FROM <archive>") == [("open",)]
    (done,) = run(filled, lake)
    assert done.deleted == 1
    assert payloads(lake).total() == 32 == len(payloads(lake))


def test_a_row_that_somebody_holds_stops_the_run_which_goes_on_later(
    filled: Client, lake: Lake
) -> None:
    keys = archived_keys(filled)
    impatient = open_database(filled.url, timeouts=Timeouts(lock_seconds=0.2))
    with closing(impatient), filled.database.transaction("hold a row") as connection:
        name = sql.quote_identifier(connection.dialect, f"{filled.queue.name}_archive")
        lock = text(f"SELECT FROM public.{name} WHERE archive_id = :key FOR UPDATE")
        connection.execute(lock, {"key": keys[-1]})
        with pytest.raises(BusyError):
            run(replace(filled, database=impatient), lake)
    assert keys[-1] in archived_keys(filled)
    assert len(rows_in_lake(lake)) == 30
    (done,) = run(filled, lake)
    assert (done.exported, done.in_lake_before) == (0, done.deleted)
    assert archived_keys(filled) == []
    assert len(rows_in_lake(lake)) == 30


@pytest.mark.parametrize("phase", ["export", "verify", "delete"])
def test_a_run_by_another_connection_name_finishes_the_plan_of_the_first(
    filled: Client, lake: Lake, phase: str
) -> None:
    sent = Counter(row[0] for row in execute_sql(filled, "SELECT payload FROM <archive>"))
    stop_at(filled, lake, phase)
    with closing(open_database(filled.url, label="the same by another name")) as other:
        offered = job.find(other, filled.queue, lake, NO_RETENTION)
        assert offered.unfinished is not None
        done = job.archive(other, offered, lake, LocalTasks())
    assert sum(one.deleted for one in done) in {23, 30}
    assert payloads(lake) == sent
    assert archived_keys(filled) == []


def test_a_second_run_at_the_same_time_is_refused(
    filled: Client, lake: Lake, tmp_path: Path
) -> None:
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
        for into in (lake, Lake(tmp_path / "other")):
            with pytest.raises(RefusedError, match="Another run is archiving"):
                run(filled, into)
    finally:
        resume.set()
        first.join()
    assert len(rows_in_lake(lake)) == 30


def test_a_plan_is_finished_in_its_own_lake(filled: Client, lake: Lake, tmp_path: Path) -> None:
    stop_at(filled, lake, "delete")
    other = Lake(tmp_path / "other")
    for _ in range(2):
        with pytest.raises(DamagedError, match="is for another lake"):
            run(filled, other)
    assert rows_in_lake(other) == []
    run(filled, lake)
    assert archived_keys(filled) == []
    assert len(rows_in_lake(lake)) == 30


def test_parts_are_as_many_as_there_are_tasks(
    filled: Client, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Despite rows between them that are not archived; each row is in one part only."""
    monkeypatch.setattr(planning, "LEAST_PART_ROWS", 3)
    monkeypatch.setattr(planning, "STEP_ROWS", 7)
    execute_sql(
        filled, "UPDATE <archive> SET archived_at = now() + '1 day' WHERE archive_id % 3 = 0"
    )
    counted: list[int] = []

    class CountingTasks(LocalTasks):
        def run(self, work: Work, items: Sequence[Item], *more: Any, **how: Any) -> Any:
            counted.append(len(items))
            return super().run(work, items, *more, **how)

    offered = job.find(filled.database, filled.queue, lake, NO_RETENTION)
    assert offered.rows == 20
    job.archive(filled.database, offered, lake, CountingTasks(), cores=3)
    assert counted[0] == 7
    assert len(rows_in_lake(lake)) == 20


def test_a_plan_takes_so_many_rows_and_the_next_one_the_rest(filled: Client, lake: Lake) -> None:
    offered = job.find(filled.database, filled.queue, lake, NO_RETENTION)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "STEP_ROWS", 4)
        sizes = job.Sizes(plan=12)
        done = job.archive(filled.database, offered, lake, LocalTasks(), sizes=sizes)
    assert [archive_result.deleted for archive_result in done] == [12, 12, 6]
    assert [archive_result.plan for archive_result in done] == [1, 2, 3]
    assert len(rows_in_lake(lake)) == 30


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
    before = rows_in_lake(lake)
    assert export.export(late)["rows"] == 0
    assert rows_in_lake(lake) == before


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
    assert (done.exported, done.deleted) == (30, 29)
    run(filled, lake)
    assert payloads(lake).total() == 31
    assert payloads(lake)["another"] == 1


def test_rows_that_somebody_deleted_are_in_no_file(filled: Client, lake: Lake) -> None:
    keys = archived_keys(filled)
    reserved = execute_sql(filled, "SELECT count(*) FROM dbq.lake_row")  # other tests' too
    delete = "DELETE FROM <archive> WHERE archive_id = ANY(:keys)"
    hook = HookedTasks(export.export, lambda: execute_sql(filled, delete, keys=keys[4:6]))
    (done,) = run(filled, lake, tasks=hook, part_rows=10)
    assert (done.exported, done.deleted) == (28, 28)
    assert execute_sql(filled, "SELECT count(*) FROM dbq.lake_row") == reserved


TAKEN = "UPDATE dbq.lake_plan SET run = 'ann@elsewhere pid 1'"
LEASE_TAKEN = "UPDATE dbq.lease SET holder = 'ann@elsewhere pid 1' WHERE name LIKE 'pipeline %'"


@pytest.mark.parametrize("work", [export.export, files.verify])
def test_a_run_that_lost_its_lease_changes_nothing_more(
    filled: Client, lake: Lake, work: Work
) -> None:
    """Its machine stood still, and another one has taken its place."""
    hook = HookedTasks(work, lambda: execute_sql(filled, LEASE_TAKEN))
    with pytest.raises(RefusedError, match=r"lease"):
        run(filled, lake, tasks=hook)
    assert len(archived_keys(filled)) == 30
    assert rows_in_lake(lake) == []


@pytest.mark.parametrize("work", [export.export, files.verify])
def test_a_queue_uninstalled_and_installed_again_meanwhile_goes_its_own_way(
    filled: Client, lake: Lake, work: Work
) -> None:
    """What the lake has got by then stays there; the new queue's rows are others."""

    def replace_queue() -> None:
        uninstall(filled.database, filled.queue, keep_archive=False, with_messages=True)
        name = filled.queue.name
        install_queue(filled.database, name, "fifo", archive_at_pop="on")
        push_and_pop(filled, 7)

    reserved = execute_sql(filled, "SELECT count(*) FROM dbq.lake_row")  # other tests' too
    with pytest.raises(RefusedError, match="or its queue uninstalled"):
        run(filled, lake, tasks=HookedTasks(work, replace_queue))
    before = len(rows_in_lake(lake))
    assert before == (30 if work == files.verify else 0)
    (done,) = run(filled, lake)
    assert (done.exported, done.deleted) == (7, 7)
    assert len(rows_in_lake(lake)) == before + 7
    assert execute_sql(filled, "SELECT count(*) FROM dbq.lake_row") == reserved


def test_a_run_whose_plan_was_taken_over_deletes_nothing_more(filled: Client, lake: Lake) -> None:
    def on_progress(phase: str, /, **_: int) -> None:
        if phase == "delete":
            execute_sql(filled, TAKEN)

    with pytest.raises(RefusedError, match="taken over"):
        run(filled, lake, on_progress=on_progress, connections=3)
    assert len(archived_keys(filled)) == 23
    (done,) = run(filled, lake)
    assert (done.in_lake_before, done.deleted) == (23, 23)
    assert len(rows_in_lake(lake)) == 30


def test_the_lease_of_a_machine_that_was_lost_is_taken_when_it_ends(
    filled: Client, lake: Lake
) -> None:
    execute_sql(
        filled,
        "INSERT INTO dbq.lease VALUES (:name, 'ann@elsewhere pid 1', now() + '1 second')",
        name=leases.lease_name("run", filled.queue),
    )
    (done,) = run(filled, lake)
    assert done.deleted == 30


def test_a_holder_of_another_machine_that_renews_its_lease_is_at_work(
    filled: Client, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count()
    monkeypatch.setattr(leases, "_our_name", lambda: f"ann@elsewhere pid {next(numbers)}")
    monkeypatch.setattr(leases, "SECONDS", 6.0)
    name = leases.lease_name("run", filled.queue)
    with (
        leases.held(filled.database, name, RefusedError("never")),
        pytest.raises(RefusedError, match=r"Another run(.|\n)*ann@elsewhere pid 0"),
    ):
        run(filled, lake)
    (done,) = run(filled, lake)
    assert done.deleted == 30, "it was given back"


def test_of_two_attempts_at_a_part_one_counts(filled: Client, lake: Lake) -> None:
    """Spark repeats the task of an executor that it has lost, which may still be at work."""
    sent = Counter(row[0] for row in execute_sql(filled, "SELECT payload FROM <archive>"))

    class TwiceTasks(LocalTasks):
        def run(self, work: Work, items: Sequence[Item], *more: Any, **how: Any) -> Any:
            for item in items:
                work(item)
            return super().run(work, items, *more, **how)

    (done,) = run(filled, lake, tasks=TwiceTasks(), part_rows=10)
    assert (done.deleted, done.files) == (30, 3)
    assert payloads(lake) == sent
    assert len(lake.data_files("messages")) == 6, "those that no commit names are invisible"
