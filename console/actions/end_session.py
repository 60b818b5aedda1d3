"""End a session that holds rows of a queue, or a prepared transaction: its rows come back.

What a pop has deleted and not committed is locked, and nobody else gets it. Once the session's
transaction is undone the rows are there again, in their old place.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection

from console import sql
from console.actions import audit
from console.actions.ledger import Ledger
from console.catalog import Queue
from console.engines import Database
from console.errors import ConsoleError, RefusedError, UsageError
from console.formats import duration
from console.monitor.activity import Activity, Key, Lock, Objects, Session, find_objects, look

WAIT_SECONDS = 10.0
"""How long it is waited for until it is gone, unless told otherwise."""
_POLL_SECONDS = 0.1
_WRITING = {
    *("RowShareLock", "RowExclusiveLock", "ShareRowExclusiveLock", "ExclusiveLock"),
    *("AccessExclusiveLock", "IX", "SIX", "UIX", "X", "U", "IU", "BU"),
}
"""Modes of locks, of either engine, in which rows are held."""


@dataclass(frozen=True)
class Identity:
    """Which session, exactly: another one may have its id later, or it another transaction."""

    started: str
    transaction_started: str | None
    session: str
    """As claimed_by and the audit name it."""
    own: bool


@dataclass(frozen=True)
class EndPlan:
    """Who would be ended, and why it may be."""

    queue: Queue
    session: Session
    identity: Identity
    holds: tuple[Lock, ...]
    """What of the queue is locked by it."""
    blocks: tuple[Key, ...]
    """Sessions at the queue that wait for it, through others too."""

    @property
    def prepared(self) -> bool:
        """Whether it is a transaction without a session."""
        return isinstance(self.session.key, str)

    @property
    def label(self) -> str:
        """How it is called."""
        return _label(self.session.key)

    def lines(self) -> list[str]:
        """The plan in words."""
        session = self.session
        who = f"{session.user or '?'}, {session.application or '?'}, {session.client or 'local'}"
        lines = [f"end {self.label}, which is at the queue {self.queue.label}", f"  {who}"]
        state = session.state or "state unknown"
        if session.transaction_seconds is not None:
            state += f", in its transaction for {duration(session.transaction_seconds)}"
        lines.append(f"  {state}")
        if session.waits_for:
            lines.append(f"  waits for {session.waits_for}")
        elif session.wait and session.wait != session.state:
            lines.append(f"  waits: {session.wait}")
        if session.query:
            lines.append(f"  last statement: {session.query}")
        if self.holds:
            lines.append(f"  holds rows in {_objects(self.holds)}: they come back by rollback")
        if self.blocks:
            lines.append(f"  is waited for by {', '.join(_label(key) for key in self.blocks)}")
        return [*lines, "  all that it did in its transaction is undone"]

    def as_json(self) -> dict[str, object]:
        """Keys as they are documented."""
        return {
            "queue": self.queue.name,
            "schema": self.queue.schema,
            "prepared": self.prepared,
            "holds": sorted({lock.object for lock in self.holds}),
            "blocks": list(self.blocks),
            **self.session.as_json(),
        }


@dataclass(frozen=True)
class Ended:
    """What came of it."""

    plan: EndPlan
    action_id: int | None
    changed_meanwhile: bool = False
    """It was another one by then, or in another transaction, and was left alone."""
    gone: bool = False
    """With all its locks. Else it was told to end, and its rollback lasts."""

    def lines(self) -> list[str]:
        """In words."""
        plan = self.plan
        if self.changed_meanwhile:
            return [f"{plan.label} changed meanwhile: it was left alone"]
        if not self.gone:
            return [f"{plan.label} was told to end; its rollback is not over yet"]
        came_back = f"; what it held in {_objects(plan.holds)} is free again" if plan.holds else ""
        return [f"{plan.label} is ended{came_back}"]

    def as_json(self) -> dict[str, object]:
        """Keys as they are documented."""
        return {
            "queue": self.plan.queue.name,
            "schema": self.plan.queue.schema,
            "session": self.plan.session.key,
            "action_id": self.action_id,
            "changed_meanwhile": self.changed_meanwhile,
            "ended": self.gone,
            "freed": sorted({lock.object for lock in self.plan.holds}) if self.gone else [],
        }


@dataclass(frozen=True)
class _Struck:
    ended: bool


def holding(database: Database, queue: Queue, older_than_seconds: float = 0.0) -> list[Session]:
    """Who holds rows of the queue in a transaction that is so old; the oldest first."""
    objects = find_objects(database, [queue])
    activity = look(database, objects)
    return [
        session
        for session in activity.concerned
        if _held(session, queue, objects)
        and (session.transaction_seconds or 0.0) >= older_than_seconds
    ]


def who(session: Session) -> str:
    """A session and how long it has been in its transaction."""
    named = f"{session.user or '?'}, {session.application or '?'}, {session.client or 'local'}"
    seconds = session.transaction_seconds
    age = "?" if seconds is None else duration(seconds)
    return f"{session.key} ({named}), in its transaction for {age},"


def plan(database: Database, queue: Queue, name: str) -> EndPlan:
    """Look at the session (its id, or the name of a prepared transaction). Changes nothing.

    UsageError where there is none; RefusedError where it has nothing to do with the queue, or is
    the console's own.
    """
    objects = find_objects(database, [queue])
    activity = look(database, objects)
    prepared = any(session.key == name for session in activity.sessions)
    identity = _identity(database, name, prepared=prepared)
    if identity is None:
        identity, prepared = _identity(database, name, prepared=True), True
    if identity is None:
        raise UsageError(
            f"There is no session {name!r}.",
            why="It ended, or it never was; nor is there a prepared transaction of that name.",
            next_step="See who is there: dbq-console waits",
        )
    if identity.own:
        raise RefusedError(f"Session {name} is this console's own.")
    key: Key = name if prepared else int(name)
    _refuse_an_action(database, name, identity)
    session = activity.by_key.get(key, Session(key))
    blocks = tuple(_waiting_for(activity, queue, key))
    holds = tuple(_held(session, queue, objects))
    if not blocks and (queue.schema, queue.name) not in session.queues:
        raise RefusedError(
            f"{_label(key).capitalize()} has nothing to do with the queue {queue.name!r}.",
            why="It has no lock of it, and nobody who is at it waits for that session.",
            next_step="See who does: dbq-console waits",
        )
    return EndPlan(queue, session, identity, holds, blocks)


def end_session(database: Database, planned: EndPlan, wait_seconds: float = WAIT_SECONDS) -> Ended:
    """End it, if it is the same session in the same transaction still; then wait until it is gone.

    RefusedError where this login may not.
    """
    doing = f"end {planned.label}"
    detail = f"{planned.label} of {planned.session.user or '?'}"
    subject = audit.Subject.of(database, planned.queue, "end-session", detail)
    with database.transaction(doing) as connection:
        record = audit.Record.begin(connection, database.product, subject)
    ended = Ended(planned, record.action_id)
    outcome, problem = audit.Outcome.FAILED, "interrupted"
    try:
        if not _strike(database, doing, planned, wait_seconds):
            outcome, problem = audit.Outcome.STOPPED, "changed meanwhile: left alone"
            ended = Ended(planned, record.action_id, changed_meanwhile=True)
        else:
            gone = _wait_until_gone(database, planned, wait_seconds)
            outcome, problem = audit.Outcome.DONE, "" if gone else "its rollback lasts"
            ended = Ended(planned, record.action_id, gone=gone)
    except ConsoleError as error:
        problem = str(error)
        raise
    finally:
        told = "; ".join(text for text in (detail, problem) if text)
        with database.transaction(doing) as connection:
            record.end(connection, outcome, told)
        record.told(outcome, Ledger(), told)
    return ended


def _identity(database: Database, name: str, *, prepared: bool) -> Identity | None:
    doing = f"look at the session {name!r}"
    with database.transaction(doing, read_only=True) as connection:
        return _identity_in(connection, database, name, prepared=prepared)


def _identity_in(
    connection: Connection, database: Database, name: str, *, prepared: bool
) -> Identity | None:
    statements = sql.statements(database.product.name, "sessions")
    statement = statements["prepared_identity" if prepared else "identity"]
    rows = sql.fetch(connection, Identity, statement, sql.Scope(), session=name)
    return rows[0] if rows else None


def _refuse_an_action(database: Database, name: str, identity: Identity) -> None:
    """Who acts on a queue by a console is stopped there, where it ends a batch first."""
    with database.transaction("look at the audit", read_only=True) as connection:
        running = audit.entries(connection, database.product, audit.Wanted(running=True))
    for entry in running:
        if entry.session == identity.session:
            raise RefusedError(
                f"Session {name} is a console at work: {entry.verb} of {entry.queue}.",
                why=f"{entry.operator} began it, action {entry.action_id}.",
                next_step="Stop it there: what it has done stays done, and nothing is half.",
            )


def _waiting_for(activity: Activity, queue: Queue, key: Key) -> Iterator[Key]:
    """Those at the queue that wait for the session, directly or behind others."""
    for session in activity.sessions:
        if (queue.schema, queue.name) not in session.queues or session.key == key:
            continue
        left, seen = list(session.blocked_by), set()
        while left:
            other = left.pop()
            if other == key:
                yield session.key
                break
            if other not in seen:
                seen.add(other)
                found = activity.by_key.get(other)
                left += found.blocked_by if found else ()


def _held(session: Session, queue: Queue, objects: Objects) -> list[Lock]:
    """Its locks on the queue's tables in which rows are held."""
    tables = {row.name for row in objects.rows if row.kind in {"table", "queue"}}
    return [
        lock
        for lock in session.locks
        if lock.granted
        and (lock.schema, lock.queue) == (queue.schema, queue.name)
        and lock.mode in _WRITING
        and lock.object in tables
    ]


