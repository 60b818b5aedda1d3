"""Subscribe to a ring, unsubscribe, skip what a subscriber owes: each one transaction, in traffic.

The transaction has the ring for itself: all pushes and pops have committed, so the fate of every
number drawn is known. It needs the same lock as a relay, and is retried until it gets it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from console import catalog, sql
from console.actions import pause, shipped
from console.actions.install import recording_scope
from console.actions.relay import naming_blockers
from console.actions.short_locks import Done, retry_while_busy
from console.catalog import Kind, Queue, audit
from console.designs.model import Subscriber, as_option, subscribers_of
from console.engines import Database
from console.errors import RefusedError, UsageError
from console.formats import numbered, parse_duration

if TYPE_CHECKING:
    from sqlalchemy import Connection

FROM = ("now", "oldest")


@dataclass(frozen=True)
class Owed:
    """Messages that a subscriber has not popped; those below a number; its claims."""

    owed: int
    below: int
    in_hand: int

    def __str__(self) -> str:
        """For the audit of unsubscribe."""
        return f"{numbered(self.owed, 'message')} not popped and {self.in_hand:,} in hand dropped"


@dataclass(frozen=True)
class _Numbers:
    number: int
    next_push: int
    oldest: int


@dataclass(frozen=True)
class Skipped:
    """Messages that a skip let go, and how many of them are in the archive."""

    skipped: int
    archived: int

    @property
    def ledger(self) -> audit.Ledger:
        """A message that is not in the archive had lost its content before."""
        return audit.Ledger(self.skipped, self.skipped, self.skipped)


def require_subscribers(queue: Queue) -> None:
    """UsageError where it cannot have subscribers."""
    if not queue.subscribers:
        raise UsageError(
            f"The queue {queue.name!r} has no subscribers.",
            why="They are an option of the design ring, given when it is installed.",
            next_step="Install one with: dbq-console install ring NAME --option subscribers=A,B",
        )
    if queue.kind is not Kind.INSTALLED:
        raise RefusedError(f"The queue {queue.name!r} was not installed by the console.")


def owed(database: Database, queue: Queue, to: str = "now") -> tuple[Owed, int]:
    """What the subscriber, whose view `queue` is, owes; and the number that `to` means now."""
    require_subscribers(queue)
    with database.transaction(f"read the ring {queue.name!r}") as connection:
        number = _number(connection, queue, to)
        return _owed(connection, queue, number), number


def subscribe(database: Database, queue: Queue, name: str, since: str) -> int:
    """Add a subscriber that begins `now` or at the `oldest` message; its first number."""
    require_subscribers(queue)
    new_subscriber(queue, name)

    def add(connection: Connection, now: Queue) -> tuple[Queue, int]:
        new_subscriber(now, name)
        of = sql.row(connection, _Numbers, "ring.beginnings", now.scope(connection))
        first = of.next_push if since == "now" else of.oldest
        subscriber = Subscriber(name, of.number)
        changed = _with(now, (*now.subscribers, subscriber))
        for script in shipped.added(database.product, changed):
            alone = changed.scope(
                connection, subscribers=f"{name}:{subscriber.number}", since=str(first)
            )
            sql.run(connection, script, alone)
        mine = changed.of(name).scope(connection)
        sql.value(connection, int, "ring.void_for_subscriber", mine, since=first)
        return changed, first

    return _changed(database, queue, "subscribe", f"{name} from {since}", add)


def unsubscribe(database: Database, queue: Queue, name: str) -> Owed:
    """Remove a subscriber; what it still owed, which is let go."""
    require_subscribers(queue)

    def remove(connection: Connection, now: Queue) -> tuple[Queue, Owed]:
        mine = now.of(name)
        left = tuple(subscriber for subscriber in now.subscribers if subscriber.name != name)
        if not left:
            raise RefusedError(
                f"{name} is the last subscriber of the queue {queue.name!r}.",
                why="A ring with subscribers must have at least one: without any, nothing reads "
                "it.",
                next_step="Subscribe another one first, or uninstall the queue.",
            )
        gone = _owed(connection, mine, 0)
        sql.run(connection, "ring.unsubscribe", mine.scope(connection))
        return _with(now, left), gone

    return _changed(database, queue, "unsubscribe", name, remove)


def skip(database: Database, queue: Queue, name: str, to: str) -> Skipped:
    """Archive what the subscriber owes below a number: it owes that no more."""
    require_subscribers(queue)
    subject = audit.Subject.of(database, queue, "skip", detail=f"{name} to {to}")

    def once() -> Skipped:
        with audit.recorded(database, f"skip what {name} owes of {queue.name!r}", subject) as act:
            connection = act.connection
            mine = catalog.find(connection, queue.name, queue.schema).of(name)
            sql.run(connection, "ring.lock_ring", mine.scope(connection))
            number = _number(connection, mine, to)
            scope = mine.scope(connection, since=str(number))
            done = sql.row(
                connection,
                Skipped,
                "ring.skip",
                scope,
                number=number,
                action_id=act.record.action_id,
            )
            sql.run(connection, "ring.skip_numbers", scope)
            act.record.batch(connection, done.ledger)
            act.detail = (
                f"{name} to {number}: {numbered(done.skipped, 'message')} skipped, "
                f"{done.archived:,} of them archived"
            )
            return done

    with naming_blockers(database, queue):
        return retry_while_busy(once)


def new_subscriber(queue: Queue, name: str) -> None:
    """UsageError where a new subscriber cannot have the name."""
    if any(subscriber.name == name for subscriber in queue.subscribers):
        raise UsageError(f"The queue {queue.name!r} already has a subscriber {name!r}.")
    try:
        (read,) = subscribers_of(name)
        valid = read.name == name
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(
            f"A subscriber cannot be called {name!r}.",
            next_step="Its name must be a letter (a-z), then up to 30 of a-z 0-9 _.",
        )
    most = queue.design.option("subscribers").maximum
    if len(queue.subscribers) >= most:
        raise RefusedError(
            f"The queue {queue.name!r} has {most} subscribers, and can have no more."
        )


def _with(queue: Queue, subscribers: tuple[Subscriber, ...]) -> Queue:
    return replace(queue, options={**queue.options, "subscribers": as_option(subscribers)})


def _owed(connection: Connection, mine: Queue, number: int) -> Owed:
    return sql.row(connection, Owed, "ring.owed", mine.scope(connection), number=number)


_OLDER = re.compile(r"older=(?P<age>.+)")


def _number(connection: Connection, mine: Queue, to: str) -> int:
    """The number that `now`, `older=1h` or a number means: never one that is not pushed yet."""
    scope = mine.scope(connection)
    next_push = sql.row(connection, _Numbers, "ring.beginnings", scope).next_push
    if to == "now":
        return next_push
    if to.isascii() and to.isdecimal():
        return min(int(to), next_push)
    if older := _OLDER.fullmatch(to):
        seconds = parse_duration(older["age"])
        return sql.value(connection, int, "ring.number_older", scope, seconds=seconds)
    raise UsageError(
        f"It is not possible to skip up to {to!r}.",
        next_step="It must be: now, a message number, or older=1h.",
    )


def _changed(
    database: Database,
    queue: Queue,
    verb: str,
    detail: str,
    change: Callable[[Connection, Queue], tuple[Queue, Done]],
) -> Done:
    """Change the list of subscribers, and with it the queue's functions and the catalog."""
    subject = audit.Subject.of(database, queue, verb, detail=detail)

    def once() -> Done:
        with audit.recorded(database, f"{verb} {detail} of {queue.name!r}", subject) as act:
            connection = act.connection
            sql.run(connection, "catalog.lock")
            now = catalog.find(connection, queue.name, queue.schema)
            sql.run(connection, "ring.lock_ring", now.scope(connection))
            paused = pause.suspend(connection, now)
            changed, done = change(connection, now)
            for script in (*shipped.code_scripts(changed), "roles.queue"):
                sql.run(connection, script, changed.scope(connection))
            sql.run(connection, "catalog.set_options", recording_scope(connection, changed))
            if paused is not None:
                pause.reapply(connection, changed, push=paused)
            act.detail = f"{detail}: {done}"
            return done

    with naming_blockers(database, queue):
        return retry_while_busy(once)
