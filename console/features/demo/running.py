"""The demo: a real server, one queue of every design, live traffic with faults.

    with Demo() as demo:
        database = open_database(demo.url, label="demo")

The traffic runs in processes of its own. They and the server end with the process that started
them, however that one ends.
"""

import os
import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Self

from sqlalchemy import URL, make_url

from console.actions.install import install
from console.clock import sleep
from console.engines import Database, open_database
from console.errors import ConsoleError
from console.features.demo import plan
from console.features.demo.child import Child, signals_deferred, signals_noted
from console.features.demo.embedded import EmbeddedServer
from console.formats import duration
from console.monitor.rates import Rates, RateWindow
from console.monitor.sample import SAMPLING_TIMEOUTS, DatabaseSample, take_sample
from console.monitor.snapshot import QueueSnapshot, snapshot

_TRAFFIC_WITHIN_SECONDS = 60.0


class Demo:
    """A server with one queue of every design and live traffic, as a context manager.

    A Ctrl-C or SIGTERM during the start takes effect once it can be cleaned up; while it stops, it
    has no effect.
    """

    stuck_after_seconds = plan.STUCK_AFTER_SECONDS

    def __init__(self) -> None:
        self._server: EmbeddedServer | None = None
        self._workers: list[Child] = []
        self._url = ""
        self.started_at = 0.0
        """When the first traffic flowed, by `time.monotonic()`."""

    @property
    def url(self) -> str:
        """SQLAlchemy's URL of the database. The password is in a file of this user, so that the URL
        can be shown and pasted."""
        return self._url

    @property
    def recordings(self) -> Path | None:
        """A folder that is removed with the server; None: it does not run."""
        folder = None if self._server is None else self._server.folder
        return None if folder is None else folder / "recordings"

    def __enter__(self) -> Self:
        try:
            with signals_deferred() as stop_requested:
                self._start(stop_requested)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop_traffic(self) -> None:
        """End the workers; queues and server stay as they are."""
        with signals_noted():
            for worker in self._workers:
                worker.request_stop()
            for worker in self._workers:
                worker.stop()
            self._workers.clear()

    def stop(self) -> None:
        """May be called again."""
        with signals_noted():
            self.stop_traffic()
            if self._server is not None:
                self._server.stop()
                self._server = None

    def _start(self, stop_requested: Event) -> None:
        self._server = EmbeddedServer.start()
        if stop_requested.is_set() or self._server.folder is None:
            return
        self._url = _with_passfile(self._server.create_database("demo"), self._server.folder)
        _install_queues(self._url)
        log = self._server.folder / "demo.log"
        with log.open("ab") as output:
            for role in ("traffic", "faults"):
                self._workers.append(Child(role, {"url": self._url}, output))
        flows = self._workers[0].wait_for_line(_TRAFFIC_WITHIN_SECONDS, stop_requested)
        self.started_at = time.monotonic()
        if not flows and not stop_requested.is_set():
            raise ConsoleError("The demo's traffic did not start.", why=_last_lines(log))


def _with_passfile(url: str, folder: Path) -> str:
    """The URL with its password moved to a file in the server's folder."""
    parsed = make_url(url)
    file = folder / "passfile"
    words = (parsed.host, parsed.port, "*", parsed.username, parsed.password)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as output:
        output.write(":".join(str(word) for word in words) + "\n")
    bare = URL.create(
        parsed.drivername, parsed.username, None, parsed.host, parsed.port, parsed.database
    )
    return bare.update_query_dict({"passfile": str(file)}).render_as_string()


def _install_queues(url: str) -> None:
    database = open_database(url)
    try:
        for demo_queue in plan.DEMO_QUEUES:
            install(database, demo_queue.queue(database.product))
    finally:
        database.close()


def _last_lines(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-5:])


_INTERVAL_SECONDS = 1.0
_SETTLED_WITHIN_SECONDS = 3.0
_SETTLE_PAUSE_SECONDS = 0.2


def run_headless(
    seconds: float, narrate: Callable[[str], None] = lambda _: None
) -> list[QueueSnapshot]:
    """Run the demo for `seconds` from the first traffic; the status of each queue at the end.

    Rates are means over the whole run. Ctrl-C and SIGTERM only end it early. When this returns,
    nothing is left of the demo. `narrate` gets a command that shows it meanwhile.
    """
    with signals_noted() as stop_requested, Demo() as demo:
        # If stopped during the start, there is nothing to report.
        if stop_requested.is_set():
            return []
        narrate(f"For {duration(seconds)}: dbq-console status --url {shlex.quote(demo.url)}")
        return _watch(demo, seconds, stop_requested)


def _watch(demo: Demo, seconds: float, stop_requested: Event) -> list[QueueSnapshot]:
    database = open_database(demo.url, timeouts=SAMPLING_TIMEOUTS, label="demo")
    means = _Means()
    try:
        ends_at = demo.started_at + seconds
        last = _sample(demo, database, means)
        while (left := ends_at - time.monotonic()) > 0 and not stop_requested.is_set():
            sleep(min(left, _INTERVAL_SECONDS), stop_requested)
            last = _sample(demo, database, means) or last
        # The engine's counters lag behind the sessions until these end.
        ended_at = time.monotonic()
        demo.stop_traffic()
        rates = means.settled(demo, database, ended_at)
    finally:
        database.close()
    if last is None:
        raise ConsoleError("The demo could not be sampled.", why=means.problem)
    return [snapshot(seen, last.connection, rates.get(seen.queue.name)) for seen in last.queues]


class _Means:
    """The rates of each queue from the first sample to the last."""

    def __init__(self) -> None:
        self._windows: dict[str, RateWindow] = {}
        self.problem = ""
        """Why the last sample failed, if one did."""

    def add(self, sample: DatabaseSample) -> dict[str, Rates]:
        rates = {}
        for seen in sample.queues:
            name = seen.queue.name
            entire_run = RateWindow(seen.queue.design.flow, seconds=float("inf"))
            window = self._windows.setdefault(name, entire_run)
            rates[name] = window.add(sample.taken_at, seen.row, counts_rows=sample.counts_rows)
        return rates

    def settled(self, demo: Demo, database: Database, ended_at: float) -> dict[str, Rates]:
        """The rates up to the traffic's end, once the counters have settled."""
        deadline = time.monotonic() + _SETTLED_WITHIN_SECONDS
        before: list[object] = []
        while True:
            sample = take_sample(database, stuck_after_seconds=demo.stuck_after_seconds)
            rows = [seen.row for seen in sample.queues]
            now = [row and (row.inserted, row.updated, row.deleted) for row in rows]
            if now == before or time.monotonic() > deadline:
                return self.add(replace(sample, taken_at=ended_at))
            before = list(now)
            time.sleep(_SETTLE_PAUSE_SECONDS)


def _sample(demo: Demo, database: Database, means: _Means) -> DatabaseSample | None:
    """One sample, added to the means; None if it fails."""
    try:
        sample = take_sample(database, stuck_after_seconds=demo.stuck_after_seconds)
    except ConsoleError as error:
        means.problem = str(error)
        return None
    means.add(sample)
    return sample
