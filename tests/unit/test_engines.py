"""Connections by URL, a driver's arguments, and the translation of an engine's errors."""

from collections.abc import Iterator
from types import SimpleNamespace

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.pq import ConnStatus
from psycopg.sql import SQL, Literal
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError, OperationalError

from console.engines import (
    PRODUCTS,
    Database,
    Timeouts,
    label_of,
    open_database,
    parse_url,
    product,
)
from console.engines.bounded_connection import SOCKET, Connection
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
from tests.servers import Server

SECRET = "hunter2"


@given(
    st.text(),
    st.sampled_from(
        ["", "://", "postgresql://", "postgresql+psycopg://u:", "mssql://u:", "x+y://"]
    ),
    st.sampled_from(["", "@h/db", "@h:x/db", "@[::1/db", "/db", "?a=", "?password=", " "]),
)
def test_an_error_about_an_invalid_url_never_shows_its_secret(
    noise: str, before: str, after: str
) -> None:
    try:
        parsed = parse_url(f"{before}{noise}{SECRET}{after}")
    except UsageError as error:
        complaint = str(error)
    else:
        assert parsed.get_backend_name() in PRODUCTS
        return
    assert SECRET not in complaint
    assert "postgresql+psycopg://" in complaint


@pytest.mark.parametrize(
    ("url", "label"),
    [
        (f"postgresql+psycopg://u:{SECRET}@db.example:6432/orders", "db.example:6432/orders"),
        (f"postgresql://u:{SECRET}@db.example/orders", "db.example/orders"),
        (f"postgresql://u:{SECRET}@/orders?host=/run/postgresql", "/run/postgresql/orders"),
        (f"postgresql:///orders?user=u&password={SECRET}", "local/orders"),
        (f"postgresql://u:{SECRET}@db.example", "db.example/"),
    ],
)
def test_a_label_has_neither_user_nor_password(url: str, label: str) -> None:
    assert label_of(make_url(url)) == label
    database = open_database(url)
    assert (database.label, database.product.name) == (label, "postgresql")
    database.close()


def test_products_are_found_by_the_name_of_their_engine() -> None:
    assert all(product(name).name == name for name in PRODUCTS)
    with pytest.raises(UsageError, match="'oracle'") as refused:
        product("oracle")
    assert "postgresql" in refused.value.next_step


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[Database]:
    database = open_database(server.url)
    yield database
    database.close()


def raised(database: Database, state: str) -> ConsoleError:
    """The translation of an error with that state, raised by the server itself."""
    raising = SQL(
        "DO $$ BEGIN RAISE EXCEPTION 'the message' "
        "USING ERRCODE = {}, DETAIL = 'the detail', HINT = 'the hint'; END $$"
    ).format(Literal(state))
    with pytest.raises(ConsoleError) as caught, database.transaction("do it") as connection:
        connection.exec_driver_sql(raising.as_string(None))
    return caught.value


STATES: dict[str, type[ConsoleError]] = {
    "08006": ConnectionFailedError,  # the connection broke
    "28P01": ConnectionFailedError,  # a wrong password
    "28000": ConnectionFailedError,  # no such role
    "3D000": ConnectionFailedError,  # no such database
    "53300": ConnectionFailedError,  # too many connections
    "57P01": ConnectionFailedError,  # the server is stopped
    "57P02": ConnectionFailedError,  # it crashed
    "57P03": ConnectionFailedError,  # it is starting
    "57P05": ConnectionFailedError,  # the session was idle
    "25P03": ConnectionFailedError,  # its transaction was idle
    "25P04": ConnectionFailedError,  # its transaction lasted for too long
    "42501": RefusedError,  # no grant
    "25006": ReadOnlyError,  # a read-only transaction
    "55P03": BusyError,  # a lock time-out
    "57014": TooSlowError,  # a statement time-out
    "40001": TransientError,  # a serialization failure
    "40P01": TransientError,  # a deadlock
    "42P01": ConsoleError,  # no such table
    "42883": ConsoleError,  # no such function
    "42703": ConsoleError,  # no such column
    "42P07": UsageError,  # a table of that name
    "42723": UsageError,  # a function of that name
    "3F000": UsageError,  # no such schema
    "23502": UsageError,  # null
    "23505": ConsoleError,  # a duplicate key
    "22P02": UsageError,  # no valid JSON
    "22P05": UsageError,  # a character that cannot be stored
    "22021": ConsoleError,  # bytes that are no text
    "54001": UsageError,  # JSON that is nested too deeply
    "53100": ConsoleError,  # the disk is full
    "XX000": ConsoleError,  # an internal error
    "P0001": ConsoleError,  # somebody's trigger
}
STATUSES = {
    UsageError: 2,
    ConsoleError: 3,
    ConnectionFailedError: 3,
    ReadOnlyError: 4,
    RefusedError: 4,
    BusyError: 4,
    TooSlowError: 4,
    TransientError: 4,
}
DATA_IN_DETAIL = {"23502", "23505", "22P02"}


@pytest.mark.parametrize("state", STATES)
def test_every_sqlstate_is_translated_to_the_right_error(database: Database, state: str) -> None:
    error = raised(database, state)
    assert type(error) is STATES[state]
    assert error.exit_status == STATUSES[type(error)]
    assert error.what == "Could not do it."
    assert error.why.startswith("the message")
    assert ("the detail" in error.why) == (state not in {*DATA_IN_DETAIL, "08006"})
    assert error.next_step
    if type(error) is ConsoleError and state in {"XX000", "P0001"}:
        assert error.next_step == "the hint"
    assert isinstance(error.__cause__, DBAPIError)


