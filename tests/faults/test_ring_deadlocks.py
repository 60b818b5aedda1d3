"""Callers in larger transactions on two rings, relays between: no deadlock, no wait for a row."""

import random
import re
import threading
import time
from collections.abc import Callable

import pytest

from console.engines.embedded import EmbeddedServer
from tests.faults.ring_campaign import (
    clients,
    relay_and_drain,
    try_relay,
    wait_for_progress,
)
from tests.faults.ring_tools import Make, Ring, make_ring
from tests.servers import wait_until

ROW_WAIT = re.compile(r"waiting for \w+ on (?:transaction|tuple)")


@pytest.mark.parametrize("relays", [pytest.param(False, marks=pytest.mark.long), True])
def test_no_deadlock_and_no_wait_for_a_row(
    own_server: EmbeddedServer, long: bool, relays: bool
) -> None:
    """Random order of calls and rings; the rings are small, so full, empty and lapped."""
    url = own_server.create_database(f"deadlocks_{time.monotonic_ns()}")
    rings = [make_ring(url, name, size=25, max_bytes=300) for name in ("a", "b")]
    log = _log_from_now(own_server)
    chance = random.Random(21)
    # A lock wait of that length is searched for a deadlock and written into the server's log.
    # A relay waits 200 ms for the callers before it, who have others behind it, and then gives up
    # after 10 ms each of what they hold all the same, as after ROLLBACK TO SAVEPOINT: what looks
    # like a deadlock until then is none. A server searches for one after a second, unless told.
    patience = "-c log_lock_waits=on -c deadlock_timeout=" + ("500ms" if relays else "1ms")
    with clients(url, patience) as of:
        for calls in (["push", "pop", "push_many", "pop_many"],) * 4 + (["push"], ["pop"]):
            seed = chance.randrange(2**32)
            of.start(calls, rings=["a", "b"], seed=seed, rolled_back=0.03, largest_transaction=8)
        wait_for_progress(of, 10_000)
        stop = threading.Event()
        relayers = [_Relayer(ring, random.Random(22), stop) for ring in rings if relays]
        for relayer in relayers:
            relayer.start()
        wait_for_progress(of, 6_000_000 if long else 150_000)
        wait_until(lambda: all(relayer.relays or relayer.error for relayer in relayers), "relays")
        stop.set()
        for relayer in relayers:
            relayer.join()
        of.finish()
        drained = [payload for ring in rings for payload in relay_and_drain(ring)]
        ledger = of.ledger()
    assert not [relayer.error for relayer in relayers if relayer.error]
    assert all(relayer.relays > 0 for relayer in relayers)
    assert not ledger.errors, ledger.errors[:5]
    counts = ledger.settle(drained)
    assert (counts.in_doubt, counts.lost, counts.doubled) == (0, 0, 0)
    told = log()
    assert "deadlock detected" not in told
    assert not ROW_WAIT.search(told), ROW_WAIT.findall(told)[:5]
    for ring in rings:
        ring.close()


class _Relayer(threading.Thread):
    """Relays one ring again and again; a relay that is not to be had in time is no error."""

    def __init__(self, ring: Ring, chance: random.Random, stop: threading.Event) -> None:
        super().__init__()
        self._ring = ring
        self._chance = chance
        self._stop_asked = stop
        self.relays = 0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while not self._stop_asked.wait(0.05):
                self.relays += try_relay(self._ring, self._chance) is not None
        except Exception as error:  # noqa: BLE001 (told by the test)
            self.error = error


def _log_from_now(server: EmbeddedServer) -> Callable[[], str]:
    assert server.folder is not None
    path = server.folder / "postgresql.log"
    start = path.stat().st_size
    return lambda: path.read_bytes()[start:].decode(errors="replace")


@pytest.mark.parametrize("first", ["pop", "pop_many", "push", "push_many"])
def test_a_row_that_another_session_holds_is_stepped_over(make: Make, first: str) -> None:
    """Slots and parked rows locked by open transactions: every call answers without waiting."""
    ring = make(size=8)
    with ring.connect() as holder, ring.connect("lock_timeout = '1ms'") as caller:
        assert ring.push_many(caller, list("abcd")) == [1, 2, 3, 4]
        rows = "INSERT INTO {parked} VALUES (1, true, now()), (2, true, now()), (2, false, now())"
        caller.execute(ring.sql(rows))
        # Number 5 is parked, as by a pop that came early: the push that cannot use it finds it so.
        caller.execute(ring.sql("INSERT INTO {parked} VALUES (5, false, now())"))
        holder.execute("BEGIN")
        holder.execute(ring.sql("SELECT FROM {ring} FOR UPDATE"))
        holder.execute(ring.sql("SELECT FROM {parked} FOR UPDATE"))
        calls: dict[str, Callable[[], object]] = {
            "pop": lambda: ring.pop(caller) is None,
            "pop_many": lambda: ring.pop_many(caller, 3) == [],
            "push": lambda: ring.push(caller, "e") is None,
            "push_many": lambda: ring.push_many(caller, ["f", "g"]) == [None, None],
        }
        for call in (first, *calls):
            assert calls[call](), call
        holder.execute("ROLLBACK")
        ring.relay()
        assert ring.texts() == list("abcd")
