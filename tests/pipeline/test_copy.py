"""Finished jobs of libraries are copied into the lake, each once; prune deletes what is there."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path
from typing import Any

import psycopg
import pytest

from console import catalog
from console.engines import PRODUCTS, Database, open_database
from console.errors import RefusedError
from console.features.lake import spark
from console.features.lake.archive import copy, finished, prune
from console.features.lake.archive import files as archive_files
from console.features.lake.filters import parse_filters
from console.features.lake.lake import DamagedError, Lake
from console.features.lake.maintenance import compact, erase, removal
from console.features.lake.maintenance.contents import contents
from console.features.lake.table import MessagesTable
from console.features.presets.designs import LIBRARIES
from tests.cli.calls import Console
from tests.cli.own_presets import PRESET, TABLE, User
from tests.contract.libraries import Tables, adopt
from tests.contract.library_table import BY_NAME, FINISHED, LIBRARY_TABLE, Library
from tests.pipeline.archive_tools import HookedTasks, audit_of, drive, rows_in_lake
from tests.pipeline.driver import COPY_PHASES
from tests.servers import READ_CATALOG, connect, execute, login
from tests.tools.local_tasks import LocalTasks
from tests.tools.statements import library_queues

pytestmark = pytest.mark.slow

RIVER = BY_NAME["river"]
PRUNED = [of for of in FINISHED if of.finished.pruned]


@dataclass
class Copied:
    """A library's tables, adopted, and the lake that gets their finished jobs."""

    database: Database
    tables: Tables
    lake: Lake

    def run(
        self, tasks: LocalTasks | None = None, *, older: float | None = None
    ) -> copy.CopyResult:
        with self.database.transaction("read the catalog", read_only=True) as connection:
            queue = catalog.find(connection, "jobs")
        jobs = copy.find(self.database, queue, self.lake, older)
        return copy.copy(self.database, jobs, self.lake, tasks or LocalTasks())

    @property
    def in_lake(self) -> Counter[tuple[str, int | None, Any]]:
        return Counter((r["id"], r["attempts"], r["archived_at"]) for r in rows_in_lake(self.lake))

    def count(self, table: str) -> int:
        return int(self.tables.rows(f"SELECT count(*) FROM {table}")[0][0])


Adopted = Callable[[Library], Copied]


@pytest.fixture
def adopted(database_url: str, lake: Lake) -> Iterator[Adopted]:
    with closing(open_database(database_url)) as database:

        def create(job: Library) -> Copied:
            tables = job.create(database_url)
            adopt(Console(database_url), job.preset)
            return Copied(database, tables, lake)

        yield create


def test_there_is_a_finished_job_of_every_preset_that_keeps_them() -> None:
    keeps = {n for n, of in LIBRARIES.items() if of.finished and not of.older}
    assert {job.preset for job in FINISHED} == keeps
    assert {of.preset for of in PRUNED} == {name for name, of in LIBRARIES.items() if of.prunes}


@pytest.mark.parametrize("job", FINISHED, ids=str)
def test_finished_jobs_are_copied_once_over_several_runs(adopted: Adopted, job: Library) -> None:
    of = adopted(job)
    assert of.run().exported == 0
    for at in ("now()", "now() - interval '3 days'", "now() - interval '40 days'"):
        job.finish(of.tables, at)
    assert of.run().exported == 3
    # Within the overlap, and before it: this one is of a clock that is late.
    job.finish(of.tables)
    job.finish(of.tables, "now() - interval '30 minutes'")
    done = of.run()
    assert done.exported == 2
    assert done.in_lake_before >= 1
    assert of.run().exported == 0
    found = rows_in_lake(of.lake)
    assert len(of.in_lake) == len(found) == of.count(job.finished.table) == 5
    payloads = of.tables.rows(f"SELECT {job.finished.payload} FROM {job.finished.table}")
    assert sorted(row["payload"] for row in found) == sorted(row[0] for row in payloads)
    assert {row["archived_at"] for row in found} == {row["done_at"] for row in found}
    assert {row["archive_id"] for row in found} == {None}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("job", [job for job in FINISHED if job.finished.again], ids=str)
