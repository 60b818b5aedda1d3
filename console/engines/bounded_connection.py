"""A psycopg connection with client-side timeouts.

The server's own timeouts do nothing while it is paused or the network drops its packets. So each
response has a timeout here as well, and sockets use keepalives.
"""

import os
import re
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import nullcontext
from typing import Any, TypeVar

import psycopg
from psycopg import adapters, generators, postgres, pq, waiting
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from console import sql
from console.clock import FarTime
from console.engines.database import has_no_timeout, reason_to_stop, time_limit
from console.engines.session_settings import SessionSettings

Answer = TypeVar("Answer")

_GRACE = 1 / 6
_LEAST_GRACE_SECONDS = 1.0
"""How much longer than the statement timeout to wait, so that the server can report it first."""

SOCKET: Mapping[str, str] = {
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""libpq's options: a dead peer is noticed within half a minute, even while only waiting."""


_WAITS: Mapping[int, waiting.Wait] = {
    pq.PollingStatus.READING: waiting.WAIT_R,
    pq.PollingStatus.WRITING: waiting.WAIT_W,
}
_TEXTS = ("text", "varchar", "bpchar", "name", '"char"')
_STATE = re.compile(rb'\tErrorResponse\t .*? C "(\w{5})" ')


class _TimeLoader(Loader):
    """Times that Python lacks are no errors, which would take all rows with them."""

    def __init__(self, oid: int, context: Any = None) -> None:
        super().__init__(oid, context)
        loader = adapters.get_loader(oid, pq.Format.TEXT)
        self._load: Callable[[Buffer], Any] = loader(oid, context).load  # type: ignore[misc]

    def load(self, data: Buffer) -> Any:
        try:
            return self._load(data)
        except psycopg.DataError:
            return FarTime(bytes(data).decode())


class _TextLoader(Loader):
    """Bytes that are no UTF-8, which an SQL_ASCII database takes, are escaped: `\\xff`."""

    def load(self, data: Buffer) -> str:
        raw = bytes(data)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            text = sql.EscapedText(raw, "utf-8", "backslashreplace")
            text.raw = raw
            return text


class _Cursor(psycopg.Cursor[Any]):
    """Statements are UTF-8 whatever the session's encoding is."""

    def execute(self, query: Any, *args: Any, **kwargs: Any) -> "_Cursor":
        return super().execute(query.encode() if isinstance(query, str) else query, *args, **kwargs)


class Connection(psycopg.Connection[Any]):
    """Waits for a response until the thread's `time_limit` or the statement timeout, with grace."""

    answer_seconds: float | None = None
    """For one response; None: as long as the socket is alive."""
    ping_seconds: float | None = None
    """For a ping."""

    @classmethod
    def _connect_gen(cls, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        # psycopg-internal: if it is renamed, only connect_timeout limits a connect.
        if not hasattr(os, "memfd_create"):  # a trace has the password: no file on a disk
            return _limited(super()._connect_gen(*args, **kwargs))
        return _limited(cls._traced(*args))

    @classmethod
    def _traced(cls, conninfo: str) -> Generator[Any, Any, Any]:
        """As the driver's own, but a server's refusal has its SQLSTATE: libpq tells only its text,
        which may be in any language."""
        pgconn = pq.PGconn.connect_start(conninfo.encode())
        with os.fdopen(os.memfd_create("login"), "rb") as trace:
            if pgconn.status != pq.ConnStatus.BAD:
                pgconn.trace(trace.fileno())
            status: int = pq.PollingStatus.WRITING
            while pgconn.status != pq.ConnStatus.BAD and status in _WAITS:
                if (status := pgconn.connect_poll()) in _WAITS:
                    while not (yield pgconn.socket, _WAITS[status]):
                        pass
            failed = pgconn.status == pq.ConnStatus.BAD
            message = pgconn.get_error_message("utf-8")
            pgconn.untrace()  # flushes it
            if not failed:
                pgconn.nonblocking = 1
                return cls(pgconn)
            pgconn.finish()
            trace.seek(0)
            states = _STATE.findall(trace.read())
        state = f" (SQLSTATE {states[-1].decode()})" if states else ""
        raise psycopg.OperationalError(f"connection failed: {message.strip()}{state}")

    def wait(self, gen: Generator[Any, Any, Answer], *args: Any, **kwargs: Any) -> Answer:
        """Raises OperationalError and closes the connection when a limit is reached."""
        return super().wait(_limited(gen, self), *args, **kwargs)

    pooled = False
    """A pooler stands before the server: its sessions are others' too, and change."""
    subscribes = False
    """At the login a subscription wrote into a database of the server."""

    @property
    def reports_primary(self) -> bool:
        """By what the server reports at the login and at a promotion, without being asked. A pooler
        reports what it was told once. Whether a database is a copy by a subscription can change."""
        reported = self.info.parameter_status("in_hot_standby") == "off"
        return reported and not self.pooled and not self.subscribes

    _set_local = b""
    """Follows BEGIN, in the same message."""

    def limit(self, settings: SessionSettings) -> None:
        """Use the statement timeout of the settings."""
        seconds = settings.statement_seconds
        grace = max(_LEAST_GRACE_SECONDS, _GRACE * seconds)
        self.answer_seconds = seconds + grace if seconds else None
        self.ping_seconds = settings.timeouts.connect_seconds

    def keep(self, settings: SessionSettings, *, pooled: bool) -> None:
        """Make the settings hold: in each transaction unless the session itself has them.

        A pooler has a process number of its own, or is one because the caller says so.
        """
        for name in ("timestamptz", "timestamp", "date"):
            self.adapters.register_loader(postgres.types[name].oid, _TimeLoader)
        found = self._read_back()
        self.subscribes = found.pop("subscribes") == "yes"
        self.pooled = pooled or found.pop("pid") != str(self.pgconn.backend_pid)
        if self.pooled or not settings.hold(found):
            self._set_local = settings.set_local
        if self.pooled:
            self._set_local += (
                b"; SET LOCAL dbq.pooled = 'on'"  # for the audit: whose session it is
            )
        if self.info.parameter_status("server_encoding") == "SQL_ASCII":
            self._read_any_bytes()

    def _read_any_bytes(self) -> None:
        """Otherwise the server checks that they are UTF-8, and one bad row ends the statement.

        In each transaction: a session may be another's next, and not every pooler sets it back.
        """
        self._set_local += b"; SET LOCAL client_encoding = 'SQL_ASCII'"
        self.cursor_factory = _Cursor
        for oid in (0, *(postgres.types[name].oid for name in _TEXTS)):
            self.adapters.register_loader(oid, _TextLoader)

    def _read_back(self) -> dict[str, str]:
        autocommit, self.autocommit = self.autocommit, True
        try:
            query = sql.script("server.session_settings", PGDialect_psycopg())  # type: ignore[no-untyped-call]
            cursor = self.execute(query.encode())
            row = cursor.fetchone() or ()
        finally:
            self.autocommit = autocommit
        return {
            column.name: str(value)
            for column, value in zip(cursor.description or (), row, strict=True)
        }

    def _start_query(self) -> Generator[Any, Any, None]:
        # psycopg-internal, as in connect: if they are renamed, the tests of poolers fail.
        idle = self.pgconn.transaction_status == pq.TransactionStatus.IDLE
        if self._autocommit or not idle or not self._set_local:
            yield from super()._start_query()
            return
        self.pgconn.send_query(self._get_tx_start_command() + self._set_local)
        for result in (yield from generators.execute(self.pgconn)):
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise psycopg.errors.error_from_result(result, encoding=self.info.encoding)


class Dialect(PGDialect_psycopg):
    driver = "dbq"
    supports_statement_cache = True
    default_isolation_level = "READ COMMITTED"

    def initialize(self, connection: Any) -> None:
        """Skip SQLAlchemy's four start-up queries: the driver knows the version from the login, and
        the rest is about types and DDL that are not used here."""
        info = connection.connection.driver_connection.info
        self.server_version_info = (info.server_version // 10_000,)
        self._backslash_escapes = info.parameter_status("standard_conforming_strings") == "off"

    def set_readonly(self, connection: Any, value: bool) -> None:  # noqa: FBT001  # SQLAlchemy's
        """Never "read write", which would undo what the server forbids a login by default."""
        connection.read_only = True if value else None

    def do_ping(self, dbapi_connection: Any) -> bool:
        """Checked before each use, with a short limit."""
        seconds = dbapi_connection.ping_seconds
        with nullcontext() if seconds is None else time_limit(seconds):
            return bool(super().do_ping(dbapi_connection))  # type: ignore[no-untyped-call]


registry.register(f"postgresql.{Dialect.driver}", Dialect.__module__, Dialect.__name__)


def _limited(
    gen: Generator[Any, Any, Answer], connection: Connection | None = None
) -> Generator[Any, Any, Answer]:
    """The driver's generator, which yields ten times a second, until a limit is reached."""
    seconds = None if connection is None or has_no_timeout() else connection.answer_seconds
    ends_at = None if seconds is None else time.monotonic() + seconds
    ready = None
    while True:
        reason = reason_to_stop()
        if not reason and ends_at is not None and time.monotonic() >= ends_at:
            reason = f"the server has not answered within {seconds:g} s"
        if reason:
            gen.close()
            if connection is not None:
                # A late response must not be taken for that of the next statement.
                connection.pgconn.finish()
            raise psycopg.OperationalError(reason)
        try:
            state = gen.send(ready)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        ready = yield state
