"""Maintain: real bloat is measured, repaired by the right steps with reasons, and then gone."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import psycopg
import pytest

from console import sql
from console.actions.indexes import installed
from console.actions.maintain import maintain
from console.actions.maintenance import (
    IndexMeasure,
    MaintainLimits,
    Maintenance,
    find,
    measured,
    needed,
)
from console.catalog import audit
from console.designs import DESIGNS
from console.engines import open_database
from console.engines.product import Timeouts
from console.monitor.waits import HorizonRow
from console.plan import Control, Progress
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.message_actions import entries
from tests.contract.variants import DEFAULTS, Variant, on
from tests.servers import connect, execute, login, value, wait_until

FIFO = Variant(DESIGNS["fifo"], {})
SMALL = MaintainLimits(pages=20, held_seconds=0.0, dead_least=100, stale_least=100)
QUICK = MaintainLimits(pages=20, held_seconds=3600.0, dead_least=100, stale_least=100)
"""Limits for a test that takes a second."""


def filled(client: Client, count: int) -> None:
    """Insert messages without autovacuum, and wait until the server has counted them."""
    name = client.queue.table
    with connect(client.url) as connection:
        connection.execute(f'ALTER TABLE "{name}" SET (autovacuum_enabled = off)')
        connection.execute(
            f"""INSERT INTO "{name}" (payload) SELECT repeat('x', 40)
            FROM generate_series(1, {count})"""
        )
    # A session reports its counts when it ends: wait, as VACUUM counts the rows too.
    wait_for_counters(
        client, f"SELECT pg_stat_get_tuples_inserted('\"{name}\"'::regclass) >= {count}"
    )
    execute(client.url, f'VACUUM ANALYZE "{name}"')


def deleted(client: Client, keep_every: int) -> None:
    """Delete all but each n-th row: no page of the index gets empty."""
    name = client.queue.table
    with connect(client.url) as connection:
        gone = connection.execute(f'DELETE FROM "{name}" WHERE id % {keep_every} <> 0').rowcount
    wait_for_counters(client, f"SELECT pg_stat_get_dead_tuples('\"{name}\"'::regclass) >= {gone}")


def wait_for_counters(client: Client, query: str) -> None:
    """Wait for the server's counters: sessions report them with some delay."""
    wait_until(lambda: value(client.url, query) is True, query)


def index_of(planned: Maintenance, client: Client) -> IndexMeasure:
    (index,) = [i for i in planned.measures.indexes if i.table_name == client.queue.table]
    return index


@contextmanager
def holding(url: str, *statements: str) -> Iterator[psycopg.Connection]:
    """A transaction with an old snapshot that stays open."""
    with connect(url) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1")
        for statement in statements:
            connection.execute(statement.encode())
        yield connection


@pytest.mark.long
@pytest.mark.parametrize("variant", on("postgresql", DEFAULTS), ids=str)
def test_all_tables_of_every_design_are_measured(use_postgresql: Use, variant: Variant) -> None:
    """And the plan says that nothing is needed."""
    client = use_postgresql(variant)
    planned = find(client.database, client.queue)
    names = {table.name for table in planned.measures.tables}
    assert {client.queue.table, f"{client.queue.name}_archive"} <= names
    assert {index.table_name for index in planned.measures.indexes} <= names
    assert not planned.needed
    assert "nothing needed" in planned.lines()[0]
    done = maintain(client.database, planned)
    assert (done.outcome, done.done, done.action_id) == (audit.Outcome.DONE, 0, None)


