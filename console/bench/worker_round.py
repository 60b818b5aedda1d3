"""One worker process at work: what its driver asks for, and tells.

A driver is a function that takes a WorkerRound. It opens `task.clients` connections, calls
`begin`, then

- of producers: pushes `payloads(producer, n)` as long as `may_push()`, and tells `pushed`;
- of consumers: pops, finishes what was popped where the queue keeps it, and tells `popped`;

each client for itself, until `over()`. It comes back when every call has its answer. Messages count
when their call has committed: tell after that. Nothing here is for several threads at once but
what says so.
"""

import mmap
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from console.bench.call_log import SMALLEST, CallLog, Calls, Texts

_COLUMNS = 5
_BYTES = 8


class SharedCounters:
    """One row a worker: messages pushed, messages popped, then how long its last calls took."""

    def __init__(self, path: Path | None, rows: int = 0) -> None:
        """Open it; with `rows`, make it. No `path`: for the threads of this process only."""
        size = rows * _COLUMNS * _BYTES
        if path is None:
            self._memory = mmap.mmap(-1, size)
        else:
            if rows:
                path.write_bytes(bytes(size))
            with path.open("r+b") as file:
                self._memory = mmap.mmap(file.fileno(), 0)
        self._cells = memoryview(self._memory).cast("q")

    def write(self, row: int, pushed: int, popped: int) -> None:
        """Say how far one worker is. Each writes its own row only."""
        at = row * _COLUMNS
        self._cells[at], self._cells[at + 1] = pushed, popped

    def write_took(self, row: int, p50: int, p95: int, p99: int) -> None:
        """Say how long its calls take now, in microseconds."""
        at = row * _COLUMNS
        self._cells[at + 2], self._cells[at + 3], self._cells[at + 4] = p50, p95, p99

    @property
    def pushed(self) -> int:
        """Messages that all workers pushed so far."""
        return sum(self._cells[0::_COLUMNS])

    @property
    def popped(self) -> int:
        """Messages that all workers popped so far."""
        return sum(self._cells[1::_COLUMNS])

    def took(self) -> list[tuple[int, int, int]]:
        """How long calls take now, by worker: p50, p95, p99 in microseconds; 0: not known yet."""
        cells = list(self._cells)
        return list(zip(*(cells[column::_COLUMNS] for column in (2, 3, 4)), strict=True))

    def close(self) -> None:
        """Give the memory back."""
        self._cells.release()
        self._memory.close()


_ERRORS_KEPT = 5
ERRORS_ENDURED = 1000
_TOOK_OF = 500

PAUSE_SECONDS = 0.002
"""After a pop that found nothing, and where there is no room for a push; longer by and by."""
LONGEST_PAUSE_SECONDS = 0.032


@dataclass(frozen=True)
class WorkerTask:
    """What one worker has to do."""

    produces: bool
    first: int
    """The number of its first client, among the producers or the consumers of the round."""
    clients: int
    place: int
    """Its row of the board."""
    batch: int = 1
    payload: int = SMALLEST
    """Bytes of a message."""
    room: int = 0
    """Producers wait while so many messages are in the queue; 0: never."""
    readers: int = 1
    """How many get each message; those that wait are counted for each."""
    messages: int = 0
    """It is over after so many of each producer, or of all for consumers; 0: when its time is."""
    driver: str = ""
    """Of a process of its own, as all that follows."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """The candidate's own."""
    url: str = ""
    """SQLAlchemy's, secrets included."""
    application_name: str = ""
    counters: str = ""
    call_log: str = ""


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


class ConnectionLostError(Exception):
    """The connection is gone, with the answer to the call that was under way."""


class Messages(Protocol):
    """What is pushed, and read again."""

    def write(self, producer: int, number: int, at_us: int) -> bytes:
        """A message that is pushed now."""
        ...

    def head_of(self, payload: bytes) -> bytes:
        """The head of one that was popped, of `message.HEAD` bytes."""
        ...


