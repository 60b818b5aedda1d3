"""Tables of others whose columns have an extension's type, an enum or a domain: every verb finds,
in the order of its keys, each message once."""

import pytest

from console.actions.archive import Purge
from console.actions.requeue import Release, Requeue
from console.designs import DESIGNS
from console.doctor.diagnose import diagnose
from console.engines import Database
from console.errors import RefusedError, UsageError
from console.features.presets.adopt import adopt
from console.monitor.errors import error_groups
from console.monitor.filters import parse
from console.monitor.message import Message
from console.monitor.messages import read_page
from console.monitor.sample import take_sample
from tests.contract.client import Client
from tests.contract.message_actions import run, source_of
from tests.servers import connect, execute

TYPES = """
CREATE SCHEMA ext;
CREATE EXTENSION citext SCHEMA ext;
CREATE TYPE ext.letter AS ENUM ('b', 'B', 'C', 'a', 'A', 'c', 'd', 'E');
CREATE DOMAIN ext.number AS bigint CHECK (VALUE > 0);
CREATE DOMAIN ext.word AS text;
CREATE DOMAIN ext.name AS ext.citext;
CREATE DOMAIN ext.moment AS timestamptz;
"""
KEYS = ("a", "B", "c", "d", "E")
IDS = {
    "ext.citext": KEYS,
    "ext.name": KEYS,
    "ext.letter": KEYS,
    "ext.word": KEYS,
    "ext.number": ("7", "100", "20", "9", "1"),
    "varchar(3)": KEYS,
    "char(3)": KEYS,
    "numeric": ("7", "100", "20", "9.5", "1"),
}
ROLES = {"id": "id", "payload": "body", "pushed_at": "at", "claimed_at": "taken"}
ROLES |= {"claimed_by": "who", "error": "why"}


@pytest.fixture(scope="module")
def types(postgresql: Database) -> Database:
    with connect(postgresql.url.render_as_string(hide_password=False)) as connection:
        available = "SELECT FROM pg_available_extensions WHERE name = 'citext'"
        if connection.execute(available).fetchone() is None:
            pytest.skip("this server has no citext")
        connection.execute(TYPES.encode())
    return postgresql


@pytest.fixture(params=IDS)
def client(types: Database, request: pytest.FixtureRequest) -> Client:
    """Five messages in each state: their keys are all that differs."""
    type_ = request.param
    table = f"of {type_}"
    with connect(types.url.render_as_string(hide_password=False)) as connection:
        connection.execute(
            f"""CREATE TABLE public."{table}" (id {type_} PRIMARY KEY, body jsonb,
            at ext.moment, taken ext.moment, who ext.citext, why ext.citext)""".encode()
        )
        for key in IDS[type_]:
            connection.execute(
                f"""INSERT INTO public."{table}" VALUES
                (%s, '{{"n": 1}}', now(), now() - interval '1 h', 'Worker', 'No such file')
                """.encode(),
                [key],
            )
    queue = adopt(types, "public", table, DESIGNS["claim"], ROLES)
    return Client(types, queue)


def pages(client: Client, *words: str) -> list[Message]:
    messages: list[Message] = []
    after: str | None = None
    while after is not None or not messages:
        page = read_page(client.database, client.queue, parse(words), limit=2, after=after)
        messages += page.messages
        after = page.next.text if page.next else None
        if not page.messages:
            break
    return messages


def test_every_message_is_found_once_and_every_verb_works(client: Client) -> None:
    keys = sorted(IDS[client.queue.name.removeprefix("of ")])
    with connect(client.url) as connection:
        query = f'SELECT t.id::text FROM public."{client.queue.name}" AS t ORDER BY t.id DESC'
        in_order = [key for (key,) in connection.execute(query.encode())]
    assert sorted(key.strip() for key in in_order) == keys
    assert [page.id for page in pages(client)] == in_order
    assert [page.id for page in pages(client, "state=error")] == in_order
    for key in in_order:
        (message,) = read_page(client.database, client.queue, parse([f"id={key}"])).messages
        assert message.id == key
    assert len(pages(client, "error~SUCH")) == len(keys)
    assert len(pages(client, "payload.n=1")) == len(keys)
    assert [group.count for group in error_groups(client.database, client.queue).groups] == [5]
    assert not take_sample(client.database, only=[client.queue]).queues[0].problem
    assert diagnose(client.database, [client.queue]) is not None

    source = source_of(client)
    assert run(client, Requeue(source), f"id={in_order[0]}").ledger.out == 1
    assert run(client, Requeue(source), "limit=2", batch=1).ledger.out == 2
    with connect(client.url) as connection:
        claim = f"""UPDATE public."{client.queue.name}" SET taken = now() - interval '1 h',
            who = 'w' WHERE taken IS NULL"""
        assert connection.execute(claim.encode()).rowcount == 3
    assert len(pages(client, "claimed_by=w")) == 3
    assert run(client, Release(source, stuck_after_seconds=1.0, unknown=True)).ledger.out == 3
    done = run(client, Purge(source, permanently=True), batch=2)
    assert done.ledger.out == len(keys)
    assert pages(client) == []


def test_a_key_whose_type_has_no_order_is_refused_in_words(types: Database) -> None:
    execute(
        types.url.render_as_string(hide_password=False),
        "CREATE TABLE public.places (id point, why text, body text)",
    )
    with pytest.raises(UsageError, match="point"):
        adopt(types, "public", "places", DESIGNS["fifo"], {"id": "id", "payload": "body"})
    execute(
        types.url.render_as_string(hide_password=False),
        "ALTER TABLE public.places ALTER id TYPE text",
    )
    queue = adopt(types, "public", "places", DESIGNS["fifo"], {"id": "id", "payload": "body"})
    execute(
        types.url.render_as_string(hide_password=False),
        "ALTER TABLE public.places ALTER id TYPE point USING NULL",
    )
    with pytest.raises(RefusedError, match="point"):
        read_page(types, queue)
