"""archive on a failing, damaged or restored lake or database.

Nothing is deleted that the table does not have; whatever is lost or put back at whatever moment,
each message is in the database or in the table once, or the run stops with words.
"""

import errno
import json
import random
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from console.engines import open_database
from console.errors import ConsoleError, RefusedError
from console.features.lake import lake as lakes
from console.features.lake.archive import files, job
from console.features.lake.archive.files import SCHEMA
from console.features.lake.archive.plan import ArchiveRequest
from console.features.lake.lake import DamagedError, Lake
from console.features.lake.table import PARTITIONS, MessagesTable
from tests.contract.client import Client
from tests.pipeline.archive_tools import (
    HookedTasks,
    all_payloads,
    another_value,
    archived_keys,
    audit,
    damage,
    drive,
    execute_sql,
    flip,
    payloads,
    push_and_pop,
    rows_in_lake,
    run,
    stop_at,
)
from tests.pipeline.test_lake import Failing
from tests.servers import login
from tests.tools.local_tasks import LocalTasks

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (another_value, "other values in attempts"),
        (lambda data: data[: len(data) // 2], ""),
        pytest.param(lambda _: b"", "", marks=pytest.mark.long),
        (flip, ""),
    ],
    ids=["a value", "half-written", "empty", "a bit"],
)
def test_a_changed_file_stops_the_run_before_anything_is_committed(
    filled: Client, lake: Lake, change: Callable[[bytes], bytes], why: str
) -> None:
    damaging = HookedTasks(files.verify, lambda: damage(lake, "-00001-", change))
    with pytest.raises(DamagedError, match="1 of 3 files") as error:
        run(filled, lake, tasks=damaging, part_rows=10)
    assert why in str(error.value)
    assert len(archived_keys(filled)) == 30
    assert rows_in_lake(lake) == []
    assert audit(filled) == [(job.VERB, 0, "failed")]
    (done,) = run(filled, lake)
    assert (done.exported, done.deleted) == (30, 30)
    assert len(rows_in_lake(lake)) == 30


def test_a_missing_file_stops_the_run(filled: Client, lake: Lake) -> None:
    damaging = HookedTasks(files.verify, lambda: lake.remove(lake.data_files("messages")[0]))
    with pytest.raises(DamagedError, match="it is missing"):
        run(filled, lake, tasks=damaging, part_rows=10)
    (done,) = run(filled, lake)
    assert done.deleted == 30


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda data: data[: len(data) // 2], "cannot be read"),
        (None, "cannot be read"),
        (flip, "cannot be read|has another"),
        (another_value, "has another attempts"),
    ],
    ids=["torn", "lost", "a bit", "a value"],
)
def test_a_committed_file_that_is_lost_stops_the_next_run_until_it_is_back(
    filled: Client, lake: Lake, change: Callable[[bytes], bytes] | None, match: str
) -> None:
    stop_at(filled, lake, "delete")
    assert len(archived_keys(filled)) == 23
    (path,) = [path for path in lake.data_files("messages") if "-00001-" in path]
    file = Path(lake.path(path))
    kept = file.read_bytes()
    file.unlink() if change is None else file.write_bytes(change(kept))
    for _ in range(2):
        with pytest.raises(DamagedError, match=match) as error:
            run(filled, lake)
        assert error.value.next_step
    assert len(archived_keys(filled)) == 23
    file.write_bytes(kept)
    (done,) = run(filled, lake)
    assert (done.in_lake_before, done.deleted) == (23, 23)
    assert len(rows_in_lake(lake)) == 30


def test_a_lake_that_is_replaced_while_it_is_written_gets_nothing(
    filled: Client, lake: Lake
) -> None:
    def replace_it() -> None:
        shutil.rmtree(lake.path("messages/_delta_log"))
        MessagesTable.create(lake)

    run(filled, lake)
    push_and_pop(filled, 5)
    with pytest.raises(DamagedError, match="was replaced while it was written"):
        run(filled, lake, tasks=HookedTasks(files.verify, replace_it))
    assert len(archived_keys(filled)) == 5