def test_a_job_that_is_retried_and_finishes_again_is_two_rows(
    adopted: Adopted, job: Library
) -> None:
    of = adopted(job)
    job.finish(of.tables, "now() - interval '1 minute'")
    assert of.run().exported == 1
    of.tables.run(job.finished.again.format(at="now()"))
    assert of.run().exported == 1
    assert of.run().exported == 0
    first, second = sorted(rows_in_lake(of.lake), key=lambda row: row["archived_at"])
    assert first["id"] == second["id"]


def test_detached_partitions_of_pgmq_are_copied_as_a_whole(adopted: Adopted) -> None:
    """As pg_partman leaves them: pgmq's own archive table, partitioned by time."""
    job = BY_NAME["pgmq"]
    of = adopted(job)
    of.tables.run(
        """
        CREATE TABLE partitioned (LIKE a_jobs INCLUDING DEFAULTS) PARTITION BY RANGE (archived_at);
        DROP TABLE a_jobs CASCADE;
        ALTER TABLE partitioned RENAME TO a_jobs;
        CREATE TABLE a_jobs_p1 PARTITION OF a_jobs FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
        CREATE TABLE a_jobs_p2 PARTITION OF a_jobs FOR VALUES FROM ('2021-01-01') TO ('2022-01-01');
        CREATE TABLE a_jobs_default PARTITION OF a_jobs DEFAULT;
        CREATE TABLE a_jobs_person (msg_id bigint);
        """
    )
    for at in ("timestamptz '2020-05-01'", "timestamptz '2021-05-01'", "now()"):
        job.finish(of.tables, at)
    of.tables.run("ALTER TABLE a_jobs DETACH PARTITION a_jobs_p1")
    assert of.run().exported == 3
    of.tables.run("ALTER TABLE a_jobs DETACH PARTITION a_jobs_p2")
    done = of.run()
    assert (done.exported, done.in_lake_before) == (0, 2), "it was copied while it was attached"
    assert of.run().in_lake_before == 1, "it is known to be there as a whole"
    of.tables.run(
        """
        CREATE TABLE q_jobs_p0 (LIKE q_jobs);
        CREATE TABLE a_jobs_p0 (LIKE a_jobs);
        INSERT INTO a_jobs_p0 SELECT * FROM a_jobs
        """
    )
    assert of.run().exported == 0, "it is the archive of another queue"
    assert sorted(row["id"] for row in rows_in_lake(of.lake)) == ["1", "2", "3"]


