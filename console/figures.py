"""The table of figures: what each is, and how it is sampled, shown, added up, limited and stored.

All that samples, shows, records or limits figures is made from this table. A figure is added by its
value here, its field in SampledFigures (a column of the `status` statements) or in QueueFigures
(one that follows from others), and its place in SHOWN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from console.formats import count, duration, rate

COUNTED = 10_000
"""Rows of a state are counted up to here; one more means: there are more."""
RING = "ring"
"""What a figure needs that only rings have; other needs are states."""


@dataclass(frozen=True)
class Unit:
    exact: Callable[[float], str]
    symbol: str
    """In performance data."""
    most: float
    """A larger recorded value is an error and counts as unknown: a day's total fits a bigint."""
    scale: int = 1
    """Units of a total per unit of the mean, in rollups."""
    mean: bool = False
    """Over time it is the mean that is shown, else the highest."""

    def text(self, value: float, *, estimated: bool = False) -> str:
        """`12`, `≈12 k`, `3 s`, `5.0`."""
        return count(int(value), estimated=True) if estimated else self.exact(value)


def _count(number: float) -> str:
    return count(int(number))


def _duration(seconds: float) -> str:
    return duration(max(seconds, 0.0))  # two clocks: never negative


def _share(part: float) -> str:
    return f"{int(part * 100 + 1e-9)} %"  # rounded down: at 99.9 % a ring still takes pushes


MESSAGES = Unit(_count, "", 1e12)
SECONDS = Unit(_duration, "s", 1e10, scale=1_000)
PER_SECOND = Unit(rate, "", 1e7, mean=True)
LATENCY = Unit(_duration, "s", 1e7, scale=1_000_000)
SHARE = Unit(_share, "%", 1.0)


@dataclass(frozen=True)
class Figure:
    name: str
    """Of its field in a snapshot; its key in `--json`, recordings and rollups."""
    title: str
    """Its name in columns and filters."""
    unit: Unit
    needs: str = ""
    """A state, or RING: other designs do not have the figure."""
    optional: bool = False
    """There may be none: it is not unknown then."""
    rows_read: int = 0
    """How many rows a sample reads for it at most; 0: none."""
    heading: str | None = None
    """Of its column in `status`, if not the title; empty: it has none."""
    words: str = ""
    """Its name in reports, if not the title."""
    width: int = 0
    """At least, of its column on the overview; 0: it has none."""
    narrow: bool = True
    """Whether a narrow overview has its column too."""
    alarm: str = ""
    """The style of that column where it is not zero."""
    add_up: Callable[[Iterable[float]], float] | None = None
    """Of several queues; None: it is not added up."""
    may_be_negative: bool = False
    """Then a sum says nothing if it is unknown for some queues."""
    of: Callable[[Any], float | None] | None = None
    """How it follows from a row of a `status` statement; None: it is a column, or of no row."""
    in_history: bool = True
    gauge: str = ""
    """Of `serve-metrics`, after `dbq_queue_`; empty: there is none."""
    help: str = ""
    """Of the gauge."""

    @property
    def declared(self) -> Mapping[str, Figure]:
        """The metadata of its field."""
        return {"figure": self}

    @property
    def key(self) -> str:
        """The name without its unit: `age`."""
        return self.name.removesuffix("_seconds").removesuffix("_per_second")

    @property
    def gauge_unit(self) -> str:
        """The end of a gauge's name, if that is a unit."""
        end = self.gauge.rpartition("_")[2]
        return end if end in {"messages", "seconds"} else ""


