"""What a pop of a ring with subscribers costs: its rows stay on their pages, and are met once."""

import pytest
from psycopg.sql import SQL, Identifier

from console.designs import DESIGNS
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.test_hot_postgresql import LAPS, SIZE, fill_and_empty, updates
from tests.contract.variants import Variant
from tests.servers import connect, wait_until

NAMES = ("a", "b", "c")


def ring(use: Use, subscribers: int, size: int) -> Client:
    given = {"size": str(size), "subscribers": ",".join(NAMES[:subscribers])}
    return use(Variant(DESIGNS["ring"], given))


@pytest.mark.parametrize("subscribers", [1, 3])
def test_nearly_all_updates_of_what_was_popped_are_hot(
    use_postgresql: Use, subscribers: int
) -> None:
    client = ring(use_postgresql, subscribers, SIZE)
    fill_and_empty(client, ["x"] * SIZE)
    client.database.close()
    expected = LAPS * SIZE * subscribers
    wait_until(lambda: updates(client, "_popped")[0] >= expected, "all updates are counted")
    everything, hot = updates(client, "_popped")
    assert everything == expected
    assert hot / everything >= 0.95


def test_a_batch_looks_up_no_slot_by_itself(use_postgresql: Use) -> None:
    """Eight pages a message: four by key and four by place. Each slot by its key took twelve."""
    client = ring(use_postgresql, 3, 1000)
    client.push_many(["x" * 300] * 1000)
    pop = SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM {}(100, 'a')").format(
        Identifier(client.queue.name + "_pop_many")
    )
    with connect(client.url) as connection:
        for _ in range(7):  # plans are there by then
            row = connection.execute(pop).fetchone()
    assert row is not None
    ((explained,),) = row
    assert explained["Plan"]["Actual Rows"] == 100
    assert explained["Plan"]["Shared Hit Blocks"] <= 8 * 100
