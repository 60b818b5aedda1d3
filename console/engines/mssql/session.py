"""A connection with explicit transactions, over an ODBC driver in autocommit mode.

ODBC's manual commit mode would begin a transaction at any statement, even one that only reads.
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
"""A note on a driver's error of a commit."""

_TIMES_SILENT = 3
"""How many timeouts a driver waits before it gives up a silent server: Microsoft's three, FreeTDS
two. After the first it cancels the statement and waits for the confirmation."""

_ENDLESS = 2**31 - 1
"""Seconds, for a statement that only the thread's time limit ends."""

_SHORTEST_SECONDS = 0.25
"""No statement is cancelled earlier: the limit is kept here, not by the server, and a cancelled
compilation is not cached, so that the next one is as slow."""

CONNECTING = "Connecting to "
"""Prefix of a note on a driver's error of the login; the server follows."""

_SETTINGS = (
    "SET NOCOUNT ON",
    # Any error rolls back the whole transaction at once, with its locks.
    "SET XACT_ABORT ON",
    "SET LOCK_TIMEOUT {lock_milliseconds}",
    # In a deadlock the console is the victim, never a consumer.
    "SET DEADLOCK_PRIORITY LOW",
    f"SET TRANSACTION ISOLATION LEVEL {READ_COMMITTED}",
    # Required to write to a table with a filtered index.
    "SET ANSI_NULLS, ANSI_PADDING, ANSI_WARNINGS, ARITHABORT, CONCAT_NULL_YIELDS_NULL, "
    "QUOTED_IDENTIFIER ON",
    "SET NUMERIC_ROUNDABORT OFF",
    # FreeTDS may be configured to truncate long texts silently.
    "SET TEXTSIZE 2147483647",
)


_MARKER = re.compile(
    r"""--[^\n]*|/\*.*?\*/|\[(?:[^\]]|\]\])*\]|'(?:[^']|'')*'|"(?:[^"]|"")*"|(?P<marker>\?)""",
    re.DOTALL,
)


def with_nulls(statement: str, values: Sequence[Any]) -> tuple[str, list[Any]]:
    """The statement with NULL written for each None, and the remaining values.

    For a None, pyodbc asks the server for the parameter's type: an extra round trip that may fail,
    and then XACT_ABORT would silently roll back the transaction.
    """
    if all(value is not None for value in values):
        return statement, list(values)
    left = iter(values)

    def replace(match: re.Match[str]) -> str:
        return "NULL" if match["marker"] and next(left, "") is None else match[0]

    return _MARKER.sub(replace, statement), [value for value in values if value is not None]


def as_parameter(value: Any) -> Any:
    """A time as text in UTC, which converts to datetime2 without loss.

    pyodbc would drop the zone, and FreeTDS sends a datetime, which is off by up to 2 ms.
    """
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    return value.isoformat(timespec="microseconds")


