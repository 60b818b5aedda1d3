"""Whether messages are consumed: of every design, with nobody at work and with somebody.

The clock of the proof is the database's: of its samples, which these tests put as far apart as they
want.
"""

import itertools
import threading
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, LiteralString

import pytest

from console.actions import pop
from console.doctor import context as context_module
from console.doctor import stopped_consumers
from console.doctor.diagnose import diagnose
from console.doctor.finding import Diagnosis, Finding
from console.doctor.stopped_consumers import ConsumptionHistory, Position
from console.engines import Database
from console.monitor.limits import DEFAULTS, Limits, Severity, Thresholds, ThresholdsOf
from console.monitor.sample import QueueSample, take_sample
from console.monitor.sampler import Reading
from console.monitor.snapshot import snapshot
from console.tui.store import Store
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.test_subscribers import made, popped
from tests.contract.variants import Variant
from tests.faults.queue_faults import (
    CLAIM,
    FIFO,
    HEAP,
    NAIVE,
    PENDING,
    RING,
    SPLIT,
    STACK,
    STATUS,
    codes_of,
    diagnosis,
    filled,
    finding_of,
    popped_by,
    run,
)
from tests.servers import connect, wait_until

AT_ONCE = replace(DEFAULTS, age_seconds=Limits(0.0001))
"""Messages are late at once."""
PROVEN = [NAIVE, FIFO, STACK, PENDING, RING, CLAIM, STATUS, SPLIT]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two samples of the database its clock goes on by half a minute and a bit."""
    positions, numbers = stopped_consumers._positions, itertools.count(1)

    def later(
        database: Database, queues: list[QueueSample], thresholds_of: ThresholdsOf
    ) -> dict[tuple[tuple[str, str], str], Position | str | None]:
        ahead = 31.0 * next(numbers)
        return {
            key: one
            if one is None or isinstance(one, str)
            else replace(
                one,
                moment=one.moment + ahead,
                popped_seconds=None if one.popped_seconds is None else one.popped_seconds + ahead,
            )
            for key, one in positions(database, queues, thresholds_of).items()
        }

    monkeypatch.setattr(stopped_consumers, "_positions", later)


def diagnose_queue(
    client: Client, seen: ConsumptionHistory, thresholds: Thresholds = AT_ONCE
) -> tuple[list[str], str]:
    """The codes found, and why consumption is not known."""
    found = diagnosed(client, seen, thresholds)
    return _codes(found), _unknown(found)


def diagnosed(
    client: Client, seen: ConsumptionHistory, thresholds: Thresholds = AT_ONCE, **more: Any
) -> Diagnosis:
    whole: dict[str, Any] = {"patience_seconds": 0.1, "consumption": seen, **more}
    return diagnosis(client.database, client.queue, thresholds, **whole)


def _codes(found: Diagnosis) -> list[str]:
    return [one.code.name for one in found.findings if one.code.name == "consumer_stopped"]


def _unknown(found: Diagnosis) -> str:
    told = [why for why in found.unseen if why.startswith("consumption not known")]
    assert not told or found.verdict != "all clear"
    return "; ".join(told)


STOPPED = (["consumer_stopped"], "")
FINE: tuple[list[str], str] = ([], "")


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("of", [*PROVEN, HEAP], ids=str)
def test_two_samples_prove_stopped_consumers_unless_a_pop_comes_between(
    use: Use, of: Variant
) -> None:
    client = filled(use, of)
    seen = ConsumptionHistory(waits=False)
    codes, why = diagnose_queue(client, seen)
    assert not codes
    assert "this is the first" in why
    assert diagnose_queue(client, seen) == STOPPED or of is HEAP
    with client.database.transaction("pop") as connection:
        (message,) = pop.pop_many(connection, client.queue, 1)
        # Else the counters lag by seconds, and without an order there is no other sign.
        connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
    if client.queue.finishes:
        client.complete(message)
    wait_until(lambda: diagnose_queue(client, seen) == FINE, "the pop is seen")


@pytest.mark.usefixtures("steps")
def test_of_a_heap_and_of_a_stack_that_grows_it_is_not_known(use: Use) -> None:
    heap, stack = filled(use, HEAP), filled(use, STACK)
    seen = ConsumptionHistory(waits=False)
    for client in (heap, stack):
        diagnose_queue(client, seen)
    assert stack.push(stack.payload(9)) is not None
    assert "without an order no message is next" in diagnose_queue(heap, seen)[1]
    assert "bottom" in diagnose_queue(stack, seen)[1]


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("of", [FIFO, CLAIM, RING], ids=str)
def test_a_session_that_holds_rows_is_at_work(
    use: Use, of: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopped_consumers, "_AT_WORK_SECONDS", 0.0)
    client = filled(use, of)
    seen = ConsumptionHistory(waits=False)
    with closing(connect(client.url)) as other, other.transaction(force_rollback=True):
        popped_by(other, client)
        for _ in range(3):
            assert diagnose_queue(client, seen) == FINE


@pytest.mark.usefixtures("steps")
def test_a_claim_of_a_living_owner_is_work_and_of_an_unknown_one_may_be(use: Use) -> None:
    client = filled(use, CLAIM)
    seen = ConsumptionHistory(waits=False)
    with closing(connect(client.url)) as other:
        popped_by(other, client)
        for _ in range(3):
            assert diagnose_queue(client, seen) == FINE
    wait_until(lambda: "younger than" in diagnose_queue(client, seen)[1], "its owner has left")


@pytest.mark.usefixtures("steps")
def test_what_is_within_its_limit_or_popped_does_not_wait_for_long(use: Use) -> None:
    client = filled(use, FIFO)
    seen = ConsumptionHistory(waits=False)
    patient = replace(DEFAULTS, age_seconds=Limits(1800.0))
    for thresholds in (patient, DEFAULTS):
        for _ in range(3):
            assert diagnose_queue(client, seen, thresholds) == FINE
    # Nor what a sampler has seen being popped.
    rated = replace(client.snapshot(), push_per_second=1.0, pop_per_second=3.0)
    seen = ConsumptionHistory(waits=False)
    for _ in range(2):
        found = diagnosed(client, seen, snapshots=[rated])
        assert (_codes(found), _unknown(found)) == FINE


@pytest.mark.usefixtures("steps")
def test_what_was_not_due_for_long_does_not_wait_for_long(use: Use) -> None:
    client = filled(use, PENDING)
    run(
        client,
        "UPDATE {table} SET pushed_at = pushed_at - interval '2 days', "
        "due_time = clock_timestamp() - interval '1 minute'",
    )
    seen = ConsumptionHistory(waits=False)
    wait = replace(DEFAULTS, age_seconds=Limits(1800.0, None))
    for _ in range(2):
        assert diagnose_queue(client, seen, wait) == FINE


def test_a_last_pop_leaves_a_trace_where_pops_do(use: Use) -> None:
    client = filled(use, STATUS)
    assert client.pop()
    assert diagnose_queue(client, ConsumptionHistory(waits=False)) == FINE, (
        "something was popped a moment ago"
    )


# --------------------------------------------------------------------------------- one wait for all


def test_the_doctor_waits_once_for_all_queues_together(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [filled(use, FIFO) for _ in range(6)]
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        time.sleep(seconds)

    clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    monkeypatch.setattr(stopped_consumers, "time", clock)
    found = diagnose(
        clients[0].database, thresholds_of=lambda _: AT_ONCE, consumption=ConsumptionHistory(0.5)
    )
    assert [_codes(one) for one in found] == [["consumer_stopped"]] * 6
    assert sum(waited) < 2 * 0.5, "each of them waits for itself"


def test_checks_that_wait_overlap(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ring has an orphan, which cannot be proven while a transaction has drawn."""
    clients = [filled(use, RING) for _ in range(4)]
    others = [connect(clients[0].url) for _ in clients]
    all_wait = threading.Barrier(len(clients))
    waited = threading.local()

    def sleep(seconds: float) -> None:
        if not getattr(waited, "once", False):
            waited.once = True
            all_wait.wait(60)  # broken, and an error, where one waits after the other
        time.sleep(seconds)

    monkeypatch.setattr(context_module, "time", SimpleNamespace(sleep=sleep))
    try:
        for client, other in zip(clients, others, strict=True):
            with other.transaction(force_rollback=True):
                popped_by(other, client)
            other.execute("BEGIN")
            popped_by(other, client)
        found = diagnose(
            clients[0].database,
            [client.queue for client in clients],
            patience_seconds=0.5,
            consumption=ConsumptionHistory(waits=False),
        )
    finally:
        for other in others:
            other.close()
    assert all("may be held by" in "; ".join(one.unseen) for one in found)


