"""Serves metrics over HTTP. Databases are sampled by threads of their own, not by a scrape."""

import ipaddress
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from console.doctor.finding import SEVERITIES, Diagnosis, Finding
from console.doctor.watcher import UNATTENDED_SECONDS, Doctor, DoctorUpdate, Watcher
from console.engines import Database
from console.errors import ConsoleError, RefusedError, UsageError
from console.figures import FIGURES, PERCENTILES
from console.monitor.latency import Percentiles
from console.monitor.limits import ThresholdsOf
from console.monitor.sample_queries import StuckAfter
from console.monitor.sampler import Reading, Sampler
from console.monitor.snapshot import QueueSnapshot
from console.monitor.statement_text import POP, PUSH

REQUEST_SECONDS = 10.0
"""For each read and write of a request."""
CONNECTION = ("connection",)
QUEUE = ("connection", "schema", "queue", "design")


@dataclass(frozen=True)
class ConnectionState:
    reading: Reading
    sampled_at: float | None
    """Of the last successful sample, as Unix time; None: there is none."""
    diagnoses: Sequence[Diagnosis] = ()
    examined_at: float | None = None
    """Of the last examination, as Unix time."""

    @property
    def up(self) -> bool:
        return self.sampled_at is not None and self.reading.error is None


COUNTERS: tuple[tuple[str, str, str], ...] = (
    ("pushed", "pushed_messages", "Messages pushed since the exporter's first sample."),
    ("popped", "popped_messages", "Messages popped since the exporter's first sample."),
)
SUBSCRIBER_GAUGES: tuple[tuple[str, str, str, str], ...] = (
    ("gap", "gap_messages", "messages", "Numbers that a subscriber of a ring has not drawn yet."),
    ("ready", "ready_messages", "messages", "Messages that the subscriber can pop now."),
    ("parked", "parked_pops", "", "Its pops that wait for the message of their number."),
    ("age_seconds", "age_seconds", "seconds", "Age of the oldest message that it can pop."),
)
"""Field of a subscriber's snapshot -> name after `dbq_subscriber_`, unit, help."""
LATENCIES = {
    "waiting": "How long messages waited for their first pop",
    "processing": "How long work on messages took, from the pop to done or error",
}


def families(seen: Sequence[ConnectionState]) -> Iterator[Metric]:
    yield from _of_connections(seen)
    read = [
        (queue, connection_state.up and not queue.problem)
        for connection_state in seen
        for queue in connection_state.reading.queues
    ]
    yield _gauge(
        "dbq_queue_up",
        "Whether the queue could be read; if not, it has no figures.",
        QUEUE,
        ((_labels(queue), float(up)) for queue, up in read),
    )
    readable = [queue for queue, up in read if up]
    for figure in FIGURES:
        if figure.gauge:
            known = ((_labels(queue), getattr(queue, figure.name)) for queue in readable)
            yield _gauge(f"dbq_queue_{figure.gauge}", figure.help, QUEUE, known, figure.gauge_unit)
    for field, name, help_text in COUNTERS:
        counter = CounterMetricFamily(f"dbq_queue_{name}", help_text, labels=QUEUE, unit="messages")
        for queue in readable:
            if (value := getattr(queue, field)) is not None:
                counter.add_metric(_labels(queue), math.floor(value))
        yield counter
    for kind, help_text in LATENCIES.items():
        yield _gauge(
            f"dbq_queue_{kind}_seconds",
            f"{help_text}: percentiles of a sample of the last 5 minutes; "
            "too few messages: no series.",
            (*QUEUE, "quantile"),
            _quantiles(kind, readable),
            "seconds",
        )
    yield _gauge(
        "dbq_queue_estimated",
        "1 for each figure that is an estimate; all others are exact.",
        (*QUEUE, "figure"),
        (([*_labels(queue), figure], 1.0) for queue in readable for figure in queue.estimated),
    )
    yield _gauge(
        "dbq_queue_paused",
        "1 for each queue that an operator has paused.",
        QUEUE,
        ((_labels(queue), 1.0) for queue in readable if queue.paused),
    )
    yield from _of_subscribers(readable)
    yield from _of_findings([connection_state for connection_state in seen if connection_state.up])
    yield from _of_consumers([connection_state for connection_state in seen if connection_state.up])