class WorkerRound:
    """The worker's side of a round."""

    def __init__(
        self,
        task: WorkerTask,
        counters: SharedCounters,
        wait_for_go: Callable[[], Times],
        *,
        messages: Messages | None = None,
        errors_endured: int = ERRORS_ENDURED,
    ) -> None:
        """`messages`: what is pushed, where that is not the bench's own."""
        self.task = task
        self.broken = threading.Event()
        """Whether it ends before its time."""
        self.call_log = CallLog()
        self._counters = counters
        self._wait_for_go = wait_for_go
        self._texts = messages or Texts(task.payload)
        self._errors_endured = errors_endured
        self._next = dict.fromkeys(range(task.first, task.first + task.clients), 0)
        self._times = Times(0, 0, 0, 0)
        self._messages = 0
        self._took: deque[int] = deque(maxlen=_TOOK_OF)
        self._cpu_before: float | None = None
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

    def over(self, client: int | None = None) -> bool:
        """Whether no further call may be made, by the client where one is named."""
        if self.broken.is_set() or now_us() >= self._times.stop:
            return True
        if not self.task.messages:
            return False
        pushed = 0 if client is None else self._next.get(client, 0)
        return (pushed if self.task.produces else self._counters.popped) >= self.task.messages

    def may_push(self) -> bool:
        """Whether there is room. Where not, ask again after PAUSE_SECONDS."""
        room = self.task.room
        counters = self._counters
        return not room or counters.pushed * self.task.readers - counters.popped < room

    def payloads(self, producer: int, count: int) -> list[bytes]:
        """The producer's next messages, pushed now. The same numbers again until `pushed`."""
        first, at, write = self._next[producer], now_us(), self._texts.write
        return [write(producer, number, at) for number in range(first, first + count)]

    def pushed(self, producer: int, stored: int, asked: int, asked_us: int) -> None:
        """A push of so many messages, begun at `asked_us`, stored these: the first of them."""
        if stored < asked:
            self.call_log.full += 1
        if stored:
            self._next[producer] += stored
            self._note(self.call_log.pushes, producer, stored, asked_us)
            self._counters.write(self.task.place, self._messages, 0)

    def popped(
        self, client: int, payloads: Sequence[bytes], asked_us: int, took_us: int | None = None
    ) -> None:
        """A pop that began at `asked_us` gave these, and what has to be finished is finished.

        `took_us`: of the pop alone, where more was done since.
        """
        if not payloads:
            self.call_log.empty += 1
            return
        self.call_log.heads += b"".join(map(self._texts.head_of, payloads))
        self._note(self.call_log.pops, client, len(payloads), asked_us, took_us)
        self._counters.write(self.task.place, 0, self._messages)

    def updated(self, client: int, asked_us: int) -> None:
        """Not a message: a row was written anew."""
        self._note(self.call_log.pops, client, 1, asked_us)
        self._counters.write(self.task.place, 0, self._messages)

    def unfinished(self, claims: int) -> None:
        """So many claims were not there any more when they were to be finished."""
        self.call_log.unfinished += claims

    def push_in_doubt(self, producer: int, messages: int) -> None:
        """The connection was lost in a push: the producer pushes no more."""
        self.call_log.pushes_in_doubt.append((producer, messages))

    def pop_in_doubt(self, messages: int) -> None:
        """The connection was lost in a pop of at most so many, or while they were finished."""
        self.call_log.pops_in_doubt += messages

    def failed(self, why: str) -> None:
        """The server refused a call and undid it, or a connection was lost."""
        self.call_log.failed_calls += 1
        if len(self.call_log.errors) < _ERRORS_KEPT and why not in self.call_log.errors:
            self.call_log.errors.append(why)
        if self.call_log.failed_calls >= self._errors_endured:
            self.broken.set()

    def end(self) -> None:
        """Close the log."""
        if self._cpu_before is not None:
            self.call_log.cpu_seconds = time.process_time() - self._cpu_before

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
            self._counters.write_took(self.task.place, p50, p95, p99)
