"""Show a queue's consumers and producers, now and in the last day.

They are read from the server's view of its sessions and locks, and from the owners named in
claims. A session is recognised by a lock, its last statement or a claim; one that calls briefly
and commits may be missed. Without claims that name a consumer, its last pop and rate are ?,
with the reason. Disconnected ones come from the recordings.

\b
Examples:
  dbq-console consumers orders
  dbq-console consumers orders --seconds 30 --json
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from console.catalog import Queue
from console.engines import Database
from console.formats import duration, numbered, plain, rate
from console.monitor import consumers as labels
from console.monitor.consumer_watch import ConsumerWatch
from console.monitor.consumers import (
    NO_RECORDER,
    NOT_RECORDED,
    Consumer,
    Consumers,
    PastSample,
    disconnected,
    latest,
)
from console.monitor.past import past, without_past
from console.monitor.rates import RateWindow, key_of
from console.monitor.sample import take_sample
from console.monitor.statement_text import POP, PUSH
from console.verbs.parameters import FOLDER_TYPE, SECONDS_TYPE, Parameter
from console.views.view import Column, Display, Line, Part, Source, View

_CLAIMS_SECONDS = 0.5
"""Between reads of claims; sessions, whose calls are shorter, are read several times as often."""


@dataclass(frozen=True)
class SampledConsumers:
    """The connected ones, and those that disconnected; None: nothing is recorded."""

    now: Consumers
    gone: tuple[Consumer, ...] | None
    connection: str = ""
    samples: int = 0
    pop_per_second: float | None = None
    """Of the queue."""

    @property
    def connected(self) -> list[Consumer]:
        return [consumer for consumer in self.now.consumers if consumer.sessions != 0]

    @property
    def gone_with_claims(self) -> list[Consumer]:
        """Those of the present list that have only claims left, and are not among the gone."""
        names = {one.name for one in self.gone or ()}
        return [
            consumer
            for consumer in self.now.consumers
            if consumer.sessions == 0 and consumer.name not in names
        ]


@dataclass(frozen=True)
class Row:
    """One consumer, as sampled at a time of the database's clock."""

    consumer: Consumer
    at: datetime
    gone: bool = False

    @property
    def key(self) -> str:
        return repr(self.consumer.identity)


def read(source: Source) -> SampledConsumers:
    queue, database, seconds = source.queue, source.database, source.values["seconds"]
    seen = latest(_recorded(source))
    if seconds > 0:
        source.on_wait(f"Sampling for {duration(seconds)}.")
    sampled, samples, pop_rate = _sampled(database, queue, seconds, seen)
    gone = disconnected(seen, sampled.consumers) if seen else None
    return SampledConsumers(sampled, gone, database.label, samples, pop_rate)


def _recorded(source: Source) -> Sequence[PastSample]:
    queue, root = source.queue, source.values["recordings"]
    if (known := past()) is None:
        if root is not None:
            raise without_past("--recordings")
        return ()
    of = (source.database.label, queue.schema, queue.name)
    return known.consumers(root or known.folder(), *of, datetime.now(UTC))


def _sampled(
    database: Database, queue: Queue, seconds: float, seen: Sequence[Consumer]
) -> tuple[Consumers, int, float | None]:
    """The consumers, the number of samples, and the queue's pop rate."""
    watch, window = ConsumerWatch(database), RateWindow(queue.design.flow)
    watch.recall(queue, seen)
    ends_at = time.monotonic() + seconds

    def pop_rate() -> float | None:
        sample = take_sample(database, only=[queue])
        (one,) = sample.queues
        at = one.taken_at or sample.taken_at
        return window.add(at, one.row, counts_rows=sample.counts_rows).pop

    samples = 1
    if seconds > 0:
        pop_rate()
    while (left := ends_at - time.monotonic()) > 0:
        watch.sample([queue], {})
        samples += 1 + watch.sample_sessions_for([queue], min(left, _CLAIMS_SECONDS))
    known = pop_rate() if seconds > 0 else None
    return watch.sample([queue], {key_of(queue): known})[key_of(queue)], samples, known


def _rows(result: SampledConsumers) -> Mapping[str, Row]:
    at = result.now.at
    rows = [Row(consumer, at) for consumer in result.now.consumers]
    rows += [Row(consumer, at, gone=True) for consumer in result.gone or ()]
    by_key: dict[str, Row] = {}
    for row in rows:
        by_key.setdefault(row.key, row)
    return by_key


