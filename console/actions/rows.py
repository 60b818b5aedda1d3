"""The messages of an action: selected in one order, by key, up to the cut-off; then locked by these
keys and acted on, one batch a transaction.

The SQL is `queries/<engine>/actions.sql`. A batch locks the rows that are unchanged since they were
selected, skips locked ones, and acts on exactly these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from console import sql
from console.actions.selected import SelectedError
from console.catalog import Kind, Queue, in_hand
from console.designs import Flow, Order
from console.engines import Database, Session
from console.errors import RefusedError, UsageError
from console.monitor.errors import MOST_ERRORS, SECONDS_MOST
from console.monitor.filters import Filters
from console.monitor.message import Message, MessageQuery, ReadBound
from console.monitor.message_count import CountedRow, MessageCount
from console.monitor.messages import check, check_payload, read_task
from console.monitor.scan_query import MessageSource, Search

if TYPE_CHECKING:
    from sqlalchemy import Connection

CHANGED = "popped, changed or in other hands meanwhile"


class Storage(StrEnum):
    TABLE = "table"
    SLOTS = "slots"
    """A ring's: emptied, never deleted."""
    IN_HAND = "in_hand"
    """A ring's messages that are popped and not finished."""


@dataclass(frozen=True)
class CurrentRow:
    """A row as it is now. None: not known."""

    location: str
    id: str | None
    state: str | None
    attempts: int | None
    error_hash: str | None


@dataclass(frozen=True)
class Moved:
    """What a batch's statement did, for the ledger."""

    taken_out: int
    put_in: int


@dataclass(frozen=True)
class LockedRows:
    """Rows of one storage that this transaction has locked, in one state."""

    storage: Storage
    state: str
    locations: tuple[str, ...]
    ids: tuple[str | None, ...]


def storage_of(queue: Queue, message: Message) -> Storage:
    if queue.design.flow is not Flow.NUMBERS:
        return Storage.TABLE
    return Storage.IN_HAND if message.number is None else Storage.SLOTS


def scope(source: MessageSource, storage: Storage, **conditions: str) -> sql.Scope:
    """What the statements of actions.sql are rendered with."""
    queue = source.queue
    plain = queue.scope(source.product)
    if storage is Storage.IN_HAND:
        plain = in_hand(queue, plain)
    options = {
        **plain.options,
        "payload": source.payload or "text",
        "storage": storage.value,
        "own_operators": source.own_operators,
        **conditions,
    }
    return sql.Scope({**plain.values, **source.key_values}, options, plain.roles)


def lock_rows(
    connection: Connection, source: MessageSource, chosen: Sequence[Message]
) -> tuple[list[LockedRows], int]:
    """Lock the rows that are unchanged since they were chosen; and the number of the others.

    Waits for no lock. Grouped by storage and state, each in the order of `chosen`.
    """
    held: list[LockedRows] = []
    skipped = len(chosen)
    for storage, messages in by_storage(source.queue, chosen):
        keys = {key_of(source.queue, storage, message): message for message in messages}
        hashed = any(message.error_hash is not None for message in messages)
        rows = rows_of(connection, source, storage, messages, hashed="yes" if hashed else "no")
        by_id = {message.id: message for message in messages}
        order = {message.id: at for at, message in enumerate(messages)}
        same: dict[str, list[CurrentRow]] = defaultdict(list)
        for row in rows:
            name = row.location if row.id is None else row.id
            message = by_id.get(name) or keys.get(name)
            if message is not None and _is_still(row, message):
                same[message.state].append(row)
                skipped -= 1
        for state, some in same.items():
            some.sort(key=lambda row: order.get(row.id, 0))
            locations, ids = tuple(row.location for row in some), tuple(row.id for row in some)
            held.append(LockedRows(storage, state, locations, ids))
    return held, skipped


def rows_of(
    connection: Connection,
    source: MessageSource,
    storage: Storage,
    messages: Sequence[Message],
    *,
    lock: str = "yes",
    hashed: str = "no",
) -> list[CurrentRow]:
    """The existing rows of these messages of one storage, in no order."""
    return sql.rows(
        connection,
        CurrentRow,
        source.statement_name("lock_rows"),
        scope(source, storage, lock=lock, hashed=hashed),
        keys=source.product.array([key_of(source.queue, storage, message) for message in messages]),
        due=source.product.array([due_of(message) for message in messages]),
    )


def _is_still(row: CurrentRow, message: Message) -> bool:
    """Attempts rise with every pop: with the state they tell one claim or failure from the next.

    `error_hash` is set where the error's text decided that it was chosen.
    """
    return (
        row.state in {None, message.state}
        and row.attempts in {None, message.attempts}
        and message.error_hash in {None, row.error_hash}
    )


@dataclass(frozen=True)
class TableOwner:
    name: str
    may_be: bool
    """Whether this login may act as the owner, and is not the owner."""
    may_gain: bool
    """Whether this login is a superuser, and the owner is none."""


@contextmanager
def run_others_code(
    connection: Connection, queue: Queue, *, as_owner: bool = True
) -> Iterator[None]:
    """For a statement that writes into an adopted table, and so runs its triggers and functions:
    under the search path declared for them, as the table's owner where the login may.

    RefusedError for a superuser where it has to be `as_owner=False`, in a table of somebody else.
    """
    if queue.kind is not Kind.ADOPTED or not sql.has(connection, "actions.owner"):
        yield
        return
    owner = sql.row(connection, TableOwner, "actions.owner", queue.scope(connection))
    if owner.may_gain and not as_owner:
        raise RefusedError(
            f"Nothing was moved: {queue.name!r} is a table of {owner.name}.",
            why=f"its triggers would have a superuser's rights, and {owner.name} is none",
            next_step="Move the messages as a login that is no superuser, with rights on both.",
        )
    from console.engines.owner_function import run_as  # noqa: PLC0415  # imports a driver

    with run_as(connection, owner.name) if owner.may_be and as_owner else nullcontext():
        yield
    sql.run(connection, "actions.reset_path")


