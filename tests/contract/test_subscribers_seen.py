"""What is seen of a ring's subscribers, each by itself; the queue shows the slowest."""

from dataclasses import replace

import pytest
from sqlalchemy import Connection, text

from console import catalog, sql
from console.actions import pop, push, smoke
from console.actions.pop import PoppedMessage
from console.catalog import Queue
from console.designs import DESIGNS
from console.monitor import messages
from console.monitor.filters import parse
from console.monitor.message import Message
from console.monitor.messages import read_page
from console.monitor.sampler import Sampler
from console.monitor.snapshot import QueueSnapshot
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.variants import Variant
from tests.servers import statements_sent

RING = DESIGNS["ring"]
BOTH = {"size": "16", "subscribers": "billing,search"}


def made(use: Use, **more: str) -> Client:
    """Of the whole ring: the contract's own clients pop for all subscribers at once."""
    client = use(Variant(RING, BOTH | more))
    with client.database.transaction("look") as connection:
        queue = catalog.find(connection, client.queue.name, client.queue.schema)
    return replace(client, queue=queue)


def popped(client: Client, subscriber: str, n: int = 100) -> list[PoppedMessage]:
    with client.database.transaction("pop") as connection:
        return pop.pop_many(connection, client.queue.of(subscriber), n, "worker")


def told(seen: QueueSnapshot) -> dict[str, tuple[int | None, int | None, int | None]]:
    return {one.subscriber: (one.gap, one.ready, one.parked) for one in seen.subscribers or ()}


@pytest.mark.parametrize("content", ["slot", "apart"])
def test_each_has_figures_of_its_own_and_the_queue_those_of_the_slowest(
    use: Use, content: str
) -> None:
    client = made(use, content=content)
    assert told(client.snapshot()) == {"billing": (0, 0, 0), "search": (0, 0, 0)}
    client.push_many(client.payloads(*range(12)))
    popped(client, "billing", 9)
    popped(client, "search", 1)
    seen = client.snapshot()
    assert told(seen) == {"billing": (3, 3, 0), "search": (11, 11, 0)}
    billing, search = seen.subscribers or ()
    assert billing.age_seconds is not None
    assert search.age_seconds is not None
    assert (seen.gap, seen.slowest) == (11, search)
    popped(client, "search")
    seen = client.snapshot()
    assert told(seen) == {"billing": (3, 3, 0), "search": (0, 0, 0)}
    assert (seen.gap, seen.slowest and seen.slowest.subscriber) == (3, "billing")
    assert [one.age_seconds is None for one in seen.subscribers or ()] == [False, True]
    # One more than fits in: full for the slowest.
    client.push_many(client.payloads(*range(13)))
    seen = client.snapshot()
    assert (seen.full_in_seconds, seen.slowest and seen.slowest.full_in_seconds) == (0.0, 0.0)


def test_a_parked_pop_is_its_own_and_its_message_counts(use: Use) -> None:
    client = made(use)
    with client.database.transaction("push") as held:
        push.push(held, client.queue, client.payload(1))
        assert popped(client, "search", 1) == []
        seen = client.snapshot()
        assert told(seen) == {"billing": (1, 0, 0), "search": (0, 0, 1)}
    # Committed: what it has drawn a number for, and can pop.
    assert told(client.snapshot()) == {"billing": (1, 1, 0), "search": (0, 1, 1)}


def test_what_is_ready_again_in_its_hand_is_ready_to_it_alone(use: Use) -> None:
    client = made(use, in_hand="on")
    client.push_many(client.payloads(1, 2))
    popped(client, "billing", 1)
    popped(client, "search")
    assert told(client.snapshot()) == {"billing": (1, 1, 0), "search": (0, 0, 0)}
    queue, dialect = client.queue, client.database.product.dialect
    parts = (queue.schema, f"{queue.name}_in_hand")
    table = ".".join(sql.quote_identifier(dialect, part) for part in parts)
    with client.database.transaction("release") as connection:
        again = "SET claimed_at = NULL WHERE subscriber = 1"
        connection.execute(text(f"UPDATE {table} {again}"))
    assert told(client.snapshot()) == {"billing": (1, 2, 0), "search": (0, 0, 0)}


