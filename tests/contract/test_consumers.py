"""Consumers and producers on every engine, from real sessions and claims.

Also for adopted tables; and which statements count as push or pop.
"""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

import psycopg
import pytest
from psycopg.sql import SQL
from sqlalchemy import text

from console.actions import pop, push
from console.catalog import installed_queue
from console.designs import design
from console.engines import PRODUCTS, Database, open_database
from console.errors import RefusedError
from console.features.presets.adopt import adopt
from console.monitor.consumer_watch import MOST, ConsumerWatch
from console.monitor.consumers import Consumer, Consumers
from console.monitor.rates import key_of
from console.monitor.statement_text import actions_in, call_pattern
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.test_every_statement import labels_run
from tests.contract.variants import DEFAULTS, Variant, default
from tests.servers import TIMEOUTS, wait_until

WITH_CLAIMS = [default("claim"), default("status"), default("split"), default("ring", in_hand="on")]
WITHOUT_CLAIMS = [v for v in DEFAULTS if v not in WITH_CLAIMS and not v.design.waits_itself]


@contextmanager
def program(client: Client, name: str) -> Iterator[Client]:
    """The queue through sessions with another application name."""
    url = client.database.url.render_as_string(hide_password=False)
    other = open_database(url, timeouts=TIMEOUTS, application_name=name)
    with closing(other):
        yield Client(other, client.queue)


def sampled(client: Client, watch: ConsumerWatch, pop_rate: float | None = None) -> Consumers:
    key = key_of(client.queue)
    return watch.sample([client.queue], {key: pop_rate})[key]


def named(consumers: Consumers, name: str) -> Consumer:
    (one,) = [consumer for consumer in consumers.consumers if consumer.name == name]
    return one


@pytest.mark.usefixtures("requires_session_views")
@pytest.mark.parametrize("variant", WITH_CLAIMS, ids=str)
def test_consumers_with_claims_have_names_last_pops_and_rates(use: Use, variant: Variant) -> None:
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
    # Both have disconnected; the claim of one of them still has its name.
    wait_until(lambda: not named(sampled(client, watch), "another").sessions, "they have left")
    left = named(sampled(client, watch), "another")
    assert (left.sessions, left.claims, left.program) == (0, 1, "another")
    assert left.messages_per_second is None
    new_watch = ConsumerWatch(client.database)
    unnamed = [consumer for consumer in sampled(client, new_watch).consumers if consumer.claims]
    assert [(one.name, one.sessions) for one in unnamed] == [(None, 0)]
    assert "its session has ended" in unnamed[0].unknown["name"]


@pytest.mark.usefixtures("requires_session_views")
@pytest.mark.long
@pytest.mark.parametrize("variant", WITHOUT_CLAIMS, ids=str)
def test_the_last_pop_of_a_consumer_without_claims_is_unknown_with_a_reason(client: Client) -> None:
    client.push_many(client.payloads(*range(4)))
    with program(client, "taker") as taker, program(client, "giver") as giver:
        watch = ConsumerWatch(client.database)
        # Each during a call: between transactions a session has no lock, and COMMIT as its query.
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
        assert other.unknown["last_pop"] == "no row says who pushed it"
    wait_until(lambda: not sampled(client, watch).consumers, "they have left")


@pytest.mark.usefixtures("requires_session_views")
def test_queues_whose_names_begin_alike_have_separate_consumers(use: Use) -> None:
    first, second = use(default("fifo")), use(default("fifo"))
    assert second.queue.name.startswith("queue")
    both = [first.queue, second.queue]
    watch = ConsumerWatch(first.database)
    first.push(first.payload(1))
    with program(first, "taker") as taker, taker.database.transaction("pop") as connection:
        assert pop.pop_many(connection, first.queue, 1)
        sample = watch.sample(both, {})
    assert [len(sample[key_of(queue)].consumers) for queue in both] == [1, 0]


@pytest.mark.usefixtures("requires_session_views")
def test_the_cost_of_sampling_consumers_does_not_grow_with_the_queue(use: Use) -> None:
    client = use(default("claim"))
    watch = ConsumerWatch(client.database)
    sampled(client, watch)
    client.push_many(client.payloads(*range(MOST + 200)))
    with program(client, "many") as many:
        many.pop_many(MOST + 200, "hoarder")
        with labels_run() as seen:
            found = sampled(client, watch)
    one = named(found, "hoarder")
    assert (one.claims, one.estimated) == (MOST, ("claims",))
    assert seen == {"server.transaction_settings", "monitor.consumers", "activity.clients"}


