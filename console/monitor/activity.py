"""Sessions at one moment: which use the queues, what each waits for, and which block others.

Read from the server's own views: no queue is read and no lock on one is taken, so nothing that is
sampled can hold up the sample. A session between two transactions holds no lock, and is not seen.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from console import sql
from console.catalog import Queue, object_names
from console.engines import Database
from console.monitor.known_waits import wait_kind_of
from console.monitor.rates import QueueName
from console.monitor.row_holder import RowHolder, SessionKey
from console.monitor.sample_queries import limit_transaction
from console.monitor.statement_text import masked
from console.monitor.wait_graph import Node, wait_graph

SAMPLE_TIMEOUT_SECONDS = 1.0
"""The time-out of a sample; it takes milliseconds."""

_ADVISORY = "advisory"


@dataclass(frozen=True)
class ObjectRow:
    """An object of a queue that can be locked. `id`: the server's, or an advisory lock's key."""

    schema: str
    queue: str
    name: str
    kind: str
    id: int


@dataclass(frozen=True)
class SessionRow:
    """What `activity.sessions` returns. None: nothing, or hidden from this login."""

    session_id: int | None
    prepared_transaction: str | None
    kind: str | None
    database: str | None
    user_name: str | None
    application_name: str | None
    client_address: str | None
    state: str | None
    wait_kind: str | None
    wait: str | None
    transaction_seconds: float | None
    statement_seconds: float | None
    state_seconds: float | None
    awaited_lock: str | None
    awaited_mode: str | None
    awaited_object: str | None
    wait_seconds: float | None
    query: str | None
    blocked_by: Any
    locks: Any
    has_locked_rows: bool
    held_at_least_seconds: float | None
    held_at_most_seconds: float | None


@dataclass(frozen=True)
class Objects:
    """The objects of some queues that can be locked; valid as long as the objects exist."""

    queues: tuple[Queue, ...]
    rows: tuple[ObjectRow, ...] = ()
    functions: frozenset[str] = frozenset()

    @cached_property
    def by_id(self) -> Mapping[tuple[bool, int], Sequence[ObjectRow]]:
        """(is it an advisory lock?, id) -> the objects."""
        found: defaultdict[tuple[bool, int], list[ObjectRow]] = defaultdict(list)
        for row in self.rows:
            found[row.kind == _ADVISORY, row.id].append(row)
        return found

    @cached_property
    def names(self) -> frozenset[str]:
        """Names that may be shown in a statement even if they are quoted."""
        rows = {name for row in self.rows for name in (row.schema, row.queue, row.name)}
        return self.functions | rows

    def queues_of(self, id_: int) -> list[QueueName]:
        """The queues of a table, an index or a sequence."""
        return [(row.schema, row.queue) for row in self.by_id.get((False, id_), ())]

    def ids(self, *, advisory: bool) -> list[str]:
        return sorted({str(row.id) for row in self.rows if (row.kind == _ADVISORY) == advisory})


@dataclass(frozen=True)
class Lock:
    """A lock on an object of a queue, held or waited for, in the server's terms."""

    schema: str
    queue: str
    object: str
    lock: str
    """What is locked: the relation, a tuple..."""
    mode: str
    granted: bool


@dataclass(frozen=True)
class Session(RowHolder):
    """A session or a prepared transaction. All texts are its own or its client's: untrusted.

    `wait` is `running` if it waits for nothing, and None if that is hidden.
    """

    key: SessionKey
    kind: str | None = None
    database: str | None = None
    user: str | None = None
    application: str | None = None
    client: str | None = None
    state: str | None = None
    wait_kind: str | None = None
    wait: str | None = None
    wait_seconds: float | None = None
    waits_for: str | None = None
    """The lock that it waits for."""
    transaction_seconds: float | None = None
    statement_seconds: float | None = None
    state_seconds: float | None = None
    query: str | None = None
    blocked_by: tuple[SessionKey, ...] = ()
    locks: tuple[Lock, ...] = ()
    has_locked_rows: bool = False
    """Of some table; no server reports which rows."""
    held_at_least_seconds: float | None = None
    held_at_most_seconds: float | None = None

    @property
    def label(self) -> str:
        return label_of(self.key)

    @property
    def who(self) -> str:
        """`ann, worker, 10.0.0.4`, as the client says."""
        return f"{self.user or '?'}, {self.application or '?'}, {self.client or 'local'}"

    @property
    def queues(self) -> tuple[QueueName, ...]:
        return tuple(dict.fromkeys((lock.schema, lock.queue) for lock in self.locks))

    @property
    def waits_in(self) -> tuple[QueueName, ...]:
        """The queues that its wait counts for: those it waits at, else all that it uses."""
        awaited = [(lock.schema, lock.queue) for lock in self.locks if not lock.granted]
        return tuple(dict.fromkeys(awaited)) or self.queues

    def as_json(self) -> dict[str, object]:
        locks = [
            {"queue": lock.queue, "schema": lock.schema, "object": lock.object}
            | {"lock": lock.lock, "mode": lock.mode, "granted": lock.granted}
            for lock in self.locks
        ]
        values = {name: value for name, value in vars(self).items() if name != "key"}
        return {"session": self.key} | values | {"blocked_by": [*self.blocked_by], "locks": locks}