@pytest.fixture
def no_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run reads again is only what open transactions may have finished."""
    monkeypatch.setattr(finished, "OVERLAP_SECONDS", 0.0)


@contextmanager
def transaction(tables: Tables) -> Iterator[psycopg.Connection[Any]]:
    """Committed as the block ends."""
    with connect(tables.url) as connection:
        connection.execute(f'SET search_path = "{tables.schema}", public'.encode())
        connection.execute(b"BEGIN")
        yield connection
        connection.execute(b"COMMIT")


@pytest.mark.parametrize("job", FINISHED, ids=str)
def test_a_job_that_is_committed_after_the_copy_is_in_the_next_run(
    adopted: Adopted, job: Library, no_overlap: None
) -> None:
    of = adopted(job)
    job.finish(of.tables, "now() - interval '9 days'")
    with transaction(of.tables) as late:
        late.execute(job.finished.adds.format(at="now()").encode())
        # This one finishes later, and is there earlier.
        if job.preset != "pgmq":  # it takes turns on the same id
            job.finish(of.tables)
        assert of.run().exported == of.count(job.finished.table)
    assert of.run().exported == 1
    assert of.run().exported == 0
    assert len(of.in_lake) == of.count(job.finished.table)


def test_a_transaction_that_writes_only_after_the_copy_is_in_the_next_run(
    adopted: Adopted, no_overlap: None
) -> None:
    of = adopted(RIVER)
    with transaction(of.tables) as late:
        late.execute(b"SELECT now()")
        RIVER.finish(of.tables)
        assert of.run().exported == 1
        late.execute(RIVER.finished.adds.format(at="now()").encode())
    assert of.run().exported == 1


def test_a_run_reads_again_from_the_beginning_of_the_oldest_open_transaction(
    adopted: Adopted,
) -> None:
    of = adopted(RIVER)
    RIVER.finish(of.tables)
    with transaction(of.tables) as late:
        ((began,),) = late.execute(b"SELECT now()").fetchall()
        done = of.run()
    assert done.until == f"{began.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def test_a_prepared_transaction_holds_the_next_run_back(adopted: Adopted) -> None:
    of = adopted(RIVER)
    (most,) = of.tables.rows("SHOW max_prepared_transactions")[0]
    if most == "0":
        pytest.skip("max_prepared_transactions is 0")
    with connect(of.tables.url) as connection:
        connection.execute(b"BEGIN")
        connection.execute(RIVER_OF_TWO_DAYS)
        connection.execute(b"PREPARE TRANSACTION 'late'")
        RIVER.finish(of.tables)
        done = of.run()
        assert (done.exported, done.until) == (1, None)
        assert "1 prepared transaction" in done.lines()[-1]
        connection.execute(b"COMMIT PREPARED 'late'")
    assert of.run().exported == 1


RIVER_OF_TWO_DAYS = b"""INSERT INTO "Theirs".river_job (state, attempt, finalized_at)
VALUES ('completed', 1, now() - interval '2 days')"""


def test_a_login_that_does_not_see_others_transactions_holds_the_next_run_back(
    adopted: Adopted,
) -> None:
    of = adopted(RIVER)
    RIVER.finish(of.tables)
    first = of.run()
    with login(of.tables.url, *_GRANTS) as url, closing(open_database(url)) as database:
        held = replace(of, database=database)
        with transaction(of.tables):
            RIVER.finish(of.tables)
            done = held.run()
    assert first.until is not None
    assert (done.exported, done.until) == (1, first.until)
    assert "GRANT pg_read_all_stats" in done.lines()[-1]


_GRANTS = (
    *READ_CATALOG,
    "GRANT ALL ON ALL TABLES IN SCHEMA dbq TO {}",
    "GRANT ALL ON ALL SEQUENCES IN SCHEMA dbq TO {}",
    'GRANT USAGE ON SCHEMA "Theirs" TO {}',
    'GRANT SELECT ON "Theirs".river_job TO {}',
)


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(jobs, id=str(jobs), marks=pytest.mark.long if design.older else ())
        for jobs in LIBRARY_TABLE
        if (design := LIBRARIES[jobs.preset]).finished
    ],
)
def test_odd_values_arrive_or_are_kept_as_text(
    adopted: Adopted, of: Library, *, long: bool
) -> None:
    copied = adopted(of)
    of.start(copied.tables)
    columns = of.columns(copied.tables)
    for turn in range(3) if long else (1,):
        for at, column in enumerate(columns):
            column.put(copied.tables, at * turn)
        copied.run()
        assert copied.run().exported == 0
    assert set(copied.in_lake.values()) <= {1}


def test_times_that_no_file_can_hold_are_text(adopted: Adopted) -> None:
    of = adopted(RIVER)
    for at in ("'infinity'", "'-infinity'", "'20000-01-01Z'", "'0005-01-01 BC'"):
        RIVER.finish(of.tables, f"CAST({at} AS timestamptz)")
    assert of.run().exported == 4
    assert of.run().exported == 0
    found = rows_in_lake(of.lake)
    assert {(row["done_at"], str(row["date"])) for row in found} == {(None, "1970-01-01")}
    assert any('"finalized_at": "infinity"' in row["more"] for row in found)
    assert all('"state": "completed"' in row["more"] for row in found)


def test_columns_that_others_added_arrive_whatever_their_name(adopted: Adopted) -> None:
    of = adopted(RIVER)
    name = """a"b'{x} {id}:y %s \\ ü"""
    quoted = name.replace('"', '""')
    of.tables.run(f'ALTER TABLE river_job ADD COLUMN "{quoted}" json')
    of.tables.run(f"""INSERT INTO river_job
        (state, finalized_at, "{quoted}") VALUES ('completed', now(), '{{"b":  "\\u0000"}}')""")
    RIVER.finish(of.tables)
    assert of.run().exported == 2
    first, second = sorted(rows_in_lake(of.lake), key=lambda row: int(row["id"]))
    assert json.loads(first["more"])[name] == {"b": "\0"}
    assert '{"b":  "\\u0000"}' in first["more"]
    assert name not in json.loads(second["more"])