def by_storage(
    queue: Queue, chosen: Sequence[Message]
) -> Iterator[tuple[Storage, Sequence[Message]]]:
    found: Mapping[Storage, list[Message]] = defaultdict(list)
    for message in chosen:
        found[storage_of(queue, message)].append(message)
    yield from found.items()


def key_of(queue: Queue, storage: Storage, message: Message) -> str:
    """What `lock_rows` finds the message by: a ctid (heap), a number (ring), else its id."""
    if storage is Storage.SLOTS:
        return str(message.number)
    if queue.design.order is Order.NONE and message.key:
        return message.key.split(",", 2)[2]
    return message.id or ""


def due_of(message: Message) -> str:
    """The due time in the key of a queue by due time, as the server wrote it."""
    parts = message.key.split(",", 2)
    return parts[1] if len(parts) == 3 else ""


class ErrorSelection:
    """The errors that a plan has found in an error group."""

    complete = True

    def __init__(self, targets: Sequence[SelectedError]) -> None:
        self._left = iter(targets)

    def next(self, most: int) -> list[Message]:
        return [target.message for target in islice(self._left, most)]


@dataclass(frozen=True)
class SelectionCriteria:
    """How an action's messages are selected: the same for its plan and its run."""

    database: Database
    session: Session
    filters: Filters
    states: Sequence[str]
    cutoff: datetime


class QueueSelection:
    """The matching messages of a queue, oldest first. Not thread-safe."""

    def __init__(self, source: MessageSource, criteria: SelectionCriteria) -> None:
        """UsageError for filters that do not apply to one of the states."""
        filters, states = criteria.filters, criteria.states
        if filters.keep_newest is not None and len(states) > 1:
            raise UsageError(
                "keep-newest needs one state.",
                why=f"They are taken one state after another: {', '.join(states)}.",
                next_step="Say which with --filter state=...",
            )
        if filters.keep_newest is not None and len(filters.ids) > 1:
            raise UsageError(
                "keep-newest does not go with several ids.",
                why="They are taken one id after another, whatever their ages.",
            )
        self._criteria = criteria
        self._source = source
        bare = replace(filters, limit=None, keep_newest=None)
        for state in states:
            check(source.queue, replace(bare, state=state))
        each = source.normalize(bare).each
        self._left = [replace(one, state=state) for state in states for one in each]
        """The scans that remain: one for each state and id."""
        check_payload(source, bare)
        self._after: str | None = None
        self._seen: set[str | None] = set()
        self._extra = 0
        """Without an order to continue in: rows to read beyond those seen."""
        self.complete = True
        self._bounded = filters.error_group is not None
        self._bound = ReadBound(MOST_ERRORS, SECONDS_MOST)

    def next(self, most: int) -> list[Message]:
        while self._left and self._within_bounds():
            limit = most + self._extra
            query = MessageQuery(
                self._left[0], limit, oldest_first=True, moment=self._criteria.cutoff
            )
            search = Search(self._source, query, self._after)
            self._run(search)
            self._bound.rows += search.read
            messages = self._new(search.messages)
            if search.next is not None:
                self._after = search.next.text
            elif search.complete:
                self._next_scan()
            elif messages:
                # No order to continue in: from the beginning, as long as new ones are found.
                messages = messages[:most]
                self._seen.update(message.id for message in messages)
            elif len(search.messages) >= limit:
                self._extra += limit
            else:
                self._next_scan()
            if messages:
                return messages
        return []

    @property
    def countable(self) -> bool:
        """Whether those after the last one returned can be counted without being read: they are in
        an order, and nothing but the server decides about each."""
        filters = self._criteria.filters
        bounded = filters.limit is not None or filters.keep_newest is not None
        chosen = bool(filters.ids) or filters.error_group is not None
        return not (bounded or chosen or self._seen or self._extra)

    def count_rest(self) -> Iterator[tuple[str, CountedRow]]:
        """By state, a chunk at a time."""
        while self._left:
            filters, moment = self._left[0], self._criteria.cutoff
            query = MessageQuery(filters, 1, oldest_first=True, moment=moment)
            count = MessageCount(self._source, query, self._after)
            for counted in count.chunks(self._criteria.session, self._criteria.database):
                yield filters.state or "", counted
            self._next_scan()

    def _within_bounds(self) -> bool:
        """Reading texts to find an error group has the limits of the verb `errors`."""
        self.complete = not self._bounded or self._bound.may_continue(0)
        return self.complete

    def _new(self, messages: Sequence[Message]) -> list[Message]:
        if any(message.id is None and not message.key for message in messages):
            raise UsageError(
                f"Messages of {self._source.queue.name!r} cannot be told apart.",
                why="It was adopted without a column for the role id.",
                next_step="Forget it, and adopt it with --map id=COLUMN.",
            )
        return [message for message in messages if message.id not in self._seen]

    def _next_scan(self) -> None:
        self._left.pop(0)
        self._after = None
        self._seen.clear()
        self._extra = 0

    def _run(self, search: Search) -> None:
        while not search.finished:
            with self._criteria.session.transaction(read_task(self._source.queue)) as connection:
                self._source.begin_read(connection, self._criteria.database)
                search.step(connection)


class Selection(Protocol):
    """The messages of an action, in the order in which it takes them."""

    @property
    def complete(self) -> bool:
        """False: the search was cut short, and there may be more."""
        ...

    def next(self, most: int) -> list[Message]:
        """At most `most` further messages; empty at the end."""
        ...
