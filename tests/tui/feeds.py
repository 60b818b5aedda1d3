"""Fakes for tests: feeds, readings, recordings, and a clock that a test sets."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from console.catalog.decisions import Decision
from console.engines.standby import Standby
from console.errors import ConnectionFailedError, ConsoleError
from console.figures import SAMPLED
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot
from console.rights import Login
from console.tui import Clock


class FakeClock:
    """Moves only when a test sets it."""

    def __init__(self) -> None:
        self.now = 1000.0

    @property
    def clock(self) -> Clock:
        return Clock(
            monotonic=lambda: self.now, utc=lambda: datetime(2026, 3, 29, 2, 14, 7, tzinfo=UTC)
        )


class FakeFeed:
    """Delivers the test's readings, and counts the samples that the console requests."""

    def __init__(self, name: str = "prod-orders", interval_seconds: float = 1.0) -> None:
        self.name = name
        self.interval_seconds = interval_seconds
        self.samples_requested = 0
        self.stopped = False
        self._deliver: Callable[[Reading], None] | None = None

    def start(self, deliver: Callable[[Reading], None]) -> None:
        self._deliver = deliver

    def sample_now(self) -> None:
        self.samples_requested += 1

    def stop(self, timeout_seconds: float = 0.0) -> None:  # noqa: ARG002  # of the protocol
        self.stopped = True

    def give(
        self, *queues: QueueSnapshot, production: bool = False, login: Login | None = None
    ) -> None:
        """A successful reading."""
        reading = Reading(self.name, queues, latency_seconds=0.004, production=production)
        self.deliver(replace(reading, login=login))

    def fail(self, error: ConsoleError | None = None, retry_seconds: float = 8.0) -> None:
        """A failed reading."""
        error = error or ConnectionFailedError(
            "Could not sample the queues.", why="connection refused\nIs the server running?"
        )
        self.deliver(Reading(self.name, error=error, retry_seconds=retry_seconds))

    def deliver(self, reading: Reading) -> None:
        assert self._deliver is not None, "the console has not started this feed"
        self._deliver(reading)


FIGURES: dict[str, Any] = {figure.name: None for figure in SAMPLED} | {"ready": 0}
PLAIN = QueueSnapshot(
    **FIGURES,
    queue="",
    design="fifo",
    push_per_second=4.0,
    pop_per_second=4.0,
    schema="public",
    connection="",
    estimated=(),
    unknown=(),
)
"""An empty fifo."""
AT_TWO = datetime(2026, 3, 29, 2, 0, tzinfo=UTC)
PAUSE = Decision(
    *("pause", "", "public", "mail", "ann@etl01", "u", "bad release"),
    *(AT_TWO, AT_TWO.replace(hour=4), False, ""),
)
"""A pause until four."""
PROTECTION = replace(PAUSE, kind="protection", operator="bob@etl02", reason="audit", until=None)


BEHIND = Standby(
    True, True, 300.0, "db1:5432", datetime(2026, 3, 29, tzinfo=UTC), received=2, replayed=1
)
"""5 minutes, since its replay is paused."""


def queue(name: str, design: str = "fifo", **figures: object) -> QueueSnapshot:
    """A queue's figures, those of PLAIN where none are given."""
    return replace(PLAIN, queue=name, design=design, **figures)  # type: ignore[arg-type]


def broken(name: str, design: str, problem: str) -> QueueSnapshot:
    """A queue that could not be sampled."""
    unknown = ("ready", "age_seconds", "push_per_second", "pop_per_second")
    nothing = dict.fromkeys(unknown)
    return queue(name, design, **nothing, unknown=unknown, problem=problem)


def nine_queues() -> Sequence[QueueSnapshot]:
    """One queue of each design, as the demo has them."""
    keeps = {"claimed": 3, "stuck": 0, "errors": 0}
    return (
        queue("billing", "fifo"),
        queue(
            "mail",
            "claim",
            ready=12_480,
            estimated=("ready",),
            age_seconds=541.3,
            push_per_second=51.3,
            pop_per_second=48.8,
            claimed=31,
            stuck=14,
            errors=6,
        ),
        queue("imports", "heap", ready=17, unknown=("age_seconds",)),
        queue("legacy", "naive", ready=3, age_seconds=0.31),
        queue(
            "orders",
            "ring",
            ready=9_412,
            age_seconds=3.1,
            push_per_second=812.0,
            pop_per_second=640.2,
            gap=9_412,
            capacity=10_000,
        ),
        queue("reminders", "pending", ready=2, age_seconds=3912.0, scheduled=4_102),
        queue("reports", "status", **{**keeps, "errors": 12}, done=1_204),
        queue("scans", "split", ready=40, age_seconds=8.8, **keeps, done=88_112),
        queue("undo", "stack", ready=1, age_seconds=273_600.0),
    )


BEGIN = datetime(2026, 3, 29, 1, 0, tzinfo=UTC)


class RecordedConnection:
    """Records one connection with the real recorder, at times that a test sets."""

    def __init__(self, root: Path, connection: str = "prod") -> None:
        from console.features.history.recorder import Recorder  # noqa: PLC0415  # may not be here

        self.at = BEGIN
        self._connection = connection
        self._recorder = Recorder(root, connection, now=lambda: self.at)

    def sample(
        self,
        seconds: float,
        *queues: QueueSnapshot,
        next_seconds: float | None = 1.0,
        standby: Standby | None = None,
    ) -> None:
        self.at = BEGIN + timedelta(seconds=seconds)
        reading = Reading(
            self._connection, queues, latency_seconds=0.004, next_seconds=next_seconds
        )
        self._recorder.reading(replace(reading, standby=standby))

    def fail(self, seconds: float, what: str) -> None:
        self.at = BEGIN + timedelta(seconds=seconds)
        self._recorder.reading(Reading(self._connection, error=ConsoleError(what)))

    def add_findings(self, seconds: float, queue: str, codes: Sequence[str] = ()) -> None:
        from console.features.history.segments import FINDINGS  # noqa: PLC0415

        row = {"at": BEGIN + timedelta(seconds=seconds), "schema": "public", "queue": queue}
        severe = {"verdict": "critical", "severity": "critical"}
        rows = [{**row, **severe, "code": code, "summary": f"{code} it is"} for code in codes]
        self._recorder.add(FINDINGS, rows or [{**row, "verdict": "all clear"}])

    def add_action(self, seconds: float, queue: str, verb: str) -> None:
        from console.features.history.segments import ACTIONS  # noqa: PLC0415

        at = BEGIN + timedelta(seconds=seconds)
        row = {"at": at, "schema": "public", "queue": queue, "action_id": 7, "verb": verb}
        more = {"ended_at": at, "operator": "ann", "outcome": "ok", "planned": 3, "done": 3}
        self._recorder.add(ACTIONS, [{**row, **more}])

    def add_note(self, seconds: float, note: str) -> None:
        from console.features.history.segments import ACTIONS  # noqa: PLC0415

        at = BEGIN + timedelta(seconds=seconds)
        row = {"at": at, "ended_at": at, "action_id": 8, "verb": "note", "operator": "ann"}
        self._recorder.add(ACTIONS, [{**row, "outcome": "done", "note": note}])

    def close(self) -> None:
        self._recorder.close(60.0)
