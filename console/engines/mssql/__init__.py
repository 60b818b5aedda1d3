"""SQL Server 2017 and newer, Azure SQL Database and Managed Instance, through pyodbc."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from console.engines.database import ROW_SECURITY, ConnectLock, time_left
from console.engines.product import Capabilities, Cleaner, Timeouts
from console.errors import ConsoleError, UsageError

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine
    from sqlalchemy.engine.interfaces import Dialect
    from sqlalchemy.exc import DBAPIError

_END = re.compile(r"^GO$", re.MULTILINE)
# What sqlcmd and SSMS interpret even in a name or a literal: a batch end, a command, a variable.
_COMMAND = re.compile(r"[\r\n]\s*(?:GO\b|:|!!)|\$\(", re.IGNORECASE)
_TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?\*/|\[(?:[^\]]|\]\])*\]|'(?:[^']|'')*'|"(?:[^"]|"")*\"""", re.DOTALL
)

_CHECK = """\
-- For sqlcmd (-f 65001 where this file is UTF-8), SSMS and other clients that know GO.
-- After an error they go on with the next batch; here, later batches do nothing.
DECLARE @why nvarchar(400) = CASE
    WHEN @@TRANCOUNT > 0
        THEN N'a transaction is open here: end it, and let no tool (Flyway, DbUp) begin one'
    WHEN @@OPTIONS & 2 = 2
        THEN N'IMPLICIT_TRANSACTIONS is on (JDBC without autocommit): switch it off here'
    WHEN DB_NAME() IN (N'master', N'model', N'msdb', N'tempdb')
        THEN N'this is a system database. Choose yours: USE, sqlcmd -d'
    WHEN CAST(DATABASEPROPERTYEX(DB_NAME(), N'Updateability') AS nvarchar(20)) = N'READ_ONLY'
        THEN N'this database is read-only'
    -- In Azure the version stays at 12.0.
    WHEN CAST(SERVERPROPERTY(N'EngineEdition') AS int) NOT IN (5, 8, 12)
        AND CAST(PARSENAME(CAST(SERVERPROPERTY(N'ProductVersion') AS nvarchar(128)), 4) AS int) < 14
        THEN N'this server is older than SQL Server 2017'
    WHEN (SELECT d.compatibility_level FROM sys.databases AS d WHERE d.name = DB_NAME()) < 130
        THEN N'this database''s compatibility level is below 130'
END;
IF @why IS NOT NULL
BEGIN
    CREATE TABLE #dbq_refused (why nvarchar(400) NULL);
    RAISERROR(N'Nothing was done: %s.', 16, 1, @why);
    SET NOEXEC ON;
END;"""
"""`#dbq_refused`: what is open is another's transaction, which the last batch leaves alone."""

_FIRST = """\
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET IMPLICIT_TRANSACTIONS OFF;
SET NUMERIC_ROUNDABORT OFF;
SET ANSI_NULLS, ANSI_PADDING, ANSI_WARNINGS, ARITHABORT, CONCAT_NULL_YIELDS_NULL,
    QUOTED_IDENTIFIER ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN TRANSACTION;"""

_GUARD = "IF @@ERROR <> 0 OR @@TRANCOUNT = 0 SET NOEXEC ON;"
"""XACT_ABORT rolls back after run-time errors, but not if a batch does not compile."""

_LAST = """\
DECLARE @done bit;
-- Under NOEXEC neither this commit nor this assignment runs.
COMMIT TRANSACTION;
IF @@TRANCOUNT = 0 SET @done = 1;
SET NOEXEC OFF;
IF @@TRANCOUNT > 0 AND OBJECT_ID(N'tempdb..#dbq_refused') IS NULL ROLLBACK TRANSACTION;
IF @done = 1 PRINT N'Done.';
ELSE RAISERROR(N'Nothing was changed; the first error above says why.', 16, 1);
DROP TABLE IF EXISTS #dbq_refused;"""


