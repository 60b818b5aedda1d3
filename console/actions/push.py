"""Push messages into a queue, through its public interface."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING
from uuid import UUID

from console import sql
from console.actions.availability import rows_hidden
from console.catalog import Kind, Queue, decisions, require_rows
from console.designs import DESIGNS
from console.engines import Database, Product, product_of, retry_transient
from console.errors import ConsoleError, InDoubtError, UsageError
from console.formats import numbered, parse_duration, parse_moment

if TYPE_CHECKING:
    from sqlalchemy import Connection

BATCH = 1000
"""Messages a transaction where many are pushed or popped."""

Payload = str | bytes


def push(connection: Connection, queue: Queue, payload: Payload) -> str | None:
    """Push one message in the connection's transaction; its id, or None where the queue is full."""
    id_: str | None = sql.value(
        connection, str | None, "common.push", queue.scope(connection), payload=payload
    )
    return id_


def push_many(
    connection: Connection, queue: Queue, payloads: Sequence[Payload]
) -> list[str | None]:
    """Push in order; one id a payload, None for those not stored (always the last ones)."""
    scope = queue.scope(connection)
    return sql.values(
        connection,
        str | None,
        "common.push_many",
        scope,
        payloads=product_of(connection).array(payloads),
    )


@dataclass(frozen=True)
class PushExtras:
    """Options of a push, where the design takes them: `Design.push_takes`."""

    due_in_seconds: float | None = None
    """From now, by the database's clock."""
    due_at: datetime | None = None
    title: str | None = None
    id: str | None = None

    @classmethod
    def read(cls, due: str | None, title: str | None, own_id: str | None) -> PushExtras:
        """From texts; `due` is a duration from now, or a time in ISO 8601. UsageError."""
        due_in_seconds, due_at = (None, None) if due is None else _due(due)
        if own_id is not None:
            _require_uuid(own_id)
        return cls(due_in_seconds, due_at, title, own_id)

    @property
    def given(self) -> tuple[str, ...]:
        due = self.due_in_seconds is not None or self.due_at is not None
        is_given = {"due": due, "title": self.title is not None, "id": self.id is not None}
        return tuple(name for name, given in is_given.items() if given)

    def require_supported(self, queue: Queue) -> None:
        """UsageError where the queue's push does not take all of it."""
        takes = queue.design.push_takes
        for name in self.given:
            if name not in takes:
                whose = ", ".join(of.name for of in DESIGNS.values() if name in of.push_takes)
                raise UsageError(
                    f"The queue {queue.name!r} takes no --{name}.",
                    why=f"Its design is {queue.design.name}; a push takes --{name} in: {whose}.",
                    next_step=f"It takes: {', '.join(f'--{take}' for take in takes)}."
                    if takes
                    else f"Leave out --{name}.",
                )

    def values(self, product: Product, queue: Queue) -> dict[str, object]:
        takes = queue.design.push_takes
        values: dict[str, object] = {}
        if "due" in takes:
            values |= {"due_in_seconds": self.due_in_seconds, "due_at": self.due_at}
        if "title" in takes:
            values["title"] = self.title or ""
        if "id" in takes:
            values["ids"] = None if self.id is None else product.array([self.id])
        return values


NO_EXTRAS = PushExtras()


def _due(text: str) -> tuple[float | None, datetime | None]:
    with suppress(UsageError):
        return parse_duration(text), None
    with suppress(UsageError):
        return None, parse_moment(text)
    raise UsageError(
        f"--due cannot be {text!r}.",
        why="It must be a duration from now, or a time in ISO 8601 with its offset from UTC.",
        next_step="Examples: 10m, 1h30m, 2026-03-29T08:00Z, 2026-03-29T08:00+02:00.",
    )


def _require_uuid(text: str) -> None:
    try:
        UUID(text)
    except ValueError:
        raise UsageError(
            f"--id cannot be {text!r}.",
            why="It must be a UUID.",
            next_step="Example: 6f1f2a30-3c1e-4f0e-9f43-0c8d7a5b1e52.",
        ) from None


def push_many_with(
    connection: Connection, queue: Queue, payloads: Sequence[Payload], extras: PushExtras
) -> list[str | None]:
    """Push in order, all of them with what is said besides."""
    product = product_of(connection)
    values = {"payloads": product.array(payloads), **extras.values(product, queue)}
    return sql.values(
        connection, str | None, "common.push_many_with", queue.scope(connection), **values
    )


def push_waiting(
    database: Database,
    queue: Queue,
    payload: Payload,
    wait_seconds: float,
    extras: PushExtras = NO_EXTRAS,
) -> str | None:
    """Push one message; where the queue is full, try again until `wait_seconds` are over.

    The waiting is here, outside any transaction: the database never waits.
    """
    require_interface(queue)
    extras.require_supported(queue)
    deadline = time.monotonic() + wait_seconds
    for pause in pauses():
        pushed = retry_transient(lambda: _push_once(database, queue, payload, extras))
        if pushed is not None or not sleep_until(deadline, pause):
            return pushed
    raise AssertionError("pauses never end")


