"""Pop messages from a queue, through its public interface, so that a dying reader loses none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from console import sql
from console.actions.push import BATCH, pauses, require_interface, signals_deferred, sleep_until
from console.catalog import Queue
from console.designs import Flow
from console.engines import Database, retry_transient
from console.errors import ConnectionFailedError, InDoubtError, UsageError
from console.monitor.scan_query import MessageSource

if TYPE_CHECKING:
    from sqlalchemy import Connection

_LONGEST_INSIDE = 1.0
"""Seconds that a pop may wait inside the engine: an interrupt is heard between two pops."""


@dataclass(frozen=True)
class PoppedMessage:
    """One popped message. `id` is text (a number or a uuid); `payload` bytes for payload=bytes."""

    id: str
    payload: str | bytes
    pushed_at: datetime
    attempts: int


@dataclass(frozen=True)
class ClaimKey:
    """What somebody popped and has not finished. `attempts` None: whichever claim it is."""

    id: str
    attempts: int | None = None


class Finish(Enum):
    """What the console does with the claims of what it popped and wrote out."""

    NOTHING = "nothing"
    COMPLETE = "complete"
    FAIL = "fail"


@dataclass(frozen=True)
class Popped:
    """What came of a pop: how many messages were delivered, and how many of them were finished."""

    delivered: int
    finished: int = 0


def pop_many(
    connection: Connection,
    queue: Queue,
    n: int,
    consumer: str | None = None,
    *,
    wait_seconds: float = 0.0,
) -> list[PoppedMessage]:
    """At most `n` messages in the design's order, in the connection's transaction.

    `wait_seconds` is for a design that waits inside the engine; no other waits here.
    """
    require_subscriber(queue)
    values: dict[str, object] = {"n": n}
    if queue.finishes:
        values["consumer"] = consumer
    if queue.design.waits_itself:
        values["wait_ms"] = round(wait_seconds * 1000)
    return sql.rows(connection, PoppedMessage, "common.pop", queue.scope(connection), **values)


def complete(connection: Connection, queue: Queue, message: PoppedMessage | ClaimKey) -> bool:
    """Finish a claim; False where it is no longer this one (released meanwhile, or taken again)."""
    values = {"id": message.id, "attempts": message.attempts}
    return sql.value(connection, bool, "common.complete", queue.scope(connection), **values)


def fail(
    connection: Connection, queue: Queue, message: PoppedMessage | ClaimKey, error: str
) -> bool:
    """Turn a claim into an error; False where it is no longer this one."""
    values = {"id": message.id, "attempts": message.attempts, "error": error}
    return sql.value(connection, bool, "common.fail", queue.scope(connection), **values)


def pop(
    database: Database,
    queue: Queue,
    deliver: _Deliver,
    *,
    count: int = 1,
    wait_seconds: float = 0.0,
    consumer: str | None = None,
    finish: Finish = Finish.NOTHING,
    error: str = "",
) -> Popped:
    """Pop up to `count` messages and hand them to `deliver`, which must have them safe on return.

    A design that deletes commits after `deliver`: if that raises, the messages are back. A design
    that keeps the row commits the claim first; what could not be delivered stays claimed.
    Waits for the first message only; ends when `count` came or a batch came back empty.
    """
    require_interface(queue)
    require_subscriber(queue)
    if finish is not Finish.NOTHING:
        require_finishes(queue, "Leave out --complete and --fail.")
    delivered = finished = 0
    deadline = time.monotonic() + wait_seconds
    with _waiter(database, queue, wait_seconds) as wait:
        while delivered < count:
            n = min(BATCH, count - delivered)
            inside = 0.0 if delivered else min(_LONGEST_INSIDE, deadline - time.monotonic())
            inside = max(0.0, inside)
            take = partial(pop_many, queue=queue, n=n, consumer=consumer, wait_seconds=inside)
            messages = _pop_batch(database, queue, take, deliver)
            if messages:
                if finish is not Finish.NOTHING:
                    finished += sum(_finished(database, queue, messages, finish, error))
                delivered += len(messages)
            elif delivered or not wait(deadline):
                break
    return Popped(delivered, finished)


def require_finishes(queue: Queue, next_step: str = "") -> None:
    """UsageError where a message ends with its pop."""
    if not queue.finishes:
        raise UsageError(
            f"The queue {queue.name!r} keeps no popped messages to complete or to fail.",
            why=f"The design {queue.design.name} deletes a message when it is popped.",
            next_step=next_step,
        )


def require_subscriber(queue: Queue) -> None:
    """UsageError where it has subscribers, and nobody said for which one."""
    if queue.subscribers and not queue.subscriber:
        raise UsageError(
            f"The queue {queue.name!r} has subscribers: each pops every message once.",
            next_step="Say for which one, with --subscriber: "
            f"{', '.join(one.name for one in queue.subscribers)}.",
        )


def claims(
    database: Database, queue: Queue, ids: Sequence[str], attempts: int | None
) -> list[ClaimKey]:
    """What is to be finished, each once. UsageError where an id is not a key of the queue."""
    require_interface(queue)
    require_subscriber(queue)
    require_finishes(queue)
    source = MessageSource.ours(database.product, queue)
    return [ClaimKey(one, attempts) for one in dict.fromkeys(map(source.id_of, ids))]


def finish_claims(
    database: Database, queue: Queue, claims: Sequence[ClaimKey], how: Finish, error: str = ""
) -> list[bool]:
    """Complete or fail them in one transaction; of each, whether it was still that claim."""
    require_interface(queue)
    require_finishes(queue)
    return _finished(database, queue, claims, how, error)


_Take = Callable[["Connection"], list[PoppedMessage]]
"""Pops what one batch asks for."""
_Deliver = Callable[[Sequence[PoppedMessage]], None]


def _pop_batch(
    database: Database, queue: Queue, take: _Take, deliver: _Deliver
) -> list[PoppedMessage]:
    if not queue.finishes:
        return _taken(database, queue, take, deliver)
    messages = _taken(database, queue, take, lambda _: None)
    if messages:
        deliver(messages)
    return messages


def _taken(
    database: Database, queue: Queue, take: _Take, before_commit: _Deliver
) -> list[PoppedMessage]:
    """Pop one batch in one transaction; again where the server undid it before it was delivered."""
    delivering = False

    def deliver(messages: Sequence[PoppedMessage]) -> None:
        nonlocal delivering
        delivering = True
        before_commit(messages)

    return retry_transient(
        lambda: _taken_once(database, queue, take, deliver), while_true=lambda: not delivering
    )


def _taken_once(
    database: Database, queue: Queue, take: _Take, before_commit: _Deliver
) -> list[PoppedMessage]:
    """A ring gets the numbers back that a rollback has consumed."""
    messages: list[PoppedMessage] = []
    base = None
    try:
        with database.transaction(f"pop from {queue.name!r}") as connection:
            # Which numbers a ring's pop has consumed is only known from its answer.
            with signals_deferred() if _is_ring(queue) else nullcontext():
                messages = take(connection)
                if messages:
                    base = ring_base(connection, queue)
            if messages:
                before_commit(messages)
    except BaseException as error:
        if base is not None:
            # Where the connection is lost, that is what the operator has to know.
            with suppress(ConnectionFailedError):
                give_back(database, queue, messages, base)
        if isinstance(error, InDoubtError):
            raise _in_doubt(error, queue) from error
        raise
    return messages


def _in_doubt(error: InDoubtError, queue: Queue) -> InDoubtError:
    if queue.finishes:
        words = (
            "Messages may be claimed without a consumer: they become stuck, and release frees them."
        )
    else:
        words = "What was written last may still be in the queue and come once more."
    return InDoubtError(error.what, why=error.why, next_step=f"In doubt. {words}")


def _is_ring(queue: Queue) -> bool:
    return queue.design.flow is Flow.NUMBERS


def ring_base(connection: Connection, queue: Queue) -> int | None:
    """For a ring, the base that its numbers count from; None for every other design.

    Asked in the transaction of the pop, which no relay can come into.
    """
    if not _is_ring(queue):
        return None
    return sql.value(connection, int, f"{queue.design.name}.base", queue.scope(connection))


def give_back(
    database: Database, queue: Queue, messages: Sequence[PoppedMessage], base: int
) -> None:
    """After our own rollback the ring's numbers are consumed: park them, so that pops find them."""
    ids = database.product.array([message.id for message in messages])
    giving = f"give messages back to {queue.name!r}"
    with signals_deferred(), database.transaction(giving) as connection:
        scope = queue.scope(database.product)
        sql.values(connection, int, f"{queue.design.name}.park_again", scope, base=base, ids=ids)


