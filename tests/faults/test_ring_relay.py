"""Relay: when it is refused, what blocks it, and who still sees the old ring."""

import itertools
import threading

import psycopg
import pytest
from psycopg import IsolationLevel

from console.actions import relay as action
from console.actions import short_locks
from console.errors import BusyError, ConsoleError
from console.features.demo.embedded import EmbeddedServer
from tests.faults.harness.faults import crash
from tests.faults.harness.ring import Make, Ring, wait_for_server, wait_until_blocked

HELD = """
    SELECT c.relname, l.mode FROM pg_locks AS l INNER JOIN pg_class AS c ON l.relation = c.oid
    WHERE l.pid = %s AND l.granted AND c.relname LIKE 'ring%%' ORDER BY 1, 2
"""


@pytest.fixture
def ring(make: Make) -> Ring:
    """A ring with 30 messages, 20 of them still in it."""
    made = make(size=50)
    _fill(made)
    return made


@pytest.fixture
def short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The action retries for half a second, not for half a minute."""
    monkeypatch.setattr(short_locks, "_ATTEMPTS_SECONDS", 0.5)


def _fill(ring: Ring) -> None:
    ring.push_many([f"message {number}" for number in range(1, 31)])
    assert len(ring.pop_many(10)) == 10


def test_fewer_slots_than_messages_are_refused_with_the_number_to_drain(ring: Ring) -> None:
    """Nothing is changed; each popped message is one less to drain."""
    before = (ring.measure(), ring.live())
    with pytest.raises(ConsoleError, match="Drain 5 messages first") as refusal:
        ring.relay(15)
    assert refusal.value.exit_status == 4
    assert (ring.measure(), ring.live()) == before
    assert len(ring.pop_many(5)) == 5
    assert ring.relay(15).live == 15
    assert ring.push("one more") is None
    assert [message.id for message in ring.pop_many(99)] == list(range(16, 31))
    with pytest.raises(ConsoleError, match="at least one slot"):
        ring.relay(0)


def test_ids_survive_many_relays_and_keep_rising(ring: Ring) -> None:
    """Pop returns the id that push returned, whatever the message's current number."""
    ids = list(range(11, 31))
    for size in (20, 73, 25, 400, 21):
        relaid = ring.relay(size)
        assert relaid.next_push == relaid.base + relaid.live
        pushed = ring.push(f"message at {size}")
        assert pushed == (relaid.next_push if size > 20 else None)
        ids += [pushed] if pushed else []
        taken = ring.pop()
        assert taken is not None
        assert taken.id == ids.pop(0)
    assert ids == sorted(ids)
    assert [message.id for message in ring.drain()] == ids


@pytest.mark.usefixtures("short_retries")
@pytest.mark.parametrize("call", ["SELECT FROM {parked}", "SELECT {push}('x')", "SELECT {pop}()"])
def test_an_open_transaction_blocks_a_relay_and_is_named(ring: Ring, call: str) -> None:
    """After some attempts it gives up, has changed nothing and names the blocker."""
    with ring.connect("application_name = 'holder of a lock'") as holder:
        holder.execute("BEGIN")
        holder.execute(ring.sql(call))
        before = ring.measure()
        _, blockers = action.measure(ring.database, ring.queue)
        assert [blocker.pid for blocker in blockers] == [holder.info.backend_pid]
        with pytest.raises(BusyError) as busy:
            ring.relay(60)
        assert f"pid {holder.info.backend_pid} " in busy.value.why
        assert "holder of a lock" in busy.value.why
        assert "Nothing was changed" in busy.value.next_step
        assert busy.value.exit_status == 4
        assert ring.measure() == before
        holder.execute("ROLLBACK")
        assert ring.relay(60).size_after == 60


def test_a_failed_attempt_releases_all_its_locks(ring: Ring) -> None:
    """An attempt that fails at a later lock does not keep the first, so callers continue."""
    with ring.connect() as holder, ring.connect() as caller:
        holder.execute("BEGIN")
        # After a rollback to a savepoint a caller holds the sequence, but no longer parked.
        holder.execute("SAVEPOINT here")
        assert ring.push("never", on=holder)
        holder.execute("ROLLBACK TO here")
        for _ in range(3):
            with pytest.raises(psycopg.errors.LockNotAvailable):
                ring.execute("SELECT {relay}(60)")
            assert ring.pop(on=caller)
        assert action.measure(ring.database, ring.queue)[1]
        holder.execute("COMMIT")
        ring.execute("SELECT {relay}(60)")