def stopped(client: Client, seen: ConsumptionHistory) -> list[Finding]:
    found = diagnosed(client, seen)
    told = [one for one in found.findings if one.code.name.endswith("_stopped")]
    assert _unknown(found) or "subscriber_stopped" not in found.unproven
    return told


@pytest.mark.usefixtures("steps")
def test_a_subscriber_that_stopped_is_named_while_the_other_pops(use: Use) -> None:
    client = made(use)
    seen = ConsumptionHistory(waits=False)
    client.push_many(client.payloads(*range(5)))
    assert stopped(client, seen) == []
    assert len(popped(client, "billing")) == 5
    client.push_many(client.payloads(*range(5)))
    assert len(popped(client, "billing", 2)) == 2
    (one,) = stopped(client, seen)
    assert (one.code.name, one.subscriber, one.subject) == (
        "subscriber_stopped",
        "search",
        "search",
    )
    assert one.code.severity is Severity.CRITICAL, "it fills the ring in 37 s"
    assert one.summary.startswith("search: 10 ready")
    assert "unsubscribe" in one.consequence
    assert one.repair is not None
    assert not one.repair.unattended
    assert one.command == f"dbq-console skip '{client.queue.name}' --to now search"
    assert one.repair.plan(client.database)
    assert "10 messages" in " ".join(one.repair.run(client.database))
    assert popped(client, "search") == []
    assert len(popped(client, "billing")) == 3
    assert stopped(client, seen) == []


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("in_hand", ["off", "on"])
def test_a_subscriber_whose_consumer_is_at_work_has_not_stopped(use: Use, in_hand: str) -> None:
    """In an open transaction, or on a claim; another subscriber's work does not count."""
    client = made(use, in_hand=in_hand)
    client.push_many(client.payloads(*range(8)))
    seen = ConsumptionHistory(waits=False)
    with client.database.transaction("work") as connection:
        pop.pop_many(connection, client.queue.of("search"), 1, "worker")
        assert stopped(client, seen) == []
        (one,) = stopped(client, seen)
        assert one.subscriber == "billing"
        assert one.code.severity is Severity.WARNING, "nothing was pushed"
    seen = ConsumptionHistory(waits=False)
    assert stopped(client, seen) == []
    assert [one.subscriber for one in stopped(client, seen)] == [
        *["billing"],
        *(["search"] if in_hand == "off" else []),
    ]


