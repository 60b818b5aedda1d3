"""End a session: it is named, it is the right one, its rows come back; any other is skipped."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from console import audit
from console.actions.end_session import EndPlan, end_session, plan, sessions_holding
from console.actions.install import install
from console.actions.maintain_plan import MaintainLimits
from console.actions.maintain_plan import plan as maintenance
from console.designs import DESIGNS
from console.engines import open_database
from console.errors import RefusedError, UsageError
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.variants import Variant, mostly
from tests.servers import connect, wait_until
from tests.template import CopiedServer

DELETING = [Variant(DESIGNS[name], {}) for name in ("heap", "fifo", "stack", "pending")]
FIFO = Variant(DESIGNS["fifo"], {})


@contextmanager
def popping(client: Client, count: int = 3) -> Iterator[psycopg.Connection]:
    """A session that has popped and does not commit. It may be ended meanwhile."""
    connection = connect(client.url)
    try:
        connection.execute("SET application_name = 'worker-7'")
        connection.execute("BEGIN")
        taken = connection.execute(
            f'SELECT id FROM "{client.queue.name}_pop_many"({count})'.encode()
        ).fetchall()
        assert len(taken) == count
        yield connection
    finally:
        connection.close()


def pid_of(connection: psycopg.Connection) -> int:
    return connection.info.backend_pid


def planned(client: Client, name: object) -> EndPlan:
    return plan(client.database, client.queue, str(name))


def entry_of(client: Client) -> audit.Entry:
    with client.database.transaction("read", read_only=True) as connection:
        wanted = audit.EntryFilter(queue=client.queue.name, verb="end-session")
        entry, *_ = audit.entries(connection, wanted)
    return entry


@pytest.mark.parametrize("variant", mostly([FIFO], DELETING), ids=str)
def test_a_session_that_holds_rows_is_ended_and_they_come_back(
    use_postgresql: Use, variant: Variant
) -> None:
    client = use_postgresql(variant)
    client.push_many(client.payloads(*range(5)))
    with popping(client) as holder:
        pid = pid_of(holder)
        assert len(client.drain()) == 2
        assert [session.key for session in sessions_holding(client.database, client.queue)] == [pid]
        assert not sessions_holding(client.database, client.queue, older_than_seconds=3600)
        made = planned(client, pid)
        told = "\n".join(made.lines())
        assert f"session {pid}" in told
        assert "worker-7" in told
        assert "idle in transaction" in told
        assert f"holds rows in {client.queue.table}" in told
        assert made.as_json()["holds"] == [client.queue.table]

        done = end_session(client.database, made)

        assert (done.disconnected, done.changed_meanwhile) == (True, False)
        assert client.queue.table in done.lines()[0]
        with pytest.raises(psycopg.OperationalError):
            holder.execute("SELECT 1")
    assert len(client.drain()) == 3
    assert not sessions_holding(client.database, client.queue)
    entry = entry_of(client)
    assert (entry.outcome, str(pid) in entry.detail) == ("done", True)


def test_another_transaction_of_the_session_is_left_alone_and_one_that_ended(
    use_postgresql: Use,
) -> None:
    client = use_postgresql(FIFO)
    client.push_many(client.payloads(*range(5)))
    with popping(client) as holder:
        made = planned(client, pid_of(holder))
        holder.execute("COMMIT")
        holder.execute("BEGIN")
        holder.execute("SELECT 1")
        done = end_session(client.database, made)
        assert (done.disconnected, done.changed_meanwhile) == (False, True)
        assert "skipped" in done.lines()[0]
        assert holder.execute("SELECT 1").fetchone() == (1,)
        holder.execute("ROLLBACK")
        assert holder.execute("SELECT 1").fetchone() == (1,)
    assert entry_of(client).outcome == "stopped"
    with popping(client, 2) as holder:
        pid = pid_of(holder)
        made = planned(client, pid)
    wait_until(lambda: not sessions_holding(client.database, client.queue), "the session ended")
    assert end_session(client.database, made).changed_meanwhile
    with pytest.raises(UsageError, match=str(pid)):
        planned(client, pid)
    assert len(client.drain()) == 2


def test_who_is_not_at_the_queue_is_refused(use_postgresql: Use) -> None:
    client = use_postgresql(FIFO)
    other = use_postgresql(FIFO)
    other.push_many(other.payloads(*range(5)))
    with popping(other) as holder:
        with pytest.raises(RefusedError, match="nothing to do with"):
            planned(client, pid_of(holder))
        assert planned(other, pid_of(holder)).holds
    for name in ("999999999", "nobody", "1; DROP TABLE x", "-1"):
        with pytest.raises(UsageError):
            planned(client, name)


def test_who_blocks_one_at_the_queue_may_be_ended(use_postgresql: Use) -> None:
    """It holds nothing of the queue, but a row that somebody who is at the queue waits for."""
    client = use_postgresql(FIFO)
    client.push_many(client.payloads(*range(5)))
    with connect(client.url) as connection:
        connection.execute('CREATE TABLE IF NOT EXISTS "elsewhere" (id int)')
        connection.execute('INSERT INTO "elsewhere" VALUES (1)')
    with closing(connect(client.url)) as blocker, popping(client) as waiter:
        blocker.execute("BEGIN")
        blocker.execute('UPDATE "elsewhere" SET id = 2')
        waiter.execute("SET LOCAL lock_timeout = '60s'")
        waiter.pgconn.send_query(b'UPDATE "elsewhere" SET id = 3')
        seen: list[EndPlan] = []

        def waits() -> bool:
            try:
                seen.append(planned(client, pid_of(blocker)))
            except RefusedError:
                return False
            return True

        wait_until(waits, "the waiter waits")
        assert (seen[-1].blocks, seen[-1].holds) == ((pid_of(waiter),), ())
        assert end_session(client.database, seen[-1]).disconnected


def test_a_console_at_work_is_stopped_there(use_postgresql: Use) -> None:
    client = use_postgresql(FIFO)
    client.push_many(client.payloads(*range(5)))
    subject = audit.Subject.of(client.database, client.queue, "purge")
    theirs = open_database(client.url)
    with theirs.session("act") as session:
        with session.transaction("act") as connection:
            record = audit.ActionRecord.begin(connection, subject)
        with session.transaction("act") as connection:
            name = f'"{client.queue.table}"'
            connection.exec_driver_sql(f"DELETE FROM {name}")
            pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
            with pytest.raises(RefusedError, match="a running console: purge"):
                planned(client, pid)
            record.end(connection, audit.Outcome.DONE)
    theirs.close()


@pytest.fixture(scope="module")
def preparing() -> Iterator[Client]:
    """A queue on a server where transactions can be prepared."""
    with CopiedServer.start(settings={"max_prepared_transactions": "5"}) as server:
        database = open_database(server.create_database("prepared"))
        client = Client(database, FIFO.queue("public", "q", "postgresql"))
        install(database, client.queue)
        yield client
        database.close()


def test_a_prepared_transaction_is_undone(preparing: Client) -> None:
    """Whatever its name; and another one of that name is skipped."""
    client, gid = preparing, "left 'behind' \"4711\" {session}"
    client.push_many(client.payloads(*range(5)))
    literal = "'" + gid.replace("'", "''") + "'"
    with popping(client) as holder:
        holder.execute(f"PREPARE TRANSACTION {literal}".encode())
    made = planned(client, gid)
    assert made.prepared
    assert made.holds
    assert gid in str(made.as_json()["session"])

    with connect(client.url) as connection:
        connection.execute(f"ROLLBACK PREPARED {literal}".encode())
    with popping(client) as holder:
        holder.execute(f"PREPARE TRANSACTION {literal}".encode())
    assert end_session(client.database, made).changed_meanwhile
    with connect(client.url) as connection:
        popped = connection.execute('SELECT id FROM "q_pop_many"(100)').fetchall()
    assert len(popped) == 2

    limits = MaintainLimits(held_seconds=0.0, dead_least=1, dead_share=0.0)
    wait_until(
        lambda: repr(gid) in "".join(maintenance(client.database, client.queue, limits).notes),
        "maintain names who keeps dead rows",
    )
    done = end_session(client.database, planned(client, gid))
    assert done.disconnected
    assert len(client.drain()) == 3
