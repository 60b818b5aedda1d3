"""The engine `mssql`."""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import sqlalchemy
from sqlalchemy import URL, Connection, Engine
from sqlalchemy.dialects import registry
from sqlalchemy.engine.interfaces import Dialect as AnyDialect
from sqlalchemy.exc import DBAPIError

from console.engines.mssql import capabilities, connecting, errors, script
from console.engines.mssql.drivers import Driver, choose, load_pyodbc
from console.engines.mssql.session import CONNECTING, Dialect, Session, without
from console.engines.product import Capabilities, Timeouts
from console.engines.turns import Turns
from console.engines.waiting import patience_left
from console.errors import ConsoleError

registry.register(f"mssql.{Dialect.driver}", Dialect.__module__, Dialect.__name__)


class SQLServer:
    """The engine `mssql`."""

    name = "mssql"
    title = "SQL Server"
    default_schema = "dbo"
    name_limit = 128
    name_unit = "characters"
    payload_types: Mapping[str, str] = {
        "text": "nvarchar(max)",
        "json": "nvarchar(max)",
        "bytes": "varbinary(max)",
    }
    id_types: Mapping[str, str] = {"bigint": "bigint", "uuid": "uniqueidentifier"}

    read_only_options: Mapping[str, bool] = {}
    """SQL Server has no read-only transactions: the rights of the login are what counts."""

    @cached_property
    def dialect(self) -> AnyDialect:
        """For quoting where no connection is at hand."""
        return Dialect()  # type: ignore[no-untyped-call]

    def name_length(self, name: str) -> int:
        """Units of UTF-16: what sysname, an nvarchar(128), counts."""
        return len(name.encode("utf-16-le")) // 2

    def as_script(self, head: str, pieces: Sequence[str]) -> str:
        """One transaction for sqlcmd, SSMS or any other client that ends a batch at GO."""
        return script.as_script(head, pieces)

    def array(self, values: Sequence[str | bytes]) -> object:
        """JSON text, which OPENJSON reads; bytes as hexadecimal digits."""
        texts = [v.hex() if isinstance(v, bytes) else v for v in values]
        return json.dumps(texts, ensure_ascii=False)

    def label(self, url: URL) -> str:
        """Server, port and database, also of an `odbc_connect`."""
        return connecting.label(url)

    def create_engine(self, url: URL, timeouts: Timeouts, application_name: str) -> Engine:
        """A pool of lazily opened connections with every time-out set."""
        odbc = load_pyodbc()
        sources = _data_sources(odbc)
        asked = connecting.target(url, list(sources))
        driver = (
            Driver(asked.driver or sources.get(asked.dsn.casefold(), ""))
            if asked.dsn
            else choose(asked.driver, odbc)
        )
        text = connecting.connection_string(asked, driver, application_name)
        name = connecting.label(url)
        turns = Turns()

        def connect() -> Session:
            try:
                raw = odbc.connect(text, autocommit=True, timeout=_seconds_to_connect(timeouts))
                session = Session(raw, odbc, driver.family)
                try:
                    # The driver knows each column's code page; pyodbc would guess.
                    raw.setdecoding(odbc.SQL_CHAR, encoding="utf-16le", ctype=odbc.SQL_WCHAR)
                    session.set_up(timeouts)
                except BaseException:
                    session.close()
                    raise
            except odbc.Error as error:
                told = without(error, asked.secrets)
                told.add_note(f"{CONNECTING}{name}")
                raise told from None
            return session

        return sqlalchemy.create_engine(
            # Without the URL's own parts: nothing that shows the engine can show a secret.
            f"mssql+{Dialect.driver}://",
            creator=lambda: turns.connect(connect),
            pool_size=4,
            max_overflow=4,
            pool_timeout=timeouts.connect_seconds,
            pool_pre_ping=True,
        )

    def capabilities(self, connection: Connection) -> Capabilities:
        """Ask once what server and login this is."""
        return capabilities.probe(connection, self.name)

    def translate(self, error: DBAPIError, doing: str) -> ConsoleError:
        """The driver's error as what, why and what next. The cause keeps the traceback."""
        return errors.translate(error, doing)

    def wait_for_notification(self, connection: Connection, seconds: float) -> None:  # noqa: ARG002
        """Never called: no statement of this engine's queues listens."""
        raise TypeError("SQL Server has no notifications")

    def refusals(self, connection: Connection) -> AbstractContextManager[list[str]]:  # noqa: ARG002
        """None: what it refuses is an error."""
        return nullcontext([])


def _seconds_to_connect(timeouts: Timeouts) -> int:
    """Whole seconds, as many as the thread has patience for; 0 would mean for ever."""
    left = patience_left()
    return max(
        1, timeouts.connect_seconds if left is None else min(timeouts.connect_seconds, int(left))
    )


def _data_sources(odbc: Any) -> dict[str, str]:
    """The data sources of this machine -> their drivers."""
    try:
        return {name.casefold(): driver for name, driver in odbc.dataSources().items()}
    except odbc.Error:
        return {}


PRODUCT = SQLServer()
