"""Which messages a restore selects, what its plan says, and what it refuses."""

from dataclasses import replace
from datetime import timedelta

import pytest

from console import catalog
from console.actions import archive, execute
from console.actions.archive import Archive, Purge
from console.actions.install import uninstall
from console.actions.restore import Restore
from console.catalog import Kind
from console.errors import RefusedError, UsageError
from console.monitor.scan_query import MessageSource
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import fill
from tests.contract.message_actions import (
    alter_archived,
    archived,
    plan_lines,
    plan_restore,
    planned,
    purge,
    restore,
    run,
    source_of,
)
from tests.contract.variants import default

pytestmark = pytest.mark.thinned(3)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("naive", "goes behind 7 messages"),
        ("fifo", "goes behind 7 messages"),
        ("stack", "runs next, before 7 older messages"),
        ("heap", "in no particular order"),
        ("pending", "each at its due time"),
        ("ring", "goes behind 7 messages"),
    ],
)
def test_a_plan_says_where_restored_messages_are_placed(use: Use, name: str, line: str) -> None:
    client = use(default(name))
    client.push_many(client.payloads(*range(5)))
    purge(client)
    if name == "ring":
        client.drain()
    client.push_many(client.payloads(*range(10, 17)))
    action_plan = plan_restore(client, "limit=4")
    assert f"pushed again, with new ids: 4; {line}" in action_plan.consequences
    lines = plan_lines(client, Restore(source_of(client)), "limit=4")
    assert "\n  in the archive for " in lines
    if name == "ring":
        assert any(text.startswith("needs 4 slots, ") for text in action_plan.consequences)


@pytest.mark.parametrize("name", ["naive", "heap", "fifo", "stack", "pending", "ring"])
def test_popped_messages_are_restored_only_on_request(use: Use, name: str) -> None:
    client = use(default(name, archive_at_pop="on"))
    client.push_many(client.payloads(*range(6)))
    popped = client.pop_many(2)
    purge(client)
    ids = [f"id={message.id}" for message in popped]
    assert [plan_restore(client, word).count for word in ids] == [0, 0]
    assert restore(client, "newer=1h").ledger.out == 4
    assert restore(client).ledger.out == 0
    action_plan = plan_restore(client, popped=True)
    assert (action_plan.count, action_plan.detail) == (2, "popped messages")
    assert any("delivered once" in line for line in action_plan.consequences)
    assert restore(client, ids[0], popped=True).ledger.out == 1
    assert [str(row["id"]) for row in archived(client)] == [popped[1].id]


def archive_four(client: Client) -> None:
    for message in client.pop_many(4):
        assert client.complete(message)
    assert run(client, Archive(source_of(client))).ledger.out == 4


def test_restore_selects_the_last_purge_by_default(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the archive is read a few rows at a time."""
    monkeypatch.setattr(archive, "_READ_AT_ONCE", 4)
    monkeypatch.setattr(archive, "_PURGES_AT_ONCE", 3)
    client = use(default("status"))
    client.push_many(client.payloads(*range(30)))
    archive_four(client)
    first = purge(client, "limit=9")
    second = purge(client, "limit=8", reason="stale: prices")
    archive_four(client)

    action_plan = plan_restore(client)
    assert (action_plan.count, action_plan.detail) == (
        8,
        f"of action {second.action_id}, the last purge",
    )
    assert plan_restore(client, "limit=3").count == 3
    assert plan_restore(client, "keep-newest=6").count == 2
    assert plan_restore(client, action=first.action_id).count == 9
    assert plan_restore(client, reason="PRICES").count == 8
    assert plan_restore(client, reason="prices_").count == 0
    assert plan_restore(client, "newer=1h").count == 25

    assert restore(client).ledger.out == 8
    action_plan = plan_restore(client)
    assert (action_plan.count, action_plan.detail) == (
        9,
        f"of action {first.action_id}, the last purge",
    )
    made = execute.plan(client.database, Restore(source_of(client)))
    assert made.data["detail"] == made.subject.detail == action_plan.detail


def test_a_later_purge_is_not_in_the_plan(use: Use) -> None:
    client = use(default("fifo"))
    client.push_many(client.payloads(*range(9)))
    purge(client, "limit=4")
    action = Restore(source_of(client))
    action_plan = planned(client, action)
    purge(client, "limit=2")
    done = execute.execute(client.database, Restore(source_of(client)), action_plan)
    assert done.ledger.out == action_plan.count == 4
    assert len(archived(client)) == 2

    action_plan = planned(client, action, "newer=1h")
    restore(client, "limit=1")
    purge(client, "limit=3")
    done = execute.execute(client.database, action, action_plan)
    assert (done.ledger.out, action_plan.count) == (1, 2)
    assert len(archived(client)) == 3


def test_filters_apply_to_the_archive(use: Use) -> None:
    client = use(default("claim", payload="json"))
    fill(client)
    purge(client)
    rows = archived(client)
    long_ago = rows[0]["archived_at"] - timedelta(hours=2)
    alter_archived(client, rows[0]["archive_id"], archived_at=long_ago)
    errors = [row for row in rows if row["state"] == "error"]

    def count(*words: str) -> int:
        return plan_restore(client, *words).count

    assert count() == len(rows) == 7
    assert count("older=1h") == 1
    assert count("newer=1h") == 6
    assert count("state=error") == len(errors) == 2
    assert count("state=claimed") == count("state=done") == 0
    assert count("error~BOOM") == count("error~order 17", "error~second") == 2
    assert count("error~nothing") == 0
    assert count("claimed_by=worker-1") == 2
    assert count("claimed_by=worker") == 0
    assert count(f"id={str(rows[2]['id']).upper()}") == 1
    number = rows[3]["payload"][1]
    assert count(f"payload[1]={number}") == 1
    assert count("payload[1]=999", "newer=1h") == 0
    assert count("state=error", "limit=1") == 1
    odd = "'; DROP TABLE x; -- %s :name \\ \"é"
    assert count(f"error~{odd}") == count(f"claimed_by={odd}") == count(f"payload.a={odd}") == 0
    assert plan_restore(client, reason=odd).count == 0
    with pytest.raises(UsageError, match="not a key"):
        count("id=seventeen")
    with pytest.raises(UsageError, match="takes no messages in the state"):
        count("state=lost")


def test_impossible_restores_are_refused(use_postgresql: Use) -> None:
    client = use_postgresql(default("fifo"))
    product = client.database.product
    for action in (Restore(source_of(client)), Purge(source_of(client))):
        with pytest.raises(UsageError, match="no payload with paths"):
            planned(client, action, "payload.a=1")
    with pytest.raises(UsageError, match="Popped messages belong to no action"):
        Restore(source_of(client), action=1, popped=True)
    adopted = replace(client.queue, kind=Kind.ADOPTED)
    with pytest.raises(RefusedError, match="has no archive"):
        Restore(MessageSource(product, adopted, "text", "bigint"))
    uninstall(client.database, client.queue, keep_archive=True, with_messages=True)
    with client.database.transaction("look") as connection:
        left = catalog.find(connection, client.queue.name)
    with pytest.raises(UsageError, match="uninstalled") as refused:
        Restore(MessageSource(product, left, "text", "bigint"))
    assert "push the payloads" in refused.value.next_step
    uninstall(client.database, left, keep_archive=False, with_messages=True)
