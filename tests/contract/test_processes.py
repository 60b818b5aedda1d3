"""Producers and consumers in separate processes: every message once, intact, in order.

And where consumers wait for each other: what a pop returns that waited.
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from console.actions import pop, relay
from console.actions.pop import PoppedMessage
from console.designs import Order
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.messages import intact, sender
from tests.contract.variants import BEHAVIOURS, CORE, Variant, long_except
from tests.contract.workers import Consume, Outcome, Produce, WorkerPool
from tests.servers import execute, wait_until


@pytest.fixture(scope="session")
def count(long: bool) -> int:
    """Messages from each producer."""
    return 1000 if long else 100


@pytest.fixture(scope="session")
def share(count: int) -> float:
    """Share of transactions that are rolled back: few enough for the slots of a small ring.

    A rolled back pop leaves its message in the slot until a relay.
    """
    return 5 / count


def drain_rest(client: Client) -> list[PoppedMessage]:
    """The remaining messages: those of rolled back pops in a ring, after a relay."""
    if "relay" in client.queue.verbs:
        relay.relay(client.database, client.queue, None)
    return client.drain()


def check_each_once(client: Client, outcome: Outcome, rest: Sequence[PoppedMessage]) -> None:
    """Each acknowledged message was popped once, unchanged, with the id that push returned."""
    kind = client.queue.options["payload"]
    popped = [*outcome.messages, *rest]
    assert all(intact(kind, message.payload) for message in popped)
    times = Counter(sender(message.payload) for message in popped)
    assert {key: count for key, count in times.items() if count > 1} == {}
    assert set(times) == set(outcome.pushed)
    assert {sender(m.payload): m.id for m in popped} == outcome.pushed
    assert {message.attempts for message in popped} == {1}


def check_strict_order(outcome: Outcome) -> None:
    ids = [int(message.id) for message in outcome.messages]
    assert ids == sorted(ids)


def check_order_of_each_producer(outcome: Outcome) -> None:
    for producer in {producer for producer, _ in outcome.pushed}:
        senders = [sender(message.payload) for message in outcome.messages]
        numbers = [number for sent_by, number in senders if sent_by == producer]
        assert numbers == sorted(numbers)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("variant", long_except(CORE), ids=str)
def test_two_producers_and_two_consumers_deliver_each_message_once(
    client: Client, worker_pool: WorkerPool, variant: Variant, count: int, share: float
) -> None:
    url, queue = client.url, client.queue

    outcome = worker_pool.run(
        [
            Produce(url, queue, 0, count, rollbacks=share, late_commits=share),
            Produce(url, queue, 1, count, batch=7, rollbacks=share, late_commits=share),
        ],
        [
            Consume(url, queue, 0, rollbacks=share, late_commits=share),
            Consume(url, queue, 1, batch=5, rollbacks=share, late_commits=share),
        ],
    )

    rest = drain_rest(client)
    if "relay" not in queue.verbs:
        assert rest == []
    check_each_once(client, outcome, rest)
    if variant.order is Order.STRICT:
        check_strict_order(outcome)


IN_ORDER = [v for v in BEHAVIOURS if v.order in {Order.LAX, Order.STRICT, Order.SESSIONS}]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize("variant", IN_ORDER, ids=str)
def test_one_consumer_gets_the_messages_of_each_producer_in_their_order(
    client: Client, worker_pool: WorkerPool, batch: int, count: int, share: float
) -> None:
    url, queue = client.url, client.queue

    outcome = worker_pool.run(
        [
            Produce(url, queue, 0, count, batch=batch, rollbacks=share, late_commits=share),
            Produce(url, queue, 1, count, batch=batch, rollbacks=share),
        ],
        [Consume(url, queue, 0, batch=batch - 1, rollbacks=share)],
    )

    check_each_once(client, outcome, [])
    check_order_of_each_producer(outcome)


NUMBERED = [v for v in BEHAVIOURS if v.order in {Order.NUMBERS, Order.STRICT}]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("batch", [0, 5])
@pytest.mark.parametrize("variant", NUMBERED, ids=str)
def test_each_of_several_consumers_gets_its_messages_in_order_of_their_numbers(
    client: Client, worker_pool: WorkerPool, batch: int
) -> None:
    url, queue = client.url, client.queue
    filled = worker_pool.run([Produce(url, queue, n, 100, batch=3 * n + 1) for n in range(2)], [])

    emptied = worker_pool.run([], [Consume(url, queue, n, batch=batch) for n in range(3)])

    check_each_once(client, Outcome(filled.pushed, emptied.taken), [])
    for consumer in range(3):
        taken = [one for one in emptied.taken if one.consumer == consumer]
        ids = [int(message.id) for one in taken for message in one.messages]
        assert ids == sorted(ids)


WAITING = [v for v in BEHAVIOURS if v.waits]


def a_session_waits(client: Client) -> bool:
    query = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
    return bool(execute(client.url, query, [client.database.url.database]))


def pop_after_waiting(client: Client, batch: int, *, commits: bool) -> list[PoppedMessage]:
    """The messages of a pop that waited for another one while message 9 was pushed."""

    def take() -> list[PoppedMessage]:
        if batch:
            return client.pop_many(batch)
        return [message for message in [client.pop()] if message is not None]

    with ThreadPoolExecutor(1) as pool:
        with client.database.transaction("pop") as connection:
            popped = pop.pop_many(connection, client.queue, 2)
            assert len(popped) == 2
            second = pool.submit(take)
            wait_until(lambda: a_session_waits(client), "the second consumer waits")
            client.push(client.payload(9))
            if not commits:
                connection.rollback()
        return second.result(timeout=120)


@pytest.mark.parametrize("variant", WAITING, ids=str)
def test_a_pop_that_waited_gets_messages_pushed_or_rolled_back_meanwhile(
    use_postgresql: Use, variant: Variant, long: bool
) -> None:
    """If all messages in its snapshot were taken, it reads again before returning nothing."""
    client = use_postgresql(variant)
    for batch in (0, 1, 5) if long else (0, 5):
        client.push_many(client.payloads(0, 1))
        popped = pop_after_waiting(client, batch, commits=True)
        assert [message.payload for message in popped] == client.payloads(9)
        client.push_many(client.payloads(0, 1))
        popped = pop_after_waiting(client, batch, commits=False) + client.drain(1)
        assert [message.payload for message in popped] == client.payloads(0, 1, 9)
        assert {message.attempts for message in popped} == {1}
