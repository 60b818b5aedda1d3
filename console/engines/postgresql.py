"""PostgreSQL 14 and newer, through psycopg 3."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from console import sql
from console.engines.database import ConnectLock
from console.engines.product import UNREACHABLE, Capabilities, ServerProbe, Timeouts
from console.errors import (
    BusyError,
    ConnectionFailedError,
    ConsoleError,
    RefusedError,
    TooSlowError,
    TransientError,
    UsageError,
)

if TYPE_CHECKING:
    from psycopg import Connection as PsycopgConnection
    from psycopg.errors import Diagnostic
    from sqlalchemy import URL, Connection, Engine
    from sqlalchemy.engine.interfaces import Dialect
    from sqlalchemy.exc import DBAPIError

_OLDEST = 140000
_OUR_REFUSAL = "DBQ04"
"""Refused for safety; the rest of the class is incorrect use."""

_OUR_CLASS = "DBQ"
"""SQLSTATE class of our functions' errors: message = what, detail = why, hint = next step."""


class PostgreSQL:
    name = "postgresql"
    title = "PostgreSQL"
    default_schema = "public"
    name_limit = 63
    name_unit = "bytes"
    payload_types: Mapping[str, str] = {"text": "text", "json": "jsonb", "bytes": "bytea"}
    id_types: Mapping[str, str] = {"bigint": "int8", "uuid": "uuid"}
    protocol = "libpq"
    cleaner = "vacuum"
    keeps_definitions = False
    key_by_hand = ""
    sql_lexer = "postgresql"
    code_lexer = "plpgsql"

    read_only_options: Mapping[str, bool] = {"postgresql_readonly": True}

    @cached_property
    def dialect(self) -> Dialect:
        """For quoting without a connection."""
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415  # a verb imports what it uses

        return postgresql.dialect()  # type: ignore[no-untyped-call]

    def name_length(self, name: str) -> int:
        """Bytes of UTF-8: what NAMEDATALEN counts."""
        return len(name.encode())

    def as_script(self, head: str, pieces: Sequence[str]) -> str:
        """One transaction for psql or any other client, with the search path of our sessions."""
        begin = "BEGIN;\nSET LOCAL search_path = pg_catalog, pg_temp;"
        return "\n\n".join((f"{head}\n{begin}", *pieces, "COMMIT;\n"))

    def array(self, values: Sequence[str | bytes]) -> object:
        """A list, which the driver sends as an array."""
        return list(values)

    def label(self, url: URL) -> str:
        """Host, port and database; the host may be a socket's folder."""
        host = url.host or url.query.get("host") or "local"
        port = f":{url.port}" if url.port else ""
        return f"{host}{port}/{url.database or ''}"

    def create_engine(self, url: URL, timeouts: Timeouts, application_name: str) -> Engine:
        """A pool of connections with every timeout set at the server."""
        import sqlalchemy  # noqa: PLC0415  # a verb imports what it uses

        from console.engines import bounded_connection  # noqa: PLC0415

        url = url.set(drivername=f"postgresql+{bounded_connection.Dialect.driver}")
        settings = {
            "statement_timeout": f"{round(timeouts.statement_seconds * 1000)}",
            "lock_timeout": f"{round(timeouts.lock_seconds * 1000)}",
            "idle_in_transaction_session_timeout": "600000",
            # An adopted table may have UTC times without a zone.
            "timezone": "UTC",
            # Names of our statements mean the server's own objects, or say their schema: nothing
            # that others create can stand in for them.
            "search_path": "pg_catalog,pg_temp",
        }
        given = url.query.get("options", "")
        ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
        # The URL's own options come last, so they win.
        options = f"{ours} {given if isinstance(given, str) else ' '.join(given)}".strip()
        arguments: dict[str, object] = {
            **{
                name: value
                for name, value in bounded_connection.SOCKET.items()
                if name not in url.query
            },
            "connect_timeout": timeouts.connect_seconds,
            "client_encoding": "utf8",
            # A prepared statement keeps its plan for the whole session: one made while the
            # queue was empty would scan a deep one at every sample. Poolers often lack them.
            "prepare_threshold": None,
            "options": options,
        }
        if "application_name" not in url.query:
            arguments["application_name"] = application_name
        kept = {k: v for k, v in url.query.items() if k not in {"options", *arguments}}
        engine = sqlalchemy.create_engine(
            url.set(query=kept),
            connect_args=arguments,
            isolation_level="READ COMMITTED",
            pool_size=4,
            max_overflow=4,
            pool_timeout=timeouts.connect_seconds,
            pool_pre_ping=True,
        )
        connect_lock = ConnectLock()

        def connect(_dialect: object, _record: object, args: Any, kwargs: Any) -> object:
            connection = connect_lock.connect(
                lambda: bounded_connection.Connection.connect(*args, **kwargs)
            )
            connection.limit(timeouts, options)
            return connection

        sqlalchemy.event.listen(engine, "do_connect", connect)
        return engine

    def capabilities(self, connection: Connection) -> Capabilities:
        """Read what server and login this is."""
        probe = sql.row(connection, ServerProbe, "server.capabilities")
        if probe.version_number < _OLDEST:
            raise UsageError(
                f"PostgreSQL {probe.server_version} is too old for this console.",
                why="The queue functions need PostgreSQL 14 or newer.",
                next_step="Connect to a newer server.",
            )
        missing = {}
        if not probe.sees_all_sessions:
            missing["sessions"] = (
                f"{probe.database_user} is not a member of pg_read_all_stats: other users' "
                "sessions are hidden"
            )
        if not probe.counts_rows:
            missing["rates"] = "the server counts no rows: track_counts is off, or it is a standby"
        return Capabilities(**vars(probe), missing=missing)

    def translate(self, error: DBAPIError, doing: str) -> ConsoleError:
        """The driver's error as what, why and next step. The cause has the traceback."""
        import psycopg  # noqa: PLC0415  # a verb imports what it uses

        original = error.orig
        what = f"Could not {doing}."
        if not isinstance(original, psycopg.Error):
            return ConsoleError(what, why=str(original))
        state = original.sqlstate or ""
        # libpq reports a lost connection in several lines.
        why = original.diag.message_primary or "; ".join(
            line.strip() for line in str(original).strip().splitlines()
        )
        if state.startswith(_OUR_CLASS):
            ours = RefusedError if state == _OUR_REFUSAL else UsageError
            return ours(
                f"{what} {why}",
                why=original.diag.message_detail or "",
                next_step=original.diag.message_hint or "",
            )
        if state[:2] == "08" or (not state and isinstance(original, psycopg.OperationalError)):
            return ConnectionFailedError(what, why=why, next_step=_after_a_failed_login(why))
        if not state and isinstance(original, psycopg.DataError) and "NUL" in why:
            state = "22021"  # the driver refuses it before the server could
        kind, next_step = _meaning(state)
        if detail := original.diag.message_detail:
            why = f"{why} ({detail})" if state not in _DETAIL_HAS_DATA else why
        return kind(what, why=why, next_step=next_step or original.diag.message_hint or "")

    def wait_for_notification(self, connection: Connection, seconds: float) -> None:
        """Return at the next notification or after `seconds`; requires LISTEN and autocommit."""
        for _ in _driver(connection).notifies(timeout=seconds, stop_after=1):
            break

    @contextmanager
    def permission_warnings(self, connection: Connection) -> Iterator[list[str]]:
        """VACUUM and ANALYZE skip a table for lack of rights with a warning. It has no SQLSTATE of
        its own and may be in any language, so it is recognised by the server's function name."""
        driver = _driver(connection)
        found: list[str] = []

        def on_notice(notice: Diagnostic) -> None:
            if notice.source_function == "vacuum_is_permitted_for_relation":
                found.append(notice.message_primary or "refused")

        driver.add_notice_handler(on_notice)
        try:
            yield found
        finally:
            driver.remove_notice_handler(on_notice)