READY = Figure(
    "ready", "ready", MESSAGES, needs="ready", rows_read=COUNTED + 1, width=7, add_up=sum,
    gauge="ready_messages", help="Messages that can be popped now.",
)  # fmt: skip
SCHEDULED = Figure(
    "scheduled", "scheduled", MESSAGES, needs="scheduled", rows_read=COUNTED + 1, heading="due",
    gauge="scheduled_messages", help="Messages scheduled for later.",
)  # fmt: skip
CLAIMED = Figure(
    "claimed", "claimed", MESSAGES, needs="claimed", rows_read=COUNTED + 1, width=7, narrow=False,
    add_up=sum, gauge="claimed_messages", help="Messages popped and not yet finished.",
)  # fmt: skip
STUCK = Figure(
    "stuck", "stuck", MESSAGES, needs="claimed", rows_read=COUNTED + 1, width=5, alarm="critical",
    add_up=sum, gauge="stuck_messages", help="Claims held for longer than stuck_after.",
)  # fmt: skip
ERRORS = Figure(
    "errors", "errors", MESSAGES, needs="error", rows_read=COUNTED + 1, width=6, alarm="warning",
    add_up=sum, gauge="error_messages", help="Messages that failed and wait for an operator.",
)  # fmt: skip
DONE = Figure(
    "done", "done", MESSAGES, needs="done", rows_read=COUNTED + 1,
    gauge="done_messages", help="Messages processed and not yet archived.",
)  # fmt: skip
AGE = Figure(
    "age_seconds", "age", SECONDS, rows_read=1, words="age of the oldest", width=11, add_up=max,
    gauge="age_seconds", help="Age of the oldest message that is ready.",
)  # fmt: skip
PUSH = Figure("push_per_second", "push/s", PER_SECOND, width=8, narrow=False, add_up=sum)
POP = Figure("pop_per_second", "pop/s", PER_SECOND, width=8, narrow=False, add_up=sum)
GAP = Figure(
    "gap", "gap", MESSAGES, needs=RING, words="push/pop sequence gap", width=7, add_up=sum,
    of=lambda row: row.gap, may_be_negative=True,
    gauge="gap_messages", help="Next push number minus next pop number of a ring.",
)  # fmt: skip
CAPACITY = Figure(
    "capacity", "capacity", MESSAGES, needs=RING, heading="", words="slots", in_history=False,
    of=lambda row: row.capacity,
    gauge="capacity_messages", help="Slots of a ring.",
)  # fmt: skip
HOLDERS = Figure(
    "holders", "writers", MESSAGES, in_history=False,
    gauge="open_transactions", help="Open transactions that hold rows of the queue.",
)  # fmt: skip
HELD = Figure("held_seconds", "held for", SECONDS, optional=True, in_history=False)


@dataclass(frozen=True)
class SampledFigures:
    """Of one queue, as every `status` statement returns them; None: not of this design, or not
    known.

    A row is read by position: a figure has no default here, and is in all four statements (of
    `monitor.sql` and `ring/monitor.sql`, for each engine) the column after the one before it. Where
    an engine cannot know it, that is `CAST(NULL AS bigint)`.
    """

    schema: str
    queue: str
    ready: int | None = field(metadata=READY.declared)
    scheduled: int | None = field(metadata=SCHEDULED.declared)
    claimed: int | None = field(metadata=CLAIMED.declared)
    stuck: int | None = field(metadata=STUCK.declared)
    errors: int | None = field(metadata=ERRORS.declared)
    done: int | None = field(metadata=DONE.declared)
    age_seconds: float | None = field(metadata=AGE.declared)


@dataclass(frozen=True)
class QueueFigures(SampledFigures):
    """All of one queue. Ages are in seconds of the database's clock, rates in messages a second of
    ours."""

    push_per_second: float | None = field(default=None, kw_only=True, metadata=PUSH.declared)
    pop_per_second: float | None = field(default=None, kw_only=True, metadata=POP.declared)
    gap: int | None = field(default=None, kw_only=True, metadata=GAP.declared)
    capacity: int | None = field(default=None, kw_only=True, metadata=CAPACITY.declared)
    holders: int | None = field(default=None, kw_only=True, metadata=HOLDERS.declared)
    """Open transactions that hold rows of the queue; not those that wait for another. Where a pop
    deletes, a message in work is held by one of them."""
    held_seconds: float | None = field(default=None, kw_only=True, metadata=HELD.declared)
    """The longest time one of them has held rows; None: there is none, or not known."""


def _declared(of: type[SampledFigures]) -> tuple[Figure, ...]:
    return tuple(field.metadata["figure"] for field in fields(of) if "figure" in field.metadata)


