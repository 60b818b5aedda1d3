"""Pop messages from a queue, through its public interface, so that a dying reader loses none."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from sqlalchemy import Connection

from console import sql
from console.actions.push import BATCH, pauses, require_interface, signals_held, sleep_until
from console.catalog import Queue
from console.designs import Flow
from console.engines import Database, Product, again
from console.errors import ConnectionFailedError, InDoubtError, UsageError

_LONGEST_INSIDE = 1.0
"""Seconds that a pop may wait inside the engine: an interrupt is heard between two pops."""


@dataclass(frozen=True)
class Message:
    """One popped message. `id` is text (a number or a uuid); `payload` bytes for payload=bytes."""

    id: str
    payload: str | bytes
    pushed_at: datetime
    attempts: int


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


@dataclass(frozen=True)
class _Acted:
    acted: bool


@dataclass(frozen=True)
class _Channel:
    channel: str


@dataclass(frozen=True)
class _Ended:
    ended: str | None


@dataclass(frozen=True)
class _Base:
    base: int


@dataclass(frozen=True)
class _GivenBack:
    given_back: int


def pop_many(
    connection: Connection,
    product: Product,
    queue: Queue,
    n: int,
    consumer: str | None = None,
    *,
    wait_seconds: float = 0.0,
) -> list[Message]:
    """At most `n` messages in the design's order, in the connection's transaction.

    `wait_seconds` is for a design that waits inside the engine; no other waits here.
    """
    statement = sql.statements(product.name, "common")["pop"]
    values: dict[str, object] = {"n": n}
    if queue.finishes:
        values["consumer"] = consumer
    if queue.design.waits_itself:
        values["wait_ms"] = round(wait_seconds * 1000)
    return sql.fetch(connection, Message, statement, queue.scope(product), **values)


def complete(connection: Connection, product: Product, queue: Queue, message: Message) -> bool:
    """Finish a claim; False where it is no longer this one (released meanwhile, or taken again)."""
    statement = sql.statements(product.name, "common")["complete"]
    values = {"id": message.id, "attempts": message.attempts}
    (row,) = sql.fetch(connection, _Acted, statement, queue.scope(product), **values)
    return row.acted


def fail(
    connection: Connection, product: Product, queue: Queue, message: Message, error: str
) -> bool:
    """Turn a claim into an error; False where it is no longer this one."""
    statement = sql.statements(product.name, "common")["fail"]
    values = {"id": message.id, "attempts": message.attempts, "error": error}
    (row,) = sql.fetch(connection, _Acted, statement, queue.scope(product), **values)
    return row.acted


def pop(
    database: Database,
    queue: Queue,
    deliver: Callable[[Sequence[Message]], None],
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
    if finish is not Finish.NOTHING and not queue.finishes:
        raise UsageError(
            f"The queue {queue.name!r} keeps no popped messages to complete or to fail.",
            why=f"The design {queue.design.name} ends a message with its pop.",
            next_step="Leave out --complete and --fail.",
        )
    delivered = finished = 0
    deadline = time.monotonic() + wait_seconds
    with _waiter(database, queue, wait_seconds) as wait:
        while delivered < count:
            n = min(BATCH, count - delivered)
            inside = 0.0 if delivered else min(_LONGEST_INSIDE, deadline - time.monotonic())
            take = _Take(queue, n, consumer, max(0.0, inside))
            messages = _pop_batch(database, take, deliver)
            if messages:
                finished += _finish(database, queue, messages, finish, error)
                delivered += len(messages)
            elif delivered or not wait(deadline):
                break
    return Popped(delivered, finished)


@dataclass(frozen=True)
class _Take:
    """What one batch asks for."""

    queue: Queue
    n: int
    consumer: str | None
    wait_seconds: float


def _pop_batch(
    database: Database, take: _Take, deliver: Callable[[Sequence[Message]], None]
) -> list[Message]:
    if not take.queue.finishes:
        return _take(database, take, deliver)
    messages = _take(database, take, lambda _: None)
    if messages:
        deliver(messages)
    return messages


def _take(
    database: Database, take: _Take, before_commit: Callable[[Sequence[Message]], None]
) -> list[Message]:
    """Pop one batch in one transaction; again where the server undid it before it was delivered."""
    delivering = False

    def deliver(messages: Sequence[Message]) -> None:
        nonlocal delivering
        delivering = True
        before_commit(messages)

    return again(lambda: _take_once(database, take, deliver), while_true=lambda: not delivering)


def _take_once(
    database: Database, take: _Take, before_commit: Callable[[Sequence[Message]], None]
) -> list[Message]:
    """A ring gets the numbers back that a rollback has spent."""
    product, queue = database.product, take.queue
    messages: list[Message] = []
    base = None
    try:
        with database.transaction(f"pop from {queue.name!r}") as connection:
            # Which numbers a ring's pop has spent is only known from its answer.
            with signals_held() if _is_ring(queue) else nullcontext():
                messages = pop_many(
                    connection,
                    product,
                    queue,
                    take.n,
                    take.consumer,
                    wait_seconds=take.wait_seconds,
                )
                if messages:
                    base = ring_base(connection, product, queue)
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
        words = "Messages may be claimed that nobody has: they get stuck, and release frees them."
    else:
        words = "What was written out last may still be in the queue: then it comes once more."
    return InDoubtError(error.what, why=error.why, next_step=f"In doubt. {words}")


def _is_ring(queue: Queue) -> bool:
    return queue.design.flow is Flow.NUMBERS


def ring_base(connection: Connection, product: Product, queue: Queue) -> int | None:
    """For a ring, the base that its numbers count from; None for every other design.

    Asked in the transaction of the pop, which no relay can come into.
    """
    if not _is_ring(queue):
        return None
    statement = sql.statements(product.name, queue.design.name)["base"]
    (row,) = sql.fetch(connection, _Base, statement, queue.scope(product))
    return row.base


def give_back(database: Database, queue: Queue, messages: Sequence[Message], base: int) -> None:
    """After our own rollback the ring's numbers are spent: park them, so that a pop finds them."""
    statement = sql.statements(database.product.name, queue.design.name)["give_back"]
    ids = database.product.array([message.id for message in messages])
    giving = f"give messages back to {queue.name!r}"
    with signals_held(), database.transaction(giving) as connection:
        scope = queue.scope(database.product)
        sql.fetch(connection, _GivenBack, statement, scope, base=base, ids=ids)


