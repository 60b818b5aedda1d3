"""Serves metrics over HTTP. Databases are asked by threads of their own, never by a scrape."""

import ipaddress
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from console import catalog
from console.doctor.examine import examine
from console.engines import Database, patience
from console.errors import RefusedError, UsageError
from console.metrics.families import Seen, families
from console.monitor import Reading, Sampler
from console.monitor.asking import StuckAfter
from console.monitor.limits import ThresholdsOf

_LOG = logging.getLogger(__name__)
FINDINGS_SECONDS = 60.0
_SHARE = 10
"""A look of the doctor that takes long is followed by a pause of so many times as long."""
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 600.0
"""For a look of the doctor, which is many statements."""


class Watch:
    """One connection: a sampler at its interval, the doctor in longer steps."""

    def __init__(
        self,
        database: Database,
        *,
        interval_seconds: float,
        stuck_after_seconds: StuckAfter,
        thresholds_of: ThresholdsOf,
    ) -> None:
        self._database = database
        self._thresholds_of = thresholds_of
        self._lock = threading.Lock()
        self._seen = Seen(Reading(database.label), None)
        self._sampled = threading.Event()
        self._stop = threading.Event()
        self._sampler = Sampler(
            database,
            self._take,
            interval_seconds=interval_seconds,
            stuck_after_seconds=stuck_after_seconds,
        )
        self._doctor = threading.Thread(target=self._examine, name="examining", daemon=True)

    @property
    def seen(self) -> Seen:
        """What is known now, without asking anybody."""
        with self._lock:
            return self._seen

    def start(self) -> None:
        """Begin to look."""
        self._sampler.start()
        self._doctor.start()

    def stop(self) -> None:
        """End what is under way, and let the connection go."""
        self._stop.set()
        self._sampled.set()
        self._sampler.stop(_STOP_SECONDS)
        self._doctor.join(_STOP_SECONDS)
        self._database.close()

    def _take(self, reading: Reading) -> None:
        with self._lock:
            was_well, is_well = self._seen.reading.error is None, reading.error is None
            looked_at = self._seen.looked_at if reading.error is not None else time.time()
            self._seen = replace(self._seen, reading=reading, looked_at=looked_at)
        self._sampled.set()
        if was_well != is_well:
            _LOG.warning("%s: %s", reading.connection, "back" if is_well else "cannot be read")

    def _examine(self) -> None:
        self._sampled.wait()
        while not self._stop.is_set():
            began = time.monotonic()
            # While it cannot be reached, the sampler is the one that tries again.
            if self.seen.up:
                self._look()
            took = time.monotonic() - began
            self._stop.wait(max(FINDINGS_SECONDS if self.seen.up else 1.0, _SHARE * took))

    def _look(self) -> None:
        try:
            with patience(_LOOK_SECONDS, self._stop.is_set):
                found = examine(
                    self._database,
                    catalog.in_use(self._database),
                    thresholds_of=self._thresholds_of,
                    snapshots=self.seen.reading.queues,
                )
        except Exception as error:  # noqa: BLE001  # a thread that dies says nothing ever again
            _LOG.warning("the doctor could not look: %s", type(error).__name__)
            # What was found before says nothing about now.
            with self._lock:
                self._seen = replace(self._seen, diagnoses=())
            return
        with self._lock:
            self._seen = replace(self._seen, diagnoses=tuple(found), examined_at=time.time())


class _Collector(Collector):
    def __init__(self, watches: Sequence[Watch]) -> None:
        self._watches = watches

    def collect(self) -> Iterator[Metric]:
        yield from families([watch.seen for watch in self._watches])

    def describe(self) -> Iterator[Metric]:
        """Nothing: what there is depends on the queues."""
        yield from ()


class Exporter:
    """Watches and the server in front of them, from `start` to `stop`."""

    def __init__(self, watches: Sequence[Watch], host: str, port: int) -> None:
        """UsageError where the address cannot be listened at."""
        self._watches = watches
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(watches))
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise UsageError(
                f"Could not listen at {_shown(host)}:{port}.", why=error.strerror or str(error)
            ) from error
        self.url = f"http://{_shown(host)}:{self._server.server_port}/metrics"

    def start(self) -> None:
        """Begin to look; until the first look is done, nothing is up."""
        for watch in self._watches:
            watch.start()

    def stop(self) -> None:
        """End: no more scrapes, no more looks."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_STOP_SECONDS)
        for watch in self._watches:
            watch.stop()


def address(listen: str, *, anywhere: bool) -> tuple[str, int]:
    """Host and port of `HOST:PORT`. RefusedError for another than a loopback address, unless that
    is meant."""
    host, colon, digits = listen.rpartition(":")
    if not colon or not (digits.isascii() and digits.isdigit()) or int(digits) > 65_535:
        raise UsageError(
            f"{listen!r} is no address to listen at.",
            next_step="Examples: 127.0.0.1:9464, [::1]:9464.",
        )
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not anywhere and not is_loopback(host):
        raise RefusedError(
            f"{listen!r} is not a loopback address.",
            why="Metrics are served without a password and without encryption: whoever reaches "
            "that address reads the names and figures of all queues.",
            next_step="If that is meant, add --anywhere; better, put a proxy in front.",
        )
    return host, int(digits)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it. A name other than localhost may be anywhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
