"""The watcher: when it diagnoses which queues, and what it delivers."""

import re
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from console.actions.install import install
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
from tests.tui.feeds import FakeFeed, queue

LOST = ConnectionFailedError("Could not look.", why="connection refused")


def a_queue(name: str) -> Queue:
    fifo = design("fifo", "postgresql")
    return installed_queue("public", name, fifo, fifo.complete_options({}))


class Surgery(Doctor):
    """A doctor whose diagnoses the test sees and can hold up."""

    def __init__(self, names: Sequence[str], **options: Any) -> None:
        super().__init__(open_database("postgresql+psycopg://nobody@127.0.0.1:1/none"))
        self.names = list(names)
        self.found: tuple[Finding, ...] = ()
        self.looks: list[list[str]] = []
        self.told: list[DoctorUpdate] = []
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
            on_update=self._hear,
            **{"every_seconds": 3600.0, "rest": 0.0, **options},
        )
        self.watcher.start()

    def __enter__(self) -> "Surgery":
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
        names = [one.name for one in queues]
        with self.changed:
            self.looks.append(names)
            self.changed.notify_all()
        assert self.go_on.wait(20)
        if self.errors:
            raise self.errors.pop(0)
        return [Diagnosis(one, self.found) for one in queues]

    def _hear(self, told: DoctorUpdate) -> None:
        with self.changed:
            self.told.append(told)
            self.changed.notify_all()

    def wait(self, what: str, count: int) -> None:
        """Until there are this many diagnoses, or updates."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(getattr(self, what)) >= count, 20), what

    def see(self, *snapshots: QueueSnapshot) -> None:
        """The sampler has a reading."""
        self.feed.deliver(Reading("here", snapshots))


def test_it_starts_with_the_first_reading_and_the_worst_queues() -> None:
    with Surgery(["a", "b", "c"]) as surgery:
        surgery.feed.deliver(Reading("here", error=LOST))
        surgery.watcher.request_diagnosis()
        assert surgery.looks == []
        surgery.see(queue("a"), queue("b"), queue("c", errors=1))
        surgery.wait("told", 2)
        assert surgery.looks == [["c", "a", "b"]]
        assert [len(one.diagnoses) for one in surgery.told] == [3, 0]
        assert surgery.told[1].next_seconds is not None
        assert surgery.told[1].next_seconds > 3000
        assert [one.whole_round for one in surgery.told] == [False, True]
        assert [len(one.queues) for one in surgery.readings] == [0, 3]


def test_many_queues_come_chunk_by_chunk_and_requests_go_first() -> None:
    names = [f"q{number:03}" for number in range(CHUNK * 3)]
    with Surgery(names) as surgery:
        surgery.go_on.clear()
        surgery.see()
        surgery.wait("looks", 1)
        surgery.watcher.request_diagnosis(("public", names[-1]))
        surgery.go_on.set()
        surgery.wait("told", 5)
        assert surgery.looks[1] == [names[-1]]
        assert [len(one) for one in surgery.looks] == [CHUNK, 1, CHUNK, CHUNK]


def test_one_diagnosis_at_a_time_however_many_requests() -> None:
    with Surgery(["a", "b"]) as surgery:
        surgery.go_on.clear()
        surgery.see()
        surgery.wait("looks", 1)
        for _ in range(5):
            surgery.watcher.request_diagnosis(("public", "b"))
            surgery.watcher.request_diagnosis()
        surgery.go_on.set()
        surgery.wait("told", 5)
        assert surgery.looks[1:] in ([["b"], ["a", "b"]], [["a", "b"]])


def test_prioritized_queues_are_diagnosed_before_the_next_round() -> None:
    with Surgery(["a", "b"]) as surgery:
        surgery.see()
        surgery.wait("told", 2)
        surgery.watcher.prioritize([("public", "b")])
        surgery.wait("looks", 2)
        assert surgery.looks[1] == ["b"]


def test_only_the_sampler_reconnects_and_then_a_new_round_starts() -> None:
    with Surgery(["a", "b"]) as surgery:
        surgery.see()
        surgery.wait("told", 2)
        surgery.feed.deliver(Reading("here", error=LOST))
        surgery.watcher.request_diagnosis(("public", "a"))
        surgery.watcher.request_diagnosis()
        assert len(surgery.looks) == 1
        surgery.see()
        surgery.wait("looks", 2)
        assert surgery.looks[1] == ["a", "b"]


def test_a_failed_diagnosis_is_reported_and_retried() -> None:
    with Surgery(["a"]) as surgery:
        surgery.errors = [BusyError("Could not look.", why="too slow"), RuntimeError("a mistake")]
        surgery.see()
        surgery.wait("told", 1)
        assert isinstance(surgery.told[0].error, BusyError)
        surgery.watcher.request_diagnosis()
        surgery.wait("told", 2)
        assert surgery.told[1].error is not None
        assert "a mistake" in surgery.told[1].error.why
        surgery.watcher.request_diagnosis()
        surgery.wait("told", 3)
        assert surgery.told[2].error is None


def test_quoted_errors_are_masked_as_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    masks = [re.compile(r"\w+@x\.org")]
    seen: dict[str, object] = {}

    def nothing(*_: object, **options: object) -> list[Diagnosis]:
        seen.update(options)
        return []

    monkeypatch.setattr(diagnose, "diagnose", nothing)
    with Surgery(["a"]) as surgery:
        Doctor(surgery.database, masks=masks).diagnose(surgery.queues(), ())
    assert seen["masks"] == masks


def test_a_round_that_failed_after_long_rests_as_one_that_went_well() -> None:
    with Surgery(["a"], rest=1e9) as surgery:
        surgery.errors = [BusyError("Could not look.", why="too slow")]
        surgery.see()
        surgery.wait("told", 1)
        # A request does not wait.
        surgery.watcher.request_diagnosis()
        surgery.wait("told", 3)
        assert len(surgery.looks) == 2


def test_after_stop_nothing_is_delivered() -> None:
    with ExitStack() as stack:
        surgery = stack.enter_context(Surgery(["a"]))
        surgery.go_on.clear()
        surgery.see()
        surgery.wait("looks", 1)
        surgery.watcher.stop()
        surgery.go_on.set()
        surgery.watcher.stop(timeout_seconds=20)
        assert surgery.told == []


def a_torn_ring(url: str) -> None:
    """A ring with an orphan and a hole: a pop and a push that were rolled back."""
    database = open_database(url)
    ring = design("ring", "postgresql")
    torn = installed_queue("public", "torn", ring, ring.complete_options({"size": "50"}))
    install(database, torn)
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


def test_two_doctors_at_one_ring_do_not_disturb_each_others_proofs(database_url: str) -> None:
    a_torn_ring(database_url)
    told: list[DoctorUpdate] = []
    enough = threading.Event()

    def hear(one: DoctorUpdate) -> None:
        told.append(one)
        if sum(bool(it.diagnoses) for it in told) >= 6:
            enough.set()

    feeds = [FakeFeed(), FakeFeed()]
    databases = [open_database(database_url) for _ in feeds]
    watchers = [
        Watcher(
            feed,
            Doctor(database),
            on_reading=lambda _: None,
            on_update=hear,
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
    for diagnosis in (it for one in told for it in one.diagnoses):
        assert diagnosis.unseen == ()
        assert [it.code.name for it in diagnosis.findings][:1] == ["orphan"]
    assert not any(one.error for one in told)
    for database in databases:
        database.close()
