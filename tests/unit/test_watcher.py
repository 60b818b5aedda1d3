"""The watcher: when it diagnoses which queues, and what it delivers."""

import re
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from console.actions.pop import pop_many
from console.actions.push import push_many
from console.catalog import Queue, installed_queue
from console.designs import design
from console.doctor import diagnose
from console.doctor.finding import Diagnosis, Finding
from console.doctor.watcher import CHUNK, Doctor, DoctorUpdate, Watcher
from console.engines import open_database
from console.errors import BusyError, ConnectionFailedError
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot
from tests.tools.queues import install_queue
from tests.tui.feeds import FakeFeed, queue

LOST = ConnectionFailedError("Could not look.", why="connection refused")


def a_queue(name: str) -> Queue:
    fifo = design("fifo", "postgresql")
    return installed_queue("public", name, fifo, fifo.complete_options({}))


class ObservedDoctor(Doctor):
    """A doctor whose diagnoses the test observes and can delay."""

    def __init__(self, names: Sequence[str], **options: Any) -> None:
        super().__init__(open_database("postgresql+psycopg://nobody@127.0.0.1:1/none"))
        self.names = list(names)
        self.found: tuple[Finding, ...] = ()
        self.diagnosed: list[list[str]] = []
        self.updates: list[DoctorUpdate] = []
        self.readings: list[Reading] = []
        self.errors: list[Exception] = []
        self.changed = threading.Condition()
        self.go_on = threading.Event()
        self.go_on.set()
        self.feed = FakeFeed("here")
        self.watcher = Watcher(
            self.feed,
            self,
            on_reading=self.readings.append,
            on_update=self._on_update,
            **{"every_seconds": 3600.0, "rest": 0.0, **options},
        )
        self.watcher.start()

    def __enter__(self) -> "ObservedDoctor":
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self.watcher.stop()
        self.database.close()

    def queues(self) -> list[Queue]:
        return [a_queue(name) for name in self.names]

    def diagnose(
        self,
        queues: Sequence[Queue],
        snapshots: Sequence[QueueSnapshot],  # noqa: ARG002
    ) -> list[Diagnosis]:
        names = [queue.name for queue in queues]
        with self.changed:
            self.diagnosed.append(names)
            self.changed.notify_all()
        assert self.go_on.wait(20)
        if self.errors:
            raise self.errors.pop(0)
        return [Diagnosis(queue, self.found) for queue in queues]

    def _on_update(self, update: DoctorUpdate) -> None:
        with self.changed:
            self.updates.append(update)
            self.changed.notify_all()

    def wait(self, what: str, count: int) -> None:
        """Until there are this many diagnoses, or updates."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(getattr(self, what)) >= count, 20), what

    def deliver_reading(self, *snapshots: QueueSnapshot) -> None:
        """The sampler has a reading."""
        self.feed.deliver(Reading("here", snapshots))


def test_the_first_round_starts_with_the_first_reading_and_the_worst_queues() -> None:
    with ObservedDoctor(["a", "b", "c"]) as doctor:
        doctor.feed.deliver(Reading("here", error=LOST))
        doctor.watcher.request_diagnosis()
        assert doctor.diagnosed == []
        doctor.deliver_reading(queue("a"), queue("b"), queue("c", errors=1))
        doctor.wait("updates", 2)
        assert doctor.diagnosed == [["c", "a", "b"]]
        assert [len(update.diagnoses) for update in doctor.updates] == [3, 0]
        assert doctor.updates[1].next_seconds is not None
        assert doctor.updates[1].next_seconds > 3000
        assert [update.complete_round for update in doctor.updates] == [False, True]
        assert [len(reading.queues) for reading in doctor.readings] == [0, 3]


def test_many_queues_are_diagnosed_in_chunks_and_requests_go_first() -> None:
    names = [f"q{number:03}" for number in range(CHUNK * 3)]
    with ObservedDoctor(names) as doctor:
        doctor.go_on.clear()
        doctor.deliver_reading()
        doctor.wait("diagnosed", 1)
        doctor.watcher.request_diagnosis(("public", names[-1]))
        doctor.go_on.set()
        doctor.wait("updates", 5)
        assert doctor.diagnosed[1] == [names[-1]]
        assert [len(one) for one in doctor.diagnosed] == [CHUNK, 1, CHUNK, CHUNK]


def test_diagnoses_run_one_at_a_time_however_many_requests() -> None:
    with ObservedDoctor(["a", "b"]) as doctor:
        doctor.go_on.clear()
        doctor.deliver_reading()
        doctor.wait("diagnosed", 1)
        for _ in range(5):
            doctor.watcher.request_diagnosis(("public", "b"))
            doctor.watcher.request_diagnosis()
        doctor.go_on.set()
        doctor.wait("updates", 5)
        assert doctor.diagnosed[1:] in ([["b"], ["a", "b"]], [["a", "b"]])


def test_prioritized_queues_are_diagnosed_before_the_next_round() -> None:
    with ObservedDoctor(["a", "b"]) as doctor:
        doctor.deliver_reading()
        doctor.wait("updates", 2)
        doctor.watcher.prioritize([("public", "b")])
        doctor.wait("diagnosed", 2)
        assert doctor.diagnosed[1] == ["b"]


def test_only_the_sampler_reconnects_and_then_a_new_round_starts() -> None:
    with ObservedDoctor(["a", "b"]) as doctor:
        doctor.deliver_reading()
        doctor.wait("updates", 2)
        doctor.feed.deliver(Reading("here", error=LOST))
        doctor.watcher.request_diagnosis(("public", "a"))
        doctor.watcher.request_diagnosis()
        assert len(doctor.diagnosed) == 1
        doctor.deliver_reading()
        doctor.wait("diagnosed", 2)
        assert doctor.diagnosed[1] == ["a", "b"]


def test_a_server_that_is_back_before_a_sample_missed_it_is_examined_at_once() -> None:
    with ObservedDoctor(["a"]) as watched:
        watched.feed.deliver(Reading("here", incarnation="started at 1"))
        watched.wait("diagnosed", 1)
        watched.feed.deliver(Reading("here", incarnation="started at 1"))
        watched.feed.deliver(Reading("here", error=BusyError("Locked.")))
        assert len(watched.diagnosed) == 1
        watched.feed.deliver(Reading("here", incarnation="started at 2"))
        watched.wait("diagnosed", 2)


def test_a_failed_diagnosis_is_reported_and_retried() -> None:
    with ObservedDoctor(["a"]) as doctor:
        doctor.errors = [BusyError("Could not look.", why="too slow"), RuntimeError("a mistake")]
        doctor.deliver_reading()
        doctor.wait("updates", 1)
        assert isinstance(doctor.updates[0].error, BusyError)
        doctor.watcher.request_diagnosis()
        doctor.wait("updates", 2)
        assert doctor.updates[1].error is not None
        assert "a mistake" in doctor.updates[1].error.why
        doctor.watcher.request_diagnosis()
        doctor.wait("updates", 3)
        assert doctor.updates[2].error is None


def test_quoted_errors_are_masked_as_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = [re.compile(r"\w+@x\.org")]
    passed: dict[str, object] = {}

    def nothing(*_: object, **options: object) -> list[Diagnosis]:
        passed.update(options)
        return []

    monkeypatch.setattr(diagnose, "diagnose", nothing)
    with ObservedDoctor(["a"]) as doctor:
        Doctor(doctor.database, masks=masks).diagnose(doctor.queues(), ())
    assert passed["masks"] == masks


def test_a_failed_round_is_followed_by_the_same_rest_as_a_successful_one() -> None:
    with ObservedDoctor(["a"], rest=1e9) as doctor:
        doctor.errors = [BusyError("Could not look.", why="too slow")]
        doctor.deliver_reading()
        doctor.wait("updates", 1)
        # A request does not wait.
        doctor.watcher.request_diagnosis()
        doctor.wait("updates", 3)
        assert len(doctor.diagnosed) == 2


def test_after_stop_nothing_is_delivered() -> None:
    with ExitStack() as stack:
        doctor = stack.enter_context(ObservedDoctor(["a"]))
        doctor.go_on.clear()
        doctor.deliver_reading()
        doctor.wait("diagnosed", 1)
        doctor.watcher.stop()
        doctor.go_on.set()
        doctor.watcher.stop(timeout_seconds=20)
        assert doctor.updates == []


def a_torn_ring(url: str) -> None:
    """A ring with an orphan and a hole: a pop and a push that were rolled back."""
    database = open_database(url)
    torn = install_queue(database, "torn", "ring", size="50")
    with database.transaction("push") as connection:
        push_many(connection, torn, [str(number) for number in range(10)])
    with database.session("lose numbers") as session:
        for lose in (
            lambda connection: pop_many(connection, torn, 2),
            lambda connection: push_many(connection, torn, ["x", "y"]),
        ):
            with suppress(_LostError), session.transaction("lose") as connection:
                lose(connection)
                raise _LostError
    database.close()


class _LostError(Exception):
    """A caller that rolls back."""


def test_two_doctors_of_one_ring_do_not_disturb_each_other_s_proofs(database_url: str) -> None:
    a_torn_ring(database_url)
    updates: list[DoctorUpdate] = []
    enough = threading.Event()

    def on_update(update: DoctorUpdate) -> None:
        updates.append(update)
        if sum(bool(it.diagnoses) for it in updates) >= 6:
            enough.set()

    feeds = [FakeFeed(), FakeFeed()]
    databases = [open_database(database_url) for _ in feeds]
    watchers = [
        Watcher(
            feed,
            Doctor(database),
            on_reading=lambda _: None,
            on_update=on_update,
            every_seconds=0.0,
            rest=0.0,
        )
        for feed, database in zip(feeds, databases, strict=True)
    ]
    for watcher, feed in zip(watchers, feeds, strict=True):
        watcher.start()
        feed.give(queue("torn", "ring"))
    assert enough.wait(60)
    for watcher in watchers:
        watcher.stop(timeout_seconds=20)
    for diagnosis in (it for update in updates for it in update.diagnoses):
        assert diagnosis.unseen == ()
        assert [it.code.name for it in diagnosis.findings][:1] == ["orphan"]
    assert not any(update.error for update in updates)
    for database in databases:
        database.close()
