"""psycopg's connection, which waits for no server longer than it was told.

A server's own time-outs end what it is slow at. A server that is paused runs none; a network that
drops what it carries tells nobody. So each answer has a time-out here as well, and each socket
looks for itself whether there is still somebody at its other end.
"""

import re
import time
from collections.abc import Generator, Mapping
from contextlib import nullcontext
from typing import Any, TypeVar

import psycopg
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from console.engines.database import is_unhurried, patience, why_not_wait
from console.engines.product import Timeouts

Answer = TypeVar("Answer")

_GRACE = 1 / 6
_LEAST_GRACE_SECONDS = 1.0
"""So much longer than a statement may take: a server that ends it itself has to say so."""

SOCKET: Mapping[str, str] = {
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""libpq's words: a peer that is gone is noticed within half a minute, also by who only waits."""


class Connection(psycopg.Connection[Any]):
    """One that waits for its server as long as the thread that asks has patience, and no longer
    than a statement may take."""

    answer_seconds: float | None = None
    """For one answer; None: as long as the socket holds."""
    ping_seconds: float | None = None
    """For the answer to whether it is there."""

    @classmethod
    def _connect_gen(cls, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        # The driver's own: should it be renamed, a connect ends by its connect_timeout alone.
        return _patiently(super()._connect_gen(*args, **kwargs))

    def wait(self, gen: Generator[Any, Any, Answer], *args: Any, **kwargs: Any) -> Answer:
        """Raises OperationalError, and closes the connection, where patience ends first."""
        return super().wait(_patiently(gen, self), *args, **kwargs)

    def limit(self, timeouts: Timeouts, options: str) -> None:
        """As the server was told by the connection's `options`, where those say otherwise."""
        seconds = _statement_seconds(options, timeouts.statement_seconds)
        grace = max(_LEAST_GRACE_SECONDS, _GRACE * seconds)
        self.answer_seconds = seconds + grace if seconds else None
        self.ping_seconds = timeouts.connect_seconds


class Dialect(PGDialect_psycopg):
    driver = "dbq"
    supports_statement_cache = True
    default_isolation_level = "READ COMMITTED"

    def initialize(self, connection: Any) -> None:
        """The server has told the driver at its login what SQLAlchemy would ask it, by four
        statements at the start of each console, about types and DDL that are not used here too."""
        info = connection.connection.driver_connection.info
        self.server_version_info = (info.server_version // 10_000,)
        self._backslash_escapes = info.parameter_status("standard_conforming_strings") == "off"

    def do_ping(self, dbapi_connection: Any) -> bool:
        """Whether the connection is there; asked before each use, so a silent one is left soon."""
        seconds = dbapi_connection.ping_seconds
        with nullcontext() if seconds is None else patience(seconds):
            return bool(super().do_ping(dbapi_connection))  # type: ignore[no-untyped-call]


registry.register(f"postgresql.{Dialect.driver}", Dialect.__module__, Dialect.__name__)


_STATEMENT_TIMEOUT = re.compile(
    r"(?:\s|-c|--)statement_timeout\s*=\s*'?(\d+)\s*(us|ms|s|min|h|d)?\b"
)
_IN_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def _statement_seconds(options: str, seconds: float) -> float:
    """How long a statement may take: what `options` say last, else `seconds`."""
    found = _STATEMENT_TIMEOUT.findall(options)
    if not found:
        return seconds
    number, unit = found[-1]
    return int(number) * _IN_SECONDS[unit or "ms"]


def _patiently(
    gen: Generator[Any, Any, Answer], connection: Connection | None = None
) -> Generator[Any, Any, Answer]:
    """The driver's work, which it leaves at least ten times a second to wait, until then."""
    seconds = None if connection is None or is_unhurried() else connection.answer_seconds
    ends_at = None if seconds is None else time.monotonic() + seconds
    ready = None
    while True:
        reason = why_not_wait()
        if not reason and ends_at is not None and time.monotonic() >= ends_at:
            reason = f"the server has not answered within {seconds:g} s"
        if reason:
            gen.close()
            if connection is not None:
                # An answer may be under way: it must not be taken for that of the next question.
                connection.pgconn.finish()
            raise psycopg.OperationalError(reason)
        try:
            state = gen.send(ready)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        ready = yield state
