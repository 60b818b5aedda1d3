"""Consumers of a table that somebody else made, and what a statement tells of its session."""

import re
from contextlib import closing

import psycopg
import pytest
from psycopg.sql import SQL
from sqlalchemy import text

from console.actions.adopt import adopt
from console.catalog import installed_queue
from console.designs import design
from console.engines import PRODUCTS, Database
from console.errors import RefusedError
from console.monitor.consumer_watch import ConsumerWatch
from console.monitor.consumers import Consumer
from console.monitor.figures import key_of
from console.monitor.statement_text import actions_in, call_pattern
from tests.contract.conftest import Use
from tests.contract.variants import Variant

ROLES = {"id": "id", "claimed_at": "started", "claimed_by": "worker", "payload": "body"}


def test_an_adopted_table_by_its_column_and_its_statements(virgin: Database) -> None:
    with virgin.transaction("prepare") as connection:
        connection.execute(
            text("CREATE TABLE jobs (id int, started timestamptz, worker text, body text)")
        )
    queue = adopt(virgin, "public", "jobs", design("claim"), ROLES)
    words = virgin.url.translate_connect_args(username="user", database="dbname")
    with (
        closing(psycopg.connect(**words, application_name="web", autocommit=True)) as web,
        closing(psycopg.connect(**words, application_name="worker 7", autocommit=True)) as worker,
    ):
        web.execute("INSERT INTO public.jobs VALUES (1), (2), (3)")
        taken = SQL("UPDATE jobs SET started = now(), worker = {} WHERE id = {}")
        worker.execute(taken.format("worker 7", 1))
        worker.execute(taken.format("worker 8", 2))
        found = ConsumerWatch(virgin).sample([queue], {key_of(queue): 4.0})[key_of(queue)]
    by_name: dict[str | None, Consumer] = {one.name: one for one in found.consumers}
    assert set(by_name) == {"web", "worker 7", "worker 8"}
    assert (by_name["web"].does, by_name["web"].claims) == (("push",), None)
    seven, eight = by_name["worker 7"], by_name["worker 8"]
    assert (seven.does, seven.claims, seven.sessions) == (("pop",), 1, 1)
    assert (eight.claims, eight.sessions) == (1, None)
    assert "no session of the server" in eight.unknown["sessions"]
    assert None not in (seven.last_pop, seven.messages_per_second, eight.last_pop)


def test_without_a_column_for_it_the_reason_is_told(virgin: Database) -> None:
    with virgin.transaction("prepare") as connection:
        connection.execute(text("CREATE TABLE jobs (id int, started timestamptz, body text)"))
    roles = {role: column for role, column in ROLES.items() if role != "claimed_by"}
    queue = adopt(virgin, "public", "jobs", design("claim"), roles)
    words = virgin.url.translate_connect_args(username="user", database="dbname")
    with closing(psycopg.connect(**words, application_name="w", autocommit=True)) as worker:
        worker.execute("DELETE FROM jobs WHERE id = 1")
        (one,) = ConsumerWatch(virgin).sample([queue], {})[key_of(queue)].consumers
    assert (one.name, one.does, one.last_pop, one.claims) == ("w", ("pop",), None, None)
    assert "no column is mapped" in one.unknown["last_pop"]


def test_where_the_server_refuses_its_views_claims_are_told_all_the_same(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = use(Variant(design("claim"), {}))
    client.push(client.payload(1))
    client.pop_many(1, "night shift")
    watch = ConsumerWatch(client.database)

    def refused(*_: object) -> None:
        raise RefusedError("Could not read.", why="no right to it")

    monkeypatch.setattr(watch, "_clients", refused)
    found = watch.sample([client.queue], {})[key_of(client.queue)]
    assert [(one.name, one.claims) for one in found.consumers] == [("night shift", 1)]
    assert found.missing == {"sessions": "no right to it"}


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
def test_what_a_statement_tells(statement: str | None, does: set[str]) -> None:
    product = PRODUCTS["postgresql"]
    queue = installed_queue("public", "mail", design("fifo"), {"payload": "text"})
    found = call_pattern(product, queue)
    assert isinstance(found, re.Pattern)
    assert actions_in(found, queue, statement) == does
