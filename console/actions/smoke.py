"""Test a design on the server at hand: on a scratch queue, with real concurrency."""

import secrets
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection

from console.actions.install import scratch_queue
from console.actions.pop import PoppedMessage, complete, pop_many
from console.actions.push import push, push_many
from console.actions.smoke_result import (
    OnSmokeProgress,
    SmokeProgress,
    SmokeResult,
    StoppedError,
    latency_of,
    merged,
    number_of,
    payload_of,
)
from console.catalog import Queue, installed_queue
from console.designs import Design, Order
from console.designs.order import Pop
from console.designs.order import judge as judge_pops
from console.engines import Database
from console.errors import ConnectionFailedError, ConsoleError, RefusedError
from console.load.call_log import DAMAGED, NO_HEAD, CallLog, Calls, Latency, codes_and_times, head
from console.load.load_blocking import consume, produce
from console.load.round_figures import KEPT_BY_EACH, judge
from console.load.worker_round import (
    ConnectionLostError,
    SharedCounters,
    Times,
    WorkerRound,
    WorkerTask,
    now_us,
)
from console.plan import Control

PREFIX = "dbq_smoke_"
"""By this name a scratch queue that a killed run left behind is recognized."""
_PRODUCERS = 3
_CONSUMERS = 3
_MOST_CONSUMERS = 6
"""Of all subscribers together, but at least one each."""
_MESSAGES_EACH = 100
_SEQUENTIAL = 40
"""Messages of producer 0, which pushes alone; the others' numbers follow."""
_SMALLEST_PAYLOAD = 8
_SMALLEST_RING = _SEQUENTIAL
LARGEST_RING = 100
_STALLED_SECONDS = 60.0
"""Ends without a push or pop for so long; a busy server may take as long as it needs."""
_REPORT_SECONDS = 0.1


def smoke_queue(
    database: Database,
    queue: Queue,
    *,
    control: Control | None = None,
    on_progress: OnSmokeProgress = lambda _: None,
) -> SmokeResult:
    """Smoke-test a queue's design and options beside it; the queue itself is not touched.

    `on_progress` is called several times a second. StoppedError where `control` stops it.
    """
    if queue.design.library:
        raise RefusedError(
            f"smoke is not available for the queue {queue.name!r}, which belongs to "
            f"{queue.design.library_name}.",
            why="A scratch queue would not be one of the library's.",
        )
    of, options = queue.design, dict(queue.options)
    return _smoke(
        database, queue.schema, of, options, queue.name, control or Control(), on_progress
    )


def smoke_design(database: Database, schema: str, of: Design) -> SmokeResult:
    return _smoke(database, schema, of, {}, of.name, Control(), lambda _: None)


def _smoke(
    database: Database,
    schema: str,
    of: Design,
    options: dict[str, str],
    name: str,
    control: Control,
    on_progress: OnSmokeProgress,
) -> SmokeResult:
    options = of.complete_options(options, database.product.name)
    limit = options["max_bytes"]
    if limit != "unlimited":
        options["max_bytes"] = str(max(int(limit), _SMALLEST_PAYLOAD))
    if "size" in options:
        # Smaller than the number of messages: the test wraps around and fills the ring.
        options["size"] = str(max(min(int(options["size"]), LARGEST_RING), _SMALLEST_RING))
    scratch = installed_queue(schema, PREFIX + secrets.token_hex(4), of, options)
    with scratch_queue(database, scratch):
        return smoke_scratch(database, scratch, name, control, on_progress)


def smoke_scratch(
    database: Database,
    scratch: Queue,
    name: str,
    control: Control,
    on_progress: OnSmokeProgress = lambda _: None,
) -> SmokeResult:
    """Smoke-test an empty scratch queue; a ring has at most `LARGEST_RING` slots. `name`: the
    queue's name in the result."""
    run = _SmokeRound(database, scratch, control, on_progress)
    run.sequential()
    run.concurrent()
    results = [judge_round(scratch, name, run.call_log(pops), pops.ids) for pops in run.pops]
    return merged(results, [subscriber.name for subscriber in scratch.subscribers])


@dataclass(frozen=True)
class _Messages:
    """The messages of the test, for the bench's workers."""

    queue: Queue

    def write(self, producer: int, number: int, at_us: int) -> bytes:
        del at_us  # of no interest here
        payload = payload_of(_number(producer, number), self.queue)
        return payload if isinstance(payload, bytes) else payload.encode()

    def head_of(self, payload: bytes) -> bytes:
        number = number_of(payload if _is_bytes(self.queue) else payload.decode(), self.queue)
        if number < 0:
            return NO_HEAD
        if number < _SEQUENTIAL:
            return head(0, number, 0)
        producer, number = divmod(number - _SEQUENTIAL, _MESSAGES_EACH)
        return head(producer + 1, number, 0)


