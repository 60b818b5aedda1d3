"""The figures of one round, from its journal."""

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from console.bench.journal import Calls, Journal
from console.bench.judge import Verdict
from console.bench.latency import Latency
from console.bench.server import SeenWait, Touched
from console.bench.shift import Times

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

_QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Round:
    """What one round measured. None: not known, or there is none."""

    messages_per_second: float
    """Popped, finished where they have to be, and committed, in the measured time."""
    push_ms: Latency | None
    pop_ms: Latency | None
    way_ms: Latency | None
    """From the push to the commit of the pop, or of what finished it."""
    curve: tuple[float, ...]
    """Messages a second in equal parts of the measured time."""
    verdict: Verdict | None
    empty: int
    full: int
    unfinished: int
    failed_calls: int
    errors: tuple[str, ...]
    client_cpu_seconds: float | None
    seconds: float
    through: int
    """Messages in the whole round, the warm-up too: `touched` is of all of them."""
    messages: int
    """In the measured time."""
    number: int = 0
    console: bool = False
    waits: list[SeenWait] | None = None
    server_cpu: float | None = None
    """Processors that the server kept busy."""
    log_bytes_per_second: float | None = None
    touched: Touched | None = None
    pgbench_per_second: float | None = None

    @property
    def ok(self) -> bool:
        """Whether every message is accounted for, and there were any."""
        return (self.verdict is None or self.verdict.ok) and self.messages > 0


def measured(
    journal: Journal,
    verdict: Verdict | None,
    pushed_us: "pa.Int64Array | None",
    times: Times,
    points: int,
) -> Round:
    """The figures of what happened between `times.measure` and `times.stop`.

    `pushed_us`: when each message that was popped had been pushed.
    """
    seconds = (times.stop - times.measure) / 1e6
    curve = [0] * points
    messages = 0
    for at, count in zip(journal.pops.at_us, journal.pops.messages, strict=True):
        if times.measure <= at < times.stop:
            messages += count
            curve[(at - times.measure) * points // (times.stop - times.measure)] += count
    return Round(
        messages_per_second=messages / seconds,
        push_ms=_latency(_took(journal.pushes, times)),
        pop_ms=_latency(_took(journal.pops, times)),
        way_ms=None if pushed_us is None else _latency(_way(journal.pops, pushed_us, times)),
        curve=tuple(count * points / seconds for count in curve),
        verdict=verdict,
        empty=journal.empty,
        full=journal.full,
        unfinished=journal.unfinished,
        failed_calls=journal.failed_calls,
        errors=tuple(journal.errors),
        client_cpu_seconds=journal.cpu_seconds,
        seconds=seconds,
        through=sum(journal.pops.messages),
        messages=messages,
    )


def _took(calls: Calls, times: Times) -> list[int]:
    return [
        took
        for at, took in zip(calls.at_us, calls.took_us, strict=True)
        if times.measure <= at < times.stop
    ]


def _way(pops: Calls, pushed_us: "pa.Int64Array", times: Times) -> "pa.Array":
    """Microseconds of each message's way through."""
    import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once
    import pyarrow.compute  # noqa: PLC0415

    pc: Any = pyarrow.compute  # see message.py

    ends = [0, *itertools.accumulate(pops.messages)]
    by_call = pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), pushed_us)
    popped_us = pa.array(pops.at_us, pa.int64()).take(pc.list_parent_indices(by_call))
    inside = pc.and_(
        pc.and_(pc.greater_equal(popped_us, times.measure), pc.less(popped_us, times.stop)),
        pc.greater(pushed_us, 0),
    )
    return pc.subtract(popped_us, pushed_us).filter(inside)


def _latency(microseconds: "Sequence[int] | pa.Array") -> Latency | None:
    """None where there was nothing."""
    import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once
    import pyarrow.compute  # noqa: PLC0415

    pc: Any = pyarrow.compute  # see message.py

    if not len(microseconds):
        return None
    cuts = pc.quantile(pa.array(microseconds, pa.int64()), q=list(_QUANTILES)).to_pylist()
    return Latency(*(round(cut / 1000, 3) for cut in cuts))
