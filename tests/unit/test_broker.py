"""Service Broker's figures without a server: texts for operators, findings."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any
from unittest.mock import Mock, patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.catalog import Kind, Queue, installed_queue
from console.designs import DESIGNS
from console.doctor import broker, context
from console.doctor.broker import (
    CHECKS,
    MANY_CONVERSATIONS,
    Activation,
    Undelivered,
    check_activation,
    check_leak,
    check_state,
    check_undelivered,
)
from console.doctor.checks import CHECK_GROUPS
from console.doctor.context import check_context
from console.doctor.finding import Finding, Repair
from console.doctor.repairs import enable_queue, end_conversations
from console.engines import Database
from console.monitor.rates import BrokerHealth, StatusRow
from console.monitor.sample import QueueSample
from console.monitor.snapshot import snapshot
from tests.unit.mssql_tools import LABEL, Error, Odbc

QUEUE = installed_queue("dbo", "orders", DESIGNS["broker"], {})
ADOPTED = Queue("dbo", "orders", DESIGNS["broker"], {}, {}, kind=Kind.ADOPTED)
ON = BrokerHealth(True, True, True, 0, 0, None)
LIMIT = 300.0


def codes(findings: Iterable[Finding]) -> list[str]:
    return [finding.code.name for finding in findings]


def test_only_broker_queues_are_checked() -> None:
    checked = {
        name for name, design in DESIGNS.items() if broker.CHECKS.applies(queue_of(design.name))
    }
    assert checked == {"broker"}
    assert broker.CHECKS in CHECK_GROUPS


def queue_of(design: str) -> Queue:
    return installed_queue("dbo", "orders", DESIGNS[design], {})


@pytest.mark.parametrize(
    ("health", "code"),
    [
        (ON, []),
        (replace(ON, is_receive_enabled=False), ["broker_queue_off"]),
        (replace(ON, is_enqueue_enabled=False), ["broker_queue_off"]),
        # With the database's switch off, the queue's own is irrelevant.
        (replace(ON, broker_enabled=False, is_receive_enabled=False), ["broker_off"]),
    ],
)
def test_disabled_switches_are_findings(health: BrokerHealth, code: list[str]) -> None:
    assert codes(check_state(QUEUE, health)) == code


def test_enabling_a_disabled_queue_is_never_unattended() -> None:
    """The poison message is still at its head."""
    off = replace(ON, is_receive_enabled=False, transmission=3)
    (finding,) = check_state(QUEUE, off)
    assert finding.repair == enable_queue(QUEUE)
    assert not enable_queue(QUEUE).unattended
    assert enable_queue(QUEUE).command == "dbq-console requeue orders --schema dbo"
    assert "3 messages not delivered" in finding.summary
    (finding,) = check_state(ADOPTED, off)
    assert finding.repair is None


@pytest.mark.parametrize(
    ("row", "reported"),
    [
        (Undelivered(0, None, None), False),
        (Undelivered(4, 0.2, None), False),  # on their way
        (Undelivered(4, 0.2, ""), False),
        (Undelivered(4, 0.2, "The target queue is disabled"), True),
        (Undelivered(4, LIMIT, None), True),
    ],
)
def test_only_failed_or_late_deliveries_are_reported(row: Undelivered, *, reported: bool) -> None:
    found = list(check_undelivered(row, LIMIT))
    assert codes(found) == ["broker_undelivered"] * reported
    if reported:
        assert (row.status or "no reason") in found[0].summary


STATES = st.dictionaries(
    st.sampled_from(["CO", "SO", "SI", "DI", "DO", "ER", "CD"]), st.integers(1, 3_000)
)


@given(STATES, st.none() | st.integers(0, 5_000))
def test_more_open_conversations_than_messages_explain_are_a_leak(
    states: dict[str, int], ready: int | None
) -> None:
    still_open = sum(n for state, n in states.items() if state != "CD")
    leaks = still_open > MANY_CONVERSATIONS + 2 * (ready or 0)
    found = list(check_leak(QUEUE, states, ready))
    assert codes(found) == ["broker_conversations"] * leaks
    over = states.get("DI", 0) + states.get("ER", 0)
    for finding in found:
        assert finding.repair == (end_conversations(QUEUE) if over else None)
    for finding in check_leak(ADOPTED, states, ready):
        assert finding.repair is None


def test_ended_conversations_are_reported_above_10_000_only() -> None:
    assert codes(check_leak(QUEUE, {"CD": 10_000}, 0)) == []
    (finding,) = check_leak(QUEUE, {"CD": 10_001}, 0)
    assert finding.summary == "more than 10,000 conversations ended and not removed yet"
    assert finding.repair is None


def test_repairs_of_service_broker_are_verbs() -> None:
    repairs: list[Repair] = [end_conversations(QUEUE), enable_queue(QUEUE)]
    commands = [repair.command for repair in repairs]
    assert commands == [
        f"dbq-console {verb} orders --schema dbo" for verb in ("release", "requeue")
    ]
    assert all(repair.summary for repair in repairs)
    assert end_conversations(QUEUE).unattended


STARTED = Activation("[dbo].[orders_activated]", True, True, "RECEIVES_OCCURRING", 9_999.0)


@pytest.mark.parametrize(
    ("row", "ready", "code"),
    [
        (STARTED, 7, []),
        (replace(STARTED, state="INACTIVE"), 7, []),
        (replace(STARTED, state=None), 7, ["broker_activation"]),
        (replace(STARTED, state="NOTIFIED", activated_seconds=LIMIT), 7, ["broker_activation"]),
        (replace(STARTED, state="NOTIFIED", activated_seconds=1.0), 7, []),
        (replace(STARTED, state="NOTIFIED", activated_seconds=None), 7, []),
        (replace(STARTED, enabled=False, state=None), 7, ["broker_activation_off"]),
        # Nothing is ready or activated, or that is unknown.
        (replace(STARTED, state=None), 0, []),
        (replace(STARTED, enabled=False), None, []),
        (replace(STARTED, activated=None, state=None), 7, []),
    ],
)
def test_broken_activation_is_reported_while_messages_are_ready(
    row: Activation, ready: int | None, code: list[str]
) -> None:
    found = [*check_activation(row, ready, LIMIT)]
    assert codes(found) == code
    if code == ["broker_activation"]:
        assert ("has no monitor" in found[0].summary) == (row.state is None)


ANSWERS: dict[str, list[tuple[Any, ...]]] = {
    "server.server_state": [("incarnation", "sees_writers", "now"), (None, None, None)],
    "broker.health": [
        tuple(field.name for field in fields(BrokerHealth)),
        (False, True, True, 7, 3, "The queue is off"),
    ],
    "broker.undelivered": [("found", "oldest_seconds", "status"), (3, 2.0, "The queue is off")],
    "broker.conversations": [("state", "found"), ("CO", 4), ("DI", 1_500)],
    "broker.activation": [
        ("activated", "enabled", "monitored", "state", "activated_seconds"),
        ("[dbo].[orders_activated]", True, False, None, None),
    ],
}
"""Label of a statement -> its columns and rows."""
DENIED = Error("42000", "[42000] [Microsoft][SQL Server]VIEW SERVER STATE was denied (300) (SQL)")


@pytest.fixture
def database(mssql: Database) -> Iterator[Database]:
    capabilities = Mock(missing={"sessions": "somebody lacks VIEW SERVER STATE"})
    with patch.object(Database, "capabilities", capabilities):
        yield mssql


def run_checks(database: Database) -> tuple[list[Finding], list[str]]:
    with check_context(database, QUEUE) as context:
        return list(broker.CHECKS.run(context)), context.unseen


def test_all_checks_run_in_a_transaction_that_ends_soon(
    odbc: Odbc, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "_SHARED_SECONDS", 0.0)

    def answer(statement: str) -> list[Any]:
        label = LABEL.match(statement)
        return [tuple(ANSWERS[label[1]])] if label else []

    odbc.answer = answer
    findings, unseen = run_checks(database)
    expected = ["broker_queue_off", "broker_undelivered", "broker_conversations"]
    assert codes(findings) == expected
    assert findings[2].repair == end_conversations(QUEUE)
    assert unseen == ["activation: its monitor is not visible: somebody lacks VIEW SERVER STATE"]
    begun, ended = (odbc.sent.count(f"{word} TRANSACTION") for word in ("BEGIN", "COMMIT"))
    assert begun == ended == 4, "a statement that took longer was the last"


def test_denied_checks_are_unseen_and_the_others_run(odbc: Odbc, database: Database) -> None:
    def answer(statement: str) -> list[Any]:
        label = LABEL.match(statement)
        if not label:
            return []
        return [DENIED if label[1] == "broker.conversations" else tuple(ANSWERS[label[1]])]

    odbc.answer = answer
    findings, unseen = run_checks(database)
    assert codes(findings) == ["broker_queue_off", "broker_undelivered"]
    assert unseen[0].startswith("conversations: ")
    assert "denied" in unseen[0]


def test_every_code_can_be_found() -> None:
    findings = [
        *check_state(QUEUE, replace(ON, broker_enabled=False)),
        *check_state(QUEUE, replace(ON, is_receive_enabled=False)),
        *check_undelivered(Undelivered(4, LIMIT, None), LIMIT),
        *check_leak(QUEUE, {"DI": 2_000}, 0),
        *check_activation(replace(STARTED, state=None), 7, LIMIT),
        *check_activation(replace(STARTED, enabled=False), 7, LIMIT),
    ]
    assert [finding.code for finding in findings] == list(CHECKS.codes)
    assert all(finding.cause and finding.consequence for finding in findings)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"broker_enabled": False, "is_receive_enabled": False}, "ENABLE_BROKER"),
        ({"is_receive_enabled": False}, "poison message"),
        ({"is_enqueue_enabled": False}, "accepts no messages"),
        ({"transmission": 3, "transmission_status": "no route"}, "3 messages .*: no route"),
        ({"transmission": 10_001}, "^More than 10,000 messages cannot be delivered$"),
        ({"conversations": 1_101}, "1,101 conversations are open"),
    ],
)
def test_each_problem_has_a_text(changed: dict[str, object], expected: str) -> None:
    health = replace(ON, **changed)  # type: ignore[arg-type]  # fields by name
    assert re.search(expected, health.problem(ready=50))


def test_many_conversations_are_no_problem_in_a_deep_queue() -> None:
    assert ON.problem(ready=0) == ""
    assert replace(ON, conversations=9_000).problem(ready=5_000) == ""
    assert replace(ON, conversations=9_000).problem(ready=None) != ""


def test_a_disabled_queue_still_has_its_figures() -> None:
    broker_design = DESIGNS["broker"]
    queue = installed_queue(
        "dbo", "mail", broker_design, broker_design.complete_options({}, "mssql")
    )
    figures = dict.fromkeys(StatusRow.__dataclass_fields__)
    row = StatusRow(**figures | {"schema": "dbo", "queue": "mail", "ready": 7})  # type: ignore[arg-type]
    sampled = snapshot(QueueSample(queue, row, "The queue is disabled"), "c")
    assert (sampled.ready, sampled.problem) == (7, "The queue is disabled")
