"""Pop messages from a queue, through its public interface; a reader that dies loses none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from console import sql
from console.actions.push import BATCH, pauses, require_interface, signals_deferred, sleep_until
from console.catalog import Queue, decisions, require_rows
from console.designs import Flow
from console.engines import Database, retry_transient
from console.errors import ConnectionFailedError, InDoubtError, UsageError
from console.monitor.scan_query import MessageSource

if TYPE_CHECKING:
    from sqlalchemy import Connection

_LONGEST_INSIDE = 1.0
"""Seconds that a pop may wait inside the engine; interrupts are handled between two pops."""


@dataclass(frozen=True)
class PoppedMessage:
    """One popped message. `id` is text (a number or a uuid); `payload` bytes for payload=bytes, and
    where a text is no UTF-8: it leaves the queue, so nothing of it may get lost."""

    id: str
    payload: str | bytes
    pushed_at: datetime
    attempts: int


@dataclass(frozen=True)
class ClaimKey:
    """A popped message that is not finished. `attempts` None: any claim of it."""

    id: str
    attempts: int | None = None


class Finish(Enum):
    """What the console does with the claims of what it popped and wrote out."""

    NOTHING = "nothing"
    COMPLETE = "complete"
    FAIL = "fail"


@dataclass(frozen=True)
class PopResult:
    """Counts of messages."""

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
    messages = sql.rows(connection, PoppedMessage, "common.pop", queue.scope(connection), **values)
    return [
        replace(message, payload=message.payload.raw)
        if isinstance(message.payload, sql.EscapedText)
        else message
        for message in messages
    ]


def complete(connection: Connection, queue: Queue, message: PoppedMessage | ClaimKey) -> bool:
    """Finish a claim; False where it is no longer this one: released, or claimed again."""
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
) -> PopResult:
    """Pop up to `count` messages and pass them to `deliver`, which must have stored them on return.

    A design that deletes commits after `deliver`: if that raises, the messages stay in the queue. A
    design that keeps the row commits the claim first: messages that could not be delivered stay
    claimed. Waits for the first message only; ends after `count`, or at an empty batch.
    """
    require_interface(queue)
    require_rows(queue)
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
    return PopResult(delivered, finished)


def nothing_to_pop(database: Database, queue: Queue) -> str:
    """Why a pop was empty, for the operator: no message, or a pause, by whom and since when."""
    with database.transaction(f"see why {queue.name!r} is empty", read_only=True) as connection:
        pause = decisions.find(connection, "pause", queue.schema, queue.name)
    if pause is None:
        return "has nothing to pop now"
    return f"is {pause.words}. {decisions.revoke_hint('resume', queue.name)}"


def require_finishes(queue: Queue, next_step: str = "") -> None:
    """UsageError where a pop deletes the message."""
    if not queue.finishes:
        raise UsageError(
            f"The queue {queue.name!r} keeps no popped messages to complete or to fail.",
            why=f"The design {queue.design.name} deletes a message when it is popped.",
            next_step=next_step,
        )


def require_subscriber(queue: Queue) -> None:
    """UsageError where it has subscribers and none was named."""
    if queue.subscribers and not queue.subscriber:
        raise UsageError(
            f"The queue {queue.name!r} has subscribers: each pops every message once.",
            next_step="Say for which one, with --subscriber: "
            f"{', '.join(subscriber.name for subscriber in queue.subscribers)}.",
        )


def claims(
    database: Database, queue: Queue, ids: Sequence[str], attempts: int | None
) -> list[ClaimKey]:
    """The claims to finish, each once. UsageError where an id is not a key of the queue."""
    require_interface(queue)
    require_rows(queue)
    require_subscriber(queue)
    require_finishes(queue)
    source = MessageSource.installed(database.product, queue)
    return [ClaimKey(fromkey, attempts) for fromkey in dict.fromkeys(map(source.normalize_id, ids))]


def finish_claims(
    database: Database, queue: Queue, claims: Sequence[ClaimKey], how: Finish, error: str = ""
) -> list[bool]:
    """Complete or fail them in one transaction; for each, whether it was still that claim."""
    require_interface(queue)
    require_rows(queue)
    require_finishes(queue)
    return _finished(database, queue, claims, how, error)


_Take = Callable[["Connection"], list[PoppedMessage]]
"""Pops one batch."""
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
    """Pop one batch in one transaction; again where the server undid it before delivery."""
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
    """Gives numbers that a rollback has consumed back to a ring."""
    messages: list[PoppedMessage] = []
    base = None
    try:
        with database.transaction(f"pop from {queue.name!r}") as connection:
            # Which numbers a ring's pop has consumed is known only from its result.
            with signals_deferred() if _is_ring(queue) else nullcontext():
                messages = take(connection)
                if messages:
                    base = ring_base(connection, queue)
            if messages:
                before_commit(messages)
    except BaseException as error:
        if base is not None:
            # Of a lost connection, `error` tells the operator.
            with suppress(ConnectionFailedError):
                give_back(database, queue, messages, base)
        if isinstance(error, InDoubtError):
            raise _in_doubt(error, queue) from error
        raise
    return messages


def _in_doubt(error: InDoubtError, queue: Queue) -> InDoubtError:
    next_step = "What was written last may still be in the queue and be popped again."
    if queue.finishes:
        next_step = (
            "Messages may be claimed without a consumer: they become stuck, and release frees them."
        )
    return InDoubtError(error.what, why=error.why, next_step=f"In doubt. {next_step}")


def _is_ring(queue: Queue) -> bool:
    return queue.design.flow is Flow.NUMBERS


def ring_base(connection: Connection, queue: Queue) -> int | None:
    """The base that a ring's numbers count from; None for other designs.

    Read in the transaction of the pop, which excludes a relay.
    """
    if not _is_ring(queue):
        return None
    return sql.value(connection, int, f"{queue.design.name}.base", queue.scope(connection))


def give_back(
    database: Database, queue: Queue, messages: Sequence[PoppedMessage], base: int
) -> None:
    """A rollback has consumed the ring's numbers: park them, so that pops find the messages."""
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
    """A function that waits for a message until a deadline; False where that has passed.

    With notify=on a push wakes it; as the registration is a hint, it returns after a second at
    most. A design that waits itself has done so in its pop.
    """
    if queue.design.waits_itself:
        yield lambda deadline: time.monotonic() < deadline
        return
    # Behind a pooler no session is there to be notified.
    if wait_seconds <= 0 or queue.options.get("notify") != "on" or database.pooled:
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
        first = True

        def wait(deadline: float) -> bool:
            nonlocal first
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if first:
                # A push between the last pop and the registration has notified no one.
                first = False
            else:
                product.wait_for_notification(connection, min(1.0, left))
            return True

        yield wait
