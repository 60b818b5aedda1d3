"""All families on all queues: findings in order of gravity, and what could not be looked at.

"All clear" is said only of a queue that everything was looked at.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from console.catalog import Queue
from console.designs import Flow
from console.doctor import (
    anywhere,
    broker,
    claims,
    halves,
    installed,
    order,
    poison,
    ring,
    searches,
    sessions,
)
from console.doctor.anywhere import FULL_SHARE, fills
from console.doctor.checks import checked
from console.doctor.finding import Diagnosis, Finding
from console.doctor.look import PATIENCE_SECONDS, Look, looking
from console.engines import Database
from console.monitor import QueueSample, QueueSnapshot, RateWindow, snapshot, take_sample
from console.monitor.figures import Key, key_of
from console.monitor.limits import ThresholdsOf, defaults_of
from console.monitor.message import Masks
from console.monitor.sample import DatabaseSample

_FAMILIES: tuple[tuple[str, Callable[[Queue], bool], Callable[[Look], Iterator[Finding]]], ...] = (
    ("the ring", lambda queue: queue.design.flow is Flow.NUMBERS, ring.examine),
    ("claims", claims.applies, claims.examine),
    ("Service Broker", broker.applies, broker.examine),
    ("halves of messages", halves.applies, halves.examine),
    ("messages tried too often", claims.applies, poison.examine),
    ("indexes", searches.applies, searches.examine),
    ("order of pops", order.applies, order.examine),
    ("sessions", lambda _: True, sessions.examine),
    ("installed code", installed.applies, installed.examine),
    ("what any queue may have", lambda _: True, anywhere.examine),
)
_RATE_STEPS = 4
_RATE_SECONDS = 1.5
"""A ring that may be full soon is looked at so often within this, for the range of its rates."""


def examine(
    database: Database,
    queues: Sequence[Queue] | None = None,
    *,
    thresholds_of: ThresholdsOf = defaults_of,
    patience_seconds: float = PATIENCE_SECONDS,
    snapshots: Sequence[QueueSnapshot] = (),
    masks: Masks = (),
) -> list[Diagnosis]:
    """What is wrong with the queues (None: with all). Changes nothing.

    `snapshots`: what a sampler has seen of them lately, for their rates. Raises
    ConnectionFailedError; what else is in the way is told in `unseen`.
    """

    def sampled(some: Sequence[Queue] | None) -> DatabaseSample:
        return take_sample(
            database,
            only=some,
            stuck_after_seconds=lambda queue: thresholds_of(queue.name).stuck_after_seconds,
        )

    first = sampled(queues)
    known = {(one.schema, one.queue): one for one in snapshots}
    rated = _rated(first, known, sampled, min(patience_seconds, _RATE_SECONDS))
    return [
        _diagnosed(database, one, rated[key_of(one.queue)], thresholds_of, patience_seconds, masks)
        for one in first.queues
    ]


def _rated(
    first: DatabaseSample,
    known: Mapping[Key, QueueSnapshot],
    sampled: Callable[[Sequence[Queue]], DatabaseSample],
    seconds: float,
) -> dict[Key, QueueSnapshot]:
    """The figures with their rates, where somebody has those; a ring's, where they matter."""
    found = {key_of(one.queue): snapshot(one, first.connection) for one in first.queues}
    for key, seen in found.items():
        if before := known.get(key):
            found[key] = replace(
                seen,
                push_per_second=before.push_per_second,
                pop_per_second=before.pop_per_second,
                filling_per_second=before.filling_per_second,
            )
    filling = [one.queue for one in first.queues if may_fill(found[key_of(one.queue)])]
    windows = {key_of(queue): RateWindow(Flow.NUMBERS) for queue in filling}

    def add(at: DatabaseSample) -> None:
        for one in at.queues:
            if window := windows.get(key_of(one.queue)):
                rates = window.add(one.taken_at or at.taken_at, one.row, counts_rows=at.counts_rows)
                found[key_of(one.queue)] = snapshot(one, at.connection, rates)

    add(first)
    # Twice, where the first time says that it fills: what is so by chance is not so for long.
    for _ in range(2):
        for _ in range(_RATE_STEPS if filling else 0):
            time.sleep(seconds / _RATE_STEPS)
            add(sampled(filling))
        filling = [queue for queue in filling if fills(found[key_of(queue)])]
    return found


def may_fill(seen: QueueSnapshot) -> bool:
    """Whether it is worth a look at the rates of a ring."""
    if seen.push_per_second is not None or seen.gap is None or not seen.capacity:
        return False
    return FULL_SHARE <= seen.gap / seen.capacity < 1


def _diagnosed(
    database: Database,
    sample: QueueSample,
    seen: QueueSnapshot,
    thresholds_of: ThresholdsOf,
    patience_seconds: float,
    masks: Masks,
) -> Diagnosis:
    queue = sample.queue
    findings: list[Finding] = []
    with looking(
        database,
        queue,
        snapshot=seen,
        thresholds=thresholds_of(queue.name),
        patience_seconds=patience_seconds,
        masks=masks,
    ) as look:
        if sample.problem:
            look.unseen.append(f"its figures: {sample.problem}")
        elif sample.slow:
            look.unseen.append(f"its figures: {', '.join(sample.slow)} took too long to read")
        for what, applies, family in _FAMILIES:
            if applies(queue):
                findings += checked(look, what, family)
    ordered = sorted(findings, key=lambda finding: finding.code.severity)
    return Diagnosis(queue, tuple(ordered), tuple(dict.fromkeys(look.unseen)))