class Sizes:
    """The parameter type of each value.

    By default drivers declare each text with its length, so that the server compiles a plan for
    each, and long ones as ntext and image.
    """

    def __init__(self, odbc: Any, family: Family) -> None:
        freetds = family is Family.FREETDS
        self._text = (odbc.SQL_WVARCHAR, 4000, 0)
        self._bytes = (odbc.SQL_VARBINARY, 8000, 0)
        # These become nvarchar(max) and varbinary(max); with the others FreeTDS truncates at 4,000.
        self._long_text = (odbc.SQL_WLONGVARCHAR if freetds else odbc.SQL_WVARCHAR, 0, 0)
        self._long_bytes = (odbc.SQL_LONGVARBINARY if freetds else odbc.SQL_VARBINARY, 0, 0)

    def of(self, values: Iterable[Any]) -> list[tuple[int, int, int] | None]:
        """For `setinputsizes`; None: the driver's default."""
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
    """A driver's cursor that reads every result of a batch to its end: an error that follows a
    result is raised only there."""

    def __init__(self, raw: Any, session: "OdbcConnection", timeouts: Timeouts) -> None:
        self._raw = raw
        self._session = session
        self._timeouts = timeouts
        self._ends_at: float | None = None
        self.description: Any = None

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> "Cursor":
        """Run a batch up to its first result with rows."""
        statement, values = with_nulls(statement, [as_parameter(value) for value in parameters])
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
    """A driver's connection, in autocommit mode, with explicit transactions."""

    def __init__(self, raw: Any, odbc: Any, family: Family) -> None:
        self._raw = raw
        self._errors: type[Exception] = odbc.Error
        self._error: type[Exception] = odbc.OperationalError
        self.sizes = Sizes(odbc, family)
        self.autocommit = False
        """Whether `begin` does nothing."""
        self.isolation: str = READ_COMMITTED
        self.used = False
        """Whether anything ran since the last commit or rollback."""
        self._begun = False
        self._cancelled = False
        """Whether a statement was cancelled since then, perhaps without effect on the server."""
        self._usual = self._timeouts = Timeouts()
        self._lock_seconds = self._usual.lock_seconds
        self._round_trip = 0.0
        """Seconds that the last BEGIN TRANSACTION took: the way there and back, and no work."""

    @property
    def driver_connection(self) -> Any:
        return self._raw

    def set_up(self, timeouts: Timeouts) -> None:
        """The session's settings, in one round trip."""
        self._usual = self._timeouts = timeouts
        self._lock_seconds = timeouts.lock_seconds
        milliseconds = _milliseconds(timeouts.lock_seconds)
        settings = [s.format(lock_milliseconds=milliseconds) for s in _SETTINGS]
        try:
            self._execute(";\n".join(settings))
        except self._errors as error:
            if is_lost(error) or is_timeout(error):
                raise
            # Other servers than SQL Server may lack a setting: apply the others.
            for setting in settings:
                with contextlib.suppress(self._errors):
                    self._execute(setting)
        self.used = False

    def cursor(self) -> Cursor:
        """A new cursor with the present timeout."""
        return self._limited_cursor(self._timeouts)

    def _limited_cursor(self, timeouts: Timeouts) -> Cursor:
        seconds = _whole_seconds(timeouts)
        if self._raw.timeout != seconds:
            self._raw.timeout = seconds
        return Cursor(self._raw.cursor(), self, timeouts)

    def limit(self, timeouts: Timeouts | None) -> None:
        """Timeouts of the following statements, to the millisecond; None: the usual ones."""
        self._timeouts = self._usual if timeouts is None else timeouts

    @property
    def limits(self) -> Timeouts:
        return self._timeouts

    def ends_at(self, timeouts: Timeouts) -> float | None:
        """When to cancel a statement that begins now; None: leave it to the driver's timeout."""
        if timeouts is self._usual or not timeouts.statement_seconds:
            return None
        seconds = timeouts.statement_seconds + self._round_trip
        return time.monotonic() + max(seconds, _SHORTEST_SECONDS)

    def prepare(self) -> None:
        """Before each statement. Raises the driver's error when the time limit is reached."""
        self._require_time()
        self.used = True
        wanted = self._timeouts.lock_seconds
        if wanted != self._lock_seconds:
            # Separately: within a parameterized statement the setting would end with it.
            cursor = self._raw.cursor()
            cursor.execute(f"SET LOCK_TIMEOUT {_milliseconds(wanted)}")
            cursor.close()
            self._lock_seconds = wanted

    def _require_time(self) -> None:
        if reason := reason_to_stop():
            # Closing the connection ends a statement that still runs.
            self.close()
            raise self._error("08S01", reason)

    def timed_out(self, why: str) -> Exception:
        """The driver's error for a cancelled statement."""
        self._cancelled = True
        return self._error("HYT00", why)

    def set_isolation(self, level: str) -> None:
        """For the following transactions. AUTOCOMMIT: each statement is its own."""
        self.autocommit = level == AUTOCOMMIT
        wanted = READ_COMMITTED if self.autocommit else level
        if wanted != self.isolation:
            self._execute(f"SET TRANSACTION ISOLATION LEVEL {wanted}")
            self.isolation = wanted

    def begin(self) -> None:
        """Begin a transaction, unless in autocommit mode."""
        if not self.autocommit:
            sent_at = time.monotonic()
            self._execute("BEGIN TRANSACTION")
            self._round_trip = time.monotonic() - sent_at
            self._begun = True

    def commit(self) -> None:
        """Commit. A transaction that the server has ended meanwhile is an error."""
        if self._begun:
            self._require_time()
            self._begun = False
            try:
                self._execute("COMMIT TRANSACTION")
            except self._errors as error:
                error.add_note(IN_DOUBT)
                raise
        self.used = self.autocommit and self.used

    def rollback(self) -> None:
        """Roll back, or close a lost or stuck connection, so that this hides no earlier error."""
        self._begun = False
        if not self.used:
            return
        try:
            self._execute("IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION")
        except self._errors as error:
            if not (self._cancelled or is_lost(error) or is_timeout(error)):
                raise
            self.close()
        self.used = self._cancelled = False

    def close(self) -> None:
        """Close the connection; the server rolls back what is open."""
        with contextlib.suppress(self._errors):
            self._raw.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def _execute(self, statement: str) -> None:
        """Run a transaction statement, without `limit`: a cancelled commit would be in doubt, a
        cancelled rollback would cost the connection."""
        cursor = self._limited_cursor(self._usual)
        try:
            cursor.execute(statement)
        finally:
            with contextlib.suppress(self._errors):
                cursor.close()


