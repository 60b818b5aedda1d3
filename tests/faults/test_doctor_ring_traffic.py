"""The doctor on a ring in use: no false alarms, and exactly the results of random faults."""

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from console.errors import BusyError
from console.features.demo.embedded import EmbeddedServer
from tests.contract.traffic import at_work
from tests.faults.doctor_campaign import Tally, campaign
from tests.faults.harness.clients import CONSUMER, PRODUCER, clients
from tests.faults.harness.ring import Make, Ring, make_ring, wait_for_server

pytestmark = pytest.mark.slow


@contextmanager
def repeated(*works: Callable[[int], None]) -> Iterator[Counter[str]]:
    """Run each repeatedly in its own thread; how often each was run."""
    done: Counter[str] = Counter()

    def repeat(work: Callable[[int], None]) -> Iterator[None]:
        for turn in itertools.count():
            work(turn)
            done[work.__name__] += 1
            yield

    with at_work(*map(repeat, works)):
        yield done
    assert all(done[work.__name__] for work in works), done


def backlog(ring: Ring, batches: int) -> None:
    """Push messages that are two hours old, 500 per batch."""
    for _ in range(batches):
        assert None not in ring.push_many(["old"] * 500)
    aged = "UPDATE {ring} SET time = time - interval '2 h' WHERE reference_count > 0"
    ring.execute(aged)


def test_heavy_healthy_traffic_raises_no_alarm(own_server: EmbeddedServer, long: bool) -> None:
    """A backlog, late commits, prepared transactions, waiting pops, resizes of an idle ring."""
    url = own_server.create_database("silence")
    rings = [make_ring(url, name, size=20_000, max_bytes=300) for name in ("busy", "idle")]
    busy, idle = rings
    chance = random.Random(5)
    with ExitStack() as stack:
        sessions = [stack.enter_context(busy.connect()) for _ in range(3)]
        backlog(busy, 6)
        workers = stack.enter_context(clients(url, chance))
        for name, producers, consumers in (("busy", 2, 3), ("idle", 1, 2)):
            workers.start(PRODUCER, name, count=producers)
            workers.start(CONSUMER, name, count=consumers)
        workers.wait_for_progress(5_000)

        def commit_late(_: int) -> None:
            with sessions[0].transaction():
                busy.push("late", on=sessions[0])
                busy.pop_many(3, on=sessions[0])
                time.sleep(0.2)  # the delay itself, not a wait for anything

        def prepare(turn: int) -> None:
            sessions[1].execute("BEGIN")
            busy.pop(on=sessions[1])
            busy.push("prepared", on=sessions[1])
            sessions[1].execute(f"PREPARE TRANSACTION 'in flight {turn}'")
            time.sleep(0.1)
            sessions[1].execute(f"COMMIT PREPARED 'in flight {turn}'")

        def wait_for_more(_: int) -> None:
            idle.pop_many(50, on=sessions[2])

        def resize(_: int) -> None:
            with suppress(BusyError):
                idle.relay(chance.randint(18_000, 22_000))
            time.sleep(0.5)  # relays only now and then, so that callers progress

        with repeated(commit_late, prepare, wait_for_more, resize):
            until = time.monotonic() + (600 if long else 1)
            while time.monotonic() < until:
                for ring in rings:
                    findings, unseen = ring.examine()
                    assert [finding.summary for finding in findings] == []
                    assert unseen == []
        workers.finish()
        assert workers.ledger()
    own_server.restart()
    for ring in rings:
        wait_for_server(url)
        assert ring.findings() == {}
        ring.drain()
        assert ring.findings() == {}
        ring.close()


@pytest.mark.long
def test_traffic_of_two_subscribers_raises_no_alarm(
    rings_url: str, make: Make, *, long: bool
) -> None:
    """Including late commits of one of them."""
    ring = make(size=2_000, max_bytes=300, subscribers="a,b")
    with ring.connect() as connection, clients(rings_url) as workers:
        workers.start(PRODUCER, ring.queue.name)
        for subscriber in ("a", "b", "b"):
            workers.start(CONSUMER, ring.queue.name, subscriber=subscriber)
        workers.wait_for_progress(1_000)
        for _ in range(200 if long else 3):
            connection.execute("BEGIN")
            ring.of("b").pop_many(3, on=connection)
            workers.wait_for_progress(500)
            held, _ = ring.examine(patience_seconds=0.1)
            connection.execute("COMMIT")
            found, unseen = ring.examine()
            alarms = [one.summary for one in (*held, *found) if one.code.name != "filling"]
            assert alarms == []
            assert unseen == []
        workers.finish()
        assert workers.ledger()


@pytest.mark.parametrize("subscribers", [False, pytest.param(True, marks=pytest.mark.long)])
def test_random_faults_are_found_and_repaired(
    own_server: EmbeddedServer, own_rings_url: str, subscribers: bool, long: bool
) -> None:
    """Every lost number is named by a finding, a healthy one by none; of one to three subscribers,
    with its subscriber."""
    total = Tally()
    most = 60 if long else 30
    seeds = range(2, 62) if subscribers else range(1, 201)
    for seed in seeds if long else (2, 7):  # with both kinds of ring, crashes and traffic
        total.add(campaign(own_server, own_rings_url, seed, most, subscribers * (1 + seed % 3)))
    assert total.wrong == []
    assert total.counts["acknowledged"] > 0
    assert total.counts["orphan"] > 0
    assert total.counts["hole"] + total.counts["parked_hole"] > 0
    assert any(step.startswith("kill -9") for step in total.steps)
