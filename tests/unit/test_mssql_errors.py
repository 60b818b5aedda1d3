"""The translation of errors recorded from SQL Server's drivers."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError

from console.engines.mssql import PRODUCT
from console.engines.mssql.errors import DiagnosticRecord, records
from console.engines.mssql.session import CONNECTING, IN_DOUBT
from console.errors import (
    BusyError,
    ConnectionFailedError,
    ConsoleError,
    InDoubtError,
    ReadOnlyError,
    RefusedError,
    TooSlowError,
    TransientError,
    UsageError,
)
from console.sql import templates
from tests.unit.mssql_tools import SECRET, Error

MICROSOFT = "[Microsoft][ODBC Driver 18 for SQL Server]"
SERVER = f"{MICROSOFT}[SQL Server]"
FREETDS = "[FreeTDS][SQL Server]"


def translated(*arguments: Any, notes: tuple[str, ...] = ()) -> ConsoleError:
    original = Error(*arguments)
    for note in notes:
        original.add_note(note)
    return PRODUCT.translate(DBAPIError("SELECT 1", {}, original), "do it")


def numbered(number: int, text: str = "the message", state: str = "42000") -> ConsoleError:
    """The server's error of that number, while a statement runs."""
    return translated(state, f"[{state}] {SERVER}{text} ({number}) (SQLExecDirectW)")


NUMBERS: dict[int, type[ConsoleError]] = {
    18456: ConnectionFailedError,  # login failed
    4060: ConnectionFailedError,  # no such database
    40615: ConnectionFailedError,  # Azure: this address is not allowed
    17142: ConnectionFailedError,  # the server is paused
    596: ConnectionFailedError,  # the session was killed
    15517: RefusedError,  # the user of a procedure's EXECUTE AS is missing
    976: ConnectionFailedError,  # a replica that refuses readers
    1205: TransientError,  # a deadlock
    3960: TransientError,  # an update conflict under SNAPSHOT
    **dict.fromkeys((40613, 40197, 40501, 49918, 49919, 49920, 4221), TransientError),  # Azure
    **dict.fromkeys((10928, 10929), TransientError),  # Azure's limits of sessions
    1222: BusyError,  # a lock time-out
    1204: BusyError,  # no locks left
    601: BusyError,  # data moved under a scan without locks
    229: RefusedError,  # no right on the object
    230: RefusedError,  # no right on the column
    262: RefusedError,  # no CREATE TABLE
    297: RefusedError,  # no right for the action
    300: RefusedError,  # no VIEW SERVER STATE
    33504: RefusedError,  # a block predicate of a security policy
    6106: UsageError,  # KILL of a session that has ended
    **dict.fromkeys(
        (921, 924, 952), ConnectionFailedError
    ),  # recovering, single-user, in transition
    **dict.fromkeys((40020, 40166), TransientError),  # Azure's database in transition
    3906: ReadOnlyError,  # a read-only database
    208: ConsoleError,  # no such table
    2812: ConsoleError,  # no such procedure
    2714: UsageError,  # a name that is taken
    2760: UsageError,  # no such schema
    650: ConsoleError,  # READPAST under another isolation level
    515: UsageError,  # null
    2628: UsageError,  # truncated
    8114: UsageError,  # a failed conversion
    13609: UsageError,  # no valid JSON
    701: ConsoleError,  # out of memory
    1105: ConsoleError,  # the file group is full
    9002: ConsoleError,  # the log is full
    823: ConsoleError,  # damage
    3902: ConsoleError,  # a COMMIT without its transaction
    3930: ConsoleError,  # a transaction that can only be rolled back
    9617: RefusedError,  # a queue of Service Broker that is disabled
}
STATUSES = {
    UsageError: 2,
    ConsoleError: 3,
    ConnectionFailedError: 3,
    ReadOnlyError: 4,
    RefusedError: 4,
    BusyError: 4,
    TransientError: 4,
}


@pytest.mark.parametrize("number", NUMBERS)
def test_every_error_number_is_translated_to_the_right_error(number: int) -> None:
    error = numbered(number)
    assert type(error) is NUMBERS[number]
    assert error.exit_status == STATUSES[type(error)]
    assert error.what == "Could not do it."
    assert error.next_step
    if number != 2628:
        assert error.why == "the message"


def test_an_unknown_error_number_keeps_its_text() -> None:
    error = numbered(8134, "Divide by zero error encountered.", "22012")
    assert (type(error), error.why) == (ConsoleError, "Divide by zero error encountered.")
    assert type(numbered(8023, "a value of another type", "22018")) is UsageError
    error = numbered(50000, "somebody's trigger")
    assert (type(error), error.why, error.next_step) == (ConsoleError, "somebody's trigger", "")


CONNECT, EXECUTE = "SQLDriverConnect", "SQLExecDirectW"


