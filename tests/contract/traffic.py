"""Producers and consumers of one queue, in threads, and what their calls were told."""

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
    """Each in a thread of its own, step by step, until it has no more or the block ends.

    What fails in one fails here.
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
    """Of a call, at most: each draws its own size."""
    backlog: float = float("inf")
    """Nobody pushes while so many more were pushed than popped: a small ring shall not be full."""
    most: int | None = None
    """What a producer sends; without it they go on and on."""
    rolled_back: float = 0.0
    """Share of the transactions, and of those that stay open for `late_seconds`."""
    late: float = 0.0
    late_seconds: float = 0.01
    failed: float = 0.0
    """Share of what was claimed, which is not completed but failed."""
    endures: tuple[type[ConsoleError], ...] = ()
    """What a fault may do to a call; a lost connection leaves it in doubt, all else undone."""
    pause_seconds: float = 0.005
    """Between two calls, and for the work on what was popped."""

    offered: int = 0
    """Messages that were pushed, or may have been: a push is under way."""
    wanted: int = 0
    """Messages that were popped, and at most so many that a pop under way takes."""
    popped: int = 0
    pushed: set[Sender] = field(default_factory=set)
    """Whose commit was answered."""
    doubtful: set[Sender] = field(default_factory=set)
    """Pushes whose answer was lost."""
    pops_in_doubt: int = 0
    """At most so many messages went with pops whose answer was lost."""
    finished: Counter[Sender] = field(default_factory=Counter)
    """Popped, where that is the end of it; else completed."""
    taken_away: int = 0
    """Claims that somebody released while their consumer was at work, who could not finish them."""
    refused: int = 0
    """Calls that the fault made impossible, and that changed nothing."""
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)

    @contextmanager
    def going_on(
        self, *others: Iterable[object], least: int = 0
    ) -> Iterator[Sequence["Future[None]"]]:
        """Traffic before, during and after the block, beside what others do; its producers.

        `least`: of messages that are finished before the block, and again after it.
        """
        works = [self.produce(number) for number in range(1, self.producers + 1)]
        works += [self.consume(f"worker-{number}") for number in range(1, self.consumers + 1)]
        with at_work(*works, *others, pause_seconds=self.pause_seconds) as running:
            self.progress(least)
            yield running[: self.producers]
            self.progress(least)
            endless = running if self.most is None else running[self.producers :]
            assert not any(one.done() for one in endless), "the traffic stopped"

    def progress(self, count: int) -> None:
        """Wait until so many more were finished."""
        least = self.finished.total() + count
        wait_until(lambda: self.finished.total() >= least, "more is finished")

    def produce(self, producer: int) -> Iterator[None]:
        """A push a step, in the order of its numbers; what was not stored is sent again."""
        numbers = itertools.count() if self.most is None else iter(range(self.most))
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
        """A pop a step, and all of it finished."""
        while True:
            taken = self.pop(self._dice.randint(1, self.batch), consumer)
            time.sleep(self.pause_seconds if self.client.queue.finishes else 0)  # its work
            for one in taken:
                self.finish(one)
            yield

    def push(self, sent: Sequence[Sender]) -> list[Sender]:
        """What is to be sent again."""
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
        except self.endures as error:
            if isinstance(error, ConnectionFailedError):
                self.doubtful |= set(sent)
                return []
            self.refused += 1
        with self.mutex:
            self.offered -= len(sent) - len(stored)
            self.pushed |= set(stored)
        return [one for one in sent if one not in stored]

    def pop(self, count: int, consumer: str) -> list[PoppedMessage]:
        """Of what the queue has, at most so many."""
        with self.mutex:
            self.wanted += count
        taken: list[PoppedMessage] = []
        try:
            with self.client.database.transaction("pop") as connection:
                taken = pop.pop_many(connection, self.client.queue, count, consumer)
                if self._undone():
                    connection.rollback()
                    taken = []
        except self.endures as error:
            taken = []
            if isinstance(error, ConnectionFailedError):
                self.pops_in_doubt += count
                return []
            self.refused += 1
        with self.mutex:
            self.wanted -= count - len(taken)
            self.popped += len(taken)
        return taken

    def _undone(self) -> bool:
        """Whether a transaction is rolled back; it may stay open for a while before its end."""
        if self._dice.random() < self.late:
            time.sleep(self.late_seconds)  # nothing to wait for: it is the lateness
        return self._dice.random() < self.rolled_back

    def pop_one(self) -> PoppedMessage:
        """For somebody who works on it while a fault is made and repaired."""
        taken: list[PoppedMessage] = []

        def took() -> bool:
            taken.extend(self.pop(1, "slow"))
            return bool(taken)

        wait_until(took, "there is one")
        return taken[0]

    def finish(self, taken: PoppedMessage) -> None:
        """Complete it, where that is wanted; a fault may stand in the way for a while."""
        queue = self.client.queue
        assert intact(queue.options["payload"], taken.payload)
        fails = queue.finishes and self._dice.random() < self.failed
        deadline = time.monotonic() + PATIENCE_SECONDS
        while queue.finishes:
            assert time.monotonic() < deadline, "it could never be completed"
            try:
                done = self.client.fail(taken, "no") if fails else self.client.complete(taken)
            except self.endures:
                self.refused += 1
                time.sleep(0.01)
                continue
            if not done:
                self.taken_away += 1
            if fails or not done:
                return
            break
        with self.mutex:
            self.finished[sender(taken.payload)] += 1

    def settle(self, lost: Sequence[Sender] = ()) -> None:
        """Drain; then every acknowledged message was finished once, but for those lost by hand."""
        while taken := self.pop(100, "the last"):
            for one in taken:
                self.finish(one)
        assert self.pushed
        self.balance(self.finished, lost)

    def balance(self, came: Counter[Sender], lost: Sequence[Sender] = ()) -> None:
        """What was acknowledged came once, or lies somewhere once, and nothing else does."""
        assert {one: count for one, count in came.items() if count > 1} == {}, "doubled"
        assert came.keys() - self.pushed - self.doubtful == set(), "never stored"
        missing = self.pushed - came.keys()
        assert missing >= set(lost), "it has no payload and came"
        assert len(missing) - len(lost) <= self.pops_in_doubt, "lost"
