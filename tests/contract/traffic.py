"""Producers and consumers of one queue, in threads, and the results of their calls."""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from console.actions import pop, push
from console.actions.pop import PoppedMessage
from console.errors import ConnectionFailedError, ConsoleError
from tests.contract.client import Client
from tests.contract.messages import intact, message, sender
from tests.servers import PATIENCE_SECONDS, wait_until

Sender = tuple[int, int]
"""Which producer sent it, as which of its messages."""


@contextmanager
def at_work(
    *works: Iterable[object], pause_seconds: float = 0.0
) -> Iterator[Sequence["Future[None]"]]:
    """Run each in a thread, step by step, until it has no more steps or the block ends.

    An error in one of them is raised here.
    """
    over = threading.Event()

    def run(work: Iterable[object]) -> None:
        for _ in work:
            if over.wait(pause_seconds):
                return

    with ThreadPoolExecutor(len(works)) as pool:
        running = [pool.submit(run, work) for work in works]
        try:
            yield running
        finally:
            over.set()
        for one in running:
            one.result()


@dataclass
class Traffic:
    """Producers that push in order, consumers that finish what they pop; their ledger."""

    client: Client
    seed: int = 0
    producers: int = 2
    consumers: int = 2
    batch: int = 5
    """The largest batch: each call draws its own size."""
    backlog: float = float("inf")
    """No producer pushes while this many messages are unpopped: a small ring must not be full."""
    per_producer: int | None = None
    """Messages of each producer; None: producers never stop."""
    rolled_back: float = 0.0
    """Share of the transactions, and of those that stay open for `late_seconds`."""
    late: float = 0.0
    late_seconds: float = 0.01
    failed: float = 0.0
    """Share of the claims that are failed instead of completed."""
    tolerated: tuple[type[ConsoleError], ...] = ()
    """Errors that a fault may cause; a lost connection leaves the call in doubt, others undo it."""
    pause_seconds: float = 0.005
    """Between two calls, and for the work on popped messages."""

    offered: int = 0
    """Messages that were pushed, or are being pushed."""
    requested: int = 0
    """Messages that were popped, and the most that running pops can take."""
    popped: int = 0
    pushed: set[Sender] = field(default_factory=set)
    """Messages whose push was committed."""
    in_doubt: set[Sender] = field(default_factory=set)
    """Messages whose push got no response."""
    pops_in_doubt: int = 0
    """The most messages that pops without a response can have taken."""
    finished: Counter[Sender] = field(default_factory=Counter)
    """Completed, or popped where a pop finishes the message."""
    released_meanwhile: int = 0
    """Claims that could not be finished, because they were released while their consumer worked."""
    refused: int = 0
    """Calls that failed because of the fault and changed nothing."""
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)

    @contextmanager
    def running(
        self, *others: Iterable[object], min_finished: int = 0
    ) -> Iterator[Sequence["Future[None]"]]:
        """Traffic before, during and after the block, and the others next to it; its producers.

        `min_finished`: messages to be finished before the block, and again after it.
        """
        works = [self.produce(number) for number in range(1, self.producers + 1)]
        works += [self.consume(f"worker-{number}") for number in range(1, self.consumers + 1)]
        with at_work(*works, *others, pause_seconds=self.pause_seconds) as running:
            self.progress(min_finished)
            yield running[: self.producers]
            self.progress(min_finished)
            endless = running if self.per_producer is None else running[self.producers :]
            assert not any(one.done() for one in endless), "the traffic stopped"

    def progress(self, count: int) -> None:
        """Wait until `count` more messages are finished."""
        least = self.finished.total() + count
        wait_until(lambda: self.finished.total() >= least, "more is finished")

    def produce(self, producer: int) -> Iterator[None]:
        """One push per step, in the order of the numbers; what was not stored is sent again."""
        numbers = itertools.count() if self.per_producer is None else iter(range(self.per_producer))
        left: list[Sender] = []
        while True:
            if len(self.pushed) - self.popped < self.backlog:
                room = max(0, self._dice.randint(1, self.batch) - len(left))
                left += [(producer, number) for number in itertools.islice(numbers, room)]
                if not left:
                    return
                left = self.push(left)
            yield

    def consume(self, consumer: str) -> Iterator[None]:
        """One pop per step; all its messages are finished."""
        while True:
            taken = self.pop(self._dice.randint(1, self.batch), consumer)
            time.sleep(self.pause_seconds if self.client.queue.finishes else 0)  # its work
            for one in taken:
                self.finish(one)
            yield

    def push(self, sent: Sequence[Sender]) -> list[Sender]:
        """Push them; those that have to be sent again."""
        queue = self.client.queue
        payloads = [message(queue.options["payload"], *one) for one in sent]
        with self.mutex:
            self.offered += len(sent)
        stored: list[Sender] = []
        try:
            with self.client.database.transaction("push") as connection:
                ids = push.push_many(connection, queue, payloads)
                if not self._undone():
                    stored = [one for one, id_ in zip(sent, ids, strict=True) if id_ is not None]
                else:
                    connection.rollback()
        except self.tolerated as error:
            if isinstance(error, ConnectionFailedError):
                self.in_doubt |= set(sent)
                return []
            self.refused += 1
        with self.mutex:
            self.offered -= len(sent) - len(stored)
            self.pushed |= set(stored)
        return [one for one in sent if one not in stored]

    def pop(self, count: int, consumer: str) -> list[PoppedMessage]:
        """Pop at most `count` messages."""
        with self.mutex:
            self.requested += count
        taken: list[PoppedMessage] = []
        try:
            with self.client.database.transaction("pop") as connection:
                taken = pop.pop_many(connection, self.client.queue, count, consumer)
                if self._undone():
                    connection.rollback()
                    taken = []
        except self.tolerated as error:
            taken = []
            if isinstance(error, ConnectionFailedError):
                self.pops_in_doubt += count
                return []
            self.refused += 1
        with self.mutex:
            self.requested -= count - len(taken)
            self.popped += len(taken)
        return taken

    def _undone(self) -> bool:
        """Whether a transaction is rolled back; it may stay open for a while before that."""
        if self._dice.random() < self.late:
            time.sleep(self.late_seconds)  # the delay itself: there is nothing to wait for
        return self._dice.random() < self.rolled_back

    def pop_one(self) -> PoppedMessage:
        """For a test that keeps it claimed while a fault is made and repaired."""
        taken: list[PoppedMessage] = []

        def took() -> bool:
            taken.extend(self.pop(1, "slow"))
            return bool(taken)

        wait_until(took, "there is one")
        return taken[0]

    def finish(self, taken: PoppedMessage) -> None:
        """Complete or fail it, where the design has that; a fault may prevent it for a while."""
        queue = self.client.queue
        assert intact(queue.options["payload"], taken.payload)
        fails = queue.finishes and self._dice.random() < self.failed
        deadline = time.monotonic() + PATIENCE_SECONDS
        while queue.finishes:
            assert time.monotonic() < deadline, "it could never be completed"
            try:
                done = self.client.fail(taken, "no") if fails else self.client.complete(taken)
            except self.tolerated:
                self.refused += 1
                time.sleep(0.01)
                continue
            if not done:
                self.released_meanwhile += 1
            if fails or not done:
                return
            break
        with self.mutex:
            self.finished[sender(taken.payload)] += 1

    def settle(self, lost: Sequence[Sender] = ()) -> None:
        """Drain; then each acknowledged message was finished once, except those lost on purpose."""
        while taken := self.pop(100, "the last"):
            for one in taken:
                self.finish(one)
        assert self.pushed
        self.balance(self.finished, lost)

    def balance(self, found: Counter[Sender], lost: Sequence[Sender] = ()) -> None:
        """Each acknowledged message arrived or is stored exactly once, and no other does."""
        assert {one: count for one, count in found.items() if count > 1} == {}, "doubled"
        assert found.keys() - self.pushed - self.in_doubt == set(), "never stored"
        missing = self.pushed - found.keys()
        assert missing >= set(lost), "it has no payload and came"
        assert len(missing) - len(lost) <= self.pops_in_doubt, "lost"