def _strike(database: Database, doing: str, planned: EndPlan, wait_seconds: float) -> bool:
    """Whether it was still the same."""
    product = database.product
    statements = sql.statements(product.name, "sessions")
    name = str(planned.session.key)
    with database.autocommit(doing) as connection:
        if planned.prepared:
            # Nothing stands between the two but a moment: no engine undoes one on a condition.
            if _identity_in(connection, database, name, prepared=True) != planned.identity:
                return False
            sql.run_script(connection, statements["end_prepared"], sql.Scope({"session": name}))
            return True
        struck = sql.fetch(
            connection,
            _Struck,
            statements["end_session"],
            sql.Scope(),
            session=name,
            started=planned.identity.started,
            transaction_started=planned.identity.transaction_started,
            # The rest of the time is for the locks, and a statement has its own time-out.
            seconds=min(wait_seconds, database.timeouts.statement_seconds) / 2,
        )
    return bool(struck)


def _wait_until_gone(database: Database, planned: EndPlan, wait_seconds: float) -> bool:
    objects = find_objects(database, [planned.queue])
    name, key = str(planned.session.key), planned.session.key
    deadline = time.monotonic() + wait_seconds
    while True:
        there = _identity(database, name, prepared=planned.prepared) == planned.identity
        if not there:
            session = look(database, objects).by_key.get(key)
            if session is None or not _held(session, planned.queue, objects):
                return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)


def _label(key: Key) -> str:
    return f"prepared transaction {key!r}" if isinstance(key, str) else f"session {key}"


def _objects(locks: tuple[Lock, ...]) -> str:
    return ", ".join(dict.fromkeys(lock.object for lock in locks))
