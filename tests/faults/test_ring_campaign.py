"""Traffic on rings with kills, relays and repairs, and its counts; two rings; killed relays."""

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pytest

from console.features.demo.embedded import EmbeddedServer
from tests.contract.traffic import at_work
from tests.faults.harness.clients import clients, settle
from tests.faults.harness.ring import Make, Ring, make_ring, wait_for_server
from tests.faults.ring_campaign import OPTIONS, campaign
from tests.servers import kill_session, wait_until


@pytest.mark.parametrize(
    "subscribers",
    [0, 2, pytest.param(1, marks=pytest.mark.long), pytest.param(5, marks=pytest.mark.long)],
)
def test_each_subscriber_gets_each_message_once(
    own_server: EmbeddedServer, subscribers: int, *, long: bool
) -> None:
    """While the server, a session and clients are killed, and relays change the size."""
    short = [0 if subscribers else 1]  # the doctor's repairs, below, are of seed 0
    for seed in range(2 * len(OPTIONS)) if long else short:
        options = OPTIONS[seed % len(OPTIONS)]
        results = campaign(own_server, seed, 2 if long else 0.5, subscribers, None, **options)
        assert len(results) == subscribers + 1
        assert all(counts.acknowledged > 0 for counts in results.values())
        assert {counts.kills for counts in results.values()} == {4}


@pytest.mark.parametrize("subscribers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_repairs_under_traffic_lose_and_double_nothing(
    own_server: EmbeddedServer, subscribers: int, *, long: bool
) -> None:
    """The doctor, instead of relays, repairs what rollbacks and the same kills leave behind."""
    repairs: Counter[str] = Counter()

    def repair(ring: Ring) -> None:
        repairs["done"] += ring.try_repairs()

    for seed in range(9 if long else 1):
        results = campaign(own_server, seed, 2 if long else 0.5, subscribers, repair)
        assert all(counts.acknowledged > 0 for counts in results.values())
    assert repairs["done"]


ROW_WAIT = re.compile(r"waiting for \w+ on (?:transaction|tuple)")


@pytest.mark.parametrize("relays", [pytest.param(False, marks=pytest.mark.long), True])
def test_calls_neither_deadlock_nor_wait_for_rows(
    own_server: EmbeddedServer, long: bool, relays: bool
) -> None:
    """Calls and rings in random order; the rings are small, so they become full and empty."""
    url = own_server.create_database(f"deadlocks_{time.monotonic_ns()}")
    rings = [make_ring(url, name, size=25, max_bytes=300) for name in ("a", "b")]
    log = _log_from_now(own_server)
    # After this time of waiting the server searches for a deadlock, and logs the wait; by default
    # after a second. A relay waits up to 200 ms for earlier callers, while others wait for it, and
    # then gives up after 10 ms per lock that they still hold, as after ROLLBACK TO SAVEPOINT. Until
    # then it looks like a deadlock and is none.
    patience = "-c log_lock_waits=on -c deadlock_timeout=" + ("500ms" if relays else "1ms")
    with clients(url, 21, options=patience) as workers:
        for calls, count in (
            (["push", "pop", "push_many", "pop_many"], 4),
            (["push"], 1),
            (["pop"], 1),
        ):
            workers.start(calls, "a", "b", count=count, rolled_back=0.03, largest_transaction=8)
        workers.wait_for_progress(10_000)
        done = Counter(dict.fromkeys(["a", "b"] * relays, 0))

        def relay_repeatedly(ring: Ring, chance: random.Random) -> Iterator[None]:
            while True:  # one that gets no lock in time is not an error
                done[ring.queue.name] += ring.try_relay(chance) is not None
                yield

        work = [relay_repeatedly(ring, random.Random(22)) for ring in rings if relays]
        with at_work(iter(()), *work, pause_seconds=0.05) as running:
            workers.wait_for_progress(6_000_000 if long else 150_000)
            wait_until(
                lambda: all(done.values()) or any(one.done() for one in running[1:]), "relays"
            )
        counts = settle(workers, *rings)
    assert (counts.in_doubt, counts.lost, counts.doubled) == (0, 0, 0)
    text = log()
    assert "deadlock detected" not in text
    assert not ROW_WAIT.search(text), ROW_WAIT.findall(text)[:5]
    for ring in rings:
        ring.close()


