"""PostgreSQL 14 and newer, through psycopg 3."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from console import sql
from console.engines import transport
from console.engines.database import ConnectLock
from console.engines.hosts import check_options, hosts_label
from console.engines.product import (
    ALREADY_STORED,
    LOCKED,
    TRANSPORT,
    UNREACHABLE,
    Capabilities,
    Cleaner,
    ServerProbe,
    Timeouts,
    behind_sequence,
)
from console.engines.session_settings import SessionSettings
from console.errors import (
    BusyError,
    ConnectionFailedError,
    ConsoleError,
    ReadOnlyError,
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

    from console.engines.bounded_connection import Connection as BoundedConnection

_OLDEST = 140000
_OUR_REFUSAL = "DBQ04"
"""Refused for safety; the rest of the class is incorrect use."""

_REFUSES_OPTIONS = "unsupported startup parameter"
"""How PgBouncer and others refuse startup options, before there is a session."""

_OUR_CLASS = "DBQ"
"""SQLSTATE class of our functions' errors: message = what, detail = why, hint = next step."""


_OTHER_CLIENTS = ("PGTZ", "PGDATESTYLE", "PGGEQO")
"""Environment variables that libpq sends at connect, after the startup options."""


class _Connector:
    """Connects by one URL. What refused startup options once is not sent them again."""

    def __init__(self, settings: SessionSettings, *, pooled: bool) -> None:
        self._settings = settings
        self._pooled = pooled

    def connect(self, *args: Any, **kwargs: Any) -> BoundedConnection:
        import psycopg  # noqa: PLC0415  # a verb imports what it uses

        if not self._pooled:
            try:
                return self._made(*args, **kwargs, options=self._settings.startup)
            except psycopg.OperationalError as error:
                if _REFUSES_OPTIONS not in str(error):
                    raise
                self._pooled = True
        if others := self._settings.others:
            raise psycopg.OperationalError(
                f"a pooler cannot be given {' '.join(others)}, which the URL's options have"
            )
        return self._made(*args, **kwargs, options="")  # not those of PGOPTIONS either

    def _made(self, *args: Any, **kwargs: Any) -> BoundedConnection:
        from console.engines import bounded_connection  # noqa: PLC0415

        for name in _OTHER_CLIENTS:
            os.environ.pop(name, None)
        connection = bounded_connection.Connection.connect(*args, **kwargs)
        try:
            connection.limit(self._settings)
            connection.keep(self._settings, pooled=self._pooled)
        except BaseException:
            connection.close()
            raise
        self._pooled = connection.pooled
        return connection


