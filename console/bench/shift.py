"""One worker process at work: what its driver asks for, and tells.

A driver is a function that takes a Shift. It opens `task.clients` connections, calls `begin`, then

- of producers: pushes `payloads(producer, n)` as long as `may_push()`, and tells `pushed`;
- of consumers: pops, finishes what was popped where the queue keeps it, and tells `popped`;

each client for itself, until `over()`. It comes back when every call has its answer. Messages count
when their call has committed: tell after that. Nothing here is for several threads at once but
what says so.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from console.bench.board import Board
from console.bench.journal import Calls, Journal
from console.bench.message import HEAD, filler, head

_ERRORS_KEPT = 5
_ERRORS_ENDURED = 1000
_TOOK_OF = 500

PAUSE_SECONDS = 0.002
"""After a pop that found nothing, and where there is no room for a push; longer by and by."""
LONGEST_PAUSE_SECONDS = 0.032


@dataclass(frozen=True)
class Task:
    """What one worker has to do."""

    driver: str
    settings: Mapping[str, object]
    """The contestant's own."""
    produces: bool
    url: str
    """SQLAlchemy's, secrets included."""
    application_name: str
    first: int
    """The number of its first client, among the producers or the consumers of the round."""
    clients: int
    batch: int
    payload: int
    """Bytes of a message."""
    room: int
    """Producers wait while so many messages are in the queue; 0: never."""
    board: str
    place: int
    """Its row of the board."""
    journal: str


@dataclass(frozen=True)
class Times:
    """When what happens, in microseconds of this machine's monotonic clock."""

    produce: int
    consume: int
    measure: int
    stop: int


def now_us() -> int:
    """The machine's monotonic clock, the same for all its processes."""
    return time.monotonic_ns() // 1000


class Shift:
    """The worker's side of a round."""

    def __init__(self, task: Task, board: Board, wait_for_go: Callable[[], Times]) -> None:
        self.task = task
        self.journal = Journal()
        self._board = board
        self._wait_for_go = wait_for_go
        self._filler = filler(task.payload)
        self._next = dict.fromkeys(range(task.first, task.first + task.clients), 0)
        self._times = Times(0, 0, 0, 0)
        self._messages = 0
        self._took: deque[int] = deque(maxlen=_TOOK_OF)
        self._cpu_before: float | None = None
        self._broken = False
        self.lock = threading.Lock()
        """For drivers of several threads: `pushed`, `popped` and the rest under it."""

    @property
    def clients(self) -> range:
        """Their numbers."""
        return range(self.task.first, self.task.first + self.task.clients)

    def begin(self) -> None:
        """Say that all is ready, and wait until it begins for this side."""
        self._times = self._wait_for_go()
        begin = self._times.produce if self.task.produces else self._times.consume
        time.sleep(max(0.0, (begin - now_us()) / 1e6))

    def over(self) -> bool:
        """Whether no further call may be made."""
        return self._broken or now_us() >= self._times.stop

    def may_push(self) -> bool:
        """Whether there is room. Where not, ask again after PAUSE_SECONDS."""
        room = self.task.room
        return not room or self._board.pushed - self._board.popped < room

    def payloads(self, producer: int, count: int) -> list[bytes]:
        """The producer's next messages, pushed now. The same numbers again until `pushed`."""
        first, at, rest = self._next[producer], now_us(), self._filler
        return [head(producer, number, at) + rest for number in range(first, first + count)]

    def pushed(self, producer: int, stored: int, asked: int, asked_us: int) -> None:
        """A push of so many messages, begun at `asked_us`, stored these: the first of them."""
        if stored < asked:
            self.journal.full += 1
        if stored:
            self._next[producer] += stored
            self._note(self.journal.pushes, producer, stored, asked_us)
            self._board.write(self.task.place, self._messages, 0)

    def popped(
        self, client: int, payloads: Sequence[bytes], asked_us: int, took_us: int | None = None
    ) -> None:
        """A pop that began at `asked_us` gave these, and what has to be finished is finished.

        `took_us`: of the pop alone, where more was done since.
        """
        if not payloads:
            self.journal.empty += 1
            return
        heads, rest = self.journal.heads, self._filler
        for payload in payloads:
            # What is no message of ours in full gets a head that is none.
            heads += payload[:HEAD] if payload[HEAD:] == rest else b"?" * HEAD
        self._note(self.journal.pops, client, len(payloads), asked_us, took_us)
        self._board.write(self.task.place, 0, self._messages)

    def updated(self, client: int, asked_us: int) -> None:
        """Not a message: a row was written anew."""
        self._note(self.journal.pops, client, 1, asked_us)
        self._board.write(self.task.place, 0, self._messages)

    def unfinished(self, claims: int) -> None:
        """So many claims were not there any more when they were to be finished."""
        self.journal.unfinished += claims

    def push_in_doubt(self, producer: int, messages: int) -> None:
        """The connection was lost in a push: the producer pushes no more."""
        self.journal.pushes_in_doubt.append((producer, messages))

    def pop_in_doubt(self, messages: int) -> None:
        """The connection was lost in a pop of at most so many, or while they were finished."""
        self.journal.pops_in_doubt += messages

    def failed(self, why: str) -> None:
        """The server refused a call and undid it, or a connection was lost."""
        self.journal.failed_calls += 1
        if len(self.journal.errors) < _ERRORS_KEPT and why not in self.journal.errors:
            self.journal.errors.append(why)
        self._broken = self.journal.failed_calls >= _ERRORS_ENDURED

    def end(self) -> None:
        """Close the journal."""
        if self._cpu_before is not None:
            self.journal.cpu_seconds = time.process_time() - self._cpu_before

    def _note(
        self, calls: Calls, client: int, messages: int, asked_us: int, took_us: int | None = None
    ) -> None:
        at = now_us()
        took = at - asked_us if took_us is None else took_us
        calls.add(at, client, messages, took)
        self._messages += messages
        self._took.append(took)
        if self._cpu_before is None and at >= self._times.measure:
            self._cpu_before = time.process_time()
        if len(calls) % _TOOK_OF == 0:
            lately, last = sorted(self._took), len(self._took) - 1
            p50, p95, p99 = (lately[round(last * share)] for share in (0.5, 0.95, 0.99))
            self._board.write_took(self.task.place, p50, p95, p99)
