"""Sample the queues once: states, depth, age, gap."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from console.figures import COLUMNS, Figure
from console.formats import plain
from console.monitor.limits import ThresholdsOf, defaults_of, judge
from console.monitor.sample import take_sample
from console.monitor.sampler import probe
from console.monitor.snapshot import QueueSnapshot, snapshot
from console.rights import Login
from console.views.view import WIDTH, Column, Display, Source, Subject, View, aligned

_NOT_PRINTED = {"connection", "schema", "problem"}
"""In the table: they are below it, or known."""


@dataclass(frozen=True)
class SampledQueues:
    queues: Sequence[QueueSnapshot]
    login: Login | None = None
    """What the connection's login could do, if known."""
    thresholds_of: ThresholdsOf = defaults_of
    named: bool = False
    """Whether they were given by name: then more is said about each."""
    where: str = "this database"


def _columns(_: Display) -> Sequence[Column[QueueSnapshot]]:
    return (
        Column("connection", "connection", lambda q: plain(q.connection)),
        Column("schema", "schema", lambda q: plain(q.schema)),
        Column("queue", "queue", lambda q: plain(q.queue)),
        Column("design", "design", lambda q: q.design),
        *map(_figure, COLUMNS),
        Column("problem", "problem", lambda q: plain(q.problem)),
    )


def _figure(figure: Figure) -> Column[QueueSnapshot]:
    def value(queue: QueueSnapshot) -> float | None:
        number: float | None = getattr(queue, figure.name)
        return number

    return Column(
        figure.key,
        figure.heading or figure.title,
        lambda queue: queue.text_of(figure.name),
        align_right=True,
        sort_key=value,
    )


def _by_key(result: SampledQueues) -> dict[str, QueueSnapshot]:
    return {repr(queue.key): queue for queue in result.queues}


def read(source: Source) -> SampledQueues:
    """A single sample: it has no rates. `source.values`: those of `take_sample`."""
    sample = take_sample(source.database, **source.values)
    return SampledQueues(
        [snapshot(queue, sample.connection) for queue in sample.queues],
        probe(source.database, [queue.queue for queue in sample.queues]),
        source.thresholds_of,
    )


def _text(result: SampledQueues, display: Display) -> Iterator[str]:
    """The figures in columns for a plain terminal, with the queues' problems below."""
    queues = result.queues
    if not queues:
        yield f"No queues are installed or adopted in {result.where}."
        return
    names = {queue.key: _name(queue, queues) for queue in queues}
    columns = [
        replace(column, value=lambda queue: names[queue.key]) if column.name == "queue" else column
        for column in _columns(display)
        if column.name not in _NOT_PRINTED
    ]
    lines = [*aligned(columns, queues, display.zone)]
    if max(map(len, lines)) > WIDTH:
        lines = [*aligned(columns, queues, display.zone, gap=" ")]
    yield from lines
    for queue in queues:
        for line in _below(queue, result.thresholds_of):
            yield f"{names[queue.key]}: {line}"
    for queue in queues if result.named else ():
        for line in _of_named(queue):
            yield f"{names[queue.key]}: {line}"


def _name(queue: QueueSnapshot, among: Sequence[QueueSnapshot]) -> str:
    """The name on one line, with its schema if it is not unique."""
    alone = sum(other.queue == queue.queue for other in among) == 1
    name = queue.queue if alone else f"{queue.schema}.{queue.queue}"
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in name)


def _below(queue: QueueSnapshot, thresholds_of: ThresholdsOf) -> Iterator[str]:
    if queue.problem:
        yield plain(queue.problem)
    if queue.slow:
        figures = ", ".join(name.removesuffix("_seconds") for name in queue.slow)
        yield f"{figures}: too slow to read; perhaps because of dead rows at the head"
    if queue.slowest is not None:
        yield f"slowest is {queue.slowest.text}"
    elif "subscribers" in queue.unknown and not queue.problem:
        yield "the figures of its subscribers are unknown"
    yield from (plain(decision.shown) for decision in queue.decisions)
    yield from (plain(acting.words) for acting in queue.acting)
    for exceeded in judge(queue, thresholds_of(queue.queue)):
        yield f"{exceeded.text} ({exceeded.level.word} from {exceeded.limit_text})"


def _of_named(queue: QueueSnapshot) -> Iterator[str]:
    yield from (snapshot.text for snapshot in queue.subscribers or ())
    if queue.filling is not None:
        yield f"full in {queue.filling.text}"
    if queue.latency is not None:
        yield from (f"{kind} {words}" for kind, words in queue.latency.labels_and_texts)


def _json(result: SampledQueues) -> Mapping[str, object]:
    return {
        "queues": [
            snapshot.as_json(result.thresholds_of(snapshot.queue)) for snapshot in result.queues
        ]
    }


VIEW = View(
    "status", __doc__, read, _by_key, _columns, subject=Subject.DATABASE, text=_text, json=_json
)
"""The verb also samples again and again, and shows what the connection may do."""