@pytest.mark.parametrize("job", PRUNED, ids=str)
def test_prune_deletes_what_the_lake_has_and_the_librarys_rule_allows(
    adopted: Adopted, job: Library
) -> None:
    of = adopted(job)
    after = job.finished.pruned
    young = after != "0 s"
    job.finish(of.tables, f"now() - interval '{after}' - interval '2 minutes'")
    job.finish(of.tables, f"now() - interval '{after}' - interval '2 hours'")
    if young:
        job.finish(of.tables, f"now() - interval '{after}' + interval '5 minutes'")
    done = of.run(older=0.0)
    assert (done.exported, done.deleted, done.kept) == (2 + young, 2, {})
    assert of.count(job.finished.table) == young
    assert len(of.in_lake) == 2 + young
    assert of.run(older=0.0).deleted == 0
    assert audit_of(of.database, "jobs", prune.VERB)[0] == (prune.VERB, 2, "done")


def test_prune_leaves_what_was_changed_since_and_what_the_lake_lacks(adopted: Adopted) -> None:
    of = adopted(RIVER)
    for _ in range(3):
        RIVER.finish(of.tables, "now() - interval '10 days'")
    assert of.run().exported == 3
    of.tables.run("""UPDATE river_job SET metadata = '{"a": 1}' WHERE id = 1""")
    # The lake's clock is late: the run does not read it.
    RIVER.finish(of.tables, "now() - interval '10 days'")
    done = of.run(older=0.0)
    assert (done.exported, done.deleted) == (0, 2)
    assert done.kept == {prune.DIFFERENT: 1, prune.ABSENT: 1}
    assert "A further run copies" in done.lines()[-1]
    assert "dbq-console pipeline archive jobs --copy --lake" in done.lines()[-1]
    assert sorted(of.tables.rows("SELECT id FROM river_job")) == [(1,), (4,)]


def test_a_job_that_is_committed_during_the_copy_is_pruned_by_the_next_run(
    adopted: Adopted,
) -> None:
    job = BY_NAME["graphile-worker"]
    of = adopted(job)
    job.finish(of.tables)
    with transaction(of.tables) as late:
        late.execute(job.finished.adds.format(at="now()").encode())
        commit = HookedTasks(archive_files.verify, lambda: late.execute(b"COMMIT"))
        done = of.run(commit, older=0.0)
        late.execute(b"BEGIN")
    assert (done.deleted, done.kept) == (1, {prune.ABSENT: 1})
    assert "A further run copies" in done.next_step
    again = of.run(older=0.0)
    assert (again.exported, again.deleted, again.next_step) == (1, 1, "")


def test_prune_takes_only_jobs_that_finished_so_long_ago(adopted: Adopted) -> None:
    of = adopted(RIVER)
    RIVER.finish(of.tables, "now() - interval '10 days'")
    RIVER.finish(of.tables, "now() - interval '20 days'")
    assert of.run(older=15 * 86_400.0).deleted == 1
    assert of.count("river_job") == 1


def test_prune_without_a_rule_is_refused(adopted: Adopted) -> None:
    job = BY_NAME["pgmq"]
    with pytest.raises(RefusedError, match="Nothing can be pruned"):
        adopted(job).run(older=0.0)


