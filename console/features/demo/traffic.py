"""The demo's traffic: a producer and a consumer for each queue, in threads of one process that
continue whatever the database does, with made-up messages."""

import contextlib
import json
import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Protocol

from sqlalchemy.exc import SQLAlchemyError

from console.actions.pop import PoppedMessage, complete, pop_many
from console.actions.push import PushExtras, push_many, push_many_with
from console.clock import sleep
from console.engines import Database, Timeouts, open_database
from console.errors import ConsoleError
from console.features.demo.plan import DEMO_QUEUES, DemoQueue

_PEOPLE = ("ana", "björn", "chidi", "dilara", "eve", "farid", "grace", "hiroshi", "İpek", "jürgen")
_GOODS = ("kettle", "desk lamp", "garden hose", "notebook", "headphones", "tent", "bicycle pump")
_PAGES = ("/", "/search", "/basket", "/checkout", "/account", "/help/returns")
_CITIES = ("Aarhus", "Bilbao", "Gdańsk", "Łódź", "Malmö", "Nantes", "Zürich")


def payload(queue: str, number: int, chance: random.Random) -> str:
    """The JSON text of a queue's message."""
    fields: dict[str, object] = {"id": number, "at": _now(chance)}
    return json.dumps(fields | _FIELDS[queue](chance), ensure_ascii=False)


def error_text(queue: str, message_id: str, chance: random.Random) -> str:
    """A few error groups for each queue, each time with other details."""
    make = chance.choices(_ERRORS[queue], weights=(6, 3, 1))[0]
    return make(message_id, chance)


def _now(chance: random.Random) -> str:
    moment = datetime.now(UTC).replace(microsecond=chance.randrange(1_000_000))
    return moment.isoformat(timespec="milliseconds")


def _hex(chance: random.Random, digits: int) -> str:
    return f"{chance.getrandbits(4 * digits):0{digits}x}"


def _order(chance: random.Random) -> dict[str, object]:
    return {
        "customer": chance.choice(_PEOPLE),
        "item": chance.choice(_GOODS),
        "quantity": chance.randint(1, 5),
        "total": round(chance.uniform(4, 300), 2),
    }


def _mail(chance: random.Random) -> dict[str, object]:
    order = chance.randint(10_000, 99_999)
    return {
        "to": f"{chance.choice(_PEOPLE)}@example.com",
        "subject": f"Your order {order} is on its way",
        "template": chance.choice(("shipped", "welcome", "receipt")),
    }


_FIELDS: dict[str, Callable[[random.Random], dict[str, object]]] = {
    "ledger": lambda c: {
        "account": c.randint(4000, 4999),
        "amount": round(c.uniform(-500, 500), 2),
        "currency": c.choice(("EUR", "DKK", "PLN")),
    },
    "orders": _order,
    "clicks": lambda c: {
        "visitor": _hex(c, 12),
        "page": c.choice(_PAGES),
        "milliseconds": c.randint(40, 900),
    },
    "payments": lambda c: {
        "order": c.randint(10_000, 99_999),
        "amount": round(c.uniform(4, 300), 2),
        "method": c.choice(("card", "transfer", "wallet")),
    },
    "thumbnails": lambda c: {
        "image": f"s3://pictures/{_hex(c, 8)}.jpg",
        "width": c.choice((160, 320, 640)),
    },
    "reminders": lambda c: {
        "customer": c.choice(_PEOPLE),
        "what": c.choice(("basket", "renewal", "review")),
    },
    "mail": _mail,
    "invoices": lambda c: {
        "order": c.randint(10_000, 99_999),
        "customer": c.choice(_PEOPLE),
        "net": round(c.uniform(4, 300), 2),
        "vat_percent": c.choice((19, 23, 25)),
    },
    "shipments": lambda c: {
        "order": c.randint(10_000, 99_999),
        "city": c.choice(_CITIES),
        "grams": c.randint(80, 12_000),
    },
}

_ErrorMaker = Callable[[str, random.Random], str]

