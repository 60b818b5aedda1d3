"""Locks in the database: one run of a queue and a lake at a time, and no task outlives its run.

The driver holds the lock `run`. Whoever works for it, its tasks and its own deletes, holds `work`
together with others, in the session in which the work is done, and works only while the run's
action has not ended in the audit. A successor takes `run`, which its predecessor's end gives back;
then `work` for itself alone, which waits for all that its predecessor left behind; then it ends
that one's action. So a task that comes late finds its action ended, and changes nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from console import sql
from console.catalog import Queue
from console.engines import Database, Product, Session
from console.errors import BusyError, ConsoleError, RefusedError

if TYPE_CHECKING:
    from sqlalchemy import Connection

_STRAGGLERS_SECONDS = 60.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Action:
    done: int
    ended: bool


def lock_name(kind: str, lake_id: str, queue: Queue) -> str:
    """The name of a lock: short, whatever the names in it."""
    whole = "\0".join((kind, lake_id, queue.schema, queue.name))
    return f"dbq pipeline {hashlib.sha256(whole.encode()).hexdigest()[:40]}"


def lock_text(product: Product, name: str, mode: str) -> str:
    """`acquire_lock` in a mode, for a driver."""
    scope = sql.Scope({"resource": name}, {"mode": mode})
    return sql.script("pipeline.acquire_lock", product.dialect, scope)


def action_text(product: Product, action_id: int) -> str:
    """The question for an action, for a driver."""
    scope = sql.Scope({"action_id": str(action_id)})
    return sql.script("pipeline.action", product.dialect, scope)


def action(connection: Connection, action_id: int) -> Action | None:
    """What the audit says of it; None: nothing."""
    scope = sql.Scope({"action_id": str(action_id)})
    found = sql.rows(connection, Action, "pipeline.action", scope)
    return found[0] if found else None


def acquire(connection: Connection, name: str, mode: str) -> bool:
    """Take a lock for the session, without waiting."""
    scope = sql.Scope({"resource": name}, {"mode": mode})
    return sql.value(connection, bool, "pipeline.acquire_lock", scope)


def release(connection: Connection, name: str, mode: str) -> None:
    scope = sql.Scope({"resource": name}, {"mode": mode})
    sql.values(connection, bool, "pipeline.release_lock", scope)


@contextmanager
def try_lock(connection: Connection, name: str, mode: str) -> Iterator[bool]:
    """While the body runs; whether it was to be had. A connection that cannot give it back ends."""
    got = acquire(connection, name, mode)
    try:
        yield got
    finally:
        if got:
            try:
                release(connection, name, mode)
            except SQLAlchemyError:
                with suppress(SQLAlchemyError):
                    connection.invalidate()


@contextmanager
def hold(session: Session, name: str, mode: str, refusal: ConsoleError) -> Iterator[None]:
    """The session has the lock while the body runs; `refusal` is raised where it is not to be
    had."""
    with session.transaction("lock the pipeline's work") as connection:
        if not acquire(connection, name, mode):
            raise refusal
    try:
        yield
    finally:
        with suppress(ConsoleError), session.transaction("release a lock") as connection:
            release(connection, name, mode)


class RunLock:
    """The lock of a run, while it is held."""

    def __init__(self, connection: Connection, work: str) -> None:
        self._connection = connection
        self.work = work
        """The lock of whoever works for it."""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While the body runs nobody works for any run. BusyError after a minute."""
        deadline = time.monotonic() + _STRAGGLERS_SECONDS
        while not acquire(self._connection, self.work, "exclusive"):
            if time.monotonic() >= deadline:
                raise BusyError(
                    "Tasks of an earlier run of this queue and lake are still running.",
                    why="Its driver has ended, but its sessions have not.",
                    next_step="Try again in a moment, or terminate those sessions.",
                )
            time.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            release(self._connection, self.work, "exclusive")

    def require(self) -> None:
        """An error of the connection's where the lock may be lost: its session has ended."""
        sql.value(self._connection, datetime, "pipeline.server_time")


@contextmanager
def run_lock(database: Database, lake_id: str, queue: Queue) -> Iterator[RunLock]:
    """The one run of a queue and a lake. RefusedError where there is another."""
    name = lock_name("run", lake_id, queue)
    with (
        database.autocommit("lock the pipeline's run") as connection,
        try_lock(connection, name, "exclusive") as got,
    ):
        if not got:
            raise already_running(queue)
        yield RunLock(connection, lock_name("work", lake_id, queue))


def already_running(queue: Queue) -> RefusedError:
    """There is a run of the queue and the lake already."""
    return RefusedError(
        f"Another run is working on the queue {queue.name!r} and this lake.",
        why="It holds their lock in the database.",
        next_step="Wait until it ends; the next run finishes whatever it leaves.",
    )
