"""The verbs bench and prove, which use scratch queues of their own."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from console.bench.call_log import SMALLEST
from console.bench.candidate import ROOM, Load
from console.errors import UsageError
from console.verbs.parameters import Parameter, TextType, WholeNumber
from console.verbs.verb import Params, Verb, admin

if TYPE_CHECKING:
    from console.actions.bench import BenchRequest


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

BENCH = Verb(
    "bench",
    own_summary="how fast each design is here, every message checked",
    help="""\
    Measure how fast each design is here, on scratch queues, checking every message.

    Without a connection it starts an embedded server (extra [demo]) with durable commits. Designs
    take turns, round by round; figures are medians. Peers are other queues in tables (extra
    [bench]). Exit 1: a message was lost, doubled or damaged.

    \b
    Examples:
      dbq-console bench
      dbq-console bench --designs ring,fifo --batch 1,10,100 --json
      dbq-console bench --designs all --url postgresql+psycopg://me@host/database
    """,
    parameters=(
        Parameter(
            "designs",
            "All, or some: ring,fifo:order=strict.",
            default="all",
            metavar="all|D,D",
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
    confirmed=False,
)

COMMAND = replace(
    BENCH,
    parameters=(
        *BENCH.parameters,
        Parameter(
            "room",
            "Producers wait while this many messages are in the queue; 0: only where a ring is "
            "full.",
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
    ),
)
"""Bench on the command line, which has more options."""


def bench_request(values: Params) -> tuple["BenchRequest", Load]:
    """The candidates and the load that the values of bench describe."""
    from console.actions.bench import BenchRequest  # noqa: PLC0415  # verbs shall start at once

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


PROVE = Verb(
    "prove",
    own_summary="what the console claims of each design, proven on this server",
    help="""\
    Prove every claim about each design on this server; prints a Markdown report.

    It uses its own scratch queues, dropped at the end: installation, order, rollback, killed
    sessions, isolation, full and empty, purge and restore, the doctor's findings and repairs, the
    rights of the three roles, and what an engine's manual leaves open. It takes 5 minutes at most;
    the next run drops what a killed one left. Each line is proven, failed, or not applicable (and
    why). Exit 1: something failed or was not reached in time.

    \b
    Examples:
      dbq-console prove --url mssql+pyodbc://me@host/database --output proof.md
      dbq-console prove --profile test --designs ring,fifo:order=strict
      dbq-console prove --url postgresql+psycopg://me@host/database --json
    """,
    parameters=(
        Parameter(
            "designs", "All, or some: ring,fifo:order=strict.", default="all", metavar="all|D,D"
        ),
        Parameter(
            "output", "Write the report to FILE.", click.Path(dir_okay=False), metavar="FILE"
        ),
    ),
    right=admin,
    confirmed=False,
)
