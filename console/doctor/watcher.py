"""Watches a connection: samples it, and has the doctor diagnose its queues. For screens, `record`,
metrics.

Two daemon threads: the sampler's and the doctor's. The doctor works at most a tenth of the time,
and waits while there is no connection: only the sampler reconnects. What an operator requests, or
a figure calls for, goes before the routine rounds.
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
from console.engines import Database, time_limit
from console.errors import ConnectionFailedError, ConsoleError
from console.monitor.limits import ThresholdsOf, defaults_of
from console.monitor.message import Masks
from console.monitor.past import Forecasts, past
from console.monitor.sampler import REQUESTED, ROUTINE, SOON, Reading, WorkLimiter
from console.monitor.snapshot import QueueSnapshot
from console.rights import Rights

if TYPE_CHECKING:
    from console.doctor.silent_consumers import ConsumerHistory
    from console.doctor.stopped_consumers import ConsumptionHistory

_LOG = logging.getLogger(__name__)
EVERY_SECONDS = 30.0
"""At least this long between two rounds of all queues..."""
UNATTENDED_SECONDS = 60.0
"""... or this long if nobody watches a screen..."""
REST = 10.0
"""... and at least this many times the duration of the round."""
SOON_REST = 3.0
"""The same after queues whose figures called for a diagnosis."""
CHUNK = 20
"""Queues that are diagnosed together; the results of each chunk are delivered at once."""
CHUNK_SECONDS = 120.0
"""Time-out of one chunk, also for a server that does not respond."""
_FIRST_BACK_OFF_SECONDS = 1.0
_LONGEST_BACK_OFF_SECONDS = 30.0

QueueName = tuple[str, str]
"""Schema and name."""


@dataclass(frozen=True)
class DoctorUpdate:
    diagnoses: tuple[Diagnosis, ...] = ()
    next_seconds: float | None = None
    """Until the next round; None: this one still runs."""
    error: ConsoleError | None = None
    complete_round: bool = False
    """Whether it completes a round of all queues."""


class Sampling(Protocol):
    """A source of readings, such as a `Sampler`."""

    def start(self, deliver: Callable[[Reading], None]) -> None:
        """`deliver` may be called in any thread."""

    def stop(self, timeout_seconds: float = 0.0) -> None:
        """Deliver nothing more; wait for the current sample for at most `timeout_seconds`."""


class Doctor:
    """Diagnoses the queues of one database, and remembers what it saw of their consumers."""

    def __init__(
        self,
        database: Database,
        thresholds_of: ThresholdsOf = defaults_of,
        masks: Masks = (),
        *,
        rights: Rights = Rights.READ_ONLY,
    ) -> None:
        """`rights`: an operator's let it end acknowledgements whose finding has ended."""
        self._writes = rights >= Rights.OPERATOR
        self.database = database
        self._thresholds_of = thresholds_of
        self._masks = masks
        self._consumption: ConsumptionHistory | None = None
        self._consumers: ConsumerHistory | None = None
        self._forecasts: Forecasts | None = None

    def queues(self) -> list[Queue]:
        return catalog.in_use(self.database)

    def diagnose(
        self, queues: Sequence[Queue], snapshots: Sequence[QueueSnapshot]
    ) -> list[Diagnosis]:
        """What is wrong with them. Raises ConnectionFailedError."""
        # Imported in the doctor's thread, so that the console starts quickly.
        from console.doctor.decisions import end_acknowledgements  # noqa: PLC0415
        from console.doctor.diagnose import diagnose  # noqa: PLC0415
        from console.doctor.silent_consumers import ConsumerHistory  # noqa: PLC0415
        from console.doctor.stopped_consumers import ConsumptionHistory  # noqa: PLC0415

        if self._consumption is None:
            self._consumption = ConsumptionHistory(waits=False)
        if self._consumers is None:
            self._consumers = ConsumerHistory(self.database)
        if self._forecasts is None and (known := past()) is not None:
            self._forecasts = known.forecasts(self.database.label)
        diagnoses = diagnose(
            self.database,
            queues,
            thresholds_of=self._thresholds_of,
            snapshots=snapshots,
            masks=self._masks,
            consumption=self._consumption,
            consumers=self._consumers,
            forecasts=self._forecasts,
        )
        if self._writes and not self.database.read_only and self.database.seen_standby is None:
            end_acknowledgements(self.database, diagnoses)
        return diagnoses


