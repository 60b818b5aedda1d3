"""Monitoring of a ring's subscribers: each has its figures; the queue shows the slowest.

And verbs on their messages: on which subscriber's they act.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import pytest
from sqlalchemy import Connection, text

from console import catalog, sql, verbs
from console.actions import pop, push, smoke
from console.actions.pop import PoppedMessage
from console.actions.rows import CHANGED
from console.catalog import Queue
from console.designs import DESIGNS
from console.errors import UsageError
from console.monitor import messages
from console.monitor.filters import parse
from console.monitor.message import Message
from console.monitor.messages import read_page
from console.monitor.sampler import Sampler
from console.monitor.snapshot import QueueSnapshot
from console.plan import Control, Plan
from console.rights import Rights
from console.verbs.verb import Target, values_from_texts
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import read_messages
from tests.contract.message_actions import archived
from tests.contract.traffic import at_work
from tests.contract.variants import Variant
from tests.servers import statements_sent

RING = DESIGNS["ring"]
BOTH = {"size": "16", "subscribers": "billing,search"}


Own = TypeVar("Own", bound=Client)


def ring_client(use: Callable[[Variant], Own], **more: str) -> Own:
    """A client of the ring itself: other clients of these tests pop for all subscribers at once."""
    client = use(Variant(RING, BOTH | more))
    with client.database.transaction("look") as connection:
        queue = catalog.find(connection, client.queue.name, client.queue.schema)
    return replace(client, queue=queue)


def pop_as(client: Client, subscriber: str, n: int = 100) -> list[PoppedMessage]:
    with client.database.transaction("pop") as connection:
        return pop.pop_many(connection, client.queue.of(subscriber), n, "worker")


def subscriber_figures(
    observed: QueueSnapshot,
) -> dict[str, tuple[int | None, int | None, int | None]]:
    return {
        snapshot.subscriber: (snapshot.gap, snapshot.ready, snapshot.parked)
        for snapshot in observed.subscribers or ()
    }


@pytest.mark.parametrize("content", ["slot", "apart"])
def test_each_subscriber_has_figures_and_the_queue_has_those_of_the_slowest(
    use: Use, content: str
) -> None:
    client = ring_client(use, content=content)
    assert subscriber_figures(client.snapshot()) == {"billing": (0, 0, 0), "search": (0, 0, 0)}
    client.push_many(client.payloads(*range(12)))
    pop_as(client, "billing", 9)
    pop_as(client, "search", 1)
    observed = client.snapshot()
    assert subscriber_figures(observed) == {"billing": (3, 3, 0), "search": (11, 11, 0)}
    billing, search = observed.subscribers or ()
    assert billing.age_seconds is not None
    assert search.age_seconds is not None
    assert (observed.gap, observed.slowest) == (11, search)
    pop_as(client, "search")
    observed = client.snapshot()
    assert subscriber_figures(observed) == {"billing": (3, 3, 0), "search": (0, 0, 0)}
    assert (observed.gap, observed.slowest and observed.slowest.subscriber) == (3, "billing")
    assert [subscriber.age_seconds is None for subscriber in observed.subscribers or ()] == [
        False,
        True,
    ]
    # One more than fits: full for the slowest.
    client.push_many(client.payloads(*range(13)))
    observed = client.snapshot()
    assert (observed.full_in_seconds, observed.slowest and observed.slowest.full_in_seconds) == (
        0.0,
        0.0,
    )


def test_a_parked_pop_counts_for_its_subscriber_only(use: Use) -> None:
    client = ring_client(use)
    with client.database.transaction("push") as held:
        push.push(held, client.queue, client.payload(1))
        assert pop_as(client, "search", 1) == []
        observed = client.snapshot()
        assert subscriber_figures(observed) == {"billing": (1, 0, 0), "search": (0, 0, 1)}
    # Committed: `search` has drawn its number and can pop it.
    assert subscriber_figures(client.snapshot()) == {"billing": (1, 1, 0), "search": (0, 1, 1)}


def test_a_released_claim_is_ready_for_its_subscriber_only(use: Use) -> None:
    client = ring_client(use, in_hand="on")
    client.push_many(client.payloads(1, 2))
    pop_as(client, "billing", 1)
    pop_as(client, "search")
    assert subscriber_figures(client.snapshot()) == {"billing": (1, 1, 0), "search": (0, 0, 0)}
    queue, dialect = client.queue, client.database.product.dialect
    parts = (queue.schema, f"{queue.name}_in_hand")
    table = ".".join(sql.quote_identifier(dialect, part) for part in parts)
    with client.database.transaction("release") as connection:
        again = "SET claimed_at = NULL WHERE subscriber = 1"
        connection.execute(text(f"UPDATE {table} {again}"))
    assert subscriber_figures(client.snapshot()) == {"billing": (1, 2, 0), "search": (0, 0, 0)}


def test_rings_without_subscribers_need_no_further_query(use: Use) -> None:
    plain = use(Variant(RING, {"size": "16"}))
    for client, expected in ((plain, 0), (ring_client(use, subscribers="billing,search,audit"), 1)):
        with statements_sent() as sent:
            observed = client.snapshot()
        assert len([one for one in sent if "subscriber_status" in one]) == expected
        assert (observed.subscribers is None) == (client is plain)
        assert "subscribers" not in observed.unknown


def test_smoke_checks_what_each_subscriber_received(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoke, "_MESSAGES_EACH", 40)
    client = ring_client(use, in_hand="on")
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


def test_each_subscriber_has_its_own_rates(use: Use) -> None:
    client = ring_client(use)
    sampler = Sampler(client.database, only=[client.queue])
    sampler.sample()
    client.push_many(client.payloads(*range(10)))
    pop_as(client, "billing", 10)
    (observed,) = sampler.sample().queues
    billing, search = observed.subscribers or ()
    assert (billing.popped, search.popped) == (10, 0)
    assert (search.pop_per_second, observed.pop_per_second) == (0, 0)
    assert billing.pop_per_second
    assert billing.full_in_seconds is None
    assert search.full_in_seconds is not None
    assert (observed.popped, observed.pushed) == (0, 10)


@pytest.mark.parametrize("state", ["claimed", "error", "ready"])
def test_pages_of_a_ring_list_each_claim_of_each_subscriber_once(use: Use, state: str) -> None:
    client = ring_client(use, in_hand="on")
    client.push_many(client.payloads(0, 1, 2))
    for name in ("billing", "search"):
        for message in pop_as(client, name):
            if state == "error":
                failed(client, name, message)
    if state == "ready":
        returned(client)

    wanted = parse([f"state={state}"])
    for limit in (1, 2):
        observed: list[Message] = []
        after: str | None = None
        while after is not None or not observed:
            page = read_page(client.database, client.queue, wanted, limit=limit, after=after)
            observed += page.messages
            after = page.next.text if page.next else None
        assert [one.id for one in observed] == [one.id for one in observed[:3]] * 2
        assert len({one.key for one in observed}) == 6
    for one in observed:
        found = messages.message(client.database, client.queue, one.key)
        assert found is not None
        assert replace(found, age_seconds=one.age_seconds) == one
    of_one = read_page(client.database, client.queue, parse([f"id={observed[0].id}"]))
    assert [one.state for one in of_one.messages] == [state] * 2


def failed(client: Client, subscriber: str, message: PoppedMessage) -> None:
    with client.database.transaction("fail") as connection:
        assert pop.fail(connection, client.queue.of(subscriber), message, "no disk")


def returned(client: Client) -> None:
    """Make all claims ready again, as release does."""
    with client.database.transaction("release") as connection:
        table = f'public."{client.queue.name}_in_hand"'
        connection.execute(text(f"UPDATE {table} SET claimed_at = NULL, claimed_by = NULL"))


def planned(client: Client, verb: str, subscriber: str = "", **texts: str) -> Plan:
    named = verbs.get_verb(verb)
    target = Target(client.database, client.queue, Rights.OPERATOR)
    return named.plan(target, values_from_texts(named, {"subscriber": subscriber, **texts}))


def held(client: Client, subscriber: str) -> dict[str | None, str]:
    """Message -> state, for all messages of the subscriber."""
    of = Client(client.database, client.queue.of(subscriber))
    messages: list[Message] = list(read_messages(of, limit=100).messages)
    assert len({message.id for message in messages}) == len(messages)
    return {message.id: message.state for message in messages}


@pytest.fixture
def both(use: Use) -> tuple[Client, list[str]]:
    """Three messages, claimed by each subscriber."""
    client = ring_client(use, in_hand="on")
    ids = [str(number) for number in client.push_many(client.payloads(1, 2, 3))]
    for subscriber in ("billing", "search"):
        assert [one.id for one in pop_as(client, subscriber)] == ids
    return client, ids


def test_a_verb_acts_only_on_the_claims_of_its_subscriber(both: tuple[Client, list[str]]) -> None:
    client, (one, two, three) = both
    planned(client, "release", "search", force="yes", filter=f"id={one}").run_to_end()
    untouched = dict.fromkeys((one, two, three), "claimed")
    assert held(client, "billing") == untouched
    untouched |= {one: "ready"}
    planned(client, "complete", "billing", id=one).run_to_end()
    planned(client, "fail", "billing", id=f"{two} {three}", error="no").run_to_end()
    assert held(client, "billing") == {two: "error", three: "error"}
    assert held(client, "search") == untouched
    action_plan = planned(client, "requeue", "billing", filter=f"id={two}")
    assert "(design ring, subscriber billing)" in action_plan.lines[0]
    assert action_plan.subject.detail == "subscriber billing"
    assert action_plan.count == 1
    action_plan.run_to_end()
    assert held(client, "billing") == {two: "ready", three: "error"}
    archived = planned(client, "archive", "billing")
    assert archived.count == 1
    archived.run_to_end()
    assert held(client, "billing") == {two: "ready"}
    assert held(client, "search") == untouched
    released = planned(client, "release", "search", force="yes", filter=f"id={two}")
    assert released.count == 1
    released.run_to_end()
    assert held(client, "search") == untouched | {two: "ready"}
    assert held(client, "billing") == {two: "ready"}
    # Each subscriber pops its own again, as a second attempt, and no other.
    assert [(m.id, m.attempts) for m in pop_as(client, "billing")] == [(two, 2)]
    assert [(m.id, m.attempts) for m in pop_as(client, "search")] == [(one, 2), (two, 2)]
    assert pop_as(client, "billing") == []


def test_a_message_has_the_history_of_its_subscriber_only(use: Use) -> None:
    client = ring_client(use, in_hand="on", history="3")
    billing, search = map(client.queue.of, ("billing", "search"))
    client.push(client.payload(1))

    def histories(queue: Queue) -> dict[str, list[str | None]]:
        """State and scan -> the errors of the message: read by its id, and as its detail."""
        found = {}
        (id_,) = {one.id for one in read_page(client.database, queue).messages}
        for one in read_page(client.database, queue, parse([f"id={id_}"])).messages:
            same = messages.follow(client.database, queue, one.key)
            assert same is not None
            assert same.history == one.history is not None
            found[f"{one.state} {one.key.split(',')[0]}"] = [kept.error for kept in one.history]
        return found

    failed(client, "billing", *pop_as(client, "billing"))
    assert histories(billing) == {"error any": ["no disk"]}
    assert histories(search) == {"ready numbers": []}
    assert histories(client.queue) == {"error any:billing": ["no disk"], "ready numbers": []}
    pop_as(client, "search")
    assert histories(search) == {"claimed any": []}
    both = {"error any:billing": ["no disk"], "claimed any:search": []}
    assert histories(client.queue) == both


def test_verbs_on_claims_require_a_subscriber(both: tuple[Client, list[str]]) -> None:
    client, (one, *_) = both
    for verb in ("complete", "fail", "release", "requeue", "archive"):
        texts = {"id": one, "error": "no"} if verb in {"complete", "fail"} else {}
        with pytest.raises(UsageError, match="has subscribers") as caught:
            planned(client, verb, **texts)
        assert "billing, search" in caught.value.next_step
        with pytest.raises(UsageError, match="has no subscriber"):
            planned(client, verb, "nobody", **texts)


def texts_of(messages: list[PoppedMessage]) -> list[object]:
    return [message.payload for message in messages]


@pytest.mark.parametrize(
    "more",
    [{"in_hand": "on"}, {"content": "apart", "partitions": "2", "archive_at_pop": "on"}],
    ids=["in_hand", "apart"],
)
def test_purge_and_restore_apply_to_all_subscribers(use: Use, more: dict[str, str]) -> None:
    client = ring_client(use, **more)
    payloads = client.payloads(1, 2, 3, 4)
    with client.database.transaction("push") as late:
        push.push(late, client.queue, payloads[0])
        assert pop_as(client, "search", 1) == []  # parked: not committed yet
    client.push_many(payloads[1:])
    # The first is owed to both, has a parked number, and is locked by an open pop.
    with client.database.transaction("pop") as other:
        assert len(pop.pop_many(other, client.queue.of("search"), 1, "worker")) == 1
        plan = planned(client, "purge")
        assert plan.count == 4
        assert any(
            "those of billing, search that have not popped it" in line for line in plan.lines
        )
        ledger = plan.run(Control(), lambda _: None).ledger
        assert ledger is not None
        assert (ledger.selected, ledger.out, ledger.into, ledger.skipped) == (4, 3, 3, {CHANGED: 1})
        other.rollback()
    for subscriber in ("billing", "search"):
        assert texts_of(pop_as(client, subscriber)) == payloads[:1]
    back = planned(client, "restore")
    assert back.count == 3
    assert any("every subscriber gets them" in line for line in back.lines)
    back.run_to_end()
    for subscriber in ("billing", "search"):
        assert texts_of(pop_as(client, subscriber)) == payloads[1:]
    # Their slots and numbers are reused, for more than a lap.
    for start in (10, 20, 30):
        lap = client.payloads(*range(start, start + 10))
        assert None not in client.push_many(lap)
        for subscriber in ("billing", "search"):
            assert texts_of(pop_as(client, subscriber)) == lap


def pushing(client: Client, pushed: list[object], full: threading.Event) -> Iterator[None]:
    for number in itertools.count():
        payload = client.payload(number)
        while client.push_many([payload]) == [None]:
            full.set()
            yield
        full.clear()
        pushed.append(payload)
        yield


@pytest.mark.long  # it purges until 200 messages were found
def test_a_purge_under_traffic_loses_no_message_of_any_subscriber(use: Use) -> None:
    # Enough slots that a purge finds messages that were not popped since its plan.
    client = ring_client(use, size="128")
    pushed: list[object] = []
    received: dict[str, list[object]] = {"billing": [], "search": []}
    full = threading.Event()

    def consumer(name: str) -> Iterator[None]:
        while True:
            if (
                name == "billing" or full.is_set()
            ):  # the slower one, so that there is something to purge
                received[name] += texts_of(pop_as(client, name, 3))
            yield

    purged, wanted = 0, 200
    with at_work(pushing(client, pushed, full), consumer("billing"), consumer("search")):
        for _ in range(1000):
            ledger = planned(client, "purge").run(Control(), lambda _: None).ledger
            purged += ledger.out if ledger else 0
            if purged >= wanted:
                break
    for name in received:
        while more := pop_as(client, name):
            received[name] += texts_of(more)
    purged_payloads = [row["payload"] for row in archived(client)]
    assert len(purged_payloads) == len(set(purged_payloads)) == purged >= wanted
    for found in received.values():
        assert len(set(found)) == len(found)
        assert set(found) | set(purged_payloads) == set(pushed)
    assert not set(received["billing"]) & set(received["search"]) & set(purged_payloads), (
        "archived, and owed to nobody"
    )