def test_columns_that_come_and_go_between_commit_and_delete(filled: Client, lake: Lake) -> None:
    execute_sql(filled, "ALTER TABLE <archive> ADD COLUMN before int DEFAULT 1")
    stop_at(filled, lake, "delete")
    execute_sql(filled, "ALTER TABLE <archive> DROP COLUMN before, ADD COLUMN since int DEFAULT 7")
    with pytest.raises(DamagedError, match="has another more"):
        run(filled, lake)
    assert len(archived_keys(filled)) == 23, "the lake lacks the new values"
    execute_sql(filled, "ALTER TABLE <archive> DROP COLUMN since, ADD COLUMN since int")
    (done,) = run(filled, lake)
    assert (done.deleted, done.in_lake_before, len(rows_in_lake(lake))) == (23, 23, 30)


def test_a_file_that_was_taken_out_of_the_table_is_exported_again(
    filled: Client, lake: Lake
) -> None:
    """Delta's FSCK REPAIR: its rows are still in the database."""
    sent = Counter(row[0] for row in execute_sql(filled, "SELECT payload FROM <archive>"))
    stop_at(filled, lake, "delete")
    (path,) = [path for path in lake.data_files("messages") if "-00002-" in path]
    lake.remove(path)
    DeltaTable(lake.path("messages")).repair()
    finished, again = run(filled, lake)
    assert (finished.in_lake_before, finished.deleted) == (13, 13)
    assert (again.exported, again.deleted) == (10, 10)
    assert payloads(lake) == sent


