"""The demo from beginning to end: server, queues, traffic."""

import time
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Self

from console.actions.install import install
from console.demo import plan
from console.demo.child import Child
from console.demo.signals import held, noted
from console.engines import open_database
from console.engines.embedded import EmbeddedServer
from console.errors import ConsoleError

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
        """SQLAlchemy's URL of the demo's database, password included."""
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
        self._url = self._server.create_database("demo")
        _install_queues(self._url)
        log = self._server.folder / "demo.log"
        with log.open("ab") as output:
            for role in ("traffic", "faults"):
                self._workers.append(Child(role, {"url": self._url}, output))
        flows = self._workers[0].wait_for_word(_TRAFFIC_WITHIN_SECONDS, asked_to_end)
        self.started_at = time.monotonic()
        if not flows and not asked_to_end.is_set():
            raise ConsoleError("The demo's traffic did not start.", why=_last_words(log))


def _install_queues(url: str) -> None:
    database = open_database(url)
    try:
        for lane in plan.LANES:
            install(database, lane.queue(database.product.default_schema))
    finally:
        database.close()


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-5:])