@pytest.mark.parametrize("preset", ["laravel", "symfony", "pgqueuer"])
def test_a_library_that_keeps_nothing_finished_is_refused(adopted: Adopted, preset: str) -> None:
    job = BY_NAME[preset]
    with pytest.raises(RefusedError, match="There is nothing to copy"):
        adopted(job).run()


def test_a_killed_run_leaves_nothing_in_the_table(adopted: Adopted) -> None:
    of = adopted(RIVER)
    RIVER.finish(of.tables)

    def fail() -> None:
        raise KeyboardInterrupt

    for work in (copy.copy_rows, archive_files.verify):
        with pytest.raises(KeyboardInterrupt):
            of.run(HookedTasks(work, fail))
        assert rows_in_lake(of.lake) == []
    assert of.run().exported == 1


def test_a_damaged_file_is_not_committed(adopted: Adopted) -> None:
    of = adopted(RIVER)
    RIVER.finish(of.tables)

    def damage() -> None:
        (path,) = Path(of.lake.path("messages")).rglob("copy-*.parquet")
        path.write_bytes(path.read_bytes()[:-9])

    with pytest.raises(DamagedError):
        of.run(HookedTasks(archive_files.verify, damage))
    assert rows_in_lake(of.lake) == []
    assert of.run().exported == 1


def test_two_runs_at_once_one_says_so(adopted: Adopted) -> None:
    of = adopted(RIVER)
    RIVER.finish(of.tables)

    def second() -> None:
        with pytest.raises(RefusedError, match="Another run"):
            of.run()

    assert of.run(HookedTasks(copy.copy_rows, second)).exported == 1


def test_copied_jobs_are_compacted_and_erased_like_messages(adopted: Adopted) -> None:
    of = adopted(RIVER)
    for _ in range(3):
        RIVER.finish(of.tables)
        assert of.run().exported == 1
    table = MessagesTable.open(of.lake)
    assert table is not None
    (contents_of,) = contents(of.lake).queues
    assert (contents_of.last_plan, contents_of.to_compact) == (3, 3)
    assert compact.compact(compact.find(of.lake, 0.0)).rows == 3
    assert of.run().exported == 0
    assert table.refresh()
    offered = erase.find(
        table, parse_filters(["id=2"]), removal.queues_of(table), of.database.label
    )
    erase.erase(of.database, offered)
    assert sorted(row["id"] for row in rows_in_lake(of.lake)) == ["1", "3"]


def test_nothing_is_taken_out_of_the_lake_beside_a_copy(adopted: Adopted) -> None:
    of = adopted(RIVER)
    RIVER.finish(of.tables)
    of.run()
    table = MessagesTable.open(of.lake)
    assert table is not None
    queues = removal.queues_of(table)

    def take_out() -> None:
        with pytest.raises(RefusedError, match="Another run"), removal.guarded(of.database, queues):
            pass

    of.run(HookedTasks(copy.copy_rows, take_out))


def test_sql_server_refuses_a_copy_by_name() -> None:
    product = PRODUCTS["mssql"]
    queue = next(of for of in library_queues(product) if of.design.finished)
    with pytest.raises(RefusedError) as refused:
        finished.require_finished(product, queue)
    assert refused.value.why == "A copy is not offered on SQL Server."


KILLS, OLD = 12, 60


@pytest.mark.long
@pytest.mark.parametrize("phase", dict.fromkeys(COPY_PHASES.values()))
def test_killed_at_any_step_the_next_run_loses_and_doubles_nothing(
    adopted: Adopted, phase: str
) -> None:
    of = adopted(RIVER)
    rng = random.Random(phase)
    for _ in range(OLD):
        RIVER.finish(of.tables, "now() - interval '9 days'")
    sent = OLD
    for _ in range(KILLS):
        RIVER.finish(of.tables)
        sent += 1
        steps = str(rng.choice((1, 3, 10, 30, 90)))
        drive("jobs", of.lake, "--copy", phase, steps, url=of.tables.url)
        assert set(of.in_lake.values()) <= {1}
        ids = {row["id"] for row in rows_in_lake(of.lake)}
        left = {str(row[0]) for row in of.tables.rows("SELECT id FROM river_job")}
        assert len(ids | left) == sent
    of.run(older=0.0)
    assert len(of.in_lake) == len(rows_in_lake(of.lake)) == sent
    assert of.count("river_job") == sent - OLD


