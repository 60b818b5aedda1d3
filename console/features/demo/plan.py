"""The demo's queues, their traffic, and the schedule of its faults.

Every fault leaves at least half of its queue's traffic flowing. Faults of the traffic come and go;
stuck claims and error rows stay until an operator acts, so their number is limited.
"""

from dataclasses import dataclass, field
from math import pi, sin

from console.catalog import Queue, installed_queue
from console.designs import DESIGNS
from console.engines import Product

STUCK_AFTER_SECONDS = 3.0
"""How long a claim may last in the demo before it counts as stuck."""


@dataclass(frozen=True)
class Recurring:
    """Something that comes and goes. Seconds since the first traffic."""

    first_seconds: float
    every_seconds: float
    lasting_seconds: float

    def is_on(self, now: float) -> bool:
        since = now - self.first_seconds
        return since >= 0 and since % self.every_seconds < self.lasting_seconds


@dataclass(frozen=True)
class DemoQueue:
    """One queue of the demo and its traffic, in messages a second."""

    name: str
    design: str
    rate: float
    """Average rate of the producer."""
    capacity: float
    """Highest rate of the consumer."""
    wave_seconds: float
    """The producer's rate rises and falls with this period."""
    options: dict[str, str] = field(default_factory=dict)
    rush: Recurring | None = None
    """The producer pushes at `rush_rate`, more than the consumer's capacity."""
    rush_rate: float = 0.0
    slowness: Recurring | None = None
    """The consumer pops `slow_capacity` only."""
    slow_capacity: float = 0.0

    def rate_at(self, now: float) -> float:
        """The producer's."""
        if self.rush and self.rush.is_on(now):
            return self.rush_rate
        return self.rate * (1 + 0.3 * sin(2 * pi * now / self.wave_seconds))

    def capacity_at(self, now: float) -> float:
        """The consumer's."""
        return self.slow_capacity if self.slowness and self.slowness.is_on(now) else self.capacity

    def queue(self, on: Product) -> Queue:
        design = DESIGNS[self.design]
        direct = {"consumers": "direct"} if design.has_option("consumers") else {}
        options = design.complete_options({**self.options, **direct}, on.name)
        return installed_queue(on.default_schema, self.name, design, options)


DEMO_QUEUES = (
    DemoQueue("ledger", "naive", rate=25, capacity=60, wave_seconds=31),
    # Full after about 4 seconds of a rush, for about 5; further pushes are rejected.
    DemoQueue(
        "orders",
        "ring",
        rate=60,
        capacity=200,
        wave_seconds=43,
        options={"size": "500"},
        rush=Recurring(3, 60, 9),
        rush_rate=350,
    ),
    DemoQueue("clicks", "heap", rate=50, capacity=120, wave_seconds=19),
    DemoQueue("payments", "fifo", rate=35, capacity=90, wave_seconds=37),
    DemoQueue(
        "thumbnails",
        "stack",
        rate=25,
        capacity=45,
        wave_seconds=47,
        slowness=Recurring(2, 50, 20),
        slow_capacity=20,
    ),
    DemoQueue("reminders", "pending", rate=20, capacity=60, wave_seconds=29),
    DemoQueue("mail", "claim", rate=25, capacity=60, wave_seconds=41, options={"history": "5"}),
    # Done rows stay until they are archived: little traffic, for a demo that runs all night.
    DemoQueue("invoices", "status", rate=10, capacity=30, wave_seconds=53),
    DemoQueue("shipments", "split", rate=12, capacity=30, wave_seconds=23),
)
"""One queue of every design."""

HELD_QUEUE = "payments"
"""The fifo (lax) whose rows a forgotten transaction holds; other pops skip them."""
HELD_ROWS = 15
HOLDING = Recurring(1.5, 30, 10)

FAILING_QUEUES = ("mail", "invoices", "shipments")
ERRORS_AT_MOST = 30
"""Error rows per queue."""
FIRST_ERROR_SECONDS = 1.0
ERROR_PAUSE_SECONDS = 1.5
"""Between two errors of a queue, at first; grows by `ERROR_PAUSE_GROWTH` up to the longest."""
ERROR_PAUSE_GROWTH = 1.2
LONGEST_ERROR_PAUSE_SECONDS = 30.0

KILLED_QUEUES = ("mail", "shipments", "invoices")
"""Whose consumers are killed, in turn; the first one at once."""
CLAIMS_OF_KILLED = 4
KILLED_AT_MOST = 5
"""Consumers killed per queue: 20 stuck claims."""
KILL_PAUSE_SECONDS = 20.0
