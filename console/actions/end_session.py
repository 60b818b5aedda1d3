"""Terminate a session that holds rows of a queue, or roll back a prepared transaction.

Rows that a pop has deleted and not committed are locked for everybody else. After the rollback they
are in the queue again, in their old order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from console import sql
from console.actions.availability import require_verb
from console.catalog import Queue, audit
from console.catalog.audit import Ledger, Outcome
from console.designs import Flow
from console.engines import Database
from console.errors import ConsoleError, RefusedError, UsageError
from console.formats import duration
from console.monitor.activity import (
    Activity,
    Lock,
    Objects,
    Session,
    find_objects,
    label_of,
    sample_activity,
    writing,
)
from console.monitor.row_holder import SessionKey
from console.plan import Plan, Result, queue_plan, single_step, waiting_step, warning

if TYPE_CHECKING:
    from sqlalchemy import Connection

VERB = "end-session"
WAIT_SECONDS = 10.0
"""How long to wait, by default, until the session has disconnected."""
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Identity:
    """Which session and transaction, exactly: a session id may be reused."""

    started: str
    transaction_started: str | None
    session: str
    """As claimed_by and the audit name it."""
    own: bool


@dataclass(frozen=True)
class SessionAtQueue:
    """A session that holds rows of a queue, or blocks one that works on it."""

    queue: Queue
    session: Session
    identity: Identity
    holds: tuple[Lock, ...]
    """Its locks on the queue's objects."""
    blocks: tuple[SessionKey, ...]
    """Sessions at the queue that wait for it, directly or behind others."""

    @property
    def prepared(self) -> bool:
        return isinstance(self.session.key, str)

    @property
    def label(self) -> str:
        return self.session.label

    @property
    def objects(self) -> str:
        """In which it holds rows."""
        return ", ".join(dict.fromkeys(lock.object for lock in self.holds))

    def lines(self) -> list[str]:
        session = self.session
        lines = [
            f"end {self.label}, which is using the queue {self.queue.label}",
            f"  {session.who}",
        ]
        state = session.state or "state unknown"
        if session.transaction_seconds is not None:
            state += f", in its transaction for {duration(session.transaction_seconds)}"
        lines.append(f"  {state}")
        if session.waits_for:
            lines.append(warning(f"  waits for {session.waits_for}"))
        elif session.wait and session.wait != session.state:
            lines.append(f"  waits: {session.wait}")
        if session.query:
            lines.append(f"  last statement: {session.query}")
        if self.holds:
            held = f"  holds rows in {self.objects} for {session.held_for}"
            lines.append(f"{held}: a rollback brings them back")
        if self.holds and self.queue.design.flow is Flow.NUMBERS:
            lines.append(
                "  the numbers that it drew stay consumed: the doctor repairs what is left behind"
            )
        if self.blocks:
            lines.append(f"  blocks {', '.join(label_of(key) for key in self.blocks)}")
        return [*lines, "  everything done in its transaction is rolled back"]

    def as_json(self) -> dict[str, object]:
        return {
            "queue": self.queue.name,
            "schema": self.queue.schema,
            "prepared": self.prepared,
            "holds": sorted({lock.object for lock in self.holds}),
            "blocks": list(self.blocks),
            **self.session.as_json(),
        }


def sessions_holding(
    database: Database, queue: Queue, older_than_seconds: float = 0.0
) -> list[Session]:
    """Sessions that have held rows of the queue for at least so long; oldest transaction first."""
    objects = find_objects(database, [queue])
    return holding(sample_activity(database, objects), objects, queue, older_than_seconds)


def holding(
    activity: Activity, objects: Objects, queue: Queue, older_than_seconds: float
) -> list[Session]:
    """The same, of sessions that were sampled before."""
    return [
        session
        for session in activity.relevant_sessions
        if activity.held(session, queue, objects)
        and (session.held_seconds or 0.0) >= older_than_seconds
    ]


def describe_holder(session: Session, queue: Queue) -> str:
    held = f"holds rows of {queue.label} for {session.held_for}"
    return f"{session.label} ({session.who}) {held}"


def find(database: Database, queue: Queue, name: str) -> SessionAtQueue:
    """`name`: a session id, or the name of a prepared transaction. Changes nothing.

    UsageError where there is none; RefusedError where it has nothing to do with the queue, or is
    the console's own.
    """
    require_verb(queue, VERB)
    objects = find_objects(database, [queue])
    activity = sample_activity(database, objects)
    prepared = any(session.key == name for session in activity.sessions)
    identity = _identity(database, name, prepared=prepared)
    if identity is None:
        identity, prepared = _identity(database, name, prepared=True), True
    if identity is None:
        raise UsageError(
            f"There is no session {name!r}.",
            why="It has ended or never existed; there is no prepared transaction of that name "
            "either.",
            next_step="See which sessions there are: dbq-console waits",
        )
    if identity.own:
        raise RefusedError(f"Session {name} is this console's own.")
    key: SessionKey = name if prepared else int(name)
    _refuse_an_action(database, name, identity)
    session = activity.by_key.get(key, Session(key))
    blocks = tuple(_waiting_for(activity, queue, key))
    holds = activity.held(session, queue, objects)
    if not blocks and (queue.schema, queue.name) not in session.queues:
        raise RefusedError(
            f"{label_of(key).capitalize()} has nothing to do with the queue {queue.name!r}.",
            why="It holds no locks on it and blocks no session that works on it.",
            next_step="See which do: dbq-console waits",
        )
    return SessionAtQueue(queue, session, identity, holds, blocks)


