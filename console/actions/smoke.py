"""Prove a design on the server at hand: a scratch queue, real concurrency, all checked."""

import secrets
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from console.actions.execute import Control
from console.actions.pop import Message, complete, pop_many
from console.actions.push import Payload, push, push_many
from console.actions.scratch import scratch_queue
from console.bench.latency import Latency
from console.catalog import Queue, installed_queue
from console.designs import Design, Order
from console.designs.pops import Pop, judge
from console.engines import Database
from console.errors import ConsoleError, RefusedError

PREFIX = "dbq_smoke_"
"""Of a scratch queue's name: one that is left behind by a kill can be told and uninstalled."""

_PRODUCERS = 3
_CONSUMERS = 3
_MESSAGES_EACH = 100
_SEQUENTIAL = 40
_EXPECTED = _SEQUENTIAL + _PRODUCERS * _MESSAGES_EACH
_SMALLEST_PAYLOAD = 8
_SMALLEST_RING = _SEQUENTIAL
_LARGEST_RING = 100
_TIMEOUT_SECONDS = 60.0
_TELL_SECONDS = 0.1


@dataclass(frozen=True)
class SmokeResult:
    """What a smoke test saw. Everything but `messages` and the latencies should be 0."""

    queue: str
    design: str
    order: str
    messages: int
    lost: int
    doubled: int
    damaged: int
    out_of_order: int
    unfinished: int
    push_ms: Latency
    pop_ms: Latency
    errors: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Every message once, intact, in the promised order, and no call failed."""
        bad = (self.lost, self.doubled, self.damaged, self.out_of_order, self.unfinished)
        return not any(bad) and not self.errors


@dataclass(frozen=True)
class Progress:
    """How far a smoke test is."""

    pushed: int
    popped: int
    total: int
    seconds: float
    """Since it began."""
    push_ms: Latency
    pop_ms: Latency
    """Of the calls so far that were measured."""


Tell = Callable[[Progress], None]


class StoppedError(ConsoleError):
    """The operator stopped the test: nothing was judged, and nothing is left of it."""

    def __init__(self, pushed: int) -> None:
        super().__init__(
            "The smoke test was stopped.",
            why=f"{pushed:,} messages had been pushed. Nothing was judged, nothing is left of it.",
        )


@dataclass
class _Log:
    """What the threads saw; appended under the lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    push_seconds: list[float] = field(default_factory=list)
    pop_seconds: list[float] = field(default_factory=list)
    popped: list[tuple[int, Message]] = field(default_factory=list)
    """(consumer, message), in the order of the pops."""
    pushed: int = 0
    unfinished: int = 0
    errors: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    control: Control = field(default_factory=Control)
    tell: Tell = lambda _: None

    def go_on(self) -> None:
        """Tell how far it is; StoppedError where it is to stop."""
        with self.lock:
            pushing, popping = list(self.push_seconds), list(self.pop_seconds)
            pushed, popped = self.pushed, len(self.popped)
        seconds = time.monotonic() - self.began
        push_ms, pop_ms = latency_of(pushing), latency_of(popping)
        self.tell(Progress(pushed, popped, _EXPECTED, seconds, push_ms, pop_ms))
        if self.control.stopped:
            raise StoppedError(pushed)


def smoke_queue(
    database: Database, queue: Queue, *, control: Control | None = None, tell: Tell = lambda _: None
) -> SmokeResult:
    """Smoke-test a queue's design and options beside it; the queue itself is not touched.

    `tell` hears several times a second how far it is. StoppedError where `control` stops it.
    """
    if queue.design.library:
        raise RefusedError(
            f"smoke is not for the queue {queue.name!r}, which {queue.design.library} keeps.",
            why="A scratch queue beside it would be none of the library's.",
        )
    log = _Log(control=control or Control(), tell=tell)
    return _smoke(database, queue.schema, queue.design, dict(queue.options), queue.name, log)


def smoke_design(database: Database, schema: str, of: Design) -> SmokeResult:
    """Smoke-test a design with its default options."""
    return _smoke(database, schema, of, {}, "", _Log())


