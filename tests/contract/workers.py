"""Producers and consumers in separate processes, each with its own connection."""

import random
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as PipeEnd
from multiprocessing.synchronize import Event
from typing import Self

from console.actions import pop, push
from console.actions.pop import PoppedMessage
from console.catalog import Queue
from console.engines import Database, Timeouts, open_database
from tests.contract.child_processes import forking_with, killed
from tests.contract.client import call_pop
from tests.contract.messages import message

_FORKING = forking_with(__name__)
_PATIENCE_SECONDS = 120.0
_TIMEOUTS = Timeouts(statement_seconds=60.0, lock_seconds=60.0)


@dataclass(frozen=True)
class Produce:
    """Push `count` messages, each once, repeating what is rolled back."""

    url: str
    queue: Queue
    producer: int
    count: int
    batch: int = 1
    """1: push; more: push_many."""
    rollbacks: float = 0.0
    """Share of transactions that are rolled back and repeated."""
    late_commits: float = 0.0
    """Share of transactions that stay open for a while after the push."""


@dataclass(frozen=True)
class Consume:
    """Pop until all producers are done and the queue is empty."""

    url: str
    queue: Queue
    consumer: int
    batch: int = 0
    """0: pop; more: pop_many."""
    rollbacks: float = 0.0
    late_commits: float = 0.0


@dataclass(frozen=True)
class CommittedPop:
    """The messages of one committed pop."""

    consumer: int
    at: int
    """`time.monotonic_ns()` between pop and commit: one clock for all processes."""
    messages: Sequence[PoppedMessage]


@dataclass(frozen=True)
class Outcome:
    pushed: dict[tuple[int, int], str]
    """(producer, number) -> the id that the committed push returned."""
    taken: list[CommittedPop] = field(default_factory=list)
    """The committed pops of all consumers, in the order of `at`."""

    @property
    def messages(self) -> list[PoppedMessage]:
        return [message for one in self.taken for message in one.messages]


class _RollBackError(Exception):
    """Rolls back a transaction."""


_done: Event


def _initialize(done: Event) -> None:
    global _done  # noqa: PLW0603  # how a pool hands an event to its processes
    _done = done


def produce(job: Produce) -> dict[tuple[int, int], str]:
    """(producer, number) -> id of each committed message."""
    random_numbers = random.Random(job.producer)
    database = open_database(job.url, timeouts=_TIMEOUTS)
    left = list(range(job.count))
    stored: dict[tuple[int, int], str] = {}
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while left:
        assert time.monotonic() < deadline, f"{len(left)} messages could not be pushed"
        batch = left[: job.batch]
        try:
            ids = _push(database, job, batch, random_numbers)
        except _RollBackError:
            continue
        accepted = [(n, i) for n, i in zip(batch, ids, strict=True) if i is not None]
        assert [n for n, _ in accepted] == batch[: len(accepted)], "null before a stored one"
        stored |= {(job.producer, number): pushed for number, pushed in accepted}
        left = left[len(accepted) :]
        if not accepted:
            time.sleep(0.005)  # full
    database.close()
    return stored


def _push(
    database: Database, job: Produce, numbers: Sequence[int], random_numbers: random.Random
) -> list[str | None]:
    kind = job.queue.options["payload"]
    payloads = [message(kind, job.producer, number) for number in numbers]
    with database.transaction("push") as connection:
        if job.batch == 1:
            ids = [push.push(connection, job.queue, payloads[0])]
        else:
            ids = push.push_many(connection, job.queue, payloads)
        _delay_or_roll_back(random_numbers, job)
    return ids


def consume(job: Consume) -> list[CommittedPop]:
    """The committed pops, in order."""
    random_numbers = random.Random(-1 - job.consumer)
    database = open_database(job.url, timeouts=_TIMEOUTS)
    taken: list[CommittedPop] = []
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        assert time.monotonic() < deadline, "the queue never became empty"
        last_pop = _done.is_set()
        try:
            pop = _pop(database, job, random_numbers)
        except _RollBackError:
            continue
        if pop.messages:
            _complete(database, job.queue, pop.messages)
            taken.append(pop)
        elif last_pop:
            database.close()
            return taken
        else:
            time.sleep(0.002)


def _pop(database: Database, job: Consume, random_numbers: random.Random) -> CommittedPop:
    with database.transaction("pop") as connection:
        if job.batch:
            messages = pop.pop_many(connection, job.queue, job.batch)
        else:
            messages = [m for m in [call_pop(connection, job.queue)] if m is not None]
        at = time.monotonic_ns()
        assert len(messages) <= max(job.batch, 1), "took more than requested"
        if messages:
            _delay_or_roll_back(random_numbers, job)
    return CommittedPop(job.consumer, at, messages)


def _complete(database: Database, queue: Queue, messages: Sequence[PoppedMessage]) -> None:
    if not queue.finishes:
        return
    with database.transaction("complete") as connection:
        for message in messages:
            assert pop.complete(connection, queue, message)


def _delay_or_roll_back(random_numbers: random.Random, job: Produce | Consume) -> None:
    if random_numbers.random() < job.late_commits:
        time.sleep(0.005)
    if random_numbers.random() < job.rollbacks:
        raise _RollBackError


class WorkerPool:
    """Processes that live as long as the suite; a run uses one for each job."""

    def __init__(self, size: int) -> None:
        self._done = _FORKING.Event()
        self._pool = ProcessPoolExecutor(
            size, mp_context=_FORKING, initializer=_initialize, initargs=(self._done,)
        )

    def run(self, producers: Sequence[Produce], consumers: Sequence[Consume]) -> Outcome:
        """Start all jobs and wait for them. An error in one is raised here."""
        self._done.clear()
        consuming = [self._pool.submit(consume, job) for job in consumers]
        try:
            producing = [self._pool.submit(produce, job) for job in producers]
            pushed = {key: pushed for one in producing for key, pushed in one.result().items()}
        finally:
            self._done.set()
        taken = [pop for future in consuming for pop in future.result()]
        return Outcome(pushed, sorted(taken, key=lambda pop: pop.at))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()


@dataclass(frozen=True)
class KilledClient:
    """What a process had done before it was killed."""

    pushed: list[str | None]
    popped: list[PoppedMessage]


def _hang(url: str, queue: Queue, commit: bool, n: int, reports: PipeEnd) -> None:
    """Pop `n` messages, push one, report; then hang, before the commit or after it."""
    database = open_database(url, timeouts=_TIMEOUTS)
    sent = message(queue.options["payload"], 9, 9)
    with database.transaction("hang") as connection:
        popped = pop.pop_many(connection, queue, n, "the killed consumer")
        pushed = [push.push(connection, queue, sent)]
        if not commit:
            reports.send(KilledClient(pushed, popped))
            time.sleep(_PATIENCE_SECONDS)
    reports.send(KilledClient(pushed, popped))
    time.sleep(_PATIENCE_SECONDS)


def killed_client(url: str, queue: Queue, *, commit: bool, n: int) -> KilledClient:
    """A process that popped `n` messages, pushed one, and was killed with SIGKILL."""
    (client,) = killed(_hang, url, queue, commit, n)
    assert isinstance(client, KilledClient)
    return client
