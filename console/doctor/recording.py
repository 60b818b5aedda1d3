"""Everything that is recorded of one connection: samples, and in longer steps what is dearer."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from console import catalog
from console.actions import audit
from console.catalog import Queue
from console.doctor.examine import examine
from console.doctor.finding import Diagnosis, Finding
from console.engines import Database, patience
from console.errors import ConsoleError
from console.monitor import Reading, Sampler
from console.monitor.activity import Activity, find_objects, look
from console.monitor.asking import StuckAfter
from console.monitor.limits import ThresholdsOf, defaults_of
from console.monitor.message import Masks
from console.monitor.recording import Recorder
from console.monitor.recording.records import ACTIONS, FINDINGS, WAITS, Row

_LOG = logging.getLogger(__name__)
FINDINGS_SECONDS = 60.0
WAITS_SECONDS = 10.0
ACTIONS_SECONDS = 10.0
_SHARE = 10
"""A look that takes long is followed by a pause of so many times as long, at least."""
_LOOK_SECONDS = 600.0
"""For one of them, which may be many statements."""


@dataclass
class _Due:
    seconds: float
    record: Callable[[Sequence[Queue]], None]
    at: float = 0.0


class Rounds:
    """What is looked at in longer steps, in a thread of its own: waits, actions, findings.

    It looks only while samples come: those tell whether the connection is there.
    """

    def __init__(
        self,
        database: Database,
        recorder: Recorder,
        *,
        thresholds_of: ThresholdsOf = defaults_of,
        masks: Masks = (),
        findings: bool = True,
    ) -> None:
        """`findings`: let the doctor look; not where somebody else does and hands them on."""
        self._database = database
        self._recorder = recorder
        self._thresholds_of = thresholds_of
        self._masks = masks
        self._with_findings = findings
        self._last: Reading | None = None
        self._seen_actions: dict[int, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 0.0) -> None:
        """End what is under way and wait for it, so long at most."""
        self._stop.set()
        self._thread.join(timeout_seconds)

    def sampled(self, reading: Reading) -> None:
        """Record a reading too, in any thread."""
        self._last = reading
        self._recorder.reading(reading)

    def _run(self) -> None:
        due = [_Due(WAITS_SECONDS, self._waits), _Due(ACTIONS_SECONDS, self._actions)]
        if self._with_findings:
            due.append(_Due(FINDINGS_SECONDS, self._findings))
        while not self._stop.wait(1.0):
            if self._last is None or self._last.error is not None:
                continue  # the sampler is the one that tries to connect again
            for one in due:
                began = time.monotonic()
                if began >= one.at and not self._stop.is_set():
                    self._try(one.record)
                    ended = time.monotonic()
                    one.at = ended + max(one.seconds, _SHARE * (ended - began))

    def _try(self, record: Callable[[Sequence[Queue]], None]) -> None:
        try:
            with patience(_LOOK_SECONDS, self._stop.is_set):
                record(catalog.in_use(self._database))
        except ConsoleError:
            return  # a look that failed is no record; the samples tell of the connection
        except Exception:  # noqa: BLE001  # a thread that dies records nothing ever again
            _LOG.exception("what is recorded in longer steps could not be looked at")

    def _findings(self, queues: Sequence[Queue]) -> None:
        seen = self._last.queues if self._last is not None else ()
        found = examine(
            self._database,
            queues,
            thresholds_of=self._thresholds_of,
            snapshots=seen,
            masks=self._masks,
        )
        self._recorder.add(FINDINGS, findings(found, datetime.now(UTC)))

    def _waits(self, queues: Sequence[Queue]) -> None:
        activity = look(self._database, find_objects(self._database, queues))
        self._recorder.add(WAITS, waits(activity, datetime.now(UTC)))

    def _actions(self, _: Sequence[Queue]) -> None:
        with self._database.transaction("read the audit", read_only=True) as connection:
            found = audit.entries(connection, self._database.product, audit.Wanted())
        # Each when it is first seen, and when it has gone on.
        news = [one for one in found if self._seen_actions.get(one.action_id) != one.outcome]
        self._seen_actions = {one.action_id: one.outcome for one in found}
        self._recorder.add(ACTIONS, map(action, reversed(news)))


class Recording:
    """Samples one database into a recorder until stopped. A lost connection costs only its time."""

    def __init__(
        self,
        database: Database,
        recorder: Recorder,
        *,
        interval_seconds: float,
        stuck_after_seconds: StuckAfter,
        thresholds_of: ThresholdsOf = defaults_of,
        masks: Masks = (),
        told: Callable[[Reading], None] = lambda _: None,
    ) -> None:
        """`told`: gets each reading too, in the sampler's thread."""
        self._told = told
        self._rounds = Rounds(database, recorder, thresholds_of=thresholds_of, masks=masks)
        self._sampler = Sampler(
            database,
            self._sampled,
            interval_seconds=interval_seconds,
            stuck_after_seconds=stuck_after_seconds,
        )

    def start(self) -> None:
        """Begin."""
        self._sampler.start()
        self._rounds.start()

    def stop(self, timeout_seconds: float) -> None:
        """End what is under way and wait for it, so long at most."""
        self._sampler.stop(timeout_seconds)
        self._rounds.stop(timeout_seconds)

    def _sampled(self, reading: Reading) -> None:
        self._rounds.sampled(reading)
        self._told(reading)


def findings(found: Iterable[Diagnosis], at: datetime) -> Iterator[Row]:
    """What the doctor found, as rows of FINDINGS."""
    for one in found:
        row = {
            "at": at,
            "schema": one.queue.schema,
            "queue": one.queue.name,
            "verdict": one.verdict,
        }
        for finding in one.findings:
            code = finding.code
            yield row | {
                "code": code.name,
                "severity": code.severity.word,
                "summary": _without_error_text(finding),
            }
        if not one.findings:
            yield row


def _without_error_text(finding: Finding) -> str:
    """Texts of errors are never recorded: they may hold parts of payloads."""
    if not finding.evidence.get("first_error"):
        return finding.summary
    return finding.summary.partition("; the first:")[0]


def waits(activity: Activity, at: datetime) -> Iterator[Row]:
    """What sessions waited for at a moment, as rows of WAITS."""
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
    """An action as a row of ACTIONS; its filters may hold parts of payloads and stay out."""
    return {
        "at": entry.started_at,
        **{name: getattr(entry, name) for name in ACTIONS.columns if name != "at"},
    }
