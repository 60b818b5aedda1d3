"""smoke --live: uses the queue itself, only if it is drained, and leaves it unchanged."""

import pytest

from console import catalog
from console.actions.smoke_live import ROUNDS, smoke_live
from console.catalog import Queue
from console.errors import RefusedError
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import read_messages
from tests.contract.variants import BEHAVIOURS, DEFAULTS, Variant, default
from tests.servers import value


@pytest.mark.thinned(2)
@pytest.mark.parametrize("variant", BEHAVIOURS, ids=str)
def test_a_smoke_test_leaves_a_drained_queue_unchanged(client: Client, variant: Variant) -> None:
    assert client.push(client.payload(1)) is not None
    for message in client.drain():
        assert not variant.finishes or client.complete(message)
    before = states(client)
    result = smoke_live(client.database, client.queue)
    assert (result.messages, result.ok) == (ROUNDS, True), result
    assert states(client) == before
    assert client.push(client.payload(2)) is not None
    (popped,) = client.drain()
    assert popped.payload == client.payload(2)


def states(client: Client) -> list[str]:
    return [message.state for message in read_messages(client, limit=1000).messages]


@pytest.mark.thinned(3, payload=False)
@pytest.mark.parametrize("variant", DEFAULTS, ids=str)
def test_a_queue_with_messages_is_not_touched(client: Client) -> None:
    client.push_many(client.payloads(1, 2))
    with pytest.raises(RefusedError, match="not drained"):
        smoke_live(client.database, client.queue)
    assert len(client.drain()) == 2


@pytest.mark.parametrize("in_hand", ["off", "on"])
def test_each_subscriber_pops_each_message(use: Use, in_hand: str) -> None:
    client = use(default("ring", subscribers="a,b", in_hand=in_hand))
    result = smoke_live(client.database, entire_queue(client))
    assert (result.messages, result.ok, result.subscribers) == (ROUNDS, True, ("a", "b")), result
    assert states(client) == []


def test_a_subscriber_that_missed_a_message_is_named(use_postgresql: Use) -> None:
    client = use_postgresql(default("ring", subscribers="a,b"))
    value(client.url, f"""SELECT nextval('"{client.queue.name}_pop_seq_2"')""")
    result = smoke_live(client.database, entire_queue(client))
    assert (result.lost, result.errors) == (1, ("b: 1 lost",))  # then it is level with the pushes


def test_a_message_pushed_meanwhile_is_kept_for_each_subscriber(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = use(default("ring", subscribers="a,b"))
    monkeypatch.setattr("console.actions.smoke_live._require_drained", lambda *_: client.push("1"))
    with pytest.raises(RefusedError, match="no longer drained"):
        smoke_live(client.database, entire_queue(client))
    assert [message.payload for message in client.drain()] == ["1"]


def entire_queue(client: Client) -> Queue:
    """The ring itself, not the view of a subscriber."""
    with client.database.transaction("read the catalog", read_only=True) as connection:
        return catalog.find(connection, client.queue.name, client.queue.schema)
