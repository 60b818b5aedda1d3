"""A database without an encoding takes any bytes as text: one bad row is shown as bad, the others
as ever."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from psycopg.sql import SQL, Identifier

from tests.cli.calls import Console
from tests.servers import Server, connect

BAD = rb"E'\xff\xfe caf\xc3\xa9'"


@pytest.fixture(scope="module")
def console(server: Server) -> Iterator[Console]:
    name = f"dbq_test_{uuid4().hex}"
    with connect(server.url) as connection:
        words = "CREATE DATABASE {} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'"
        connection.execute(SQL(words).format(Identifier(name)))
    yield Console(server.url.rpartition("/")[0] + f"/{name}")
    with connect(server.url) as connection:
        connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


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
    assert {one["sample"] for one in groups} == {r"\xff\xfe café", "café"}
    listed = console.done("messages", "failed", "--json").json["messages"]
    assert {one["error"] for one in listed} == {r"\xff\xfe café", "café"}
    assert (
        console.done("requeue", "failed", "--yes", "failed", "--json").json["result"]["done"] == 2
    )


def test_a_push_of_bytes_that_are_no_text_is_refused_in_words(console: Console) -> None:
    console.done("install", "fifo", "refusing")
    answer = console("push", "refusing", "-", stdin=b"\xff\xfe")
    assert (answer.status, "not valid UTF-8" in answer.err) == (2, True)
