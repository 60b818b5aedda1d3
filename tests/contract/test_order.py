"""The order that each design guarantees, also during a transaction that stays open."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from sqlalchemy import Connection

from console.actions import pop, push
from console.actions.pop import PoppedMessage
from console.actions.push import Payload
from console.designs import Order
from console.engines import Database, Timeouts, open_database
from console.errors import BusyError
from tests.contract.client import Client
from tests.contract.variants import (
    BEHAVIOURS,
    CORE,
    SUBSCRIBED,
    Variant,
    long_except,
    with_subscribed_rings,
)

pytestmark = pytest.mark.thinned(3)

ONE_SUBSCRIBER = next(v for v in SUBSCRIBED if v.given["subscribers"] == "a")
STRICT = [v for v in BEHAVIOURS if v.order is Order.STRICT]
NOT_STRICT = [v for v in BEHAVIOURS if v.order not in {Order.STRICT, Order.NUMBERS}]
LONG = pytest.mark.long
NUMBERED = [v for v in BEHAVIOURS if v.order is Order.NUMBERS]


@pytest.fixture
def impatient(database: Database) -> Iterator[Database]:
    """The same database through connections that raise BusyError instead of waiting for locks."""
    url = database.url.render_as_string(hide_password=False)
    other = open_database(url, timeouts=Timeouts(lock_seconds=0.2))
    yield other
    other.close()


def on_database(client: Client, database: Database) -> Client:
    """The same queue through another connection pool."""
    return Client(database, client.queue)


def push_in(connection: Connection, client: Client, payload: Payload) -> str | None:
    return push.push(connection, client.queue, payload)


def pop_in(connection: Connection, client: Client, n: int = 1) -> list[PoppedMessage]:
    return pop.pop_many(connection, client.queue, n)


def payloads_of(messages: list[PoppedMessage]) -> list[Payload]:
    return [message.payload for message in messages]


@pytest.mark.parametrize(
    "batch", [0, 7, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 1000))]
)
@pytest.mark.parametrize("variant", with_subscribed_rings(CORE, BEHAVIOURS), ids=str)
def test_a_filled_queue_is_emptied_in_its_order(
    client: Client, single_connection: Database, variant: Variant, batch: int
) -> None:
    sent = client.payloads(*range(40))
    producer = on_database(client, single_connection)
    for payload in sent[:10]:
        producer.push(payload)
    producer.push_many(sent[10:35])
    producer.push_many(sent[35:])

    if batch:
        popped = client.drain(batch)
    else:
        popped = [m for m in (client.pop() for _ in sent) if m is not None]

    if variant.order is Order.LIFO:
        sent.reverse()
    if variant.order is Order.NONE:
        assert sorted(map(str, payloads_of(popped))) == sorted(map(str, sent))
    else:
        assert payloads_of(popped) == sent
    assert client.pop() is None
    # Alternately: a model of the queue predicts each pop.
    model: list[Payload] = []
    for step in range(8):
        new = client.payloads(*range(3 * step, 3 * step + 3))
        producer.push_many(new)
        model += new
        if variant.order is Order.LIFO:
            expected = [model.pop(), model.pop()]
        else:
            expected, model = model[:2], model[2:]

        popped = producer.pop_many(2)

        if variant.order is Order.NONE:
            assert len(popped) == 2
        else:
            assert payloads_of(popped) == expected


@pytest.mark.parametrize(
    "variant", long_except([*CORE, ONE_SUBSCRIBER], [*BEHAVIOURS, ONE_SUBSCRIBER]), ids=str
)
def test_a_pop_during_an_open_pop_skips_or_waits_and_never_duplicates(
    client: Client, impatient: Database, variant: Variant
) -> None:
    client.push_many(client.payloads(0, 1, 2))
    other = on_database(client, impatient)

    with client.database.transaction("pop") as connection:
        popped = pop_in(connection, client)
        assert len(popped) == 1
        if variant.waits:
            with pytest.raises(BusyError):
                other.pop_many(1)
        elif variant.hides:
            assert other.pop_many(1) == []
        else:
            popped += other.pop_many(1)
            assert len(popped) == 2
    popped += client.drain()

    assert sorted(map(str, payloads_of(popped))) == sorted(map(str, client.payloads(0, 1, 2)))


@pytest.mark.parametrize("variant", STRICT, ids=str)
def test_strict_order_is_kept_by_a_late_commit_and_a_rolled_back_pop(
    client: Client, impatient: Database, variant: Variant
) -> None:
    """They block the next push, or else the next pop."""
    other = on_database(client, impatient)
    holds = variant.holds_pushes(client.database.product.name)
    pushes_wait = pytest.raises(BusyError) if holds else nullcontext()
    with client.database.transaction("push") as connection:
        push_in(connection, client, client.payload(0))
        with pushes_wait:
            other.push(client.payload(1))
        with pushes_wait:
            other.push_many(client.payloads(2, 3))
        if holds:
            assert other.pop_many(5) == []
        else:
            with pytest.raises(BusyError):
                other.pop_many(5)
            with pytest.raises(BusyError):
                other.pop()
    client.push(client.payload(4))

    pushed = (0, 4) if holds else (0, 1, 2, 3, 4)
    assert payloads_of(client.drain()) == client.payloads(*pushed)
    # A pop that is rolled back is not overtaken either.
    client.push_many(client.payloads(5, 6, 7))
    with client.database.transaction("pop") as connection:
        assert payloads_of(pop_in(connection, client)) == client.payloads(5)
        with pytest.raises(BusyError):
            other.pop()
        connection.rollback()
    assert payloads_of(client.drain(1)) == client.payloads(5, 6, 7)


@pytest.mark.parametrize("variant", NOT_STRICT, ids=str)
def test_a_late_commit_is_overtaken_or_waited_for_and_not_lost(
    client: Client, impatient: Database, variant: Variant
) -> None:
    popped: list[Payload] = []
    with client.database.transaction("push") as connection:
        push_in(connection, client, client.payload(0))
        client.push(client.payload(1))
        if variant.waits_for_pushes(client.database.product.name):
            with pytest.raises(BusyError):
                on_database(client, impatient).pop_many(5)
        else:
            popped += payloads_of(client.drain())
            assert popped == client.payloads(1)
    client.push(client.payload(2))
    popped += payloads_of(client.drain())

    assert sorted(map(str, popped)) == sorted(map(str, client.payloads(0, 1, 2)))


@pytest.mark.parametrize("batch", [0, 1, 4])
@pytest.mark.parametrize("variant", NUMBERED, ids=str)
def test_a_late_commit_to_a_ring_is_popped_before_later_numbers(client: Client, batch: int) -> None:
    def next_one() -> Payload | None:
        message = client.pop() if batch == 0 else next(iter(client.pop_many(batch)), None)
        return None if message is None else message.payload

    with client.database.transaction("push") as late:
        push_in(late, client, client.payload(0))
        client.push(client.payload(1))
        assert next_one() == client.payload(1)
        assert next_one() is None
        client.push(client.payload(2))
    # Number 1 is parked and its message exists now: it precedes the numbers not yet drawn.
    assert next_one() == client.payload(0)
    rest = client.drain()
    assert payloads_of(rest) == ([] if batch == 4 else client.payloads(2))
