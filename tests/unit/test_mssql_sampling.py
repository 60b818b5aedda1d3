"""Samples of queues of the engine `mssql`: their time-outs and statements."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, text

from console import sql
from console.catalog import LIMITS, installed_queue
from console.designs import DESIGNS, designs_on
from console.engines import PRODUCTS, Database, Timeouts, time_limit
from console.engines.mssql import PRODUCT
from console.engines.mssql.statement_timeout import StatementStopped, watched
from console.engines.standby import Standby
from console.errors import BusyError, ConnectionFailedError, TooSlowError
from console.monitor.memory import Memory
from console.monitor.rates import StatusRow
from console.monitor.sample import EstimateRow, SessionsUsed, take_sample
from console.monitor.sample_queries import Budget, SampleRun, limit_transaction
from tests.contract.variants import ALL, on
from tests.tools.lint_sql import variants
from tests.unit.mssql_tools import ENTERPRISE, LABEL, Error, Odbc, open_mssql

ROLLBACK = "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION"
QUICK = Timeouts(statement_seconds=0.01, lock_seconds=0.04)
LIMIT = re.compile(r"\{(\w+_limit)\}")


def hang(odbc: Odbc, then: Sequence[Any], word: str = "slow") -> None:
    """A statement with that word ends when it is cancelled, with these results."""

    def answer(statement: str) -> Sequence[Any]:
        if word not in statement:
            return []
        assert odbc.cancelled.wait(30), "nobody cancelled it"
        return then

    odbc.answer = answer


@contextmanager
def quick(database: Database) -> Iterator[Connection]:
    """A transaction with time-outs of its own."""
    with database.transaction("look") as connection:
        yield connection.execution_options(dbq_timeouts=QUICK)


CANCELLED = Error("HY008", "[HY008] [Microsoft]Operation canceled (0) (SQLExecDirectW)")


@pytest.mark.parametrize(
    "then",
    [[CANCELLED], [[("one",), (1,)]]],
    ids=["the server stopped", "the answer came at that moment"],
)
def test_a_timeout_below_one_second_stops_a_statement(
    odbc: Odbc, mssql: Database, then: Sequence[Any]
) -> None:
    hang(odbc, then)
    with pytest.raises(TooSlowError) as late, quick(mssql) as connection:
        connection.execute(text("SELECT slow"))
    assert late.value.why == "this statement reached its time-out"
    assert odbc.sent[-1] == ROLLBACK
    # The connection still works, and has its usual time-outs again.
    with mssql.transaction("push") as connection:
        connection.execute(text("SELECT 2"))
    assert odbc.sent[-5:] == [
        *("SET LOCK_TIMEOUT 500", "SELECT 1"),
        *("BEGIN TRANSACTION", "SELECT 2", "COMMIT TRANSACTION"),
    ]
    assert len(odbc.connections) == 1


@pytest.mark.parametrize(
    ("way", "seconds", "expected"), [(0.4, 0.05, 0.45), (0.06, 0.05, 0.25), (0.0, 3.0, 3.0)]
)
def test_the_way_to_the_server_is_added_to_a_statements_limit(
    odbc: Odbc,
    mssql: Database,
    monkeypatch: pytest.MonkeyPatch,
    way: float,
    seconds: float,
    expected: float,
) -> None:
    """The limit is kept here, and the server would get what the network takes."""
    now = [1000.0]
    monkeypatch.setattr("console.engines.mssql.session.time.monotonic", lambda: now[0])

    def answer(statement: str) -> Sequence[Any]:
        now[0] += way if statement == "BEGIN TRANSACTION" else 0.0
        return []

    odbc.answer = answer
    with mssql.transaction("look") as connection:
        raw: Any = connection.connection.dbapi_connection
        ends_at = raw.ends_at(Timeouts(statement_seconds=seconds))
        assert ends_at - now[0] == pytest.approx(expected)


def test_a_connection_whose_rollback_fails_after_a_cancel_is_closed(
    odbc: Odbc, mssql: Database
) -> None:
    """FreeTDS does not notice that the connection to a silent server is dead."""
    hang(odbc, [Error("HY000", "[HY000] [FreeTDS][SQL Server]Unknown error (0) (SQLExecDirectW)")])
    slow = odbc.answer
    state = Error("24000", "[24000] [FreeTDS][SQL Server]Invalid cursor state (0) (SQLExecDirectW)")
    odbc.answer = lambda statement: [state] if statement == ROLLBACK else slow(statement)
    with pytest.raises(TooSlowError), quick(mssql) as connection:
        connection.execute(text("SELECT slow"))
    assert odbc.connections[0].closed


def test_the_lock_timeout_of_a_sample_is_set_once_and_reset_afterwards(
    odbc: Odbc, mssql: Database
) -> None:
    patient = Timeouts(statement_seconds=60.0, lock_seconds=QUICK.lock_seconds)
    with mssql.session("look") as session:
        for _ in range(2):
            with session.transaction("look") as connection:
                connection.execution_options(dbq_timeouts=patient)
                connection.execute(text("SELECT 2"), {})
    sent = odbc.sent[1:]
    assert sent == [
        *("BEGIN TRANSACTION", "SET LOCK_TIMEOUT 40", "SELECT 2", "COMMIT TRANSACTION"),
        *("BEGIN TRANSACTION", "SELECT 2", "COMMIT TRANSACTION"),
    ]
    with mssql.transaction("push"):
        pass
    assert odbc.sent[len(sent) + 1 :] == [
        *("SET LOCK_TIMEOUT 500", "SELECT 1", "BEGIN TRANSACTION", "COMMIT TRANSACTION")
    ]


def seconds_of(odbc: Odbc, database: Database) -> int:
    with database.transaction("look") as connection:
        connection.execute(text("SELECT 2"))
    return int(odbc.connections[0].timeout)


def test_the_drivers_timeout_leaves_time_for_a_silent_server(odbc: Odbc, mssql: Database) -> None:
    assert seconds_of(odbc, mssql) == 3
    with time_limit(6.5):
        assert seconds_of(odbc, mssql) == 2
    with time_limit(2.0):
        assert seconds_of(odbc, mssql) == 1  # 0 would be no limit
    assert seconds_of(odbc, mssql) == 3


def test_a_connect_takes_no_longer_than_the_time_limit(odbc: Odbc, mssql: Database) -> None:
    with time_limit(4.9), mssql.transaction("look"):
        pass
    ((_, arguments),) = odbc.opened
    assert arguments["timeout"] == 4


def test_after_the_time_limit_nothing_is_sent(odbc: Odbc, mssql: Database) -> None:
    with (
        pytest.raises(ConnectionFailedError) as failed,
        mssql.transaction("look") as connection,
        time_limit(0.0),
    ):
        connection.execute(text("SELECT 2"))
    assert failed.value.why == "the server has not answered within 0 s"
    assert "SELECT 2" not in odbc.sent
    # What still runs there ends with its connection.
    assert odbc.connections[0].closed


@pytest.mark.parametrize("stopped", [False, True])
def test_the_time_limit_or_a_stop_cancels_a_running_statement(
    odbc: Odbc, mssql: Database, stopped: bool
) -> None:
    hang(odbc, [CANCELLED])
    stop = threading.Event()
    with mssql.transaction("look"):
        pass
    hanging_answer = odbc.answer

    def answer(statement: str) -> Sequence[Any]:
        if "slow" in statement:
            stop.set()
        return hanging_answer(statement)

    odbc.answer = answer
    stop_requested: Callable[[], bool] = stop.is_set if stopped else (lambda: False)
    with (
        time_limit(60.0 if stopped else 0.2, stop_requested),
        pytest.raises(BusyError) as late,
        mssql.transaction("look") as connection,
    ):
        connection.execute(text("SELECT slow"))
    assert ("no longer needed" if stopped else "within 0.2 s") in late.value.why
    assert odbc.connections[0].closed


def test_the_watcher_of_an_interrupted_statement_ends_too() -> None:
    watchers: list[threading.Thread] = []

    def interrupted() -> None:
        watchers.extend(t for t in threading.enumerate() if t.name == "dbq-watch")
        raise KeyboardInterrupt

    with time_limit(60.0), pytest.raises(KeyboardInterrupt), watched(lambda: None, None):
        interrupted()
    (watcher,) = watchers
    assert not watcher.is_alive()


def test_a_failed_cancellation_is_repeated() -> None:
    def refuse() -> None:
        cancel_calls.release()
        raise Error("HY000", "[HY000] no")

    cancel_calls = threading.Semaphore(0)
    with pytest.raises(StatementStopped), watched(refuse, time.monotonic()):
        # More than once: at the first call it may not have begun.
        assert all(cancel_calls.acquire(timeout=30) for _ in range(2))


def answer_by_label(odbc: Odbc, **rows: list[Any]) -> list[str]:
    """Each labelled statement gets its rows; returns the labels sent, in order."""
    labels: list[str] = []

    def answer(statement: str) -> Sequence[Any]:
        match = LABEL.match(statement)
        if match is None:
            return []
        labels.append(match[1])
        given = rows.get(match[1].replace(".", "_"))
        return [given] if given is not None else []

    odbc.answer = answer
    return labels


STATUS = tuple(StatusRow.__dataclass_fields__)
STATUS_ROW = dict.fromkeys(STATUS) | {"schema": "dbo", "queue": "orders", "ready": 10_001}
SERVER_STATE = ("incarnation", "sees_writers", "now")
HOLDERS = (
    *("schema", "relation", "session_id", "prepared_transaction", "user_name", "application_name"),
    *("state", "transaction_seconds", "held_at_least_seconds", "held_at_most_seconds"),
)
QUEUES = ("schema", "name", "design", "kind", "options", "roles", "version", "installed_by")


def sample_deep_queue(odbc: Odbc, *, writers: bool, counters: bool) -> tuple[Any, list[str]]:
    """A sample of one deep queue on a server that shows these."""
    roles = '{"id": "id", "payload": "payload", "pushed_at": "pushed_at"}'
    options = json.dumps({"payload": "text", "max_bytes": "unlimited"})
    queue = ("dbo", "orders", "fifo", "installed", options, roles, 1, "me", "here", None, None)
    holder = ("dbo", "orders", 57, None, "app", "worker", "idle in transaction", 99.0, 12.0, 12.5)
    capabilities = vars(replace(ENTERPRISE, sees_counters=counters, counts_rows=counters))
    estimate = ("dbo", "orders", 50_000.0 if counters else None, None, None, None, None)
    labels = answer_by_label(
        odbc,
        catalog_exists=[
            (
                *("present", "version", "audited", "decided", "identified", "lakes"),
                *("decisions_readable", "guarded", "runs"),
            ),
            (True, 1, False, True, True, True, False, True, None),
        ],
        catalog_queues=[(*QUEUES, "installed_from", "installed_at", "runs"), queue],
        catalog_settings=[("name", "value")],
        catalog_row_filters=[("schema", "table", "policy")],
        server_capabilities=[tuple(capabilities), tuple(capabilities.values())],
        server_server_state=[SERVER_STATE, ("since then", writers, None)],
        server_standby=[tuple(Standby.__dataclass_fields__)],
        server_sessions_used=[tuple(SessionsUsed.__dataclass_fields__), (None, 32_767)],
        server_holders=[HOLDERS, holder],
        monitor_status=[STATUS, tuple(STATUS_ROW.values())],
        monitor_estimate=[tuple(EstimateRow.__dataclass_fields__), estimate],
    )
    database = open_mssql()
    # A limit that a busy machine does not reach: slow figures would be unknown.
    no_timeout = Timeouts(connect_seconds=7, statement_seconds=600.0, lock_seconds=0.02)
    sample = take_sample(database, timeouts=no_timeout)
    database.close()
    return sample, labels


def test_a_sample_with_all_rights_is_complete(odbc: Odbc) -> None:
    sample, labels = sample_deep_queue(odbc, writers=True, counters=True)
    (sampled,) = sample.queues
    assert sample.incarnation == "since then"
    assert sampled.row.ready == 10_001
    assert sampled.estimates["ready"] == 50_000.0
    assert [(h.session, h.transaction_seconds, h.held_for) for h in sampled.holders] == [
        (57, 99.0, "12.5 s")
    ]
    assert "SET LOCK_TIMEOUT 20" in odbc.sent
    assert labels.count("server.server_state") == 3


def test_a_sample_without_rights_leaves_figures_unknown(odbc: Odbc) -> None:
    sample, labels = sample_deep_queue(odbc, writers=False, counters=False)
    (sampled,) = sample.queues
    assert sampled.row.ready == 10_001
    # Unknown, not none; and no statement fails each second to find that out.
    assert sampled.holders is None
    assert "server.holders" not in labels
    assert sampled.estimates["ready"] is None
    assert not [
        statement
        for statement in odbc.sent
        if "sys.dm_" in statement and "dbq server" not in statement
    ]


def test_few_queues_share_a_statement_and_its_first_run_has_time_to_be_compiled(
    odbc: Odbc, mssql: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled compilation is not cached: the next run would be as slow, for ever."""
    limits: list[float] = []

    def limited(connection: Connection, database: Database, seconds: float, lock: float) -> Any:
        limits.append(seconds)
        return limit_transaction(connection, database, seconds, lock)

    def answer(statement: str) -> Sequence[Any]:
        if "server.server_state" in statement:
            return [(SERVER_STATE, ("since then", True, None))]
        if "server.capabilities" in statement:
            return [(tuple(vars(ENTERPRISE)), tuple(vars(ENTERPRISE).values()))]
        names = sorted(set(re.findall(r"N'(q\d+)'", statement)))
        rows = [tuple((STATUS_ROW | {"queue": n, "schema": "sales"}).values()) for n in names]
        return [(STATUS, *rows)] if "monitor.status" in statement else []

    monkeypatch.setattr("console.monitor.sample_queries.limit_transaction", limited)
    odbc.answer = answer
    fifo = next(v for v in on("mssql", ALL) if str(v) == "fifo")
    queues = [fifo.queue("sales", f"q{n}", "mssql") for n in range(25)]
    memory, budget = Memory(), Budget(statement=0.05, lock=0.04)
    with mssql.session("look") as session:
        for run in range(3):
            sampled = SampleRun(mssql, session, memory, budget, 300.0).sample(queues)
            assert [one.problem for one in sampled.values()] == [""] * 25
            first = PRODUCT.first_run_seconds
            expected = [first] * 3 if not run else [budget.together(n) for n in (10, 10, 5)]
            assert limits == expected
            limits.clear()


