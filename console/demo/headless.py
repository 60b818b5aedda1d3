"""The demo without a screen: run it for a while, watch it, and tell how it was."""

import time
from dataclasses import replace
from threading import Event

from console.demo.session import Demo
from console.demo.signals import noted
from console.engines import Database, open_database
from console.errors import ConsoleError
from console.monitor import DatabaseSample, QueueSnapshot, RateWindow, snapshot, take_sample
from console.monitor.sample import SAMPLING_TIMEOUTS
from console.monitor.snapshot import Rates

_INTERVAL_SECONDS = 1.0
_SETTLED_WITHIN_SECONDS = 3.0
_SETTLES_SECONDS = 0.2


def run_headless(seconds: float) -> list[QueueSnapshot]:
    """Run the demo for so long from the first traffic; the status of each queue at the end.

    Rates are means over the whole run. Ctrl-C and SIGTERM only end it early: the answer is the
    same. When this returns nothing is left of the demo.
    """
    with noted() as asked_to_end, Demo() as demo:
        # Asked to end while it started, there is nothing to look at.
        return [] if asked_to_end.is_set() else _watch(demo, seconds, asked_to_end)


def _watch(demo: Demo, seconds: float, asked_to_end: Event) -> list[QueueSnapshot]:
    database = open_database(demo.url, timeouts=SAMPLING_TIMEOUTS, label="demo")
    means = _Means()
    try:
        ends_at = demo.started_at + seconds
        last = _look(demo, database, means)
        while (left := ends_at - time.monotonic()) > 0 and not asked_to_end.is_set():
            asked_to_end.wait(min(left, _INTERVAL_SECONDS))
            last = _look(demo, database, means) or last
        # The engine's counters trail their sessions, up to the moment when those end.
        ended_at = time.monotonic()
        demo.stop_traffic()
        rates = means.settled(demo, database, ended_at)
    finally:
        database.close()
    if last is None:
        raise ConsoleError("The demo could not be looked at.", why=means.problem)
    return [snapshot(seen, last.connection, rates.get(seen.queue.name)) for seen in last.queues]


class _Means:
    """The rates of each queue from the first sample to the last."""

    def __init__(self) -> None:
        self._windows: dict[str, RateWindow] = {}
        self.problem = ""
        """Why the last look failed, if one did."""

    def add(self, sample: DatabaseSample) -> dict[str, Rates]:
        rates = {}
        for seen in sample.queues:
            name = seen.queue.name
            whole_run = RateWindow(seen.queue.design.flow, seconds=float("inf"))
            window = self._windows.setdefault(name, whole_run)
            rates[name] = window.add(sample.taken_at, seen.row, counts_rows=sample.counts_rows)
        return rates

    def settled(self, demo: Demo, database: Database, ended_at: float) -> dict[str, Rates]:
        """The rates up to the traffic's end, once the counters move no more."""
        deadline = time.monotonic() + _SETTLED_WITHIN_SECONDS
        before: list[object] = []
        while True:
            sample = take_sample(database, stuck_after_seconds=demo.stuck_after_seconds)
            rows = [seen.row for seen in sample.queues]
            now = [row and (row.inserted, row.updated, row.deleted) for row in rows]
            if now == before or time.monotonic() > deadline:
                return self.add(replace(sample, taken_at=ended_at))
            before = list(now)
            time.sleep(_SETTLES_SECONDS)


def _look(demo: Demo, database: Database, means: _Means) -> DatabaseSample | None:
    """One sample, taken into the means; None where it fails: the next one may not."""
    try:
        sample = take_sample(database, stuck_after_seconds=demo.stuck_after_seconds)
    except ConsoleError as error:
        means.problem = str(error)
        return None
    means.add(sample)
    return sample