def test_dead_rows_and_a_bloated_index_are_repaired(use_postgresql: Use) -> None:
    client = use_postgresql(FIFO)
    filled(client, 20_000)
    deleted(client, 50)

    planned = find(client.database, client.queue, QUICK)

    index = index_of(planned, client)
    assert [(s.what, s.target) for s in planned.steps] == [
        ("VACUUM", client.queue.table),
        ("REINDEX", index.name),
        ("ANALYZE", client.queue.table),
    ]
    assert "≈19,600 dead rows beside ≈400 live ones" in planned.steps[0].reason
    assert f'REINDEX INDEX CONCURRENTLY "public"."{index.name}"' in planned.steps[1].sql
    lines = "\n".join(planned.lines())
    assert all(step.reason in lines and step.sql in lines for step in planned.steps)

    steps_done: list[Progress] = []
    done = maintain(client.database, planned, on_progress=steps_done.append)

    assert (done.done, done.problem) == (3, "")
    assert [(progress.done, progress.total) for progress in steps_done] == [(1, 3), (2, 3), (3, 3)]
    after = find(client.database, client.queue, QUICK)
    assert index_of(after, client).pages < index.pages / 10
    assert after.measures.dead_rows == 0
    assert done.data["pages_after"] == after.measures.pages
    assert not after.needed
    assert len(client.drain()) == 400
    (entry,) = entries(client, "maintain")
    assert (entry.planned, entry.done, entry.failed, entry.outcome) == (3, 3, 0, "done")
    assert index.name in entry.detail


def test_the_estimated_size_of_an_index_is_near_that_of_a_rebuilt_one(use_postgresql: Use) -> None:
    client = use_postgresql(FIFO)
    filled(client, 30_000)
    execute(client.url, f'REINDEX TABLE "{client.queue.table}"')
    index = index_of(find(client.database, client.queue), client)
    needed = index.needed_pages(30_000)
    assert needed is not None
    assert index.pages * 0.8 <= needed <= index.pages * 1.3


def test_the_session_that_keeps_dead_rows_is_named(use_postgresql: Use) -> None:
    client = use_postgresql(FIFO)
    filled(client, 2_000)
    with holding(client.url) as holder:
        pid = holder.info.backend_pid
        deleted(client, 50)
        first = find(client.database, client.queue, SMALL)
        assert [s.what for s in first.steps][:1] == ["VACUUM"]
        (note,) = first.notes
        assert f" {pid} of " in note
        # The possible steps are done, without effect.
        maintain(client.database, first)
        again = find(client.database, client.queue, SMALL)
        assert "VACUUM" not in [step.what for step in again.steps]
        assert any(
            f"VACUUM {client.queue.table}" in why and str(pid) in why for why in again.left_out
        )
    after = find(client.database, client.queue, QUICK)
    assert [step.what for step in after.steps] == ["VACUUM"]


def test_stopped_or_interrupted_maintenance_can_be_continued(use_postgresql: Use) -> None:
    """Stopped between two steps by its operator; and a reindex that waits too long for an older
    transaction, and so leaves an invalid index."""
    client = use_postgresql(FIFO)
    filled(client, 20_000)
    deleted(client, 50)
    control = Control()
    planned = find(client.database, client.queue, QUICK)
    done = maintain(client.database, planned, control=control, on_progress=lambda _: control.stop())
    assert done.outcome is audit.Outcome.STOPPED
    assert done.lines[1] == f"  {planned.steps[0].name}: done"
    assert "not started" in done.lines[2]

    impatient = open_database(client.url, timeouts=Timeouts(lock_seconds=0.3))
    planned = find(impatient, client.queue, QUICK)
    assert planned.steps[0].what == "REINDEX"
    index = index_of(planned, client)
    with holding(client.url, f'SELECT 1 FROM "{client.queue.table}"'):
        done = maintain(impatient, planned)
    assert done.problem.startswith(f"REINDEX {index.name}: ")
    assert done.outcome is audit.Outcome.FAILED
    assert "lock" in entries(client, "maintain")[0].detail

    planned = find(impatient, client.queue, QUICK)
    assert planned.steps[0].what == "DROP INDEX"
    assert planned.steps[0].target.startswith(index.name)
    assert "interrupted" in planned.steps[0].reason
    done = maintain(impatient, planned)
    assert (done.done, done.problem) == (len(planned.steps), "")
    assert index_of(find(impatient, client.queue, QUICK), client).pages < index.pages / 10
    impatient.close()


