"""in_hand=on: a message that was popped stays until complete, whatever becomes of its consumer."""

import subprocess
import sys
import threading

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.faults.ring_tools import Make, Popped, Ring
from tests.servers import wait_until

RELEASE = """
    UPDATE {in_hand} SET claimed_at = NULL, claimed_by = NULL
    WHERE id = %s AND claimed_at IS NOT NULL AND done_at IS NULL
"""
CONSUMER = """
import sys, time, psycopg
with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    pop = f'SELECT id FROM "{sys.argv[2]}_pop"(consumer => %s)'
    row = connection.execute(pop, ["mortal"]).fetchone()
    print(row[0], flush=True)
    time.sleep(600)
"""


@pytest.fixture
def ring(make: Make) -> Ring:
    """A ring that keeps what is in hand, with three messages."""
    made = make(size=10, in_hand="on")
    with made.connect() as connection:
        assert made.push_many(connection, ["one", "two", "three"]) == [1, 2, 3]
    return made


def test_a_consumer_killed_after_its_pop_leaves_the_row_claimed(ring: Ring) -> None:
    """Released in place it is popped first, with one attempt more; the dead claim is void."""
    with ring.connect() as connection:
        assert _popped_by_one_that_is_killed(ring, connection) == 1
        assert _claims(ring, connection) == [(1, "one", 1, True)]
        assert "consumer=mortal" in _claimed_by(ring, connection, 1)
        assert _release(ring, connection, 1)
        assert _claims(ring, connection) == [(1, "one", 1, False)]

        again = ring.pop(connection)
        assert again is not None
        assert (again.id, again.payload, again.attempts) == (1, "one", 2)
        assert not _complete(ring, connection, 1, 1), "the first claim is not this one's"
        assert not _fail(ring, connection, 1, 1)
        assert _complete(ring, connection, 1, 2)
        assert not _complete(ring, connection, 1, 2), "it is done already"
        assert [message.id for message in ring.pop_many(connection, 9)] == [2, 3]


def test_released_rows_go_before_the_ring_and_batches_mix_them(ring: Ring) -> None:
    """In the order of their ids, each with its own attempts."""
    with ring.connect() as connection:
        assert len(ring.pop_many(connection, 2)) == 2
        for number in (2, 1):
            assert _release(ring, connection, number)
        taken = ring.pop_many(connection, 9)
        assert [(m.id, m.attempts) for m in taken] == [(1, 2), (2, 2), (3, 1)]
        assert _fail(ring, connection, 3, 1)
        assert not _release(ring, connection, 3), "an error waits for an operator"
        assert ring.pop(connection) is None


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


def test_every_message_is_completed_once_by_consumers_that_die(ring: Ring) -> None:
    """Claims of the dead are released until all is done: nothing lost, nothing completed twice."""
    with ring.connect() as connection:
        completed: list[int] = []
        for _ in range(3):
            _popped_by_one_that_is_killed(ring, connection)
        for number, _, _, claimed in _claims(ring, connection):
            assert claimed
            assert _release(ring, connection, number)
        while message := ring.pop(connection):
            if _complete(ring, connection, message.id, message.attempts):
                completed.append(message.id)
        assert completed == [1, 2, 3]
        assert _claims(ring, connection) == []


def _popped_by_one_that_is_killed(ring: Ring, connection: psycopg.Connection) -> int:
    info = connection.info
    dsn = make_conninfo(info.dsn, password=info.password)
    command = [sys.executable, "-c", CONSUMER, dsn, ring.queue.name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as consumer:
        assert consumer.stdout is not None
        number = int(consumer.stdout.readline())
        consumer.kill()
    return number


def _wait_until_blocked(ring: Ring, waiter: psycopg.Connection) -> None:
    blocked = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
    with ring.connect() as looker:
        pid = waiter.info.backend_pid
        wait_until(lambda: looker.execute(blocked, [pid]).fetchone() == (True,), "it waits")


def _claims(ring: Ring, connection: psycopg.Connection) -> list[tuple[int, str, int, bool]]:
    query = "SELECT id, payload, attempts, claimed_at IS NOT NULL FROM {in_hand} ORDER BY id"
    return connection.execute(ring.sql(query)).fetchall()


def _claimed_by(ring: Ring, connection: psycopg.Connection, number: int) -> str:
    query = ring.sql("SELECT claimed_by FROM {in_hand} WHERE id = %s")
    row = connection.execute(query, [number]).fetchone()
    assert row is not None
    return str(row[0])


def _release(ring: Ring, connection: psycopg.Connection, number: int) -> bool:
    return connection.execute(ring.sql(RELEASE), [number]).rowcount == 1


def _complete(ring: Ring, connection: psycopg.Connection, number: int, attempts: int) -> bool:
    return _answer(connection, ring, "SELECT {complete}(%s, %s)", [number, attempts])


def _fail(ring: Ring, connection: psycopg.Connection, number: int, attempts: int) -> bool:
    return _answer(connection, ring, "SELECT {fail}(%s, 'broken', %s)", [number, attempts])


def _answer(connection: psycopg.Connection, ring: Ring, call: str, values: list[int]) -> bool:
    row = connection.execute(ring.sql(call), values).fetchone()
    assert row is not None
    return bool(row[0])


def _id(message: Popped | None) -> int | None:
    return message.id if message else None
