"""A connection as SQLAlchemy sees it: explicit transactions over a driver in autocommit mode.

A driver that begins transactions by itself (ODBC's manual commit) begins them at any statement,
also at one that only looks; here one begins where `begin` says so and nowhere else.
"""

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy.dialects import registry
from sqlalchemy.dialects.mssql.pyodbc import MSDialect_pyodbc
from sqlalchemy.engine.characteristics import ConnectionCharacteristic

from console.engines.database import reason_to_stop, time_left, time_limit
from console.engines.mssql.odbc import Family, load_pyodbc
from console.engines.mssql.statement_timeout import StatementStopped, watched
from console.engines.product import Timeouts

READ_COMMITTED: Final = "READ COMMITTED"
AUTOCOMMIT: Final = "AUTOCOMMIT"

IN_DOUBT = "The answer to the commit was lost."
"""A note on a driver's error that came out of a commit."""

_TIMES_SILENT = 3
"""So many of its time-outs a driver waits at most until it gives a silent server up: Microsoft's
three, FreeTDS two. After the first it tells the server to stop, and waits to hear that it did."""

_ENDLESS = 2**31 - 1
"""Seconds, for a statement that nothing but patience ends."""

CONNECTING = "Connecting to "
"""How a note on a driver's error begins that came out of the login: the server follows."""

_SETTINGS = (
    "SET NOCOUNT ON",
    # Any error undoes the whole transaction at once: never half of it, and no lock outlives it.
    "SET XACT_ABORT ON",
    "SET LOCK_TIMEOUT {lock_milliseconds}",
    # Where a deadlock comes about all the same, it is the console that gives way: never a consumer.
    "SET DEADLOCK_PRIORITY LOW",
    f"SET TRANSACTION ISOLATION LEVEL {READ_COMMITTED}",
    # Writing to a table with a filtered index fails under other settings than these.
    "SET ANSI_NULLS, ANSI_PADDING, ANSI_WARNINGS, ARITHABORT, CONCAT_NULL_YIELDS_NULL, "
    "QUOTED_IDENTIFIER ON",
    "SET NUMERIC_ROUNDABORT OFF",
    # FreeTDS can be configured to cut long texts off, in silence.
    "SET TEXTSIZE 2147483647",
)


_MARKER = re.compile(
    r"""--[^\n]*|/\*.*?\*/|\[(?:[^\]]|\]\])*\]|'(?:[^']|'')*'|"(?:[^"]|"")*"|(?P<marker>\?)""",
    re.DOTALL,
)


def with_nulls(statement: str, values: Sequence[Any]) -> tuple[str, list[Any]]:
    """The statement with NULL written where None is bound, and the values left to bind.

    For a None, pyodbc asks the server which type is wanted there: a round trip each time, and one
    that may fail, by which XACT_ABORT would undo the transaction without anybody being told.
    """
    if all(value is not None for value in values):
        return statement, list(values)
    left = iter(values)

    def replace(match: re.Match[str]) -> str:
        return "NULL" if match["marker"] and next(left, "") is None else match[0]

    return _MARKER.sub(replace, statement), [value for value in values if value is not None]


def as_sent(value: Any) -> Any:
    """A time as text in UTC, which becomes a datetime2 without loss wherever one is wanted.

    As a time pyodbc would send it without its zone, and with as many digits as the driver says that
    the server keeps: FreeTDS makes a datetime of it, which is off by up to 2 ms.
    """
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    return value.isoformat(timespec="microseconds")


