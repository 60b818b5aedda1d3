"""How a task reads from each engine: a connection of its own, and its rows as Arrow batches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from psycopg.conninfo import make_conninfo

from console.engines import Timeouts, open_database
from console.engines.database import Database
from console.engines.patient import SOCKET
from console.errors import ConnectionFailedError, ConsoleError, UsageError
from console.pipeline import rows
from console.pipeline.session import INSTALL

_FETCHED = 5_000


class Reader(Protocol):
    """A connection in which a task locks and reads."""

    def one(self, text: str) -> tuple[Any, ...] | None:
        """The one row of a statement."""
        ...

    def batches(self, text: str) -> Iterator[pa.RecordBatch]:
        """All rows of a statement, a part at a time."""
        ...


@dataclass
class _Adbc:
    """PostgreSQL through ADBC, which copies in binary."""

    connection: Any

    def one(self, text: str) -> tuple[Any, ...] | None:
        with self.connection.cursor() as cursor:
            cursor.execute(_bare(text))
            found = cursor.fetchone()
        return None if found is None else tuple(found)

    def batches(self, text: str) -> Iterator[pa.RecordBatch]:
        with self.connection.cursor() as cursor:
            cursor.execute(_bare(text))
            yield from cursor.fetch_record_batch()


@dataclass
class _Odbc:
    """SQL Server through the driver's own rows."""

    connection: Any

    def one(self, text: str) -> tuple[Any, ...] | None:
        cursor = self.connection.cursor()
        try:
            cursor.execute(text)
            while cursor.description is None and cursor.nextset():
                pass
            found = cursor.fetchone()
        finally:
            cursor.close()
        return None if found is None else tuple(found)

    def batches(self, text: str) -> Iterator[pa.RecordBatch]:
        cursor = self.connection.cursor()
        try:
            cursor.execute(text)
            names = [column[0] for column in cursor.description]
            while fetched := cursor.fetchmany(_FETCHED):
                columns = zip(names, zip(*fetched, strict=True), strict=True)
                yield pa.RecordBatch.from_pydict({n: _column(n, list(v)) for n, v in columns})
        finally:
            cursor.close()


def _column(name: str, values: list[Any]) -> pa.Array:
    wanted = rows.SCHEMA.field(name).type
    if pa.types.is_binary(wanted):
        values = [value.encode() if isinstance(value, str) else value for value in values]
    if pa.types.is_timestamp(wanted):
        # A time without a zone is UTC, as everywhere here.
        return pa.array(values, pa.timestamp("us")).cast(wanted)
    return pa.array(values, wanted)


def _bare(text: str) -> str:
    """What can be copied: a query, without what ends it."""
    return text.rstrip().removesuffix(";")


@contextmanager
def _postgresql(url: str) -> Iterator[Reader]:
    try:
        from adbc_driver_postgresql import dbapi  # noqa: PLC0415  # the extra's
    except ImportError:
        raise UsageError(
            "The pipeline needs the ADBC driver of PostgreSQL, which is not installed.",
            next_step=f"Install it with: {INSTALL}",
        ) from None
    try:
        with dbapi.connect(url, autocommit=True) as connection:
            yield _Adbc(connection)
    except dbapi.OperationalError as error:
        raise ConnectionFailedError(
            "Could not read from the database.",
            why=_first_line(error),
            next_step="Check that the server runs, then run it again: it goes on.",
        ) from error
    except dbapi.Error as error:
        raise ConsoleError(
            "Could not read from the database.",
            why=_first_line(error),
            next_step="What was done is kept: the same command again goes on from there.",
        ) from error


@contextmanager
def _mssql(url: str) -> Iterator[Reader]:
    database = open_database(url, timeouts=Timeouts(statement_seconds=0))
    try:
        with database.autocommit("read what goes into the lake") as connection:
            yield _Odbc(connection.connection.driver_connection)
    finally:
        database.close()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


_OPEN: dict[str, Callable[[str], Any]] = {"postgresql": _postgresql, "mssql": _mssql}


@contextmanager
def reader(engine: str, url: str) -> Iterator[Reader]:
    """A connection to read from, by `url_for_tasks`. ConnectionFailedError."""
    with _OPEN[engine](url) as opened:
        yield opened


def url_for_tasks(database: Database) -> str:
    """Where to connect, with secrets, as the engine's reader takes it. Never shown or kept."""
    url = database.complete_url()
    if database.product.name != "postgresql":
        return url.render_as_string(hide_password=False)
    query = {k: v if isinstance(v, str) else " ".join(v) for k, v in url.query.items()}
    given = query.pop("options", "")
    arguments = {
        "application_name": "dbq-console pipeline",
        # It reads for as long as there is something to read: only the socket tells of an end.
        **SOCKET,
        "connect_timeout": str(database.timeouts.connect_seconds),
        **query,
        "options": f"-c timezone=UTC -c statement_timeout=0 {given}".strip(),
        "client_encoding": "UTF8",
    }
    where = url.translate_connect_args(username="user", database="dbname")
    return make_conninfo(**where, **arguments)
