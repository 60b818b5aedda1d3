"""How the figures of all queues went since the console's start, in bounded memory.

A span is a row of cells of one length. A cell has the most (or the mean) of what was seen in its
time, or nothing: what was not seen is a gap, and never filled in.
"""

import math
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot

Key = tuple[str, str, str]
"""Connection, schema and name: as the store's."""
Point = tuple[float, float]
"""A moment (by `time.monotonic()`: the middle of its cell) and a figure."""
Run = tuple[Point, ...]
"""Points that belong together. Between two runs is a gap."""

_LATE_PAUSES = 2.0
_LATE_SECONDS = 1.0
"""A sample that comes later than this after the one before: in between one was missed."""
_MAX_REMOVED = 20
"""So many queues that are gone are remembered: one of them may be on a screen."""
_RATES = ("push_per_second", "pop_per_second")


@dataclass(frozen=True)
class ChartSpan:
    """A length of time, and how finely it is kept."""

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
"""No sampler looks more often than twice a second: the first span keeps every sample of it."""


class _Cells:
    """One figure in one span: the last cells, overwritten in turn."""

    __slots__ = ("_count", "_mean", "_newest", "_values")

    def __init__(self, span: ChartSpan, *, mean: bool) -> None:
        # Four bytes a cell: a chart does not show the eighth digit.
        self._values = array("f", [math.nan]) * span.cells
        self._newest = -1
        self._mean = mean
        self._count = 0

    def add(self, cell: int, value: float) -> None:
        """Take a figure in; one for a cell that is over comes too late."""
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
        """What was seen in that cell; None: nothing, or it is too long ago."""
        size = len(self._values)
        if not self._newest - size < cell <= self._newest:
            return None
        value = self._values[cell % size]
        return None if math.isnan(value) else value


class _Samples:
    """In which cells of a span a database was sampled, and up to which cell each sample tells."""

    __slots__ = ("_reaches", "_size")

    def __init__(self, span: ChartSpan) -> None:
        self._size = span.cells
        self._reaches: deque[tuple[int, int]] = deque(maxlen=span.cells)

    def add(self, cell: int, reach: int) -> None:
        if self._reaches and self._reaches[-1][0] >= cell:
            cell = self._reaches.pop()[0]
        self._reaches.append((cell, reach))

    def fail(self) -> None:
        """The sample after the last one told nothing."""
        if self._reaches:
            cell, _ = self._reaches.pop()
            self._reaches.append((cell, cell))

    def until(self, cell: int) -> Iterator[tuple[int, int]]:
        """Those of the span that ends with this cell."""
        return (look for look in self._reaches if cell - self._size < look[0] <= cell)


class _FigureHistory:
    """One figure in all spans."""

    __slots__ = ("spans",)

    def __init__(self, *, mean: bool) -> None:
        self.spans = tuple(_Cells(span, mean=mean) for span in SPANS)

    def add(self, places: Sequence[int], value: float) -> None:
        """`places`: the cell of the moment in each span."""
        for cell, cells in zip(places, self.spans, strict=True):
            cells.add(cell, value)


class Series:
    """Give it every reading; ask it for the runs of a figure."""

    def __init__(self) -> None:
        self._samples: dict[str, tuple[_Samples, ...]] = {}
        self._latencies: dict[str, _FigureHistory] = {}
        self._queues: dict[Key, dict[str, _FigureHistory]] = {}
        self._seen_at: dict[Key, float] = {}
        self._removed: dict[Key, None] = {}
        """Those that are kept though they are gone, in the order in which they went."""

    def add(self, connection: str, reading: Reading, at: float, interval_seconds: float) -> None:
        """Take a reading in, as it came at `at`. The pause after it may be longer than its own."""
        looks = self._samples.setdefault(connection, tuple(map(_Samples, SPANS)))
        if reading.error is not None:
            for each in looks:
                each.fail()
            return
        pause = max(interval_seconds, reading.next_seconds or 0.0)
        reach = at + pause * _LATE_PAUSES + _LATE_SECONDS
        places = [span.cell(at) for span in SPANS]
        for span, place, each in zip(SPANS, places, looks, strict=True):
            each.add(place, span.cell(reach))
        if reading.latency_seconds is not None:
            course = self._latencies.setdefault(connection, _FigureHistory(mean=False))
            course.add(places, reading.latency_seconds)
        there = set()
        for snapshot in reading.queues:
            key = (connection, snapshot.schema, snapshot.queue)
            there.add(key)
            self._add_queue(key, snapshot, at, places)
        self._forget({key for key in self._queues if key[0] == connection} - there)

    def _add_queue(
        self, key: Key, snapshot: QueueSnapshot, at: float, places: Sequence[int]
    ) -> None:
        self._seen_at[key] = at
        self._removed.pop(key, None)
        figures = self._queues.setdefault(key, {})
        named = {name: getattr(snapshot, name) for name in figures_of(snapshot)}
        if snapshot.latency is not None:
            named |= snapshot.latency.figures
        for name, value in named.items():
            if value is not None:
                if name not in figures:
                    figures[name] = _FigureHistory(mean=name in _RATES)
                figures[name].add(places, value)

    def _forget(self, missing: set[Key]) -> None:
        for key in sorted(missing - self._removed.keys()):
            self._removed[key] = None
        for key in list(self._removed)[: max(0, len(self._removed) - _MAX_REMOVED)]:
            del self._removed[key], self._queues[key], self._seen_at[key]

    def seen_at(self, key: Key) -> float | None:
        """When the queue was seen last; None: never, or too long ago."""
        return self._seen_at.get(key)

    def runs(self, key: Key, figure: str, span: ChartSpan, now: float) -> tuple[Run, ...]:
        return self._runs(self._queues.get(key, {}).get(figure), key[0], span, now)

    def latency(self, connection: str, span: ChartSpan, now: float) -> tuple[Run, ...]:
        """How long the samples of a database took, in seconds."""
        return self._runs(self._latencies.get(connection), connection, span, now)

    def _runs(
        self, course: _FigureHistory | None, connection: str, span: ChartSpan, now: float
    ) -> tuple[Run, ...]:
        if course is None:
            return ()
        place = SPANS.index(span)
        cells, looks = course.spans[place], self._samples[connection][place]
        runs: list[Run] = []
        run: list[Point] = []
        reaches = -1
        for cell, reach in looks.until(span.cell(now)):
            value = cells.value(cell)
            if run and (value is None or cell > reaches):
                runs.append(tuple(run))
                run = []
            if value is not None:
                run.append(((cell + 0.5) * span.step, value))
            reaches = reach
        return (*runs, tuple(run)) if run else tuple(runs)


def figures_of(snapshot: QueueSnapshot) -> tuple[str, ...]:
    """What is kept of a queue: of a ring its gap, of others how long the oldest waits."""
    ring = snapshot.capacity is not None or "capacity" in snapshot.unknown
    return ("ready", *_RATES, "gap" if ring else "age_seconds")
