"""Silent consumers: named when they stop, and not while they work."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from console.doctor.finding import Diagnosis, Finding
from console.doctor.silent_consumers import SILENT, ConsumerHistory
from console.doctor.stopped_consumers import STOPPED, ConsumptionHistory
from console.monitor.consumers import Consumers, disconnected, latest, recorded
from console.monitor.consumers import rows as rows_of
from console.monitor.figures import key_of
from console.monitor.limits import DEFAULTS, Limits
from console.monitor.recording.recorder import Recorder
from console.monitor.recording.segments import CONSUMERS
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.test_consumers import program
from tests.faults.queue_faults import CLAIM, STATUS, diagnosis, filled
from tests.faults.test_doctor_consumption import steps  # noqa: F401  # a fixture
from tests.servers import wait_until

AT_ONCE = replace(DEFAULTS, age_seconds=Limits(0.0001))
REGULAR = 7
"""Samples with pops before a consumer stops."""


class Crew:
    """Consumers of one queue, and the doctor's history of them."""

    def __init__(self, client: Client, workers: dict[str, Client], memory: ConsumerHistory) -> None:
        self.client = client
        self.workers = workers
        self.memory = memory
        self.consumption = ConsumptionHistory(0.0, waits=False)
        self.figures = client.snapshot()

    def work(self, *names: str) -> list[Callable[[], object]]:
        """Each takes one; how they finish it."""
        ends: list[Callable[[], object]] = []
        for name in names:
            (message,) = self.workers[name].pop_many(1, name)
            ends.append(lambda w=self.workers[name], m=message: w.complete(m))  # type: ignore[misc]
        return ends

    def see(self, *at_work: str, late: bool = True) -> tuple[Finding | None, Consumers]:
        """One sample of the consumers while these are at work."""
        ends = self.work(*at_work)
        queue, figures = self.client.queue, self.figures
        key = key_of(queue)
        found, why_not = self.memory.update([queue], {key: figures}, {key} if late else set())
        assert not why_not
        for end in ends:
            end()
        return self.memory.silent(queue, figures, 0.0), found[key]

    def examined(self, *at_work: str) -> Diagnosis:
        """A whole diagnosis while these are at work."""
        ends = self.work(*at_work)
        client, seen = self.client, {"consumption": self.consumption, "consumers": self.memory}
        found = diagnosis(client.database, client.queue, AT_ONCE, **seen)
        for end in ends:
            end()
        return found


def silent(found: Diagnosis) -> Finding | None:
    return next((one for one in found.findings if one.code is SILENT), None)


@pytest.fixture(params=[CLAIM, pytest.param(STATUS, marks=pytest.mark.long)], ids=str)
def crew(use: Use, request: pytest.FixtureRequest) -> Iterator[Crew]:
    """Two that pop regularly, with a backlog that waits all the time."""
    client = filled(use, request.param, 200)
    with ExitStack() as all_of_them:
        names = ("ada", "bob", "cleo")
        workers = {n: all_of_them.enter_context(program(client, f"{n} program")) for n in names}
        yield Crew(client, workers, ConsumerHistory(client.database, apart_seconds=0.0))


def until_silent(crew: Crew, *at_work: str, late: bool = True) -> Finding | None:
    for _ in range(2 * REGULAR):
        found, _there = crew.see(*at_work, late=late)
        if found:
            return found
    return None


def test_a_silent_consumer_is_named_until_it_is_back(crew: Crew) -> None:
    for _ in range(REGULAR):
        assert crew.see("ada", "bob")[0] is None
    assert until_silent(crew, "bob"), "nobody told of it"
    found = silent(crew.examined("bob"))
    assert found is not None
    assert found.since is not None
    evidence = found.as_json()["evidence"]
    assert isinstance(evidence, dict)
    (one,) = evidence["consumers"]
    assert (one["name"], one["program"], one["sessions"]) == ("ada", "ada program", 1)
    assert one["popped_in_looks"] >= 5
    assert "ada popped regularly" in found.summary
    assert "dbq-console consumers" in found.judgement
    assert silent(crew.examined("ada", "bob")) is None, "it is back"


def regular(crew: Crew, *at_work: str) -> None:
    """A new history, in which these have popped regularly."""
    crew.memory = ConsumerHistory(crew.client.database, apart_seconds=0.0)
    for _ in range(REGULAR):
        crew.see(*at_work)


def test_consumers_not_needed_replaced_or_at_work_are_not_named(crew: Crew) -> None:
    regular(crew, "ada", "bob")
    assert until_silent(crew, "bob", late=False) is None, "nothing waits for too long"
    regular(crew, "ada", "bob")
    assert until_silent(crew, "bob", "cleo") is None, "another has its place"
    regular(crew, "ada", "bob")
    (end,) = crew.work("ada")
    assert until_silent(crew, "bob") is None, "it works on a message"
    end()


@pytest.mark.usefixtures("steps")
def test_a_new_doctor_reads_the_recording(crew: Crew, tmp_path: Path) -> None:
    now, queue = datetime.now(UTC), crew.client.queue
    recorder = Recorder(tmp_path, "here")
    looks = [("ada", "bob")] * REGULAR + [("bob",)] * REGULAR * 2
    for number, at_work in enumerate(looks):
        at = now - timedelta(seconds=30 * (len(looks) - number))
        recorder.add(CONSUMERS, rows_of(crew.see(*at_work)[1], at, late=5))
    recorder.close()
    rows = recorded(tmp_path, "here", queue.schema, queue.name, datetime.now(UTC))
    crew.memory = ConsumerHistory(crew.client.database, lambda _: rows)
    found = silent(crew.examined("bob"))
    assert found is not None
    assert "ada" in found.summary
    # If all have stopped, the finding names them.
    stopped = [one for _ in range(3) for one in crew.examined().findings if one.code is STOPPED]
    named = stopped[-1].evidence["consumers"]
    assert isinstance(named, list)
    assert [who.split()[0] for who in named] == ["bob", "ada"]
    assert "who popped last: bob" in stopped[-1].cause
    # A disconnected consumer is remembered for a day.
    seen = latest(rows)
    left = {one.name: one for one in disconnected(seen, ())}
    assert (left["ada"].program, left["ada"].does) == ("ada program", ("pop",))
    assert left["ada"].last_seen == rows[-1]["at"]
    assert not disconnected(seen, crew.see("bob")[1].consumers), "both are connected"
    crew.workers["ada"].database.close()

    def absent() -> list[str | None]:
        there = crew.see("bob")[1].consumers
        gone = [*disconnected(seen, there), *(one for one in there if one.sessions == 0)]
        return [one.name for one in gone]

    # A client that has closed does not wait for its session.
    wait_until(lambda: absent() == ["ada"], "only ada is disconnected")