_ERRORS: dict[str, tuple[_ErrorMaker, _ErrorMaker, _ErrorMaker]] = {
    "mail": (
        lambda _, c: (
            f"SMTP 451 4.7.1 <{c.choice(_PEOPLE)}@example.com>: greylisted, try again after "
            f"{_now(c)} (session {_hex(c, 8)})"
        ),
        lambda message, c: f"timeout: message {message} not sent within {c.randint(3000, 3099)} ms",
        lambda _, c: (
            f"template error at {_now(c)}: KeyError 'first_name' in order {c.randint(1000, 9999)}"
        ),
    ),
    "invoices": (
        lambda message, c: (
            f"HTTP 503 from https://tax.example.com/v2/rates?invoice={message} after "
            f"{c.randint(5000, 5400)} ms (request {_hex(c, 16)})"
        ),
        lambda _, c: (
            'duplicate key value violates unique constraint "invoice_number_key"\n'
            f"DETAIL: Key (number)=({c.randint(200_000, 299_999)}) already exists."
        ),
        lambda message, c: (
            f"{_now(c)} invoice {message}: VAT id DE{c.randint(10**8, 10**9)} unknown"
        ),
    ),
    "shipments": (
        lambda _, c: (
            f"carrier refused parcel {c.randint(10**9, 10**10)}: no service to "
            f"{c.choice(_CITIES)} on {datetime.now(UTC):%Y-%m-%d}"
        ),
        lambda message, c: (
            f"deadline exceeded: label of shipment {message} took {c.uniform(30, 31):.2f} s"
        ),
        lambda _, c: (
            f"[Errno 111] connection to 10.0.{c.randint(0, 9)}.{c.randint(1, 254)}:9100 refused"
        ),
    ),
}


_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 5.0
_LEAVE_SECONDS = 3.0
_TIMEOUTS = Timeouts(connect_seconds=5, statement_seconds=10.0, lock_seconds=5.0)

_log = logging.getLogger(__name__)


class Worker(Protocol):
    """The work of one thread."""

    name: str

    def step(self) -> float:
        """Do a little and return the seconds to wait. After a ConsoleError it is called again."""

    def close(self) -> None:
        """Finish the current work, after the last step."""


def run_workers(workers: Sequence[Worker], stop: threading.Event) -> None:
    """Run each worker in a thread of its own until stopped, then wait until all have finished."""
    threads = [
        threading.Thread(target=_run_worker, args=(worker, stop), name=worker.name, daemon=True)
        for worker in workers
    ]
    for thread in threads:
        thread.start()
    sleep(math.inf, stop)
    deadline = time.monotonic() + _LEAVE_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def open_for(url: str, application_name: str) -> Database:
    """The database, for one thread: its sessions carry this name."""
    return open_database(url, timeouts=_TIMEOUTS, application_name=application_name)


def send_line(word: str) -> None:
    """To the process that started this one, which may have ended."""
    with contextlib.suppress(OSError):
        os.write(1, f"{word}\n".encode())


def _run_worker(worker: Worker, stop: threading.Event) -> None:
    logged = ""
    error_pause = _FIRST_PAUSE_SECONDS
    while not stop.is_set():
        try:
            pause = worker.step()
        except (ConsoleError, SQLAlchemyError) as error:
            if str(error) != logged:  # a repeated error is logged once
                logged = str(error)
                _log.warning("%s: %s", worker.name, " ".join(logged.split()))
            pause = error_pause
            error_pause = min(error_pause * 2, _LONGEST_PAUSE_SECONDS)
        else:
            logged, error_pause = "", _FIRST_PAUSE_SECONDS
        stop.wait(pause)
    with contextlib.suppress(ConsoleError, SQLAlchemyError):
        worker.close()


_TICK_SECONDS = 0.2
_BUSY_TICK_SECONDS = 0.05
"""While the producer rushes: a ring that is full stays full between two samples."""
_WORK_SECONDS = (0.05, 0.2)
"""How long a consumer works on what it has claimed."""
_DUE_SECONDS = (0.0, 2.0)
"""From push to due time."""
_JITTER = (0.75, 1.25)
"""A factor of every pause, so that workers and samplers stay out of step."""