def _of_subscribers(queues: Sequence[QueueSnapshot]) -> Iterator[Metric]:
    of = [
        ([*_labels(queue), subscriber_snapshot.subscriber], subscriber_snapshot)
        for queue in queues
        for subscriber_snapshot in queue.subscribers or ()
    ]
    labels = (*QUEUE, "subscriber")
    for field, name, unit, help_text in SUBSCRIBER_GAUGES:
        values = ((named, getattr(subscriber_snapshot, field)) for named, subscriber_snapshot in of)
        yield _gauge(f"dbq_subscriber_{name}", help_text, labels, values, unit)
    counter = CounterMetricFamily(
        "dbq_subscriber_popped_messages",
        "Messages popped by the subscriber, or skipped, since the exporter's first sample.",
        labels=labels,
        unit="messages",
    )
    for named, snapshot in of:
        if snapshot.popped is not None:
            counter.add_metric(named, math.floor(snapshot.popped))
    yield counter


def _quantiles(
    kind: str, queues: Iterable[QueueSnapshot]
) -> Iterator[tuple[list[str], float | None]]:
    for queue in queues:
        if queue.latency is not None:
            of: Percentiles = getattr(queue.latency, kind)
            for percent, value in zip(PERCENTILES, of.values, strict=True):
                yield [*_labels(queue), f"{percent / 100:g}"], value


def _of_connections(seen: Sequence[ConnectionState]) -> Iterator[Metric]:
    def gauge(
        name: str,
        help_text: str,
        values: Iterable[tuple[ConnectionState, float | None]],
        unit: str = "",
    ) -> Metric:
        labelled = (
            ([connection_state.reading.connection], value) for connection_state, value in values
        )
        return _gauge(f"dbq_{name}", help_text, CONNECTION, labelled, unit)

    yield gauge(
        "up",
        "Whether the last sample succeeded.",
        [(connection_state, float(connection_state.up)) for connection_state in seen],
    )
    yield gauge(
        "sample_duration_seconds",
        "Sample latency: how long the last successful sample took.",
        [(connection_state, connection_state.reading.latency_seconds) for connection_state in seen],
        "seconds",
    )
    replaying = [
        (connection_state, connection_state.reading.standby)
        for connection_state in seen
        if connection_state.reading.standby is not None
    ]
    yield gauge(
        "figures_current",
        "0: a standby that is too far behind for its figures to be those of now.",
        [
            (
                connection_state,
                float(
                    connection_state.reading.standby is None
                    or connection_state.reading.standby.current
                ),
            )
            for connection_state in seen
        ],
    )
    yield gauge(
        "standby_lag_seconds",
        "Of a standby: how long ago the moment was that its figures are of.",
        [(connection_state, standby.lag_seconds) for connection_state, standby in replaying],
        "seconds",
    )
    yield gauge(
        "last_sample_timestamp_seconds",
        "When the figures were sampled; a scrape queries no database.",
        [(connection_state, connection_state.sampled_at) for connection_state in seen],
        "seconds",
    )
    yield gauge(
        "last_examination_timestamp_seconds",
        "When the doctor last examined all queues.",
        [(connection_state, connection_state.examined_at) for connection_state in seen],
        "seconds",
    )


