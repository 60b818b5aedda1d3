"""Who holds rows: the one at the root of the waits, by one id, and for how long. Nobody else."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import psycopg
import pytest

from console.actions.end_session import plan, sessions_holding
from console.designs import DESIGNS
from console.doctor.diagnose import diagnose
from console.doctor.finding import Diagnosis
from console.monitor.activity import find_objects, sample_activity
from console.monitor.limits import DEFAULTS
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot
from console.tui.store import Store
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.variants import Variant
from tests.servers import connect, wait_until

DELETING = [
    Variant(DESIGNS["naive"], {}),
    Variant(DESIGNS["fifo"], {}),
    Variant(DESIGNS["fifo"], {"order": "strict"}),
    Variant(DESIGNS["ring"], {"size": "100"}),
]
WAITING = {"naive", "strict"}
"""Whose pops wait for each other."""
IMPATIENT = replace(DEFAULTS, stuck_after_seconds=0.05)


@dataclass(frozen=True)
class Scene:
    """One session has popped all that there was and stays; two more have come to pop."""

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
            thresholds_of=lambda _: IMPATIENT,
            patience_seconds=0.1,
        )
        return found

    def accused(self) -> list[object]:
        """Sessions that the doctor's findings name."""
        findings = self.diagnosis().findings
        return [one.evidence["session"] for one in findings if one.code.name == "rows_held"]


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
        came = {other.info.backend_pid for other in others}

        def are_there() -> bool:
            seen = sample_activity(client.database, objects)
            at_work = {
                s.key for s in seen.relevant_sessions if s.state == "active" and not s.blocked_by
            }
            return came <= {s.key for s in seen.relevant_sessions} and not came & at_work

        wait_until(are_there, "the others wait, or have found nothing")
        yield Scene(client, holder, tuple(others))


def shown(snapshot: QueueSnapshot, diagnosis: Diagnosis) -> list[str]:
    """The codes that the screens show."""
    store = Store({"a": 1.0}, now=0)
    store.add_reading("a", Reading("a", (snapshot,)), at=0)
    store.add_diagnoses("a", [diagnosis], 0, datetime.now(UTC), next_seconds=30)
    return [view.code for view in store.findings(1)]


@pytest.mark.parametrize("variant", DELETING, ids=str)
def test_only_the_root_holds_rows_by_all_who_tell_of_it(
    use_postgresql: Use, variant: Variant
) -> None:
    client = use_postgresql(variant)
    with scene(client) as there:
        seen = client.snapshot()
        assert [one.session for one in seen.held_by] == [there.pid]
        assert seen.holders == 1
        assert [one.key for one in sessions_holding(client.database, client.queue)] == [there.pid]
        wait_until(lambda: bool(there.accused()), "it is old")
        assert there.accused() == [there.pid]
        assert "rows_held" in shown(client.snapshot(), there.diagnosis())
        for other in there.others:
            assert not plan(client.database, client.queue, str(other.info.backend_pid)).holds
        assert plan(client.database, client.queue, str(there.pid)).holds


def test_a_holder_that_waits_elsewhere_is_one(use_postgresql: Use) -> None:
    """What it waits for is none of the queue's, nor is who has that at the queue."""
    client = use_postgresql(DELETING[1])
    client.push_many(client.payloads(*range(5)))
    with connect(client.url) as connection:
        connection.execute('CREATE TABLE "elsewhere" AS SELECT 1 AS id')
    with closing(connect(client.url)) as blocker, closing(connect(client.url)) as holder:
        blocker.execute("BEGIN")
        blocker.execute('UPDATE "elsewhere" SET id = 2')
        holder.execute("BEGIN")
        holder.execute(f'SELECT * FROM "{client.queue.name}_pop"()'.encode())
        holder.pgconn.send_query(b'UPDATE "elsewhere" SET id = 3')
        objects = find_objects(client.database, [client.queue])
        wait_until(lambda: sample_activity(client.database, objects).waiting == 1, "it waits")
        pid = holder.info.backend_pid
        assert [one.key for one in sessions_holding(client.database, client.queue)] == [pid]
        assert [one.session for one in client.snapshot().held_by] == [pid]


def test_for_how_long_rows_are_held(use_postgresql: Use) -> None:
    """Not for as long as the transaction is open: at the most so long, at the least while idle."""
    client = use_postgresql(DELETING[1])
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