def _is_bytes(queue: Queue) -> bool:
    return queue.options["payload"] == "bytes"


def _number(producer: int, number: int) -> int:
    """A message's number among those of all producers."""
    return number if producer == 0 else _SEQUENTIAL + (producer - 1) * _MESSAGES_EACH + number


def _expected() -> int:
    """Messages of all producers."""
    return _number(_PRODUCERS + 1, 0)


class _Pops:
    """The consumers of the queue, or of one of its subscribers."""

    def __init__(self, queue: Queue, consumers: int) -> None:
        self.queue = queue
        self.ids: list[str] = []
        """Popped in the concurrent part; in order if the queue is strict."""
        self.counters = SharedCounters(None, 2)
        alone = WorkerTask(produces=False, first=0, clients=1, row=0)
        self.alone = _side(queue, self.counters, alone)
        together = WorkerTask(
            produces=False, first=1, clients=consumers, row=1, messages=_expected()
        )
        self.concurrent = _side(queue, self.counters, together)


def _side(queue: Queue, counters: SharedCounters, task: WorkerTask) -> WorkerRound:
    def go() -> Times:
        return Times(0, 0, 0, sys.maxsize)  # until all are popped, or `_check_stalled` ends it

    messages = _Messages(queue)
    return WorkerRound(task, counters, go, messages=messages, errors_endured=1)


