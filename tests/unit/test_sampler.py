"""The sampler's pauses and readings, with fake samples; the limit of concurrent work."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from queue import SimpleQueue

import pytest

from console.catalog import Queue
from console.engines import Database, Timeouts, open_database
from console.errors import ConnectionFailedError
from console.monitor import sampler
from console.monitor.sample import DatabaseSample, QueueSample
from console.monitor.sampler import (
    IDLE_AFTER_SECONDS,
    IDLE_LONGEST,
    REQUESTED,
    ROUTINE,
    SOON,
    Reading,
    Sampler,
    WorkLimiter,
)
from console.rights import Login
from tests.servers import PATIENCE_SECONDS, wait_until
from tests.unit.test_snapshot import NOTHING, queue

FIFO = QueueSample(queue("fifo"), NOTHING, holders=())
LONG = 60.0
NO_PERMISSIONS = Login(*[False] * 7)


def sample(at: float, *queues: QueueSample, incarnation: str = "one") -> DatabaseSample:
    return DatabaseSample(
        "c", at, 0.01, queues, counts_rows=True, production=False, incarnation=incarnation
    )


class FakeSamples:
    """Stands in for a database: returns or raises `next`."""

    def __init__(self) -> None:
        self.next: DatabaseSample | Exception = sample(0.0, FIFO)
        self.concurrent = 0
        self.most_concurrent = 0
        self.seconds = 0.0
        self.options: dict[str, object] = {}

    def __call__(self, *_: object, **options: object) -> DatabaseSample:
        self.options = options
        self.concurrent += 1
        self.most_concurrent = max(self.most_concurrent, self.concurrent)
        time.sleep(self.seconds)
        self.concurrent -= 1
        if isinstance(self.next, Exception):
            raise self.next
        return self.next


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSamples:
    made = FakeSamples()
    monkeypatch.setattr(sampler, "take_sample", made)
    monkeypatch.setattr(sampler, "probe", lambda *_: None)
    return made


@pytest.fixture
def database() -> Iterator[Database]:
    url = "postgresql+psycopg://nobody@127.0.0.1:1/nothing"
    with closing(open_database(url, timeouts=Timeouts(statement_seconds=1.0))) as database:
        yield database


def test_pauses_grow_while_nothing_changes_and_end_at_the_first_change(
    fake: FakeSamples, database: Database
) -> None:
    at = 0.0
    pauses = []
    idle = Sampler(database, interval_seconds=2.0)
    for _ in range(40):
        fake.next = sample(at, replace(FIFO, row=replace(NOTHING, age_seconds=at)))
        pause = idle.sample().next_seconds
        assert pause is not None
        pauses.append(pause)
        at += pause
    assert pauses[0] == 2.0
    assert pauses == sorted(pauses)
    assert all(pause == 2.0 for pause in pauses[: int(IDLE_AFTER_SECONDS / 2.0)])
    assert pauses[-1] == 2.0 * IDLE_LONGEST
    fake.next = sample(at, replace(FIFO, row=replace(NOTHING, inserted=1)))
    assert idle.sample().next_seconds == 2.0


def test_a_request_ends_the_long_pauses(fake: FakeSamples, database: Database) -> None:
    readings: SimpleQueue[Reading] = SimpleQueue()
    watching = Sampler(database, interval_seconds=LONG)
    fake.next = sample(0.0, FIFO)
    watching.sample()
    fake.next = sample(1000.0, FIFO)
    while (watching.sample().next_seconds or 0.0) < LONG * IDLE_LONGEST:
        pass
    watching.start(readings.put)
    try:
        assert readings.get(timeout=PATIENCE_SECONDS).next_seconds == LONG * IDLE_LONGEST
        watching.sample_now()
        assert readings.get(timeout=PATIENCE_SECONDS).next_seconds == LONG
        watching.interval_seconds = LONG / 2
        assert readings.get(timeout=PATIENCE_SECONDS).next_seconds == LONG / 2
    finally:
        watching.stop(10)
    assert not watching.running


def test_a_failed_sample_keeps_the_last_figures_with_their_time(
    fake: FakeSamples, database: Database
) -> None:
    watching = Sampler(database)
    fake.next = ConnectionFailedError("Could not sample.", why="refused")
    first = watching.sample()
    assert (first.queues, first.taken_at) == ((), None)
    fake.next = sample(100.0, FIFO)
    good = watching.sample()
    assert (good.error, good.taken_at) == (None, 100.0)
    fake.next = ConnectionFailedError("Could not sample.", why="refused")
    pauses = []
    for _ in range(9):
        stale = watching.sample()
        assert stale.error is not None
        assert (stale.queues, stale.taken_at) == (good.queues, 100.0)
        assert stale.retry_seconds == stale.next_seconds
        pauses.append(stale.retry_seconds or 0.0)
    assert 0.7 <= pauses[0] <= 1.3
    assert 20.0 <= pauses[-1] <= 40.0
    fake.next = sample(200.0, FIFO)
    assert watching.sample().error is None
    fake.next = ValueError("a mistake of ours")
    reported = watching.sample().error
    assert reported is not None
    assert "ValueError: a mistake of ours" in reported.why


def test_rates_do_not_span_a_failed_sample_or_a_server_restart(
    fake: FakeSamples, database: Database
) -> None:
    watching = Sampler(database)

    def rate(at: float, inserted: int, incarnation: str) -> float | None:
        row = replace(NOTHING, inserted=inserted, ready=inserted)
        fake.next = sample(at, replace(FIFO, row=row), incarnation=incarnation)
        return watching.sample().queues[0].push_per_second

    assert rate(1.0, 10, "one") is None
    assert rate(2.0, 20, "one") == 10.0
    assert rate(3.0, 900, "two") is None
    assert rate(4.0, 905, "two") == 5.0
    fake.next = ConnectionFailedError("Could not sample.")
    watching.sample()
    assert rate(6.0, 990, "two") is None


def test_only_the_named_queues_are_sampled(fake: FakeSamples, database: Database) -> None:
    Sampler(database).sample()
    assert fake.options["only"] is None
    Sampler(database, only=[FIFO.queue]).sample()
    assert fake.options["only"] == [FIFO.queue]


def test_permissions_are_probed_once_while_server_and_queues_stay_the_same(
    fake: FakeSamples, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed: list[int] = []

    def probe(_: Database, queues: Sequence[Queue]) -> Login:
        probed.append(len(queues))
        return NO_PERMISSIONS

    monkeypatch.setattr(sampler, "probe", probe)
    watching = Sampler(database)
    assert [watching.sample().login for _ in range(3)] == [NO_PERMISSIONS] * 3
    assert probed == [1]
    fake.next = sample(1.0, FIFO, replace(FIFO, queue=replace(FIFO.queue, name="another")))
    watching.sample()
    watching.sample()
    assert probed == [1, 2]
    fake.next = replace(fake.next, incarnation="two")
    watching.sample()
    assert probed == [1, 2, 2]
    fake.next = ConnectionFailedError("Could not sample.", why="refused")
    assert watching.sample().login == NO_PERMISSIONS


def test_rates_use_the_time_of_each_queue_s_own_statement(
    fake: FakeSamples, database: Database
) -> None:
    watching = Sampler(database)
    for at, own, inserted in ((10.0, 5.0, 0), (11.0, 9.0, 8)):
        row = replace(NOTHING, inserted=inserted, ready=inserted)
        fake.next = sample(at, replace(FIFO, row=row, taken_at=own))
        (snapshot,) = watching.sample().queues
    assert snapshot.push_per_second == 2.0


def test_samples_never_overlap_and_stop_ends_them(fake: FakeSamples, database: Database) -> None:
    readings: SimpleQueue[Reading] = SimpleQueue()
    watching = Sampler(database, interval_seconds=0.0)
    fake.seconds = 0.02
    watching.start(readings.put)
    for _ in range(10):
        watching.sample_now()
        readings.get(timeout=PATIENCE_SECONDS)
    watching.stop(10)
    assert not watching.running
    assert fake.most_concurrent == 1
    assert not [t for t in threading.enumerate() if t.name.startswith("sampler")]


LEASE = 3600.0


def never() -> bool:
    return False


class Others:
    """Threads that each request a turn, and those that got one."""

    def __init__(self, turns: WorkLimiter) -> None:
        self._turns = turns
        self.came: list[int] = []
        self._leave = threading.Event()
        self._threads: list[threading.Thread] = []

    def request(self, why: int = ROUTINE) -> None:
        def work() -> None:
            with self._turns.turn(why, self._leave.is_set):
                self.came.append(why)
                self._leave.wait()

        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()

    def end(self) -> None:
        self._leave.set()
        self._turns.wake()
        for thread in self._threads:
            thread.join()


@contextmanager
def others(turns: WorkLimiter) -> Iterator[Others]:
    found = Others(turns)
    try:
        yield found
    finally:
        found.end()


def waiting(turns: WorkLimiter, number: int) -> bool:
    return turns._waiting.total() == number


def test_no_more_than_the_limit_work_at_a_time() -> None:
    turns = WorkLimiter(2, LEASE)
    with others(turns) as found:
        for _ in range(5):
            found.request()
        wait_until(lambda: len(found.came) == 2 and waiting(turns, 3), "two work, three wait")
        with turns.turn(REQUESTED, lambda: True):  # cancelled: it does not wait
            assert len(found.came) == 2


def test_work_longer_than_its_lease_does_not_block_others() -> None:
    turns = WorkLimiter(1, 0.0)
    with others(turns) as found:
        for _ in range(5):
            found.request()
        wait_until(lambda: len(found.came) == 5, "none waits for another")


@pytest.mark.parametrize(("first", "urgent"), [(ROUTINE, SOON), (SOON, REQUESTED)])
def test_more_urgent_work_goes_first(first: int, urgent: int) -> None:
    turns = WorkLimiter(1, LEASE)
    with others(turns) as found:
        with ExitStack() as mine:
            mine.enter_context(turns.turn(ROUTINE, never))
            for number, why in enumerate((first, urgent), 1):
                found.request(why)
                wait_until(partial(waiting, turns, number), "it waits")
            assert found.came == []
        wait_until(lambda: bool(found.came), "one had its turn")
        assert found.came == [urgent]


def test_routine_work_rests_after_work_but_requested_work_does_not() -> None:
    turns = WorkLimiter(1, LEASE, rest=1e9)
    with turns.turn(ROUTINE, never):
        sum(range(100_000))
    with others(turns) as found:
        found.request(ROUTINE)
        wait_until(lambda: waiting(turns, 1), "it rests")
        assert found.came == []
        found.request(REQUESTED)
        wait_until(lambda: found.came == [REQUESTED], "what is asked does not rest")