def _driver(connection: Connection) -> PsycopgConnection[Any]:
    import psycopg  # noqa: PLC0415  # a verb imports what it uses

    driver = connection.connection.driver_connection
    if not isinstance(driver, psycopg.Connection):
        raise TypeError("not a psycopg connection")
    return driver


_LOGIN = "Check user and password (or ~/.pgpass), and that neither has expired; then try again."
_DATABASE = "Check the database's name in the URL, and that the login may use it."
_FULL = "Close other sessions, or try again in a moment."
_LATER = "The server is stopping or starting; try again in a moment."

_REFUSED_AT_LOGIN: tuple[tuple[str, str], ...] = (
    (r"authentication failed|no password supplied|not permitted to log in", _LOGIN),
    (r'role ".*" does not exist', _LOGIN),
    (r'database ".*" does not exist|not currently accepting connections', _DATABASE),
    (r"permission denied for database|no pg_hba\.conf entry", _DATABASE),
    (r"too many (?:clients|connections)|connection slots are reserved", _FULL),
    (r"is starting up|is shutting down|in recovery mode|not yet accepting connections", _LATER),
)
"""Server messages before there is a session, for which libpq gives no SQLSTATE."""

_DETAIL_HAS_DATA = {"23502", "23514", "23505", "22P02"}
"""States whose detail repeats a row's values: payloads do not belong in messages."""

