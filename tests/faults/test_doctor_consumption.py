"""Whether the messages of a queue are consumed: for every design, without and with consumers.

The proof uses the database's clock in its samples, which these tests set forward at will.
"""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, LiteralString

import pytest

from console.actions import pop
from console.catalog import in_use
from console.doctor import context as context_module
from console.doctor import stopped_consumers
from console.doctor.diagnose import diagnose
from console.doctor.finding import Diagnosis, Finding
from console.doctor.stopped_consumers import ConsumptionHistory, Position
from console.engines import Database
from console.monitor.limits import DEFAULTS, Limits, Severity, Thresholds, ThresholdsOf
from console.monitor.owners import holders
from console.monitor.rates import RateWindow, key_of
from console.monitor.sample import QueueSample, take_sample
from console.monitor.sampler import Reading
from console.monitor.snapshot import snapshot
from console.tui.store import Store
from tests.contract.test_subscribers import pop_as, ring_client
from tests.contract.traffic import at_work
from tests.contract.variants import Variant
from tests.faults.harness.doctor import codes_of, finding_of
from tests.faults.harness.queue import (
    CLAIM,
    FIFO,
    HEAP,
    NAIVE,
    PENDING,
    RING,
    SPLIT,
    STACK,
    STATUS,
    FaultyQueue,
    Use,
)
from tests.servers import connect, wait_until
from tests.tools.repairs import carry_out, plan_repair

pytestmark = pytest.mark.slow

AT_ONCE = DEFAULTS.with_limits(age=Limits(0.0001))
"""Messages are late at once."""
PROVEN = [NAIVE, FIFO, STACK, PENDING, RING, CLAIM, STATUS, SPLIT]


