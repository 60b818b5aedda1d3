"""Resized under load, calls rolled back, commits that come late: nothing lost, nothing doubled."""

import random
import time

import psycopg
import pytest

from tests.faults.ring_campaign import (
    clients,
    settle,
    traffic,
    try_relay,
    wait_for_progress,
)
from tests.faults.ring_tools import Make, Ring


@pytest.fixture
def ring(make: Make) -> Ring:
    """A ring for a campaign."""
    return make(size=100, max_bytes=300)


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


def _popped(ring: Ring, connection: psycopg.Connection) -> list[int]:
    message = ring.pop(connection)
    return [message.id] if message else []
