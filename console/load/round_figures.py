"""A round's figures from its log, and whether every message arrived once, intact and in order."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from operator import mul
from typing import TYPE_CHECKING, Any

from console.designs import Order
from console.load.call_log import DAMAGED, NUMBERS, CallLog, Calls, Latency
from console.load.worker_round import Times

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

KEPT_BY_EACH = {Order.LAX, Order.STRICT, Order.DUE}
"""With these, each consumer gets each producer's messages in the order of their pushes. A ring
promises the order of its numbers, with parked ones late; others promise none."""


@dataclass(frozen=True)
class LeftRow:
    """One producer's messages left in a queue; producer -1: damaged messages."""

    producer: int
    messages: int
    different: int
    numbers: str
    """The sum of their numbers."""
    squares: str
    """The sum of the squares of their numbers."""


@dataclass(frozen=True)
class SampledWait:
    """`kind` and `wait` are None for sessions that did not wait."""

    kind: str | None
    wait: str | None
    average_sessions: float
    meaning: str | None

    @property
    def name(self) -> str:
        return ":".join(part for part in (self.kind, self.wait) if part) or "running"


@dataclass(frozen=True)
class TableActivity:
    """Pages read and rows updated in a queue's tables; None: not known."""

    pages: int | None
    updates: int | None
    hot_updates: int | None


@dataclass(frozen=True)
class RoundVerdict:
    """Counts of messages. All but the first three should be 0."""

    pushed: int
    """Stored, by the answers to the pushes."""
    popped: int
    left: int
    """In the queue at the end."""
    lost: int
    doubled: int
    damaged: int
    """Popped or left other than they were pushed, or never pushed."""
    out_of_order: int
    """Against the design's promise."""
    in_doubt: int
    """In calls whose answer was lost with the connection."""

    @classmethod
    def together(cls, each: Sequence[RoundVerdict]) -> RoundVerdict:
        """The sum over several readers."""
        return cls(*(sum(counts) for counts in zip(*map(astuple, each), strict=True)))

    @property
    def ok(self) -> bool:
        """Nothing is certainly wrong."""
        return not (self.lost or self.doubled or self.damaged or self.out_of_order)


def judge(
    call_log: CallLog,
    codes: Sequence[int],
    left: Sequence[LeftRow],
    left_codes: Callable[[], Iterable[int]],
    order: Order,
) -> RoundVerdict:
    """`codes`: of the popped messages, in the order of `call_log.heads`.

    `left_codes` is only called where the sums in `left` do not add up.
    """
    stored: Counter[int] = Counter()
    for producer, messages in zip(call_log.pushes.client, call_log.pushes.messages, strict=True):
        stored[producer] += messages
    doubt: Counter[int] = Counter()
    for producer, messages in call_log.pushes_in_doubt:
        doubt[producer] += messages
    counted = _Popped(codes)
    if doubt or not _adds_up(stored, counted, left):
        lost, doubled, damaged, in_doubt = _one_by_one(
            stored, doubt, call_log.pops_in_doubt, counted, list(left_codes())
        )
    else:
        lost = doubled = damaged = 0
        in_doubt = 0
    return RoundVerdict(
        pushed=stored.total(),
        popped=len(codes),
        left=sum(row.messages for row in left),
        lost=lost,
        doubled=doubled,
        damaged=damaged,
        out_of_order=_out_of_order(call_log, codes) if order in KEPT_BY_EACH else 0,
        in_doubt=in_doubt,
    )


class _Popped:
    """Popped messages, and sums by producer."""

    def __init__(self, codes: Sequence[int]) -> None:
        self.codes = codes
        self.different = set(codes)
        self.damaged = DAMAGED in self.different
        self.messages: Counter[int] = Counter()
        self.numbers: Counter[int] = Counter()
        self.squares: Counter[int] = Counter()
        ordered = sorted(self.different - {DAMAGED})
        begin = 0
        while begin < len(ordered):
            producer = ordered[begin] // NUMBERS
            first = producer * NUMBERS
            end = bisect_left(ordered, first + NUMBERS)
            numbers = [code - first for code in ordered[begin:end]]
            self.messages[producer] = len(numbers)
            self.numbers[producer] = sum(numbers)
            self.squares[producer] = sum(map(mul, numbers, numbers))
            begin = end


def _adds_up(stored: Mapping[int, int], popped: _Popped, left: Sequence[LeftRow]) -> bool:
    """Whether popped and left messages together are those that were pushed.

    Compares counts, sums and sums of squares of their numbers.
    """
    if popped.damaged or len(popped.different) != len(popped.codes):
        return False
    remaining = {row.producer: row for row in left}
    if DAMAGED in remaining or (set(popped.messages) | set(remaining)) - set(stored):
        return False
    for producer, count in stored.items():
        row = remaining.get(producer, LeftRow(producer, 0, 0, "0", "0"))
        if row.different != row.messages or row.messages != count - popped.messages[producer]:
            return False
        numbers = count * (count - 1) // 2 - popped.numbers[producer]
        squares = (count - 1) * count * (2 * count - 1) // 6 - popped.squares[producer]
        if (numbers, squares) != (int(row.numbers), int(row.squares)):
            return False
    return True