@dataclass
class _Request:
    all: bool = False
    queues: set[QueueName] = field(default_factory=set)
    urgency: int = ROUTINE

    def __bool__(self) -> bool:
        return self.all or bool(self.queues)


class Watcher:
    """Samples, and diagnoses from the first successful reading on, until stopped."""

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
        """`on_reading` is called in the sampler's thread, `on_update` in the doctor's. `turns` are
        shared by several watchers."""
        self._sampler = sampler
        self._doctor = doctor
        self._on_reading = on_reading
        self._on_update = on_update
        self._every_seconds = every_seconds
        self._rest = rest
        self._turns = turns
        self._changed = threading.Condition()
        self._thread = threading.Thread(
            target=self._run, name=f"doctor {doctor.database.label}", daemon=True
        )
        self._stopped = False
        self._lost = False
        self._incarnation: str | None = None
        self._snapshots: Sequence[QueueSnapshot] = ()
        self._request = _Request()
        self._soon: set[QueueName] = set()
        self._soon_from = 0.0
        self._due = 0.0
        self._not_before = 0.0
        self._back_off_seconds = _FIRST_BACK_OFF_SECONDS

    # None of these waits, except `stop` with a time-out.

    def start(self) -> None:
        self._sampler.start(self._sampled)

    def request_diagnosis(self, queue: QueueName | None = None) -> None:
        with self._changed:
            if queue is None:
                self._request.all = True
            else:
                self._request.queues.add(queue)
            self._request.urgency = REQUESTED
            self._not_before = 0.0
            self._changed.notify()
        self._wake_turns()

    def prioritize(self, queues: Collection[QueueName]) -> None:
        """Diagnose these before the next round: their figures show that something is wrong."""
        with self._changed:
            if not self._soon >= set(queues):
                self._soon.update(queues)
                self._changed.notify()

    def stop(self, timeout_seconds: float = 0.0) -> None:
        """Deliver nothing more. Waits for each thread for at most `timeout_seconds`; one that
        hangs is a daemon."""
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
            was_lost, before = self._lost, self._incarnation
            self._lost = isinstance(reading.error, ConnectionFailedError)
            if reading.error is None:
                self._incarnation = reading.incarnation
            restarted = before not in {None, self._incarnation}
            if (was_lost and not self._lost) or restarted:
                # The lost connection cut a round short, and a crash leaves traces; a server may be
                # back before any sample has missed it.
                self._request.all = True
                self._request.urgency = min(self._request.urgency, SOON)
                self._not_before = 0.0
            if reading.error is None:
                self._snapshots = reading.queues
                if self._thread.ident is None:
                    self._thread.start()
            self._changed.notify()

    # The doctor's thread.

    def _run(self) -> None:
        while (request := self._next()) is not None:
            began = time.monotonic()
            try:
                if request.all:
                    self._round(request.urgency)
                else:
                    self._diagnose(self._named(request.queues), request.urgency)
            except Exception as error:  # noqa: BLE001  # the thread has to go on
                self._failed(error, time.monotonic() - began)
            else:
                self._back_off_seconds = _FIRST_BACK_OFF_SECONDS

    def _next(self) -> _Request | None:
        """Waits for something to do; None: stopped."""
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                if not self._lost and now >= self._not_before:
                    if self._request or now >= self._due:
                        request, self._request = self._request, _Request()
                        request.all = request.all or not request
                        return request
                    if self._soon and now >= self._soon_from:
                        request, self._soon = _Request(queues=self._soon, urgency=SOON), set()
                        return request
                self._changed.wait(self._pause(now))
            return None

    def _pause(self, now: float) -> float | None:
        """Until there may be something to do; None: until notified."""
        if self._lost:
            return None
        due = min(self._due, self._soon_from) if self._soon else self._due
        return max(0.0, max(due, self._not_before) - now) + 0.01

    def _round(self, urgency: int) -> None:
        """All queues, those that look worst first. Requests are served between the chunks."""
        took, round_began = 0.0, time.monotonic()
        with self._changed:
            snapshots = self._snapshots
        left = _worst_first(self._doctor.queues(), snapshots)
        while left and not self._stopped:
            chunk, left = left[:CHUNK], left[CHUNK:]
            lasted = self._diagnose(chunk, urgency)
            took += lasted
            if requested := self._rest_between_chunks(min(1.0, lasted) if left else 0.0):
                self._diagnose(self._named(requested), REQUESTED)
        waited = time.monotonic() - round_began - took
        # Never less: the second sample that proves that nothing is popped comes with the next
        # round. The random part keeps two watchers out of step.
        pause = max(self._every_seconds, self._rest * took)
        pause *= random.uniform(1.0, 1.2)  # noqa: S311  # no secret
        with self._changed:
            self._due = time.monotonic() + pause
        # Before the next round, others have their turns again.
        self._deliver(DoctorUpdate(next_seconds=pause + waited, complete_round=True))

    def _rest_between_chunks(self, seconds: float) -> set[QueueName]:
        """Relieves the server and the screen; returns the queues requested by now."""
        with self._changed:
            if not self._request.queues and not self._stopped and seconds:
                self._changed.wait(seconds)
            requested, self._request.queues = self._request.queues, set()
            return requested

    def _named(self, names: Iterable[QueueName]) -> list[Queue]:
        names = set(names)
        return [queue for queue in self._doctor.queues() if (queue.schema, queue.name) in names]

    def _diagnose(self, queues: Sequence[Queue], urgency: int) -> float:
        if not queues:
            self._soon_from = time.monotonic() + 1.0
            return 0.0
        with self._turn(urgency):
            began = time.monotonic()
            with time_limit(CHUNK_SECONDS, lambda: self._stopped):
                diagnoses = self._doctor.diagnose(queues, self._snapshots)
            now = time.monotonic()
        self._soon_from = now + max(1.0, SOON_REST * (now - began))
        self._deliver(DoctorUpdate(tuple(diagnoses), self._until_due()))
        return now - began

    def _turn(self, urgency: int) -> AbstractContextManager[None]:
        if self._turns is None:
            return nullcontext()
        # A request that comes meanwhile does not wait for a turn that is less urgent.
        return self._turns.turn(
            urgency, lambda: self._stopped or self._request.urgency == REQUESTED
        )

    def _wake_turns(self) -> None:
        if self._turns is not None:
            self._turns.wake()

    def _until_due(self) -> float | None:
        left = self._due - time.monotonic()
        return left if left > 0 else None

    def _failed(self, error: Exception, took: float) -> None:
        """Start a round from its beginning, after pauses that grow."""
        pause = max(self._back_off_seconds, self._rest * took)
        pause *= random.uniform(0.75, 1.25)  # noqa: S311  # no secret
        self._back_off_seconds = min(self._back_off_seconds * 2, _LONGEST_BACK_OFF_SECONDS)
        with self._changed:
            self._not_before = time.monotonic() + pause
            self._due = min(self._due, self._not_before)
        if not isinstance(error, ConsoleError):
            _LOG.error("the doctor could not examine", exc_info=error)
            why = f"{type(error).__name__}: {error}"
            error = ConsoleError("The doctor failed.", why=why)
        self._deliver(DoctorUpdate(error=error))

    def _deliver(self, update: DoctorUpdate) -> None:
        if not self._stopped:
            self._on_update(update)


def _worst_first(queues: Sequence[Queue], snapshots: Sequence[QueueSnapshot]) -> list[Queue]:
    bad = {
        (snapshot.schema, snapshot.queue)
        for snapshot in snapshots
        if snapshot.stuck or snapshot.errors or snapshot.problem
    }
    return sorted(queues, key=lambda queue: (queue.schema, queue.name) not in bad)
