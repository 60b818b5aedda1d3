"""An empty or full queue is a normal result, not an error, and consumes nothing."""

import pytest

from console.actions import push
from console.errors import UsageError
from tests.contract.client import Client
from tests.contract.variants import (
    ALL,
    BEHAVIOURS_AND_PAYLOADS,
    SMALL_NUMBER,
    SUBSCRIBED,
    with_subscribed_rings,
)

pytestmark = pytest.mark.thinned(3, payload=False)

LIMITED = [
    v
    for v in [*BEHAVIOURS_AND_PAYLOADS, *SUBSCRIBED]
    if "size" in v.options and int(v.options["size"]) < 1000
]


@pytest.mark.parametrize(
    "variant", with_subscribed_rings(BEHAVIOURS_AND_PAYLOADS, BEHAVIOURS_AND_PAYLOADS), ids=str
)
def test_an_empty_queue_returns_no_row_and_consumes_no_number(client: Client) -> None:
    before = client.status()

    assert client.pop() is None
    assert client.pop_many(1) == client.pop_many(100) == []
    assert client.push_many([]) == []

    after = client.status()
    assert (after.next_push, after.next_pop) == (before.next_push, before.next_pop)
    assert after.ready == 0
    client.push(client.payload(0))
    assert client.pop_many(0) == []
    assert len(client.pop_many(5)) == 1
    assert (client.pop_many(5), client.pop()) == ([], None)


def filled(client: Client) -> int:
    size = int(client.queue.options["size"])
    ids = client.push_many(client.payloads(*range(size)))
    assert None not in ids
    return size


@pytest.mark.parametrize("variant", LIMITED, ids=str)
def test_a_full_ring_stores_what_fits_and_consumes_no_number_for_the_rest(client: Client) -> None:
    size = filled(client)
    before = client.status()
    assert before.next_push is not None

    assert client.push(client.payload(size)) is None
    assert client.push_many(client.payloads(size, size + 1, size + 2)) == [None] * 3

    after = client.status()
    assert (after.next_push, after.next_pop) == (before.next_push, before.next_pop)
    assert client.snapshot().gap == client.snapshot().capacity == size
    client.pop_many(2)
    ids = client.push_many(client.payloads(*range(size, size + 5)))
    assert [pushed is not None for pushed in ids] == [True, True, False, False, False]
    status = client.status()
    assert status.next_push == before.next_push + 2
    assert status.next_pop == status.next_push - size
    assert [m.payload for m in client.drain()] == client.payloads(*range(2, size + 2))
    for lap in range(4):
        sent = client.payloads(*range(lap, lap + size // 2))
        assert None not in client.push_many(sent)
        assert [m.payload for m in client.pop_many(size)] == sent

    # The console waits for free slots without a transaction.
    filled(client)
    database, queue = client.database, client.queue

    assert push.push_waiting(database, queue, client.payload(size), 0.05) is None
    client.pop()
    assert push.push_waiting(database, queue, client.payload(size), 0.05) is not None
    client.pop_many(3)
    done = push.push_all(database, queue, client.payloads(*range(10)), 0.05)
    assert done == push.LinesPushed(3, full=True)


LONG_PAYLOADS_REFUSED = [v for v in ALL if v.limit == int(SMALL_NUMBER) and "size" not in v.options]


@pytest.mark.parametrize("variant", LONG_PAYLOADS_REFUSED, ids=str)
def test_a_push_that_fails_half_way_says_how_many_are_stored(client: Client) -> None:
    good = client.payloads(*range(push.BATCH + 5))
    too_long = client.payload(0) * 100

    with pytest.raises(push.PartlyPushedError) as caught:
        push.push_all(client.database, client.queue, [*good, too_long], 0.0)

    assert isinstance(caught.value.__cause__, UsageError)
    assert caught.value.exit_status == UsageError.exit_status
    assert f"{push.BATCH:,} messages stored" in caught.value.next_step
    assert client.status().ready == push.BATCH