def _smoke(
    database: Database, schema: str, of: Design, options: dict[str, str], name: str, log: _Log
) -> SmokeResult:
    options = of.complete_options(options, database.product.name)
    limit = options["max_bytes"]
    if limit != "unlimited":
        options["max_bytes"] = str(max(int(limit), _SMALLEST_PAYLOAD))
    if "size" in options:
        # Smaller than the traffic is long: the test goes round the ring and meets its end.
        options["size"] = str(max(min(int(options["size"]), _LARGEST_RING), _SMALLEST_RING))
    scratch = installed_queue(schema, PREFIX + secrets.token_hex(4), of, options)
    with scratch_queue(database, scratch):
        out_of_order = _sequential(database, scratch, log)
        _concurrent(database, scratch, log)
    return _judge(scratch, name or of.name, log, out_of_order)


def payload_of(number: int, queue: Queue) -> Payload:
    """A payload that says which message it is, with what databases like to damage where it fits."""
    limit = queue.options["max_bytes"]
    roomy = limit == "unlimited" or int(limit) >= 64
    kind = queue.options["payload"]
    if kind == "bytes":
        return str(number).encode() + (b"\x00\xff '\\" if roomy else b"")
    if kind == "json":
        return f'{{"n": {number}, "x": 12345678901234567890.0123456789}}' if roomy else str(number)
    return f"{number} 'mä\\ 日本 🂡 \t  " if roomy else str(number)


def number_of(payload: Payload, queue: Queue) -> int:
    """The message's number if its payload is exactly one that was pushed, else -1."""
    text = payload.decode("latin-1") if isinstance(payload, bytes) else payload
    digits = text.removeprefix('{"n": ')
    end = next((i for i, sign in enumerate(digits) if not sign.isdecimal()), len(digits))
    number = int(digits[:end]) if end else -1
    pushed = 0 <= number < _EXPECTED
    return number if pushed and payload == payload_of(number, queue) else -1


def _sequential(database: Database, queue: Queue, log: _Log) -> int:
    """One producer in one session, then one consumer: the order of the whole is known.

    How many are out of it.
    """
    product = database.product
    numbers = range(_SEQUENTIAL)
    payloads = [payload_of(number, queue) for number in numbers]
    half = _SEQUENTIAL // 2
    pushing = "push to the scratch queue"
    with database.session(pushing) as session:
        for payload in payloads[:half]:
            with session.transaction(pushing) as connection:
                push(connection, product, queue, payload)
        with session.transaction(pushing) as connection:
            push_many(connection, product, queue, payloads[half:])
    log.pushed += _SEQUENTIAL
    seen: list[int] = []
    while len(seen) < _SEQUENTIAL:
        log.go_on()
        with database.transaction("pop from the scratch queue") as connection:
            messages = pop_many(connection, product, queue, 7, "smoke")
        if not messages:
            break
        log.popped += [(-1, message) for message in messages]
        seen += [number_of(message.payload, queue) for message in messages]
        _complete_all(database, queue, messages, log)
    order = queue.design.order_with(queue.options)
    if order is Order.NONE:
        return 0
    expected = list(reversed(numbers)) if order is Order.LIFO else list(numbers)
    return sum(a != b for a, b in zip(seen, expected, strict=False))


def _complete_all(database: Database, queue: Queue, messages: list[Message], log: _Log) -> None:
    if not queue.finishes:
        return
    with database.transaction("complete messages of the scratch queue") as connection:
        acted = [complete(connection, database.product, queue, message) for message in messages]
    with log.lock:
        log.unfinished += acted.count(False)


