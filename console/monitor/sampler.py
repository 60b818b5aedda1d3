"""One daemon thread a connection: looks, hands on what it saw, waits, looks again."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from console.catalog import STUCK_AFTER_SECONDS
from console.engines import Database
from console.errors import ConsoleError
from console.monitor.sample import DatabaseSample, take_sample
from console.monitor.snapshot import QueueSnapshot, RateWindow, snapshot

_FIRST_RETRY_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 30.0


@dataclass(frozen=True)
class Reading:
    """What one look of the sampler gave: snapshots, or the error that it met."""

    connection: str
    queues: tuple[QueueSnapshot, ...] = ()
    latency_seconds: float | None = None
    production: bool = False
    error: ConsoleError | None = None
    retry_seconds: float | None = None


class Sampler:
    """Samples one database until stopped. `deliver` is called in the sampler's thread."""

    def __init__(
        self,
        database: Database,
        deliver: Callable[[Reading], None],
        *,
        interval_seconds: float = 1.0,
        stuck_after_seconds: float = STUCK_AFTER_SECONDS,
    ) -> None:
        self._database = database
        self._deliver = deliver
        self.interval_seconds = interval_seconds
        self._stuck_after_seconds = stuck_after_seconds
        self._windows: dict[tuple[str, str, str], RateWindow] = {}
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"sampler {database.label}", daemon=True
        )

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def look_now(self) -> None:
        """Do not wait for the rest of the interval."""
        self._wake.set()

    def stop(self, timeout_seconds: float = 0.0) -> None:
        """Ask the thread to end; wait for it at most `timeout_seconds`."""
        self._stop.set()
        self._wake.set()
        if timeout_seconds > 0 and self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        retry = _FIRST_RETRY_SECONDS
        while not self._stop.is_set():
            try:
                sample = take_sample(self._database, stuck_after_seconds=self._stuck_after_seconds)
            except Exception as error:  # noqa: BLE001  # a thread that dies says nothing ever again
                # Jitter, so that many consoles do not come back to a server in step.
                pause = retry * random.uniform(0.75, 1.25)  # noqa: S311
                retry = min(retry * 2, _LONGEST_RETRY_SECONDS)
                told = error if isinstance(error, ConsoleError) else _unforeseen(error)
                reading = Reading(self._database.label, error=told, retry_seconds=pause)
                self._windows.clear()
            else:
                pause, retry = self.interval_seconds, _FIRST_RETRY_SECONDS
                reading = self._reading(sample)
            if not self._stop.is_set():
                self._deliver(reading)
            self._wake.wait(pause)
            self._wake.clear()

    def _reading(self, sample: DatabaseSample) -> Reading:
        shown: list[QueueSnapshot] = []
        windows: dict[tuple[str, str, str], RateWindow] = {}
        for seen in sample.queues:
            key = (seen.queue.schema, seen.queue.name, seen.queue.design.name)
            window = self._windows.get(key) or RateWindow(seen.queue.design.flow)
            windows[key] = window
            rates = window.add(sample.taken_at, seen.row, counts_rows=sample.counts_rows)
            shown.append(snapshot(seen, sample.connection, rates))
        self._windows = windows
        return Reading(
            sample.connection,
            tuple(shown),
            latency_seconds=sample.latency_seconds,
            production=sample.production,
        )


def _unforeseen(error: Exception) -> ConsoleError:
    return ConsoleError("Could not look at the queues.", why=f"{type(error).__name__}: {error}")
