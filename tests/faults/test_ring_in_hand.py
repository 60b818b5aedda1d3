"""in_hand=on: a message that was popped stays until complete, whatever becomes of its consumer."""

import threading

import psycopg
import pytest

from tests.faults.ring_tools import Make, Popped, Ring
from tests.servers import wait_until

RELEASE = """
    UPDATE {in_hand} SET claimed_at = NULL, claimed_by = NULL
    WHERE id = %s AND claimed_at IS NOT NULL AND done_at IS NULL
"""


@pytest.fixture
def ring(make: Make) -> Ring:
    """A ring that keeps what is in hand, with three messages."""
    made = make(size=10, in_hand="on")
    with made.connect() as connection:
        assert made.push_many(connection, ["one", "two", "three"]) == [1, 2, 3]
    return made


def test_a_pop_that_rolls_back_leaves_nothing_in_hand(ring: Ring) -> None:
    """Its number is spent; relay brings the message back, with the id it always had."""
    with ring.connect() as connection:
        connection.execute("BEGIN")
        assert _id(ring.pop(connection)) == 1
        connection.execute("ROLLBACK")
        assert _claims(ring, connection) == []
        assert _id(ring.pop(connection)) == 2
        ring.relay(5)
        assert _claims(ring, connection) == [(2, "two", 1, True)], "relay leaves it alone"
        assert [message.id for message in ring.pop_many(connection, 9)] == [1, 3]


@pytest.mark.parametrize("release_commits", [True, False])
def test_complete_waits_for_a_release_that_is_under_way(ring: Ring, release_commits: bool) -> None:
    """And then tells the truth: whether the claim was still there."""
    answers: list[bool] = []
    with ring.connect() as operator, ring.connect() as consumer:
        assert _id(ring.pop(consumer)) == 1
        operator.execute("BEGIN")
        assert _release(ring, operator, 1)
        thread = threading.Thread(target=lambda: answers.append(_complete(ring, consumer, 1, 1)))
        thread.start()
        _wait_until_blocked(ring, consumer)
        operator.execute("COMMIT" if release_commits else "ROLLBACK")
        thread.join()
        assert answers == [not release_commits]
        assert _claims(ring, operator) == ([(1, "one", 1, False)] if release_commits else [])


def test_a_release_after_complete_finds_nothing(ring: Ring) -> None:
    """The other order of the same race."""
    answers: list[bool] = []
    with ring.connect() as operator, ring.connect() as consumer:
        assert _id(ring.pop(consumer)) == 1
        consumer.execute("BEGIN")
        assert _complete(ring, consumer, 1, 1)
        thread = threading.Thread(target=lambda: answers.append(_release(ring, operator, 1)))
        thread.start()
        _wait_until_blocked(ring, operator)
        consumer.execute("COMMIT")
        thread.join()
        assert answers == [False]
        assert _claims(ring, operator) == []


def test_pop_steps_over_a_ready_row_that_another_session_holds(ring: Ring) -> None:
    """It waits for nobody, and takes the next message from the ring."""
    with ring.connect() as holder, ring.connect("lock_timeout = '1ms'") as consumer:
        assert _id(ring.pop(consumer)) == 1
        assert _release(ring, consumer, 1)
        holder.execute("BEGIN")
        assert [message.id for message in ring.pop_many(holder, 1)] == [1]
        assert _id(ring.pop(consumer)) == 2
        holder.execute("ROLLBACK")
        assert _id(ring.pop(consumer)) == 1


def _wait_until_blocked(ring: Ring, waiter: psycopg.Connection) -> None:
    blocked = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
    with ring.connect() as looker:
        pid = waiter.info.backend_pid
        wait_until(lambda: looker.execute(blocked, [pid]).fetchone() == (True,), "it waits")


def _claims(ring: Ring, connection: psycopg.Connection) -> list[tuple[int, str, int, bool]]:
    query = "SELECT id, payload, attempts, claimed_at IS NOT NULL FROM {in_hand} ORDER BY id"
    return connection.execute(ring.sql(query)).fetchall()


def _release(ring: Ring, connection: psycopg.Connection, number: int) -> bool:
    return connection.execute(ring.sql(RELEASE), [number]).rowcount == 1


def _complete(ring: Ring, connection: psycopg.Connection, number: int, attempts: int) -> bool:
    return _answer(connection, ring, "SELECT {complete}(%s, %s)", [number, attempts])


def _answer(connection: psycopg.Connection, ring: Ring, call: str, values: list[int]) -> bool:
    row = connection.execute(ring.sql(call), values).fetchone()
    assert row is not None
    return bool(row[0])


def _id(message: Popped | None) -> int | None:
    return message.id if message else None
