"""Push messages into a queue, through its public interface."""

import shlex
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice

from sqlalchemy import Connection

from console import sql
from console.catalog import Kind, Queue
from console.engines import Database, Product, again
from console.errors import ConsoleError, InDoubtError, UsageError

BATCH = 1000
"""Messages a transaction where many are pushed or popped."""

Payload = str | bytes


@dataclass(frozen=True)
class _Pushed:
    id: str | None


def push(connection: Connection, product: Product, queue: Queue, payload: Payload) -> str | None:
    """Push one message in the connection's transaction; its id, or None where the queue is full."""
    statement = sql.statements(product.name, "common")["push"]
    (row,) = sql.fetch(connection, _Pushed, statement, queue.scope(product), payload=payload)
    return row.id


def push_many(
    connection: Connection, product: Product, queue: Queue, payloads: Sequence[Payload]
) -> list[str | None]:
    """Push in order; one id a payload, None for those not stored (always the last ones)."""
    statement = sql.statements(product.name, "common")["push_many"]
    scope = queue.scope(product)
    rows = sql.fetch(connection, _Pushed, statement, scope, payloads=product.array(payloads))
    return [row.id for row in rows]


def push_many_due(
    connection: Connection,
    product: Product,
    queue: Queue,
    payloads: Sequence[Payload],
    due_in_seconds: float,
) -> list[str | None]:
    """Push in order into a queue whose messages have a due time, by the database's clock."""
    statement = sql.statements(product.name, queue.design.name)["push_many_due"]
    values = {"payloads": product.array(payloads), "due_in_seconds": due_in_seconds}
    rows = sql.fetch(connection, _Pushed, statement, queue.scope(product), **values)
    return [row.id for row in rows]


def push_waiting(
    database: Database, queue: Queue, payload: Payload, wait_seconds: float
) -> str | None:
    """Push one message; where the queue is full, try again until `wait_seconds` are over.

    The waiting is here, outside any transaction: the database never waits.
    """
    require_interface(queue)
    deadline = time.monotonic() + wait_seconds
    for pause in pauses():
        pushed = again(lambda: _push_once(database, queue, payload))
        if pushed is not None or not sleep_until(deadline, pause):
            return pushed
    raise AssertionError("pauses never end")


def _push_once(database: Database, queue: Queue, payload: Payload) -> str | None:
    with _pushing(database, queue) as connection:
        return push(connection, database.product, queue, payload)


def _push_many_once(
    database: Database, queue: Queue, payloads: Sequence[Payload]
) -> list[str | None]:
    with _pushing(database, queue) as connection:
        return push_many(connection, database.product, queue, payloads)


@contextmanager
def _pushing(database: Database, queue: Queue) -> Iterator[Connection]:
    """The transaction of a push. InDoubtError where nobody knows whether it is in."""
    try:
        with database.transaction(f"push to {queue.name!r}") as connection:
            yield connection
    except InDoubtError as error:
        raise InDoubtError(
            error.what,
            why=error.why,
            next_step="In doubt: it may be in. Look before you push it again.",
        ) from error


@contextmanager
def signals_held() -> Iterator[None]:
    """Let an interrupt wait until the end: for work whose outcome has to be known."""
    ending = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True)
class LinesPushed:
    """What came of pushing many: how many are in, and whether the queue was full at the end."""

    stored: int
    full: bool


class PartlyPushedError(ConsoleError):
    """Pushing many failed on the way: says how many messages are in."""


def push_all(
    database: Database, queue: Queue, payloads: Iterable[Payload], wait_seconds: float
) -> LinesPushed:
    """Push every payload in order, `BATCH` a transaction; stops where the queue stays full.

    Raises PartlyPushedError, with the exit status of its cause, when something fails on the way.
    An interrupt comes between two transactions, with a note of how many messages are in.
    """
    require_interface(queue)
    stored = 0
    rest: list[Payload] = []
    try:
        for batch in _batches(payloads):
            rest = batch
            deadline = time.monotonic() + wait_seconds
            for pause in pauses():
                with signals_held():
                    ids = again(partial(_push_many_once, database, queue, rest))
                    done = sum(pushed is not None for pushed in ids)
                    stored += done
                    rest = rest[done:]
                if not rest or not sleep_until(deadline, pause):
                    break
            if rest:
                return LinesPushed(stored, full=True)
    except ConsoleError as error:
        outcome, next_step = _are_in(stored), error.next_step
        if isinstance(error, InDoubtError):
            outcome += f" Those of lines {stored + 1:,} to {stored + len(rest):,} are in doubt:"
            next_step = "they may be in. Look before you push them again."
        partly = PartlyPushedError(error.what, why=error.why, next_step=f"{outcome} {next_step}")
        partly.exit_status = error.exit_status
        raise partly from error
    except KeyboardInterrupt as stop:
        stop.add_note(_are_in(stored))
        raise
    return LinesPushed(stored, full=False)


def _are_in(stored: int) -> str:
    return f"{stored:,} messages are in, those before line {stored + 1:,}."


def require_interface(queue: Queue) -> None:
    """UsageError where the console has no push and pop for the queue."""
    if queue.kind is Kind.ADOPTED:
        raise UsageError(
            f"The queue {queue.name!r} was adopted: the console does not push to it or pop it.",
            why="Its own callers know its rules; no functions of ours are in the database.",
            next_step=f"Look at it with: dbq-console status {shlex.quote(queue.name)}",
        )
    if queue.kind is Kind.ARCHIVE:
        raise UsageError(
            f"The queue {queue.name!r} was uninstalled; only its archive is left.",
            next_step="Install a queue under another name.",
        )


def pauses() -> Iterator[float]:
    """Growing pauses between two looks, in seconds: 10 ms to 100 ms (Kejser's), without end."""
    pause = 0.01
    while True:
        yield pause
        pause = min(pause * 2, 0.1)


def sleep_until(deadline: float, pause: float) -> bool:
    """Sleep for `pause` but not beyond the deadline; False where it is over already."""
    left = deadline - time.monotonic()
    if left <= 0:
        return False
    time.sleep(min(pause, left))
    return True


def _batches(payloads: Iterable[Payload]) -> Iterator[list[Payload]]:
    iterator = iter(payloads)
    while batch := list(islice(iterator, BATCH)):
        yield batch
