"""Silent consumers: each popped regularly, and pops no more while messages wait.

Consumers are seen in samples, so a claim that was not seen proves nothing by itself. But one that
popped between most samples does not fail to pop in several samples in a row by chance: when that
is less likely than one in ten thousand, it has stopped. A consumer that holds a claim is working,
and one that was replaced by another is not missed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from console.catalog import Queue
from console.doctor.context import command, first_few
from console.doctor.finding import Code, Finding
from console.doctor.stopped_consumers import IDLE_FOR_SECONDS
from console.engines import Database
from console.errors import ConnectionFailedError, ConsoleError
from console.formats import count, duration, moment
from console.monitor.consumer_watch import ConsumerWatch
from console.monitor.consumers import Consumer, Consumers, PastSample, latest
from console.monitor.limits import Severity
from console.monitor.rates import QueueName, key_of
from console.monitor.snapshot import QueueSnapshot
from console.monitor.statement_text import POP

SILENT = Code(
    "consumer_silent",
    Severity.WARNING,
    "a consumer that popped regularly is silent, while messages wait",
    judgement="consumers run outside the database: start it, or find out what it waits for",
)
_APART_SECONDS = 5.0
"""Samples that follow faster show nothing new."""
_LEAST_POPS = 5
_LEAST_SHARE = 0.5
_CHANCE = 1e-4
_ENOUGH_SAMPLES = 10
"""With fewer, a new history does not know who popped before."""
_WITHIN = timedelta(hours=1)
"""Messages have to wait this soon after its last pop: else it was stopped as not needed."""
_DAY = timedelta(days=1)
_SHOWN = 5

Recall = Callable[[Queue], Sequence[PastSample]]
"""Reads the recorded consumers of a queue."""


@dataclass
class _Record:
    """What samples have shown of one consumer of a queue, identified by its name."""

    newest: Consumer
    seen_at: datetime
    samples: int = 0
    pops: int = 0
    """Samples before which it popped."""
    until_last: int = 0
    """Samples up to the last of them."""
    first_pop: datetime | None = None
    last_pop: datetime | None = None
    silent: int = 0
    """Consecutive samples since then with waiting messages."""
    silent_from: datetime | None = None

    def add(self, consumer: Consumer | None, at: datetime, *, late: bool) -> None:
        self.samples += 1
        popped = None if consumer is None else consumer.last_pop
        if consumer is not None:
            self.newest, self.seen_at = consumer, at
        else:
            self.newest = replace(self.newest, sessions=0, claims=0)
        if popped is not None and (self.last_pop is None or popped > self.last_pop):
            self.pops += 1
            self.first_pop = self.first_pop or popped
            self.last_pop, self.until_last = popped, self.samples
            self.silent, self.silent_from = 0, None
        elif late:
            self.silent += 1
            self.silent_from = self.silent_from or at
        else:
            self.silent, self.silent_from = 0, None

    def is_silent(self, at: datetime, least_seconds: float) -> bool:
        share = self.pops / (self.until_last + 1)
        if self.last_pop is None or self.silent_from is None or self.newest.claims:
            return False
        return (
            self.pops >= _LEAST_POPS
            and share >= _LEAST_SHARE
            and (1 - share) ** self.silent <= _CHANCE
            and (at - self.last_pop).total_seconds() >= least_seconds
            and self.silent_from - self.last_pop <= _WITHIN
        )

    def as_json(self) -> dict[str, object]:
        consumer = self.newest
        last_pop = None if self.last_pop is None else self.last_pop.isoformat()
        return {
            "name": consumer.name,
            "host": consumer.host,
            "program": consumer.program,
            "sessions": consumer.sessions,
            "last_pop": last_pop,
            "popped_in_looks": self.pops,
            "of_looks": self.until_last,
            "silent_looks": self.silent,
        }

    @property
    def label(self) -> str:
        """`worker-1 of 10.0.0.4 (last pop 2026-11-22 03:04:05 UTC, disconnected)`."""
        newest = self.newest
        where = f" of {newest.host}" if newest.host else ""
        state = "disconnected" if newest.sessions == 0 else "connected"
        state = "" if newest.sessions is None else f", {state}"
        last, at = ("pop", self.last_pop) if self.last_pop else ("seen", self.seen_at)
        when = f"last {last} {moment(at, UTC)}"
        return f"{newest.name or '?'}{where} ({when}{state})"


class ConsumerHistory:
    """What samples of a database's consumers have shown, over several diagnoses."""

    def __init__(
        self,
        database: Database,
        recall: Recall | None = None,
        *,
        apart_seconds: float = _APART_SECONDS,
    ) -> None:
        """`recall`: called once for each queue whose messages wait."""
        self._watch = ConsumerWatch(database)
        self._recall = recall
        self._apart = timedelta(seconds=apart_seconds)
        self._records: defaultdict[QueueName, dict[str, _Record]] = defaultdict(dict)
        self._sampled: dict[QueueName, tuple[datetime, int]] = {}
        """The time of the last sample, and their number."""

    def update(
        self,
        queues: Sequence[Queue],
        snapshots: Mapping[QueueName, QueueSnapshot],
        late: set[QueueName],
    ) -> tuple[dict[QueueName, Consumers], str]:
        """Sample the consumers: those of each queue, or why they could not be seen. `late`: queues
        whose messages wait for too long."""
        rates = {key: snapshot.pop_per_second for key, snapshot in snapshots.items()}
        for queue in queues:
            key = key_of(queue)
            if self._recall is not None and key in late and key not in self._sampled:
                self._remember(queue, self._recall(queue))
        try:
            sample = self._watch.sample(queues, rates)
        except ConnectionFailedError:
            raise
        except ConsoleError as error:
            return {}, error.why or error.what
        for queue in queues:
            key = key_of(queue)
            self._add(key, sample[key].at, sample[key].consumers, late=key in late)
        return sample, ""

    def _remember(self, queue: Queue, samples: Sequence[PastSample]) -> None:
        self._watch.recall(queue, latest(samples))
        for sample in samples:
            self._add(key_of(queue), sample.at, sample.consumers, late=sample.late)

    def _add(self, key: QueueName, at: datetime, seen: Iterable[Consumer], *, late: bool) -> None:
        before, samples = self._sampled.get(key, (None, 0))
        if before is not None and at - before < self._apart:
            return
        self._sampled[key] = (at, samples + 1)
        records = self._records[key]
        now: dict[str, Consumer] = {}
        for consumer in seen:
            if POP in consumer.does and consumer.name is not None:
                now[consumer.name] = _merged(now.get(consumer.name), consumer)
        for name, consumer in now.items():
            if name not in records:
                # It may have popped before the previous sample.
                records[name] = _Record(
                    consumer, at, last_pop=consumer.last_pop if samples == 0 else None
                )
        for name, record in list(records.items()):
            record.add(now.get(name), at, late=late)
            if at - record.seen_at > _DAY:
                del records[name]

    def is_new(self, queue: Queue) -> bool:
        return self._sampled.get(key_of(queue), (None, 0))[1] < _ENOUGH_SAMPLES

    def silent(
        self, queue: Queue, figures: QueueSnapshot, least_seconds: float = IDLE_FOR_SECONDS
    ) -> Finding | None:
        key = key_of(queue)
        if key not in self._sampled:
            return None
        at, _ = self._sampled[key]
        records = self._records[key].values()
        found = [record for record in records if record.is_silent(at, least_seconds)]
        found.sort(key=lambda record: str(record.last_pop), reverse=True)
        # One that began to pop after they had stopped has replaced one of them.
        first = min((record.last_pop for record in found if record.last_pop), default=None)
        new = sum(
            1 for record in records if first and record.first_pop and record.first_pop > first
        )
        found = found[: max(0, len(found) - new)]
        return _finding(queue, figures, found, at) if found else None

    def popped_last(self, queue: Queue) -> list[str]:
        """Labels of the consumers, the last to pop first; by when seen if no pop was."""
        records = self._records[key_of(queue)].values()
        known = [record for record in records if record.last_pop is not None] or list(records)
        known.sort(key=lambda record: str(record.last_pop or record.seen_at), reverse=True)
        return [record.label for record in known]