@pytest.fixture
def clock_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database's clock advances by 31 seconds between two samples; no other check runs."""
    monkeypatch.setattr("console.doctor.diagnose.CHECK_GROUPS", ())
    positions, numbers = stopped_consumers._positions, itertools.count(1)

    def shifted_positions(
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

    monkeypatch.setattr(stopped_consumers, "_positions", shifted_positions)


class Examinations:
    """A doctor that looks at one queue, again and again."""

    def __init__(self, client: FaultyQueue, *, waits: bool = False, **seconds: float) -> None:
        self.client = client
        self.history = ConsumptionHistory(waits=waits, **seconds)

    def diagnosis(self, thresholds: Thresholds = AT_ONCE, **more: Any) -> Diagnosis:
        known = {"patience_seconds": 0.1, "consumption": self.history, **more}
        return self.client.diagnosis(thresholds, **known)

    def __call__(self, thresholds: Thresholds = AT_ONCE, **more: Any) -> tuple[list[str], str]:
        """Whether consumers stopped, and why consumption is unknown."""
        found = self.diagnosis(thresholds, **more)
        return [code for code in codes_of(found) if code == "consumer_stopped"], _unknown(found)

    def stopped(self) -> list[Finding]:
        """The findings of consumers, or of a subscriber's, that stopped."""
        found = self.diagnosis()
        assert _unknown(found) or "subscriber_stopped" not in found.unproven
        return [one for one in found.findings if one.code.name.endswith("_stopped")]


def _unknown(diagnosis: Diagnosis) -> str:
    reasons = [why for why in diagnosis.unseen if why.startswith("consumption not known")]
    assert not reasons or diagnosis.verdict != "all clear"
    return "; ".join(reasons)


STOPPED = (["consumer_stopped"], "")
FINE: tuple[list[str], str] = ([], "")


@pytest.mark.usefixtures("clock_steps")
@pytest.mark.parametrize("variant", [*PROVEN, HEAP], ids=str)
def test_two_samples_without_a_pop_between_them_prove_that_consumers_stopped(
    use: Use, variant: Variant
) -> None:
    client = use(variant, 5)
    examine = Examinations(client)
    codes, why = examine()
    assert not codes
    assert "this is the first" in why
    assert examine() == STOPPED or variant is HEAP
    with client.database.transaction("pop") as connection:
        (message,) = pop.pop_many(connection, client.queue, 1)
        # The counters may lag by seconds, and without an order there is no other evidence.
        connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
    if client.queue.finishes:
        client.complete(message)
    wait_until(lambda: examine() == FINE, "the pop is seen")


@pytest.mark.usefixtures("clock_steps")
@pytest.mark.parametrize("pushed", ["now()", "now() - interval '2 days'"])
def test_consumption_stopped_neither_before_the_queue_was_installed_nor_before_the_push(
    use: Use, pushed: LiteralString
) -> None:
    """Done rows from before, such as restored ones, and messages that came long after them."""
    client = use(STATUS, 5)
    message = client.pop()
    assert message is not None
    client.complete(message)
    done, push = "done_at = now() - interval '9 days'", f"queue_date_time = {pushed}"
    client.run(f"UPDATE {{table}} SET {done} WHERE done_at IS NOT NULL")
    client.run(f"UPDATE {{table}} SET {push} WHERE done_at IS NULL")
    (queue,) = (one for one in in_use(client.database) if one.name == client.queue.name)
    examine = Examinations(client)

    examined: list[Diagnosis] = []

    def stopped() -> bool:
        examined.append(client.diagnosis(AT_ONCE, queue, consumption=examine.history))
        return "consumer_stopped" in codes_of(examined[-1])

    # The pop may be counted late, as between two samples.
    wait_until(stopped, "nothing is counted any more")
    found = finding_of(examined[-1], "consumer_stopped")
    assert found.since is not None
    assert queue.installed_at is not None
    assert queue.installed_at <= found.since
    if pushed == "now()":
        waited = timedelta(seconds=float(str(found.evidence["age_seconds"])))
        assert found.since + waited >= datetime.now(UTC)


@pytest.mark.usefixtures("clock_steps")
def test_consumption_of_a_heap_or_a_growing_stack_is_unknown(use: Use) -> None:
    stack = use(STACK, 5)
    of_heap, of_stack = Examinations(use(HEAP, 5)), Examinations(stack)
    for examine in (of_heap, of_stack):
        examine()
    assert stack.push(stack.payload(9)) is not None
    assert "without an order no message is next" in of_heap()[1]
    assert "bottom" in of_stack()[1]


@pytest.mark.usefixtures("clock_steps")
@pytest.mark.parametrize("variant", [FIFO, CLAIM, RING], ids=str)
def test_a_session_that_holds_rows_counts_as_consuming(
    use: Use, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopped_consumers, "_AT_WORK_SECONDS", 0.0)
    client = use(variant, 5)
    examine = Examinations(client)
    with closing(connect(client.url)) as other, other.transaction(force_rollback=True):
        client.popped_by(other)
        for _ in range(3):
            assert examine() == FINE


def test_a_transaction_that_began_or_ended_while_sessions_are_sampled_is_no_consumer_at_work(
    use: Use,
) -> None:
    """Locks and sessions are read one after the other: in between, each is somewhere else."""
    client = use(FIFO, 5)
    with (
        closing(connect(client.url)) as other,
        client.database.transaction("sample", read_only=True) as connection,
    ):
        # From here on, this transaction sees the sessions as they are now: the other one idle.
        connection.exec_driver_sql("SELECT count(*) FROM pg_stat_activity")
        with other.transaction(force_rollback=True):
            client.popped_by(other)
            (seen,) = holders(connection, client.database, [client.queue])[key_of(client.queue)]
    assert (seen.state, seen.transaction_seconds) == ("idle", 0.0)


@pytest.mark.usefixtures("clock_steps")
def test_a_live_owners_claim_counts_as_consuming_and_an_unknown_owners_may(use: Use) -> None:
    client = use(CLAIM, 5)
    examine = Examinations(client)
    with closing(connect(client.url)) as other:
        client.popped_by(other)
        for _ in range(3):
            assert examine() == FINE
    wait_until(lambda: "younger than" in examine()[1], "its owner has left")


@pytest.mark.usefixtures("clock_steps")
def test_queues_within_their_age_limit_or_popped_from_are_not_stopped(use: Use) -> None:
    client = use(FIFO, 5)
    examine = Examinations(client)
    patient = DEFAULTS.with_limits(age=Limits(1800.0))
    for thresholds in (patient, DEFAULTS):
        for _ in range(3):
            assert examine(thresholds) == FINE
    # Nor is one whose pops a sampler has observed.
    rated = replace(client.snapshot(), push_per_second=1.0, pop_per_second=3.0)
    examine = Examinations(client)
    for _ in range(2):
        assert examine(snapshots=[rated]) == FINE


@pytest.mark.usefixtures("clock_steps")
def test_messages_that_became_due_recently_are_not_late(use: Use) -> None:
    client = use(PENDING, 5)
    client.run(
        "UPDATE {table} SET pushed_at = pushed_at - interval '2 days', "
        "due_time = clock_timestamp() - interval '1 minute'"
    )
    examine = Examinations(client)
    wait = DEFAULTS.with_limits(age=Limits(1800.0, None))
    for _ in range(2):
        assert examine(wait) == FINE


def test_a_recent_pop_of_a_queue_that_keeps_rows_proves_consumption(use: Use) -> None:
    client = use(STATUS, 5)
    assert client.pop()
    assert Examinations(client)() == FINE, "something was popped a moment ago"


# ------------------------------------------------------------------------------- several queues


def test_the_doctor_waits_once_for_all_queues_together(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [use(FIFO, 5) for _ in range(6)]
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        time.sleep(seconds)

    clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    monkeypatch.setattr(stopped_consumers, "time", clock)
    diagnoses = diagnose(
        clients[0].database, thresholds_of=lambda _: AT_ONCE, consumption=ConsumptionHistory(0.5)
    )
    assert [codes_of(found).count("consumer_stopped") for found in diagnoses] == [1] * 6
    assert sum(waited) < 2 * 0.5, "each queue was waited for separately"


def test_waiting_checks_of_several_queues_run_concurrently(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ring has an orphan that cannot be proven while a transaction holds a number."""
    clients = [use(RING, 5) for _ in range(4)]
    others = [connect(clients[0].url) for _ in clients]
    all_wait = threading.Barrier(len(clients))
    waited = threading.local()

    def sleep(seconds: float) -> None:
        if not getattr(waited, "once", False):
            waited.once = True
            all_wait.wait(60)  # breaks with an error if one waits after the other
        time.sleep(seconds)

    monkeypatch.setattr(context_module, "sleep", sleep)
    try:
        for client, other in zip(clients, others, strict=True):
            with other.transaction(force_rollback=True):
                client.popped_by(other)
            other.execute("BEGIN")
            client.popped_by(other)
        diagnoses = diagnose(
            clients[0].database,
            [client.queue for client in clients],
            patience_seconds=0.5,
            consumption=ConsumptionHistory(waits=False),
        )
    finally:
        for other in others:
            other.close()
    assert all("may be held by" in "; ".join(diagnosis.unseen) for diagnosis in diagnoses)


@pytest.mark.usefixtures("clock_steps")
def test_a_subscriber_that_stopped_is_named_while_the_other_pops(use: Use) -> None:
    client = ring_client(use)
    examine = Examinations(client)
    client.push_many(client.payloads(*range(5)))
    assert examine.stopped() == []
    assert len(pop_as(client, "billing")) == 5
    client.push_many(client.payloads(*range(5)))
    assert len(pop_as(client, "billing", 2)) == 2
    (one,) = examine.stopped()
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
    assert one.command == f"dbq-console skip '{client.queue.name}' search --to now"
    assert plan_repair(one.repair, client.database).lines
    assert "10 messages" in " ".join(carry_out(one.repair, client.database))
    assert pop_as(client, "search") == []
    assert len(pop_as(client, "billing")) == 3
    assert examine.stopped() == []


@pytest.mark.usefixtures("clock_steps")
@pytest.mark.parametrize("in_hand", ["off", "on"])
def test_a_subscriber_whose_consumer_is_at_work_has_not_stopped(use: Use, in_hand: str) -> None:
    """In an open transaction, or on a claim; another subscriber's work does not count."""
    client = ring_client(use, in_hand=in_hand)
    client.push_many(client.payloads(*range(8)))
    examine = Examinations(client)
    with client.database.transaction("work") as connection:
        pop.pop_many(connection, client.queue.of("search"), 1, "worker")
        assert examine.stopped() == []
        (one,) = examine.stopped()
        assert one.subscriber == "billing"
        assert one.code.severity is Severity.WARNING, "nothing was pushed"
    examine = Examinations(client)
    assert examine.stopped() == []
    assert [one.subscriber for one in examine.stopped()] == [
        *["billing"],
        *(["search"] if in_hand == "off" else []),
    ]


# ---------------------------------------------------------------- a console with another clock


SKEWS = [timedelta(), timedelta(hours=2), timedelta(hours=-2)]
"""How far this console's clock is ahead of the database's."""
AGE = 1800.0


@pytest.fixture(params=SKEWS, ids=str)
def now(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> datetime:
    """The database's time; the server runs on this machine."""
    for module in ("doctor.context", "monitor.sample_queries"):
        monkeypatch.setattr(f"console.{module}.utc", lambda: datetime.now(UTC) + request.param)
    return datetime.now(UTC)


def queue_with_old_messages(use: Use, variant: Variant) -> FaultyQueue:
    """A queue whose messages have been ready for half an hour."""
    client = use(variant, 2)
    for column in ("pushed_at", *(["due_time"] if variant is PENDING else [])):
        ago: LiteralString = "clock_timestamp() - interval '30 minutes'"
        client.run("UPDATE {table} SET {column} = " + ago, column=column)
    return client


def diagnose_now(client: FaultyQueue) -> Diagnosis:
    consumption = ConsumptionHistory(0.05)
    return client.diagnosis(AT_ONCE, consumption=consumption)


def test_since_is_by_the_databases_clock(use: Use, now: datetime) -> None:
    client = queue_with_old_messages(use, FIFO)
    diagnosis = diagnose_now(client)
    aged = finding_of(diagnosis, "limit_reached")
    assert aged.since is not None
    assert abs(aged.since + timedelta(seconds=AGE) - now) < timedelta(minutes=5)
    # The screens continue from there by their own clock, which may show any time.
    store = Store({"a": 1.0}, now=0)
    sample = take_sample(client.database, only=[client.queue])
    store.add_reading("a", Reading("a", (snapshot(sample.queues[0], "a"),)), at=100_000)
    store.add_diagnoses("a", [diagnosis], 100_000, now - diagnosis.clock_ahead)
    (row,) = store.queues(100_000)
    ages = {finding_view.code: finding_view.since_seconds or 0.0 for finding_view in row.findings}
    # Since the push, or since the server started to count, which may be long ago.
    assert 0 < ages["consumer_stopped"] < 2 * AGE
    # Messages are due by the database's clock, whatever the console's says.
    assert "consumer_stopped" in codes_of(diagnose_now(queue_with_old_messages(use, PENDING)))


def failing_consumer(client: FaultyQueue) -> AbstractContextManager[object]:
    """Pops, fails and rolls back, again and again."""

    def consume() -> Iterator[None]:
        with closing(connect(client.url)) as session:
            while True:
                with session.transaction(force_rollback=True):
                    client.popped_by(session)
                session.execute("SELECT pg_stat_force_next_flush()")
                yield

    return at_work(consume(), pause_seconds=0.01)


def sample_of(client: FaultyQueue) -> QueueSample:
    (sampled,) = take_sample(client.database, only=[client.queue]).queues
    assert sampled.row is not None
    return sampled


def pushes_are_counted(client: FaultyQueue) -> None:
    """Wait for it: a session reports what it has done a moment later."""

    def counted() -> bool:
        row = sample_of(client).row
        return row is not None and row.inserted == (row.ready or 0) + (row.scheduled or 0)

    wait_until(counted, "the pushes are counted")


@pytest.mark.usefixtures("clock_steps")
@pytest.mark.parametrize("variant", [NAIVE, FIFO, STACK, PENDING, HEAP], ids=str)
def test_a_consumer_that_loops_on_the_first_message_is_found(use: Use, variant: Variant) -> None:
    """All was clear, and a pop rate was shown that never happened."""
    client = use(variant, 5)
    examine, window = Examinations(client), RateWindow(variant.design.flow, 60.0)
    rates = []

    pushes_are_counted(client)

    def found() -> Diagnosis:
        sampled = sample_of(client)
        rates.append(window.add(sampled.taken_at or 0.0, sampled.row, counts_rows=True))
        return examine.diagnosis()

    with failing_consumer(client):
        diagnosis_ = found()
        for _ in range(20):
            if "head_stuck" in {one.code.name for one in diagnosis_.findings}:
                break
            diagnosis_ = found()
        finding = finding_of(diagnosis_, "head_stuck")
    assert finding.evidence["committed"] == 0
    assert finding.evidence["rolled_back"] > 1  # type: ignore[operator]
    assert rates[-1].pop in {0.0, None}
    assert "consumer_stopped" not in codes_of(diagnosis_)


@pytest.mark.parametrize(
    "variant", [FIFO, STACK, pytest.param(HEAP, marks=pytest.mark.long)], ids=str
)
def test_one_examination_waits_until_it_knows_whether_pops_are_rolled_back(
    use: Use, monkeypatch: pytest.MonkeyPatch, variant: Variant
) -> None:
    """Its early samples see deleted rows counted: no sign of a pop while the same one is first, or,
    without an order, while none is known to be committed."""
    monkeypatch.setattr(stopped_consumers, "COUNTERS_LAG_SECONDS", 2.0)
    client = use(variant, 5)
    pushes_are_counted(client)
    with failing_consumer(client):
        found = Examinations(client, waits=True, idle_for_seconds=6.0).diagnosis()
    finding = finding_of(found, "head_stuck")
    assert finding.evidence["committed"] == 0
    assert finding.summary.startswith("the same message is first") == (variant is FIFO)


@pytest.mark.parametrize("variant", [STACK, HEAP], ids=str)
def test_one_examination_without_an_order_ends_once_a_pop_is_committed(
    use: Use, variant: Variant
) -> None:
    client = use(variant, 5)
    client.push_many(client.payloads(*range(100, 300)))
    pushes_are_counted(client)
    examine = Examinations(client)
    with closing(connect(client.url)) as session:
        examine.diagnosis()
        client.popped_by(session)
        session.execute("SELECT pg_stat_force_next_flush()")
        wait_until(lambda: not examine.diagnosis().pending, "it is known to be fine")


@pytest.mark.usefixtures("clock_steps")
def test_pops_that_are_committed_beside_a_failing_consumer_are_counted(use: Use) -> None:
    client = use(FIFO, 5)
    client.push_many(client.payloads(*range(100, 300)))
    pushes_are_counted(client)
    examine = Examinations(client)
    with closing(connect(client.url)) as head, closing(connect(client.url)) as session:
        for _ in range(2):  # those before the second may be counted late
            examine.diagnosis()
        for _ in range(5):
            with head.transaction(force_rollback=True):
                client.popped_by(head)
                client.popped_by(session)
            for one in (head, session):
                one.execute("SELECT pg_stat_force_next_flush()")

        def seen() -> list[tuple[object, object]]:
            return [
                (finding.evidence["rolled_back"], finding.evidence["committed"])
                for finding in examine.diagnosis().findings
                if finding.code.name == "head_stuck"
            ]

        # A session reports what it has done a moment later.
        wait_until(lambda: seen() == [(5, 5)], "all are counted")