def plan(database: Database, queue: Queue, name: str, least_seconds: float = 0.0) -> Plan:
    """`least_seconds`: of its transaction; a younger one is another, and is skipped."""
    held = find(database, queue, name)
    lines, data = held.lines(), held.as_json()
    if (held.session.transaction_seconds or 0.0) < least_seconds:
        lines.append(f"  its transaction is younger than {duration(least_seconds)}: skipped")
        words = f"{held.label} was skipped: its transaction is younger, so it is another one"
        skip = single_step(Result, Outcome.DONE, (words,))
        return queue_plan(database, queue, VERB, lines, skip, needed=False, data=data)
    run = waiting_step("until it has ended", end_session, database, held)
    return queue_plan(database, queue, VERB, lines, run, stoppable=False, data=data)


def end_session(database: Database, held: SessionAtQueue) -> Result:
    """Terminate the session if its transaction is still the same; wait until it has disconnected.

    Stopped: by then it was another session, or in another transaction. RefusedError where this
    login may not.
    """
    doing = f"end {held.label}"
    detail = f"{held.label} of {held.session.user or '?'}"
    subject = audit.Subject.of(database, held.queue, VERB, detail)
    with database.transaction(doing) as connection:
        record = audit.ActionRecord.begin(connection, subject)
    disconnected = False
    outcome, problem = Outcome.FAILED, "interrupted"
    try:
        if not _terminate(database, doing, held, WAIT_SECONDS):
            outcome, problem = Outcome.STOPPED, "has changed since the plan: skipped"
            line = f"{held.label} {problem}"
        else:
            disconnected = _wait_until_disconnected(database, held, WAIT_SECONDS)
            outcome, problem = Outcome.DONE, ""
            freed = f"; what it held in {held.objects} is released" if held.holds else ""
            line = f"{held.label} is terminated{freed}"
            if not disconnected:
                problem = "its rollback is still running"
                line = f"{held.label} was terminated; {problem}"
    except ConsoleError as error:
        problem = str(error)
        raise
    finally:
        detail = "; ".join(text for text in (detail, problem) if text)
        with database.transaction(doing) as connection:
            record.end(connection, outcome, detail)
        record.log_locally(outcome, Ledger(), detail)
    changed = outcome is Outcome.STOPPED
    data = {
        "queue": held.queue.name,
        "schema": held.queue.schema,
        "session": held.session.key,
        "action_id": record.action_id,
        "changed_meanwhile": changed,
        "ended": disconnected,
        "freed": sorted({lock.object for lock in held.holds}) if disconnected else [],
    }
    return Result(outcome, (line,), action_id=record.action_id, done=int(not changed), data=data)


def _identity(database: Database, name: str, *, prepared: bool) -> Identity | None:
    doing = f"read the session {name!r}"
    with database.transaction(doing, read_only=True) as connection:
        return _identity_in(connection, name, prepared=prepared)


def _identity_in(connection: Connection, name: str, *, prepared: bool) -> Identity | None:
    statement = "sessions.prepared_identity" if prepared else "sessions.identity"
    rows = sql.rows(connection, Identity, statement, session=name)
    return rows[0] if rows else None


def _refuse_an_action(database: Database, name: str, identity: Identity) -> None:
    """A running console is stopped there, where it finishes its batch first."""
    with database.transaction("read the audit", read_only=True) as connection:
        running = audit.entries(connection, audit.EntryFilter(running=True))
    for entry in running:
        if entry.session == identity.session:
            raise RefusedError(
                f"Session {name} is a running console: {entry.verb} of {entry.queue}.",
                why=f"{entry.operator} started it, action {entry.action_id}.",
                next_step="Stop it there: what it has done stays done, and nothing is left half "
                "done.",
            )


def _waiting_for(activity: Activity, queue: Queue, key: SessionKey) -> Iterator[SessionKey]:
    """Sessions at the queue that wait for it, directly or behind others."""
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


def _terminate(database: Database, doing: str, held: SessionAtQueue, wait_seconds: float) -> bool:
    """False: its identity has changed."""
    name = str(held.session.key)
    with database.autocommit(doing, needs_session=held.prepared) as connection:
        if held.prepared:
            # Not atomic: no engine rolls one back on a condition.
            if _identity_in(connection, name, prepared=True) != held.identity:
                return False
            sql.run(connection, "sessions.end_prepared", sql.Scope({"session": name}))
            return True
        terminated = sql.values(
            connection,
            bool,
            "sessions.end_session",
            session=name,
            started=held.identity.started,
            transaction_started=held.identity.transaction_started,
            # The rest is for the locks; and a statement has its own time-out.
            seconds=min(wait_seconds, database.timeouts.statement_seconds) / 2,
        )
    return bool(terminated)


def _wait_until_disconnected(database: Database, held: SessionAtQueue, wait_seconds: float) -> bool:
    objects = find_objects(database, [held.queue])
    name, key = str(held.session.key), held.session.key
    deadline = time.monotonic() + wait_seconds
    while True:
        there = _identity(database, name, prepared=held.prepared) == held.identity
        if not there:
            session = sample_activity(database, objects).by_key.get(key)
            if session is None or not writing(session, held.queue, objects):
                return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