def label_of(key: SessionKey) -> str:
    """`session 4711`, `prepared transaction 'order-17'`."""
    return f"prepared transaction {key!r}" if isinstance(key, str) else f"session {key}"


_OF_ROWS = {"RowShareLock", "RowExclusiveLock", "IX", "IU"}
"""Modes of a table lock, of either engine, under which rows are locked one by one."""
_OF_ALL_ROWS = {
    *("ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock"),
    *("SIX", "UIX", "X", "U", "BU"),
}


@dataclass(frozen=True)
class Activity:
    sessions: tuple[Session, ...]
    """Those that use the queues, those that wait for a lock or block others, and all others that
    were active in the database."""

    @cached_property
    def by_key(self) -> Mapping[SessionKey, Session]:
        """With blockers that have disconnected meanwhile, of which only the key is known."""
        seen = {session.key: session for session in self.sessions}
        missing = [key for s in self.sessions for key in s.blocked_by if key not in seen]
        return seen | {key: Session(key) for key in missing}

    @cached_property
    def relevant_sessions(self) -> tuple[Session, ...]:
        """Those that use the queues and all that these block or wait for, directly or not; the
        longest transaction first."""
        bound: defaultdict[SessionKey, set[SessionKey]] = defaultdict(set)
        for session in self.sessions:
            for other in session.blocked_by:
                bound[session.key].add(other)
                bound[other].add(session.key)
        left = [session.key for session in self.sessions if session.queues]
        found = set(left)
        while left:
            more = bound[left.pop()] - found
            found |= more
            left += more
        seen = (session for key, session in self.by_key.items() if key in found)
        return tuple(sorted(seen, key=lambda session: -(session.transaction_seconds or 0.0)))

    def without_readers(self, application: str) -> "Activity":
        """Without the sessions of this application that only read, and neither wait nor block
        others: they show how a console looks at the database, not what its clients wait for."""
        bound = {key for session in self.sessions for key in session.blocked_by}
        return Activity(
            tuple(
                session
                for session in self.sessions
                if session.application != application
                or session.has_locked_rows
                or session.blocked_by
                or session.key in bound
            )
        )

    def held(self, session: Session, queue: Queue, objects: Objects) -> tuple[Lock, ...]:
        """Its locks on the queue's tables in which it holds rows; none for a session that itself
        waits at the queue, since only the root of the waits blocks others."""
        locks = writing(session, queue, objects)
        holds = session.has_locked_rows or any(lock.mode in _OF_ALL_ROWS for lock in locks)
        return locks if holds and not self._waits(session, queue, objects) else ()

    def _waits(self, session: Session, queue: Queue, objects: Objects) -> bool:
        """Whether it waits for a lock of the queue, or for a session that writes in it."""
        here = (queue.schema, queue.name)
        if any(not lock.granted and (lock.schema, lock.queue) == here for lock in session.locks):
            return True
        return any(writing(self.by_key[key], queue, objects) for key in session.blocked_by)

    @cached_property
    def trees(self) -> tuple[Node[SessionKey], ...]:
        """Blockers above their waiters, the longest wait first."""
        waiting = sorted(self.relevant_sessions, key=lambda s: -(s.wait_seconds or 0.0))
        return wait_graph({session.key: session.blocked_by for session in waiting})

    @property
    def waiting(self) -> int:
        return sum(1 for session in self.relevant_sessions if session.blocked_by)