def _whole_seconds(timeouts: Timeouts) -> int:
    """The driver's timeout; 0 means none."""
    seconds = math.ceil(timeouts.statement_seconds)
    if (left := time_left()) is not None:
        seconds = min(seconds or _ENDLESS, int(left / _TIMES_SILENT))
    elif not seconds:
        return 0
    return max(1, seconds)


def _milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))


class _Limits(ConnectionCharacteristic):
    """The execution option `dbq_timeouts`: other timeouts until the connection is returned."""

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
        """No queries: nothing of it is needed, and limited servers do not support all of them."""
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
        """False also if the connection does not respond in time."""
        try:
            # Runs before each use, hence the short limit.
            with time_limit(dbapi_connection.limits.connect_seconds):
                return bool(super().do_ping(dbapi_connection))
        except self.loaded_dbapi.Error as error:
            if is_lost(error) or is_timeout(error):
                return False
            raise

    def is_disconnect(self, e: Exception, connection: Any, cursor: Any) -> bool:
        """After a statement's timeout the connection is usable; after a commit's it is not."""
        if is_timeout(e):
            return IN_DOUBT in getattr(e, "__notes__", ())
        known = super().is_disconnect(e, connection, cursor)  # type: ignore[no-untyped-call]
        return is_lost(e) or bool(known)

    def get_driver_connection(self, connection: Any) -> Any:
        return connection.driver_connection


def is_timeout(error: BaseException) -> bool:
    """Whether a statement (or the login) timed out."""
    return bool(error.args) and error.args[0] == "HYT00"


def is_lost(error: BaseException) -> bool:
    """Whether the connection is lost."""
    state = str(error.args[0]) if error.args else ""
    return state[:2] == "08" or state == "HYT01" or "closed connection" in state


def redacted(error: Exception, secrets: Iterable[str]) -> Exception:
    """The same error without secrets in its text, in case a driver has repeated one."""
    texts = [str(argument) for argument in error.args]
    for secret in sorted(secrets, key=len, reverse=True):
        texts = [text.replace(secret, "***") for text in texts]
    return type(error)(*texts)


registry.register(f"mssql.{Dialect.driver}", Dialect.__module__, Dialect.__name__)
