"""Transactions of the engine `mssql`: what is sent to the server, and when."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from console.engines import Database
from console.engines.mssql.odbc import Family
from console.engines.mssql.session import Sizes, as_parameter, with_nulls
from console.errors import BusyError, ConnectionFailedError, ConsoleError
from tests.unit.mssql_tools import SECRET, Odbc, OperationalError, ProgrammingError, open_mssql

ORIGIN = "[Microsoft][ODBC Driver 18 for SQL Server]"
PING = "SELECT 1"
BEGIN = "BEGIN TRANSACTION"
COMMIT = "COMMIT TRANSACTION"
ROLLBACK = "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION"
LOST = OperationalError("08S01", f"[08S01] {ORIGIN}Communication link failure (0) (SQLExecDirectW)")
TIMEOUT = OperationalError("HYT00", f"[HYT00] {ORIGIN}Query timeout expired (0) (SQLExecDirectW)")
GONE = ProgrammingError(
    "42S02", f"[42S02] {ORIGIN}[SQL Server]Invalid object name 'q'. (208) (SQLExecDirectW)"
)


def answers(odbc: Odbc, **given: Any) -> None:
    """Answer this batch with these results; the others with none."""

    def answer(statement: str) -> Sequence[Any]:
        for batch, results in given.items():
            if batch == statement:
                return results if isinstance(results, list) else [results]
        return []

    odbc.answer = answer


def test_a_session_is_set_up_in_one_round_trip(odbc: Odbc) -> None:
    database = open_mssql()
    with database.transaction("look") as connection:
        connection.execute(text("SELECT 2"))
    set_up, *rest = odbc.sent
    for setting in (
        "SET LOCK_TIMEOUT 500",
        "SET DEADLOCK_PRIORITY LOW",  # never at the cost of a consumer
        "SET XACT_ABORT ON",
        "SET NOCOUNT ON",
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "QUOTED_IDENTIFIER ON",
    ):
        assert setting in set_up
    assert rest == [BEGIN, "SELECT 2", COMMIT]
    # Whole seconds, rounded up.
    assert odbc.connections[0].timeout == 3
    database.close()
    assert odbc.connections[0].closed


def test_a_transaction_is_begun_and_ended_explicitly(odbc: Odbc, mssql: Database) -> None:
    for _ in range(2):
        with mssql.transaction("look") as connection:
            connection.execute(text("SELECT 2"))
        sent, odbc.sent[:] = odbc.sent[:], []
    assert sent == [PING, BEGIN, "SELECT 2", COMMIT]
    assert len(odbc.connections) == 1
    answers(odbc, **{"SELECT 3": GONE})
    with pytest.raises(ConsoleError), mssql.transaction("look") as connection:
        connection.execute(text("SELECT 3"))
    assert odbc.sent == [PING, BEGIN, "SELECT 3", ROLLBACK]


def test_autocommit_begins_no_transaction(odbc: Odbc, mssql: Database) -> None:
    with mssql.autocommit("look") as connection:
        odbc.sent.clear()
        connection.execute(text("SELECT 2"))
        connection.execute(text("SELECT 3"))
    # A transaction left open does not return to the pool.
    assert odbc.sent == ["SELECT 2", "SELECT 3", ROLLBACK]
    with mssql.transaction("look"):
        pass
    assert odbc.sent[3:] == [PING, BEGIN, COMMIT]


def test_the_isolation_level_is_reset_after_use(odbc: Odbc, mssql: Database) -> None:
    with mssql.autocommit("look") as connection:
        connection.rollback()
        connection.execution_options(isolation_level="SERIALIZABLE")
        odbc.sent.clear()
        with connection.begin():
            connection.execute(text("SELECT 2"))
    level = "SET TRANSACTION ISOLATION LEVEL "
    assert odbc.sent == [BEGIN, "SELECT 2", COMMIT, f"{level}READ COMMITTED"]


def test_errors_after_a_result_are_raised(odbc: Odbc, mssql: Database) -> None:
    row = [("id",), (1,)]
    answers(odbc, many=[None, None, row, None, GONE], script=[None, GONE], fine=[None, row, row])
    with pytest.raises(ConsoleError), mssql.transaction("look") as connection:
        connection.execute(text("many")).fetchall()
    assert odbc.sent[-1] == ROLLBACK
    with pytest.raises(ConsoleError), mssql.transaction("look") as connection:
        connection.exec_driver_sql("script")
    with mssql.transaction("look") as connection:
        assert connection.execute(text("fine")).fetchall() == [(1,)]
        assert connection.execute(text("fine")).fetchone() == (1,)
        assert connection.execute(text("fine")).scalar() == 1


def test_a_statement_timeout_keeps_the_connection(odbc: Odbc, mssql: Database) -> None:
    answers(odbc, slow=TIMEOUT)
    with pytest.raises(BusyError), mssql.transaction("look") as connection:
        connection.execute(text("slow"))
    assert odbc.sent[-1] == ROLLBACK
    with mssql.transaction("look"):
        pass
    assert len(odbc.connections) == 1


@pytest.mark.parametrize("failure", [LOST, TIMEOUT])
def test_a_failed_rollback_does_not_hide_the_error(
    odbc: Odbc, mssql: Database, failure: OperationalError
) -> None:
    with mssql.transaction("look"):
        pass
    answers(odbc, slow=TIMEOUT, **{ROLLBACK: failure})
    with pytest.raises(BusyError), mssql.transaction("look") as connection:
        connection.execute(text("slow"))
    # Its transaction ended with it; the pool opens another.
    with mssql.transaction("look"):
        pass
    *before, last = [connection.closed for connection in odbc.connections]
    assert (all(before), last) == (True, False)


def test_a_lost_connection_is_replaced(odbc: Odbc, mssql: Database) -> None:
    answers(odbc, lost=LOST)
    with (
        pytest.raises(ConnectionFailedError, match="Could not look"),
        mssql.transaction("look") as connection,
    ):
        connection.execute(text("lost"))
    with mssql.transaction("look"):
        pass
    assert len(odbc.connections) == 2


@pytest.mark.parametrize("failure", [LOST, TIMEOUT])
def test_a_connection_that_died_in_the_pool_is_replaced_silently(
    odbc: Odbc, mssql: Database, failure: OperationalError
) -> None:
    with mssql.transaction("look"):
        pass
    answers(odbc, **{PING: failure})
    with mssql.transaction("look"):
        pass
    assert len(odbc.connections) == 2


@pytest.mark.parametrize("failure", [LOST, TIMEOUT])
def test_a_commit_without_an_answer_is_in_doubt(
    odbc: Odbc, mssql: Database, failure: OperationalError
) -> None:
    answers(odbc, **{COMMIT: failure})
    with pytest.raises(ConnectionFailedError) as failed, mssql.transaction("push"):
        pass
    assert "It may or may not have been done." in failed.value.why
    answers(odbc)
    with mssql.transaction("look"):
        pass
    assert len(odbc.connections) == 2


def test_a_transaction_that_the_server_ended_is_not_reported_as_done(
    odbc: Odbc, mssql: Database
) -> None:
    ended = ProgrammingError(
        "25000",
        f"[25000] {ORIGIN}[SQL Server]The COMMIT TRANSACTION request has no corresponding "
        "BEGIN TRANSACTION. (3902) (SQLExecDirectW)",
    )
    answers(odbc, **{COMMIT: ended})
    with pytest.raises(ConsoleError) as failed, mssql.transaction("purge"):
        pass
    assert "status" in failed.value.next_step


def test_a_limited_server_gets_the_settings_that_it_knows(odbc: Odbc, mssql: Database) -> None:
    odbc.answer = lambda statement: [GONE] if "TEXTSIZE" in statement else []
    with mssql.transaction("look"):
        pass
    assert "SET LOCK_TIMEOUT 500" in odbc.sent
    assert "SET XACT_ABORT ON" in odbc.sent


@pytest.mark.parametrize("failure", [LOST, TIMEOUT])
def test_a_connection_lost_during_setup_gets_no_further_statements(
    odbc: Odbc, mssql: Database, failure: OperationalError
) -> None:
    odbc.answer = lambda _: [failure]
    with pytest.raises(ConnectionFailedError), mssql.transaction("look"):
        pass
    assert len(odbc.sent) == 1
    assert odbc.connections[0].closed


def test_a_password_in_an_error_of_the_driver_is_masked(odbc: Odbc, mssql: Database) -> None:
    odbc.refuse = OperationalError(
        "08001", f"[08001] {ORIGIN}Syntax error near 'PWD={SECRET}' (0) (SQLDriverConnect)"
    )
    with pytest.raises(ConnectionFailedError) as failed, mssql.transaction("look"):
        pass
    error: BaseException | None = failed.value
    while error is not None:
        assert SECRET not in f"{error} {error.args}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert failed.value.why == "Connecting to db.example/orders: Syntax error near 'PWD=***'"


def test_values_are_bound_with_few_types_and_nulls_are_literals(
    odbc: Odbc, mssql: Database
) -> None:
    with mssql.autocommit("look") as connection:
        odbc.bound.clear()
        connection.execute(
            text("SELECT :a, '?', [?], :b, :c, :d /* ? */, :e -- ?\n, :f, :a"),
            {"a": None, "b": "ä", "c": "🂡" * 2001, "d": b"x", "e": b"x" * 8001, "f": 1.5},
        )
    assert odbc.sent[-2] == "SELECT NULL, '?', [?], ?, ?, ? /* ? */, ? -- ?\n, ?, NULL"
    assert odbc.bound[0] == [
        ("ä", (odbc.SQL_WVARCHAR, 4000, 0)),
        ("🂡" * 2001, (odbc.SQL_WVARCHAR, 0, 0)),
        (b"x", (odbc.SQL_VARBINARY, 8000, 0)),
        (b"x" * 8001, (odbc.SQL_VARBINARY, 0, 0)),
        (1.5, None),
    ]


AT = datetime(2026, 11, 21, 23, 0, 0, 123456, tzinfo=timezone(timedelta(hours=5, minutes=30)))


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-8)), AT.tzinfo])
def test_a_time_is_sent_as_text_in_utc_with_microseconds(
    odbc: Odbc, mssql: Database, zone: tzinfo
) -> None:
    """A driver may lose the zone, and all but three digits."""
    with mssql.autocommit("look") as connection:
        odbc.bound.clear()
        connection.execute(text("SELECT :at"), {"at": AT.astimezone(zone)})
    ((sent, kind),) = odbc.bound[0]
    assert (sent, kind) == ("2026-11-21T17:30:00.123456", (odbc.SQL_WVARCHAR, 4000, 0))


def test_a_time_without_a_zone_is_utc() -> None:
    assert as_parameter(datetime(2026, 1, 2)) == "2026-01-02T00:00:00.000000"  # noqa: DTZ001
    assert [as_parameter(value) for value in (None, 1, "x", b"x")] == [None, 1, "x", b"x"]


def test_freetds_has_other_types_for_long_values(odbc: Odbc) -> None:
    sizes = Sizes(odbc, Family.FREETDS)
    assert sizes.of(["x" * 4001, b"x" * 8001, "x" * 4000, b"x" * 8000, 1, "🂡" * 2001]) == [
        (odbc.SQL_WLONGVARCHAR, 0, 0),
        (odbc.SQL_LONGVARBINARY, 0, 0),
        (odbc.SQL_WVARCHAR, 4000, 0),
        (odbc.SQL_VARBINARY, 8000, 0),
        None,
        (odbc.SQL_WLONGVARCHAR, 0, 0),
    ]


PIECES = ["?", "[a?]]b]", "'it''s ?'", '"?"', "-- ?\n", "/* ?\n */", " x, ", "N'?'"]


@given(st.lists(st.sampled_from(PIECES)), st.data())
def test_only_parameter_markers_become_null(pieces: list[str], data: st.DataObject) -> None:
    markers = pieces.count("?")
    values = data.draw(st.lists(st.none() | st.just(1), min_size=markers, max_size=markers))
    rest = iter(values)
    expected = ["NULL" if p == "?" and next(rest) is None else p for p in pieces]
    written, remaining = with_nulls(" ".join(pieces), values)
    assert written == " ".join(expected)
    assert remaining == [1] * values.count(1)


def test_waiting_for_notifications_is_not_supported(mssql: Database) -> None:
    with mssql.autocommit("look") as connection, pytest.raises(TypeError):
        mssql.product.wait_for_notification(connection, 0.0)