def _push_once(
    database: Database, queue: Queue, payload: Payload, extras: PushExtras
) -> str | None:
    with _pushing(database, queue) as connection:
        if not extras.given:
            return push(connection, queue, payload)
        (pushed,) = push_many_with(connection, queue, [payload], extras)
        return pushed


def _push_many_once(
    database: Database, queue: Queue, payloads: Sequence[Payload], extras: PushExtras
) -> list[str | None]:
    with _pushing(database, queue) as connection:
        if not extras.given:
            return push_many(connection, queue, payloads)
        return push_many_with(connection, queue, payloads, extras)


@contextmanager
def _pushing(database: Database, queue: Queue) -> Iterator[Connection]:
    """The transaction of a push. InDoubtError where its commit is not confirmed."""
    try:
        with database.transaction(f"push to {queue.name!r}") as connection:
            yield connection
    except InDoubtError as error:
        raise InDoubtError(
            error.what,
            why=error.why,
            next_step="In doubt: it may have been stored. Check before you push it again.",
        ) from error


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Signals are delivered afterwards: for work whose outcome has to be known."""
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True)
class LinesPushed:
    """The result of pushing many; `full`: the queue was full at the end."""

    stored: int
    full: bool


class PartlyPushedError(ConsoleError):
    """Pushing many failed on the way: says how many messages are stored."""


def push_all(
    database: Database,
    queue: Queue,
    payloads: Iterable[Payload],
    wait_seconds: float,
    extras: PushExtras = NO_EXTRAS,
) -> LinesPushed:
    """Push every payload in order, `BATCH` a transaction; stops where the queue stays full.

    Raises PartlyPushedError, with the exit status of its cause, when something fails on the way.
    An interrupt comes between two transactions, with a note of how many messages are in.
    """
    require_interface(queue)
    extras.require_supported(queue)
    stored = 0
    rest: list[Payload] = []
    try:
        for batch in _batches(payloads):
            rest = batch
            deadline = time.monotonic() + wait_seconds
            for pause in pauses():
                with signals_deferred():
                    ids = retry_transient(partial(_push_many_once, database, queue, rest, extras))
                    done = sum(pushed is not None for pushed in ids)
                    stored += done
                    rest = rest[done:]
                if not rest or not sleep_until(deadline, pause):
                    break
            if rest:
                return LinesPushed(stored, full=True)
    except ConsoleError as error:
        outcome, next_step = _stored(stored), error.next_step
        if isinstance(error, InDoubtError):
            doubtful = f"Those of lines {stored + 1:,} to {stored + len(rest):,} are in doubt:"
            outcome = f"{outcome} {doubtful}" if stored else doubtful
            next_step = "they may have been stored. Check before you push them again."
        partly = PartlyPushedError(error.what, why=error.why, next_step=f"{outcome} {next_step}")
        partly.exit_status = error.exit_status
        raise partly from error
    except KeyboardInterrupt as stop:
        stop.add_note(_stored(stored))
        raise
    return LinesPushed(stored, full=False)


def _stored(stored: int) -> str:
    if not stored:
        return "No message was stored."
    return f"{numbered(stored, 'message')} stored, those before line {stored + 1:,}."


def require_interface(queue: Queue) -> None:
    """UsageError where the console has no push and pop for the queue."""
    if queue.kind is Kind.ADOPTED:
        raise UsageError(
            f"The queue {queue.name!r} was adopted: the console does not push to it or pop from "
            "it.",
            why="Its own callers know its rules; the console has no functions for it in the "
            "database.",
            next_step=f"See it with: dbq-console status {shlex.quote(queue.name)}",
        )
    if queue.kind is Kind.ARCHIVE:
        raise UsageError(
            f"The queue {queue.name!r} was uninstalled; only its archive is left.",
            next_step="Install a queue under another name.",
        )
    if rows_hidden(queue, "push"):
        require_rows(queue)


def why_not_stored(database: Database, queue: Queue) -> str:
    """What the queue is where a push returned null: `full`, or paused and by whom."""
    with database.transaction(
        f"see whether {queue.name!r} is paused", read_only=True
    ) as connection:
        if not decisions.catalog_contents(connection).decisions_readable:
            return "full, or its pushes are paused"
        decision = decisions.find(connection, "pause", queue.schema, queue.name)
    return decision.words if decision and decision.push else "full"


def pauses() -> Iterator[float]:
    """Growing pauses between two checks, in seconds: 10 ms to 100 ms (Kejser's), without end."""
    pause = 0.01
    while True:
        yield pause
        pause = min(pause * 2, 0.1)


def sleep_until(deadline: float, pause: float) -> bool:
    """Sleep for `pause` but not beyond the deadline; False where that has passed already."""
    left = deadline - time.monotonic()
    if left <= 0:
        return False
    time.sleep(min(pause, left))
    return True


def _batches(payloads: Iterable[Payload]) -> Iterator[list[Payload]]:
    iterator = iter(payloads)
    while batch := list(islice(iterator, BATCH)):
        yield batch