def _finished(
    database: Database,
    queue: Queue,
    messages: Sequence[PoppedMessage | ClaimKey],
    how: Finish,
    error: str,
) -> list[bool]:

    def once() -> list[bool]:
        with database.transaction(f"{how.value} messages of {queue.name!r}") as connection:
            if how is Finish.COMPLETE:
                return [complete(connection, queue, message) for message in messages]
            return [fail(connection, queue, message, error) for message in messages]

    return retry_transient(once)


@contextmanager
def _waiter(
    database: Database, queue: Queue, wait_seconds: float
) -> Iterator[Callable[[float], bool]]:
    """A function that waits for something to pop until a deadline; False where that is over.

    With notify=on a push wakes it; the registration is a hint, so it looks again every second.
    A design that waits itself has done so in its pop.
    """
    if queue.design.waits_itself:
        yield lambda deadline: time.monotonic() < deadline
        return
    if wait_seconds <= 0 or queue.options.get("notify") != "on":
        growing = pauses()
        yield lambda deadline: sleep_until(deadline, next(growing))
        return
    product = database.product
    scope = queue.scope(product)
    with database.autocommit(f"wait for {queue.name!r}") as connection, ExitStack() as at_the_end:

        def leave() -> None:
            with signals_deferred():
                sql.values(connection, str | None, "common.wait_end", scope)

        with signals_deferred():
            sql.values(connection, str, "common.wait", scope)
            at_the_end.callback(leave)
            sql.run(connection, "common.listen", scope)
        first_look = True

        def wait(deadline: float) -> bool:
            nonlocal first_look
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if first_look:
                # What was pushed between the last pop and the registration notified nobody.
                first_look = False
            else:
                product.wait_for_notification(connection, min(1.0, left))
            return True

        yield wait