def test_an_older_snapshot_still_sees_the_messages(ring: Ring) -> None:
    """Like a dump that started before and reads the ring later: relay does not truncate."""
    query = ring.sql("SELECT first_id, message FROM {ring} WHERE reference_count > 0 ORDER BY 1")
    with ring.connect() as dump:
        dump.autocommit = False
        dump.isolation_level = IsolationLevel.REPEATABLE_READ
        dump.execute("SELECT count(*) FROM pg_class")
        before = ring.session.execute(query).fetchall()
        ring.execute("INSERT INTO {parked} VALUES (-1, false, now())")
        for size in (20, 300, 20):
            ring.relay(size)
        assert len(ring.pop_many(5)) == 5
        ring.relay(15)
        assert dump.execute(query).fetchall() == before
        assert dump.execute(ring.sql("SELECT size FROM {config}")).fetchone() == (50,)
        dump.rollback()
        assert len(dump.execute(query).fetchall()) == 15


def test_prepared_transactions_block_a_relay_and_are_named(
    own_server: EmbeddedServer, make_own: Make, short_retries: None
) -> None:
    """They hold their locks without a session, even after a crash of the server."""
    ring = make_own(size=50)
    _fill(ring)
    with ring.connect() as connection:
        connection.execute("BEGIN")
        assert ring.pop(on=connection)
        connection.execute("PREPARE TRANSACTION 'left behind'")
    crash(own_server)
    wait_for_server(ring.url)
    ring.close()
    _, blockers = action.measure(ring.database, ring.queue)
    assert [blocker.prepared_transaction for blocker in blockers] == ["left behind"]
    with pytest.raises(BusyError, match="prepared transaction 'left behind'"):
        ring.relay(60)
    with ring.connect() as connection:
        connection.execute("ROLLBACK PREPARED 'left behind'")
    assert ring.relay(60).live == 20
    assert [message.id for message in ring.drain()] == list(range(11, 31))


CALLS = [
    "SELECT {push}('x')",
    "SELECT * FROM {push_many}(ARRAY['x', 'y'])",
    "SELECT * FROM {pop}()",
    "SELECT * FROM {pop_many}(2)",
]


@pytest.mark.parametrize("in_hand", ["off", "on"])
def test_a_caller_that_waits_for_a_relay_holds_no_lock_on_the_ring(
    make: Make, in_hand: str
) -> None:
    """So a relay gets every later lock at once. Also if the caller's plans are cached."""
    ring = make(size=50, in_hand=in_hand)
    _fill(ring)
    with ring.connect() as operator:
        for call, cached in itertools.product(CALLS, (False, True)):
            with ring.connect() as caller:
                for _ in range(7 if cached else 0):
                    caller.execute(ring.sql(call))
                operator.execute("BEGIN")
                operator.execute(ring.sql("LOCK TABLE {parked} IN ACCESS EXCLUSIVE MODE"))
                thread = threading.Thread(target=caller.execute, args=[ring.sql(call)])
                thread.start()
                wait_until_blocked(ring, caller)
                held = ring.session.execute(HELD, [caller.info.backend_pid]).fetchall()
                operator.execute("ROLLBACK")
                thread.join()
                assert held == [], call


def test_callers_wait_for_a_relay_and_then_use_the_new_ring(ring: Ring) -> None:
    """No number or size is kept across a relay: a caller that waited reads them again."""
    with ring.connect() as operator, ring.connect() as caller:
        assert ring.pop(on=caller)  # caches its plans with the old size
        operator.execute("BEGIN")
        operator.execute(ring.sql("SELECT {relay}(19)"))
        caller.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            ring.pop(on=caller)
        operator.execute("COMMIT")
        assert ring.push("no room", on=caller) is None
        assert [message.id for message in ring.pop_many(99, on=caller)] == list(range(12, 31))