class Sizes:
    """Which type each value is sent as.

    By themselves the drivers take one for each length of a text, so that the server compiles a
    plan for each, and for long ones the old ntext and image.
    """

    def __init__(self, odbc: Any, family: Family) -> None:
        freetds = family is Family.FREETDS
        self._text = (odbc.SQL_WVARCHAR, 4000, 0)
        self._bytes = (odbc.SQL_VARBINARY, 8000, 0)
        # Both become nvarchar(max) and varbinary(max). FreeTDS would cut the others at 4,000.
        self._long_text = (odbc.SQL_WLONGVARCHAR if freetds else odbc.SQL_WVARCHAR, 0, 0)
        self._long_bytes = (odbc.SQL_LONGVARBINARY if freetds else odbc.SQL_VARBINARY, 0, 0)

    def of(self, values: Iterable[Any]) -> list[tuple[int, int, int] | None]:
        """For `setinputsizes`; None leaves it to the driver."""
        return [self._of(value) for value in values]

    def _of(self, value: Any) -> tuple[int, int, int] | None:
        if isinstance(value, str):
            # A character takes one unit of UTF-16 or two.
            units = len(value) if len(value) <= 2000 else len(value.encode("utf-16-le")) // 2
            return self._text if units <= 4000 else self._long_text
        if isinstance(value, bytes | bytearray):
            return self._bytes if len(value) <= 8000 else self._long_bytes
        return None


class Cursor:
    """A driver's cursor that reads every answer of a batch to its end.

    An error that the server sends behind a result is not raised before that end is read.
    """

    def __init__(self, raw: Any, session: "OdbcConnection", timeouts: Timeouts) -> None:
        self._raw = raw
        self._session = session
        self._timeouts = timeouts
        self._ends_at: float | None = None
        self.description: Any = None

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> "Cursor":
        """Run a batch up to its first result with rows."""
        statement, values = with_nulls(statement, [as_sent(value) for value in parameters])
        if not values:
            return self._run(self._raw.execute, statement)
        self._raw.setinputsizes(self._session.sizes.of(values))
        return self._run(self._raw.execute, statement, values)

    def executemany(self, statement: str, parameters: Any) -> "Cursor":
        """Run a statement once for each set of parameters."""
        return self._run(self._raw.executemany, statement, parameters)

    def fetchone(self) -> Any:
        """The next row, or None after the last."""
        with self._watched():
            row = self._raw.fetchone()
            if row is None:
                self._to_the_end()
        return row

    def fetchmany(self, size: int | None = None) -> Any:
        """The next rows, none after the last."""
        with self._watched():
            rows = self._raw.fetchmany(self._raw.arraysize if size is None else size)
            if not rows:
                self._to_the_end()
        return rows

    def fetchall(self) -> Any:
        with self._watched():
            rows = self._raw.fetchall()
            self._to_the_end()
        return rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def _run(self, run: Callable[..., Any], *arguments: Any) -> "Cursor":
        self.description = None
        self._session.prepare()
        self._ends_at = self._session.ends_at(self._timeouts)
        with self._watched():
            run(*arguments)
            while self._raw.description is None and self._raw.nextset():
                pass
        self.description = self._raw.description
        return self

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            with watched(self._raw.cancel, self._ends_at):
                yield
        except StatementStopped as ended:
            raise self._session.timed_out(str(ended)) from ended

    def _to_the_end(self) -> None:
        while self._raw.nextset():
            pass