def _of_findings(seen: Sequence[ConnectionState]) -> Iterator[Metric]:
    found: list[tuple[list[str], float]] = []
    unseen: list[tuple[list[str], float]] = []
    coded: list[tuple[list[str], float]] = []
    silenced: list[tuple[list[str], float]] = []
    for connection_state in seen:
        for diagnosis in connection_state.diagnoses:
            queue = diagnosis.queue
            labels = [
                connection_state.reading.connection,
                queue.schema,
                queue.name,
                queue.design.name,
            ]
            loud = [one for one in diagnosis.findings if one.silenced is None]
            counted = Counter(finding.code.severity for finding in loud)
            unseen.append((labels, float(len(diagnosis.unseen))))
            coded += _by_code(labels, loud)
            silenced += _by_code(labels, (one for one in diagnosis.findings if one.silenced))
            found += [
                ([*labels, severity.word], float(counted[severity]))
                for severity in SEVERITIES
                # A zero is true only if everything was examined.
                if counted[severity] or not diagnosis.unseen
            ]
    help_text = "Findings of the doctor; no series where it could not examine everything."
    yield _gauge("dbq_queue_findings", help_text, (*QUEUE, "severity"), found)
    help_text = "Findings of the doctor by code; no series where there are none."
    yield _gauge("dbq_queue_findings_by_code", help_text, (*QUEUE, "code", "severity"), coded)
    help_text = (
        "Findings that an operator has silenced or acknowledged: no other series counts them."
    )
    yield _gauge("dbq_queue_findings_silenced", help_text, (*QUEUE, "code", "severity"), silenced)
    help_text = "What the doctor could not examine."
    yield _gauge("dbq_queue_unexamined", help_text, QUEUE, unseen)


def _of_consumers(seen: Sequence[ConnectionState]) -> Iterator[Metric]:
    counted: list[tuple[list[str], float]] = []
    sessions: list[tuple[list[str], float]] = []
    for connection_state in seen:
        for diagnosis in connection_state.diagnoses:
            queue, consumers = diagnosis.queue, diagnosis.consumers
            figures = diagnosis.figures
            if consumers is None or consumers.missing or figures is None or figures.problem:
                continue  # a part of them is a false figure
            labels = [
                connection_state.reading.connection,
                queue.schema,
                queue.name,
                queue.design.name,
            ]
            there = [consumer for consumer in consumers.consumers if consumer.sessions != 0]
            rates = {POP: figures.pop_per_second, PUSH: figures.push_per_second}
            for does, rate in rates.items():
                of = [consumer for consumer in there if does in consumer.does]
                if not of and rate != 0:
                    continue  # somebody was there between two samples, or it is not known
                counted.append(([*labels, does], float(len(of))))
                connected = sum(consumer.sessions or 0 for consumer in of)
                sessions.append(([*labels, does], float(connected)))
    help_text = (
        "Consumers (pop) and producers (push) seen when the doctor last ran; by their names."
    )
    yield _gauge("dbq_queue_consumers", help_text, (*QUEUE, "does"), counted)
    help_text = "Sessions of the consumers and producers that were seen."
    yield _gauge("dbq_queue_consumer_sessions", help_text, (*QUEUE, "does"), sessions)


def _by_code(
    labels: Sequence[str], findings: Iterable[Finding]
) -> Iterator[tuple[list[str], float]]:
    for code, number in Counter(finding.code for finding in findings).items():
        yield [*labels, code.name, code.severity.word], float(number)


def _gauge(
    name: str,
    help_text: str,
    labels: Sequence[str],
    values: Iterable[tuple[Sequence[str], float | None]],
    unit: str = "",
) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=labels, unit=unit)
    for of, value in values:
        if value is not None:
            family.add_metric(of, value)
    return family


def _labels(queue: QueueSnapshot) -> list[str]:
    return [queue.connection, queue.schema, queue.queue, queue.design]


_LOG = logging.getLogger(__name__)
_STOP_SECONDS = 10.0


