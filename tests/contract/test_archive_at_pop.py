"""archive_at_pop=on: what was popped is in the archive, in the same transaction."""

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Column, MetaData, Table, select

from console.actions import pop, push, relay
from console.actions.pop import PoppedMessage
from tests.contract.client import Client, in_utc
from tests.contract.conftest import Use
from tests.contract.variants import ALL, Variant

pytestmark = pytest.mark.thinned(3)

ARCHIVING = [v for v in ALL if v.options.get("archive_at_pop") == "on"]
OTHERS = [v for v in ALL if v.options.get("archive_at_pop") != "on" and len(v.given) < 2]
_COLUMNS = ("archive_id", "id", "payload", "pushed_at", "done_at", "state", "attempts", "reason")


def archived(client: Client) -> list[dict[str, Any]]:
    """The archive's rows, the first archived first."""
    name = client.queue.name + "_archive"
    columns: list[Column[object]] = [Column(column) for column in _COLUMNS]
    table = Table(name, MetaData(), *columns, schema=client.queue.schema)
    with client.database.transaction("look") as connection:
        rows = connection.execute(select(table).order_by(table.c.archive_id)).mappings().all()
    return [{str(name): in_utc(value) for name, value in row.items()} for row in rows]


@pytest.mark.parametrize("variant", ARCHIVING, ids=str)
def test_what_was_popped_is_in_the_archive(use: Use, variant: Variant) -> None:
    client = use(variant)
    assert (client.pop(), client.pop_many(9), archived(client)) == (None, [], [])
    client.push_many(client.payloads(*range(20)))
    single = [client.pop() for _ in range(3)]
    popped = [*(m for m in single if m is not None), *client.drain(7)]

    rows = archived(client)

    assert len(popped) == len(rows) == 20
    assert [str(row["id"]) for row in rows] == [message.id for message in popped]
    assert [row["pushed_at"] for row in rows] == [message.pushed_at for message in popped]
    if variant.payload != "json":
        assert [row["payload"] for row in rows] == [message.payload for message in popped]
    assert {(row["state"], row["attempts"], row["reason"]) for row in rows} == {("done", 1, "pop")}
    assert all(row["done_at"] >= row["pushed_at"] for row in rows)


@pytest.mark.parametrize("variant", ARCHIVING, ids=str)
def test_a_pop_that_is_rolled_back_archives_nothing(use: Use, variant: Variant) -> None:
    """By its caller, or since the reader could not keep what came."""
    client = use(variant)
    client.push_many(client.payloads(*range(6)))
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
    came = client.drain(2)
    assert sorted(m.id for m in came) == sorted(str(row["id"]) for row in archived(client))
    assert len(came) == 6


@pytest.mark.parametrize("variant", OTHERS, ids=str)
def test_without_the_option_the_archive_stays_empty(use: Use, variant: Variant) -> None:
    client = use(variant)
    client.push_many(client.payloads(*range(3)))
    client.pop()
    for message in client.drain():
        assert not variant.finishes or client.complete(message)
    assert archived(client) == []


ARCHIVED_LATE = [v for v in ARCHIVING if "relay" in v.design.verbs]


@pytest.mark.parametrize("variant", ARCHIVED_LATE, ids=str)
def test_a_ring_s_parked_number_is_archived_too(use: Use, variant: Variant) -> None:
    client = use(variant)
    for take in (client.pop, lambda: next(iter(client.pop_many(3)), None)):
        with client.database.transaction("push") as late:
            push.push(late, client.queue, client.payload(0))
            client.push(client.payload(1))
            assert take() is not None
        assert take() is not None
    rows = archived(client)
    assert len({row["id"] for row in rows}) == len(rows) == 4
