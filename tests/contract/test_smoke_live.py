"""smoke --live: through the queue itself, only if it is drained; nobody can notice."""

import pytest

from console.actions.smoke_live import ROUNDS, smoke_live
from console.errors import RefusedError
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import seen
from tests.contract.variants import BEHAVIOURS, DEFAULTS, Variant


@pytest.mark.thinned(2)
@pytest.mark.parametrize("variant", BEHAVIOURS, ids=str)
def test_it_leaves_a_drained_queue_as_it_was(use: Use, variant: Variant) -> None:
    client = use(variant)
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
    return [message.state for message in seen(client, limit=1000).messages]


@pytest.mark.parametrize("variant", DEFAULTS, ids=str)
def test_a_queue_with_messages_is_not_touched(use: Use, variant: Variant) -> None:
    client = use(variant)
    client.push_many(client.payloads(1, 2))
    with pytest.raises(RefusedError, match="not drained"):
        smoke_live(client.database, client.queue)
    assert len(client.drain()) == 2
