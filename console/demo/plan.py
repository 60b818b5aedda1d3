"""What the demo shows: its queues, how much flows through each, and which faults come when.

Every fault leaves at least half of its queue's traffic flowing. Faults of the traffic come and
go; stuck claims and error rows stay until an operator acts, so their number is limited here.
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
        """Whether it is there at this moment."""
        since = now - self.first_seconds
        return since >= 0 and since % self.every_seconds < self.lasting_seconds


@dataclass(frozen=True)
class Lane:
    """One queue of the demo and its traffic, in messages a second."""

    name: str
    design: str
    rate: float
    """What the producer pushes, on average."""
    capacity: float
    """What the consumer pops at most; the rest of the time it waits for messages."""
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
        """The producer's rate at a moment."""
        if self.rush and self.rush.is_on(now):
            return self.rush_rate
        return self.rate * (1 + 0.3 * sin(2 * pi * now / self.wave_seconds))

    def capacity_at(self, now: float) -> float:
        """The consumer's at a moment."""
        return self.slow_capacity if self.slowness and self.slowness.is_on(now) else self.capacity

    def queue(self, on: Product) -> Queue:
        """The queue, with all the options that the engine has."""
        design = DESIGNS[self.design]
        options = design.complete_options(self.options, on.name)
        return installed_queue(on.default_schema, self.name, design, options)


LANES = (
    Lane("ledger", "naive", rate=25, capacity=60, wave_seconds=31),
    # Full after about 4 seconds of a rush, for about 5; what does not fit is turned away.
    Lane(
        "orders",
        "ring",
        rate=60,
        capacity=200,
        wave_seconds=43,
        options={"size": "500"},
        rush=Recurring(3, 60, 9),
        rush_rate=350,
    ),
    Lane("clicks", "heap", rate=50, capacity=120, wave_seconds=19),
    Lane("payments", "fifo", rate=35, capacity=90, wave_seconds=37),
    Lane(
        "thumbnails",
        "stack",
        rate=25,
        capacity=45,
        wave_seconds=47,
        slowness=Recurring(2, 50, 20),
        slow_capacity=20,
    ),
    Lane("reminders", "pending", rate=20, capacity=60, wave_seconds=29),
    Lane("mail", "claim", rate=25, capacity=60, wave_seconds=41, options={"history": "5"}),
    # Done rows stay until they are archived: little traffic, for a demo that runs all night.
    Lane("invoices", "status", rate=10, capacity=30, wave_seconds=53),
    Lane("shipments", "split", rate=12, capacity=30, wave_seconds=23),
)
"""One queue of every design."""

HELD_QUEUE = "payments"
"""The fifo (lax) whose rows a forgotten transaction holds: others pass them by."""
HELD_ROWS = 15
HOLDING = Recurring(1.5, 30, 10)

FAILING_QUEUES = ("mail", "invoices", "shipments")
ERRORS_AT_MOST = 30
"""Error rows that the demo makes per queue."""
FIRST_ERROR_SECONDS = 1.0
ERROR_PAUSE_SECONDS = 1.5
"""Between two errors of a queue, at first; grows by `ERROR_PAUSE_GROWTH` up to the longest."""
ERROR_PAUSE_GROWTH = 1.2
LONGEST_ERROR_PAUSE_SECONDS = 30.0

KILLED_QUEUES = ("mail", "shipments", "invoices")
"""Whose consumers get killed, in turn; the first one at once."""
CLAIMS_OF_KILLED = 4
KILLED_AT_MOST = 5
"""Consumers killed per queue: 20 stuck claims."""
KILL_PAUSE_SECONDS = 20.0
