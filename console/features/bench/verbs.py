"""Bench, which uses scratch queues of its own."""

import math
from typing import TYPE_CHECKING, Any

import click

from console.errors import UsageError
from console.features.bench.candidate import ROOM, Load
from console.load.call_log import SMALLEST
from console.verbs.command import Command, Params, admin
from console.verbs.parameters import Parameter, TextType, WholeNumber

if TYPE_CHECKING:
    from console.features.bench.action import BenchRequest


def _numbers(text: str) -> tuple[int, ...]:
    """`1` or `1,10,100`: each at least 1. UsageError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and int(part) for part in parts):
        raise UsageError(f"{text!r} must be whole numbers, such as 1 or 1,10,100.")
    return tuple(dict.fromkeys(int(part) for part in parts))


_NUMBERS = TextType("numbers", tuple, _numbers)


class Seconds(click.FloatRange):
    """A finite number of seconds."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Fails below the minimum."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not (self.min or 0.0) <= seconds < math.inf:
            self.fail(f"It must be seconds, at least {self.min:g}, not {value!r}.", param, ctx)
        return seconds


_CLIENTS = WholeNumber(1, 1000)

BENCH = Command(
    "bench",
    own_summary="how fast each design is here, every message checked",
    parameters=(
        Parameter(
            "designs", "All, or some: ring,fifo:order=strict.", default="all", metavar="all|D,D"
        ),
        Parameter(
            "peers",
            "All, none, or some: pgmq,pgmq-read,procrastinate,pgqueuer.",
            default="none",
            metavar="all|none|P,P",
        ),
        Parameter("producers", "Connections that push.", _CLIENTS, default="16"),
        Parameter("consumers", "Connections that pop.", _CLIENTS, default="16"),
        Parameter("batch", "Messages per call; or 1,10,100.", _NUMBERS, default="1"),
        Parameter("payload", "Bytes of a message.", WholeNumber(SMALLEST), default="300"),
        Parameter("seconds", "Of a round.", Seconds(0.1), default="10"),
        Parameter("warmup", "Seconds before each.", Seconds(0.0), default="2"),
        Parameter("rounds", "Of each, in turn.", WholeNumber(1, 1000), default="3"),
        Parameter("ring-size", "Slots of a ring; several are compared.", _NUMBERS),
        Parameter(
            "subscribers",
            "A ring with N subscribers, against N rings pushed to in one transaction.",
            WholeNumber(1, 32),
            metavar="N",
        ),
        Parameter(
            "held-xmin", "Keep one old transaction open: which designs slow down?", is_flag=True
        ),
    ),
    right=admin,
)

MORE_OF_BENCH = (
    Parameter(
        "room",
        "Producers wait while this many messages are in the queue; 0: only where a ring is full.",
        WholeNumber(0),
        default=str(Load.room),
    ),
    Parameter(
        "with-console", "Each round also with the console sampling it at 1 Hz.", is_flag=True
    ),
    Parameter("floor", "Also single-row updates by key.", is_flag=True),
    Parameter(
        "against-pgbench", "The floor also with pgbench, by the same statement.", is_flag=True
    ),
    Parameter("report", "Write a chart: FILE.svg.", click.Path(dir_okay=False), metavar="FILE"),
)
"""Options that only its command line has."""


def bench_request(values: Params) -> tuple["BenchRequest", Load]:
    """The candidates and the load that the values of bench describe."""
    from console.features.bench.action import BenchRequest  # noqa: PLC0415  # verbs shall start at once

    load = Load(
        producers=values["producers"],
        consumers=values["consumers"],
        payload=values["payload"],
        seconds=values["seconds"],
        warmup_seconds=values["warmup"],
        rounds=values["rounds"],
        room=values.get("room", Load.room) or (ROOM if values["subscribers"] else 0),
        held_xmin=values["held_xmin"],
        with_console=values.get("with_console", False),
    )
    floor = values.get("floor", False) or values.get("against_pgbench", False)
    batches, sizes = values["batch"], values["ring_size"] or ()
    subscribers = values["subscribers"] or 0
    designs, peers = values["designs"], values["peers"]
    return BenchRequest(designs, peers, batches, sizes, floor, subscribers), load