class PostgreSQL:
    name = "postgresql"
    title = "PostgreSQL"
    default_schema = others_schema = "public"
    name_limit = 63
    name_unit = "bytes"
    payload_types: Mapping[str, str] = {"text": "text", "json": "jsonb", "bytes": "bytea"}
    id_types: Mapping[str, str] = {"bigint": "int8", "uuid": "uuid"}
    time_types: Sequence[str] = ("timestamp with time zone", "timestamp without time zone", "date")
    number_types: Sequence[str] = (
        *("integer", "bigint", "smallint", "numeric", "real", "double precision"),
        *("oid", "xid", "regclass"),
    )
    unsorted_types: Sequence[str] = ()
    narrow_types: Sequence[str] = ()
    protocol = "libpq"
    cleaner = Cleaner.VACUUM
    online_index = ("CREATE INDEX ON", "CREATE INDEX CONCURRENTLY ON")
    keeps_definitions = False
    key_by_hand = ""
    sampled_together = 70
    first_run_seconds = 0.0
    holders_every_seconds = 0.0
    time_indexes_have_keys = False
    escalates_locks = False
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
        return f"{hosts_label(url)}/{url.database or ''}"

    def secured(self, url: URL, *, production: bool) -> URL:
        """With libpq's keywords."""
        return transport.secured(url, production=production)

    def protection(self, url: URL, *, production: bool) -> str:
        return transport.planned(url, production=production)

    def create_engine(
        self,
        complete_url: Callable[[], URL],
        timeouts: Timeouts,
        application_name: str,
        *,
        pooled: bool = False,
    ) -> Engine:
        """A pool of connections with every timeout set at the server."""
        import sqlalchemy  # noqa: PLC0415  # a verb imports what it uses

        from console.engines import bounded_connection  # noqa: PLC0415

        url = complete_url()
        check_options(url)
        if (seconds := int(str(url.query.get("connect_timeout", 0)))) > 0:
            timeouts = replace(timeouts, connect_seconds=seconds)
        url = url.set(drivername=f"postgresql+{bounded_connection.Dialect.driver}")
        given = url.query.get("options", os.environ.get("PGOPTIONS", ""))
        settings = SessionSettings(timeouts, given if isinstance(given, str) else " ".join(given))
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
        }
        if "application_name" not in url.query:
            arguments["application_name"] = application_name
        kept = {k: v for k, v in url.query.items() if k not in {"options", *arguments}}
        engine = sqlalchemy.create_engine(
            url.set(query=kept),
            connect_args=arguments,
            isolation_level="READ COMMITTED",
            pool_size=4,
            pool_use_lifo=True,  # a session that has read the catalog reads it faster
            max_overflow=4,
            pool_timeout=timeouts.connect_seconds,
            pool_pre_ping=True,
        )
        connect_lock, connector = ConnectLock(), _Connector(settings, pooled=pooled)

        def connect(_dialect: object, _record: object, args: Any, kwargs: Any) -> object:
            return connect_lock.connect(lambda: connector.connect(*args, **kwargs))

        sqlalchemy.event.listen(engine, "do_connect", connect)
        return engine

    def reports_primary(self, connection: Connection) -> bool:
        return bool(getattr(_driver(connection), "reports_primary", False))

    def capabilities(self, connection: Connection) -> Capabilities:
        """Read what server and login this is."""
        probe = sql.row(connection, ServerProbe, "server.capabilities")
        if probe.version_number < _OLDEST:
            raise RefusedError(
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
        version = sql.value(connection, str | None, "server.tls_version")
        words = transport.has(_driver(connection), version)
        return Capabilities(**vars(probe), missing=missing, facts={TRANSPORT: words})

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
        if not state and isinstance(original, psycopg.ProgrammingError):
            return UsageError(what, why=why)  # libpq does not know an option of the URL
        if not state and isinstance(original, psycopg.DataError) and "NUL" in why:
            # The driver refuses it before the server could.
            step = "Text cannot hold the character NUL; use a queue with payload=bytes."
            return UsageError(what, why=why, next_step=step)
        kind, next_step = _taken_key(original.diag) if state == "23505" else _meaning(state)
        if original.diag.source_function == "check_enable_rls":
            why, next_step = "row security hides rows from this login", _SEES_ALL
        if detail := original.diag.message_detail:
            why = f"{why} ({detail})" if state not in _DETAIL_HAS_DATA else why
        console_error = kind(what, why=why, next_step=next_step or original.diag.message_hint or "")
        console_error.of_a_row = state[:2] in {
            "22",
            "54",
        }  # data exceptions; text nested too deeply
        return console_error

    def limit_locks(self, connection: Connection, seconds: float) -> None:
        sql.value(connection, str, "server.limit_locks", lock_timeout=f"{seconds * 1000:.0f}ms")

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
_TRANSACTION_MODE = (
    "Use the pooler in transaction mode, or connect to the server itself "
    "(dbq-console help connections)."
)
_LATER = "The server is stopping or starting; try again in a moment."

_UNCHECKED = (
    "It wants the password in clear or as MD5, and nothing shows that it is the right server: add "
    "sslmode=verify-full to the URL, or allow it there with require_auth=password "
    "(dbq-console help connections)."
)
_CERTIFICATE = (
    "Its certificate is checked because the profile is production, or the URL says so: name the "
    "authority with sslrootcert=FILE, or say what is enough with sslmode=... in the URL."
)

_REFUSED_AT_LOGIN: tuple[tuple[str, str], ...] = (
    (r"authentication method requirement", _UNCHECKED),
    (r"does not support SSL|certificate|SSL error", _CERTIFICATE),
    (r"authentication failed|no password supplied|not permitted to log in", _LOGIN),
    (r'role ".*" does not exist', _LOGIN),
    (r'database ".*" does not exist|not currently accepting connections', _DATABASE),
    (r"permission denied for database|no pg_hba\.conf entry", _DATABASE),
    (r"too many (?:clients|connections)|connection slots are reserved", _FULL),
    (r"statement pooling mode", _TRANSACTION_MODE),
    (r"is starting up|is shutting down|in recovery mode|not yet accepting connections", _LATER),
    (r"\(SQLSTATE 28", _LOGIN),
    (r"\(SQLSTATE (?:3D|42501|55000)", _DATABASE),
    (r"\(SQLSTATE 53300", _FULL),
    (r"\(SQLSTATE 57P", _LATER),
)
"""Refusals before there is a session: a pooler's and libpq's own by their words, which are English;
a server's, in whatever language, by the SQLSTATE that `bounded_connection` adds."""

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_SEES_ALL = (
    "Use a login that sees all rows (BYPASSRLS, or the owner of a table that does not force row "
    "security). To work on only those that this one sees, add options=-c row_security=on to the "
    "URL."
)

_DETAIL_HAS_DATA = {"23502", "23514", "23505", "22P02"}
"""States whose detail repeats a row's values: payloads do not belong in messages."""

_UNFIT = "It does not fit its type: a payload that of the queue, an id that of its column."


def _longer(setting: str) -> str:
    """What to do after a time-out that the login, the database or the server sets."""
    return (
        f"Nothing was committed. Try again; if it recurs, its {setting} is too short: for this "
        f"connection, add options=-c {setting}=0 to the URL."
    )


_MEANINGS: dict[str, tuple[type[ConsoleError], str]] = {
    "28": (ConnectionFailedError, _LOGIN),
    "3D": (ConnectionFailedError, _DATABASE),
    "53300": (ConnectionFailedError, _FULL),
    "57P": (ConnectionFailedError, _LATER),
    "57P04": (ConnectionFailedError, "The database was dropped: check its name in the URL."),
    # The server ended the session: it, or its transaction, was idle or lasted for too long.
    "57P05": (ConnectionFailedError, _longer("idle_session_timeout")),
    "25P03": (ConnectionFailedError, _longer("idle_in_transaction_session_timeout")),
    "25P04": (ConnectionFailedError, _longer("transaction_timeout")),
    "53": (ConsoleError, "Free the resource that the server is short of, then try again."),
    "54": (UsageError, "A limit of the server: it is too long, or nested too deeply."),
    "42501": (RefusedError, "Ask the owner of the queue for the grant, or use another login."),
    "428C9": (
        RefusedError,
        "The server computes that column: change what it is computed from, as its owner does.",
    ),
    "25006": (ReadOnlyError, "This connection is read-only; use one that may write."),
    "55P03": (BusyError, LOCKED),
    "57014": (TooSlowError, "The statement time-out ended it; nothing was changed. Try again."),
    "40": (TransientError, "Nothing was changed. Try again."),
    "42P01": (ConsoleError, "The queue was dropped or changed; check with: dbq-console status"),
    "42883": (ConsoleError, "The queue was dropped or changed; check with: dbq-console status"),
    "42703": (
        ConsoleError,
        "The queue was changed, or replaced by another design; check with: dbq-console doctor",
    ),
    "42P07": (UsageError, "Choose another name for the queue."),
    "42723": (UsageError, "Choose another name for the queue."),
    "42710": (UsageError, "Choose another name for the queue."),
    "3F000": (UsageError, "Create the schema first, or name another with --schema."),
    "23502": (UsageError, "A message needs a payload."),
    "22P02": (UsageError, _UNFIT),
    "22007": (UsageError, _UNFIT),
    "22P05": (UsageError, "A character has no place in the database's encoding, or in its type."),
    "22021": (ConsoleError, "Bytes that are no text in its encoding go into payload=bytes."),
}


def _after_a_failed_login(why: str) -> str:
    """What to do next, from the server's message alone."""
    found = (step for pattern, step in _REFUSED_AT_LOGIN if re.search(pattern, why))
    return next(found, UNREACHABLE)


def _taken_key(diagnostic: Diagnostic) -> tuple[type[ConsoleError], str]:
    """By its value: a caller's own id is a UUID; a whole number was drawn from a sequence."""
    match = re.search(r"=\((.*)\)", diagnostic.message_detail or "=(0)", re.DOTALL)
    value = match[1].rpartition(", ")[2] if match else ""
    if _UUID.fullmatch(value):
        return UsageError, ALREADY_STORED
    if not value.isdigit():
        return ConsoleError, "A row with that key is there already; nothing was stored."
    of = "" if diagnostic.schema_name == "dbq" else diagnostic.table_name or ""
    return ConsoleError, behind_sequence(re.sub(r"_(?:archive|meta|data|in_hand)$", "", of))


def _meaning(state: str) -> tuple[type[ConsoleError], str]:
    """The most specific meaning of a SQLSTATE."""
    for length in (5, 3, 2):
        if meaning := _MEANINGS.get(state[:length]):
            return meaning
    return ConsoleError, ""


PRODUCT = PostgreSQL()
