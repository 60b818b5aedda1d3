"""Claims: who may finish them, once, and what happens to their rows."""

from dataclasses import replace

import pytest
from sqlalchemy import Column, MetaData, Table, select, update

from console.actions.pop import PoppedMessage
from console.errors import UsageError
from tests.contract.client import Client
from tests.contract.messages import sender
from tests.contract.variants import ALL, BEHAVIOURS, Variant

pytestmark = pytest.mark.thinned(3)

WITH_CLAIMS = [v for v in BEHAVIOURS if v.finishes]

UNKNOWN = {"bigint": "987654321", "uuid": "00000000-0000-4000-8000-000000000000"}


def claims_of(client: Client) -> Table:
    """The table of the claims, with columns keyed by role."""
    queue = client.queue
    if queue.options.get("in_hand") == "on":
        name, roles = queue.name + "_in_hand", {"claimed_at": "claimed_at", "error": "errors"}
        roles |= {"attempts": "attempts", "claimed_by": "claimed_by", "done_at": "done_at"}
        roles |= {"id": "id", "payload": "payload"}
    else:
        name, roles = queue.table, dict(queue.roles)
    columns: list[Column[object]] = [Column(column, key=role) for role, column in roles.items()]
    return Table(name, MetaData(), *columns, schema=queue.schema)


def row_of(client: Client, message: PoppedMessage) -> dict[str, object]:
    """The claim's row, by role."""
    table = claims_of(client)
    wanted = [column.label(str(column.key)) for column in table.c if column.key != "payload"]
    with client.database.transaction("look") as connection:
        rows = connection.execute(select(*wanted)).mappings().all()
    return next((dict(row) for row in rows if str(row["id"]) == message.id), {})


def release(client: Client) -> None:
    """Make every claim ready again in place, as an operator's release does."""
    table = claims_of(client)
    ready: dict[str, object] = {"claimed_at": None, "claimed_by": None}
    if "status" in table.c:
        ready["status"] = 0
    with client.database.transaction("release") as connection:
        connection.execute(update(table).values(ready))


@pytest.mark.parametrize("variant", WITH_CLAIMS, ids=str)
def test_complete_and_fail_act_once_and_the_row_names_the_consumer(client: Client) -> None:
    client.push_many(client.payloads(*range(4)))
    completed, failed, failed_silently = client.pop_many(3)
    (left,) = client.pop_many(1, consumer="worker 7; DROP \N{SNOWMAN}")
    errors = {failed: "it broke: \N{PILE OF POO}\n  'twice'", failed_silently: ""}

    assert client.complete(completed)
    for message, error in errors.items():
        assert client.fail(message, error)
    for finished in (completed, *errors):
        assert not client.complete(finished)
        assert not client.fail(finished, "too late")

    status = client.status()
    assert (status.ready, status.claimed, status.errors) == (0, 1, 2)
    assert status.done == (1 if "done" in client.queue.states else None)
    if row := row_of(client, completed):  # a design that keeps what is done
        assert row["done_at"] is not None
    for message, error in errors.items():
        row = row_of(client, message)
        assert (row["error"], row["done_at"] is None) == (error, False)
        assert "consumer" not in str(row["claimed_by"])
    row = row_of(client, left)
    assert (row["done_at"], row["claimed_at"] is None) == (None, False)
    assert str(row["claimed_by"]).endswith("consumer=worker 7; DROP \N{SNOWMAN}")
    assert client.drain() == []  # an error waits for an operator


@pytest.mark.parametrize("variant", WITH_CLAIMS, ids=str)
def test_only_a_claim_can_be_finished(client: Client, variant: Variant) -> None:
    pushed = client.push(client.payload(0))
    assert pushed is not None
    (message,) = client.pop_many(1)
    release(client)

    for id_ in (pushed, UNKNOWN[variant.design.id_type]):
        unclaimed = replace(message, id=id_)
        assert not client.complete(unclaimed)
        assert not client.fail(unclaimed, "not claimed")
    with pytest.raises(UsageError):
        client.complete(replace(message, id="no id"))
    assert client.status().ready == 1


@pytest.mark.parametrize("variant", [v for v in ALL if v.finishes], ids=str)
def test_released_messages_are_popped_first_and_the_former_owner_cannot_finish_them(
    client: Client,
) -> None:
    client.push_many(client.payloads(0, 1, 2, 3))
    dead, other = client.pop_many(2)
    assert dead.attempts == 1
    release(client)

    alive, *others = client.pop_many(3)

    assert [alive, others[0]] == [replace(one, attempts=2) for one in (dead, other)]
    assert [sender(m.payload) for m in (alive, *others)] == [(0, 0), (0, 1), (0, 2)]
    assert not client.complete(dead)
    assert not client.fail(dead, "I am still here")
    assert client.status().claimed == 3
    assert client.complete(alive)
    assert [(sender(m.payload), m.attempts) for m in client.drain()] == [((0, 3), 1)]
