"""The history of all queues' figures since the console's start, in bounded memory.

A span is a row of cells of one length. A cell has the highest value (or the mean) sampled in its
time, or nothing: missed samples are gaps, and never filled in.
"""

import math
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from console.figures import AGE, FIGURES, GAP, POP, PUSH, READY
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot
from console.tui.findings import QueueKey

Point = tuple[float, float]
"""A moment (by `time.monotonic()`, the middle of its cell) and a value."""
Run = tuple[Point, ...]
"""Consecutive points. Between two runs is a gap."""

_LATE_PAUSES = 2.0
_LATE_SECONDS = 1.0
"""If the next sample comes later than this, one was missed."""
_MAX_REMOVED = 20
"""How many removed queues are remembered: one of them may be on a screen."""
_MEANS = {figure.name for figure in FIGURES if figure.unit.mean}


@dataclass(frozen=True)
class ChartSpan:
    """A length of time, and its resolution."""

    title: str
    seconds: float
    step: float

    @property
    def cells(self) -> int:
        return round(self.seconds / self.step)

    def cell(self, at: float) -> int:
        """The number of the cell that a moment is in."""
        return math.floor(at / self.step)


SPANS = (
    ChartSpan("5 min", 300.0, 0.5),
    ChartSpan("1 h", 3600.0, 10.0),
    ChartSpan("24 h", 86400.0, 300.0),
)
"""Samplers sample at most twice a second: the first span keeps every sample."""


class _Cells:
    """One figure in one span, as a ring buffer."""

    __slots__ = ("_count", "_mean", "_newest", "_values")

    def __init__(self, span: ChartSpan, *, mean: bool) -> None:
        # Four bytes per cell: a chart does not show the eighth digit.
        self._values = array("f", [math.nan]) * span.cells
        self._newest = -1
        self._mean = mean
        self._count = 0

    def add(self, cell: int, value: float) -> None:
        """Add a value; one for an earlier cell is ignored."""
        size = len(self._values)
        if cell > self._newest:
            if cell - self._newest > size:
                self._values = array("f", [math.nan]) * size
            else:
                for passed in range(self._newest + 1, cell):
                    self._values[passed % size] = math.nan
            self._newest, self._count = cell, 1
        elif cell == self._newest:
            self._count += 1
            before = self._values[cell % size]
            value = before + (value - before) / self._count if self._mean else max(before, value)
        else:
            return
        self._values[cell % size] = value

    def value(self, cell: int) -> float | None:
        """The value of that cell; None: nothing, or too long ago."""
        size = len(self._values)
        if not self._newest - size < cell <= self._newest:
            return None
        value = self._values[cell % size]
        return None if math.isnan(value) else value


class _Samples:
    """The cells of a span in which a database was sampled, and how far each sample reaches."""

    __slots__ = ("_reaches", "_size")

    def __init__(self, span: ChartSpan) -> None:
        self._size = span.cells
        self._reaches: deque[tuple[int, int]] = deque(maxlen=span.cells)

    def add(self, cell: int, reach: int) -> None:
        if self._reaches and self._reaches[-1][0] >= cell:
            cell = self._reaches.pop()[0]
        self._reaches.append((cell, reach))

    def fail(self) -> None:
        """The sample after the last one failed."""
        if self._reaches:
            cell, _ = self._reaches.pop()
            self._reaches.append((cell, cell))

    def until(self, cell: int) -> Iterator[tuple[int, int]]:
        """Those of the span that ends with this cell."""
        return (sample for sample in self._reaches if cell - self._size < sample[0] <= cell)


class _FigureHistory:
    """One figure in all spans."""

    __slots__ = ("spans",)

    def __init__(self, *, mean: bool) -> None:
        self.spans = tuple(_Cells(span, mean=mean) for span in SPANS)

    def add(self, positions: Sequence[int], value: float) -> None:
        """`positions`: the number of the cell in each span."""
        for cell, cells in zip(positions, self.spans, strict=True):
            cells.add(cell, value)