def _columns(display: Display) -> Sequence[Column[Row]]:
    def style(row: Row) -> str:
        return "quiet" if row.gone or row.consumer.sessions == 0 else "strong"

    def since(row: Row) -> str:
        if row.gone:
            return display.time(row.consumer.last_seen or row.at)
        return labels.ago(row.consumer.since, row.at)

    return (
        Column("who", "who", lambda r: plain(labels.name(r.consumer)), style, 18, 40),
        Column("does", "does", lambda r: labels.actions(r.consumer), "", 6, 12),
        Column(
            "sessions", "sessions",
            lambda r: "gone" if r.gone else labels.sessions(r.consumer), style, 8, 8,
            align_right=True, sort_key=lambda r: None if r.gone else r.consumer.sessions,
        ),
        Column(
            "pop", "last pop", lambda r: labels.last_pop(r.consumer, r.at), "", 8, 12,
            align_right=True, sort_key=lambda r: r.consumer.last_pop,
        ),
        Column(
            "call", "last call", lambda r: labels.last_call(r.consumer, r.at), "quiet", 9, 12,
            align_right=True, sort_key=lambda r: r.consumer.last_call,
        ),
        Column(
            "rate", "msg/s", lambda r: "" if r.gone else labels.rate_estimate(r.consumer), "", 7, 9,
            align_right=True, sort_key=lambda r: r.consumer.messages_per_second,
        ),
        Column(
            "claims", "claims", lambda r: "" if r.gone else labels.claims(r.consumer), "", 6, 8,
            align_right=True, sort_key=lambda r: r.consumer.claims,
        ),
        Column(
            "since", "connected", since, "quiet", 11, 15, align_right=True,
            sort_key=lambda r: r.consumer.last_seen or r.consumer.since,
        ),
        Column("where", "where", lambda r: plain(labels.client(r.consumer)), "quiet", 10, 60),
    )  # fmt: skip


def _summary(result: SampledConsumers, display: Display) -> list[Line]:  # noqa: ARG001  # a view's
    connected = result.connected
    pops, pushes = (sum(what in consumer.does for consumer in connected) for what in (POP, PUSH))
    text = f"{numbered(pops, 'consumer')}, {numbered(pushes, 'producer')} seen"
    if unknown := sum(not consumer.does for consumer in connected):
        text += f", {unknown} by locks only"
    if not connected:
        text = "No session seen yet (short calls: by chance)"
    holding = len(result.gone_with_claims)
    gone = f"{len(result.gone or ()) + holding} gone in the last day"
    if result.gone is None:
        gone = f"gone: {f'{holding} and ' if holding else ''}? (not recorded)"
    missing = result.now.missing.values()
    return [
        [(text, "strong"), (f"   {gone}", "quiet")],
        *([(f"Not visible: {plain(why)}", "warning")] for why in missing),
    ]


def _detail(row: Row, display: Display) -> list[Part]:
    """What is known about it, and why the rest is not."""
    consumer = row.consumer
    parts = [
        (plain(labels.name(consumer)), "strong"),
        (f"  {labels.actions(consumer)}; {plain(labels.client(consumer))}", ""),
    ]
    if row.gone:
        return [*parts, (f"\nlast seen {display.time(consumer.last_seen or row.at)}", "quiet")]
    return [*parts, *((f"\n? {why}", "quiet") for why in labels.unknown_reasons([consumer]))]


def _text(result: SampledConsumers, display: Display) -> Iterator[str]:
    now, queue = result.now, result.now.queue
    popped = result.pop_per_second
    heading = f"{queue.name} ({queue.design.name}), {numbered(result.samples, 'sample')}"
    yield heading + ("" if popped is None else f": {rate(popped)} messages popped a second")
    if now.consumers:
        yield from VIEW.table([Row(consumer, now.at) for consumer in now.consumers], display)
        yield from (
            f"  {labels.name(consumer)}: {labels.client(consumer)}" for consumer in now.consumers
        )
    else:
        yield "No session was seen popping or pushing."
    yield from (f"? {why}" for why in labels.unknown_reasons(now.consumers))
    yield from (f"Not visible: {what}: {why}" for what, why in now.missing.items())
    holding = len(result.gone_with_claims)
    above = f"{holding} above, whose claims are left" if holding else ""
    if result.gone is None:
        why = NO_RECORDER if past() is None else NOT_RECORDED
        yield f"Gone: {above}{', and ' if above else ''}? ({why})"
        return
    total = len(result.gone) + holding
    yield f"Gone in the last day: {total}{f', {above}' if above else ''}"
    for one in result.gone:
        seen = "" if one.last_seen is None else display.moment(one.last_seen)
        what = f"{labels.actions(one)}, last seen {seen}; {labels.client(one)}"
        yield f"  {labels.name(one)}: {what}"


def _json(result: SampledConsumers) -> Mapping[str, object]:
    return {
        "connection": result.connection,
        "samples": result.samples,
        "pop_per_second": result.pop_per_second,
        **result.now.as_json(),
        "gone": [consumer.as_json() for consumer in result.gone or ()],
        "recorded": result.gone is not None,
    }


VIEW = View(
    "consumers",
    __doc__,
    read,
    _rows,
    _columns,
    parameters=(
        Parameter(
            "seconds", "How long to sample; 0: once, without a rate.", SECONDS_TYPE, default="3.0",
            metavar="N",
        ),
        Parameter(
            "recordings", "The recordings to find disconnected ones in. Default: in this user's "
            "state folder.", FOLDER_TYPE, metavar="FOLDER",
        ),
    ),
    summary=_summary,
    detail=_detail,
    text=_text,
    json=_json,
    drop_order=("where", "since", "call"),
    removed_column="sessions",
    printed=("who", "does", "sessions", "since", "pop", "call", "rate", "claims"),
)  # fmt: skip
