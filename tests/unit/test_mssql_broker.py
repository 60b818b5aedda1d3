"""Purge, requeue and release of Service Broker's queues, without a server."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from console import catalog, sql
from console.actions import broker
from console.actions.archive import Purge
from console.actions.rows import CHANGED, SelectionCriteria
from console.catalog import Kind, Queue, audit, installed_queue
from console.catalog.audit import Ledger
from console.designs import DESIGNS
from console.engines import Database
from console.engines.mssql import PRODUCT
from console.errors import RefusedError, UsageError
from console.monitor.filters import parse
from console.monitor.memory import Memory
from console.monitor.message import Message
from console.monitor.rates import BrokerHealth
from console.monitor.sample import BROKER_SECONDS
from console.monitor.scan_query import MessageSource
from tests.unit.mssql_tools import Odbc

BROKER = DESIGNS["broker"]
QUEUE = installed_queue("dbo", "orders", BROKER, BROKER.complete_options({}, "mssql"))
SOURCE = MessageSource(PRODUCT, QUEUE, "text", "uniqueidentifier")
ON = BrokerHealth(True, True, True, 0, 0, None)


def message(number: int) -> Message:
    empty: dict[str, Any] = dict.fromkeys(Message.__dataclass_fields__)
    values = {"key": f"ready,,{number}", "id": f"id {number}", "state": "ready"}
    return Message(**{**empty, **values, "error_cut": False, "payload_cut": False})


@pytest.mark.parametrize(("out", "permanently"), [(3, False), (2, False), (0, True)])
def test_messages_that_are_gone_are_skipped(
    odbc: Odbc, mssql: Database, out: int, permanently: bool
) -> None:
    action = Purge(SOURCE, permanently=permanently)
    odbc.answer = lambda batch: (
        [(("taken_out", "put_in"), (out, out))] if "RECEIVE" in batch else [None]
    )
    with mssql.transaction("purge") as connection:
        odbc.bound.clear()
        ledger = action.apply(connection, [message(n) for n in (7, 8, 9)], 5).require_balance()
    skipped = {CHANGED: 3 - out} if out < 3 else {}
    assert ledger == Ledger(3, out, out, skipped=skipped)
    sent = [value for values in odbc.bound for value, _ in values]
    assert '["7", "8", "9"]' in sent
    assert (5 in sent) is not permanently


@pytest.mark.parametrize("word", ["id=3", "newer=1h", "payload.a=1"])
def test_filters_that_select_from_the_middle_are_refused(mssql: Database, word: str) -> None:
    action = Purge(replace(SOURCE, payload="json"))
    cutoff = datetime.max.replace(tzinfo=UTC)
    with mssql.session("plan") as session, pytest.raises(UsageError, match="does not apply"):
        action.select(SelectionCriteria(mssql, session, parse([word]), action.states, cutoff))


@pytest.mark.parametrize("options", [{}, {"conversation": "each"}])
def test_received_messages_are_checked_and_archived(options: dict[str, str]) -> None:
    """If too much was received, the transaction is rolled back; no message is lost."""
    queue = installed_queue("dbo", "orders", BROKER, BROKER.complete_options(options, "mssql"))
    for permanently in (False, True):
        text = Purge(replace(SOURCE, queue=queue), permanently=permanently).script()
        received, thrown = text.index("RECEIVE TOP"), text.index("THROW 51003")
        assert received < thrown
        assert ("INSERT INTO [dbo].[orders_archive]" in text[thrown:]) is not permanently
        # END CONVERSATION is its owner's: an operator calls the procedure that runs as it.
        assert ("EXEC [dbo].[orders_end] @conversation" in text) is bool(options)
        assert "END CONVERSATION" not in text


def test_a_broker_queues_conversations_are_counted_once_a_minute() -> None:
    """With one for each message the view has all of the last half hour."""
    now = [0.0]
    memory = Memory(lambda: now[0])
    assert memory.kept("counts") is None
    memory.keep_for(BROKER_SECONDS, "counts", replace(ON, conversations=7, transmission=3))
    now[0] = 59.0
    off = replace(ON, is_receive_enabled=False, conversations=None, transmission=None)
    seen = off.counted_as(memory.kept("counts"))
    assert (seen.conversations, seen.transmission, seen.enabled) == (7, 3, False)
    now[0] = 60.0
    assert memory.kept("counts") is None
    for counted, there in (("yes", True), ("no", False)):
        text = sql.script("broker.health", PRODUCT.dialect, QUEUE.scope(PRODUCT, counters=counted))
        assert ("sys.conversation_endpoints" in text) is there


def test_an_enabled_queue_is_left_unchanged(
    odbc: Odbc, mssql: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "health", lambda *_: ON)
    monkeypatch.setattr(catalog, "is_production", lambda *_: False)
    planned = broker.plan_enable(mssql, QUEUE)
    assert not planned.needed
    assert planned.lines == ("requeue dbo.orders: the queue is enabled, there is nothing to do",)
    assert planned.data["needed"] is False
    done = planned.run_to_end()
    assert (done.done, done.lines) == (0, ("dbo.orders was already enabled",))
    assert not any("ALTER QUEUE" in batch for batch in odbc.sent)


def test_a_queue_that_is_enabled_is_counted_as_done(
    odbc: Odbc, mssql: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = replace(ON, is_receive_enabled=False)
    seen = [off, off, ON]
    monkeypatch.setattr(broker, "health", lambda *_: seen.pop(0))
    monkeypatch.setattr(catalog, "is_production", lambda *_: False)
    monkeypatch.setattr(audit, "prepare", lambda *_: None)
    monkeypatch.setattr(audit, "log_locally", lambda *_, **__: None)

    def answer(batch: str) -> list[object]:
        if "OUTPUT inserted.action_id, inserted.done" in batch:
            return [(("action_id", "done"), (4, 0))]
        return [(("action_id",), (4,))] if "dbq.[action]" in batch else [None]

    odbc.answer = answer
    planned = broker.plan_enable(mssql, QUEUE)
    assert planned.needed
    done = planned.run_to_end()
    assert (done.done, done.lines) == (1, ("dbo.orders is enabled",))
    assert done.data["is_receive_enabled"] is True


def test_a_queue_that_stays_disabled_is_an_error(
    odbc: Odbc, mssql: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = replace(ON, is_receive_enabled=False)
    monkeypatch.setattr(broker, "health", lambda *_: off)
    monkeypatch.setattr(catalog, "is_production", lambda *_: True)
    monkeypatch.setattr(audit, "prepare", lambda *_: None)
    monkeypatch.setattr(audit, "log_locally", lambda *_, **__: None)
    odbc.answer = lambda batch: [(("action_id",), (4,))] if "dbq.[action]" in batch else [None]
    assert broker.plan_enable(mssql, QUEUE).requires_name
    with pytest.raises(RefusedError, match="still disabled"):
        broker.enable_queue(mssql, QUEUE)
    assert any("ALTER QUEUE [dbo].[orders] WITH STATUS = ON" in batch for batch in odbc.sent)
    assert not any("COMMIT" in batch for batch in odbc.sent[-2:])


def test_conversations_are_ended_in_batches_until_none_is_left(
    odbc: Odbc, mssql: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "is_production", lambda *_: False)
    monkeypatch.setattr(audit, "prepare", lambda *_: None)
    log_entries: list[tuple[object, ...]] = []
    monkeypatch.setattr(audit, "log_locally", lambda *given, **_: log_entries.append(given))
    batches = [2, 2, 1]

    def answer(batch: str) -> list[object]:
        if "broker.finished_conversations" in batch:
            return [(("conversations",), (5,))]
        if "broker.end_finished" in batch:
            return [(("ended",), (batches.pop(0),))]
        if "OUTPUT inserted.action_id, inserted.done" in batch:
            return [(("action_id", "done"), (4, 5))]
        return [(("action_id",), (4,))] if "dbq.[action]" in batch else [None]

    odbc.answer = answer
    planned = broker.plan_end(mssql, QUEUE, batch=2)
    assert "5 conversations" in planned.lines[0]
    assert planned.data["count"] == 5
    ended = planned.run_to_end().ledger
    assert ended == Ledger(5, 5, 5)
    assert batches == []
    assert sum("action_batch" in batch for batch in odbc.sent) == 3
    ((_, outcome, ledger, _),) = log_entries
    assert (outcome, ledger) == (audit.Outcome.DONE, ended)


def test_only_installed_broker_queues_are_accepted() -> None:
    database: Any = None
    fifo = installed_queue("dbo", "q", DESIGNS["fifo"], {})
    theirs = Queue("dbo", "q", BROKER, {}, dict(BROKER.roles), kind=Kind.ADOPTED)
    for call in (broker.plan_enable, broker.plan_end):
        with pytest.raises(UsageError):
            call(database, fifo)
        with pytest.raises(RefusedError, match="adopted"):
            call(database, theirs)
    with pytest.raises(RefusedError, match="adopted"):
        Purge(replace(SOURCE, queue=theirs), permanently=True)
