"""The doctor beside the console: one daemon thread a connection looks at its queues, and again.

It works a tenth of the time at most, and waits while the sampler has no connection: that one comes
back first. What the operator or a figure asks for goes before the rounds.
"""

import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from console import catalog
from console.catalog import Queue
from console.doctor.finding import Diagnosis
from console.engines import Database, patience
from console.errors import ConnectionFailedError, ConsoleError
from console.monitor import QueueSnapshot, Reading
from console.monitor.limits import ThresholdsOf
from console.monitor.message import Masks
from console.tui.places import Place

EVERY_SECONDS = 30.0
"""Between two rounds at least..."""
REST = 10.0
"""... and so many times as long as the looks of a round took."""
SOON_REST = 3.0
"""The same after a look at what figures say; it goes on for as long as there is trouble."""
CHUNK = 8
"""Queues that are looked at together; what was found is told after each."""
LOOK_SECONDS = 120.0
"""How long one look may take, whatever a silent server does."""
_FIRST_BACK_OFF_SECONDS = 1.0
_LONGEST_BACK_OFF_SECONDS = 30.0

Pair = tuple[str, str]
"""Schema and name of a queue."""


@dataclass(frozen=True)
class Told:
    """What one look gave."""

    diagnoses: tuple[Diagnosis, ...] = ()
    next_seconds: float | None = None
    """Until the next round; None: this one is still under way."""
    error: ConsoleError | None = None


class Examine(Protocol):
    """`console.doctor.examine.examine`."""

    def __call__(
        self,
        database: Database,
        queues: Sequence[Queue] | None = None,
        *,
        thresholds_of: ThresholdsOf,
        snapshots: Sequence[QueueSnapshot],
        masks: Masks,
    ) -> list[Diagnosis]: ...


def _examine(
    database: Database,
    queues: Sequence[Queue] | None = None,
    *,
    thresholds_of: ThresholdsOf,
    snapshots: Sequence[QueueSnapshot],
    masks: Masks,
) -> list[Diagnosis]:
    # Loaded in the doctor's thread: the console shall start at once.
    from console.doctor.examine import examine  # noqa: PLC0415

    return examine(database, queues, thresholds_of=thresholds_of, snapshots=snapshots, masks=masks)


def _queues(place: Place) -> list[Queue]:
    return catalog.in_use(place.database)


@dataclass
class _Asked:
    """What is to be looked at next."""

    all: bool = False
    pairs: set[Pair] = field(default_factory=set)

    def __bool__(self) -> bool:
        return self.all or bool(self.pairs)


