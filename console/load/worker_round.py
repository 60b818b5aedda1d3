"""A round as a worker process's driver uses it.

A driver is a function that takes a WorkerRound. It opens `task.clients` connections and calls
`begin`. Then each client, until `finished()`,

- of a producer: pushes `payloads(producer, n)` while `may_push()`, and reports `pushed`;
- of a consumer: pops, completes what the queue still keeps, and reports `popped`.

Report after the commit. The driver returns when every call has its answer. Unless stated otherwise
nothing here is thread-safe.
"""

import mmap
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from console.load.call_log import SMALLEST, CallLog, Calls, TextMessages

_COLUMNS = 5
_BYTES = 8


class SharedCounters:
    """A row per worker: messages pushed, messages popped, percentiles of its last calls."""

    def __init__(self, path: Path | None, rows: int = 0) -> None:
        """Open the file, or create it with `rows`. No `path`: within this process."""
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
        """Each worker writes its own row only."""
        at = row * _COLUMNS
        self._cells[at], self._cells[at + 1] = pushed, popped

    def write_took(self, row: int, p50: int, p95: int, p99: int) -> None:
        """In microseconds."""
        at = row * _COLUMNS
        self._cells[at + 2], self._cells[at + 3], self._cells[at + 4] = p50, p95, p99

    @property
    def pushed(self) -> int:
        """By all workers."""
        return sum(self._cells[0::_COLUMNS])

    @property
    def popped(self) -> int:
        """By all workers."""
        return sum(self._cells[1::_COLUMNS])

    def took(self) -> list[tuple[int, int, int]]:
        """(p50, p95, p99) of each worker's last calls, in microseconds; 0: not known yet."""
        cells = list(self._cells)
        return list(zip(*(cells[column::_COLUMNS] for column in (2, 3, 4)), strict=True))

    def close(self) -> None:
        self._cells.release()
        self._memory.close()


_ERRORS_KEPT = 5
ERRORS_ENDURED = 1000
_TOOK_OF = 500

PAUSE_SECONDS = 0.002
"""After an empty pop, and where there is no room for a push; then doubling."""
LONGEST_PAUSE_SECONDS = 0.032


@dataclass(frozen=True)
class WorkerTask:
    produces: bool
    first: int
    """The number of its first client, among the round's producers or consumers."""
    clients: int
    row: int
    """In the SharedCounters."""
    batch: int = 1
    payload: int = SMALLEST
    """Bytes of a message."""
    room: int = 0
    """Producers wait while so many messages are in the queue; 0: never."""
    readers: int = 1
    """How many get each message; waiting messages count for each."""
    messages: int = 0
    """To end after: per producer, for consumers in total; 0: ends by time."""
    driver: str = ""
    """This and the following only for a process of its own."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Of the candidate's driver."""
    url: str = ""
    """SQLAlchemy's, secrets included."""
    application_name: str = ""
    counters: str = ""
    call_log: str = ""


@dataclass(frozen=True)
class Times:
    """In microseconds of this machine's monotonic clock."""

    produce: int
    consume: int
    measure: int
    stop: int


def now_us() -> int:
    """The machine's monotonic clock, the same for all its processes."""
    return time.monotonic_ns() // 1000


class ConnectionLostError(Exception):
    """With the answer to the current call."""


class Messages(Protocol):
    """Writes the messages that are pushed, and recognizes popped ones."""

    def write(self, producer: int, number: int, at_us: int) -> bytes: ...

    def head_of(self, payload: bytes) -> bytes:
        """`call_log.HEAD` bytes."""
        ...


