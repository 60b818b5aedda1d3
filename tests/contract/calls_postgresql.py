"""Calls of a queue's functions with named arguments, as any program may make them."""

from contextlib import closing
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from tests.contract.client import Client
from tests.servers import connect


def call(client: Client, function: str, **arguments: object) -> list[tuple[Any, ...]]:
    """Call `<queue>_<function>` with named arguments, in a session and transaction of its own."""
    with closing(connect(client.url)) as connection:
        return call_in(connection, client, function, **arguments)


def call_in(
    connection: psycopg.Connection, client: Client, function: str, **arguments: object
) -> list[tuple[Any, ...]]:
    if client.queue.subscriber and not function.startswith("push"):
        arguments["subscriber"] = client.queue.subscriber
    name = Identifier(client.queue.schema, f"{client.queue.name}_{function}")
    named = SQL(", ").join(SQL("{} => %s").format(Identifier(key)) for key in arguments)
    query = SQL("SELECT * FROM {}({})").format(name, named)
    return connection.execute(query, list(arguments.values())).fetchall()