class DoctorFeed:
    """Looks from the first reading on until stopped. No method but the thread's own ever waits."""

    def __init__(
        self,
        place: Place,
        deliver: Callable[[Told], None],
        *,
        every_seconds: float = EVERY_SECONDS,
        rest: float = REST,
        examine: Examine = _examine,
        queues: Callable[[Place], list[Queue]] = _queues,
    ) -> None:
        """`deliver` is called in the doctor's thread."""
        self._place = place
        self._deliver = deliver
        self._every_seconds = every_seconds
        self._rest = rest
        self._examine = examine
        self._queues = queues
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._lost = False
        self._snapshots: Sequence[QueueSnapshot] = ()
        self._asked = _Asked()
        self._soon: set[Pair] = set()
        self._soon_from = 0.0
        self._due = 0.0
        self._not_before = 0.0
        self._back_off_seconds = _FIRST_BACK_OFF_SECONDS

    # What the event loop calls.

    def saw(self, reading: Reading) -> None:
        """What the sampler has seen. The first good reading starts the rounds."""
        with self._changed:
            if self._stopped:
                return
            was_lost = self._lost
            self._lost = isinstance(reading.error, ConnectionFailedError)
            if was_lost and not self._lost:
                # A look that the loss cut short saw nothing, and a crash leaves traces.
                self._asked.all = True
                self._not_before = 0.0
            if reading.error is None:
                self._snapshots = reading.queues
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name=f"doctor {self._place.name}", daemon=True
                    )
                    self._thread.start()
            self._changed.notify()

    def examine(self, pair: Pair | None = None) -> None:
        """Look now: at one queue, or at all."""
        with self._changed:
            if pair is None:
                self._asked.all = True
            else:
                self._asked.pairs.add(pair)
            self._not_before = 0.0
            self._changed.notify()

    def explain(self, pairs: Collection[Pair]) -> None:
        """Figures say that something is wrong there: look before the next round."""
        with self._changed:
            if not self._soon >= set(pairs):
                self._soon.update(pairs)
                self._changed.notify()

    def stop(self, timeout_seconds: float = 0.0) -> None:
        """Tell nothing more; a look that hangs is left to its daemon thread.

        Waits for it at most `timeout_seconds`.
        """
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if timeout_seconds > 0 and self._thread is not None:
            self._thread.join(timeout_seconds)

    # The thread.

    def _run(self) -> None:
        while (asked := self._next()) is not None:
            try:
                if asked.all:
                    self._round()
                else:
                    self._look_at(self._named(asked.pairs))
            except Exception as error:  # noqa: BLE001  # a thread that dies says nothing any more
                self._failed(error)
            else:
                self._back_off_seconds = _FIRST_BACK_OFF_SECONDS

    def _next(self) -> _Asked | None:
        """Waits for something to do; None: it is over."""
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                if not self._lost and now >= self._not_before:
                    if self._asked or now >= self._due:
                        asked, self._asked = self._asked, _Asked()
                        asked.all = asked.all or not asked
                        return asked
                    if self._soon and now >= self._soon_from:
                        asked, self._soon = _Asked(pairs=self._soon), set()
                        return asked
                self._changed.wait(self._pause(now))
            return None

    def _pause(self, now: float) -> float | None:
        """Until there may be something to do; None: until somebody says so."""
        if self._lost:
            return None
        due = min(self._due, self._soon_from) if self._soon else self._due
        return max(0.0, max(due, self._not_before) - now) + 0.01

    def _round(self) -> None:
        """All queues, those first that look worst; what is asked for meanwhile goes before."""
        took = 0.0
        with self._changed:
            snapshots = self._snapshots
        left = _worst_first(self._queues(self._place), snapshots)
        while left and not self._stopped:
            chunk, left = left[:CHUNK], left[CHUNK:]
            began = time.monotonic()
            self._look_at(chunk)
            looked = time.monotonic() - began
            took += looked
            asked = self._rested(min(1.0, looked) if left else 0.0)
            if asked:
                self._look_at(self._named(asked))
        pause = max(self._every_seconds, self._rest * took) * random.uniform(0.9, 1.1)  # noqa: S311
        with self._changed:
            # Two consoles do not look in step for long.
            self._due = time.monotonic() + pause
        self._tell(Told(next_seconds=pause))

    def _rested(self, seconds: float) -> set[Pair]:
        """A breath between two chunks, for the server and for the screen; what is asked for."""
        with self._changed:
            if not self._asked.pairs and not self._stopped and seconds:
                self._changed.wait(seconds)
            asked, self._asked.pairs = self._asked.pairs, set()
            return asked

    def _named(self, pairs: Iterable[Pair]) -> list[Queue]:
        wanted = set(pairs)
        return [one for one in self._queues(self._place) if (one.schema, one.name) in wanted]

    def _look_at(self, queues: Sequence[Queue]) -> None:
        if not queues:
            return
        began = time.monotonic()
        with patience(LOOK_SECONDS, lambda: self._stopped):
            found = self._examine(
                self._place.database,
                queues,
                thresholds_of=self._place.thresholds_of,
                snapshots=self._snapshots,
                masks=self._place.masks,
            )
        now = time.monotonic()
        self._soon_from = now + max(1.0, SOON_REST * (now - began))
        self._tell(Told(tuple(found), self._until_due()))

    def _until_due(self) -> float | None:
        left = self._due - time.monotonic()
        return left if left > 0 else None

    def _failed(self, error: Exception) -> None:
        """It is tried again, less and less often: a round from its beginning."""
        pause = self._back_off_seconds * random.uniform(0.75, 1.25)  # noqa: S311  # no secret
        self._back_off_seconds = min(self._back_off_seconds * 2, _LONGEST_BACK_OFF_SECONDS)
        told = error if isinstance(error, ConsoleError) else _unforeseen(error)
        with self._changed:
            self._not_before = time.monotonic() + pause
            self._due = min(self._due, self._not_before)
        self._tell(Told(error=told))

    def _tell(self, told: Told) -> None:
        if not self._stopped:
            self._deliver(told)


def _worst_first(queues: Sequence[Queue], snapshots: Sequence[QueueSnapshot]) -> list[Queue]:
    bad = {(one.schema, one.queue) for one in snapshots if one.stuck or one.errors or one.problem}
    return sorted(queues, key=lambda queue: (queue.schema, queue.name) not in bad)


def _unforeseen(error: Exception) -> ConsoleError:
    return ConsoleError("The doctor could not look.", why=f"{type(error).__name__}: {error}")