class Series:
    """The history of all figures: add every reading, get the runs of a figure."""

    def __init__(self) -> None:
        self._samples: dict[str, tuple[_Samples, ...]] = {}
        self._latencies: dict[str, _FigureHistory] = {}
        self._queues: dict[QueueKey, dict[str, _FigureHistory]] = {}
        self._sampled_at: dict[QueueKey, float] = {}
        self._current: dict[str, set[QueueKey]] = {}
        """The queues of each connection's last reading."""
        self._removed: dict[QueueKey, None] = {}
        """Removed queues that are still kept, in the order of their removal."""

    def add(self, connection: str, reading: Reading, at: float, interval_seconds: float) -> None:
        """Add a reading that arrived at `at`. The pause after it may exceed the interval."""
        samples = self._samples.setdefault(connection, tuple(map(_Samples, SPANS)))
        if reading.error is not None:
            for span_samples in samples:
                span_samples.fail()
            return
        pause = max(interval_seconds, reading.next_seconds or 0.0)
        reach = at + pause * _LATE_PAUSES + _LATE_SECONDS
        positions = [span.cell(at) for span in SPANS]
        for span, position, span_samples in zip(SPANS, positions, samples, strict=True):
            span_samples.add(position, span.cell(reach))
        if reading.latency_seconds is not None:
            history = self._latencies.setdefault(connection, _FigureHistory(mean=False))
            history.add(positions, reading.latency_seconds)
        current = set()
        for snapshot in reading.queues:
            key = (connection, snapshot.schema, snapshot.queue)
            current.add(key)
            self._add_queue(key, snapshot, at, positions)
        self._forget(self._current.get(connection, set()) - current)
        self._current[connection] = current

    def _add_queue(
        self, key: QueueKey, snapshot: QueueSnapshot, at: float, positions: Sequence[int]
    ) -> None:
        self._sampled_at[key] = at
        self._removed.pop(key, None)
        figures = self._queues.setdefault(key, {})
        named = {name: getattr(snapshot, name) for name in figures_of(snapshot)}
        if snapshot.latency is not None:
            named |= snapshot.latency.figures
        for name, value in named.items():
            if value is not None:
                if name not in figures:
                    figures[name] = _FigureHistory(mean=name in _MEANS)
                figures[name].add(positions, value)

    def _forget(self, missing: set[QueueKey]) -> None:
        for key in sorted(missing - self._removed.keys()):
            self._removed[key] = None
        for key in list(self._removed)[: max(0, len(self._removed) - _MAX_REMOVED)]:
            del self._removed[key], self._queues[key], self._sampled_at[key]

    def sampled_at(self, key: QueueKey) -> float | None:
        """When the queue was last sampled; None: never, or too long ago."""
        return self._sampled_at.get(key)

    def runs(self, key: QueueKey, figure: str, span: ChartSpan, now: float) -> tuple[Run, ...]:
        return self._runs(self._queues.get(key, {}).get(figure), key[0], span, now)

    def latency(self, connection: str, span: ChartSpan, now: float) -> tuple[Run, ...]:
        """How long the samples of a database took, in seconds."""
        return self._runs(self._latencies.get(connection), connection, span, now)

    def _runs(
        self, history: _FigureHistory | None, connection: str, span: ChartSpan, now: float
    ) -> tuple[Run, ...]:
        if history is None:
            return ()
        index = SPANS.index(span)
        cells, samples = history.spans[index], self._samples[connection][index]
        runs: list[Run] = []
        run: list[Point] = []
        reaches = -1
        for cell, reach in samples.until(span.cell(now)):
            value = cells.value(cell)
            if run and (value is None or cell > reaches):
                runs.append(tuple(run))
                run = []
            if value is not None:
                run.append(((cell + 0.5) * span.step, value))
            reaches = reach
        return (*runs, tuple(run)) if run else tuple(runs)


def figures_of(snapshot: QueueSnapshot) -> tuple[str, ...]:
    """The figures kept for a queue: for a ring the gap, for others the age of the oldest."""
    ring = snapshot.capacity is not None or "capacity" in snapshot.unknown
    return tuple(figure.name for figure in (READY, PUSH, POP, GAP if ring else AGE))
