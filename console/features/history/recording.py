"""Records one connection: samples, findings, and at longer intervals waits and actions."""

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from console import catalog
from console.catalog import audit
from console.doctor.finding import Diagnosis
from console.doctor.watcher import UNATTENDED_SECONDS, Doctor, DoctorUpdate, QueueName, Watcher
from console.engines import Database, time_limit
from console.errors import ConsoleError
from console.features.history.consumers import rows
from console.features.history.recorder import Recorder
from console.features.history.segments import ACTIONS, CONSUMERS, FINDINGS, WAITS, Row
from console.monitor.activity import Activity, find_objects, sample_activity
from console.monitor.limits import ThresholdsOf, defaults_of
from console.monitor.message import Masks
from console.monitor.sample_queries import StuckAfter
from console.monitor.sampler import Reading, Sampler
from console.rights import Rights

_LOG = logging.getLogger(__name__)
WAITS_SECONDS = 10.0
ACTIONS_SECONDS = 10.0
_REST = 10
"""A pause is at least this many times as long as the work before it."""
_TIMEOUT_SECONDS = 600.0
"""Of one read of waits or actions."""


@dataclass
class _Due:
    seconds: float
    record: Callable[[], None]
    at: float = 0.0


class WaitsAndActions:
    """Records what sessions wait for and what operators did, besides the readings.

    In a thread of its own, at longer intervals, and only while samples succeed: only the sampler
    reconnects.
    """

    def __init__(self, database: Database, recorder: Recorder, *, slower: float = 1.0) -> None:
        """`slower`: a factor for the intervals."""
        self._database = database
        self._recorder = recorder
        self._slower = slower
        self._last: Reading | None = None
        self._seen_actions: dict[int, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float = 0.0) -> None:
        """Cancel what is running, and wait for it for at most `timeout_seconds`."""
        self._stop.set()
        self._thread.join(timeout_seconds)

    def sampled(self, reading: Reading) -> None:
        """Records a reading; may be called in any thread."""
        self._last = reading
        self._recorder.reading(reading)

    def _run(self) -> None:
        steps = ((WAITS_SECONDS, self._waits), (ACTIONS_SECONDS, self._actions))
        # Many connections do not begin at once.
        late = random.random() * (self._slower - 1)  # noqa: S311  # no secret
        began = time.monotonic()
        due = [_Due(s * self._slower, record, began + late * s) for s, record in steps]
        while not self._stop.wait(1.0):
            if self._last is None or self._last.error is not None:
                continue
            for one in due:
                began = time.monotonic()
                if began >= one.at and not self._stop.is_set():
                    self._try(one.record)
                    ended = time.monotonic()
                    one.at = ended + max(one.seconds, _REST * (ended - began))

    def _try(self, record: Callable[[], None]) -> None:
        try:
            with time_limit(_TIMEOUT_SECONDS, self._stop.is_set):
                record()
        except ConsoleError:
            return  # samples report the state of the connection
        except Exception:  # noqa: BLE001  # the thread has to go on
            _LOG.exception("waits or actions could not be recorded")

    def _waits(self) -> None:
        queues = catalog.in_use(self._database)
        activity = sample_activity(self._database, find_objects(self._database, queues))
        activity = activity.without_readers(self._database.application_name)
        self._recorder.add(WAITS, waits(activity, datetime.now(UTC)))

    def _actions(self) -> None:
        with self._database.transaction("read the audit", read_only=True) as connection:
            entries = audit.entries(connection, audit.EntryFilter())
        # Each when it is first seen, and when its outcome changes.
        news = [
            entry for entry in entries if self._seen_actions.get(entry.action_id) != entry.outcome
        ]
        self._seen_actions = {entry.action_id: entry.outcome for entry in entries}
        self._recorder.add(ACTIONS, map(action, reversed(news)))


class Companion(Protocol):
    """What a feature runs beside a recorder: `companion` of its package `recorder` makes it."""

    def start(self, examine: Callable[[Collection[QueueName]], None], /) -> None:
        """`examine`: have these queues diagnosed before the next round; in any thread."""

    def marked(self, update: DoctorUpdate, /) -> DoctorUpdate:
        """As the others, and the recording, get it. Called in the doctor's thread."""
        ...

    def examined(self, update: DoctorUpdate, /) -> None:
        """Called in the doctor's thread."""

    def stop(self, timeout_seconds: float) -> None:
        """End it, and wait for it for at most that long."""