def _merged(consumer: Consumer | None, other: Consumer) -> Consumer:
    """Consumers of one name on several hosts are one."""
    if consumer is None:
        return other
    pops = [pop for pop in (consumer.last_pop, other.last_pop) if pop is not None]
    newer = other if other.sessions else consumer
    sessions = None
    if consumer.sessions is not None and other.sessions is not None:
        sessions = consumer.sessions + other.sessions
    claims = (consumer.claims or 0) + (other.claims or 0)
    return replace(newer, last_pop=max(pops, default=None), sessions=sessions, claims=claims)


def _finding(
    queue: Queue, figures: QueueSnapshot, silent: Sequence[_Record], at: datetime
) -> Finding:
    one = silent[0]
    since = one.last_pop or at
    ready = count(figures.ready or 0, estimated="ready" in figures.estimated)
    more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
    gone = [record for record in silent if record.newest.sessions == 0]
    state = "disconnected" if len(gone) == len(silent) else "at least one is connected"
    return Finding(
        SILENT,
        f"{one.newest.name}{more} popped regularly and has not popped for "
        f"{duration((at - since).total_seconds())}, and {ready} are ready",
        evidence={
            "consumers": [record.as_json() for record in silent[:_SHOWN]],
            "silent": len(silent),
            "ready": figures.ready,
            "age_seconds": figures.age_seconds,
        },
        estimated=("ready",) if "ready" in figures.estimated else (),
        cause=f"it stopped, hangs or waits for something else ({state}): "
        + first_few([record.label for record in silent], most=3),
        consequence="only the others pop; if they are too few, the backlog grows",
        since=since,
        judgement="consumers run outside the database: start it, or find out what it waits for: "
        f"{command(queue, 'consumers')}, {command(queue, 'waits')}",
    )


def with_last_consumers(finding: Finding, who: Sequence[str]) -> Finding:
    """The finding that consumers have stopped, with who popped last, if known."""
    if not who:
        return finding
    cause = f"{finding.cause}; who popped last: {first_few(who, most=3)}"
    return replace(
        finding, cause=cause, evidence={**finding.evidence, "consumers": [*who[:_SHOWN]]}
    )