def writing(session: Session, queue: Queue, objects: Objects) -> tuple[Lock, ...]:
    """Its locks on the queue's tables under which rows can be locked."""
    tables = {row.name for row in objects.rows if row.kind in {"table", "queue"}}
    return tuple(
        lock
        for lock in session.locks
        if lock.granted
        and (lock.schema, lock.queue) == (queue.schema, queue.name)
        and lock.mode in _OF_ROWS | _OF_ALL_ROWS
        and lock.object in tables
    )


def find_objects(database: Database, queues: Sequence[Queue]) -> Objects:
    """Find what belongs to the queues, in the server's catalog."""
    product = database.product
    names = [(queue, name) for queue in queues for name in object_names.lockable(product, queue)]
    if not names:
        return Objects(tuple(queues))
    with database.transaction("read the queues' objects", read_only=True) as connection:
        limit_transaction(connection, database, SAMPLE_TIMEOUT_SECONDS)
        rows = sql.rows(
            connection,
            ObjectRow,
            "activity.objects",
            schemas=product.array([queue.schema for queue, _ in names]),
            queues=product.array([queue.name for queue, _ in names]),
            names=product.array([name for _, name in names]),
        )
    functions = (name for queue in queues for name in object_names.of(product, queue))
    return Objects(tuple(queues), tuple(rows), frozenset(functions))


def sample_activity(database: Database, objects: Objects) -> Activity:
    """Read the sessions. ConsoleError: TooSlowError after SAMPLE_TIMEOUT_SECONDS."""
    product = database.product
    with database.transaction("read the sessions", read_only=True) as connection:
        limit_transaction(connection, database, SAMPLE_TIMEOUT_SECONDS)
        rows = sql.rows(
            connection,
            SessionRow,
            "activity.sessions",
            relations=product.array(objects.ids(advisory=False)),
            advisory_locks=product.array(objects.ids(advisory=True)),
        )
    return Activity(tuple(_session(row, objects, product.name) for row in rows))


def _session(row: SessionRow, objects: Objects, engine: str) -> Session:
    key = row.session_id if row.session_id is not None else row.prepared_transaction
    if key is None:
        raise TypeError("a session has neither an id nor a name")
    locks = _locks(row, objects)
    awaited = [lock.object for lock in locks if not lock.granted]
    return Session(
        key=key,
        user=row.user_name,
        application=row.application_name,
        client=row.client_address,
        wait_kind=row.wait_kind or wait_kind_of(engine, row.wait),
        waits_for=_waits_for(row, awaited[0] if awaited else row.awaited_object),
        # Without a kind the session is hidden from this login, and its statement is a notice.
        query=masked(row.query, objects.names) if row.query and row.kind else None,
        blocked_by=tuple(dict.fromkeys(document(row.blocked_by))),
        locks=locks,
        has_locked_rows=bool(row.has_locked_rows),
        **{name: getattr(row, name) for name in _COPIED},
    )


_COPIED = {one.name for one in fields(SessionRow)} & {one.name for one in fields(Session)}
_COPIED -= {"wait_kind", "query", "blocked_by", "locks", "has_locked_rows"}


def _locks(row: SessionRow, objects: Objects) -> tuple[Lock, ...]:
    """Without locks on indexes that come with a lock on their table."""
    locks = [
        Lock(it.schema, it.queue, _name(it), lock, mode, granted)
        for id_, lock, mode, granted in document(row.locks)
        for it in objects.by_id.get((lock == _ADVISORY, id_), ())
        if it.kind != "index" or not granted
    ]
    return tuple(dict.fromkeys(locks))


def _name(it: ObjectRow) -> str:
    return f"{it.name} of {it.queue}" if it.kind == _ADVISORY else it.name


def _waits_for(row: SessionRow, awaited: str | None) -> str | None:
    if row.awaited_lock is None:
        return None
    parts = (row.awaited_mode, "on", row.awaited_lock, awaited)
    return " ".join(part for part in parts if part)


def document(value: Any) -> list[Any]:
    """A JSON array; an engine without a type for JSON returns its text."""
    found: list[Any] = json.loads(value) if isinstance(value, str) else value
    return found or []