def recorded(
    kind: type[ConsoleError],
    state: str,
    origin: str,
    text: str,
    number: int = 0,
    call: str = EXECUTE,
    *,
    then: str = "",
    why: str = "",
) -> tuple[tuple[str, str], type[ConsoleError], str]:
    """An error as pyodbc raised it, perhaps with a second record; its translation."""
    second = f"; {then}" if then else ""
    return (state, f"[{state}] {origin}{text} ({number}) ({call}){second}"), kind, why or text


DEADLOCK = (
    "Transaction (Process ID 52) was deadlocked on lock resources with another process and has "
    "been chosen as the deadlock victim. Rerun the transaction."
)
NO_SUCH_DATABASE = 'Cannot open database "x" requested by the login. The login failed.'
UNSIGNED = (
    "SSL Provider: [error:0A000086:SSL routines::certificate verify failed:self-signed certificate]"
)
DUPLICATE = "Violation of PRIMARY KEY constraint 'pk'. Cannot insert duplicate key"
MANAGER = "[unixODBC][Driver Manager]"
RECORDED = {
    "login, Microsoft": recorded(
        ConnectionFailedError, "28000", SERVER, "Login failed for user 'u'.", 18456, CONNECT
    ),
    "login, FreeTDS": recorded(
        ConnectionFailedError, "42000", FREETDS, "Login failed for user 'u'.", 18456, CONNECT
    ),
    "database": recorded(
        *(ConnectionFailedError, "42000", SERVER, NO_SUCH_DATABASE, 4060, CONNECT),
        then=f"[28000] {SERVER}Login failed for user 'u'. (18456)",
        why=f"{NO_SUCH_DATABASE} Login failed for user 'u'.",
    ),
    "no server, Microsoft": recorded(
        ConnectionFailedError, "HYT00", MICROSOFT, "Login timeout expired", 0, CONNECT
    ),
    "no server, FreeTDS": recorded(
        *(ConnectionFailedError, "08S01", FREETDS),
        *("Unable to connect: Adaptive Server is unavailable or does not exist", 20009, CONNECT),
    ),
    "certificate": recorded(ConnectionFailedError, "08001", MICROSOFT, UNSIGNED, -1, CONNECT),
    "driver": recorded(
        ConnectionFailedError, "01000", MANAGER, "Can't open lib 'x' : file not found", 0, CONNECT
    ),
    "data source": recorded(
        *(ConnectionFailedError, "IM002", MANAGER),
        *("Data source name not found and no default driver specified", 0, CONNECT),
    ),
    "statement, Microsoft": recorded(TooSlowError, "HYT00", MICROSOFT, "Query timeout expired"),
    "statement, FreeTDS": recorded(TooSlowError, "HYT00", FREETDS, "Timeout expired"),
    "lost, Microsoft": recorded(
        *(ConnectionFailedError, "08S01", MICROSOFT, "TCP Provider: Error code 0x68", 104),
        then=f"[08S01] {MICROSOFT}Communication link failure (104)",
        why="TCP Provider: Error code 0x68 Communication link failure",
    ),
    "lost, FreeTDS": recorded(
        ConnectionFailedError, "08S01", FREETDS, "Communication link failure"
    ),
    "deadlock": recorded(TransientError, "40001", SERVER, DEADLOCK, 1205),
    "duplicate": recorded(
        *(ConsoleError, "23000", SERVER),
        f"{DUPLICATE} in object 'dbo.q'. The duplicate key value is ({SECRET}; (1) (x)).",
        2627,
        then=f"[01000] {SERVER}The statement has been terminated. (3621)",
        why=f"{DUPLICATE} in object 'dbo.q'.",
    ),
    "duplicate of a caller's own id": recorded(
        *(UsageError, "23000", SERVER),
        f"{DUPLICATE} in object 'dbo.q'. The duplicate key value is "
        "(0197F3C2-8D7B-7C5A-9F3E-2B1A0C4D5E6F).",
        2627,
        why=f"{DUPLICATE} in object 'dbo.q'.",
    ),
    "duplicate, in German": recorded(
        *(ConsoleError, "23000", SERVER),
        "Verletzung der PRIMARY KEY-Einschränkung 'pk'. "
        f"Der doppelte Schlüsselwert ist ({SECRET}).",
        2627,
        why="SQL Server error 2627.",
    ),
    "conversion": recorded(
        *(UsageError, "22018", SERVER),
        f"Conversion failed when converting the nvarchar value '{SECRET}' to data type int.",
        245,
        why="Conversion failed when converting the nvarchar value to data type int.",
    ),
    "truncation": recorded(
        *(UsageError, "22001", SERVER),
        "String or binary data would be truncated in table 'd.dbo.q', column 'message'. "
        f"Truncated value: '{SECRET}'.",
        2628,
        why="String or binary data would be truncated in table 'd.dbo.q', column 'message'.",
    ),
    "cause and consequence": recorded(
        *(UsageError, "42S01", SERVER),
        *("Could not create constraint or index. See previous errors.", 1750),
        then=f"[42S01] {SERVER}There is already an object named 'pk' in the database. (2714)",
        why="There is already an object named 'pk' in the database.",
    ),
    "behind a result": recorded(
        ConsoleError, "42S02", SERVER, "Invalid object name 'q'.", 208, "SQLMoreResults"
    ),
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_errors_are_translated(name: str) -> None:
    arguments, kind, why = RECORDED[name]
    error = translated(*arguments)
    assert (type(error), error.why) == (kind, why)
    assert error.next_step
    assert SECRET not in str(error)
    assert "[" not in re.sub(r"\[error:[^\]]*\]", "", str(error))


def test_an_error_about_an_untrusted_certificate_suggests_trusting_it() -> None:
    assert "TrustServerCertificate=yes" in translated(*RECORDED["certificate"][0]).next_step


def test_a_login_error_names_the_server_and_database() -> None:
    error = translated(*RECORDED["login, Microsoft"][0], notes=(f"{CONNECTING}db.example/x",))
    assert error.why == "Connecting to db.example/x: Login failed for user 'u'."


@pytest.mark.parametrize(
    ("number", "kind"), [(51002, UsageError), (51003, BusyError), (51004, RefusedError)]
)
@pytest.mark.parametrize("origin", [SERVER, FREETDS])
def test_errors_thrown_by_our_own_procedures_keep_their_texts(
    number: int, kind: type[ConsoleError], origin: str
) -> None:
    text = f"[42000] {origin}[dbo].[q] is full (7)|the reason|next (a|b) ({number}) (SQLExecute)"
    error = translated("42000", text)
    assert type(error) is kind
    assert error.what == "Could not do it. [dbo].[q] is full (7)"
    assert (error.why, error.next_step) == ("the reason", "next (a|b)")
    plain = numbered(number, "the payload is null||")
    assert str(plain) == "Could not do it. the payload is null"
    assert str(numbered(number, "alone")) == "Could not do it. alone"


def test_each_number_that_a_statement_throws_is_one_of_ours() -> None:
    """Else its bars would be shown."""
    thrown = {
        int(number)
        for file in templates.files("mssql")
        for statement in templates.statements("mssql", file).values()
        for number in re.findall(r"\bTHROW (\d+)", statement.template)
    }
    assert thrown
    assert all(str(numbered(number, "alone||")).endswith("alone") for number in thrown)


def test_a_commit_without_an_answer_is_in_doubt() -> None:
    for name in ("lost, Microsoft", "statement, Microsoft"):
        error = translated(*RECORDED[name][0], notes=(IN_DOUBT,))
        assert type(error) is InDoubtError
        assert IN_DOUBT in error.why
        assert "Nothing was changed" not in str(error)
    azure = ("42000", f"[42000] {SERVER}The service has an error. (40197) (SQLExecDirectW)")
    assert type(translated(*azure, notes=(IN_DOUBT,))) is InDoubtError
    # An update conflict is an answer.
    conflict = ("42000", f"[42000] {SERVER}Snapshot isolation... (3960) (SQLExecDirectW)")
    assert type(translated(*conflict, notes=(IN_DOUBT,))) is TransientError


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("Attempt to use a closed connection.",), ConnectionFailedError),
        (("The cursor's connection has been closed.",), ConnectionFailedError),
        (("No results.  Previous SQL was not a query.",), ConsoleError),
        (("HY000", "The driver did not supply an error!"), ConsoleError),
        (("08S01", "no brackets at all"), ConnectionFailedError),
        ((), ConsoleError),
    ],
)
def test_errors_of_the_driver_without_a_number_are_translated(
    arguments: tuple[str, ...], kind: type[ConsoleError]
) -> None:
    error = translated(*arguments)
    assert type(error) is kind
    assert error.what == "Could not do it."
    assert error.why == (arguments[-1] if arguments else "")