_MEANINGS: dict[str, tuple[type[ConsoleError], str]] = {
    "28": (ConnectionFailedError, _LOGIN),
    "3D": (ConnectionFailedError, _DATABASE),
    "53300": (ConnectionFailedError, _FULL),
    "57P": (ConnectionFailedError, _LATER),
    "57P04": (ConnectionFailedError, "The database was dropped: check its name in the URL."),
    # The server ended the session: a transaction was idle, or lasted, for too long.
    "25P03": (ConnectionFailedError, "The transaction was rolled back. Try again."),
    "25P04": (ConnectionFailedError, "The transaction was rolled back. Try again."),
    "53": (ConsoleError, "Free the resource that the server is short of, then try again."),
    "42501": (RefusedError, "Ask the owner of the queue for the grant, or use another login."),
    "25006": (RefusedError, "This connection is read-only; use one that may write."),
    "55P03": (BusyError, "Another session holds the lock; nothing was changed. Try again."),
    "57014": (TooSlowError, "The statement time-out ended it; nothing was changed. Try again."),
    "40": (TransientError, "Nothing was changed. Try again."),
    "42P01": (UsageError, "The queue was dropped or changed; check with: dbq-console status"),
    "42883": (UsageError, "The queue was dropped or changed; check with: dbq-console status"),
    "42P07": (UsageError, "Choose another name for the queue."),
    "42723": (UsageError, "Choose another name for the queue."),
    "42710": (UsageError, "Choose another name for the queue."),
    "3F000": (UsageError, "Create the schema first, or name another with --schema."),
    "23502": (UsageError, "A message needs a payload."),
    "23505": (UsageError, "A message with that id already exists; it was not stored twice."),
    "22P02": (UsageError, "The payload is not valid for the queue's payload type."),
    "22P05": (UsageError, "The payload has a character that the queue's payload type cannot hold."),
    "22021": (UsageError, "Text cannot hold the character NUL; use a queue with payload=bytes."),
}


def _after_a_failed_login(why: str) -> str:
    """What to do next, from the server's message alone."""
    found = (step for pattern, step in _REFUSED_AT_LOGIN if re.search(pattern, why))
    return next(found, UNREACHABLE)


def _meaning(state: str) -> tuple[type[ConsoleError], str]:
    """The most specific meaning of a SQLSTATE."""
    for length in (5, 3, 2):
        if found := _MEANINGS.get(state[:length]):
            return found
    return ConsoleError, ""


PRODUCT = PostgreSQL()