class Recording:
    """Records one database until stopped. A lost connection leaves a gap."""

    def __init__(
        self,
        database: Database,
        recorder: Recorder,
        *,
        interval_seconds: float,
        stuck_after_seconds: StuckAfter,
        thresholds_of: ThresholdsOf = defaults_of,
        masks: Masks = (),
        rights: Rights = Rights.READ_ONLY,
        on_reading: Callable[[Reading], None] = lambda _: None,
    ) -> None:
        """`on_reading` is called in the sampler's thread. `rights`: as the doctor's."""
        self._recorder = recorder
        self._on_reading = on_reading
        self.companions: Sequence[Companion] = ()
        """To be set before `start`."""
        self._waits_and_actions = WaitsAndActions(database, recorder)
        self._watcher = Watcher(
            Sampler(
                database, interval_seconds=interval_seconds, stuck_after_seconds=stuck_after_seconds
            ),
            Doctor(database, thresholds_of, masks, rights=rights),
            on_reading=self._sampled,
            on_update=self._diagnosed,
            every_seconds=UNATTENDED_SECONDS,
        )

    def start(self) -> None:
        self._watcher.start()
        self._waits_and_actions.start()
        for companion in self.companions:
            companion.start(self._watcher.prioritize)

    def stop(self, timeout_seconds: float) -> None:
        """Cancel what is running, and wait for each part for at most `timeout_seconds`."""
        self._watcher.stop(timeout_seconds)
        self._waits_and_actions.stop(timeout_seconds)
        for companion in self.companions:
            companion.stop(timeout_seconds)

    def _sampled(self, reading: Reading) -> None:
        self._waits_and_actions.sampled(reading)
        self._on_reading(reading)

    def _diagnosed(self, update: DoctorUpdate) -> None:
        for companion in self.companions:
            update = companion.marked(update)
        for companion in self.companions:
            companion.examined(update)
        at = datetime.now(UTC)
        self._recorder.add(FINDINGS, findings(update.diagnoses, at))
        self._recorder.add(CONSUMERS, consumers(update.diagnoses, at))


def findings(diagnoses: Iterable[Diagnosis], at: datetime) -> Iterator[Row]:
    """Rows of FINDINGS."""
    for diagnosis in diagnoses:
        row = {
            "at": at,
            "schema": diagnosis.queue.schema,
            "queue": diagnosis.queue.name,
            "verdict": diagnosis.verdict,
        }
        for finding in diagnosis.findings:
            code = finding.code
            yield row | {
                "code": code.name,
                "severity": code.severity.word,
                "summary": finding.public_summary,
            }
        if not diagnosis.findings:
            yield row


def consumers(diagnoses: Iterable[Diagnosis], at: datetime) -> Iterator[Row]:
    """Rows of CONSUMERS."""
    for diagnosis in diagnoses:
        if diagnosis.consumers is not None:
            ready = (diagnosis.figures.ready or 0) if diagnosis.figures else 0
            yield from rows(diagnosis.consumers, at, ready if diagnosis.messages_late else 0)


def waits(activity: Activity, at: datetime) -> Iterator[Row]:
    """Rows of WAITS."""
    counted: Counter[tuple[Any, ...]] = Counter()
    for session in activity.sessions:
        if session.wait is None:
            continue
        for schema, queue in (*session.waits_in, (None, None)):
            counted[schema, queue, session.wait_kind, session.wait] += 1
    for (schema, queue, kind, wait), sessions in counted.items():
        yield {
            "at": at,
            "schema": schema,
            "queue": queue,
            "kind": kind,
            "wait": wait,
            "sessions": sessions,
        }


def action(entry: audit.Entry) -> Row:
    """A row of ACTIONS, without the filters, which may hold parts of payloads."""
    return {
        "at": entry.started_at,
        **{name: getattr(entry, name) for name in ACTIONS.columns if name not in {"at", "note"}},
        "note": entry.detail if entry.verb == "note" else None,
    }
