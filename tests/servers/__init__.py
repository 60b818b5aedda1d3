"""The suite's servers, and databases on them."""

import itertools
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

import psycopg
from psycopg.sql import SQL, Composed, Identifier
from sqlalchemy import Engine, event, make_url

from console.engines import Database, Timeouts, open_database

if TYPE_CHECKING:
    # A copy without the demo has none.
    from console.features.demo.embedded import EmbeddedServer


def url_of(engine: str) -> str:
    """The URL of an external server of the engine; empty if none is named."""
    return os.environ.get(f"DBQ_TEST_{engine.upper()}_URL", "")


@dataclass(frozen=True)
class ExternalServer:
    """A server that the suite did not start, and never kills."""

    url: str


PATIENCE_SECONDS = 180.0
"""The limit of every wait. Only a defect takes this long, not a slow machine."""

TIMEOUTS = Timeouts(statement_seconds=120.0, lock_seconds=60.0)
"""Generous: a slow machine is not a defect."""

Server: TypeAlias = "EmbeddedServer | ExternalServer"
EXTERNAL_URL = url_of("postgresql")


def connect(url: str) -> psycopg.Connection:
    """A plain psycopg connection, autocommit, by SQLAlchemy's URL."""
    words = make_url(url).translate_connect_args(username="user", database="dbname")
    return psycopg.connect(**words, autocommit=True, connect_timeout=10)


def execute(
    url: str, statement: str | bytes | SQL | Composed, values: Sequence[Any] | None = None
) -> list[Any]:
    """Run a statement on a connection of its own; its rows."""
    with connect(url) as connection:
        sent = statement.encode() if isinstance(statement, str) else statement
        cursor = connection.execute(sent, values)
        return cursor.fetchall() if cursor.description is not None else []


def value(url: str, query: str) -> object:
    """The one value that a query returns."""
    ((found,),) = execute(url, query)
    return found


def run_in(url: str, schema: str, script: str) -> None:
    """Run several statements, with the schema first in the search path."""
    with connect(url) as connection:
        connection.execute(f'SET search_path = "{schema}", public'.encode())
        connection.execute(script.encode())


READ_CATALOG = ("GRANT USAGE ON SCHEMA dbq TO {}", "GRANT SELECT ON ALL TABLES IN SCHEMA dbq TO {}")


@contextmanager
def login(url: str, *grants: str) -> Iterator[str]:
    """The URL of a login with only these rights, `{}` being its name; it is dropped at the end."""
    name = f"dbq_test_{uuid4().hex}"
    with connect(url) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'".encode())
        try:
            for grant in grants:
                connection.execute(grant.format(name).encode())
            theirs = make_url(url).set(username=name, password="x")
            yield theirs.render_as_string(hide_password=False)
        finally:
            connection.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


def kill_session(url: str, pid: int) -> bool:
    """SIGKILL a session's process; False if it had already ended.

    The whole server crashes and recovers. This returns once the server has noticed and ended all
    sessions: the killed session's connection breaks earlier, others are served until then.
    """
    with closing(connect(url)) as witness:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        with suppress(psycopg.OperationalError):
            witness.execute("SELECT pg_sleep(60)")
    return True


def ensure_running(server: "EmbeddedServer") -> None:
    """Resume or restart the server if needed."""
    if server.running:
        server.resume()
    else:
        server.restart()


def restart_as_standby(server: "EmbeddedServer") -> Path:
    """Start a stopped server as a standby, as long as the returned file exists."""
    assert server.folder is not None
    signal_file = server.folder / "data" / "standby.signal"
    signal_file.touch()
    signal_file.chmod(0o644)
    server.restart()
    return signal_file


@contextmanager
def fresh_database(server_url: str) -> Iterator[str]:
    """The URL of an empty database, dropped at the end even if sessions are connected."""
    name = f"dbq_test_{uuid4().hex}"
    with connect(server_url) as connection:
        # No session can connect to template0, so databases can be created concurrently.
        create = SQL("CREATE DATABASE {} TEMPLATE template0").format(Identifier(name))
        if connection.info.server_version >= 150000:  # copy files instead of logging each page
            create += SQL(" STRATEGY file_copy")
        connection.execute(create)
    try:
        url = make_url(server_url).set(drivername="postgresql+psycopg", database=name)
        yield url.render_as_string(hide_password=False)
    finally:
        with connect(server_url) as connection:
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


@contextmanager
def fresh_mssql_database(server_url: str) -> Iterator[str]:
    """The URL of an empty database on a server that speaks T-SQL.

    With DBQ_TEST_MSSQL_RCSI=on, READ COMMITTED reads row versions in it, as it does in Azure.
    """
    name = f"dbq_test_{uuid4().hex}"
    server = open_database(server_url, timeouts=Timeouts(statement_seconds=120.0))
    try:
        alters = "babelfish" not in server.capabilities.facts
        has_broker = server.capabilities.facts["product"].startswith("SQL Server")
        _run(server, f"CREATE DATABASE [{name}]")
        try:
            if alters and os.environ.get("DBQ_TEST_MSSQL_RCSI") == "on":
                _run(server, f"ALTER DATABASE [{name}] SET READ_COMMITTED_SNAPSHOT ON")
            if has_broker:
                _run(server, f"ALTER DATABASE [{name}] SET ENABLE_BROKER")
            yield make_url(server_url).set(database=name).render_as_string(hide_password=False)
        finally:
            if alters:
                _run(server, f"ALTER DATABASE [{name}] SET SINGLE_USER WITH ROLLBACK IMMEDIATE")
            _run(server, f"DROP DATABASE [{name}]")
    finally:
        server.close()


def _run(server: Database, statement: str) -> None:
    with server.autocommit("prepare a database for tests") as connection:
        connection.exec_driver_sql(statement)


@contextmanager
def statements_sent() -> Iterator[list[str]]:
    """The statements sent through SQLAlchemy during the block, to any server."""
    sent: list[str] = []

    def ran(_: object, __: object, statement: str, *rest: object) -> None:
        sent.append(statement)

    event.listen(Engine, "after_cursor_execute", ran)
    try:
        yield sent
    finally:
        event.remove(Engine, "after_cursor_execute", ran)


@contextmanager
def at_statement(number: int, act: Callable[[], object]) -> Iterator[Callable[[], bool]]:
    """Call `act` once, after so many statements; returns whether it was called."""
    count = itertools.count(1)
    called = False

    def ran(*_: object) -> None:
        nonlocal called
        if next(count) == number:
            called = True
            act()

    event.listen(Engine, "after_cursor_execute", ran)
    try:
        yield lambda: called
    finally:
        event.remove(Engine, "after_cursor_execute", ran)


def free_port() -> int:
    """A port of the loopback that nothing listened on a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Poll until the condition holds; the failure's message contains `what`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)
