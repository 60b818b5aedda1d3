"""What is told to the driver about waiting, and what is made of its words."""

from types import SimpleNamespace

import psycopg
import pytest
from psycopg.pq import ConnStatus
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from console.engines import PRODUCTS, Timeouts
from console.engines.bounded_connection import SOCKET, Connection
from console.errors import ConnectionFailedError


def limits(options: str, seconds: float = 30.0) -> float | None:
    told = Connection.__new__(Connection)  # of no server
    told.pgconn = SimpleNamespace(status=ConnStatus.BAD)  # type: ignore[assignment]
    told.limit(Timeouts(connect_seconds=3, statement_seconds=seconds), options)
    assert told.ping_seconds == 3
    return told.answer_seconds


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ("", 35.0),
        ("-c search_path=x -c idle_in_transaction_session_timeout=9", 35.0),
        ("-c statement_timeout=60000", 70.0),
        ("-c statement_timeout=60000 -c statement_timeout=500ms", 1.5),
        ("-c statement_timeout=2min", 140.0),
        ("-cstatement_timeout = '1h'", 4200.0),
        ("--statement_timeout=10s", 10.0 + 10.0 / 6),
        ("-c statement_timeout=60000 -c statement_timeout=0", None),
    ],
)
def test_an_answer_has_as_long_as_the_server_was_told_and_a_little_more(
    options: str, seconds: float | None
) -> None:
    assert limits(options) == seconds


def test_without_a_statement_time_out_there_is_no_end() -> None:
    assert limits("", 0.0) is None


def asked(url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What a connection by that URL would be asked for."""
    found: dict[str, object] = {}

    def connect(*_: object, **names: object) -> Connection:
        found.update(names)
        raise psycopg.OperationalError("enough")

    monkeypatch.setattr(Connection, "connect", connect)
    engine = PRODUCTS["postgresql"].create_engine(make_url(url), Timeouts(), "test")
    with pytest.raises(OperationalError, match="enough"):
        engine.connect()
    return found


def test_a_socket_looks_whether_somebody_is_there_unless_the_url_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = asked("postgresql+psycopg://u@h/d", monkeypatch)
    assert SOCKET.items() <= found.items()
    found = asked("postgresql+psycopg://u@h/d?keepalives_idle=99&keepalives=0", monkeypatch)
    assert (found["keepalives_idle"], found["keepalives"]) == ("99", "0")
    assert found["tcp_user_timeout"] == SOCKET["tcp_user_timeout"]


@pytest.mark.parametrize(
    ("words", "next_step"),
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
def test_a_refused_login_says_what_to_do(words: str, next_step: str) -> None:
    """libpq hands on the server's words and no SQLSTATE."""
    original = psycopg.OperationalError(f"connection failed: FATAL:  {words}")
    error = PRODUCTS["postgresql"].translate(OperationalError(None, None, original), "look")
    assert type(error) is ConnectionFailedError
    assert next_step in error.next_step
