"""The servers that the suite runs on, and databases on them."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg.sql import SQL, Identifier
from sqlalchemy import Engine, event, make_url

from console.engines import Database, Timeouts, open_database
from console.engines.embedded import EmbeddedServer


def url_of(engine: str) -> str:
    """Where a server of the engine is that somebody else runs; nothing where none is named."""
    return os.environ.get(f"DBQ_TEST_{engine.upper()}_URL", "")


@dataclass(frozen=True)
class ExternalServer:
    """A server that somebody else runs: nobody kills it here."""

    url: str


PATIENCE_SECONDS = 180.0
"""How long anything is waited for: for defects, no machine at work is so slow."""

TIMEOUTS = Timeouts(statement_seconds=120.0, lock_seconds=60.0)
"""Patient: a slow machine is no defect."""

Server = EmbeddedServer | ExternalServer
EXTERNAL_URL = url_of("postgresql")


def connect(url: str) -> psycopg.Connection:
    """A plain psycopg connection, autocommit, by SQLAlchemy's URL."""
    words = make_url(url).translate_connect_args(username="user", database="dbname")
    return psycopg.connect(**words, autocommit=True, connect_timeout=10)


def value(url: str, query: str) -> object:
    """The one value that a query returns."""
    with connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def run_in(url: str, schema: str, script: str) -> None:
    """Several statements at once, with the schema first on the path."""
    with connect(url) as connection:
        connection.execute(f'SET search_path = "{schema}", public'.encode())
        connection.execute(script.encode())


READ_CATALOG = ("GRANT USAGE ON SCHEMA dbq TO {}", "GRANT SELECT ON ALL TABLES IN SCHEMA dbq TO {}")


@contextmanager
def login(url: str, *grants: str) -> Iterator[str]:
    """The URL of a login with these rights alone, its name at `{}` in each; at the end it goes."""
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
    """SIGKILL a session's process; False where it had ended before.

    The whole server recovers from it. This returns when the server has noticed, which ends all its
    sessions: the victim's own connection breaks earlier, and others are still served until then.
    """
    with closing(connect(url)) as witness:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        with suppress(psycopg.OperationalError):
            witness.execute("SELECT pg_sleep(60)")
    return True


def restart_as_standby(server: EmbeddedServer) -> Path:
    """Start a stopped server as a standby, for as long as the file that this returns is there."""
    assert server.folder is not None
    signal_file = server.folder / "data" / "standby.signal"
    signal_file.touch()
    signal_file.chmod(0o644)
    server.restart()
    return signal_file


@contextmanager
def fresh_database(server_url: str) -> Iterator[str]:
    """The URL of an empty database; at the end it goes, whoever is still connected to it."""
    name = f"dbq_test_{uuid4().hex}"
    with connect(server_url) as connection:
        # Nobody is ever connected to template0, so databases can be made side by side.
        create = SQL("CREATE DATABASE {} TEMPLATE template0").format(Identifier(name))
        if connection.info.server_version >= 150000:  # its files, not a record of each page
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
    """What is sent through SQLAlchemy from now on, to any server."""
    sent: list[str] = []

    def ran(_: object, __: object, statement: str, *rest: object) -> None:
        sent.append(statement)

    event.listen(Engine, "after_cursor_execute", ran)
    try:
        yield sent
    finally:
        event.remove(Engine, "after_cursor_execute", ran)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Poll until the condition holds; a failure names `what` did not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)
