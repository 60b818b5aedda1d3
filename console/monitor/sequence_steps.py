"""How far the sequences of a ring went from sample to sample.

A sequence that loses its cache, in a crash or a fail-over, skips numbers, and a fail-over leaves no
other trace: two samples show that more numbers went than were used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from console.monitor.rates import QueueName, key_of
from console.monitor.sample import DatabaseSample, QueueSample

RECENT = 128
"""Steps of a sequence that are kept: of two minutes, sampled once a second."""
CHANGES = 8
"""Of those in which the server changed or the connection was lost, so many longer."""


@dataclass(frozen=True)
class SequenceKey:
    side: str
    """`push` or `pop`."""
    subscriber: str = ""

    @property
    def words(self) -> str:
        return f"the {self.side} sequence" + f" of {self.subscriber}" * bool(self.subscriber)


@dataclass(frozen=True)
class Reached:
    """The next number of a sequence in one sample."""

    at: datetime
    """By the database's clock."""
    number: int
    base: int | None
    """Of its ring: a relay, which renumbers, changes it."""
    incarnation: str

    def is_continued_by(self, later: Reached) -> bool:
        return self.base == later.base and self.number <= later.number


@dataclass(frozen=True)
class Step:
    """From one sample to the next in which the sequence had moved, or the server was another."""

    before: Reached
    after: Reached
    reconnected: bool = False
    """The connection was lost in between."""

    @property
    def server_changed(self) -> bool:
        """It restarted, crashed, or another one has taken over."""
        return self.before.incarnation != self.after.incarnation

    @property
    def numbers(self) -> int:
        return self.after.number - self.before.number

    def covers(self, first: int, last: int) -> bool:
        return self.before.number <= first and last < self.after.number

    def unused(self, lost: Iterable[tuple[int, int]]) -> int:
        """How many of its numbers are in these ranges of first and last, which do not overlap."""
        low, high = self.before.number, self.after.number
        return sum(max(0, min(last + 1, high) - max(first, low)) for first, last in lost)


Steps = Mapping[SequenceKey, tuple[Step, ...]]


class _Track:
    """The steps of one sequence, oldest first."""

    def __init__(self) -> None:
        self._last: Reached | None = None
        self._recent: deque[Step] = deque(maxlen=RECENT)
        self._changes: deque[Step] = deque(maxlen=CHANGES)

    def add(self, now: Reached, *, reconnected: bool) -> tuple[Step, ...]:
        last, self._last = self._last, now
        if last is not None and not last.is_continued_by(now):
            self._recent.clear()
            self._changes.clear()
        elif last is not None:
            step = Step(last, now, reconnected)
            if step.server_changed or reconnected:
                self._changes.append(step)
            elif step.numbers:
                self._recent.append(step)
        return tuple(sorted((*self._changes, *self._recent), key=lambda step: step.after.at))


class SequenceHistory:
    """The steps of all rings of a connection, by its samples."""

    def __init__(self) -> None:
        self._tracks: dict[tuple[QueueName, SequenceKey], _Track] = {}
        self._reconnected = False

    def lost_connection(self) -> None:
        self._reconnected = True

    def add(self, sample: DatabaseSample) -> Mapping[QueueName, Steps]:
        """Those of each ring until this sample; a sequence that it does not show keeps its own."""
        found: dict[QueueName, dict[SequenceKey, tuple[Step, ...]]] = {}
        for queue_sample in sample.queues:
            name = key_of(queue_sample.queue)
            for key, reached in _reached(queue_sample, sample.incarnation):
                track = self._tracks.setdefault((name, key), _Track())
                steps = track.add(reached, reconnected=self._reconnected)
                found.setdefault(name, {})[key] = steps
        self._reconnected = False
        return found


def _reached(sample: QueueSample, incarnation: str) -> Iterator[tuple[SequenceKey, Reached]]:
    row, at = sample.row, sample.moment
    if row is None or at is None:
        return
    numbers = {SequenceKey("push"): row.next_push}
    if sample.queue.subscribers:
        rows = () if sample.subscribers is None else sample.subscribers.rows
        numbers |= {SequenceKey("pop", one.subscriber): one.next_pop for one in rows}
    else:
        numbers[SequenceKey("pop")] = row.next_pop
    for key, number in numbers.items():
        if number is not None:
            yield key, Reached(at, number, row.base, incarnation)