def test_sampling_limits_last_until_the_connection_returns_to_the_pool(
    odbc: Odbc, mssql: Database
) -> None:
    answer_by_label(odbc, server_server_state=[SERVER_STATE, ("x", True, None)])
    with mssql.transaction("look") as connection:
        server_state = limit_transaction(connection, mssql, 60.0, 0.04)
        limits = connection.connection.dbapi_connection.limits  # type: ignore[union-attr]
    assert (server_state.incarnation, server_state.sees_writers) == ("x", True)
    assert (limits.statement_seconds, limits.lock_seconds) == (60.0, 0.04)
    with mssql.transaction("push") as connection:
        assert connection.connection.dbapi_connection.limits == mssql.timeouts  # type: ignore[union-attr]


def placeholders(engine: str, design: str) -> set[str]:
    """The limits in the status statements of all such queues."""
    product, found_design = PRODUCTS[engine], DESIGNS[design]
    names = {name: f"{{{name}}}" for name in LIMITS}
    queues = (
        installed_queue("s", "q", found_design, options)
        for options in variants(found_design, engine)
    )
    scopes = (queue.scope(product, **names) for queue in queues)
    texts = (sql.script(f"{design}.status", product.dialect, scope) for scope in scopes)
    return {name for text in texts for name in LIMIT.findall(text)}


