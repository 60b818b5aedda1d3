"""From what was seen of a connection to OpenMetrics families. What is not known has no series."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from console.doctor.finding import Diagnosis, Severity
from console.monitor import QueueSnapshot, Reading

CONNECTION = ("connection",)
QUEUE = ("connection", "schema", "queue", "design")


@dataclass(frozen=True)
class Seen:
    """What is known of one connection."""

    reading: Reading
    looked_at: float | None
    """When the last look went well, as Unix time; None: none has."""
    diagnoses: Sequence[Diagnosis] = ()
    examined_at: float | None = None
    """When the doctor last looked, as Unix time."""

    @property
    def up(self) -> bool:
        """Whether the last look went well."""
        return self.looked_at is not None and self.reading.error is None


GAUGES: tuple[tuple[str, str, str, str], ...] = (
    ("ready", "ready_messages", "messages", "Messages that can be popped now."),
    ("scheduled", "scheduled_messages", "messages", "Messages that are due later."),
    ("claimed", "claimed_messages", "messages", "Messages popped and not yet finished."),
    ("stuck", "stuck_messages", "messages", "Claims that last longer than stuck_after."),
    ("errors", "error_messages", "messages", "Messages that failed and wait for an operator."),
    ("done", "done_messages", "messages", "Messages processed and not yet archived."),
    ("age_seconds", "age_seconds", "seconds", "Age of the oldest message that is ready."),
    ("gap", "gap_messages", "messages", "Next push number less next pop number, of a ring."),
    ("capacity", "capacity_messages", "messages", "Slots of a ring."),
    ("holders", "open_transactions", "", "Open transactions that have written in the queue."),
)
"""Field of a snapshot -> name after `dbq_queue_`, unit, help."""
COUNTERS: tuple[tuple[str, str, str], ...] = (
    ("pushed", "pushed_messages", "Messages pushed since the exporter first looked."),
    ("popped", "popped_messages", "Messages popped since the exporter first looked."),
)


def families(seen: Sequence[Seen]) -> Iterator[Metric]:
    """Everything that is served."""
    yield from _of_connections(seen)
    read = [(queue, one.up and not queue.problem) for one in seen for queue in one.reading.queues]
    yield _gauge(
        "dbq_queue_up",
        "Whether the queue could be read; if not, it has no figures.",
        QUEUE,
        ((_labels(queue), float(up)) for queue, up in read),
    )
    readable = [queue for queue, up in read if up]
    for field, name, unit, words in GAUGES:
        known = ((_labels(queue), getattr(queue, field)) for queue in readable)
        yield _gauge(f"dbq_queue_{name}", words, QUEUE, known, unit)
    for field, name, words in COUNTERS:
        counter = CounterMetricFamily(f"dbq_queue_{name}", words, labels=QUEUE, unit="messages")
        for queue in readable:
            if (value := getattr(queue, field)) is not None:
                counter.add_metric(_labels(queue), value)
        yield counter
    yield _gauge(
        "dbq_queue_estimated",
        "1 for each figure that is an estimate; others are exact.",
        (*QUEUE, "figure"),
        (([*_labels(queue), figure], 1.0) for queue in readable for figure in queue.estimated),
    )
    yield from _of_findings([one for one in seen if one.up])


def _of_connections(seen: Sequence[Seen]) -> Iterator[Metric]:
    def gauge(
        name: str, words: str, values: Iterable[tuple[Seen, float | None]], unit: str = ""
    ) -> Metric:
        labelled = (([one.reading.connection], value) for one, value in values)
        return _gauge(f"dbq_{name}", words, CONNECTION, labelled, unit)

    yield gauge("up", "Whether the last look went well.", [(one, float(one.up)) for one in seen])
    yield gauge(
        "sample_duration_seconds",
        "How long the last look took that went well.",
        [(one, one.reading.latency_seconds) for one in seen],
        "seconds",
    )
    yield gauge(
        "last_sample_timestamp_seconds",
        "When the figures were read: a scrape asks no database.",
        [(one, one.looked_at) for one in seen],
        "seconds",
    )
    yield gauge(
        "last_examination_timestamp_seconds",
        "When the doctor last looked at all queues.",
        [(one, one.examined_at) for one in seen],
        "seconds",
    )


def _of_findings(seen: Sequence[Seen]) -> Iterator[Metric]:
    found: list[tuple[list[str], float]] = []
    unseen: list[tuple[list[str], float]] = []
    for one in seen:
        for diagnosis in one.diagnoses:
            queue = diagnosis.queue
            labels = [one.reading.connection, queue.schema, queue.name, queue.design.name]
            counted = Counter(finding.code.severity for finding in diagnosis.findings)
            unseen.append((labels, float(len(diagnosis.unseen))))
            found += [
                ([*labels, severity.word], float(counted[severity]))
                for severity in Severity
                # That there is none is known only after a look at everything.
                if counted[severity] or not diagnosis.unseen
            ]
    words = "Findings of the doctor; no series where it could not look at everything."
    yield _gauge("dbq_queue_findings", words, (*QUEUE, "severity"), found)
    words = "What the doctor could not look at."
    yield _gauge("dbq_queue_unexamined", words, QUEUE, unseen)


def _gauge(
    name: str,
    words: str,
    labels: Sequence[str],
    values: Iterable[tuple[Sequence[str], float | None]],
    unit: str = "",
) -> Metric:
    family = GaugeMetricFamily(name, words, labels=labels, unit=unit)
    for of, value in values:
        if value is not None:
            family.add_metric(of, value)
    return family


def _labels(queue: QueueSnapshot) -> list[str]:
    return [queue.connection, queue.schema, queue.queue, queue.design]
