"""archive_at_pop=on: a pop archives its messages in the same transaction."""

from collections.abc import Sequence

import pytest

from console.actions import pop, push, relay
from console.actions.pop import PoppedMessage
from tests.contract.client import Client, in_utc
from tests.contract.message_actions import archived
from tests.contract.variants import ALL, Variant

pytestmark = pytest.mark.thinned(3)

ARCHIVING = [v for v in ALL if v.options.get("archive_at_pop") == "on"]


@pytest.mark.parametrize("variant", ARCHIVING, ids=str)
def test_committed_pops_are_archived_and_rolled_back_pops_are_not(
    client: Client, variant: Variant
) -> None:
    """Rolled back by the caller, or because the reader could not store the messages."""
    assert (client.pop(), client.pop_many(9), archived(client)) == (None, [], [])
    client.push_many(client.payloads(*range(20)))
    with client.database.transaction("pop") as connection:
        assert len(pop.pop_many(connection, client.queue, 3)) == 3
        connection.rollback()
    if "relay" in client.queue.verbs:
        relay.relay(client.database, client.queue, None)

    def broken_pipe(_: Sequence[PoppedMessage]) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        pop.pop(client.database, client.queue, broken_pipe, count=2)
    assert archived(client) == []
    single = [client.pop() for _ in range(3)]
    popped = [*(m for m in single if m is not None), *client.drain(7)]

    rows = archived(client)

    assert len(popped) == len(rows) == 20
    assert [str(row["id"]) for row in rows] == [message.id for message in popped]
    assert [in_utc(row["pushed_at"]) for row in rows] == [message.pushed_at for message in popped]
    if variant.payload != "json":
        assert [row["payload"] for row in rows] == [message.payload for message in popped]
    assert {(row["state"], row["attempts"], row["reason"]) for row in rows} == {("done", 1, "pop")}
    assert all(row["done_at"] >= row["pushed_at"] for row in rows)


ARCHIVING_RINGS = [v for v in ARCHIVING if "relay" in v.design.verbs]


@pytest.mark.parametrize("variant", ARCHIVING_RINGS, ids=str)
def test_messages_popped_with_a_parked_number_are_archived(client: Client) -> None:
    for take in (client.pop, lambda: next(iter(client.pop_many(3)), None)):
        with client.database.transaction("push") as late:
            push.push(late, client.queue, client.payload(0))
            client.push(client.payload(1))
            assert take() is not None
        assert take() is not None
    rows = archived(client)
    assert len({row["id"] for row in rows}) == len(rows) == 4