def _log_from_now(server: EmbeddedServer) -> Callable[[], str]:
    assert server.folder is not None
    path = server.folder / "postgresql.log"
    start = path.stat().st_size
    return lambda: path.read_bytes()[start:].decode(errors="replace")


@pytest.mark.parametrize("first", ["pop", "pop_many", "push", "push_many"])
def test_rows_locked_by_another_session_are_skipped(make: Make, first: str) -> None:
    """Slots and parked rows are locked by an open transaction: every call returns at once."""
    ring = make(size=8)
    with ring.connect() as holder, ring.connect("lock_timeout = '1ms'") as caller:
        assert ring.push_many(list("abcd"), on=caller) == [1, 2, 3, 4]
        rows = "INSERT INTO {parked} VALUES (1, true, now()), (2, true, now()), (2, false, now())"
        caller.execute(ring.sql(rows))
        # Number 5 is parked, as by an early pop: the push that cannot use it finds it parked.
        caller.execute(ring.sql("INSERT INTO {parked} VALUES (5, false, now())"))
        holder.execute("BEGIN")
        holder.execute(ring.sql("SELECT FROM {ring} FOR UPDATE"))
        holder.execute(ring.sql("SELECT FROM {parked} FOR UPDATE"))
        calls: dict[str, Callable[[], object]] = {
            "pop": lambda: ring.pop(on=caller) is None,
            "pop_many": lambda: ring.pop_many(3, on=caller) == [],
            "push": lambda: ring.push("e", on=caller) is None,
            "push_many": lambda: ring.push_many(["f", "g"], on=caller) == [None, None],
        }
        for call in (first, *calls):
            assert calls[call](), call
        holder.execute("ROLLBACK")
        ring.relay()
        assert ring.texts() == list("abcd")


@dataclass(frozen=True)
class State:
    """What a relay must keep, or change completely."""

    size: int
    base: int
    next_push: int
    next_pop: int
    messages: list[tuple[int, str]]
    """(first_id, message) in the order of the numbers."""


# A relay contains five ALTER statements. A delay in each makes sure that it is killed while it
# runs, however fast the machine is.
DELAY_DDL = """
    CREATE FUNCTION dawdle() RETURNS event_trigger LANGUAGE plpgsql
    AS $$ BEGIN PERFORM pg_sleep(0.03); END $$;
    CREATE EVENT TRIGGER dawdle ON ddl_command_start
    WHEN TAG IN ('ALTER SEQUENCE', 'ALTER TABLE') EXECUTE FUNCTION dawdle()
"""


@pytest.fixture
def slow_ring(own_server: EmbeddedServer) -> Iterator[Ring]:
    """A ring whose relays take at least 150 ms."""
    made = make_ring(own_server.create_database("slow_relay"), size=3000, max_bytes=300)
    made.session.execute(DELAY_DDL)
    yield made
    made.close()


def test_a_relay_killed_at_any_time_is_complete_or_undone(
    own_server: EmbeddedServer, slow_ring: Ring, long: bool
) -> None:
    """By pg_terminate_backend, by SIGKILL of its backend, by SIGKILL of the server."""
    ring = slow_ring
    chance = random.Random(16)  # has each way to end it among the first four
    for _ in range(2):
        ring.push_many([f"message {i} " + "y" * (i % 200) for i in range(1000)])
    for _ in range(700):
        ring.pop()
    before = state(ring)
    cut_off = 0
    for _ in range(60 if long else 4):
        how = chance.choice(["terminate", "terminate", "backend", "server"])
        cut_off += _relay_and_cut(own_server, ring, chance, how)
        wait_for_server(ring.url)
        after = state(ring)
        _compare(before, after)
        before = after
    assert cut_off, "no relay was ever cut off"
    ring.relay()
    drained = [(message.id, message.payload) for message in ring.drain()]
    assert drained == before.messages


def state(ring: Ring) -> State:
    """The current state of the ring."""
    now = ring.measure()
    live = ring.live()
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
        time.sleep(chance.uniform(0, 0.2))  # a random moment, nothing to wait for
        if how == "server":
            server.kill()
        elif how == "terminate":
            ring.session.execute("SELECT pg_terminate_backend(%s, 60000)", [pid])
        else:
            kill_session(ring.url, pid)
    if not server.running:
        server.restart()
    return bool(failed)


@contextmanager
def _relaying(ring: Ring, size: int) -> Iterator[tuple[int, list[str]]]:
    """Run a relay in a thread: its backend's pid, and its error if it was cut off."""
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
