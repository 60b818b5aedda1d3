"""A connection is watched: sampled, then update by the doctor. For screens, `record`, metrics.

Two daemon threads: the sampler's, and the doctor's beside it. The doctor works a tenth of the time
at most, and waits while there is no connection: the sampler is the one that tries again. What
somebody asks for, or a figure calls for, goes before the rounds.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from console import catalog
from console.catalog import Queue
from console.doctor.finding import Diagnosis
from console.engines import Database, patience
from console.errors import ConnectionFailedError, ConsoleError
from console.monitor.limits import ThresholdsOf, defaults_of
from console.monitor.message import Masks
from console.monitor.sampler import REQUESTED, ROUTINE, SOON, Reading, WorkLimiter
from console.monitor.snapshot import QueueSnapshot
from console.rights import Rights

if TYPE_CHECKING:
    from console.doctor.silent_consumers import ConsumerHistory
    from console.doctor.stopped_consumers import ConsumptionHistory
    from console.doctor.unusual import TrafficForecasts

_LOG = logging.getLogger(__name__)
EVERY_SECONDS = 30.0
"""Between two rounds of all queues at least..."""
UNATTENDED_SECONDS = 60.0
"""... where nobody waits at a screen..."""
REST = 10.0
"""... and so many times as long as the round took."""
SOON_REST = 3.0
"""The same after queues whose figures call for it; it goes on for as long as there is trouble."""
CHUNK = 8
"""Queues that are update together; what was found is delivered after each."""
CHUNK_SECONDS = 120.0
"""How long one chunk may take, whatever a silent server does."""
_FIRST_BACK_OFF_SECONDS = 1.0
_LONGEST_BACK_OFF_SECONDS = 30.0

Pair = tuple[str, str]
"""Schema and name of a queue."""


@dataclass(frozen=True)
class DoctorUpdate:
    diagnoses: tuple[Diagnosis, ...] = ()
    next_seconds: float | None = None
    """Until the next round; None: this one is still under way."""
    error: ConsoleError | None = None
    whole_round: bool = False
    """Whether a round of all queues has come to its end with it."""


class Sampling(Protocol):
    """What brings the readings: a `Sampler`."""

    def start(self, deliver: Callable[[Reading], None]) -> None:
        """Begin; `deliver` may be called in any thread."""

    def stop(self, timeout_seconds: float = 0.0) -> None:
        """Deliver nothing more; wait for what is under way so long at most."""


class Doctor:
    """Examines the queues of one database, and remembers who popped between two examinations."""

    def __init__(
        self,
        database: Database,
        thresholds_of: ThresholdsOf = defaults_of,
        masks: Masks = (),
        *,
        rights: Rights = Rights.READ_ONLY,
    ) -> None:
        """`rights`: with those of an operator it ends acknowledgements whose finding has ended."""
        self._writes = rights >= Rights.OPERATOR
        self.database = database
        self._thresholds_of = thresholds_of
        self._masks = masks
        self._consumption: ConsumptionHistory | None = None
        self._memory: ConsumerHistory | None = None
        self._usual: TrafficForecasts | None = None

    def queues(self) -> list[Queue]:
        return catalog.in_use(self.database)

    def diagnose(
        self, queues: Sequence[Queue], snapshots: Sequence[QueueSnapshot]
    ) -> list[Diagnosis]:
        """What is wrong with them. Raises ConnectionFailedError."""
        # Loaded in the doctor's thread: the console shall start at once.
        from console.doctor.decisions import end_acknowledgements  # noqa: PLC0415
        from console.doctor.diagnose import diagnose  # noqa: PLC0415
        from console.doctor.silent_consumers import ConsumerHistory  # noqa: PLC0415
        from console.doctor.stopped_consumers import ConsumptionHistory  # noqa: PLC0415
        from console.doctor.unusual import TrafficForecasts  # noqa: PLC0415

        if self._consumption is None:
            self._consumption = ConsumptionHistory(waits=False)
        if self._memory is None:
            self._memory = ConsumerHistory(self.database)
        if self._usual is None:
            self._usual = TrafficForecasts(self.database.label)
        found = diagnose(
            self.database,
            queues,
            thresholds_of=self._thresholds_of,
            snapshots=snapshots,
            masks=self._masks,
            consumption=self._consumption,
            memory=self._memory,
            usual=self._usual,
        )
        if self._writes and not self.database.read_only:
            end_acknowledgements(self.database, found)
        return found


@dataclass
class _Wanted:
    all: bool = False
    pairs: set[Pair] = field(default_factory=set)
    why: int = ROUTINE

    def __bool__(self) -> bool:
        return self.all or bool(self.pairs)


class Watcher:
    """Samples, then examines from the first good reading on, until stopped."""

    def __init__(
        self,
        sampler: Sampling,
        doctor: Doctor,
        *,
        on_reading: Callable[[Reading], None],
        on_update: Callable[[DoctorUpdate], None],
        every_seconds: float = EVERY_SECONDS,
        rest: float = REST,
        turns: WorkLimiter | None = None,
    ) -> None:
        """`on_reading` is called in the sampler's thread, `on_update` in the doctor's. `turns`:
        those of all watchers, where there are many."""
        self._sampler = sampler
        self._doctor = doctor
        self._on_reading = on_reading
        self._on_examined = on_update
        self._every_seconds = every_seconds
        self._rest = rest
        self._turns = turns
        self._changed = threading.Condition()
        self._thread = threading.Thread(
            target=self._run, name=f"doctor {doctor.database.label}", daemon=True
        )
        self._stopped = False
        self._lost = False
        self._snapshots: Sequence[QueueSnapshot] = ()
        self._wanted = _Wanted()
        self._soon: set[Pair] = set()
        self._soon_from = 0.0
        self._due = 0.0
        self._not_before = 0.0
        self._back_off_seconds = _FIRST_BACK_OFF_SECONDS

    # None of these waits, but `stop` where it is told to.

    def start(self) -> None:
        self._sampler.start(self._sampled)

    def request_diagnosis(self, pair: Pair | None = None) -> None:
        with self._changed:
            if pair is None:
                self._wanted.all = True
            else:
                self._wanted.pairs.add(pair)
            self._wanted.why = REQUESTED
            self._not_before = 0.0
            self._changed.notify()
        self._wake_turns()

    def prioritize(self, pairs: Collection[Pair]) -> None:
        """Figures say that something is wrong there: examine it before the next round."""
        with self._changed:
            if not self._soon >= set(pairs):
                self._soon.update(pairs)
                self._changed.notify()

    def stop(self, timeout_seconds: float = 0.0) -> None:
        """Deliver nothing more; what hangs is left to its daemon thread.

        Waits for each thread at most `timeout_seconds`.
        """
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._wake_turns()
        self._sampler.stop(timeout_seconds)
        if timeout_seconds > 0 and self._thread.is_alive():
            self._thread.join(timeout_seconds)

    # The sampler's thread.

    def _sampled(self, reading: Reading) -> None:
        self._on_reading(reading)
        with self._changed:
            if self._stopped:
                return
            was_lost = self._lost
            self._lost = isinstance(reading.error, ConnectionFailedError)
            if was_lost and not self._lost:
                # What the loss cut short saw nothing, and a crash leaves traces.
                self._wanted.all = True
                self._wanted.why = min(self._wanted.why, SOON)
                self._not_before = 0.0
            if reading.error is None:
                self._snapshots = reading.queues
                if self._thread.ident is None:
                    self._thread.start()
            self._changed.notify()

    # The doctor's thread.

    def _run(self) -> None:
        while (wanted := self._next()) is not None:
            began = time.monotonic()
            try:
                if wanted.all:
                    self._round(wanted.why)
                else:
                    self._examine(self._named(wanted.pairs), wanted.why)
            except Exception as error:  # noqa: BLE001  # a thread that dies says nothing any more
                self._failed(error, time.monotonic() - began)
            else:
                self._back_off_seconds = _FIRST_BACK_OFF_SECONDS

    def _next(self) -> _Wanted | None:
        """Waits for something to do; None: it is over."""
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                if not self._lost and now >= self._not_before:
                    if self._wanted or now >= self._due:
                        wanted, self._wanted = self._wanted, _Wanted()
                        wanted.all = wanted.all or not wanted
                        return wanted
                    if self._soon and now >= self._soon_from:
                        wanted, self._soon = _Wanted(pairs=self._soon, why=SOON), set()
                        return wanted
                self._changed.wait(self._pause(now))
            return None

    def _pause(self, now: float) -> float | None:
        """Until there may be something to do; None: until somebody says so."""
        if self._lost:
            return None
        due = min(self._due, self._soon_from) if self._soon else self._due
        return max(0.0, max(due, self._not_before) - now) + 0.01

    def _round(self, why: int) -> None:
        """All queues, those first that look worst; what is asked for meanwhile goes before."""
        took, round_began = 0.0, time.monotonic()
        with self._changed:
            snapshots = self._snapshots
        left = _worst_first(self._doctor.queues(), snapshots)
        while left and not self._stopped:
            chunk, left = left[:CHUNK], left[CHUNK:]
            lasted = self._examine(chunk, why)
            took += lasted
            if pairs := self._rested(min(1.0, lasted) if left else 0.0):
                self._examine(self._named(pairs), REQUESTED)
        waited = time.monotonic() - round_began - took
        # Never less: the second sample that proves that nobody pops comes with the next round.
        # Two watchers do not examine in step for long.
        pause = max(self._every_seconds, self._rest * took)
        pause *= random.uniform(1.0, 1.2)  # noqa: S311  # no secret
        with self._changed:
            self._due = time.monotonic() + pause
        # Others will have their turns before it again.
        self._tell(DoctorUpdate(next_seconds=pause + waited, whole_round=True))

    def _rested(self, seconds: float) -> set[Pair]:
        """A breath between two chunks, for the server and for the screen; what is asked for."""
        with self._changed:
            if not self._wanted.pairs and not self._stopped and seconds:
                self._changed.wait(seconds)
            pairs, self._wanted.pairs = self._wanted.pairs, set()
            return pairs

    def _named(self, pairs: Iterable[Pair]) -> list[Queue]:
        wanted = set(pairs)
        return [one for one in self._doctor.queues() if (one.schema, one.name) in wanted]

    def _examine(self, queues: Sequence[Queue], why: int) -> float:
        if not queues:
            return 0.0
        with self._turn(why):
            began = time.monotonic()
            with patience(CHUNK_SECONDS, lambda: self._stopped):
                found = self._doctor.diagnose(queues, self._snapshots)
            now = time.monotonic()
        self._soon_from = now + max(1.0, SOON_REST * (now - began))
        self._tell(DoctorUpdate(tuple(found), self._until_due()))
        return now - began

    def _turn(self, why: int) -> AbstractContextManager[None]:
        if self._turns is None:
            return nullcontext()
        # What is asked for meanwhile shall not wait for a turn that is not urgent.
        return self._turns.turn(why, lambda: self._stopped or self._wanted.why == REQUESTED)

    def _wake_turns(self) -> None:
        if self._turns is not None:
            self._turns.wake()

    def _until_due(self) -> float | None:
        left = self._due - time.monotonic()
        return left if left > 0 else None

    def _failed(self, error: Exception, took: float) -> None:
        """It is tried again, less and less often: a round from its beginning."""
        pause = max(self._back_off_seconds, self._rest * took)
        pause *= random.uniform(0.75, 1.25)  # noqa: S311  # no secret
        self._back_off_seconds = min(self._back_off_seconds * 2, _LONGEST_BACK_OFF_SECONDS)
        with self._changed:
            self._not_before = time.monotonic() + pause
            self._due = min(self._due, self._not_before)
        self._tell(
            DoctorUpdate(error=error if isinstance(error, ConsoleError) else _unforeseen(error))
        )

    def _tell(self, update: DoctorUpdate) -> None:
        if not self._stopped:
            self._on_examined(update)


def _worst_first(queues: Sequence[Queue], snapshots: Sequence[QueueSnapshot]) -> list[Queue]:
    bad = {(one.schema, one.queue) for one in snapshots if one.stuck or one.errors or one.problem}
    return sorted(queues, key=lambda queue: (queue.schema, queue.name) not in bad)


def _unforeseen(error: Exception) -> ConsoleError:
    _LOG.error("the doctor could not examine", exc_info=error)
    return ConsoleError("The doctor failed.", why=f"{type(error).__name__}: {error}")
