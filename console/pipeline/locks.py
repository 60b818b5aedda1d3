"""Locks in the database: one run per queue and lake at a time, and no task outlives its run.

The driver holds the lock `run` exclusively. Its tasks and its deletes hold `work` shared, in the
session that does the work, and only work while the run's action has not ended in the audit. A
successor takes `run` once its predecessor has ended, then `work` exclusively, which waits for
whatever the predecessor left running, and then ends that run's action. So a task that starts late
finds its action ended, and changes nothing.
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

_WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Action:
    """One that carried out a plan."""

    action_id: int
    done: int
    ended: bool


def lock_name(kind: str, lake_id: str, queue: Queue) -> str:
    """Short, however long the names in it."""
    identity = "\0".join((kind, lake_id, queue.schema, queue.name))
    return f"dbq pipeline {hashlib.sha256(identity.encode()).hexdigest()[:40]}"


def lock_text(product: Product, name: str, mode: str) -> str:
    """The SQL that takes a lock, for a task's driver."""
    scope = sql.Scope({"resource": name}, {"mode": mode})
    return sql.script("pipeline.acquire_lock", product.dialect, scope)


def action_text(product: Product, action_id: int) -> str:
    """The SQL that reads an action, for a task's driver."""
    scope = sql.Scope({"action_id": str(action_id)})
    return sql.script("pipeline.action", product.dialect, scope)


def actions(connection: Connection, queue: Queue, cutoff: datetime) -> list[Action]:
    """Those in the audit that carried out the plan with this cut-off."""
    names = {"schema": queue.schema, "queue": queue.name}
    return sql.rows(connection, Action, "pipeline.plan_actions", cutoff=cutoff, **names)


def taken_by_others(
    connection: Connection, queue: Queue, cutoff: datetime, made_at: datetime
) -> int:
    """At most so many rows of the queue's tables other actions have taken since then."""
    names = {"schema": queue.schema, "queue": queue.name}
    times = {"cutoff": cutoff, "made_at": made_at}
    return sql.value(connection, int, "pipeline.taken_by_others", **names, **times)


def acquire(connection: Connection, name: str, mode: str) -> bool:
    """Take a lock for the session, without waiting; whether it was free."""
    scope = sql.Scope({"resource": name}, {"mode": mode})
    return sql.value(connection, bool, "pipeline.acquire_lock", scope)


def release(connection: Connection, name: str, mode: str) -> None:
    scope = sql.Scope({"resource": name}, {"mode": mode})
    sql.values(connection, bool, "pipeline.release_lock", scope)


@contextmanager
def try_lock(connection: Connection, name: str, mode: str) -> Iterator[bool]:
    """Yields whether it was free. A connection that cannot release it is closed."""
    acquired = acquire(connection, name, mode)
    try:
        yield acquired
    finally:
        if acquired:
            try:
                release(connection, name, mode)
            except SQLAlchemyError:
                with suppress(SQLAlchemyError):
                    connection.invalidate()


@contextmanager
def hold(session: Session, name: str, mode: str, refusal: ConsoleError) -> Iterator[None]:
    """The session has the lock while the body runs; where it is taken, `refusal` is raised."""
    with session.transaction("lock the pipeline's work") as connection:
        if not acquire(connection, name, mode):
            raise refusal
    try:
        yield
    finally:
        with suppress(ConsoleError), session.transaction("release a lock") as connection:
            release(connection, name, mode)


class RunLock:
    """A run's lock, held."""

    def __init__(self, connection: Connection, work: str) -> None:
        self._connection = connection
        self.work = work
        """The name of the lock `work`."""

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """While the body runs, no run's task is working. BusyError after a minute."""
        deadline = time.monotonic() + _WAIT_SECONDS
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
        """The connection's error where its session, and so the lock, may be gone."""
        sql.value(self._connection, datetime, "pipeline.server_time")


@contextmanager
def run_lock(database: Database, lake_id: str, queue: Queue) -> Iterator[RunLock]:
    """RefusedError where another run has it."""
    name = lock_name("run", lake_id, queue)
    with (
        database.autocommit("lock the pipeline's run") as connection,
        try_lock(connection, name, "exclusive") as acquired,
    ):
        if not acquired:
            raise already_running(queue)
        yield RunLock(connection, lock_name("work", lake_id, queue))


def already_running(queue: Queue) -> RefusedError:
    return RefusedError(
        f"Another run is working on the queue {queue.name!r} and this lake.",
        why="It holds their lock in the database.",
        next_step="Wait until it ends; the next run finishes whatever it leaves.",
    )
