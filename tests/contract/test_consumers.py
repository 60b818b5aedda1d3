"""Who pops and who pushes, on every engine: sessions and claims that are really there."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

import pytest

from console.actions import pop, push
from console.engines import open_database
from console.monitor.consumer_watch import MOST, ConsumerWatch
from console.monitor.consumers import Consumer, Consumers
from console.monitor.figures import key_of
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.test_every_statement import running
from tests.contract.variants import DEFAULTS, SMALL_RING, Variant
from tests.servers import TIMEOUTS, wait_until

pytestmark = pytest.mark.usefixtures("sees_sessions")

BY_NAME = {variant.design.name: variant for variant in DEFAULTS}
IN_HAND = Variant(BY_NAME["ring"].design, {"in_hand": "on", "size": SMALL_RING})
CLAIMING = [BY_NAME["claim"], BY_NAME["status"], BY_NAME["split"], IN_HAND]
ENDING = [v for v in DEFAULTS if v not in CLAIMING and not v.design.waits_itself]


@contextmanager
def program(client: Client, name: str) -> Iterator[Client]:
    """The queue through sessions of another program."""
    url = client.database.url.render_as_string(hide_password=False)
    other = open_database(url, timeouts=TIMEOUTS, application_name=name)
    with closing(other):
        yield Client(other, client.queue)


def sampled(client: Client, watch: ConsumerWatch, pop_rate: float | None = None) -> Consumers:
    key = key_of(client.queue)
    return watch.sample([client.queue], {key: pop_rate})[key]


def named(found: Consumers, name: str) -> Consumer:
    (one,) = [one for one in found.consumers if one.name == name]
    return one


@pytest.mark.parametrize("variant", CLAIMING, ids=str)
def test_a_claim_tells_who_popped_when_and_how_fast(use: Use, variant: Variant) -> None:
    client, watch = use(variant), None
    client.push_many(client.payloads(*range(4)))
    with program(client, "worker program") as worker, program(client, "another") as other:
        claimed = worker.pop_many(2, "night shift")
        other.pop_many(1)
        watch = ConsumerWatch(client.database)
        found = sampled(client, watch, pop_rate=6.0)
        one, nameless = named(found, "night shift"), named(found, "another")
        assert (one.does, one.program, one.sessions, one.claims) == (
            ("pop",),
            "worker program",
            1,
            2,
        )
        assert None not in (one.host, one.user, one.since)
        assert one.unknown == {}
        assert one.last_pop is not None
        assert timedelta(0) <= found.at - one.last_pop < timedelta(minutes=5)
        assert (nameless.claims, nameless.sessions) == (1, 1)
        shares = [c.messages_per_second or 0.0 for c in found.consumers]
        assert min(shares) > 0
        assert sum(shares) == pytest.approx(6.0)
        assert one.estimated == ("messages_per_second",)
        for message in claimed:
            worker.complete(message)
        after = named(sampled(client, watch), "night shift")
        assert (after.claims, after.last_pop) == (0, one.last_pop)
        assert after.messages_per_second is None
        assert "not known yet" in after.unknown["messages_per_second"]
    # Both have left; what one of them has claimed is told as its own.
    wait_until(lambda: not named(sampled(client, watch), "another").sessions, "they have left")
    left = named(sampled(client, watch), "another")
    assert (left.sessions, left.claims, left.program) == (0, 1, "another")
    assert left.messages_per_second is None
    nobody = ConsumerWatch(client.database)
    stranger = [one for one in sampled(client, nobody).consumers if one.claims]
    assert [(one.name, one.sessions) for one in stranger] == [(None, 0)]
    assert "its session is over" in stranger[0].unknown["name"]


@pytest.mark.long
@pytest.mark.parametrize("variant", ENDING, ids=str)
def test_where_no_claim_names_it_its_last_pop_is_unknown_with_the_reason(
    use: Use, variant: Variant
) -> None:
    client = use(variant)
    client.push_many(client.payloads(*range(4)))
    with program(client, "taker") as taker, program(client, "giver") as giver:
        watch = ConsumerWatch(client.database)
        # Each in a call: between two transactions a session has no lock, and said COMMIT last.
        with giver.database.transaction("push") as connection:
            push.push_many(connection, client.queue, client.payloads(9))
            sampled(client, watch)
        with taker.database.transaction("pop") as connection:
            assert pop.pop_many(connection, client.queue, 1)
            sampled(client, watch)
        found = sampled(client, watch, pop_rate=6.0)
        one, other = named(found, "taker"), named(found, "giver")
        assert (one.does, other.does) == (("pop",), ("push",))
        assert one.last_call is not None
        assert (one.last_pop, one.messages_per_second, one.claims) == (None, None, None)
        assert set(one.unknown) == {"last_pop", "messages_per_second", "claims"}
        assert "no claim is left" in one.unknown["last_pop"]
        assert other.unknown["last_pop"] == "no row tells who pushed it"
    wait_until(lambda: not sampled(client, watch).consumers, "they have left")


def test_of_two_queues_whose_names_begin_alike_each_has_its_own(use: Use) -> None:
    first, second = use(BY_NAME["fifo"]), use(BY_NAME["fifo"])
    assert second.queue.name.startswith("queue")
    both = [first.queue, second.queue]
    watch = ConsumerWatch(first.database)
    first.push(first.payload(1))
    with program(first, "taker") as taker, taker.database.transaction("pop") as connection:
        assert pop.pop_many(connection, first.queue, 1)
        found = watch.sample(both, {})
    assert [len(found[key_of(queue)].consumers) for queue in both] == [1, 0]


def test_what_it_costs_does_not_grow_with_the_queue(use: Use) -> None:
    client = use(BY_NAME["claim"])
    watch = ConsumerWatch(client.database)
    sampled(client, watch)
    client.push_many(client.payloads(*range(MOST + 200)))
    with program(client, "many") as many:
        many.pop_many(MOST + 200, "hoarder")
        with running() as seen:
            found = sampled(client, watch)
    one = named(found, "hoarder")
    assert (one.claims, one.estimated) == (MOST, ("claims",))
    assert seen == {"server.careful", "monitor.consumers", "activity.clients"}