def _concurrent(database: Database, queue: Queue, log: _Log) -> None:
    """Several producers and consumers at once, each a thread with its own connection."""
    stop = threading.Event()
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    jobs: list[Callable[[], None]] = [
        *(lambda p=p: _produce(database, queue, log, p, stop, deadline) for p in range(_PRODUCERS)),
        *(lambda c=c: _consume(database, queue, log, c, stop, deadline) for c in range(_CONSUMERS)),
    ]
    threads = [
        threading.Thread(target=_guarded, args=(job, log, stop), name=f"smoke {number}")
        for number, job in enumerate(jobs)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(_TELL_SECONDS)
                log.go_on()
    finally:
        # An interrupt comes here, while they still run: the queue goes only after they ended.
        stop.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()


def _guarded(job: Callable[[], None], log: _Log, stop: threading.Event) -> None:
    try:
        job()
    except ConsoleError as error:
        stop.set()
        with log.lock:
            log.errors.append(str(error))


def _produce(
    database: Database,
    queue: Queue,
    log: _Log,
    producer: int,
    stop: threading.Event,
    deadline: float,
) -> None:
    first = _SEQUENTIAL + producer * _MESSAGES_EACH
    for number in range(first, first + _MESSAGES_EACH):
        stored = None
        while stored is None:
            if stop.is_set() or time.monotonic() >= deadline:
                return
            started = time.perf_counter()
            with database.transaction("push to the scratch queue") as connection:
                stored = push(connection, database.product, queue, payload_of(number, queue))
            elapsed = time.perf_counter() - started
            if stored is None:
                time.sleep(0.01)
        with log.lock:
            log.push_seconds.append(elapsed)
            log.pushed += 1


def _consume(
    database: Database,
    queue: Queue,
    log: _Log,
    consumer: int,
    stop: threading.Event,
    deadline: float,
) -> None:
    while len(log.popped) < _EXPECTED and not stop.is_set() and time.monotonic() < deadline:
        started = time.perf_counter()
        with database.transaction("pop from the scratch queue") as connection:
            messages = pop_many(connection, database.product, queue, 1, f"smoke {consumer}")
            # A strict queue holds its lock until the commit: noted here, the order is exact.
            with log.lock:
                log.popped += [(consumer, message) for message in messages]
        elapsed = time.perf_counter() - started
        if messages:
            with log.lock:
                log.pop_seconds.append(elapsed)
            _complete_all(database, queue, messages, log)
        else:
            time.sleep(0.002)


def _judge(queue: Queue, name: str, log: _Log, out_of_order: int) -> SmokeResult:
    numbers = [number_of(message.payload, queue) for _, message in log.popped]
    seen = Counter(number for number in numbers if number >= 0)
    order = queue.design.order_with(queue.options)
    return SmokeResult(
        queue=name,
        design=queue.design.name,
        order=order.value,
        messages=log.pushed,
        lost=sum(number not in seen for number in range(_EXPECTED)),
        doubled=sum(count - 1 for count in seen.values()),
        damaged=numbers.count(-1),
        out_of_order=out_of_order + _inversions(log, numbers, order),
        unfinished=log.unfinished,
        push_ms=latency_of(log.push_seconds),
        pop_ms=latency_of(log.pop_seconds),
        errors=tuple(log.errors),
    )


def _inversions(log: _Log, numbers: list[int], order: Order) -> int:
    """Pops of the concurrent part that break the promise.

    Strict: any that came after one with a higher id. Otherwise, where an order is promised at all:
    what one consumer got of one producer must be in the order in which that producer pushed. Of a
    ring only the sequential part tells (a number whose push commits late is popped late), and where
    each session has its order too: a producer here takes any session of the pool.
    """
    concurrent = [
        (consumer, message, number)
        for (consumer, message), number in zip(log.popped, numbers, strict=True)
        if consumer >= 0
    ]
    if order is Order.STRICT:
        return _overtaken(int(message.id) for _, message, _ in concurrent)
    if order in {Order.NONE, Order.LIFO, Order.NUMBERS, Order.SESSIONS}:
        return 0
    of_one: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for consumer, _, number in concurrent:
        of_one[consumer, (number - _SEQUENTIAL) // _MESSAGES_EACH].append(number)
    return sum(map(_overtaken, of_one.values()))


def _overtaken(numbers: Iterable[int]) -> int:
    return len(judge(map(Pop, numbers), Order.STRICT).overtaken)


def latency_of(seconds: list[float]) -> Latency:
    if len(seconds) < 2:
        return Latency(0.0, 0.0, 0.0)
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return Latency(*(round(cuts[at - 1] * 1000, 3) for at in (50, 95, 99)))