def test_every_figure_of_a_sample_can_be_left_out() -> None:
    for design, found_design in designs_on("mssql").items():
        here = placeholders("mssql", design)
        if "postgresql" in found_design.engines:
            assert here == placeholders("postgresql", design)
        assert {"ready_limit"} <= here <= LIMITS.keys()
        # No other limit than these.
        template = sql.statement("mssql", f"{design}.status").template
        assert not re.search(r"TOP \(\d+\)", template)


def test_both_engines_have_the_same_statements_for_samples() -> None:
    for design in DESIGNS.values():
        if set(design.engines) == {"postgresql", "mssql"}:
            for name in ("status", "claims", "estimate", "wait_for_relay"):
                both = [sql.has(PRODUCTS[e], f"{design.name}.{name}") for e in design.engines]
                assert len(set(both)) == 1, f"{design.name}.{name}"


FILTERS = {
    "ready": {"processing_started_at IS NULL", "status = 0"},
    "claimed": {
        "processing_started_at IS NOT NULL AND done_at IS NULL",
        "claimed_at IS NOT NULL AND done_at IS NULL",
        "status = 1",
    },
    "done": {"status = 2"},
    "errors": {"done_at IS NOT NULL", "status = 4"},
}


def test_a_state_is_estimated_from_its_index_if_the_login_may_read_it() -> None:
    """By name: another index has the rows of another state."""
    for variant in on("mssql", ALL):
        queue = variant.queue("sales", "orders", "mssql")
        name, dialect = variant.design.name, PRODUCT.dialect
        estimate = sql.script(f"{name}.estimate", dialect, queue.scope(PRODUCT))
        tables = sql.script(f"{name}.tables", dialect, queue.scope(PRODUCT))
        named = dict(re.findall(r"i\.name = N'(\w+)' THEN p\.row_count END\) AS (\w+)", estimate))
        for index, state in named.items():
            (condition,) = re.findall(
                rf"INDEX \[{index}\] ON [^;]*?\sWHERE ([^;]*?)\s+WITH", tables
            )
            assert condition in FILTERS[state], f"{index}: {condition}"
        if queue.finishes:
            assert {"claimed", "errors"} <= set(named.values())
        unread = sql.script(f"{name}.estimate", dialect, queue.scope(PRODUCT, counters="no"))
        assert "FROM" not in unread, variant


def test_a_failure_to_set_a_timeout_is_translated(odbc: Odbc, mssql: Database) -> None:
    lost = Error("08S01", "[08S01] [Microsoft]Communication link failure (0) (SQLExecDirectW)")
    odbc.answer = lambda statement: [lost] if statement == "SET LOCK_TIMEOUT 40" else []
    with pytest.raises(ConnectionFailedError), quick(mssql) as connection:
        connection.execute(text("SELECT 2"))
    assert "SELECT 2" not in odbc.sent