class _SmokeRound:
    """A bench round with few messages: in threads of this process, until all are popped."""

    def __init__(
        self, database: Database, queue: Queue, control: Control, on_progress: OnSmokeProgress
    ) -> None:
        self.database = database
        self.queue = queue
        self.lock = threading.Lock()
        self._control = control
        self._on_progress = on_progress
        self._began = self._moved_at = time.monotonic()
        self._moved = 0
        self._counters = SharedCounters(None, 2)
        alone = WorkerTask(produces=True, first=0, clients=1, row=0)
        self._pushes_alone = _side(queue, self._counters, alone)
        together = WorkerTask(
            produces=True, first=1, clients=_PRODUCERS, row=1, messages=_MESSAGES_EACH
        )
        self._pushes = _side(queue, self._counters, together)
        each = min(_CONSUMERS, max(1, _MOST_CONSUMERS // len(queue.views)))
        self.pops = [_Pops(view, each) for view in queue.views]
        for pops in self.pops:
            pops.concurrent.broken = self._pushes.broken

    def call_log(self, pops: _Pops) -> CallLog:
        """Of all pushes and these pops, the sequential part first."""
        sides = (self._pushes_alone, pops.alone, self._pushes, pops.concurrent)
        return CallLog.merged([worker_round.call_log for worker_round in sides])

    def report_progress(self) -> None:
        """OnSmokeProgress how far it is; StoppedError where it is to stop."""
        latencies = []
        pops = [pop.concurrent for pop in self.pops]
        for sides, name in (([self._pushes], "pushes"), (pops, "pops")):
            took: list[int] = []
            for side in sides:
                with side.lock:
                    took += getattr(side.call_log, name).took_us
            latencies.append(latency_of(took))
        pushed, popped = self._counters.pushed, min(pop.counters.popped for pop in self.pops)
        seconds = time.monotonic() - self._began
        self._on_progress(SmokeProgress(pushed, popped, _expected(), seconds, *latencies))
        if self._control.stopped:
            raise StoppedError(pushed)

    def _check_stalled(self) -> None:
        """End a round without pushes and pops, as an error: its messages may not be lost."""
        now = time.monotonic()  # first: this thread may have to wait before it reads the counts
        moved = self._counters.pushed + sum(pops.counters.popped for pops in self.pops)
        if moved != self._moved:
            self._moved, self._moved_at = moved, time.monotonic()
        elif now - self._moved_at > _STALLED_SECONDS and not self._pushes.broken.is_set():
            with self._pushes.lock:
                self._pushes.failed(f"No message was pushed or popped for {_STALLED_SECONDS:g} s.")

    def sequential(self) -> None:
        """One producer in one session, then one consumer: the order of the whole is known."""
        payloads = [payload_of(number, self.queue) for number in range(_SEQUENTIAL)]
        half = _SEQUENTIAL // 2
        pushing, began = "push to the scratch queue", now_us()
        with self.database.session(pushing) as session:
            for payload in payloads[:half]:
                with session.transaction(pushing) as connection:
                    push(connection, self.queue, payload)
            with session.transaction(pushing) as connection:
                push_many(connection, self.queue, payloads[half:])
        self._pushes_alone.pushed(0, _SEQUENTIAL, _SEQUENTIAL, began)
        for pops in self.pops:
            client = _Client(self, pops.alone, 0, pops)
            while pops.counters.popped < _SEQUENTIAL:
                self.report_progress()
                began = now_us()
                popped = client.pop(7)
                if not popped:
                    break
                finished, missed = client.finish(popped)
                pops.alone.unfinished(missed)
                pops.alone.popped(0, finished, began)

    def concurrent(self) -> None:
        """Several producers and consumers at once, each a thread with its own connection."""
        clients = [_Client(self, self._pushes, number) for number in self._pushes.clients]
        for pops in self.pops:
            side = pops.concurrent
            clients += [_Client(self, side, number, pops) for number in side.clients]
        threads = [threading.Thread(target=_guarded, args=(client,)) for client in clients]
        for side in (self._pushes, *(pops.concurrent for pops in self.pops)):
            side.begin()
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(_REPORT_SECONDS)
                    self.report_progress()
                    self._check_stalled()
        finally:
            # Also after an interrupt: the queue is removed only after all threads have ended.
            self._pushes.broken.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()


@dataclass(frozen=True)
class _Client:
    """A thread's calls, each on a connection of the pool."""

    run: _SmokeRound
    worker_round: WorkerRound
    number: int
    pops: _Pops | None = None
    """None: a producer."""

    @property
    def queue(self) -> Queue:
        return self.run.queue if self.pops is None else self.pops.queue

    def push(self, payloads: Sequence[bytes]) -> int:
        queue = self.queue
        own_payloads = [payload if _is_bytes(queue) else payload.decode() for payload in payloads]
        with self._transaction("push to the scratch queue") as connection:
            ids = [push(connection, queue, payload) for payload in own_payloads]
        return sum(id_ is not None for id_ in ids)

    def pop(self, n: int) -> Sequence[PoppedMessage]:
        with self._transaction("pop from the scratch queue") as connection:
            popped = pop_many(connection, self.queue, n, f"smoke {self.number}")
            # A strict queue is locked until the commit: recorded before it, the order is exact.
            if self.pops is not None:
                with self.run.lock:
                    self.pops.ids += [message.id for message in popped if self.number]
        return popped

    def finish(self, popped: Sequence[PoppedMessage]) -> tuple[Sequence[bytes], int]:
        missed, queue = 0, self.queue
        if queue.finishes and popped:
            with self._transaction("complete messages of the scratch queue") as connection:
                acted = [complete(connection, queue, message) for message in popped]
            missed = acted.count(False)
        sent = [message.payload for message in popped]
        return [one if isinstance(one, bytes) else one.encode() for one in sent], missed

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[Connection]:
        try:
            with self.run.database.transaction(doing) as connection:
                yield connection
        except ConnectionFailedError as error:
            with self.worker_round.lock:
                self.worker_round.failed(str(error))
            raise ConnectionLostError from error


def _guarded(client: _Client) -> None:
    try:
        (produce if client.pops is None else consume)(client)
    except ConsoleError as error:
        with client.worker_round.lock:
            client.worker_round.failed(str(error))


def judge_round(queue: Queue, name: str, call_log: CallLog, ids: Sequence[str]) -> SmokeResult:
    """As the bench judges a round, with every message popped."""
    codes: list[int] = codes_and_times(call_log.heads)[0].to_pylist()
    order = queue.design.order_with(queue.options)
    verdict = judge(call_log, codes, [], list, order)
    return SmokeResult(
        queue=name,
        design=queue.design.name,
        order=order.value,
        messages=verdict.pushed,
        # A message that could not be pushed in time counts as lost.
        lost=verdict.lost + _expected() - verdict.pushed,
        doubled=verdict.doubled,
        damaged=verdict.damaged,
        out_of_order=max(verdict.out_of_order, _out_of_order(call_log, codes, ids, order)),
        unfinished=call_log.unfinished,
        push_ms=_of_concurrent(call_log.pushes),
        pop_ms=_of_concurrent(call_log.pops),
        errors=tuple(call_log.errors),
    )


def _out_of_order(call_log: CallLog, codes: Sequence[int], ids: Sequence[str], order: Order) -> int:
    """Violations of an order that is promised beyond one producer and one consumer.

    Strict: pops of the concurrent part after one with a higher id. Other orders are checked in the
    sequential part only: a ring pops a number late whose push commits late, and a producer here
    uses any session of the pool, while some designs keep the order of each session.
    """
    if order is Order.STRICT:
        return _overtaken(map(int, ids))
    if order in {Order.NONE, *KEPT_BY_EACH}:
        return 0
    pops = zip(call_log.pops.client, call_log.pops.messages, strict=True)
    seen = codes[: sum(messages for client, messages in pops if client == 0)]
    rising = -1 if order is Order.LIFO else 1
    return _overtaken(rising * code for code in seen if code != DAMAGED)


def _overtaken(numbers: Iterable[int]) -> int:
    return len(judge_pops(map(Pop, numbers), Order.STRICT).overtaken)


def _of_concurrent(calls: Calls) -> Latency:
    took = zip(calls.took_us, calls.client, strict=True)
    return latency_of([us for us, client in took if client])
