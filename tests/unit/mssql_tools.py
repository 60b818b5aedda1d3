"""A stand-in for pyodbc: what the engine `mssql` uses of it, without a driver or a server."""

import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import make_url

from console.engines import Database, Timeouts
from console.engines.mssql import PRODUCT
from console.engines.mssql.capabilities import Probe

SECRET = "hunter2"
LABEL = re.compile(r"/\* dbq ([\w.+]+) \*/")
"""A statement's name, as it is sent."""

ENTERPRISE = Probe(
    server_version="16.0.4185.3",
    version_number=160004185,
    edition="Enterprise Edition (64-bit)",
    engine_edition=3,
    database="orders",
    database_user="dbo",
    read_only=False,
    sees_all_sessions=True,
    sees_counters=True,
    may_create=True,
    impersonates_owner=True,
    counts_rows=True,
    read_committed_snapshot=False,
    broker_enabled=True,
    online_rebuild=True,
    babelfish=False,
    encoding="UTF-16",
    compatibility_level=160,
)
"""A server with all capabilities."""

Answer = Callable[[str], Sequence[Any]]
"""A batch -> its results: None without rows, else the columns' names and the rows; or an error."""


class Error(Exception):
    """As pyodbc's: SQLSTATE and text, or a text alone."""


class ProgrammingError(Error):
    """As pyodbc's."""


class OperationalError(Error):
    """As pyodbc's."""


class Cursor:
    """Answers each batch with the results that the server has for it."""

    arraysize = 1
    rowcount = -1

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self.results: list[Any] = []
        self.timeout = connection.timeout
        self.description: Any = None
        self.rows: list[Any] = []
        self.sizes: list[Any] = []

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> "Cursor":
        self.connection.odbc.sent.append(statement)
        self.connection.odbc.bound += [list(zip(parameters, self.sizes, strict=True))]
        self.results = list(self.connection.odbc.answer(statement) or [None])
        self.nextset()
        return self

    def nextset(self) -> bool:
        self.description, self.rows = None, []
        if not self.results:
            return False
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        if result is not None:
            self.description = [(name, str, None, None, None, None, True) for name in result[0]]
            self.rows = list(result[1:])
        return True

    def fetchone(self) -> Any:
        return self.rows.pop(0) if self.rows else None

    def fetchmany(self, size: int) -> list[Any]:
        taken, self.rows = self.rows[:size], self.rows[size:]
        return taken

    def fetchall(self) -> list[Any]:
        taken, self.rows = self.rows, []
        return taken

    def setinputsizes(self, sizes: list[Any]) -> None:
        self.sizes = sizes

    def cancel(self) -> None:
        self.connection.odbc.cancelled.set()

    def close(self) -> None:
        """Nothing to release."""


class Connection:
    """A connection made by `Odbc.connect`."""

    def __init__(self, odbc: "Odbc") -> None:
        self.odbc = odbc
        self.timeout = 0
        self.closed = False

    def cursor(self) -> Cursor:
        if self.closed:
            raise ProgrammingError("Attempt to use a closed connection.")
        return Cursor(self)

    def close(self) -> None:
        self.closed = True

    def setdecoding(self, kind: int, **how: Any) -> None:
        """Ignored."""

    def add_output_converter(self, kind: int, converter: Any) -> None:
        """Ignored."""

    def getinfo(self, kind: int) -> str:
        if kind not in self.odbc.info:
            raise Error("HYC00", "[HYC00] [Microsoft]Optional feature not implemented (0)")
        return self.odbc.info[kind]


class Odbc:
    """The module itself."""

    Error = Error
    ProgrammingError = ProgrammingError
    OperationalError = OperationalError
    Cursor = Cursor
    paramstyle = "qmark"
    version = "5.5.0"
    SQL_CHAR, SQL_WCHAR = 1, -8
    SQL_WVARCHAR, SQL_WLONGVARCHAR = -9, -10
    SQL_VARBINARY, SQL_LONGVARBINARY = -3, -4
    SQL_DBMS_NAME, SQL_DBMS_VER, SQL_DATABASE_NAME, SQL_USER_NAME = 17, 18, 16, 47

    def __init__(self) -> None:
        self.pooling = True
        self.installed = ["ODBC Driver 18 for SQL Server"]
        self.sources: dict[str, str] = {}
        self.info = {17: "Some Server", 18: "12.00.2000", 16: "orders", 47: "somebody"}
        self.sent: list[str] = []
        self.cancelled = threading.Event()
        """Set when a cursor is cancelled."""
        self.bound: list[list[tuple[Any, Any]]] = []
        self.connections: list[Connection] = []
        self.opened: list[tuple[str, dict[str, Any]]] = []
        self.refuse: Error | None = None
        self.answer: Answer = lambda _: []

    def drivers(self) -> list[str]:
        return self.installed

    def dataSources(self) -> dict[str, str]:  # noqa: N802  # its name there
        return self.sources

    def connect(self, text: str, **arguments: Any) -> Connection:
        self.opened.append((text, arguments))
        if self.refuse is not None:
            raise self.refuse
        connection = Connection(self)
        self.connections.append(connection)
        return connection


def stand_in_for_pyodbc(monkeypatch: pytest.MonkeyPatch) -> Odbc:
    """Replaces pyodbc for this test."""
    stand_in = Odbc()
    monkeypatch.setitem(sys.modules, "pyodbc", stand_in)
    return stand_in


def open_mssql(url: str = f"mssql+pyodbc://somebody:{SECRET}@db.example/orders") -> Database:
    """The database at that URL, of the engine `mssql`."""
    return Database(
        PRODUCT,
        make_url(url),
        timeouts=Timeouts(connect_seconds=7, statement_seconds=2.5, lock_seconds=0.5),
        application_name="dbq-console",
        label="orders",
    )