@contextmanager
def building(client: Client) -> Iterator[None]:
    """An index of the queue's table is being built, which waits for an open transaction."""
    table = client.queue.table
    with (
        ThreadPoolExecutor(1) as pool,
        connect(client.url) as builder,
        connect(client.url) as holder,
    ):
        holder.execute(f'BEGIN; LOCK TABLE "{table}" IN ROW EXCLUSIVE MODE'.encode())
        built = pool.submit(builder.execute, f'REINDEX TABLE CONCURRENTLY "{table}"'.encode())
        there = f"""SELECT count(*) FROM pg_index
            WHERE indrelid = CAST('"{table}"' AS regclass) AND NOT indisvalid"""
        wait_until(lambda: value(client.url, there) == 1, "the index is being built")
        yield
        holder.execute("ROLLBACK")
        built.result()


@pytest.mark.parametrize("grants", [(), ("GRANT pg_read_all_stats TO {}",)])
def test_an_index_that_is_being_built_is_left_alone(
    use_postgresql: Use, grants: Sequence[str]
) -> None:
    """By another's session, whose progress is hidden from a login without `pg_read_all_stats`; it
    began after the transaction's first reading of sessions."""
    client = use_postgresql(FIFO)
    with (
        login(client.url, *grants) as url,
        closing(open_database(url)) as database,
        ExitStack() as built,
    ):
        with database.transaction("measure", read_only=True) as connection:
            sql.rows(connection, HorizonRow, "activity.horizon")
            built.enter_context(building(client))
            measures = measured(connection, database, client.queue)
            seen = installed(connection, client.queue, [client.queue.table])
        (leftover,) = [index for index in measures.indexes if index.leftover]
        assert leftover.being_built
        assert all(index.being_built for index in seen)
        planned = needed(database, client.queue, measures, QUICK)
        assert planned.steps == ()
        assert planned.left_out == (
            f"{leftover.name}: another session is building it at this moment",
        )


def test_an_index_that_is_rebuilt_under_a_lock_is_left_alone(use_postgresql: Use) -> None:
    client = use_postgresql(FIFO)
    client.push_many(client.payloads(0))
    with (
        ThreadPoolExecutor(1) as pool,
        connect(client.url) as builder,
        connect(client.url) as holder,
    ):
        builder.execute(
            """CREATE FUNCTION public.waits(id bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS
            $$ BEGIN PERFORM pg_advisory_xact_lock(42); RETURN id; END $$"""
        )
        builder.execute(f'CREATE INDEX x_ccnew ON "{client.queue.table}" (public.waits(id))')
        builder.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'x_ccnew'::regclass"
        )
        holder.execute("SELECT pg_advisory_lock(42)")
        built = pool.submit(builder.execute, "REINDEX INDEX x_ccnew")
        at_work = "SELECT count(*) FROM pg_stat_progress_create_index"
        wait_until(lambda: value(client.url, at_work) == 1, "the index is being built")
        with client.database.transaction("look", read_only=True) as connection:
            seen = installed(connection, client.queue, [client.queue.table])
        holder.execute("SELECT pg_advisory_unlock(42)")
        built.result()
    assert {index.name for index in seen if index.being_built} >= {"x_ccnew"}


def test_the_statement_timeout_is_off_only_during_maintenance(use_postgresql: Use) -> None:
    """The connection returns to the pool with its own setting."""
    client = use_postgresql(FIFO)
    filled(client, 2_000)
    deleted(client, 50)
    single = open_database(client.url, timeouts=Timeouts(statement_seconds=7.0))
    maintain(single, find(single, client.queue, QUICK))
    with single.autocommit("look") as connection:
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar() == "7s"
    single.close()