@pytest.mark.parametrize(
    ("state", "next_step"),
    [
        ("57P05", "options=-c idle_session_timeout=0"),
        ("25P03", "options=-c idle_in_transaction_session_timeout=0"),
        ("25P04", "options=-c transaction_timeout=0"),
        ("42703", "replaced by another design"),
    ],
)
def test_the_next_step_names_what_ended_it(database: Database, state: str, next_step: str) -> None:
    assert next_step in raised(database, state).next_step


def test_errors_raised_by_our_own_functions_keep_their_texts(database: Database) -> None:
    error = raised(database, "DBQ02")
    assert (type(error), error.exit_status) == (UsageError, 2)
    assert error.what == "Could not do it. the message"
    assert (error.why, error.next_step) == ("the detail", "the hint")


def translated(original: Exception) -> ConsoleError:
    error = OperationalError("SELECT 1", {}, original)
    return PRODUCTS["postgresql"].translate(error, "do it")


def test_errors_of_the_driver_without_sqlstate_are_translated() -> None:
    lost = translated(psycopg.OperationalError("the connection is lost"))
    assert type(lost) is ConnectionFailedError
    assert (lost.why, lost.exit_status) == ("the connection is lost", 3)
    nul = translated(psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"))
    assert type(nul) is UsageError
    assert "payload=bytes" in nul.next_step
    assert type(translated(psycopg.DataError("something else"))) is ConsoleError
    assert type(translated(psycopg.InterfaceError("bad use"))) is ConsoleError
    assert translated(ValueError("not the driver's")).why == "not the driver's"


@pytest.mark.parametrize("state", ["08006", "57P01", "42501", "40P01", "23505"])
def test_errors_without_a_message_of_the_server_keep_the_drivers_text(state: str) -> None:
    """As when the connection is lost before the message is complete."""
    error = translated(psycopg.errors.lookup(state)("what the driver says"))
    assert type(error) is STATES[state]
    assert error.why == "what the driver says"


def limits(options: str, seconds: float = 30.0) -> float | None:
    connection = Connection.__new__(Connection)  # without a server
    connection.pgconn = SimpleNamespace(status=ConnStatus.BAD)  # type: ignore[assignment]
    connection.limit(SessionSettings(Timeouts(3, statement_seconds=seconds), options))
    assert connection.ping_seconds == 3
    return connection.answer_seconds


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ("", 35.0),
        ("-c search_path=x -c idle_in_transaction_session_timeout=9", 35.0),
        ("-c statement_timeout=60000", 70.0),
        ("-c statement_timeout=60000 -c statement_timeout=500ms", 1.5),
        ("-c statement_timeout=2min", 140.0),
        ("statement_timeout=2min", 35.0),  # sets nothing
        ("-cstatement_timeout=1h", 4200.0),
        ("--statement_timeout=10s", 10.0 + 10.0 / 6),
        ("-c statement_timeout=60000 -c statement_timeout=0", None),
    ],
)
def test_an_answer_may_take_the_statement_timeout_and_a_little_more(
    options: str, seconds: float | None
) -> None:
    assert limits(options) == seconds


def test_without_a_statement_timeout_answers_have_no_limit() -> None:
    assert limits("", 0.0) is None


def connect_arguments(url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The arguments of a connection by that URL."""
    found: dict[str, object] = {}

    def connect(*_: object, **names: object) -> Connection:
        found.update(names)
        raise psycopg.OperationalError("enough")

    monkeypatch.setattr(Connection, "connect", connect)
    engine = PRODUCTS["postgresql"].create_engine(lambda: make_url(url), Timeouts(), "test")
    with pytest.raises(OperationalError, match="enough"):
        engine.connect()
    return found


def test_sockets_have_keepalives_unless_the_url_overrides_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = connect_arguments("postgresql+psycopg://u@h/d", monkeypatch)
    assert SOCKET.items() <= found.items()
    found = connect_arguments(
        "postgresql+psycopg://u@h/d?keepalives_idle=99&keepalives=0", monkeypatch
    )
    assert (found["keepalives_idle"], found["keepalives"]) == ("99", "0")
    assert found["tcp_user_timeout"] == SOCKET["tcp_user_timeout"]


@pytest.mark.parametrize(
    ("message", "next_step"),
    [
        ('password authentication failed for user "u"', "expired"),
        ('role "u" does not exist', "user and password"),
        ('role "u" is not permitted to log in', "user and password"),
        ('database "d" does not exist', "database's name"),
        ('no pg_hba.conf entry for host "h", user "u", database "d"', "may use it"),
        ('too many connections for role "u"', "Close other sessions"),
        ("sorry, too many clients already", "Close other sessions"),
        ("remaining connection slots are reserved for roles with", "Close other sessions"),
        ("the database system is starting up", "try again in a moment"),
        ("the database system is in recovery mode", "try again in a moment"),
        ("the database system is shutting down", "try again in a moment"),
        ("Connection refused", "Check that the server runs"),
        ("Mot de passe", "Check that the server runs"),
    ],
)
def test_a_refused_login_says_what_to_do(message: str, next_step: str) -> None:
    """libpq passes on the server's text and no SQLSTATE."""
    original = psycopg.OperationalError(f"connection failed: FATAL:  {message}")
    error = PRODUCTS["postgresql"].translate(OperationalError(None, None, original), "look")
    assert type(error) is ConnectionFailedError
    assert next_step in error.next_step