def _finish(
    database: Database, queue: Queue, messages: Sequence[Message], how: Finish, error: str
) -> int:
    """Finish the whole batch in one transaction; how many of the claims were still ours."""
    if how is Finish.NOTHING:
        return 0
    product = database.product

    def once() -> int:
        with database.transaction(f"{how.value} messages of {queue.name!r}") as connection:
            if how is Finish.COMPLETE:
                acted = [complete(connection, product, queue, message) for message in messages]
            else:
                acted = [fail(connection, product, queue, message, error) for message in messages]
        return sum(acted)

    return again(once)


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
    common = sql.statements(product.name, "common")
    scope = queue.scope(product)
    with database.autocommit(f"wait for {queue.name!r}") as connection, ExitStack() as at_the_end:

        def leave() -> None:
            with signals_held():
                sql.fetch(connection, _Ended, common["wait_end"], scope)

        with signals_held():
            sql.fetch(connection, _Channel, common["wait"], scope)
            at_the_end.callback(leave)
            sql.run_script(connection, common["listen"], scope)
        first_look = True

        def wait(deadline: float) -> bool:
            nonlocal first_look
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if first_look:
                # What was pushed between the last look and the registration notified nobody.
                first_look = False
            else:
                product.wait_for_notification(connection, min(1.0, left))
            return True

        yield wait
