"""The demo's traffic: for each queue one producer and one consumer, in threads of one process."""

import random
import threading
import time

from console.actions.pop import Message, complete, pop_many
from console.actions.push import push_many, push_many_due
from console.demo.crew import Member, open_for, run_crew, say
from console.demo.payloads import payload
from console.demo.plan import LANES, Lane

_TICK_SECONDS = 0.2
_BUSY_TICK_SECONDS = 0.05
"""While the producer rushes: a ring that is full stays full between two looks."""
_WORK_SECONDS = (0.05, 0.2)
"""How long a consumer of kept rows works on what it has claimed."""
_DUE_SECONDS = (0.0, 2.0)
"""When a message with a due time is due, from its push: less than a short demo."""
_JITTER = (0.75, 1.25)
"""Of every pause, so that no two flows and no sampler keep step."""


class Clock:
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


class Producer:
    """Pushes the messages of one queue. What a full queue turns away is not pushed again."""

    def __init__(self, url: str, lane: Lane, clock: Clock) -> None:
        self.name = f"{lane.name}-producer"
        self._database = open_for(url, self.name)
        self._queue = lane.queue(self._database.product.default_schema)
        self._lane = lane
        self._clock = clock
        self._flow = _Flow()
        self._chance = random.Random(lane.name)  # noqa: S311 (a demo, no secret)
        self._number = 0

    def step(self) -> float:
        """Push what is due."""
        now = self._clock.now
        payloads = []
        for _ in range(self._flow.due(self._lane.rate_at(now))):
            self._number += 1
            payloads.append(payload(self._lane.name, self._number, self._chance))
        if payloads:
            with self._database.transaction(f"push to {self._lane.name!r}") as connection:
                product = self._database.product
                if "scheduled" in self._queue.states:
                    due = self._chance.uniform(*_DUE_SECONDS)
                    push_many_due(connection, product, self._queue, payloads, due)
                else:
                    push_many(connection, product, self._queue, payloads)
            self._clock.traffic_flows()
        rushes = self._lane.rush is not None and self._lane.rush.is_on(now)
        tick = _BUSY_TICK_SECONDS if rushes else _TICK_SECONDS
        return tick * self._chance.uniform(*_JITTER)

    def close(self) -> None:
        """Leave the server."""
        self._database.close()


class Consumer:
    """Pops the messages of one queue, as many as it can; completes what the queue keeps."""

    def __init__(self, url: str, lane: Lane, clock: Clock) -> None:
        self.name = f"{lane.name}-consumer"
        self._database = open_for(url, self.name)
        self._queue = lane.queue(self._database.product.default_schema)
        self._lane = lane
        self._clock = clock
        self._flow = _Flow()
        self._chance = random.Random(lane.name)  # noqa: S311 (a demo, no secret)
        self._in_hand: list[Message] = []

    def step(self) -> float:
        """Pop what is there and can be worked on; finish it."""
        self._finish()  # what an earlier step could not
        count = self._flow.due(self._lane.capacity_at(self._clock.now))
        if count:
            with self._database.transaction(f"pop from {self._lane.name!r}") as connection:
                messages = pop_many(
                    connection, self._database.product, self._queue, count, self.name
                )
            if self._queue.finishes and messages:
                self._in_hand = messages
                time.sleep(self._chance.uniform(*_WORK_SECONDS))
                self._finish()
        return _TICK_SECONDS * self._chance.uniform(*_JITTER)

    def close(self) -> None:
        """Finish what is in hand, then leave the server."""
        self._finish()
        self._database.close()

    def _finish(self) -> None:
        if self._in_hand:
            with self._database.transaction(f"complete messages of {self._lane.name!r}") as c:
                for message in self._in_hand:
                    complete(c, self._database.product, self._queue, message)
            self._in_hand = []


def run(settings: dict[str, str], stop: threading.Event) -> None:
    """Let it flow until stopped. `settings`: the database's `url`."""
    clock = Clock()
    members: list[Member] = []
    for lane in LANES:
        members.append(Producer(settings["url"], lane, clock))
        members.append(Consumer(settings["url"], lane, clock))
    run_crew(members, stop)