def test_files_that_go_before_their_commit_cost_no_row(
    filled: Client, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a compaction on a machine whose clock is over a week ahead."""
    sent = Counter(row[0] for row in execute_sql(filled, "SELECT payload FROM <archive>"))
    commit = MessagesTable.commit

    def removed_first(table: MessagesTable, *words: Any) -> bool:
        lake.remove(lake.data_files("messages")[0])
        return commit(table, *words)

    with monkeypatch.context() as ahead:
        ahead.setattr(MessagesTable, "commit", removed_first)
        with pytest.raises(DamagedError, match="1 of 1 file went before"):
            run(filled, lake)
    assert len(archived_keys(filled)) == 30
    with pytest.raises(DamagedError):
        run(filled, lake)
    assert len(archived_keys(filled)) == 30
    DeltaTable(lake.path("messages")).repair()
    run(filled, lake)
    assert (len(archived_keys(filled)), payloads(lake)) == (0, sent)


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_a_run_on_a_full_or_read_only_lake_fails_and_can_be_continued(
    filled: Client, lake: Lake, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(filled, lake, "export")
    opened = lakes._open_storage

    def failing(location: str) -> Any:
        storage, root = opened(location)
        storage.files = Failing(storage.files, number, after=50)
        return storage, root

    error = RefusedError if number == errno.EROFS else ConsoleError
    with monkeypatch.context() as patch:
        patch.setattr(lakes, "_open_storage", failing)
        with pytest.raises(error, match=r"is full|cannot be written"):
            run(filled, lake)
    assert len(archived_keys(filled)) == 30
    (done,) = run(filled, lake)
    assert (done.exported, done.deleted) == (30, 30)
    assert len(rows_in_lake(lake)) == 30


@pytest.mark.parametrize(("runs", "most_bytes"), [(0, 2_000), (0, 900), (2, 8_000)])
def test_a_disk_that_is_full_stops_the_run_and_loses_nothing(
    filled: Client, lake: Lake, runs: int, most_bytes: int
) -> None:
    """The system refuses what is larger than so many bytes: a file of rows, the first document of
    the table, its checkpoint."""
    sent = Counter(row[0] for row in execute_sql(filled, "SELECT payload FROM <archive>"))
    for _ in range(runs):
        run(filled, lake)
        sent += Counter(push_and_pop(filled, 30))
    done = drive(filled.queue.name, lake, url=filled.url, most_bytes=most_bytes)
    assert done.status == 1, done
    assert f"The lake {lake.location} is full." in done.err, done
    assert all_payloads(filled, payloads(lake)) >= sent
    run(filled, lake)
    assert archived_keys(filled) == []
    assert payloads(lake) == sent


def test_a_commit_that_cannot_be_written_deletes_nothing(filled: Client, lake: Lake) -> None:
    """The table's library writes its log itself."""
    log = Path(lake.path("messages/_delta_log"))
    with pytest.raises(ConsoleError):
        run(filled, lake, tasks=HookedTasks(files.verify, lambda: no_longer_a_folder(log)))
    assert len(archived_keys(filled)) == 30
    log.unlink()
    Path(f"{log}.kept").rename(log)
    (done,) = run(filled, lake)
    assert (done.exported, done.deleted) == (30, 30)
    assert len(rows_in_lake(lake)) == 30


def no_longer_a_folder(log: Path) -> None:
    log.rename(f"{log}.kept")
    log.write_bytes(b"")


def test_a_lost_database_is_reported_and_the_run_can_be_continued(
    filled: Client, lake: Lake
) -> None:
    ours = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    def on_progress(now: str, *, rows: int, **_: int) -> None:
        if now == "delete" and rows == 14:
            execute_sql(filled, ours)

    with pytest.raises(ConsoleError):
        run(filled, lake, part_rows=10, on_progress=on_progress, connections=3)
    (done,) = run(filled, lake)
    assert done.deleted == 16
    assert len(rows_in_lake(lake)) == 30


def test_a_catalog_of_an_older_console_gets_its_plans_from_its_owner(
    filled: Client, lake: Lake
) -> None:
    execute_sql(filled, "DROP TABLE dbq.lake_plan")
    rights = (
        "GRANT USAGE ON SCHEMA dbq, public TO {}",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA dbq, public TO {}",
    )
    with login(filled.url, *rights) as url, closing(open_database(url)) as database:
        with pytest.raises(RefusedError, match="Let the catalog's owner run"):
            run(replace(filled, database=database), lake)
        assert lake.files("") == []
        run(filled, lake)
        execute_sql(filled, f"GRANT ALL ON dbq.lake_plan TO {database.url.username}")
        push_and_pop(filled, 5)
        (done,) = run(replace(filled, database=database), lake)
        assert done.deleted == 5


# -- databases and lakes of other moments


@contextmanager
def copied(client: Client) -> Iterator[Client]:
    """A copy of the database as it is now, as a snapshot of its disk would be."""
    name, admin = client.database.url.database, client.database.url.set(database="postgres")
    copy = f"{name}_copy"
    with closing(open_database(admin.render_as_string(hide_password=False))) as database:
        with database.autocommit("copy") as connection:
            connection.exec_driver_sql(f'DROP DATABASE IF EXISTS "{copy}"')
            connection.exec_driver_sql(
                f'CREATE DATABASE "{copy}" TEMPLATE "{name}" STRATEGY file_copy'
            )
        url = client.database.url.set(database=copy).render_as_string(hide_password=False)
        try:
            with closing(open_database(url, label=client.database.label)) as other:
                yield replace(client, database=other)
        finally:
            with database.autocommit("drop the copy") as connection:
                connection.exec_driver_sql(f'DROP DATABASE "{copy}" WITH (FORCE)')


@dataclass
class Saved:
    """What the database knew of an archive at one moment."""

    client: Client
    kept = ("<archive>", "dbq.lake_plan", "dbq.lake_row")

    def __post_init__(self) -> None:
        self.rows = {
            table: execute_sql(self.client, f"SELECT CAST(t AS text) FROM {table} AS t")
            for table in self.kept
        }

    def put_back(self) -> None:
        """As a restored backup of that moment."""
        for table, rows in self.rows.items():
            execute_sql(self.client, f"DELETE FROM {table}")
            for (row,) in rows:
                insert = (
                    f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT (CAST(:row AS {table})).*"
                )
                execute_sql(self.client, insert, row=row)


MOMENTS = ("before", "export", "verify", "delete")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_database_restored_to_before_a_plan_or_into_it_doubles_nothing(
    filled: Client, lake: Lake, moment: str
) -> None:
    sent = Counter(row[0] for row in execute_sql(filled, "SELECT payload FROM <archive>"))
    if moment != "before":
        stop_at(filled, lake, moment)
    saved = Saved(filled)
    run(filled, lake)
    assert archived_keys(filled) == []
    saved.put_back()
    back = len(archived_keys(filled))
    done = run(filled, lake)
    assert (sum(one.exported for one in done), sum(one.in_lake_before for one in done)) == (0, back)
    assert payloads(lake) == sent
    assert archived_keys(filled) == []
    sent += Counter(push_and_pop(replace(filled), 5))
    (done_now,) = run(filled, lake)
    assert done_now.exported == 5
    assert payloads(lake).total() == 35


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_lake_restored_to_before_a_plan_is_met_with_words(
    filled: Client, lake: Lake, tmp_path: Path, moment: str
) -> None:
    """Or the run ends: whatever was deleted here must be in the table."""
    sent = Counter(row[0] for row in execute_sql(filled, "SELECT payload FROM <archive>"))
    if moment == "before":
        sent += Counter(["first"])
        execute_sql(
            filled,
            "INSERT INTO <archive> (id, payload, state, attempts, reason, archived_at) "
            "VALUES (1, 'first', 'done', 1, 'pop', '2020-01-01')",
        )
        offered = job.find(filled.database, filled.queue, lake, ArchiveRequest(older=9e6))
        job.archive(filled.database, offered, lake, LocalTasks())
    else:
        stop_at(filled, lake, moment)
    backup, root = tmp_path / "backup", Path(lake.location)
    shutil.copytree(root, backup)
    run(filled, lake)
    newer = root.rename(tmp_path / "newer")
    backup.rename(root)
    push_and_pop(filled, 3)
    if moment == "delete":
        run(filled, lake)
    else:
        with pytest.raises(DamagedError, match="older than this database"):
            run(filled, lake)
        shutil.rmtree(root)
        newer.rename(root)
        run(filled, lake)
    assert payloads(lake).total() == sent.total() + 3
    assert archived_keys(filled) == []


@pytest.mark.parametrize("moment", MOMENTS[1:])
def test_a_copy_of_the_database_deletes_nothing_until_its_operator_decides(
    filled: Client, lake: Lake, moment: str
) -> None:
    stop_at(filled, lake, moment)
    filled.database.close()
    with copied(filled) as copy:
        with pytest.raises(DamagedError, match="in another database"):
            run(copy, lake)
        left = len(archived_keys(copy))
        run(filled, lake)
        assert len(rows_in_lake(lake)) == 30
        # Its rows are given back; then it finds that the lake has them.
        assert job.cancel(copy.database, copy.queue, lake) == left
        (done,) = run(copy, lake)
        assert (done.exported, done.in_lake_before, done.deleted) == (0, left, left)
    assert len(rows_in_lake(lake)) == 30


def test_two_copies_of_a_database_may_write_into_one_lake(filled: Client, lake: Lake) -> None:
    """Under the same name, with the same catalog: a plan of one is none of the other."""
    run(filled, lake)
    sent = Counter(payloads(lake))
    filled.database.close()
    with copied(filled) as copy:
        rng = random.Random(3)
        for step in range(6):
            client = rng.choice((filled, copy))
            new = [f"{step} {number} of {client.database.url.database}" for number in range(4)]
            client.push_many(new)
            assert len(client.drain()) == 4
            sent += Counter(new)
            if rng.random() < 0.5:
                stop_at(client, lake, rng.choice(MOMENTS[1:]))
            run(client, lake)
            assert payloads(lake) == sent
            assert archived_keys(client) == []


def test_a_plan_is_only_cancelled_where_the_lake_has_none_of_it(filled: Client, lake: Lake) -> None:
    with pytest.raises(ConsoleError, match="no unfinished plan"):
        job.plan_cancel(filled.database, filled.queue, lake, production=False)
    stop_at(filled, lake, "delete")
    with pytest.raises(RefusedError, match="has 23 rows of it"):
        job.cancel(filled.database, filled.queue, lake)
    run(filled, lake)
    sent = payloads(lake) + Counter(push_and_pop(filled, 30))
    stop_at(filled, lake, "verify")
    planned = job.plan_cancel(filled.database, filled.queue, lake, production=False)
    assert planned.data["rows"] == 30
    assert planned.run_to_end().done == 30
    assert len(rows_in_lake(lake)) == 30
    (done,) = run(filled, lake)
    assert (done.exported, done.in_lake_before) == (30, 0)
    assert payloads(lake) == sent


def test_a_lake_that_is_lost_frees_the_rows_of_its_plan(
    filled: Client, lake: Lake, tmp_path: Path
) -> None:
    stop_at(filled, lake, "verify")
    shutil.rmtree(lake.location)
    other = Lake(tmp_path / "other")
    with pytest.raises(DamagedError, match=r"is for another lake(.|\n)*--cancel"):
        run(filled, other)
    assert job.cancel(filled.database, filled.queue, other) == 30
    run(filled, other)
    assert len(rows_in_lake(other)) == 30


# -- rows of the plan, documents of the table


@pytest.mark.parametrize("moment", MOMENTS[1:])
@pytest.mark.parametrize(
    "loss",
    [
        "DELETE FROM dbq.lake_plan",
        "DELETE FROM dbq.lake_row",
        "DELETE FROM dbq.lake_row WHERE archive_id % 2 = 0",
        "UPDATE dbq.lake_plan SET state = 'none'",
        "UPDATE dbq.lake_plan SET state = 'reserved'",
        "UPDATE dbq.lake_plan SET state = 'committed'",
        "UPDATE dbq.lake_plan SET serial = 0, committed = 0",
        "DELETE FROM dbq.action",
    ],
)
def test_no_lost_row_of_a_plan_loses_or_doubles_a_message(
    filled: Client, lake: Lake, moment: str, loss: str
) -> None:
    sent = Counter(row[0] for row in execute_sql(filled, "SELECT payload FROM <archive>"))
    stop_at(filled, lake, moment)
    execute_sql(filled, loss)
    run(filled, lake)
    assert all_payloads(filled, payloads(lake)) == sent
    assert archived_keys(filled) == []


@pytest.mark.parametrize("phase", ["verify", "delete"])
def test_rows_that_somebody_reserved_meanwhile_are_not_deleted(
    filled: Client, lake: Lake, phase: str
) -> None:
    sent = Counter(row[0] for row in execute_sql(filled, "SELECT payload FROM <archive>"))
    sent += Counter(["never exported"])
    reserve = (
        "WITH new AS (INSERT INTO <archive> (id, payload, state, attempts, reason, archived_at) "
        "VALUES (1, 'never exported', 'done', 1, 'pop', now()) RETURNING archive_id, archived_at) "
        "INSERT INTO dbq.lake_row SELECT p.plan_id, n.archive_id, n.archived_at FROM new AS n, "
        "dbq.lake_plan AS p WHERE p.queue_name = :queue"
    )
    done: list[object] = []

    def on_progress(now: str, **_: int) -> None:
        if now == phase and not done:
            done.append(execute_sql(filled, reserve, queue=filled.queue.name))

    # Afterwards its key is in none of the parts that are deleted.
    refused = pytest.raises(RefusedError, match="were changed while")
    with refused if phase == "verify" else nullcontext():
        run(filled, lake, batch=29, on_progress=on_progress, connections=3)
    assert all_payloads(filled, payloads(lake)) >= sent
    run(filled, lake)
    assert all_payloads(filled, payloads(lake)) == sent


@pytest.mark.parametrize("fault", ["missing", "torn"])
def test_no_lost_document_of_the_table_loses_a_message(
    filled: Client, lake: Lake, fault: str
) -> None:
    sent = Counter(row[0] for row in execute_sql(filled, "SELECT payload FROM <archive>"))
    run(filled, lake)
    sent += Counter(push_and_pop(filled, 30))
    stop_at(filled, lake, "delete")
    logs = [path for path in lake.files("messages/_delta_log") if path.endswith(".json")]
    assert len(logs) == 3
    for path in logs:
        file = Path(lake.path(path))
        kept = file.read_bytes()
        file.unlink() if fault == "missing" else file.write_bytes(kept[:-9])
        stopped = outcome(filled, lake)
        assert stopped is not None or archived_keys(filled) == []
        assert stopped is None or stopped.next_step
        file.write_bytes(kept)
    assert outcome(filled, lake) is None
    assert all_payloads(filled, payloads(lake)) == sent


def outcome(client: Client, lake: Lake) -> ConsoleError | None:
    try:
        run(client, lake)
    except ConsoleError as error:
        return error
    return None


# -- what others do to the archive and to the table


def test_rows_that_a_trigger_keeps_are_not_exported_again(filled: Client, lake: Lake) -> None:
    execute_sql(
        filled,
        "CREATE FUNCTION public.keep() RETURNS trigger LANGUAGE plpgsql "
        "AS 'BEGIN RETURN NULL; END'",
    )
    execute_sql(
        filled,
        "CREATE TRIGGER keep BEFORE DELETE ON <archive> "
        "FOR EACH ROW EXECUTE FUNCTION public.keep()",
    )
    for _ in range(3):
        run(filled, lake)
        assert len(rows_in_lake(lake)) == len(archived_keys(filled)) == 30
    execute_sql(filled, "DROP TRIGGER keep ON <archive>")
    execute_sql(filled, "DROP FUNCTION public.keep()")
    (done,) = run(filled, lake)
    assert (done.exported, done.deleted, done.in_lake_before) == (0, 30, 30)


@pytest.mark.parametrize("fault", ["types", "partitions"])
def test_a_table_that_could_not_hold_the_rows_is_refused(
    filled: Client, lake: Lake, fault: str
) -> None:
    lake.make_folder("messages")
    names = [*PARTITIONS, *SCHEMA.names]
    types = {field.name: field.type for field in SCHEMA} | {"date": pa.date32()}
    if fault == "types":
        types = {}
    columns = [pa.field(name, types.get(name, pa.string())) for name in names]
    DeltaTable.create(
        lake.path("messages"),
        schema=Schema.from_arrow(pa.schema(columns)),
        partition_by=None if fault == "partitions" else list(PARTITIONS),
    )
    with pytest.raises(DamagedError, match="not of this console"):
        run(filled, lake)
    assert len(archived_keys(filled)) == 30


def test_rows_that_the_table_has_deleted_in_its_files_stay_here(filled: Client, lake: Lake) -> None:
    """By deletion vectors, which say what of a file is no longer of the table."""
    stop_at(filled, lake, "delete")
    left = archived_keys(filled)
    (log,) = [path for path in lake.files("messages/_delta_log") if path.endswith("1.json")]
    feature = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    protocol |= {"readerFeatures": feature, "writerFeatures": feature}  # type: ignore[dict-item]
    with Path(lake.path(log)).open("a") as file:
        file.write(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(DamagedError, match="deletionVectors"):
        run(filled, lake)
    assert archived_keys(filled) == left


def test_the_command_that_frees_a_plan_can_be_pasted(
    filled: Client, lake: Lake, tmp_path: Path
) -> None:
    stop_at(filled, lake, "verify")
    with pytest.raises(DamagedError) as exception_info:
        run(filled, Lake(tmp_path / "an other"))
    command = str(exception_info.value.next_step).rpartition("give its rows back: ")[2]
    words = ["pipeline", "archive", filled.queue.name, "--cancel", "--lake"]
    assert shlex.split(command) == ["dbq-console", *words, str(tmp_path / "an other")]
