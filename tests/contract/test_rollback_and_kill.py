"""Consumers that roll back or are killed: their messages can be popped again."""

from collections.abc import Sequence

import pytest

from console.actions import pop, push, relay
from console.actions.pop import Finish, PoppedMessage, PopResult
from console.designs import Flow, Order
from console.errors import UsageError
from tests.contract.client import Client
from tests.contract.variants import (
    BEHAVIOURS,
    CORE,
    DEFAULTS,
    SUBSCRIBED,
    Variant,
    long_except,
    with_subscribed_rings,
)
from tests.contract.workers import killed_client
from tests.servers import wait_until

pytestmark = pytest.mark.thinned(3)

WITHOUT_CLAIMS = [v for v in [*BEHAVIOURS, *SUBSCRIBED] if not v.finishes]
WITH_CLAIMS = [v for v in BEHAVIOURS if v.finishes]
KILLED = DEFAULTS + [v for v in WITH_CLAIMS if v not in DEFAULTS]


def consumes_numbers(client: Client) -> bool:
    """Whether a rolled back pop has consumed a number for nothing."""
    return client.queue.design.flow is Flow.NUMBERS


def expected_first(variant: Variant, client: Client, count: int) -> list[object]:
    """The payloads of 0..count-1 in the order in which they must be popped."""
    sent: list[object] = [*client.payloads(*range(count))]
    return sent[::-1] if variant.order is Order.LIFO else sent


def is_expected(
    variant: Variant, messages: Sequence[PoppedMessage], expected: Sequence[object]
) -> bool:
    payloads = [message.payload for message in messages]
    if variant.order is Order.NONE:
        return sorted(map(str, payloads)) == sorted(map(str, expected))
    return payloads == list(expected)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("variant", with_subscribed_rings(CORE, BEHAVIOURS), ids=str)
def test_messages_of_a_rolled_back_pop_are_popped_again(
    client: Client, variant: Variant, n: int
) -> None:
    ids = client.push_many(client.payloads(*range(5)))
    before = client.status()
    with client.database.transaction("pop") as connection:
        popped = pop.pop_many(connection, client.queue, n)
        assert len(popped) == n
        connection.rollback()

    if consumes_numbers(client):
        after = client.status()
        assert after.next_pop == (before.next_pop or 0) + n
        assert after.ready == 5 - n  # the others are orphans now: no pop will fetch them
        relay.relay(client.database, client.queue, None)
    drained = client.drain(2)
    assert is_expected(variant, drained, expected_first(variant, client, 5))
    assert {message.id for message in drained} == set(ids)
    assert {message.attempts for message in drained} == {1}


@pytest.mark.parametrize("variant", with_subscribed_rings(CORE, BEHAVIOURS), ids=str)
def test_messages_of_a_rolled_back_push_are_never_popped(client: Client) -> None:
    client.push(client.payload(0))
    with client.database.transaction("push") as connection:
        push.push(connection, client.queue, client.payload(1))
        push.push_many(connection, client.queue, client.payloads(2, 3))
        connection.rollback()
    client.push(client.payload(4))

    popped = [message.payload for message in client.drain(1)]

    assert set(popped) == set(client.payloads(0, 4))
    assert len(popped) == 2


@pytest.mark.parametrize("variant", WITHOUT_CLAIMS, ids=str)
def test_messages_that_the_reader_could_not_store_are_popped_again(
    client: Client, variant: Variant
) -> None:
    client.push_many(client.payloads(*range(5)))
    with pytest.raises(UsageError, match="keeps no popped messages"):
        pop.pop(client.database, client.queue, lambda _: None, finish=Finish.FAIL)

    def broken_pipe(messages: Sequence[PoppedMessage]) -> None:
        assert len(messages) == 3
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        pop.pop(client.database, client.queue, broken_pipe, count=3)

    assert client.status().ready == 5
    single = client.pop()
    assert single is not None
    assert is_expected(variant, [single, *client.drain(2)], expected_first(variant, client, 5))