# ------------------------------------------------------------------- a console of another clock


SKEWS = [timedelta(), timedelta(hours=2), timedelta(hours=-2)]
"""By so much this console's clock is ahead of the database's."""
AGE = 1800.0


@pytest.fixture(params=SKEWS, ids=str)
def now(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> datetime:
    """The database's clock, as good as: both are this machine's."""
    for module in ("doctor.context", "monitor.sample_queries"):
        monkeypatch.setattr(f"console.{module}.utc", lambda: datetime.now(UTC) + request.param)
    return datetime.now(UTC)


def waiting(use: Use, of: Variant) -> Client:
    """Messages that have waited, and were due, for half an hour."""
    client = filled(use, of, 2)
    for column in ("pushed_at", *(["due_time"] if of is PENDING else [])):
        ago: LiteralString = "clock_timestamp() - interval '30 minutes'"
        run(client, "UPDATE {table} SET {column} = " + ago, column=column)
    return client


def told_at(client: Client) -> Diagnosis:
    consumption = ConsumptionHistory(0.05)
    return diagnosis(client.database, client.queue, AT_ONCE, consumption=consumption)


def test_since_is_by_the_databases_clock(use: Use, now: datetime) -> None:
    client = waiting(use, FIFO)
    found = told_at(client)
    aged = finding_of(found, "limit_reached")
    assert aged.since is not None
    assert abs(aged.since + timedelta(seconds=AGE) - now) < timedelta(minutes=5)
    # The screens count on from there by a clock of their own, which may be any.
    store = Store({"a": 1.0}, now=0)
    sample = take_sample(client.database, only=[client.queue])
    store.add_reading("a", Reading("a", (snapshot(sample.queues[0], "a"),)), at=100_000)
    store.add_diagnoses("a", [found], 100_000, now - found.clock_ahead)
    (row,) = store.queues(100_000)
    ages = {one.code: one.since_seconds or 0.0 for one in row.findings}
    # Since the messages came, or the server began to count: that may have been up for long.
    assert 0 < ages["consumer_stopped"] < 2 * AGE
    # What is due, whatever our clock says.
    assert "consumer_stopped" in codes_of(told_at(waiting(use, PENDING)))
