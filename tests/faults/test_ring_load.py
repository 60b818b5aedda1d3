"""Resized under load, calls rolled back, commits that come late: nothing lost, nothing doubled."""

import random
import time
from collections.abc import Iterator

import psycopg
import pytest

from tests.faults.ring_campaign import (
    Clients,
    clients,
    settle,
    traffic,
    try_relay,
    wait_for_progress,
)
from tests.faults.ring_tools import Ring, make_ring


@pytest.fixture
def ring(database_url: str) -> Iterator[Ring]:
    """A ring for a campaign."""
    made = make_ring(database_url, size=100, max_bytes=300)
    yield made
    made.close()


def test_resized_many_times_under_load(ring: Ring, long: bool) -> None:
    """Larger and smaller, with transactions of up to 6 calls and savepoints, 2 % rolled back."""
    chance = random.Random(11)
    with clients(ring.url) as of:
        traffic(of, ring, chance)
        sizes = {ring.measure().size}
        relays = 0
        deadline = time.monotonic() + 300
        while relays < (100 if long else 8):
            relaid = try_relay(ring, chance)
            if relaid is not None:
                assert relaid.size_before in sizes
                sizes.add(relaid.size_after)
                relays += 1
            assert time.monotonic() < deadline, f"only {relays} relays"
            wait_for_progress(of, 2_000)
        counts = settle(of, ring, relays=relays, kills=0)
    assert (counts.in_doubt, counts.lost, counts.doubled) == (0, 0, 0)
    assert counts.acknowledged > 0
    assert len(sizes) > 3


def test_orphans_of_rolled_back_pops_are_mended_by_parking_them(ring: Ring, long: bool) -> None:
    """The online repair: no relay and no lock, and everything comes out once."""
    chance = random.Random(12)
    with clients(ring.url) as of:
        _many_rollbacks(of, ring, chance, 300_000 if long else 100_000)
        of.finish()
        with ring.connect() as connection:
            drained = [message.payload for message in ring.drain()]
            assert ring.live(connection), "no call was rolled back: nothing to repair"
            assert ring.park_orphans(connection) == len(ring.live(connection))
            drained += [message.payload for message in ring.drain()]
            assert not ring.live(connection)
            assert ring.park_orphans(connection) == 0
        ledger = of.ledger()
    assert not ledger.errors, ledger.errors[:5]
    counts = ledger.settle(drained)
    assert (counts.in_doubt, counts.lost, counts.doubled) == (0, 0, 0)


def _many_rollbacks(of: Clients, ring: Ring, chance: random.Random, logged_bytes: int) -> None:
    for calls in (["push", "push_many"], ["pop", "pop_many"]) * 3:
        seed = chance.randrange(2**32)
        of.start(calls, rings=[ring.queue.name], seed=seed, rolled_back=0.05)
    wait_for_progress(of, logged_bytes)


def test_a_late_commit_is_popped_late_exactly_so(ring: Ring) -> None:
    """The order is that of the numbers as pops reach them: no pop waits for an open push."""
    with ring.connect() as early, ring.connect() as late, ring.connect() as popper:
        early.execute("BEGIN")
        assert ring.push(early, "drawn first, committed last") == 1
        late.execute("BEGIN")
        assert ring.push(late, "drawn second, committed second") == 2
        assert ring.push(popper, "drawn third, committed first") == 3

        # Numbers 1 and 2 are drawn by the pop, their messages are not there: both are parked.
        assert _popped(ring, popper) == [3]
        assert ring.parked(popper) == {(1, False), (2, False)}
        assert _popped(ring, popper) == []
        late.execute("COMMIT")
        assert ring.push(popper, "drawn fourth") == 4
        assert _popped(ring, popper) == [2], "a parked number goes first"
        early.execute("COMMIT")
        assert _popped(ring, popper) == [1]
        assert _popped(ring, popper) == [4]
        assert _popped(ring, popper) == []
        assert ring.parked(popper) == set()


def test_commits_in_any_order_come_out_in_the_order_of_numbers(ring: Ring) -> None:
    """When all are there before the first pop, nobody sees who committed first."""
    sessions = [ring.connect() for _ in range(8)]
    for number, session in enumerate(sessions, 1):
        session.execute("BEGIN")
        assert ring.push(session, str(number)) == number
    chance = random.Random(13)
    for session in chance.sample(sessions, len(sessions)):
        session.execute("COMMIT")
    with ring.connect() as popper:
        assert [message.id for message in ring.pop_many(popper, 3)] == [1, 2, 3]
        assert _popped(ring, popper) == [4]
        assert [message.id for message in ring.pop_many(popper, 100)] == [5, 6, 7, 8]
    for session in sessions:
        session.close()


def test_a_late_batch_is_popped_late_and_in_its_order(ring: Ring) -> None:
    """pop_many parks what is not there and returns what is; later the batch comes sorted."""
    with ring.connect() as late, ring.connect() as popper:
        late.execute("BEGIN")
        assert ring.push_many(late, ["a", "b", "c"]) == [1, 2, 3]
        assert ring.push_many(popper, ["d", "e"]) == [4, 5]
        assert [message.id for message in ring.pop_many(popper, 10)] == [4, 5]
        assert ring.parked(popper) == {(1, False), (2, False), (3, False)}
        assert ring.push(popper, "f") == 6
        late.execute("COMMIT")
        assert [message.payload for message in ring.pop_many(popper, 10)] == ["a", "b", "c", "f"]
        assert ring.parked(popper) == set()


def _popped(ring: Ring, connection: psycopg.Connection) -> list[int]:
    message = ring.pop(connection)
    return [message.id] if message else []
