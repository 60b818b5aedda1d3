"""The demo's traffic: for each queue one producer and one consumer, in threads of one process that
go on whatever the database does. What the messages say is made up."""

import contextlib
import json
import logging
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
from console.demo.plan import LANES, Lane
from console.engines import Database, Timeouts, open_database
from console.errors import ConsoleError

_PEOPLE = ("ana", "björn", "chidi", "dilara", "eve", "farid", "grace", "hiroshi", "İpek", "jürgen")
_GOODS = ("kettle", "desk lamp", "garden hose", "notebook", "headphones", "tent", "bicycle pump")
_PAGES = ("/", "/search", "/basket", "/checkout", "/account", "/help/returns")
_CITIES = ("Aarhus", "Bilbao", "Gdańsk", "Łódź", "Malmö", "Nantes", "Zürich")


def payload(queue: str, number: int, chance: random.Random) -> str:
    """The JSON text of a queue's message."""
    fields: dict[str, object] = {"id": number, "at": _now(chance)}
    return json.dumps(fields | _FIELDS[queue](chance), ensure_ascii=False)


def error_text(queue: str, message_id: str, chance: random.Random) -> str:
    """Why a message could not be processed: a few kinds a queue, each time with other details."""
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


class Member(Protocol):
    """What one thread does."""

    name: str

    def step(self) -> float:
        """Do a little and return how many seconds to wait; ConsoleError means: again, later."""

    def close(self) -> None:
        """Finish what is in hand, after the last step."""


def run_threads(members: Sequence[Member], stop: threading.Event) -> None:
    """Run each member in a thread of its own until stopped, then wait until all have finished."""
    threads = [
        threading.Thread(target=_keep_on, args=(member, stop), name=member.name, daemon=True)
        for member in members
    ]
    for thread in threads:
        thread.start()
    stop.wait()
    deadline = time.monotonic() + _LEAVE_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def open_for(url: str, application_name: str) -> Database:
    """The database, for one thread: its sessions carry this name."""
    return open_database(url, timeouts=_TIMEOUTS, application_name=application_name)


def say(word: str) -> None:
    """Tell the process that started this one, which may be gone."""
    with contextlib.suppress(OSError):
        os.write(1, f"{word}\n".encode())


def _keep_on(member: Member, stop: threading.Event) -> None:
    told = ""
    trouble_pause = _FIRST_PAUSE_SECONDS
    while not stop.is_set():
        try:
            pause = member.step()
        except (ConsoleError, SQLAlchemyError) as error:
            if str(error) != told:  # an hour of the same is one line of the log
                told = str(error)
                _log.warning("%s: %s", member.name, " ".join(told.split()))
            pause = trouble_pause
            trouble_pause = min(trouble_pause * 2, _LONGEST_PAUSE_SECONDS)
        else:
            told, trouble_pause = "", _FIRST_PAUSE_SECONDS
        stop.wait(pause)
    with contextlib.suppress(ConsoleError, SQLAlchemyError):
        member.close()


_TICK_SECONDS = 0.2
_BUSY_TICK_SECONDS = 0.05
"""While the producer rushes: a ring that is full stays full between two samples."""
_WORK_SECONDS = (0.05, 0.2)
"""How long a consumer of kept rows works on what it has claimed."""
_DUE_SECONDS = (0.0, 2.0)
"""When a message with a due time is due, from its push: less than a short demo."""
_JITTER = (0.75, 1.25)
"""Of every pause, so that no two flows and no sampler keep step."""


class TrafficClock:
    """Seconds since the first traffic, and who is told when that comes."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._said = False

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def traffic_flows(self) -> None:
        """Say so, once."""
        with self._lock:
            if not self._said:
                self._said = True
                say("started")


class _Flow:
    """How many messages are due, at a rate that changes. Long arrears are forgotten."""

    def __init__(self) -> None:
        self._looked = time.monotonic()
        self._due = 0.0

    def due(self, rate: float) -> int:
        looked, self._looked = self._looked, time.monotonic()
        # After a hindrance nobody pushes or pops a minute's worth at once.
        self._due += rate * min(self._looked - looked, 3 * _TICK_SECONDS)
        whole = int(self._due)
        self._due -= whole
        return whole


class _OfLane:
    """Whoever pushes to a queue or pops from it."""

    does = ""

    def __init__(self, url: str, lane: Lane, clock: TrafficClock) -> None:
        self.name = f"{lane.name}-{self.does}"
        self._database = open_for(url, self.name)
        self._queue = lane.queue(self._database.product)
        self._lane = lane
        self._clock = clock
        self._flow = _Flow()
        self._chance = random.Random(lane.name)  # noqa: S311 (a demo, no secret)

    def close(self) -> None:
        """Leave the server."""
        self._database.close()


class Producer(_OfLane):
    """Pushes the messages of one queue. What a full queue turns away is not pushed again."""

    does = "producer"
    _number = 0

    def step(self) -> float:
        """Push what is due."""
        now = self._clock.now
        payloads = []
        for _ in range(self._flow.due(self._lane.rate_at(now))):
            self._number += 1
            payloads.append(payload(self._lane.name, self._number, self._chance))
        if payloads:
            with self._database.transaction(f"push to {self._lane.name!r}") as connection:
                if "scheduled" in self._queue.states:
                    due = self._chance.uniform(*_DUE_SECONDS)
                    push_many_with(
                        connection, self._queue, payloads, PushExtras(due_in_seconds=due)
                    )
                else:
                    push_many(connection, self._queue, payloads)
            self._clock.traffic_flows()
        rushes = self._lane.rush is not None and self._lane.rush.is_on(now)
        tick = _BUSY_TICK_SECONDS if rushes else _TICK_SECONDS
        return tick * self._chance.uniform(*_JITTER)


class Consumer(_OfLane):
    """Pops the messages of one queue, as many as it can; completes what the queue keeps."""

    does = "consumer"
    _in_hand: Sequence[PoppedMessage] = ()

    def step(self) -> float:
        """Pop what is there and can be worked on; finish it."""
        self._finish()  # what an earlier step could not
        count = self._flow.due(self._lane.capacity_at(self._clock.now))
        if count:
            with self._database.transaction(f"pop from {self._lane.name!r}") as connection:
                messages = pop_many(connection, self._queue, count, self.name)
            if self._queue.finishes and messages:
                self._in_hand = messages
                time.sleep(self._chance.uniform(*_WORK_SECONDS))
                self._finish()
        return _TICK_SECONDS * self._chance.uniform(*_JITTER)

    def close(self) -> None:
        """Finish what is in hand, then leave the server."""
        self._finish()
        super().close()

    def _finish(self) -> None:
        if self._in_hand:
            with self._database.transaction(f"complete messages of {self._lane.name!r}") as c:
                for message in self._in_hand:
                    complete(c, self._queue, message)
            self._in_hand = ()


def run(settings: dict[str, str], stop: threading.Event) -> None:
    """Let it flow until stopped. `settings`: the database's `url`."""
    clock = TrafficClock()
    members: list[Member] = []
    for lane in LANES:
        members.append(Producer(settings["url"], lane, clock))
        members.append(Consumer(settings["url"], lane, clock))
    run_threads(members, stop)
