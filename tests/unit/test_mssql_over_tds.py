"""The engine `mssql` through a real driver, over real TDS: pysqlbridge answers as the server.

It knows logins, SQL Server's error numbers and the protocol, but no queue: what is not about
connecting is tested where DBQ_TEST_MSSQL_URL names an SQL Server.
"""

import dataclasses
import itertools
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Connection, make_url, text

from console.engines import Database, Timeouts, time_limit
from console.engines.mssql import PRODUCT
from console.engines.mssql.odbc import choose, load_pyodbc
from console.errors import (
    BusyError,
    ConnectionFailedError,
    ConsoleError,
    TooSlowError,
    TransientError,
    UsageError,
)
from tests.unit.mssql_tools import ENTERPRISE

bridge = pytest.importorskip("pysqlbridge", reason="needs pysqlbridge, of the extra [test]")
results = pytest.importorskip("pysqlbridge.tds.result")
server = pytest.importorskip("pysqlbridge.server")
logins = pytest.importorskip("pysqlbridge.logins")
catalogs = pytest.importorskip("pysqlbridge.catalog")

try:
    ODBC = load_pyodbc()
    CHOSEN = choose("", ODBC)
except ConnectionFailedError as error:
    pytest.skip(" ".join(str(error).splitlines()), allow_module_level=True)

SECRET = "hunter2"
PASSWORDS = ["a;b}c", "{a}", "}", "a}}b", " a b ", "a=b", "'\"", "ä🂡", "%40:/?#&+"]
"""Passwords that a connection string must quote."""

FREETDS = "FreeTDS" in ODBC.drivers()
DRIVERS = [
    CHOSEN.name,
    pytest.param(
        "FreeTDS", marks=pytest.mark.skipif(not FREETDS, reason="FreeTDS is not installed")
    ),
]

Answer = Callable[[Any], Any]


def rows(**columns: Any) -> Any:
    """A result of one row."""
    kinds = {bool: results.Bit(), int: results.Integer(8), str: results.NVarChar(400)}
    described = [results.Column(name, kinds[type(value)]) for name, value in columns.items()]
    return results.QueryResult(described, [list(columns.values())])


NOTHING = results.QueryResult([], [])


@dataclasses.dataclass
class Server:
    """A server with the answers of a test; it keeps the statements it received."""

    port: int
    answers: dict[str, Answer]
    statements: list[str]
    opened: list[Database] = dataclasses.field(default_factory=list)

    def url(self, password: str = SECRET, user: str = "somebody", **query: str) -> URL:
        """Its URL; its certificate is self-signed."""
        parameters = {"TrustServerCertificate": "yes", "driver": CHOSEN.name, **query}
        return URL.create(
            "mssql+pyodbc",
            username=user or None,
            password=password or None,
            host="127.0.0.1",
            port=self.port,
            database="x",
            query={k: v for k, v in parameters.items() if v},
        )

    def database(self, url: URL, **timeouts: float) -> Database:
        """A database on it, by a URL rendered and parsed."""
        parsed = make_url(url.render_as_string(hide_password=False))
        limits: Any = {"connect_seconds": 3, "statement_seconds": 1.0, **timeouts}
        self.opened.append(
            Database(
                PRODUCT,
                parsed,
                timeouts=Timeouts(**limits),
                application_name="dbq-console",
                label=PRODUCT.label(parsed),
            )
        )
        return self.opened[-1]


def serving(handler: Answer) -> Iterator[int]:
    """Serve on a free port of this machine."""
    store = logins.LoginStore(
        [
            logins.Login(user, logins.hash_password(password, iterations=1), hashed=True)
            for user, password in [("somebody", SECRET), *numbered_users(PASSWORDS)]
        ]
    )
    listening = server.BridgeServer("127.0.0.1", 0, query_handler=handler, logins=store)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield listening.address[1]
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()


def numbered_users(passwords: list[str]) -> Iterator[tuple[str, str]]:
    return ((f"user{number}", password) for number, password in enumerate(passwords))


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    answers: dict[str, Answer] = {}
    statements: list[str] = []

    def handle(query: Any) -> Any:
        # With values bound, a driver calls sp_prepexec: handle, types, statement, values.
        statement = query.arguments[2] if query.procedure == "sp_prep_exec" else query.sql
        statements.append(statement)
        for word, answer in answers.items():
            if word in statement:
                return answer(query)
        return rows(one=1) if statement == "SELECT 1" else NOTHING

    for port in serving(handle):
        yield Server(port, answers, statements)


