"""A database without an encoding takes any bytes as text: one bad row is shown as bad, the others
as ever."""

from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import text

from console.engines import open_database
from tests.cli.calls import Console
from tests.servers import Server, connect, execute

pytestmark = pytest.mark.slow

BAD = rb"E'\xff\xfe caf\xc3\xa9'"


@pytest.fixture(scope="module")
def console(server: Server) -> Iterator[Console]:
    name = f"dbq_test_{uuid4().hex}"
    with connect(server.url) as connection:
        words = "CREATE DATABASE {} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'"
        connection.execute(SQL(words).format(Identifier(name)))
    yield Console(server.url.rpartition("/")[0] + f"/{name}")
    execute(server.url, SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


@pytest.mark.parametrize("design", ["fifo", "claim", "pending", "split"])
@pytest.mark.parametrize("payload", ["text", "json"])
def test_bytes_that_are_no_utf_8_are_escaped(console: Console, design: str, payload: str) -> None:
    name = f"{design}_{payload}"
    console.done("install", design, name, "--option", f"payload={payload}")
    console.done("push", name, '"é"')
    table, column = (f"{name}_data", "text_data") if design == "split" else (name, "payload")
    value = rb"E'\"\xff caf\xc3\xa9\"'" if payload == "json" else BAD
    console.done("push", name, '"x"')
    with connect(console.url) as connection:
        update = f"UPDATE {table} SET {column} = ".encode() + value
        connection.execute(update + f" WHERE {column}::text LIKE '%x%'".encode())
    shown = console.done("messages", name, "--payload", "--json").json["messages"]
    bad = r'"\xff café"' if payload == "json" else r"\xff\xfe café"
    assert sorted(one["payload"] for one in shown) == sorted(['"é"', bad])
    for words in (["messages", name], ["doctor", name, "--idle-for", "0s"], ["status", name]):
        assert console(*words).status in {0, 1}, words


def test_an_error_text_of_any_bytes_is_shown(console: Console) -> None:
    console.done("install", "claim", "failed")
    console.done("push", "failed", "x")
    console.done("push", "failed", "y")
    with connect(console.url) as connection:
        connection.execute(b"UPDATE failed SET errors = " + BAD + b" WHERE payload = 'x'")
        connection.execute(b"UPDATE failed SET errors = 'caf\xc3\xa9' WHERE payload = 'y'")
    groups = console.done("errors", "failed", "--json").json["groups"]
    assert {group["sample"] for group in groups} == {r"\xff\xfe café", "café"}
    listed = console.done("messages", "failed", "--json").json["messages"]
    assert {one["error"] for one in listed} == {r"\xff\xfe café", "café"}
    assert (
        console.done("requeue", "failed", "--yes", "failed", "--json").json["result"]["done"] == 2
    )


def test_a_push_of_bytes_that_are_no_text_is_refused_in_words(console: Console) -> None:
    console.done("install", "fifo", "refusing")
    console("push", "refusing", "-", stdin=b"\xff\xfe").failed(2, "not valid UTF-8")


def raw(console: Console, query: str) -> list[bytes]:
    """The bytes of the only column, as they are in the database."""
    with connect(console.url) as connection:
        connection.execute(b"SET client_encoding = 'SQL_ASCII'")
        rows = connection.execute(query.encode(), binary=True).fetchall()
    return [bytes(value) for (value,) in rows]


def test_a_session_keeps_its_encoding_for_the_next_client(console: Console) -> None:
    """Behind a pooler a session is another's next."""
    with closing(open_database(console.url)) as database:
        with database.transaction("read") as connection:
            query = text("SELECT current_setting('client_encoding'), 'é', E'\\xff'")
            assert tuple(connection.execute(query).one()) == ("SQL_ASCII", "é", r"\xff")
        with database.autocommit("read") as connection:
            query = text("SELECT current_setting('client_encoding'), 'é'")
            assert tuple(connection.execute(query).one()) == ("UTF8", "é")


BYTES = b"\xff\xfe caf\xc3\xa9"


@pytest.mark.parametrize("design", ["fifo", "ring", "claim", "split"])
def test_a_popped_message_has_its_own_bytes(console: Console, design: str) -> None:
    """It leaves the queue: what stdout gets is all that is left of it."""
    name = f"popped_{design}"
    console.done("install", design, name)
    for answer in (["--count", "9"], ["--json", "--count", "9"]):
        with connect(console.url) as connection:
            for payload in (BAD, b"'caf\xc3\xa9'", rb"'\xff'"):
                connection.execute(f"SELECT {name}_push(".encode() + payload + b")")
        out = console.done("pop", name, *answer)
        if "--json" not in answer:
            assert out.out == BYTES + b"\ncaf\xc3\xa9\n\\xff\n"
            continue
        shown = [(one["encoding"], one["payload"]) for one in out.json["messages"]]
        encoded = ("base64", b64encode(BYTES).decode())
        assert shown == [encoded, ("text", "café"), ("text", r"\xff")]


def test_what_is_moved_has_the_same_bytes(console: Console) -> None:
    console.done("install", "claim", "source")
    console.done("install", "fifo", "target")
    console.done("push", "source", "é")
    console.done("pop", "source")
    with connect(console.url) as connection:
        update = b"UPDATE source SET errors = 'no', done_at = now(), payload = "
        connection.execute(update + BAD)
    console.done("requeue", "source", "--to", "target", "--yes", "source")
    assert raw(console, "SELECT textsend(payload) FROM target") == [BYTES]
    console.done("purge", "target", "--yes", "target")
    assert raw(console, "SELECT textsend(payload) FROM target_archive") == [BYTES]
    console.done("restore", "target", "--yes", "target")
    assert raw(console, "SELECT textsend(payload) FROM target") == [BYTES]


def test_what_an_owner_runs_may_have_any_letters(console: Console) -> None:
    """The statements that move messages of an adopted table run as its owner, in a function."""
    owner = f"häuser_{uuid4().hex[:8]}"
    execute(
        console.url,
        f"""CREATE ROLE "{owner}"; CREATE SCHEMA "straße" AUTHORIZATION "{owner}";
            CREATE TABLE "straße"."tür" ("größe" text, "text é" text, geholt timestamptz,
                "fehlér" text, fertig timestamptz);
            ALTER TABLE "straße"."tür" OWNER TO "{owner}";
            INSERT INTO "straße"."tür" VALUES ('ä', 'é', now(), 'nö', now()),
                ('b', E'\\xff', now(), E'\\xfe', now())""",
    )
    roles = {"id": "größe", "payload": "text é", "claimed_at": "geholt", "error": "fehlér"}
    words = [word for role, column in roles.items() for word in ("--map", f"{role}={column}")]
    place = ("tür", "--schema", "straße")
    try:
        console.done("adopt", *place, "--design", "claim", *words)
        assert len(console.done("messages", *place, "--json", "--payload").json["messages"]) == 2
        result = console.done("requeue", *place, "--yes", "tür", "--json").json["result"]
        assert (result["done"], result["failed"]) == (2, {})
        row = 'SELECT textsend("text é") FROM "straße"."tür" WHERE "fehlér" IS NULL'
        assert sorted(raw(console, row)) == ["é".encode(), b"\xff"]
    finally:
        console("forget", *place)
        execute(console.url, f'DROP SCHEMA "straße" CASCADE; DROP ROLE "{owner}"')


def test_a_key_of_any_letters_filters(console: Console) -> None:
    console.done("install", "fifo", "letters", "--option", "payload=json")
    console.done("push", "letters", '{"é\x7f": 7}')
    filters = ("--filter", 'payload."é\x7f"=7')
    assert len(console.done("messages", "letters", "--json", *filters).json["messages"]) == 1
    console.done("pause", "letters", "--reason", "né", "--yes", "letters")
    console.done("resume", "letters", "--yes", "letters")
