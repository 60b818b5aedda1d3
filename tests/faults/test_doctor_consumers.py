"""Silent consumers are reported when they stop, and not while they work."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from console.doctor.finding import Diagnosis, Finding
from console.doctor.silent_consumers import SILENT, ConsumerHistory
from console.doctor.stopped_consumers import STOPPED, ConsumptionHistory
from console.features.history.consumers import recorded
from console.features.history.consumers import rows as rows_of
from console.features.history.recorder import Recorder
from console.features.history.segments import CONSUMERS
from console.monitor.consumers import Consumers, disconnected, latest
from console.monitor.limits import DEFAULTS, Limits
from console.monitor.rates import key_of
from tests.contract.client import Client
from tests.contract.test_consumers import program
from tests.faults.harness.queue import CLAIM, STATUS, FaultyQueue, Use
from tests.faults.test_doctor_consumption import clock_steps  # noqa: F401  # a fixture
from tests.servers import wait_until

AT_ONCE = DEFAULTS.with_limits(age=Limits(0.0001))
REGULAR_SAMPLES = 6
"""Samples with pops before a consumer stops; with fewer nothing is known of it."""


class Workers:
    """Consumers of one queue, and the doctor's history of them."""

    def __init__(
        self, client: FaultyQueue, clients: dict[str, Client], history: ConsumerHistory
    ) -> None:
        self.client = client
        self.clients = clients
        self.history = history
        self.consumption = ConsumptionHistory(0.0, waits=False)
        self.figures = client.snapshot()

    def pop_one_each(self, *names: str) -> list[Callable[[], object]]:
        """Each pops one message; the calls that complete these."""
        completions: list[Callable[[], object]] = []
        for name in names:
            (message,) = self.clients[name].pop_many(1, name)
            completions.append(lambda w=self.clients[name], m=message: w.complete(m))  # type: ignore[misc]
        return completions

    def sample(self, *working: str, late: bool = True) -> tuple[Finding | None, Consumers]:
        """Take one sample of the consumers while these work."""
        completions = self.pop_one_each(*working)
        queue, figures = self.client.queue, self.figures
        key = key_of(queue)
        found, why_not = self.history.update([queue], {key: figures}, {key} if late else set())
        assert not why_not
        for complete in completions:
            complete()
        return self.history.silent(queue, figures, 0.0), found[key]

    def diagnose(self, *working: str) -> Diagnosis:
        """A complete diagnosis while these work."""
        completions = self.pop_one_each(*working)
        memory: dict[str, Any] = {"consumption": self.consumption, "consumers": self.history}
        found = self.client.diagnosis(AT_ONCE, **memory)
        for complete in completions:
            complete()
        return found


def silent_finding(found: Diagnosis) -> Finding | None:
    return next((one for one in found.findings if one.code is SILENT), None)


@pytest.fixture(params=[CLAIM, pytest.param(STATUS, marks=pytest.mark.long)], ids=str)
def workers(use: Use, request: pytest.FixtureRequest) -> Iterator[Workers]:
    """Consumers of a queue that always has a backlog."""
    client = use(request.param, 200)
    with ExitStack() as stack:
        names = ("ada", "bob", "cleo")
        clients = {n: stack.enter_context(program(client, f"{n} program")) for n in names}
        yield Workers(client, clients, ConsumerHistory(client.database, apart_seconds=0.0))


def sample_until_silent(workers: Workers, *working: str, late: bool = True) -> Finding | None:
    for _ in range(2 * REGULAR_SAMPLES):
        found, _consumers = workers.sample(*working, late=late)
        if found:
            return found
    return None


def test_a_silent_consumer_is_reported_until_it_is_back(workers: Workers) -> None:
    for _ in range(REGULAR_SAMPLES):
        assert workers.sample("ada", "bob")[0] is None
    assert sample_until_silent(workers, "bob"), "the silent consumer is not found"
    found = silent_finding(workers.diagnose("bob"))
    assert found is not None
    assert found.since is not None
    evidence = found.as_json()["evidence"]
    assert isinstance(evidence, dict)
    (one,) = evidence["consumers"]
    assert (one["name"], one["program"], one["sessions"]) == ("ada", "ada program", 1)
    assert one["popped_in_looks"] >= 5
    assert "ada popped regularly" in found.summary
    assert "at least one is connected" in found.cause
    assert "dbq-console consumers" in found.judgement
    assert silent_finding(workers.diagnose("ada", "bob")) is None, "it is back"


def record_regular_pops(workers: Workers, *working: str, samples: int = REGULAR_SAMPLES) -> None:
    """Start a new history in which these pop regularly."""
    workers.history = ConsumerHistory(workers.client.database, apart_seconds=0.0)
    for _ in range(samples):
        workers.sample(*working)


def test_unneeded_replaced_or_working_consumers_are_not_reported(workers: Workers) -> None:
    record_regular_pops(workers, "ada", "bob")
    assert sample_until_silent(workers, "bob", late=False) is None, "nothing waits too long"
    record_regular_pops(workers, "ada", "bob", samples=REGULAR_SAMPLES - 1)
    assert sample_until_silent(workers, "bob") is None, "it popped too seldom to be missed"
    record_regular_pops(workers, "ada", "bob")
    assert sample_until_silent(workers, "bob", "cleo") is None, "another has replaced it"
    record_regular_pops(workers, "ada", "bob")
    (complete,) = workers.pop_one_each("ada")
    assert sample_until_silent(workers, "bob") is None, "it works on a message"
    complete()


@pytest.mark.usefixtures("clock_steps")
def test_a_new_doctor_knows_consumers_from_the_recording(workers: Workers, tmp_path: Path) -> None:
    now, queue = datetime.now(UTC), workers.client.queue
    recorder = Recorder(tmp_path, "here")
    samples = [("ada", "bob")] * REGULAR_SAMPLES + [("bob",)] * REGULAR_SAMPLES * 2
    for number, working in enumerate(samples):
        at = now - timedelta(seconds=30 * (len(samples) - number))
        recorder.add(CONSUMERS, rows_of(workers.sample(*working)[1], at, late=5))
    recorder.close()
    rows = recorded(tmp_path, "here", queue.schema, queue.name, datetime.now(UTC))
    workers.history = ConsumerHistory(workers.client.database, lambda _: rows)
    found = silent_finding(workers.diagnose("bob"))
    assert found is not None
    assert "ada" in found.summary
    # If all have stopped, the finding names them.
    stopped = [one for _ in range(3) for one in workers.diagnose().findings if one.code is STOPPED]
    named = stopped[-1].evidence["consumers"]
    assert isinstance(named, list)
    assert [consumer.split()[0] for consumer in named] == ["bob", "ada"]
    assert "who popped last: bob" in stopped[-1].cause
    # A disconnected consumer is remembered for a day.
    remembered = latest(rows)
    left = {one.name: one for one in disconnected(remembered, ())}
    assert (left["ada"].program, left["ada"].does) == ("ada program", ("pop",))
    assert left["ada"].last_seen == rows[-1].at
    assert not disconnected(remembered, workers.sample("bob")[1].consumers), "both are connected"
    workers.clients["ada"].database.close()

    def disconnected_names() -> list[str | None]:
        connected = workers.sample("bob")[1].consumers
        missing = [
            *disconnected(remembered, connected),
            *(one for one in connected if one.sessions == 0),
        ]
        return [one.name for one in missing]

    # A closed client does not wait for the end of its session.
    wait_until(lambda: disconnected_names() == ["ada"], "only ada is disconnected")