def batches(text: str) -> list[str]:
    """The batches of a rendered script; UsageError if a name in it would be a command."""
    for token in _TOKEN.finditer(text):
        if token[0][0] in "['\"" and _COMMAND.search(token[0]):
            raise UsageError(
                "This cannot be printed as a script.",
                why="A name in it contains what sqlcmd takes for a command: $(, or a line GO, : "
                "or !!.",
                next_step="Install it over a connection, or choose another name.",
            )
    return [batch.strip("\n") for batch in _END.split(text) if batch.strip()]


def as_script(head: str, pieces: Sequence[str]) -> str:
    """One transaction over all batches: all or nothing, whatever fails."""
    parts = [f"{head}\n{_CHECK}", _FIRST]
    for piece in pieces:
        for batch in batches(piece):
            parts += [batch, _GUARD]
    parts.append(_LAST)
    return "".join(f"{part}\nGO\n\n" for part in parts).rstrip("\n") + "\n"


class SQLServer:
    name = "mssql"
    title = "SQL Server"
    # Its owner is dbq_owner: rights on a schema of dbo's would be rights on all of dbo's.
    default_schema = "queues"
    others_schema = "dbo"
    name_limit = 128
    name_unit = "characters"
    payload_types: Mapping[str, str] = {
        "text": "nvarchar(max)",
        "json": "nvarchar(max)",
        "bytes": "varbinary(max)",
    }
    id_types: Mapping[str, str] = {"bigint": "bigint", "uuid": "uniqueidentifier"}
    time_types: Sequence[str] = ("datetime2", "datetimeoffset", "datetime", "smalldatetime", "date")
    number_types: Sequence[str] = (
        *("int", "bigint", "smallint", "tinyint", "numeric", "decimal", "float", "real"),
        *("money", "smallmoney"),
    )
    unsorted_types: Sequence[str] = ("xml", "text", "ntext", "image", "geography", "geometry")
    narrow_types: Sequence[str] = ("varchar", "char")
    protocol = "odbc"
    cleaner = Cleaner.GHOST_CLEANUP
    online_index = ("WITH (ALLOW_PAGE_LOCKS", "WITH (ONLINE = ON, ALLOW_PAGE_LOCKS")
    keeps_definitions = True
    key_by_hand = (
        "Recreate it as in the design's script (dbq-console install ... --print "
        "--engine mssql): callers wait meanwhile, unless the edition supports ONLINE = ON"
    )
    # Its optimizer takes seconds for a hundred table references, and keeps the plan by the text.
    sampled_together = 10
    first_run_seconds = 3.0
    holders_every_seconds = 10.0
    time_indexes_have_keys = True
    escalates_locks = True
    sql_lexer = code_lexer = "tsql"

    read_only_options: Mapping[str, bool] = {}
    """SQL Server has no read-only transactions: only the login's rights count."""

    @cached_property
    def dialect(self) -> Dialect:
        """For quoting without a connection."""
        from console.engines.mssql import session  # noqa: PLC0415  # a verb imports what it uses

        return session.Dialect()  # type: ignore[no-untyped-call]

    def name_length(self, name: str) -> int:
        """Units of UTF-16: what sysname, an nvarchar(128), counts."""
        return len(name.encode("utf-16-le")) // 2

    def as_script(self, head: str, pieces: Sequence[str]) -> str:
        """One transaction for sqlcmd, SSMS or any other client that ends a batch at GO."""
        return as_script(head, pieces)

    def array(self, values: Sequence[str | bytes]) -> object:
        """JSON text, which OPENJSON reads; bytes as hexadecimal digits."""
        texts = [v.hex() if isinstance(v, bytes) else v for v in values]
        return json.dumps(texts, ensure_ascii=False)

    def label(self, url: URL) -> str:
        """Server, port and database, also from `odbc_connect`."""
        from console.engines.mssql import odbc  # noqa: PLC0415  # a verb imports what it uses

        return odbc.label(url)

    def secured(self, url: URL, *, production: bool) -> URL:  # noqa: ARG002  # of the protocol
        """As it is: Microsoft's driver encrypts and checks the certificate unless told not to."""
        return url

    def protection(self, url: URL, *, production: bool) -> str:  # noqa: ARG002  # likewise
        return "as its driver and the URL say"

    def create_engine(
        self,
        complete_url: Callable[[], URL],
        timeouts: Timeouts,
        application_name: str,
        *,
        pooled: bool = False,  # noqa: ARG002  # no pooler stands before this product
    ) -> Engine:
        """A pool of connections with every timeout set. Each gets an access token of its own."""
        import sqlalchemy  # noqa: PLC0415  # a verb imports what it uses

        from console.engines.mssql.odbc import (  # noqa: PLC0415
            Driver,
            access_token,
            choose,
            connection_string,
            label,
            load_pyodbc,
            target,
            wants_filtered,
        )
        from console.engines.mssql.session import CONNECTING, Dialect, OdbcConnection, redacted  # noqa: PLC0415

        odbc = load_pyodbc()
        sources = _data_sources(odbc)
        url = complete_url()
        odbc_target = target(url, list(sources))
        driver = (
            Driver(odbc_target.driver or sources.get(odbc_target.dsn.casefold(), ""))
            if odbc_target.dsn
            else choose(odbc_target.driver, odbc)
        )
        text = connection_string(odbc_target, driver, application_name)
        name = label(url)
        connect_lock = ConnectLock()

        def connect() -> OdbcConnection:
            secrets, token = odbc_target.secrets, {}
            if odbc_target.takes_token:
                now = target(complete_url(), list(sources))
                secrets, token = now.secrets, {"attrs_before": access_token(now, driver, name)}
            try:
                seconds = _seconds_to_connect(timeouts)
                raw = odbc.connect(text, autocommit=True, timeout=seconds, **token)
                session = OdbcConnection(raw, odbc, driver.family)
                try:
                    # The driver knows each column's code page; pyodbc guesses.
                    raw.setdecoding(odbc.SQL_CHAR, encoding="utf-16le", ctype=odbc.SQL_WCHAR)
                    session.set_up(timeouts)
                except BaseException:
                    session.close()
                    raise
            except odbc.Error as error:
                safe = redacted(error, secrets)
                safe.add_note(f"{CONNECTING}{name}")
                raise safe from None
            return session

        return sqlalchemy.create_engine(
            # Without the URL's parts, so that no repr of the engine shows a secret.
            f"mssql+{Dialect.driver}://",
            creator=lambda: connect_lock.connect(connect),
            pool_size=4,
            max_overflow=4,
            pool_timeout=timeouts.connect_seconds,
            pool_pre_ping=True,
            execution_options={ROW_SECURITY: wants_filtered(url)},
        )

    def reports_primary(self, connection: Connection) -> bool:  # noqa: ARG002  # likewise
        return False

    def capabilities(self, connection: Connection) -> Capabilities:
        """Read what server and login this is."""
        from console.engines.mssql import capabilities  # noqa: PLC0415  # a verb imports what it uses

        return capabilities.probe(connection)

    def translate(self, error: DBAPIError, doing: str) -> ConsoleError:
        """The driver's error as what, why and next step. The cause has the traceback."""
        from console.engines.mssql import errors  # noqa: PLC0415  # a verb imports what it uses

        return errors.translate(error, doing)

    def limit_locks(self, connection: Connection, seconds: float) -> None:
        raw: Any = connection.connection.dbapi_connection
        connection.execution_options(dbq_timeouts=replace(raw.limits, lock_seconds=seconds))

    def wait_for_notification(self, connection: Connection, seconds: float) -> None:  # noqa: ARG002
        """Never called: this engine has no LISTEN."""
        raise TypeError("SQL Server has no notifications")

    def permission_warnings(self, connection: Connection) -> AbstractContextManager[list[str]]:  # noqa: ARG002
        """None: a missing permission is an error."""
        return nullcontext([])


def _seconds_to_connect(timeouts: Timeouts) -> int:
    """Whole seconds within the thread's time limit; 0 would mean no timeout."""
    left = time_left()
    return max(
        1, timeouts.connect_seconds if left is None else min(timeouts.connect_seconds, int(left))
    )


def _data_sources(odbc: Any) -> dict[str, str]:
    """The data sources of this machine -> their drivers."""
    try:
        return {name.casefold(): driver for name, driver in odbc.dataSources().items()}
    except odbc.Error:
        return {}


PRODUCT = SQLServer()