class OdbcConnection:
    """A driver's connection, in autocommit mode, with the transactions that we begin."""

    def __init__(self, raw: Any, odbc: Any, family: Family) -> None:
        self._raw = raw
        self._errors: type[Exception] = odbc.Error
        self._error: type[Exception] = odbc.OperationalError
        self.sizes = Sizes(odbc, family)
        self.autocommit = False
        """Whether `begin` begins nothing."""
        self.isolation: str = READ_COMMITTED
        self.used = False
        """Whether anything ran since the last commit or rollback."""
        self._begun = False
        self._ended = False
        """Whether a statement was told to stop since then: it is not sure that the server heard."""
        self._usual = self._timeouts = Timeouts()
        self._lock_seconds = self._usual.lock_seconds

    @property
    def driver_connection(self) -> Any:
        return self._raw

    def set_up(self, timeouts: Timeouts) -> None:
        """Everything that a session keeps, in one round trip."""
        self._usual = self._timeouts = timeouts
        self._lock_seconds = timeouts.lock_seconds
        milliseconds = _milliseconds(timeouts.lock_seconds)
        settings = [s.format(lock_milliseconds=milliseconds) for s in _SETTINGS]
        try:
            self._execute(";\n".join(settings))
        except self._errors as error:
            if is_lost(error) or is_timeout(error):
                raise
            # A server that is not SQL Server may lack one: it gets the others.
            for setting in settings:
                with contextlib.suppress(self._errors):
                    self._execute(setting)
        self.used = False

    def cursor(self) -> Cursor:
        """A new cursor, with the driver's time-out as it is at this moment."""
        return self._limited_cursor(self._timeouts)

    def _limited_cursor(self, timeouts: Timeouts) -> Cursor:
        seconds = _whole_seconds(timeouts)
        if self._raw.timeout != seconds:
            self._raw.timeout = seconds
        return Cursor(self._raw.cursor(), self, timeouts)

    def limit(self, timeouts: Timeouts | None) -> None:
        """For statements and locks to come, to the millisecond; None: as it was set up."""
        self._timeouts = self._usual if timeouts is None else timeouts

    @property
    def limits(self) -> Timeouts:
        return self._timeouts

    def ends_at(self, timeouts: Timeouts) -> float | None:
        """When a statement that begins now is to be cancelled; None: the driver's time-out does."""
        if timeouts is self._usual or not timeouts.statement_seconds:
            return None
        return time.monotonic() + timeouts.statement_seconds

    def prepare(self) -> None:
        """Before each statement. Raises the driver's error where nobody waits for the answer."""
        self._require_patience()
        self.used = True
        wanted = self._timeouts.lock_seconds
        if wanted != self._lock_seconds:
            # Bound to no statement: what is set within one that has values ends with it.
            cursor = self._raw.cursor()
            cursor.execute(f"SET LOCK_TIMEOUT {_milliseconds(wanted)}")
            cursor.close()
            self._lock_seconds = wanted

    def _require_patience(self) -> None:
        if reason := reason_to_stop():
            # A statement may still run there; without its connection it ends.
            self.close()
            raise self._error("08S01", reason)

    def timed_out(self, why: str) -> Exception:
        """The driver's error of a statement that was told to stop."""
        self._ended = True
        return self._error("HYT00", why)

    def set_isolation(self, level: str) -> None:
        """For the transactions to come. AUTOCOMMIT: there are none, each statement is its own."""
        self.autocommit = level == AUTOCOMMIT
        wanted = READ_COMMITTED if self.autocommit else level
        if wanted != self.isolation:
            self._execute(f"SET TRANSACTION ISOLATION LEVEL {wanted}")
            self.isolation = wanted

    def begin(self) -> None:
        """Begin a transaction, unless in autocommit mode."""
        if not self.autocommit:
            self._execute("BEGIN TRANSACTION")
            self._begun = True

    def commit(self) -> None:
        """Commit what `begin` began. A transaction that the server ended meanwhile is an error."""
        if self._begun:
            self._require_patience()
            self._begun = False
            try:
                self._execute("COMMIT TRANSACTION")
            except self._errors as error:
                error.add_note(IN_DOUBT)
                raise
        self.used = self.autocommit and self.used

    def rollback(self) -> None:
        """Undo whatever is open. A connection that is lost or stuck is closed, which does it too.

        So an error of the way back never hides the one that led here.
        """
        self._begun = False
        if not self.used:
            return
        try:
            self._execute("IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION")
        except self._errors as error:
            if not (self._ended or is_lost(error) or is_timeout(error)):
                raise
            self.close()
        self.used = self._ended = False

    def close(self) -> None:
        """Give it back to the server, which undoes what is open."""
        with contextlib.suppress(self._errors):
            self._raw.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def _execute(self, statement: str) -> None:
        """Run what begins and ends transactions. A limit is for what is asked in one: a commit that
        it cancelled would be in doubt, a rollback would cost the connection."""
        cursor = self._limited_cursor(self._usual)
        try:
            cursor.execute(statement)
        finally:
            with contextlib.suppress(self._errors):
                cursor.close()


