"""The demo from beginning to end: server, queues, traffic; on a screen or without one."""

import os
import time
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Self

from sqlalchemy import URL, make_url

from console.actions.install import install
from console.demo import plan
from console.demo.child import Child, held, noted
from console.engines import Database, open_database
from console.engines.embedded import EmbeddedServer
from console.errors import ConsoleError
from console.monitor.figures import Rates, RateWindow
from console.monitor.sample import SAMPLING_TIMEOUTS, DatabaseSample, take_sample
from console.monitor.snapshot import QueueSnapshot, snapshot

_TRAFFIC_WITHIN_SECONDS = 60.0


class Demo:
    """A server with one queue of every design and live traffic, from `with` to the end of it.

    A Ctrl-C or SIGTERM while it starts takes effect when it can be cleaned up after; while it
    stops, it has no effect.
    """

    stuck_after_seconds = plan.STUCK_AFTER_SECONDS

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._server: EmbeddedServer | None = None
        self._workers: list[Child] = []
        self._url = ""
        self.started_at = 0.0
        """When the first traffic flowed, by `time.monotonic()`."""

    @property
    def url(self) -> str:
        """SQLAlchemy's URL of the demo's database: its password is in a file of this user, so that
        the URL can be shown, and pasted."""
        return self._url

    @property
    def recordings(self) -> Path | None:
        """A folder that goes with the server, however that ends; None: it is not there."""
        folder = None if self._server is None else self._server.folder
        return None if folder is None else folder / "recordings"

    def __enter__(self) -> Self:
        try:
            with held() as asked_to_end:
                self._start(asked_to_end)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop_traffic(self) -> None:
        """End the workers; queues and server stay as they are."""
        with noted():
            for worker in self._workers:
                worker.ask_to_leave()  # all at once, then wait for each
            for worker in self._workers:
                worker.stop()
            self._workers.clear()

    def stop(self) -> None:
        """End everything and leave nothing behind. May be called again."""
        with noted():
            self.stop_traffic()
            if self._server is not None:
                self._server.stop()
                self._server = None

    def _start(self, asked_to_end: Event) -> None:
        self._server = EmbeddedServer.start()
        if asked_to_end.is_set() or self._server.folder is None:
            return
        self._url = _with_passfile(self._server.create_database("demo"), self._server.folder)
        _install_queues(self._url)
        log = self._server.folder / "demo.log"
        with log.open("ab") as output:
            for role in ("traffic", "faults"):
                self._workers.append(Child(role, {"url": self._url}, output))
        flows = self._workers[0].wait_for_word(_TRAFFIC_WITHIN_SECONDS, asked_to_end)
        self.started_at = time.monotonic()
        if not flows and not asked_to_end.is_set():
            raise ConsoleError("The demo's traffic did not start.", why=_last_words(log))


def _with_passfile(url: str, folder: Path) -> str:
    """The URL without its password, which the driver finds in a file that goes with the server."""
    whole = make_url(url)
    file = folder / "passfile"
    words = (whole.host, whole.port, "*", whole.username, whole.password)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as output:
        output.write(":".join(str(word) for word in words) + "\n")
    bare = URL.create(
        whole.drivername, whole.username, None, whole.host, whole.port, whole.database
    )
    return bare.update_query_dict({"passfile": str(file)}).render_as_string()


def _install_queues(url: str) -> None:
    database = open_database(url)
    try:
        for lane in plan.LANES:
            install(database, lane.queue(database.product))
    finally:
        database.close()


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-5:])


_INTERVAL_SECONDS = 1.0
_SETTLED_WITHIN_SECONDS = 3.0
_SETTLES_SECONDS = 0.2


def run_headless(seconds: float) -> list[QueueSnapshot]:
    """Run the demo for so long from the first traffic; the status of each queue at the end.

    Rates are means over the whole run. Ctrl-C and SIGTERM only end it early: the answer is the
    same. When this returns nothing is left of the demo.
    """
    with noted() as asked_to_end, Demo() as demo:
        # Asked to end while it started, there is nothing to examine.
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
