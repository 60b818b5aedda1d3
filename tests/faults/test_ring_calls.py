"""Single calls of a ring: what they refuse, do not write, wait for, and keep in hand."""

import threading
from collections.abc import Callable

import psycopg
import pytest
from psycopg import IsolationLevel

from tests.faults.harness.ring import Make, Popped, Ring, make_ring, wait_until_blocked
from tests.servers import wait_until

# READ COMMITTED only.

CALLS = (
    "SELECT {push}('late')",
    "SELECT * FROM {push_many}(ARRAY['late', 'later'])",
    "SELECT * FROM {pop}()",
    "SELECT * FROM {pop_many}(10)",
    "SELECT * FROM {relay}()",
    "SELECT * FROM {relay}(50)",
)
FINISHING_CALLS = ("SELECT {complete}(1)", "SELECT {fail}(1, 'no')")


@pytest.mark.parametrize("in_hand", ["off", "on"])
def test_other_isolation_levels_are_refused_before_a_number_is_drawn(
    make: Make, in_hand: str
) -> None:
    """READ UNCOMMITTED is READ COMMITTED under another name."""
    ring = make(in_hand=in_hand)
    calls = CALLS + (FINISHING_CALLS if ring.queue.finishes else ())
    with ring.connect() as other:
        ring.push_many(["one", "two", "three"])
        assert ring.pop()
        before = (ring.measure(), ring.live())
        other.autocommit = False
        for level in (IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE):
            other.isolation_level = level
            for call in calls:
                with pytest.raises(psycopg.Error, match="READ COMMITTED only") as refusal:
                    other.execute(ring.sql(call))
                assert refusal.value.sqlstate == "DBQ02"
                assert refusal.value.diag.message_hint
                other.rollback()
        assert (ring.measure(), ring.live()) == before
        other.isolation_level = IsolationLevel.READ_UNCOMMITTED
        assert ring.push("four", on=other) == 4
        assert [message.id for message in ring.pop_many(10, on=other)] == [2, 3, 4]
        other.commit()


# A pop of an empty ring and a push into a full one write nothing.

ROWS = """
    SELECT relname, n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables
    WHERE relname LIKE 'ring%' ORDER BY relname
"""
OTHERS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND backend_type = 'client backend'
"""


def test_pops_of_an_empty_ring_write_nothing(database_url: str) -> None:
    """Even if numbers are parked that will never have a message."""
    for in_hand in ("off", "on"):
        ring = make_ring(database_url, f"ring_{in_hand}", size=50, in_hand=in_hand)
        assert ring.push("a message") == 1
        assert ring.pop()
        _pops_write_nothing(ring)
        holes = "INSERT INTO {parked} SELECT -g, false, now() FROM generate_series(1, 300) AS g"
        ring.execute(holes)
        _pops_write_nothing(ring)


def test_a_push_to_a_full_ring_consumes_no_number(make: Make) -> None:
    """It does not write anything else either."""
    ring = make(size=3)
    assert ring.push_many(list("abcd")) == [1, 2, 3, None]
    before = ring.measure()
    for _ in range(20):
        assert ring.push("e") is None
        assert ring.push_many(["f", "g"]) == [None, None]
    assert ring.measure() == before
    assert _transaction_number(ring, "{push}('e')") is None


def _pops_write_nothing(ring: Ring) -> None:
    """No number is drawn, no row written, no transaction number assigned."""
    measured, rows = ring.measure(), _counted_rows(ring)
    for _ in range(50):
        assert ring.pop() is None
        assert ring.pop_many(100) == []
    assert (ring.measure(), _counted_rows(ring)) == (measured, rows)
    for call in ("{pop}()", "{pop_many}(100)"):
        assert _transaction_number(ring, call) is None
    ring.close()


def _transaction_number(ring: Ring, call: str) -> object:
    """PostgreSQL's number of the call's transaction, assigned at its first write or row lock."""
    with ring.undone() as caller:
        caller.execute(ring.sql(f"SELECT {call}"))
        ((number,),) = caller.execute("SELECT pg_current_xact_id_if_assigned()").fetchall()
        return number


def _counted_rows(ring: Ring) -> list[tuple[object, ...]]:
    """The server's row counters, once all other sessions have ended and reported theirs."""
    ring.close()
    wait_until(
        lambda: ring.session.execute(OTHERS).fetchone() == (0,), "all other sessions have gone"
    )
    return ring.session.execute(ROWS).fetchall()