def test_an_error_that_the_driver_did_not_raise_keeps_its_text() -> None:
    assert PRODUCT.translate(DBAPIError(None, None, ValueError("odd")), "do it").why == "odd"


# As pyodbc joins them: text, number in parentheses; the function after the first one only.
TEXTS = st.text(max_size=60).map(str.strip).filter(lambda t: not re.search(r"; \[[0-9A-Z]{5}\]", t))
RECORDS = st.lists(
    st.builds(
        DiagnosticRecord,
        st.from_regex(r"[0-9A-Z]{5}", fullmatch=True),
        st.integers(-(2**31), 2**31 - 1),
        TEXTS.filter(lambda text: not text.startswith("[")),
    ),
    min_size=1,
    max_size=4,
)


@given(RECORDS, st.sampled_from([SERVER, FREETDS, MICROSOFT, "[unixODBC][Driver Manager]"]))
def test_every_diagnostic_record_of_an_error_is_parsed(
    expected: list[DiagnosticRecord], origin: str
) -> None:
    parts = [f"[{r.state}] {origin}{r.text} ({r.number})" for r in expected]
    assert records("; ".join([f"{parts[0]} (SQLExecDirectW)", *parts[1:]])) == expected


@given(st.text())
def test_an_error_with_any_text_is_translated(text: str) -> None:
    assert translated("42000", text).what == "Could not do it."
    assert translated(text).what == "Could not do it."