class Watch:
    """Samples one connection and examines its queues."""

    def __init__(
        self,
        database: Database,
        *,
        interval_seconds: float,
        stuck_after_seconds: StuckAfter,
        thresholds_of: ThresholdsOf,
    ) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._seen = ConnectionState(Reading(database.label), None)
        self._round: list[Diagnosis] = []
        self._watcher = Watcher(
            Sampler(
                database, interval_seconds=interval_seconds, stuck_after_seconds=stuck_after_seconds
            ),
            Doctor(database, thresholds_of),
            on_reading=self._sampled,
            on_update=self._examined,
            every_seconds=UNATTENDED_SECONDS,
        )

    @property
    def seen(self) -> ConnectionState:
        with self._lock:
            return self._seen

    def start(self) -> None:
        self._watcher.start()

    def stop(self) -> None:
        self._watcher.stop(_STOP_SECONDS)
        self._database.close()

    def _sampled(self, reading: Reading) -> None:
        with self._lock:
            was_well, is_well = self._seen.reading.error is None, reading.error is None
            sampled_at = self._seen.sampled_at if reading.error is not None else time.time()
            self._seen = replace(self._seen, reading=reading, sampled_at=sampled_at)
        if was_well != is_well:
            _LOG.warning("%s: %s", reading.connection, "back" if is_well else "cannot be read")

    def _examined(self, examined: DoctorUpdate) -> None:
        self._round += examined.diagnoses
        if examined.error is not None:
            name = self._database.label
            _LOG.warning("%s: the doctor failed: %s", name, type(examined.error).__name__)
            # Earlier findings say nothing about now.
            self._round.clear()
            with self._lock:
                self._seen = replace(self._seen, diagnoses=())
        elif examined.complete_round:
            diagnoses, self._round = tuple(self._round), []
            with self._lock:
                self._seen = replace(self._seen, diagnoses=diagnoses, examined_at=time.time())


class _Collector(Collector):
    def __init__(self, watches: Sequence[Watch]) -> None:
        self._watches = watches

    def collect(self) -> Iterator[Metric]:
        yield from families([watch.seen for watch in self._watches])

    def describe(self) -> Iterator[Metric]:
        """Nothing: the series depend on the queues."""
        yield from ()


def _bounded(handler: Any) -> Any:
    """The same handler of requests, for clients that send or read nothing."""

    class Handler(handler):  # type: ignore[misc]
        timeout = REQUEST_SECONDS

        def handle(self) -> None:
            with suppress(TimeoutError):
                super().handle()

    return Handler


class Exporter:
    def __init__(self, watches: Sequence[Watch], host: str, port: int) -> None:
        """ConsoleError: the address cannot be listened on."""
        self._watches = watches
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(watches))
        try:
            self._server, self._thread = start_http_server(port, host, registry)
            self._server.RequestHandlerClass = _bounded(self._server.RequestHandlerClass)
        except OSError as error:
            raise ConsoleError(
                f"Could not listen on {_shown(host)}:{port}.", why=error.strerror or str(error)
            ) from error
        self.url = f"http://{_shown(host)}:{self._server.server_port}/metrics"

    def start(self) -> None:
        """Begin to sample; until the first sample, nothing is up."""
        for watch in self._watches:
            watch.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_STOP_SECONDS)
        for watch in self._watches:
            watch.stop()


def address(listen: str, *, anywhere: bool) -> tuple[str, int]:
    """Host and port of `HOST:PORT`. RefusedError: no loopback address, unless `anywhere`."""
    host, colon, digits = listen.rpartition(":")
    if not colon or not (digits.isascii() and digits.isdigit()) or int(digits) > 65_535:
        raise UsageError(
            f"{listen!r} is not an address to listen on.",
            next_step="Examples: 127.0.0.1:9464, [::1]:9464.",
        )
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not anywhere and not is_loopback(host):
        raise RefusedError(
            f"{listen!r} is not a loopback address.",
            why="Metrics are served without a password and without encryption: anyone who reaches "
            "that address can read the names and figures of all queues.",
            next_step="To do it anyway, add --anywhere; better, put a proxy in front.",
        )
    return host, int(digits)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it; of names, only localhost is certain."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