# in_hand=on: a popped message stays until complete.

RELEASE = """
    UPDATE {in_hand} SET claimed_at = NULL, claimed_by = NULL
    WHERE id = %s AND claimed_at IS NOT NULL AND done_at IS NULL
"""


@pytest.fixture
def ring(make: Make) -> Ring:
    """A ring with in_hand=on and three messages."""
    made = make(size=10, in_hand="on")
    assert made.push_many(["one", "two", "three"]) == [1, 2, 3]
    return made


def test_a_pop_that_rolls_back_leaves_nothing_in_hand(ring: Ring) -> None:
    """Its number is consumed; a relay returns the message with its old id."""
    with ring.undone() as caller:
        assert _id(ring.pop(on=caller)) == 1
    assert _claims(ring) == []
    assert _id(ring.pop()) == 2
    ring.relay(5)
    assert _claims(ring) == [(2, "two", 1, True)], "a relay does not change it"
    assert [message.id for message in ring.pop_many(9)] == [1, 3]


@pytest.mark.parametrize("commits", [True, False])
def test_complete_waits_for_an_open_release(ring: Ring, commits: bool) -> None:
    """Then it returns whether the claim still existed."""
    with ring.connect() as operator, ring.connect() as consumer:
        assert _id(ring.pop(on=consumer)) == 1
        operator.execute("BEGIN")
        assert _release(ring, operator)
        completes = _result_after(
            lambda: operator.execute("COMMIT" if commits else "ROLLBACK"),
            ring,
            consumer,
            lambda: _complete(ring, consumer),
        )
        assert completes == (not commits)
        assert _claims(ring) == ([(1, "one", 1, False)] if commits else [])


def test_a_release_after_complete_finds_nothing(ring: Ring) -> None:
    """The same race in the other order."""
    with ring.connect() as operator, ring.connect() as consumer:
        assert _id(ring.pop(on=consumer)) == 1
        consumer.execute("BEGIN")
        assert _complete(ring, consumer)
        releases = _result_after(
            lambda: consumer.execute("COMMIT"), ring, operator, lambda: _release(ring, operator)
        )
        assert not releases
        assert _claims(ring) == []


def test_pop_skips_ready_rows_locked_by_another_session(ring: Ring) -> None:
    """It does not wait, and takes the next message from the ring."""
    with ring.connect() as holder, ring.connect("lock_timeout = '1ms'") as consumer:
        assert _id(ring.pop(on=consumer)) == 1
        assert _release(ring, consumer)
        holder.execute("BEGIN")
        assert [message.id for message in ring.pop_many(1, on=holder)] == [1]
        assert _id(ring.pop(on=consumer)) == 2
        holder.execute("ROLLBACK")
        assert _id(ring.pop(on=consumer)) == 1


def _result_after(
    end: Callable[[], object], ring: Ring, waiter: psycopg.Connection, call: Callable[[], bool]
) -> bool:
    """The result of a call that waits until another transaction ends."""
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    wait_until_blocked(ring, waiter)
    end()
    thread.join()
    (result,) = results
    return result


def _claims(ring: Ring) -> list[tuple[int, str, int, bool]]:
    query = "SELECT id, payload, attempts, claimed_at IS NOT NULL FROM {in_hand} ORDER BY id"
    return ring.execute(query).fetchall()


def _release(ring: Ring, connection: psycopg.Connection) -> bool:
    """Release the claim of message 1."""
    return connection.execute(ring.sql(RELEASE), [1]).rowcount == 1


def _complete(ring: Ring, connection: psycopg.Connection) -> bool:
    """Complete message 1, popped once."""
    return connection.execute(ring.sql("SELECT {complete}(1, 1)")).fetchone() == (True,)


def _id(message: Popped | None) -> int | None:
    return message.id if message else None
