"""Kills in mid-traffic: a backend, a client, the server; then restart, relay, drain, count."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pytest

from console.engines.embedded import EmbeddedServer
from tests.faults.ring_campaign import campaign
from tests.faults.ring_tools import Ring, make_ring, wait_for_server
from tests.servers import kill_session


@pytest.mark.parametrize("content", ["slot", pytest.param("apart", marks=pytest.mark.long)])
def test_four_counts_after_kills(own_server: EmbeddedServer, content: str, long: bool) -> None:
    """Lost is never more than pops in doubt, doubled only what was retried in doubt. No content is
    left behind."""
    for seed in range(25 if long else 5):
        counts = campaign(own_server, seed, 6 if long else 1, content)
        assert counts.acknowledged > 0
        assert counts.kills == 3


@dataclass(frozen=True)
class State:
    """What a relay must keep or change as a whole."""

    size: int
    base: int
    next_push: int
    next_pop: int
    messages: list[tuple[int, str]]
    """(first_id, message) in the order of the numbers."""


# A relay runs five ALTER statements among its others. Each waits here, so that the relay is met in
# its midst however fast the machine is.
DAWDLE = """
    CREATE FUNCTION dawdle() RETURNS event_trigger LANGUAGE plpgsql
    AS $$ BEGIN PERFORM pg_sleep(0.03); END $$;
    CREATE EVENT TRIGGER dawdle ON ddl_command_start
    WHEN TAG IN ('ALTER SEQUENCE', 'ALTER TABLE') EXECUTE FUNCTION dawdle()
"""


@pytest.fixture
def slow_ring(own_server: EmbeddedServer) -> Iterator[Ring]:
    """A ring whose relays take at least 150 ms."""
    made = make_ring(own_server.create_database("slow_relay"), size=3000, max_bytes=300)
    with made.connect() as connection:
        connection.execute(DAWDLE)
    yield made
    made.close()


def test_a_relay_killed_at_any_moment_leaves_the_ring_before_or_after(
    own_server: EmbeddedServer, slow_ring: Ring, long: bool
) -> None:
    """By pg_terminate_backend, by SIGKILL of its backend, by SIGKILL of the server."""
    ring = slow_ring
    chance = random.Random(7)
    with ring.connect() as connection:
        for _ in range(2):
            ring.push_many(connection, [f"message {i} " + "y" * (i % 200) for i in range(1000)])
        for _ in range(700):
            ring.pop(connection)
        before = state(ring, connection)
    cut_off = 0
    for _ in range(60 if long else 8):
        how = chance.choice(["terminate", "terminate", "backend", "server"])
        cut_off += _relay_and_cut(own_server, ring, chance, how)
        wait_for_server(ring.url)
        with ring.connect() as connection:
            after = state(ring, connection)
        _compare(before, after)
        before = after
    assert cut_off, "no relay was ever cut off"
    ring.relay()
    drained = [(message.id, message.payload) for message in ring.drain()]
    assert drained == before.messages


def state(ring: Ring, connection: psycopg.Connection) -> State:
    """The ring as it stands."""
    now = ring.measure()
    live = ring.live(connection)
    assert all(slot == number % now.size for slot, number, _, _ in live)
    messages = [(first_id, text) for _, _, first_id, text in live]
    return State(now.size, now.base, now.next_push, now.next_pop, messages)


def _compare(before: State, after: State) -> None:
    assert after.messages == before.messages
    assert after.next_push >= before.next_push
    assert after.next_pop >= before.next_pop
    if after.base == before.base:
        assert after.size == before.size
    else:
        assert after.base >= max(before.next_push, before.next_pop)
        assert (after.next_push, after.next_pop) >= (after.base, after.base)


def _relay_and_cut(server: EmbeddedServer, ring: Ring, chance: random.Random, how: str) -> bool:
    """Start a relay to a random size, end it after a random time; whether it was cut off."""
    size = chance.randint(1400, 4000)
    with _relaying(ring, size) as (pid, failed):
        time.sleep(chance.uniform(0, 0.2))  # at any moment: nothing is proved by it
        if how == "server":
            server.kill()
        elif how == "terminate":
            with ring.connect() as connection:
                connection.execute("SELECT pg_terminate_backend(%s, 60000)", [pid])
        else:
            kill_session(ring.url, pid)
    if not server.running:
        server.restart()
    return bool(failed)


@contextmanager
def _relaying(ring: Ring, size: int) -> Iterator[tuple[int, list[str]]]:
    """A relay in a thread: its backend's pid, and its error where it was cut off."""
    failed: list[str] = []
    connection = ring.connect()
    pid = connection.info.backend_pid

    def run() -> None:
        try:
            connection.execute(ring.sql("SELECT * FROM {relay}(%s)"), [size])
        except psycopg.OperationalError as error:
            failed.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield pid, failed
    finally:
        thread.join()
        connection.close()