def _one_by_one(
    stored: Mapping[int, int],
    doubt: Mapping[int, int],
    pops_in_doubt: int,
    popped: _Popped,
    left: Sequence[int],
) -> tuple[int, int, int, int]:
    """(lost, doubled, damaged, in doubt), message by message."""
    seen = Counter(popped.codes) + Counter(left)
    damaged = seen.pop(DAMAGED, 0)
    doubled = missing = in_doubt = 0
    for code, times in seen.items():
        producer, number = divmod(code, NUMBERS)
        if number >= stored.get(producer, 0) + doubt.get(producer, 0):
            damaged += times
        else:
            doubled += times - 1
    for producer, count in stored.items():
        first = producer * NUMBERS
        missing += sum(first + number not in seen for number in range(count))
    # A damaged message is one of the missing ones.
    missing = max(0, missing - damaged)
    for producer, count in doubt.items():
        first = producer * NUMBERS + stored.get(producer, 0)
        in_doubt += sum(first + number not in seen for number in range(count))
    maybe_popped = min(missing, pops_in_doubt)
    return missing - maybe_popped, doubled, damaged, in_doubt + maybe_popped


def _out_of_order(call_log: CallLog, codes: Sequence[int]) -> int:
    """Messages that a consumer got after a later one of the same producer."""
    last: dict[tuple[int, int], int] = {}
    wrong = start = 0
    for client, messages in zip(call_log.pops.client, call_log.pops.messages, strict=True):
        for code in codes[start : start + messages]:
            key = (client, code // NUMBERS)
            if code < last.get(key, DAMAGED):
                wrong += 1
            else:
                last[key] = code
        start += messages
    return wrong


_QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class RoundFigures:
    """None: not known, or not applicable."""

    messages_per_second: float
    """Popped (and completed, if necessary) and committed in the measured time."""
    push_ms: Latency | None
    pop_ms: Latency | None
    end_to_end_ms: Latency | None
    """From the push to the commit of the pop, or of its completion."""
    curve: tuple[float, ...]
    """Messages per second in equal parts of the measured time."""
    verdict: RoundVerdict | None
    empty: int
    full: int
    unfinished: int
    failed_calls: int
    errors: tuple[str, ...]
    client_cpu_seconds: float | None
    seconds: float
    messages_total: int
    """Messages in the whole round, the warm-up too: `page_accesses` is of all of them."""
    messages: int
    """In the measured time."""
    number: int = 0
    console: bool = False
    waits: list[SampledWait] | None = None
    server_cpu: float | None = None
    """Processors that the server kept busy."""
    log_bytes_per_second: float | None = None
    table_activity: TableActivity | None = None
    disk_bytes: int | None = None
    """Of its tables and indexes, at the end."""
    pgbench_per_second: float | None = None

    @property
    def ok(self) -> bool:
        """Whether there were messages, and all are accounted for."""
        return (self.verdict is None or self.verdict.ok) and self.messages > 0


def measured(
    call_log: CallLog,
    verdict: RoundVerdict | None,
    pushed_us: pa.Int64Array | None,
    times: Times,
    points: int,
) -> RoundFigures:
    """Between `times.measure` and `times.stop`. `pushed_us`: of each popped message."""
    seconds = (times.stop - times.measure) / 1e6
    curve = [0] * points
    messages = 0
    for at, count in zip(call_log.pops.at_us, call_log.pops.messages, strict=True):
        if times.measure <= at < times.stop:
            messages += count
            curve[(at - times.measure) * points // (times.stop - times.measure)] += count
    return RoundFigures(
        messages_per_second=messages / seconds,
        push_ms=_latency(_took(call_log.pushes, times)),
        pop_ms=_latency(_took(call_log.pops, times)),
        end_to_end_ms=None
        if pushed_us is None
        else _latency(_end_to_end(call_log.pops, pushed_us, times)),
        curve=tuple(count * points / seconds for count in curve),
        verdict=verdict,
        empty=call_log.empty,
        full=call_log.full,
        unfinished=call_log.unfinished,
        failed_calls=call_log.failed_calls,
        errors=tuple(call_log.errors),
        client_cpu_seconds=call_log.cpu_seconds,
        seconds=seconds,
        messages_total=sum(call_log.pops.messages),
        messages=messages,
    )


def _took(calls: Calls, times: Times) -> list[int]:
    return [
        took
        for at, took in zip(calls.at_us, calls.took_us, strict=True)
        if times.measure <= at < times.stop
    ]


def _end_to_end(pops: Calls, pushed_us: pa.Int64Array, times: Times) -> pa.Array:
    """Microseconds, of each message."""
    import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once
    import pyarrow.compute  # noqa: PLC0415

    pc: Any = pyarrow.compute  # see call_log.py

    ends = [0, *itertools.accumulate(pops.messages)]
    by_call = pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), pushed_us)
    popped_us = pa.array(pops.at_us, pa.int64()).take(pc.list_parent_indices(by_call))
    inside = pc.and_(
        pc.and_(pc.greater_equal(popped_us, times.measure), pc.less(popped_us, times.stop)),
        pc.greater(pushed_us, 0),
    )
    return pc.subtract(popped_us, pushed_us).filter(inside)


def _latency(microseconds: Sequence[int] | pa.Array) -> Latency | None:
    """None of nothing."""
    import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once
    import pyarrow.compute  # noqa: PLC0415

    pc: Any = pyarrow.compute  # see call_log.py

    if not len(microseconds):
        return None
    cuts = pc.quantile(pa.array(microseconds, pa.int64()), q=list(_QUANTILES)).to_pylist()
    return Latency(*(round(cut / 1000, 3) for cut in cuts))