ROLES = {"id": "id", "claimed_at": "started", "claimed_by": "worker", "payload": "body"}


def test_consumers_of_an_adopted_table_are_known_by_claims_and_statements(
    new_database: Database,
) -> None:
    with new_database.transaction("prepare") as connection:
        connection.execute(
            text("CREATE TABLE public.jobs (id int, started timestamptz, worker text, body text)")
        )
    queue = adopt(new_database, "public", "jobs", design("claim"), ROLES)
    words = new_database.url.translate_connect_args(username="user", database="dbname")
    with (
        closing(psycopg.connect(**words, application_name="web", autocommit=True)) as web,
        closing(psycopg.connect(**words, application_name="worker 7", autocommit=True)) as worker,
    ):
        web.execute("INSERT INTO public.jobs VALUES (1), (2), (3)")
        taken = SQL("UPDATE jobs SET started = now(), worker = {} WHERE id = {}")
        worker.execute(taken.format("worker 7", 1))
        worker.execute(taken.format("worker 8", 2))
        consumers = ConsumerWatch(new_database).sample([queue], {key_of(queue): 4.0})[key_of(queue)]
    by_name: dict[str | None, Consumer] = {
        consumer.name: consumer for consumer in consumers.consumers
    }
    assert set(by_name) == {"web", "worker 7", "worker 8"}
    assert (by_name["web"].does, by_name["web"].claims) == (("push",), None)
    seven, eight = by_name["worker 7"], by_name["worker 8"]
    assert (seven.does, seven.claims, seven.sessions) == (("pop",), 1, 1)
    assert (eight.claims, eight.sessions) == (1, None)
    assert "no session of the server" in eight.unknown["sessions"]
    assert None not in (seven.last_pop, seven.messages_per_second, eight.last_pop)


def test_without_a_column_for_consumers_a_reason_is_shown(new_database: Database) -> None:
    with new_database.transaction("prepare") as connection:
        connection.execute(
            text("CREATE TABLE public.jobs (id int, started timestamptz, body text)")
        )
    roles = {role: column for role, column in ROLES.items() if role != "claimed_by"}
    queue = adopt(new_database, "public", "jobs", design("claim"), roles)
    words = new_database.url.translate_connect_args(username="user", database="dbname")
    with closing(psycopg.connect(**words, application_name="w", autocommit=True)) as worker:
        worker.execute("DELETE FROM jobs WHERE id = 1")
        (consumer,) = ConsumerWatch(new_database).sample([queue], {})[key_of(queue)].consumers
    assert (consumer.name, consumer.does, consumer.last_pop, consumer.claims) == (
        "w",
        ("pop",),
        None,
        None,
    )
    assert "no column is mapped" in consumer.unknown["last_pop"]


def test_claims_are_shown_even_if_the_server_refuses_its_session_views(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = use(Variant(design("claim"), {}))
    client.push(client.payload(1))
    client.pop_many(1, "night shift")
    watch = ConsumerWatch(client.database)

    def refused(*_: object) -> None:
        raise RefusedError("Could not read.", why="no right to it")

    monkeypatch.setattr(watch, "_clients", refused)
    consumers = watch.sample([client.queue], {})[key_of(client.queue)]
    assert [(consumer.name, consumer.claims) for consumer in consumers.consumers] == [
        ("night shift", 1)
    ]
    assert consumers.missing == {"sessions": "no right to it"}


@pytest.mark.parametrize(
    ("statement", "does"),
    [
        ('SELECT * FROM "public"."mail_pop"()', {"pop"}),
        ("select * from MAIL_POP_MANY(10)", {"pop"}),
        ("SELECT public . mail_push('x')", {"push"}),
        ("SELECT mail_push(payload) FROM mail_pop()", {"push", "pop"}),
        ("SELECT mail_complete(1)", {"pop"}),
        ("SELECT hotmail_pop()", set()),
        ("SELECT mail_pop_x()", set()),
        ("SELECT other.mail_pop()", set()),
        ("SELECT * FROM mail", set()),
        ("COMMIT", set()),
        (None, set()),
    ],
)
def test_a_statement_is_recognised_as_a_push_or_pop(statement: str | None, does: set[str]) -> None:
    product = PRODUCTS["postgresql"]
    queue = installed_queue("public", "mail", design("fifo"), {"payload": "text"})
    found = call_pattern(product, queue)
    assert isinstance(found, re.Pattern)
    assert actions_in(found, queue, statement) == does