@pytest.fixture
def tds(shared: Server) -> Iterator[Server]:
    """The server, with its usual answers only."""
    shared.statements.clear()
    yield shared
    while shared.opened:
        shared.opened.pop().close()
    shared.answers.clear()


def refusing(number: int, message: str) -> Answer:
    def refuse(_: Any) -> Any:
        raise results.QueryError(message, number=number)

    return refuse


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_transaction_sends_its_statements_in_order(tds: Server, driver: str) -> None:
    tds.answers["people"] = lambda _: rows(name="Ada", number=1)
    database = tds.database(tds.url(driver=driver))
    with database.transaction("look") as connection:
        found = connection.execute(text("SELECT name, number FROM people")).fetchall()
    assert [tuple(row) for row in found] == [("Ada", 1)]
    sent = [statement for statement in tds.statements if "sp_" not in statement]
    assert "SET LOCK_TIMEOUT 5000" in sent[0]
    assert sent[1:] == [
        "BEGIN TRANSACTION",
        "SELECT name, number FROM people",
        "COMMIT TRANSACTION",
    ]
    assert database.label == f"127.0.0.1:{tds.port}/x"


def test_passwords_with_any_characters_arrive(tds: Server, driver: str) -> None:
    for user, password in numbered_users(PASSWORDS):
        for url in (
            tds.url(password, user, driver=driver),
            tds.url("", "", driver=driver, UID=user, PWD=password),
        ):
            database = tds.database(url)
            with database.autocommit("log in"):
                pass


@pytest.mark.parametrize(
    "payload",
    ["ä🂡", "", "x" * 4000, "x" * 4001, "🂡" * 2001, "x" * 100_000, b"", b"\0" * 8000, b"x" * 8001],
    ids=lambda payload: f"{type(payload).__name__} {len(payload)}",
)
def test_payloads_of_any_length_make_a_round_trip(
    tds: Server, driver: str, payload: str | bytes
) -> None:
    received: list[Any] = []
    # It has no varbinary(max), and cannot answer with an empty nvarchar(max).
    text_kind = results.NVarChar(None if payload else 1)
    kind = text_kind if isinstance(payload, str) else results.VarBinary()

    def echo(query: Any) -> Any:
        received.append(query.arguments[1:])
        return results.QueryResult([results.Column("payload", kind)], [[payload]])

    tds.answers["push"] = echo
    database = tds.database(tds.url(driver=driver))
    with database.transaction("push") as connection:
        pushed = connection.execute(
            text("EXEC push :payload, :consumer"), {"payload": payload, "consumer": None}
        )
        ((returned,),) = pushed.fetchall()
    ((types, statement, sent),) = received
    assert sent == payload
    assert statement == "EXEC push @P1, NULL"
    size = len(payload.encode("utf-16-le") if isinstance(payload, str) else payload)
    assert ("max" in types.casefold()) == (size > 8000)
    if isinstance(payload, str):
        assert returned == payload
    # No other queries: none for the type of a NULL, none to prepare.
    assert sum("BEGIN" in statement for statement in tds.statements) == 1
    assert tds.statements[tds.statements.index("BEGIN TRANSACTION") + 1 :] == [
        statement,
        "COMMIT TRANSACTION",
    ]


def test_an_odbc_connect_is_passed_to_the_driver(tds: Server, driver: str) -> None:
    connect = (
        f"DRIVER={{{driver}}};SERVER=127.0.0.1,{tds.port};UID=somebody;PWD={{{SECRET}}};"
        "DATABASE=x;TrustServerCertificate=yes"
    )
    database = tds.database(URL.create("mssql+pyodbc", query={"odbc_connect": connect}))
    with database.autocommit("log in"):
        pass
    assert database.label == f"127.0.0.1:{tds.port}/x"


