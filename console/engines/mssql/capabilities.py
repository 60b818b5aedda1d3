"""What a server and login can do; on a limited server, as much as it reveals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError, ResourceClosedError

from console import sql
from console.engines.mssql import errors
from console.engines.mssql.odbc import load_pyodbc
from console.engines.product import Capabilities
from console.errors import BusyError, ConnectionFailedError, RefusedError

if TYPE_CHECKING:
    from sqlalchemy import Connection

OLDEST = 14
"""SQL Server 2017 (STRING_AGG)."""
OLDEST_LEVEL = 130
"""OPENJSON"""

_NAMES = {14: "2017", 15: "2019", 16: "2022", 17: "2025"}

_CLOUD = {5: "Azure SQL Database", 8: "Azure SQL Managed Instance", 12: "SQL database in Fabric"}
"""SERVERPROPERTY('EngineEdition') of servers whose version number does not rise."""

_NO_SERVER = {5, 12}
"""Those where a login has only a database."""


@dataclass(frozen=True)
class Probe:
    """The row of server.sql's `capabilities`."""

    server_version: str
    version_number: int
    edition: str
    engine_edition: int
    database: str
    database_user: str
    read_only: bool
    sees_all_sessions: bool
    sees_counters: bool
    may_create: bool
    impersonates_owner: bool
    counts_rows: bool
    read_committed_snapshot: bool
    broker_enabled: bool
    online_rebuild: bool
    babelfish: bool
    encoding: str
    compatibility_level: int


def probe(connection: Connection) -> Capabilities:
    """A server that cannot run the query is described by what its driver knows."""
    try:
        row = sql.row(connection, Probe, "server.capabilities")
    except DBAPIError as error:
        refused = errors.translate(error, "read what the server supports")
        if isinstance(refused, ConnectionFailedError | BusyError):
            raise
        return _limited(connection, refused.why)
    return capabilities_of(row)


def capabilities_of(row: Probe) -> Capabilities:
    """From the probe's row; RefusedError if the server or the database is too old."""
    if not row.babelfish:
        _check_age(row)
    missing = _missing(row)
    return Capabilities(
        server_version=row.server_version,
        version_number=row.version_number,
        database=row.database,
        database_user=row.database_user,
        read_only=bool(row.read_only),
        sees_all_sessions="sessions" not in missing,
        may_create=bool(row.may_create),
        counts_rows=bool(row.counts_rows) and "rates" not in missing,
        encoding=row.encoding,
        missing=missing,
        facts={
            "product": _product(row),
            "edition": row.edition,
            "compatibility_level": str(row.compatibility_level),
            "read_committed_snapshot": _on(row.read_committed_snapshot),
            "service_broker": _on(row.broker_enabled),
            "online_rebuild": _on(row.online_rebuild),
            # Which cumulative waits the login can see (queries/mssql/activity.sql).
            "waits_of": "database" if row.engine_edition in _NO_SERVER else "server",
            **({"babelfish": "on"} if row.babelfish else {}),
        },
    )


def _check_age(row: Probe) -> None:
    major = _major(row.server_version)
    if row.engine_edition not in _CLOUD and major is not None and major < OLDEST:
        raise RefusedError(
            f"SQL Server {row.server_version} is too old for this console.",
            why="The statements of verbs need SQL Server 2017 or newer.",
            next_step="Connect to a newer server.",
        )
    if row.compatibility_level < OLDEST_LEVEL:
        raise RefusedError(
            f"The compatibility level of the database {row.database} is too low.",
            why=(
                f"It is {row.compatibility_level}; "
                f"the queue procedures need {OLDEST_LEVEL} or more (OPENJSON)."
            ),
            next_step="Ask its owner for: ALTER DATABASE ... SET COMPATIBILITY_LEVEL = 130",
        )


def _missing(row: Probe) -> dict[str, str]:
    missing = {}
    if row.babelfish:
        missing.update(dict.fromkeys(_NOT_IN_BABELFISH, _BABELFISH))
        missing["queues"] = f"{_BABELFISH}: a pop there cannot skip rows that others hold"
    if not row.sees_all_sessions:
        right = "VIEW SERVER STATE"
        if row.engine_edition in _NO_SERVER:
            right = "VIEW DATABASE STATE (at Basic, S0, S1, in pools: ##MS_ServerStateReader##)"
        why = f"{row.database_user} lacks {right}: other users' sessions are hidden"
        missing = {"sessions": why, "waits": why} | missing
    if not row.sees_counters:
        missing.setdefault(
            "rates", f"{row.database_user} lacks VIEW DATABASE STATE: the row counters are hidden"
        )
    if row.engine_edition in _NO_SERVER:
        missing.setdefault("broker", f"{_product(row)} has no Service Broker")
    elif not row.broker_enabled:
        missing.setdefault("broker", f"Service Broker is off in the database {row.database}")
    if not row.impersonates_owner:
        missing.setdefault(
            "owner",
            f"{row.database_user} may not IMPERSONATE the user dbq_owner, as which its procedures "
            "run: the database's owner creates it and grants that right with dbq-console roles",
        )
    if not row.online_rebuild:
        missing.setdefault(
            "online_rebuild", f"{row.edition} rebuilds an index only with its table locked"
        )
    return missing


_BABELFISH = "this is Babelfish, which speaks SQL Server's protocol but is PostgreSQL"
_NOT_IN_BABELFISH = (
    "queues",
    "readpast",
    "waitfor",
    "broker",
    "sessions",
    "rates",
    "waits",
    "online_rebuild",
)


def _is_babelfish(connection: Connection) -> bool:
    try:
        signs = sql.values(connection, int | None, "server.babelfish")
    except (DBAPIError, ResourceClosedError):  # refused, or no rows
        return False
    return any(signs)


def _limited(connection: Connection, why: str) -> Capabilities:
    """A server that lacks something that the query needs."""
    babelfish = _is_babelfish(connection)
    driver = connection.connection.driver_connection
    odbc = load_pyodbc()

    def info(name: str) -> str:
        try:
            return str(driver.getinfo(getattr(odbc, name)) or "?")  # type: ignore[union-attr]
        except odbc.Error:
            return "?"

    version = info("SQL_DBMS_VER")
    cut = f"{why[:200]}…" if len(why) > 200 else why
    reason = _BABELFISH if babelfish else f"this server cannot report what it supports: {cut}"
    return Capabilities(
        server_version=version,
        version_number=(_major(version) or 0) * 10_000_000,
        database=info("SQL_DATABASE_NAME"),
        database_user=info("SQL_USER_NAME"),
        read_only=False,
        sees_all_sessions=False,
        may_create=False,
        counts_rows=False,
        encoding="?",
        missing=dict.fromkeys(_NOT_IN_BABELFISH, reason),
        facts=(
            {"product": "Babelfish", "babelfish": "on"}
            if babelfish
            else {"product": info("SQL_DBMS_NAME")}
        ),
    )


def _product(row: Probe) -> str:
    if row.babelfish:
        return "Babelfish"
    if row.engine_edition in _CLOUD:
        return _CLOUD[row.engine_edition]
    return f"SQL Server {_NAMES.get(_major(row.server_version) or 0, '')}".strip()


def _major(version: str) -> int | None:
    first = version.partition(".")[0]
    return int(first) if first.isdecimal() else None


def _on(flag: Any) -> str:
    return "on" if flag else "off"
