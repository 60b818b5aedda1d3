"""What the login of a connection could do at the server, whatever the connection is for."""

from collections.abc import Sequence

from sqlalchemy import Connection

from console import sql
from console.catalog import Kind, Queue
from console.engines import Database, Product
from console.errors import ConnectionFailedError, ConsoleError
from console.rights import Login


def login_can(connection: Connection, product: Product, queues: Sequence[Queue]) -> Login:
    """What it could do to these queues, and to the server."""
    statement = sql.statements(product.name, "server")["login_can"]
    asked = [queue for queue in queues if queue.kind is not Kind.ARCHIVE]
    (row,) = sql.fetch(
        connection,
        Login,
        statement,
        sql.Scope(),
        schemas=product.array([queue.schema for queue in asked]),
        tables=product.array([queue.table for queue in asked]),
        queues=product.array([queue.name for queue in asked]),
    )
    return row


def probe(database: Database, queues: Sequence[Queue]) -> Login | None:
    """The same on a connection of its own; None where it cannot be told. ConnectionFailedError."""
    try:
        with database.transaction("look at what the login can do", read_only=True) as connection:
            return login_can(connection, database.product, queues)
    except ConnectionFailedError:
        raise
    except ConsoleError:
        return None
