"""Test a drained queue itself, unnoticed by its consumers.

Each message is pushed, popped (by each subscriber of a ring) and finished in one transaction, in
which no other session sees it. The transaction is rolled back and leaves nothing; a ring's is
committed, as its numbers are consumed either way.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from console.actions.pop import PoppedMessage, complete, give_back, pop_many, ring_base
from console.actions.push import push, require_interface, signals_deferred
from console.actions.smoke_result import (
    NOT_YET,
    OnSmokeProgress,
    SmokeProgress,
    SmokeResult,
    StoppedError,
    latency_of,
    merged,
    number_of,
    payload_of,
)
from console.catalog import Queue, decisions, require_rows
from console.designs import Flow
from console.engines import Database
from console.errors import RefusedError
from console.monitor.sample import take_sample
from console.monitor.snapshot import snapshot
from console.plan import Control

if TYPE_CHECKING:
    from sqlalchemy import Connection

ROUNDS = 20


@dataclass
class _Seen:
    """What went wrong with one subscriber's pops, or those of a queue without subscribers."""

    lost: int = 0
    damaged: int = 0
    unfinished: int = 0


def smoke_live(
    database: Database,
    queue: Queue,
    *,
    control: Control | None = None,
    on_progress: OnSmokeProgress = lambda _: None,
) -> SmokeResult:
    """RefusedError where the queue is not, or no longer, drained: then nothing was taken.

    `on_progress` is called after each message. StoppedError where `control` stops it.
    """
    require_interface(queue)
    require_rows(queue)
    with database.transaction("read the catalog", read_only=True) as connection:
        decisions.require_not_paused(connection, queue.schema, queue.name, "smoke test through it")
    _require_drained(database, queue)
    views = [(view, _Seen()) for view in queue.views]
    push_us: list[int] = []
    pop_us: list[int] = []
    took = NOT_YET, NOT_YET
    began = time.monotonic()
    for number in range(ROUNDS):
        if control is not None and control.stopped:
            raise StoppedError(number)
        pushing, *popping = _once(database, queue, number, views)
        push_us.append(round(pushing * 1e6))
        pop_us += [round(seconds * 1e6) for seconds in popping]
        took = latency_of(push_us), latency_of(pop_us)
        popped = number + 1 - max(seen.lost for _, seen in views)
        on_progress(SmokeProgress(number + 1, popped, ROUNDS, time.monotonic() - began, *took))
    smoke_results = [
        SmokeResult(
            queue=queue.name,
            design=queue.design.name,
            order=queue.design.order_with(queue.options).value,
            messages=ROUNDS,
            lost=seen.lost,
            doubled=0,
            damaged=seen.damaged,
            out_of_order=0,
            unfinished=seen.unfinished,
            push_ms=took[0],
            pop_ms=took[1],
        )
        for _, seen in views
    ]
    return merged(smoke_results, [subscriber.name for subscriber in queue.subscribers])


def _require_drained(database: Database, queue: Queue) -> None:
    (sample,) = take_sample(database, only=[queue]).queues
    seen = snapshot(sample, database.label)
    held = {
        "ready": seen.ready,
        "scheduled": seen.scheduled if "scheduled" in queue.states else 0,
        "claimed": seen.claimed if "claimed" in queue.states else 0,
    }
    if any(count != 0 for count in held.values()):
        counts = ", ".join(
            f"{'?' if n is None else n} {state}" for state, n in held.items() if n != 0
        )
        raise RefusedError(
            f"The queue {queue.name!r} is not drained: {counts}.",
            why="A live smoke test never touches real messages.",
            next_step="Test on a scratch queue, without --live, or drain it first.",
        )


def _once(
    database: Database, queue: Queue, number: int, views: Sequence[tuple[Queue, _Seen]]
) -> list[float]:
    ring = queue.design.flow is Flow.NUMBERS
    payload = payload_of(number, queue)
    foreign: list[tuple[Queue, list[PoppedMessage]]] = []
    base: int | None = None
    moments = [time.perf_counter()]
    with database.transaction(f"smoke-test {queue.name!r}") as connection:
        with signals_deferred() if ring else nullcontext():
            id_ = push(connection, queue, payload)
            moments.append(time.perf_counter())
            came = []
            for view, _ in views:
                came.append(pop_many(connection, view, 1, "smoke"))
                moments.append(time.perf_counter())
                if came[-1] and came[-1][0].id != id_:
                    foreign.append((view, came[-1]))
            if foreign:
                base = ring_base(connection, queue)
        for (view, seen), taken in zip(views, came, strict=True):
            _judge(connection, view, number, taken, seen)
        if (foreign or not ring) and (own := connection.get_transaction()):
            own.rollback()
    if foreign:
        if base is not None:
            for view, taken in foreign:
                give_back(database, view, taken, base)
        raise RefusedError(
            f"The queue {queue.name!r} is no longer drained: a message arrived meanwhile.",
            why="It was put back at once.",
            next_step="Test on a scratch queue, without --live.",
        )
    return [after - before for before, after in pairwise(moments)]


def _judge(
    connection: Connection, queue: Queue, number: int, taken: list[PoppedMessage], seen: _Seen
) -> None:
    if not taken:
        seen.lost += 1
        return
    seen.damaged += number_of(taken[0].payload, queue) != number
    if queue.finishes and not complete(connection, queue, taken[0]):
        seen.unfinished += 1