def test_rings_without_subscribers_are_asked_nothing_more(use: Use) -> None:
    plain = use(Variant(RING, {"size": "16"}))
    for client, asked in ((plain, 0), (made(use, subscribers="billing,search,audit"), 1)):
        with statements_sent() as sent:
            seen = client.snapshot()
        assert len([one for one in sent if "subscriber_status" in one]) == asked
        assert (seen.subscribers is None) == (client is plain)
        assert "subscribers" not in seen.unknown


def test_smoke_judges_what_each_got(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke, "_MESSAGES_EACH", 40)
    client = made(use, in_hand="on")
    queue = client.queue
    good = smoke.smoke_queue(client.database, queue)
    assert good.ok, good.errors
    assert good.subscribers == ("billing", "search")

    def swallowing(connection: Connection, of: Queue, n: int, consumer: str) -> list[PoppedMessage]:
        popped = pop.pop_many(connection, of, n, consumer)
        return popped[1:] if of.subscriber == "search" and len(popped) == 7 else popped

    monkeypatch.setattr(smoke, "pop_many", swallowing)
    monkeypatch.setattr(smoke, "_STALLED_SECONDS", 0.5)
    bad = smoke.smoke_queue(client.database, queue)
    assert not bad.ok
    assert bad.lost > 0
    assert any(error.startswith("search: ") and "lost" in error for error in bad.errors)
    assert not any(error.startswith("billing") for error in bad.errors)


def test_rates_are_each_ones_own(use: Use) -> None:
    client = made(use)
    sampler = Sampler(client.database, only=[client.queue])
    sampler.sample()
    client.push_many(client.payloads(*range(10)))
    popped(client, "billing", 10)
    (seen,) = sampler.sample().queues
    billing, search = seen.subscribers or ()
    assert (billing.popped, search.popped) == (10, 0)
    assert (search.pop_per_second, seen.pop_per_second) == (0, 0)
    assert billing.pop_per_second
    assert billing.full_in_seconds is None
    assert search.full_in_seconds is not None
    assert (seen.popped, seen.pushed) == (0, 10)


@pytest.mark.parametrize("state", ["claimed", "error", "ready"])
def test_pages_of_the_whole_ring_have_each_claim_of_each_subscriber_once(
    use: Use, state: str
) -> None:
    client = made(use, in_hand="on")
    client.push_many(client.payloads(0, 1, 2))
    for name in ("billing", "search"):
        for message in popped(client, name):
            if state == "error":
                failed(client, name, message)
    if state == "ready":
        returned(client)

    wanted = parse([f"state={state}"])
    for limit in (1, 2):
        seen: list[Message] = []
        after: str | None = None
        while after is not None or not seen:
            page = read_page(client.database, client.queue, wanted, limit=limit, after=after)
            seen += page.messages
            after = page.next.text if page.next else None
        assert [one.id for one in seen] == [one.id for one in seen[:3]] * 2
        assert len({one.key for one in seen}) == 6
    for one in seen:
        found = messages.message(client.database, client.queue, one.key)
        assert found is not None
        assert replace(found, age_seconds=one.age_seconds) == one
    of_one = read_page(client.database, client.queue, parse([f"id={seen[0].id}"]))
    assert [one.state for one in of_one.messages] == [state] * 2


def failed(client: Client, subscriber: str, message: PoppedMessage) -> None:
    with client.database.transaction("fail") as connection:
        assert pop.fail(connection, client.queue.of(subscriber), message, "no disk")


def returned(client: Client) -> None:
    """All claims are ready again, as release leaves them."""
    with client.database.transaction("release") as connection:
        table = f'"{client.queue.name}_in_hand"'
        connection.execute(text(f"UPDATE {table} SET claimed_at = NULL, claimed_by = NULL"))
