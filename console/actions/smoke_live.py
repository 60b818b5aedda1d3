"""Push through the queue itself and pop it again, where it is drained and nobody can notice.

Each message is pushed, popped and finished in one transaction that nobody else sees into. It is
rolled back, so that nothing is left; a ring's is committed: its numbers are consumed either way.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from console import decisions
from console.actions.execute import Control
from console.actions.pop import PoppedMessage, complete, give_back, pop_many, ring_base
from console.actions.push import push, require_interface, signals_held
from console.actions.smoke import (
    NOT_YET,
    SmokeProgress,
    SmokeResult,
    StoppedError,
    Tell,
    latency_of,
    number_of,
    payload_of,
)
from console.catalog import Queue
from console.designs import Flow
from console.designs.subscribers import refuse_subscribers
from console.engines import Database
from console.errors import RefusedError
from console.monitor.sample import take_sample
from console.monitor.snapshot import snapshot

if TYPE_CHECKING:
    from sqlalchemy import Connection

ROUNDS = 20


@dataclass
class _Seen:
    pushed: int = 0
    lost: int = 0
    damaged: int = 0
    unfinished: int = 0


def smoke_live(
    database: Database, queue: Queue, *, control: Control | None = None, tell: Tell = lambda _: None
) -> SmokeResult:
    """RefusedError where it is not drained, or is not any more: then nothing was taken.

    `tell` hears after each message how far it is. StoppedError where `control` stops it.
    """
    require_interface(queue)
    refuse_subscribers("smoke", queue.options)
    with database.transaction("read the catalog", read_only=True) as connection:
        decisions.require_not_paused(connection, queue.schema, queue.name, "smoke test through it")
    _require_drained(database, queue)
    seen = _Seen()
    push_us: list[int] = []
    pop_us: list[int] = []
    took = NOT_YET, NOT_YET
    began = time.monotonic()
    for number in range(ROUNDS):
        if control is not None and control.stopped:
            raise StoppedError(seen.pushed)
        pushing, popping = _once(database, queue, number, seen)
        push_us.append(round(pushing * 1e6))
        pop_us.append(round(popping * 1e6))
        took = latency_of(push_us), latency_of(pop_us)
        popped, seconds = seen.pushed - seen.lost, time.monotonic() - began
        tell(SmokeProgress(seen.pushed, popped, ROUNDS, seconds, *took))
    return SmokeResult(
        queue=queue.name,
        design=queue.design.name,
        order=queue.design.order_with(queue.options).value,
        messages=seen.pushed,
        lost=seen.lost,
        doubled=0,
        damaged=seen.damaged,
        out_of_order=0,
        unfinished=seen.unfinished,
        push_ms=took[0],
        pop_ms=took[1],
    )


def _require_drained(database: Database, queue: Queue) -> None:
    (sample,) = take_sample(database, only=[queue]).queues
    seen = snapshot(sample, database.label)
    held = {
        "ready": seen.ready,
        "scheduled": seen.scheduled if "scheduled" in queue.states else 0,
        "claimed": seen.claimed if "claimed" in queue.states else 0,
    }
    if any(count != 0 for count in held.values()):
        told = ", ".join(
            f"{'?' if n is None else n} {state}" for state, n in held.items() if n != 0
        )
        raise RefusedError(
            f"The queue {queue.name!r} is not drained: {told}.",
            why="A live smoke test never touches real messages.",
            next_step="Test on a scratch queue, without --live, or drain it first.",
        )


def _once(database: Database, queue: Queue, number: int, seen: _Seen) -> tuple[float, float]:
    """Seconds of the push and of the pop."""
    ring = queue.design.flow is Flow.NUMBERS
    payload = payload_of(number, queue)
    strange: list[PoppedMessage] = []
    base: int | None = None
    started = pushed = popped = time.perf_counter()
    with database.transaction(f"smoke-test {queue.name!r}") as connection:
        with signals_held() if ring else nullcontext():
            id_ = push(connection, queue, payload)
            pushed = time.perf_counter()
            taken = pop_many(connection, queue, 1, "smoke")
            popped = time.perf_counter()
            seen.pushed += 1
            if taken and taken[0].id != id_:
                strange, base = taken, ring_base(connection, queue)
        _judge(connection, queue, number, taken, seen)
        if (strange or not ring) and (own := connection.get_transaction()):
            own.rollback()
    if strange:
        if base is not None:
            give_back(database, queue, strange, base)
        raise RefusedError(
            f"The queue {queue.name!r} is not drained any more: a message came meanwhile.",
            why="It was put back at once.",
            next_step="Test on a scratch queue, without --live.",
        )
    return pushed - started, popped - pushed


def _judge(
    connection: Connection,
    queue: Queue,
    number: int,
    taken: list[PoppedMessage],
    seen: _Seen,
) -> None:
    if not taken:
        seen.lost += 1
        return
    seen.damaged += number_of(taken[0].payload, queue) != number
    if queue.finishes and not complete(connection, queue, taken[0]):
        seen.unfinished += 1