class TrafficClock:
    """Seconds since the start; it also reports the first traffic."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._reported = False

    @property
    def now(self) -> float:
        return time.monotonic() - self._started

    def traffic_flows(self) -> None:
        """Report it, once."""
        with self._lock:
            if not self._reported:
                self._reported = True
                send_line("started")


class _Flow:
    """The number of messages due at a changing rate. A long backlog is dropped."""

    def __init__(self) -> None:
        self._counted_at = time.monotonic()
        self._due = 0.0

    def due(self, rate: float) -> int:
        before, self._counted_at = self._counted_at, time.monotonic()
        # After an interruption, do not push or pop a minute's worth at once.
        self._due += rate * min(self._counted_at - before, 3 * _TICK_SECONDS)
        count = int(self._due)
        self._due -= count
        return count


class _Worker:
    role = ""

    def __init__(self, url: str, demo_queue: DemoQueue, clock: TrafficClock) -> None:
        self.name = f"{demo_queue.name}-{self.role}"
        self._database = open_for(url, self.name)
        self._queue = demo_queue.queue(self._database.product)
        self._demo_queue = demo_queue
        self._clock = clock
        self._flow = _Flow()
        self._chance = random.Random(demo_queue.name)  # noqa: S311 (a demo, no secret)

    def close(self) -> None:
        self._database.close()


class Producer(_Worker):
    """Pushes the messages of one queue. What a full queue rejects is not pushed again."""

    role = "producer"
    _number = 0

    def step(self) -> float:
        now = self._clock.now
        payloads = []
        for _ in range(self._flow.due(self._demo_queue.rate_at(now))):
            self._number += 1
            payloads.append(payload(self._demo_queue.name, self._number, self._chance))
        if payloads:
            with self._database.transaction(f"push to {self._demo_queue.name!r}") as connection:
                if "scheduled" in self._queue.states:
                    due = self._chance.uniform(*_DUE_SECONDS)
                    push_many_with(
                        connection, self._queue, payloads, PushExtras(due_in_seconds=due)
                    )
                else:
                    push_many(connection, self._queue, payloads)
            self._clock.traffic_flows()
        rushes = self._demo_queue.rush is not None and self._demo_queue.rush.is_on(now)
        tick = _BUSY_TICK_SECONDS if rushes else _TICK_SECONDS
        return tick * self._chance.uniform(*_JITTER)


class Consumer(_Worker):
    """Pops the messages of one queue, as many as it can; completes what the queue keeps."""

    role = "consumer"
    _claimed: Sequence[PoppedMessage] = ()

    def step(self) -> float:
        self._finish()  # what an earlier step could not
        count = self._flow.due(self._demo_queue.capacity_at(self._clock.now))
        if count:
            with self._database.transaction(f"pop from {self._demo_queue.name!r}") as connection:
                messages = pop_many(connection, self._queue, count, self.name)
            if self._queue.finishes and messages:
                self._claimed = messages
                time.sleep(self._chance.uniform(*_WORK_SECONDS))
                self._finish()
        return _TICK_SECONDS * self._chance.uniform(*_JITTER)

    def close(self) -> None:
        self._finish()
        super().close()

    def _finish(self) -> None:
        if self._claimed:
            with self._database.transaction(f"complete messages of {self._demo_queue.name!r}") as c:
                for message in self._claimed:
                    complete(c, self._queue, message)
            self._claimed = ()


def run(settings: dict[str, str], stop: threading.Event) -> None:
    """`settings`: the database's `url`."""
    clock = TrafficClock()
    workers: list[Worker] = []
    for demo_queue in DEMO_QUEUES:
        workers.append(Producer(settings["url"], demo_queue, clock))
        workers.append(Consumer(settings["url"], demo_queue, clock))
    run_workers(workers, stop)
