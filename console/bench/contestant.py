"""What takes part in a bench, as the process that runs the bench sees it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from console.designs import Order


@dataclass(frozen=True)
class LeftRow:
    """What is left in a queue of one producer's messages; producer -1: what is damaged."""

    producer: int
    messages: int
    different: int
    numbers: str
    """The sum of their numbers, in digits."""
    squares: str
    """The sum of the squares of their numbers, in digits."""


@dataclass(frozen=True)
class Contestant:
    """Who takes part. Every round is on a queue that `Ground.scratch` makes for it alone."""

    name: str
    """Of a row in the table: `ring`, `ring size=100000`, `procrastinate`."""
    design: str
    """The design, or the peer's name."""
    batch: int
    driver: str
    """`module:function` that a worker process runs: it takes a `console.bench.shift.Shift`."""
    order: Order = Order.NONE
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    peer: bool = False
    carries: bool = True
    """Whether messages go through; the floor's rows do not."""


class Scratch(Protocol):
    """A queue of one round, as long as its context is open."""

    @property
    def settings(self) -> Mapping[str, object]:
        """What the driver needs, as JSON: `Shift.task.settings`."""
        ...

    @property
    def schema(self) -> str:
        """Where its tables are; all in a schema whose name begins with `dbq_bench_`, or listed."""
        ...

    @property
    def tables(self) -> Sequence[str]:
        """Their names, for the pages and rows that were touched."""
        ...

    def left(self, filler: bytes) -> list[LeftRow]:
        """What is still in it that no consumer finished: one set-based query."""
        ...

    def left_codes(self, filler: bytes) -> list[int]:
        """The same, message by message: asked only where the sums do not come out."""
        ...


class Ground(Protocol):
    """Where contestants of one kind get their queues."""

    def scratch(self, contestant: Contestant, payload: int) -> AbstractContextManager[Scratch]:
        """Make a queue for payloads of so many bytes; it goes with the context, however it ends."""
        ...