def full_text(error: BaseException | None) -> str:
    """The error and its causes, as a log would show them."""
    lines = []
    while error is not None:
        lines.append(f"{error!r} {error} {error.args} {getattr(error, '__notes__', '')}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(lines)


def test_a_refused_login_is_reported_without_the_password(
    tds: Server, driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    database = tds.database(tds.url(f"not {SECRET}", driver=driver))
    with pytest.raises(ConnectionFailedError) as refused, database.autocommit("log in"):
        pass
    assert refused.value.exit_status == 3
    assert refused.value.why == (
        f"Connecting to 127.0.0.1:{tds.port}/x: Login failed for user 'somebody'."
    )
    assert SECRET not in full_text(refused.value) + caplog.text


@pytest.mark.skipif("msodbcsql" not in CHOSEN.name, reason="only Microsoft's driver checks it")
def test_an_untrusted_certificate_is_refused(tds: Server) -> None:
    database = tds.database(tds.url(TrustServerCertificate=""))
    with pytest.raises(ConnectionFailedError) as refused, database.autocommit("log in"):
        pass
    assert "TrustServerCertificate=yes" in refused.value.next_step
    assert SECRET not in full_text(refused.value)


def test_a_port_without_a_server_is_reported_in_time(tds: Server, driver: str) -> None:
    database = tds.database(tds.url(driver=driver).set(port=1), connect_seconds=1)
    started = time.monotonic()
    with pytest.raises(ConnectionFailedError) as refused, database.autocommit("log in"):
        pass
    assert time.monotonic() - started < 10
    assert refused.value.why.startswith("Connecting to 127.0.0.1:1/x: ")
    assert SECRET not in full_text(refused.value)


def test_a_statement_timeout_keeps_the_connection(tds: Server, driver: str) -> None:
    """The server confirms that it stopped, so the connection is kept."""

    def slow(_: Any) -> Any:
        time.sleep(1.3)
        return rows(one=1)

    tds.answers["slow"] = slow
    database = tds.database(tds.url(driver=driver))
    with pytest.raises(BusyError) as late, database.transaction("wait") as connection:
        connection.execute(text("SELECT slow"))
    assert "time-out" in late.value.next_step
    assert tds.statements[-1] == "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION"
    with database.transaction("look") as connection:
        assert connection.execute(text("SELECT 1")).scalar() == 1


LIMITED = Timeouts(statement_seconds=0.05, lock_seconds=0.04)
USUAL = Timeouts(statement_seconds=60.0)


@contextmanager
def limited(database: Database, timeouts: Timeouts) -> Iterator[Connection]:
    """A transaction with these time-outs."""
    with database.transaction("wait") as connection:
        yield connection.execution_options(dbq_timeouts=timeouts)


def slowly(_: Any) -> Any:
    time.sleep(0.3)  # meanwhile it ignores a cancellation
    return rows(one=1)


def test_a_timeout_below_one_second_keeps_the_connection(tds: Server, driver: str) -> None:
    """The server stops when it is cancelled, and the connection is kept.

    A rollback has the usual time-out: a slow one does not cost the connection.
    """
    tds.answers.update({"slow": slowly, "ROLLBACK": slowly})
    database = tds.database(tds.url(driver=driver), connect_seconds=60, statement_seconds=60.0)
    with pytest.raises(TooSlowError) as late, limited(database, LIMITED) as connection:
        connection.execute(text("SELECT slow"))
    assert late.value.why == "this statement reached its time-out"
    assert tds.statements[-1] == "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION"
    logins_before = sum("SET NOCOUNT ON" in statement for statement in tds.statements)
    with database.transaction("look") as connection:
        assert connection.execute(text("SELECT 1")).scalar() == 1
    assert sum("SET NOCOUNT ON" in statement for statement in tds.statements) == logins_before


def test_a_commit_slower_than_the_limit_is_not_in_doubt(tds: Server, driver: str) -> None:
    tds.answers["COMMIT"] = slowly
    database = tds.database(tds.url(driver=driver), statement_seconds=60.0)
    with limited(database, LIMITED) as connection:
        pass
    assert not connection.invalidated
    assert tds.statements[-1] == "COMMIT TRANSACTION"


@pytest.mark.parametrize("limits", [LIMITED, USUAL], ids=["limit", "patience"])
def test_the_connection_to_a_silent_server_is_closed(
    tds: Server, driver: str, limits: Timeouts
) -> None:
    """It does not confirm that it stopped, so the connection is closed."""
    responds_again = threading.Event()

    def silent(_: Any) -> Any:
        responds_again.wait(30)
        return rows(one=1)

    tds.answers["slow"] = silent
    database = tds.database(tds.url(driver=driver), statement_seconds=60.0)
    try:
        with (
            time_limit(60.0 if limits is LIMITED else 3.0),
            pytest.raises(BusyError),
            limited(database, limits) as connection,
        ):
            connection.execute(text("SELECT slow"))
        assert not responds_again.is_set()
        with database.transaction("look") as connection:
            assert connection.execute(text("SELECT 1")).scalar() == 1
    finally:
        responds_again.set()


NUMBERS = {1205: TransientError, 208: ConsoleError, 51003: BusyError}


@pytest.mark.parametrize("number", NUMBERS)
def test_error_numbers_of_the_server_are_translated(tds: Server, driver: str, number: int) -> None:
    tds.answers["refused"] = refusing(number, "What (7) it says.|Why.|Next.")
    database = tds.database(tds.url(driver=driver))
    with pytest.raises(ConsoleError) as failed, database.transaction("do it") as connection:
        connection.execute(text("SELECT refused"))
    assert type(failed.value) is NUMBERS[number]
    assert "[" not in str(failed.value)
    if number == 51003:
        assert str(failed.value) == "Could not do it. What (7) it says.\nWhy.\nNext."
    assert tds.statements[-1] == "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION"


def test_an_error_after_a_result_is_raised(tds: Server, driver: str) -> None:
    def late(_: Any) -> Any:
        first = rows(one=1)
        error = results.QueryError("it went wrong later", number=208)
        return dataclasses.replace(
            first, following=(results.QueryResult(columns=[], rows=[], error=error),)
        )

    tds.answers["later"] = late
    database = tds.database(tds.url(driver=driver))
    with (
        pytest.raises(ConsoleError, match="it went wrong later"),
        database.transaction("do it") as connection,
    ):
        connection.execute(text("SELECT later")).fetchall()
    assert "COMMIT TRANSACTION" not in tds.statements


def test_the_probe_reads_the_capabilities(tds: Server, driver: str) -> None:
    probe = dataclasses.replace(ENTERPRISE, sees_all_sessions=False, database_user="ops")
    tds.answers["dbq server.capabilities"] = lambda _: rows(**dataclasses.asdict(probe))
    database = tds.database(tds.url(driver=driver))
    capabilities = database.capabilities
    assert (capabilities.facts["product"], capabilities.database) == ("SQL Server 2022", "orders")
    assert list(capabilities.missing) == ["sessions", "waits"]


def test_a_server_that_refuses_the_probe_has_reasons_for_what_it_lacks(
    tds: Server, driver: str
) -> None:
    tds.answers["dbq server.capabilities"] = refusing(195, "'X' is not a function here.")
    database = tds.database(tds.url(driver=driver))
    capabilities = database.capabilities
    assert capabilities.version_number // 10_000_000 == 17
    assert all(why.endswith("'X' is not a function here.") for why in capabilities.missing.values())
    assert {"queues", "sessions", "rates"} <= set(capabilities.missing)


def test_pysqlbridge_itself_is_described_or_refused(tmp_path: Path, driver: str) -> None:
    """Whatever it makes of the probe: a result or a refusal, never a traceback."""
    (tmp_path / "people.csv").write_text("id,name\n1,Ada\n")
    configuration = tmp_path / "tables.json"
    configuration.write_text(json.dumps({"tables": [{"name": "people", "csv": "people.csv"}]}))
    for port in itertools.islice(serving(catalogs.load(str(configuration)).answer), 1):
        database = Server(port, {}, []).database(Server(port, {}, []).url(driver=driver))
        with database.transaction("look") as connection:
            assert connection.execute(text("SELECT name FROM people")).scalar() == "Ada"
        try:
            capabilities = database.capabilities
        except UsageError as refused:
            assert "too old" in refused.what  # noqa: PT017  # either is true of it
        else:
            assert capabilities.database
        database.close()


@pytest.mark.long
def test_the_command_line_reports_a_port_without_a_server() -> None:
    """In its own process, to include what a driver itself might write."""
    url = f"mssql+pyodbc://nobody:{SECRET}@127.0.0.1:1/x"
    done = subprocess.run(
        [sys.executable, "-c", "from console.cli import main; main()", "status", "--url", url],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout == ""
    assert "Connecting to 127.0.0.1:1/x: " in done.stderr
    assert len(done.stderr.splitlines()) == 3
    assert SECRET not in done.stderr