SAMPLED = _declared(SampledFigures)
FIGURES = _declared(QueueFigures)
COUNTS = tuple(figure for figure in FIGURES if figure.rows_read and figure.unit is MESSAGES)
"""Those that a sample counts, by state."""
BY_NAME = {figure.name: figure for figure in FIGURES}
SHOWN = (READY, AGE, PUSH, POP, GAP, CAPACITY, CLAIMED, STUCK, ERRORS, DONE, SCHEDULED)
"""In the order of their columns."""
CHARTS = {
    "depth": (READY, CLAIMED, ERRORS),
    "messages a second": (PUSH, POP),
    "age of the oldest": (AGE,),
    "push/pop sequence gap": (GAP,),
}
"""Those that `history` draws, by their titles; its columns have the same figures."""
FORECASTS = {"pushes": PUSH.name, "pops": POP.name}
COLUMNS = tuple(figure for figure in SHOWN if figure.heading != "")

SAMPLE_LATENCY = Figure(
    "latency_seconds", "sample latency", Unit(_duration, "s", 1e6, 1_000_000, mean=True)
)
"""Of the sample that the figures are from."""
LATENCY_KINDS = ("waiting", "processing")
PERCENTILES = (50, 95, 99)
LATENCIES = tuple(
    Figure(f"{kind}_p{percent}_seconds", f"{kind} p{percent}", LATENCY)
    for kind in LATENCY_KINDS
    for percent in PERCENTILES
)
"""Of messages, as each sample measured them."""


def of_unit(unit: Unit) -> tuple[Figure, ...]:
    return tuple(figure for figure in FIGURES if figure.unit is unit)


@dataclass(frozen=True)
class Limit:
    """That a figure has a warning and a critical value."""

    name: str
    """As configured: `depth.warning`."""
    unit: Unit
    words: str
    """With its value, or the limit: `{} ready`."""
    figure: Figure | None = None
    """What is judged in each sample; None: it is judged elsewhere."""
    defaults: tuple[float | str | None, float | str | None] = (None, None)
    """As they would be configured."""
    configured: bool = True
    maximum: str = ""
    """The help of `check --max-NAME`; empty: there is no such option."""
    cause: str = ""
    """Of a finding about it."""
    alert: str = ""
    """The text of its alert rule, if not the words."""


FULL = Limit(
    "gap_share", SHARE, "{} full", GAP, (0.9, 1.0),
    cause="more is pushed than popped", alert="{} of its slots are in use",
)  # fmt: skip
"""Of a ring: the part of its capacity that is in use."""
ERROR_LIMIT = Limit(
    "errors", MESSAGES, "{} in error", ERRORS,
    maximum="More errors than this are CRITICAL.",
    cause="consumers failed them: dbq-console errors groups them by text",
)  # fmt: skip
ERROR_SHARE = Limit("errors_share", SHARE, "{} in error", defaults=(0.1, None))
STUCK_LIMIT = Limit(
    "stuck", MESSAGES, "{} stuck", STUCK, configured=False,
    maximum="More stuck claims than this are CRITICAL.",
)  # fmt: skip
OVERDUE = Limit(
    "overdue", SECONDS, "due {} ago", defaults=("5m", None),
    maximum="A message that is due for longer than this, and not taken, is CRITICAL.",
)  # fmt: skip
_LIMITS = (
    Limit(
        "depth", MESSAGES, "{} ready", READY,
        maximum="More ready messages than this are CRITICAL.",
        cause="more is pushed than popped, now or earlier",
    ),
    Limit(
        "age", SECONDS, "oldest {}", AGE,
        maximum="An older message than this is CRITICAL.",
        cause="consumers do not get to it in time",
        alert="its oldest message has waited {}",
    ),
    *(FULL, ERROR_LIMIT, ERROR_SHARE, STUCK_LIMIT, OVERDUE),
)  # fmt: skip
LIMITS = {limit.name: limit for limit in _LIMITS}
JUDGED = sorted(
    ((limit, limit.figure) for limit in _LIMITS if limit.figure), key=lambda pair: pair[0] is FULL
)
"""Those of the figures of a sample: of a ring's capacity last."""