def _whole_seconds(timeouts: Timeouts) -> int:
    """As the driver counts; 0 means for ever."""
    seconds = math.ceil(timeouts.statement_seconds)
    if (left := time_left()) is not None:
        seconds = min(seconds or _ENDLESS, int(left / _TIMES_SILENT))
    elif not seconds:
        return 0
    return max(1, seconds)


def _milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))


class _Limits(ConnectionCharacteristic):
    """The execution option `dbq_timeouts`: others, until the connection is back in its pool."""

    def set_characteristic(self, dialect: Any, dbapi_conn: Any, value: Timeouts) -> None:  # noqa: ARG002
        dbapi_conn.limit(value)

    def reset_characteristic(self, dialect: Any, dbapi_conn: Any) -> None:  # noqa: ARG002
        dbapi_conn.limit(None)

    def get_characteristic(self, dialect: Any, dbapi_conn: Any) -> Timeouts:  # noqa: ARG002
        limits: Timeouts = dbapi_conn.limits
        return limits


class Dialect(MSDialect_pyodbc):
    driver = "dbq"
    supports_statement_cache = True
    connection_characteristics = MSDialect_pyodbc.connection_characteristics.union(
        {"dbq_timeouts": _Limits()}
    )

    @classmethod
    def import_dbapi(cls) -> Any:
        return load_pyodbc()

    def initialize(self, connection: Any) -> None:  # noqa: ARG002
        """Ask nothing: the statements are ours, and limited servers do not know all questions."""
        self.server_version_info = (13,)  # type: ignore[assignment]
        self.default_schema_name = "dbo"
        self.default_isolation_level = READ_COMMITTED
        self.supports_comments = True
        self._supports_nvarchar_max = True
        self._setup_version_attributes()  # type: ignore[no-untyped-call]

    def set_isolation_level(self, dbapi_connection: Any, level: str) -> None:
        dbapi_connection.set_isolation(level)

    def do_begin(self, dbapi_connection: Any) -> None:
        """Begin a transaction, unless in autocommit mode."""
        dbapi_connection.begin()

    def do_ping(self, dbapi_connection: Any) -> bool:
        """Whether the connection is there; one that does not answer in time is not."""
        try:
            # Asked before each use, so a silent one is left soon.
            with time_limit(dbapi_connection.limits.connect_seconds):
                return bool(super().do_ping(dbapi_connection))
        except self.loaded_dbapi.Error as error:
            if is_lost(error) or is_timeout(error):
                return False
            raise

    def is_disconnect(self, e: Exception, connection: Any, cursor: Any) -> bool:
        """A statement's time-out leaves the connection usable; that of a commit is in doubt."""
        if is_timeout(e):
            return IN_DOUBT in getattr(e, "__notes__", ())
        known = super().is_disconnect(e, connection, cursor)  # type: ignore[no-untyped-call]
        return is_lost(e) or bool(known)

    def get_driver_connection(self, connection: Any) -> Any:
        return connection.driver_connection


def is_timeout(error: BaseException) -> bool:
    """Whether a statement (or the login) did not end in time."""
    return bool(error.args) and error.args[0] == "HYT00"


def is_lost(error: BaseException) -> bool:
    """Whether the connection is not there any more."""
    state = str(error.args[0]) if error.args else ""
    return state[:2] == "08" or state == "HYT01" or "closed connection" in state


def without(error: Exception, secrets: Iterable[str]) -> Exception:
    """The same error without secrets in its text, should a driver have repeated one."""
    told = [str(argument) for argument in error.args]
    for secret in sorted(secrets, key=len, reverse=True):
        told = [text.replace(secret, "***") for text in told]
    return type(error)(*told)


registry.register(f"mssql.{Dialect.driver}", Dialect.__module__, Dialect.__name__)