@pytest.mark.parametrize("variant", WITH_CLAIMS, ids=str)
def test_messages_that_the_reader_could_not_store_stay_claimed(client: Client) -> None:
    client.push_many(client.payloads(*range(5)))
    delivered: list[PoppedMessage] = []

    def broken_pipe(messages: Sequence[PoppedMessage]) -> None:
        delivered.extend(messages)
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        pop.pop(client.database, client.queue, broken_pipe, count=3, finish=Finish.COMPLETE)

    status = client.status()
    assert (status.ready, status.claimed) == (2, 3)
    assert all(client.complete(message) for message in delivered)


@pytest.mark.parametrize("variant", with_subscribed_rings(CORE, BEHAVIOURS), ids=str)
def test_pop_ends_with_its_count_or_with_the_queue(client: Client, variant: Variant) -> None:
    client.push_many(client.payloads(*range(5)))
    kept: list[PoppedMessage] = []
    finish = Finish.COMPLETE if variant.finishes else Finish.NOTHING

    first = pop.pop(client.database, client.queue, kept.extend, count=2, finish=finish)
    second = pop.pop(client.database, client.queue, kept.extend, count=9, finish=finish)
    third = pop.pop(client.database, client.queue, kept.extend, count=9, wait_seconds=0.05)

    assert first == PopResult(2, 2 if variant.finishes else 0)
    assert second == PopResult(3, 3 if variant.finishes else 0)
    assert third == PopResult(0)
    assert is_expected(variant, kept, expected_first(variant, client, 5))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("variant", long_except(DEFAULTS, KILLED), ids=str)
def test_messages_of_a_client_killed_in_mid_transaction_are_popped_again(client: Client) -> None:
    ids = client.push_many(client.payloads(*range(5)))

    held = killed_client(client.url, client.queue, commit=False, n=3)

    assert len(held.popped) == 3
    if consumes_numbers(client):
        relay.relay(client.database, client.queue, None)
    popped_again: list[PoppedMessage] = []

    def all_popped() -> bool:
        popped_again.extend(client.pop_many(5 - len(popped_again)))
        return len(popped_again) == 5

    wait_until(all_popped, "the messages of a killed consumer are back")
    assert {message.id for message in popped_again} == set(ids)
    assert {message.payload for message in popped_again} == set(client.payloads(*range(5)))
    assert client.pop() is None  # its own push was rolled back
    client.push(client.payload(5))
    assert [message.payload for message in client.drain()] == client.payloads(5)


@pytest.mark.parametrize(
    "variant", long_except((v for v in DEFAULTS if v.finishes), WITH_CLAIMS), ids=str
)
def test_a_consumer_that_is_killed_after_its_commit_leaves_its_claims(client: Client) -> None:
    client.push_many(client.payloads(*range(3)))

    held = killed_client(client.url, client.queue, commit=True, n=3)

    assert [message.payload for message in held.popped] == client.payloads(*range(3))
    (its_own,) = client.pop_many(5)
    assert its_own.id == held.pushed[0]
    assert client.status().claimed == 4
    first, second, third = held.popped
    # Any caller that knows the claim can finish it, once.
    assert client.complete(first)
    assert client.fail(second, "the consumer died")
    assert not client.complete(second)
    status = client.status(stuck_after_seconds=0.0)
    assert (status.claimed, status.stuck, status.errors) == (2, 2, 1)
    assert client.complete(third)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("variant", [v for v in DEFAULTS if not v.finishes], ids=str)
def test_messages_of_a_consumer_killed_after_its_commit_are_not_popped_again(
    client: Client,
) -> None:
    client.push_many(client.payloads(*range(3)))

    held = killed_client(client.url, client.queue, commit=True, n=3)

    assert len(held.popped) == 3
    assert [message.id for message in client.drain()] == held.pushed
