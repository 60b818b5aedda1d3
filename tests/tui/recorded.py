"""Recordings as the recorder makes them, at times that a test names."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from console.errors import ConsoleError
from console.monitor.recording.recorder import Recorder
from console.monitor.recording.segments import ACTIONS, FINDINGS
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot

BEGIN = datetime(2026, 3, 29, 1, 0, tzinfo=UTC)


class Taken:
    """One connection while it is recorded."""

    def __init__(self, root: Path, connection: str = "prod") -> None:
        self.at = BEGIN
        self._connection = connection
        self._recorder = Recorder(root, connection, now=lambda: self.at)

    def look(
        self, seconds: float, *queues: QueueSnapshot, next_seconds: float | None = 1.0
    ) -> None:
        self.at = BEGIN + timedelta(seconds=seconds)
        told = Reading(self._connection, queues, latency_seconds=0.004, next_seconds=next_seconds)
        self._recorder.reading(told)

    def fail(self, seconds: float, what: str) -> None:
        self.at = BEGIN + timedelta(seconds=seconds)
        self._recorder.reading(Reading(self._connection, error=ConsoleError(what)))

    def found(self, seconds: float, queue: str, codes: Sequence[str] = ()) -> None:
        row = {"at": BEGIN + timedelta(seconds=seconds), "schema": "public", "queue": queue}
        grave = {"verdict": "critical", "severity": "critical"}
        rows = [{**row, **grave, "code": code, "summary": f"{code} it is"} for code in codes]
        self._recorder.add(FINDINGS, rows or [{**row, "verdict": "all clear"}])

    def acted(self, seconds: float, queue: str, verb: str) -> None:
        at = BEGIN + timedelta(seconds=seconds)
        row = {"at": at, "schema": "public", "queue": queue, "action_id": 7, "verb": verb}
        more = {"ended_at": at, "operator": "ann", "outcome": "ok", "planned": 3, "done": 3}
        self._recorder.add(ACTIONS, [{**row, **more}])

    def noted(self, seconds: float, note: str) -> None:
        at = BEGIN + timedelta(seconds=seconds)
        row = {"at": at, "ended_at": at, "action_id": 8, "verb": "note", "operator": "ann"}
        self._recorder.add(ACTIONS, [{**row, "outcome": "done", "note": note}])

    def close(self) -> None:
        self._recorder.close(60.0)
