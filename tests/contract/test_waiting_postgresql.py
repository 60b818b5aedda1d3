"""Where consumers wait for each other: what the one gets that waited."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from console.actions import pop
from console.actions.pop import PoppedMessage
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.variants import BEHAVIOURS, Variant
from tests.servers import connect, wait_until

WAITING = [v for v in BEHAVIOURS if v.waits]


def somebody_waits(client: Client) -> bool:
    query = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
    with connect(client.url) as connection:
        return bool(connection.execute(query, [client.database.url.database]).fetchall())


def pop_beside(client: Client, batch: int, *, commits: bool) -> list[PoppedMessage]:
    """What a pop gets that waited for another one, while message 9 was pushed."""

    def take() -> list[PoppedMessage]:
        if batch:
            return client.pop_many(batch)
        return [message for message in [client.pop()] if message is not None]

    with ThreadPoolExecutor(1) as pool:
        with client.database.transaction("pop") as connection:
            popped = pop.pop_many(connection, client.queue, 2)
            assert len(popped) == 2
            second = pool.submit(take)
            wait_until(lambda: somebody_waits(client), "the second consumer waits")
            client.push(client.payload(9))
            if not commits:
                connection.rollback()
        return second.result(timeout=120)


@pytest.mark.parametrize("variant", WAITING, ids=str)
def test_a_pop_that_waited_sees_what_came_meanwhile_or_was_rolled_back(
    use_postgresql: Use, variant: Variant, long: bool
) -> None:
    """Where everything that it saw was taken it looks once more before it says empty."""
    client = use_postgresql(variant)
    for batch in (0, 1, 5) if long else (0, 5):
        client.push_many(client.payloads(0, 1))
        came = pop_beside(client, batch, commits=True)
        assert [message.payload for message in came] == client.payloads(9)
        client.push_many(client.payloads(0, 1))
        came = pop_beside(client, batch, commits=False) + client.drain(1)
        assert [message.payload for message in came] == client.payloads(0, 1, 9)
        assert {message.attempts for message in came} == {1}