class WorkerRound:
    def __init__(
        self,
        task: WorkerTask,
        counters: SharedCounters,
        wait_for_go: Callable[[], Times],
        *,
        messages: Messages | None = None,
        errors_endured: int = ERRORS_ENDURED,
    ) -> None:
        """`messages`: by default TextMessages."""
        self.task = task
        self.broken = threading.Event()
        """Set where it must end early."""
        self.call_log = CallLog()
        self._counters = counters
        self._wait_for_go = wait_for_go
        self._texts = messages or TextMessages(task.payload)
        self._errors_endured = errors_endured
        self._next = dict.fromkeys(range(task.first, task.first + task.clients), 0)
        self._times = Times(0, 0, 0, 0)
        self._messages = 0
        self._took: deque[int] = deque(maxlen=_TOOK_OF)
        self._cpu_before: float | None = None
        self.lock = threading.Lock()
        """For drivers with several threads, around all reports."""

    @property
    def clients(self) -> range:
        return range(self.task.first, self.task.first + self.task.clients)

    def begin(self) -> None:
        """Report ready, and wait until this side begins."""
        self._times = self._wait_for_go()
        begin = self._times.produce if self.task.produces else self._times.consume
        time.sleep(max(0.0, (begin - now_us()) / 1e6))

    def finished(self, client: int | None = None) -> bool:
        """Whether no further call may be made, by `client` if given."""
        if self.broken.is_set() or now_us() >= self._times.stop:
            return True
        if not self.task.messages:
            return False
        pushed = 0 if client is None else self._next.get(client, 0)
        return (pushed if self.task.produces else self._counters.popped) >= self.task.messages

    def may_push(self) -> bool:
        """Whether there is room. If not, check again after PAUSE_SECONDS."""
        room = self.task.room
        counters = self._counters
        return not room or counters.pushed * self.task.readers - counters.popped < room

    def payloads(self, producer: int, count: int) -> list[bytes]:
        """The producer's next messages; the same ones until `pushed` is called."""
        first, at, write = self._next[producer], now_us(), self._texts.write
        return [write(producer, number, at) for number in range(first, first + count)]

    def pushed(self, producer: int, stored: int, batch: int, began_us: int) -> None:
        """A push stored the first `stored` of `batch` messages."""
        if stored < batch:
            self.call_log.full += 1
        if stored:
            self._next[producer] += stored
            self._add(self.call_log.pushes, producer, stored, began_us)
            self._counters.write(self.task.row, self._messages, 0)

    def popped(
        self, client: int, payloads: Sequence[bytes], began_us: int, took_us: int | None = None
    ) -> None:
        """Messages were popped and, if necessary, completed.

        `took_us`: of the pop alone, if it was followed by more.
        """
        if not payloads:
            self.call_log.empty += 1
            return
        self.call_log.heads += b"".join(map(self._texts.head_of, payloads))
        self._add(self.call_log.pops, client, len(payloads), began_us, took_us)
        self._counters.write(self.task.row, 0, self._messages)

    def updated(self, client: int, began_us: int) -> None:
        """A row was updated; only the floor does that."""
        self._add(self.call_log.pops, client, 1, began_us)
        self._counters.write(self.task.row, 0, self._messages)

    def unfinished(self, claims: int) -> None:
        """So many claims were gone when they were to be completed."""
        self.call_log.unfinished += claims

    def push_in_doubt(self, producer: int, messages: int) -> None:
        """The connection was lost during a push: the producer stops."""
        self.call_log.pushes_in_doubt.append((producer, messages))

    def pop_in_doubt(self, messages: int) -> None:
        """The connection was lost while at most so many were popped or completed."""
        self.call_log.pops_in_doubt += messages

    def failed(self, why: str) -> None:
        """The server rolled a call back, or a connection was lost."""
        self.call_log.failed_calls += 1
        if len(self.call_log.errors) < _ERRORS_KEPT and why not in self.call_log.errors:
            self.call_log.errors.append(why)
        if self.call_log.failed_calls >= self._errors_endured:
            self.broken.set()

    def end(self) -> None:
        if self._cpu_before is not None:
            self.call_log.cpu_seconds = time.process_time() - self._cpu_before

    def _add(
        self, calls: Calls, client: int, messages: int, began_us: int, took_us: int | None = None
    ) -> None:
        at = now_us()
        took = at - began_us if took_us is None else took_us
        calls.add(at, client, messages, took)
        self._messages += messages
        self._took.append(took)
        if self._cpu_before is None and at >= self._times.measure:
            self._cpu_before = time.process_time()
        if len(calls) % _TOOK_OF == 0:
            recent, last = sorted(self._took), len(self._took) - 1
            p50, p95, p99 = (recent[round(last * share)] for share in (0.5, 0.95, 0.99))
            self._counters.write_took(self.task.row, p50, p95, p99)