# -- by the command line


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks run in this process."""

    @contextmanager
    def local_tasks(*_: object) -> Iterator[LocalTasks]:
        yield LocalTasks()

    monkeypatch.setattr(spark, "tasks", local_tasks)


def test_the_command_line_copies_and_prunes(
    database_url: str, tmp_path: Path, local: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    console = Console(database_url)
    tables = RIVER.create(database_url)
    adopt(console, "river")
    RIVER.finish(tables)
    RIVER.finish(tables, "now() - interval '2 days'")
    words = ("pipeline", "archive", "jobs", "--copy", "--lake", str(tmp_path / "lake"))
    planned = console.done(*words, "--dry-run")
    assert "2 finished jobs of Theirs.river_job" in planned.text
    assert "nothing is deleted" in planned.text
    done = console.done(*words, "--json").json
    assert (done["plan"]["table"], done["result"]["exported"]) == ("river_job", 2)
    refused = console(*words, "--prune")
    assert (refused.status, "River by its JobCleaner" in refused.text) == (4, True)
    text = console.done(*words, "--prune", "--yes", "jobs").text
    assert "copied 0 of 1 finished jobs read" in text
    assert "deleted 1 jobs that the lake has" in text
    (run, *_) = console.done("pipeline", "runs", "--json").json["runs"]
    assert (run["outcome"], run["result"]["result"]["deleted"]) == ("done", 1)
    console.done("protect", "jobs", "--reason", "quarter end", "--yes")
    RIVER.finish(tables, "now() - interval '2 days'")
    assert console(*words, "--prune", "--yes", "jobs").status == 4


def test_the_command_line_refuses_what_has_no_finished_jobs(
    database_url: str, tmp_path: Path, local: None
) -> None:
    console = Console(database_url)
    console.done("install", "fifo", "own")
    execute(database_url, "CREATE TABLE theirs (id bigint PRIMARY KEY, payload text)")
    console.done(
        "adopt", "theirs", "--design", "naive", "--map", "id=id", "--map", "payload=payload"
    )
    words = ("pipeline", "archive", "--lake", str(tmp_path / "lake"))
    assert "queue of this console" in console(*words, "own", "--copy").err
    assert "adopted with the design naive" in console(*words, "theirs", "--copy").err
    assert console(*words, "theirs", "--copy").status == 4
    assert "--copy" in console(*words, "theirs", "--dry-run").err
    for wrong in (("--prune",), ("--copy", "--cancel")):
        assert console(*words, "own", *wrong).status == 2


def test_an_own_preset_is_copied_once_it_is_trusted(
    database_url: str, tmp_path: Path, local: None
) -> None:
    user = User(tmp_path / "ann", database_url)
    done = PRESET.replace("claimed_by=who", "claimed_by=who done_at=taken_at")
    user.writes(done + "\n-- define: is_done\nm.state = 'done'\n")
    with connect(database_url) as connection:
        connection.execute(TABLE.encode())
        connection.execute(b"UPDATE crates SET state = 'done', taken_at = now() WHERE lane = 'b'")
    words = ("pipeline", "archive", "crates", "--copy", "--lake", str(tmp_path / "lake"))
    user.done("preset", "trust", "crate")
    user.done("adopt", "crates", "--preset", "crate")
    assert "copied 1 of 1" in user.done(*words).text
    user.done("preset", "trust", "crate", "--revoke")
    assert "not trusted" in user(*words).err
