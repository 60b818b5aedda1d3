"""Ending a session: only the planned one is ended, and its rows are available again.

And which session holds rows: only the root of the waits; and for how long.
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import psycopg
import pytest

from console.actions.end_session import SessionAtQueue, end_session, find, sessions_holding
from console.actions.maintenance import MaintainLimits
from console.actions.maintenance import find as maintenance
from console.catalog import audit
from console.designs import DESIGNS
from console.doctor.diagnose import diagnose
from console.doctor.finding import Diagnosis
from console.engines import open_database
from console.errors import RefusedError, UsageError
from console.monitor.activity import find_objects, sample_activity
from console.monitor.limits import DEFAULTS
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot
from console.tui.store import Store
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.message_actions import entries
from tests.contract.variants import Variant, default, long_except
from tests.servers import connect, execute, value, wait_until

DELETING = [Variant(DESIGNS[name], {}) for name in ("heap", "fifo", "stack", "pending")]
FIFO = Variant(DESIGNS["fifo"], {})


@contextmanager
def popping(client: Client, count: int = 3) -> Iterator[psycopg.Connection]:
    """A session that has popped and does not commit. The test may end it."""
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


def planned(client: Client, name: object) -> SessionAtQueue:
    return find(client.database, client.queue, str(name))


@pytest.mark.parametrize("variant", long_except([FIFO], DELETING), ids=str)
def test_ending_a_session_that_holds_rows_makes_them_available_again(
    use_postgresql: Use, variant: Variant
) -> None:
    client = use_postgresql(variant)
    client.push_many(client.payloads(*range(5)))
    with popping(client) as holder:
        pid = pid_of(holder)
        assert len(client.drain()) == 2
        assert [session.key for session in sessions_holding(client.database, client.queue)] == [pid]
        assert not sessions_holding(client.database, client.queue, older_than_seconds=3600)
        action_plan = planned(client, pid)
        shown_plan = "\n".join(action_plan.lines())
        assert f"session {pid}" in shown_plan
        assert "worker-7" in shown_plan
        assert "idle in transaction" in shown_plan
        assert f"holds rows in {client.queue.table}" in shown_plan
        assert action_plan.as_json()["holds"] == [client.queue.table]

        done = end_session(client.database, action_plan)

        assert (done.data["ended"], done.data["changed_meanwhile"]) == (True, False)
        assert client.queue.table in done.lines[0]
        with pytest.raises(psycopg.OperationalError):
            holder.execute("SELECT 1")
    assert len(client.drain()) == 3
    assert not sessions_holding(client.database, client.queue)
    (entry,) = entries(client, "end-session")
    assert (entry.outcome, str(pid) in entry.detail) == ("done", True)


def test_a_session_whose_transaction_or_connection_ended_is_skipped(use_postgresql: Use) -> None:
    client = use_postgresql(FIFO)
    client.push_many(client.payloads(*range(5)))
    with popping(client) as holder:
        action_plan = planned(client, pid_of(holder))
        holder.execute("COMMIT")
        holder.execute("BEGIN")
        holder.execute("SELECT 1")
        done = end_session(client.database, action_plan)
        assert (done.data["ended"], done.data["changed_meanwhile"]) == (False, True)
        assert "skipped" in done.lines[0]
        assert holder.execute("SELECT 1").fetchone() == (1,)
        holder.execute("ROLLBACK")
        assert holder.execute("SELECT 1").fetchone() == (1,)
    assert entries(client, "end-session")[0].outcome == "stopped"
    with popping(client, 2) as holder:
        pid = pid_of(holder)
        action_plan = planned(client, pid)
    wait_until(lambda: not sessions_holding(client.database, client.queue), "the session ended")
    assert end_session(client.database, action_plan).data["changed_meanwhile"]
    with pytest.raises(UsageError, match=str(pid)):
        planned(client, pid)
    assert len(client.drain()) == 2


def test_ending_a_session_unrelated_to_the_queue_is_refused(use_postgresql: Use) -> None:
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


def test_a_session_that_blocks_a_session_of_the_queue_can_be_ended(use_postgresql: Use) -> None:
    """It holds no row of the queue, but one for which a session of the queue waits."""
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
        plans: list[SessionAtQueue] = []

        def waits() -> bool:
            try:
                plans.append(planned(client, pid_of(blocker)))
            except RefusedError:
                return False
            return True

        wait_until(waits, "the waiter waits")
        assert (plans[-1].blocks, plans[-1].holds) == ((pid_of(waiter),), ())
        assert end_session(client.database, plans[-1]).data["ended"]


def test_ending_the_session_of_a_running_console_is_refused(use_postgresql: Use) -> None:
    client = use_postgresql(FIFO)
    client.push_many(client.payloads(*range(5)))
    subject = audit.Subject.of(client.database, client.queue, "purge")
    theirs = open_database(client.url)
    with theirs.session("act") as session:
        with session.transaction("act") as connection:
            record = audit.ActionRecord.begin(connection, subject)
        with session.transaction("act") as connection:
            name = f'public."{client.queue.table}"'
            connection.exec_driver_sql(f"DELETE FROM {name}")
            pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
            with pytest.raises(RefusedError, match="a running console: purge"):
                planned(client, pid)
            record.end(connection, audit.Outcome.DONE)
    theirs.close()


def test_a_prepared_transaction_is_rolled_back(use_postgresql: Use) -> None:
    """Whatever its name is; a later one with the same name is skipped."""
    client, gid = use_postgresql(FIFO), "left 'behind' \"4711\" {session}"
    if value(client.url, "SHOW max_prepared_transactions") == "0":
        pytest.skip("this server prepares no transactions")
    client.push_many(client.payloads(*range(5)))
    literal = "'" + gid.replace("'", "''") + "'"
    with popping(client) as holder:
        holder.execute(f"PREPARE TRANSACTION {literal}".encode())
    action_plan = planned(client, gid)
    assert action_plan.prepared
    assert action_plan.holds
    assert gid in str(action_plan.as_json()["session"])

    execute(client.url, f"ROLLBACK PREPARED {literal}")
    with popping(client) as holder:
        holder.execute(f"PREPARE TRANSACTION {literal}".encode())
    assert end_session(client.database, action_plan).data["changed_meanwhile"]
    assert len(client.drain()) == 2

    limits = MaintainLimits(held_seconds=0.0, dead_least=1, dead_share=0.0)
    wait_until(
        lambda: repr(gid) in "".join(maintenance(client.database, client.queue, limits).notes),
        "maintain names who keeps dead rows",
    )
    done = end_session(client.database, planned(client, gid))
    assert done.data["ended"]
    assert len(client.drain()) == 3


HOLDING = [default("naive"), FIFO, default("fifo", order="strict"), default("ring")]
WAITING = {"naive", "strict"}
"""Designs and orders whose pops wait for each other."""
LOW_THRESHOLDS = replace(DEFAULTS, stuck_after_seconds=0.05)


@dataclass(frozen=True)
class Scene:
    """One session has popped all messages and stays open; two others try to pop."""

    client: Client
    holder: psycopg.Connection
    others: tuple[psycopg.Connection, ...]

    @property
    def pid(self) -> int:
        return self.holder.info.backend_pid

    def diagnosis(self) -> Diagnosis:
        (found,) = diagnose(
            self.client.database,
            [self.client.queue],
            thresholds_of=lambda _: LOW_THRESHOLDS,
            patience_seconds=0.1,
        )
        return found

    def named_sessions(self) -> list[object]:
        """Sessions that `rows_held` findings name."""
        findings = self.diagnosis().findings
        return [
            finding.evidence["session"] for finding in findings if finding.code.name == "rows_held"
        ]


@contextmanager
def scene(client: Client) -> Iterator[Scene]:
    client.push_many(client.payloads(*range(5)))
    name = client.queue.name
    with ExitStack() as sessions:
        holder, *others = (sessions.enter_context(closing(connect(client.url))) for _ in range(3))
        holder.execute("BEGIN")
        assert len(holder.execute(f'SELECT * FROM "{name}_pop_many"(5)'.encode()).fetchall()) == 5
        for other in others:
            other.execute("BEGIN")
            if WAITING & {client.queue.design.name, *client.queue.options.values()}:
                other.pgconn.send_query(f'SELECT * FROM "{name}_pop"()'.encode())
            else:
                assert not other.execute(f'SELECT * FROM "{name}_pop"()'.encode()).fetchall()
        objects = find_objects(client.database, [client.queue])
        pids = {other.info.backend_pid for other in others}

        def others_are_ready() -> bool:
            activity = sample_activity(client.database, objects)
            active = {
                s.key
                for s in activity.relevant_sessions
                if s.state == "active" and not s.blocked_by
            }
            return pids <= {s.key for s in activity.relevant_sessions} and not pids & active

        wait_until(others_are_ready, "the others wait, or have found nothing")
        yield Scene(client, holder, tuple(others))


def codes_on_screens(snapshot: QueueSnapshot, diagnosis: Diagnosis) -> list[str]:
    """The codes that the screens show."""
    store = Store({"a": 1.0}, now=0)
    store.add_reading("a", Reading("a", (snapshot,)), at=0)
    store.add_diagnoses("a", [diagnosis], 0, datetime.now(UTC), next_seconds=30)
    return [view.code for view in store.findings(1)]


@pytest.mark.thinned(3, payload=False)
@pytest.mark.parametrize("variant", HOLDING, ids=str)
def test_only_the_root_blocker_is_reported_as_holding_rows(
    use_postgresql: Use, variant: Variant
) -> None:
    client = use_postgresql(variant)
    with scene(client) as there:
        observed = client.snapshot()
        assert [one.session for one in observed.held_by] == [there.pid]
        assert observed.holders == 1
        assert [one.key for one in sessions_holding(client.database, client.queue)] == [there.pid]
        wait_until(lambda: bool(there.named_sessions()), "it is old")
        assert there.named_sessions() == [there.pid]
        assert "rows_held" in codes_on_screens(client.snapshot(), there.diagnosis())
        for other in there.others:
            assert not find(client.database, client.queue, str(other.info.backend_pid)).holds
        assert find(client.database, client.queue, str(there.pid)).holds


def test_a_row_holder_that_waits_for_another_table_is_still_a_holder(use_postgresql: Use) -> None:
    """It waits for another table, and its blocker does not use the queue."""
    client = use_postgresql(FIFO)
    client.push_many(client.payloads(*range(5)))
    execute(client.url, 'CREATE TABLE "another table" AS SELECT 1 AS id')
    with closing(connect(client.url)) as blocker, closing(connect(client.url)) as holder:
        blocker.execute("BEGIN")
        blocker.execute('UPDATE "another table" SET id = 2')
        holder.execute("BEGIN")
        holder.execute(f'SELECT * FROM "{client.queue.name}_pop"()'.encode())
        holder.pgconn.send_query(b'UPDATE "another table" SET id = 3')
        objects = find_objects(client.database, [client.queue])
        wait_until(lambda: sample_activity(client.database, objects).waiting == 1, "it waits")
        pid = holder.info.backend_pid
        assert [session.key for session in sessions_holding(client.database, client.queue)] == [pid]
        assert [one.session for one in client.snapshot().held_by] == [pid]


def test_the_time_rows_are_held_has_a_minimum_and_a_maximum(use_postgresql: Use) -> None:
    """At most as long as the transaction is open, at least as long as the session is idle."""
    client = use_postgresql(FIFO)
    client.push_many(client.payloads(*range(5)))
    with closing(connect(client.url)) as session:
        session.execute("BEGIN")
        began = sample_activity(client.database, find_objects(client.database, [client.queue]))
        assert not began.relevant_sessions
        session.execute("SELECT pg_sleep(1.2)")
        session.execute(f'SELECT * FROM "{client.queue.name}_pop"()'.encode())
        (holder,) = client.snapshot().held_by
        (found,) = sessions_holding(client.database, client.queue)
        for one in (holder, found):
            assert one.held_at_least_seconds is not None
            assert one.held_at_most_seconds is not None
            assert one.held_at_least_seconds + 1.2 <= one.held_at_most_seconds
            assert " to " in one.held_for
            assert one.held_exactly_seconds is None
        session.pgconn.send_query(b"SELECT pg_sleep(60)")

        def at_work() -> bool:
            return client.snapshot().held_by[0].state == "active"

        wait_until(at_work, "it is no longer idle")
        (holder,) = client.snapshot().held_by
        assert holder.held_for.startswith("at most ")
        session.cancel_safe()
