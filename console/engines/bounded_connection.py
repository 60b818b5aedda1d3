"""A psycopg connection with client-side timeouts.

The server's own timeouts do nothing while it is paused or the network drops its packets. So each
response has a timeout here as well, and sockets use keepalives.
"""

import re
import time
from collections.abc import Generator, Mapping
from contextlib import nullcontext
from typing import Any, TypeVar

import psycopg
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from console.engines.database import has_no_timeout, reason_to_stop, time_limit
from console.engines.product import Timeouts

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


class Connection(psycopg.Connection[Any]):
    """Waits for a response until the thread's `time_limit` or the statement timeout, with grace."""

    answer_seconds: float | None = None
    """For one response; None: as long as the socket is alive."""
    ping_seconds: float | None = None
    """For a ping."""

    @classmethod
    def _connect_gen(cls, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        # psycopg-internal: if it is renamed, only connect_timeout limits a connect.
        return _limited(super()._connect_gen(*args, **kwargs))

    def wait(self, gen: Generator[Any, Any, Answer], *args: Any, **kwargs: Any) -> Answer:
        """Raises OperationalError and closes the connection when a limit is reached."""
        return super().wait(_limited(gen, self), *args, **kwargs)

    def limit(self, timeouts: Timeouts, options: str) -> None:
        """Use the statement timeout in the connection's `options`, if they have one."""
        seconds = _statement_seconds(options, timeouts.statement_seconds)
        grace = max(_LEAST_GRACE_SECONDS, _GRACE * seconds)
        self.answer_seconds = seconds + grace if seconds else None
        self.ping_seconds = timeouts.connect_seconds


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

    def do_ping(self, dbapi_connection: Any) -> bool:
        """Checked before each use, with a short limit."""
        seconds = dbapi_connection.ping_seconds
        with nullcontext() if seconds is None else time_limit(seconds):
            return bool(super().do_ping(dbapi_connection))  # type: ignore[no-untyped-call]


registry.register(f"postgresql.{Dialect.driver}", Dialect.__module__, Dialect.__name__)


_STATEMENT_TIMEOUT = re.compile(
    r"(?:\s|-c|--)statement_timeout\s*=\s*'?(\d+)\s*(us|ms|s|min|h|d)?\b"
)
_IN_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def _statement_seconds(options: str, seconds: float) -> float:
    """The statement timeout: the last one in `options`, else `seconds`."""
    found = _STATEMENT_TIMEOUT.findall(options)
    if not found:
        return seconds
    number, unit = found[-1]
    return int(number) * _IN_SECONDS[unit or "ms"]


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
