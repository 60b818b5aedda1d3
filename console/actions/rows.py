"""The messages of an action: selected in one order, by key, up to the cut-off; then locked and
acted on, one batch a transaction.

The SQL is `queries/<engine>/actions.sql`. A batch locks the rows that are unchanged since they were
selected, skips locked ones, and acts on exactly these. Where one statement selects and locks
(`NextMessages`), nothing is read; else rows are locked by the keys that were selected (`Chosen`, or
messages that were read).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias, cast

from console import sql
from console.actions.selected import SelectedError
from console.catalog import Kind, Queue, in_hand
from console.designs import Flow, Order
from console.engines import Database, Product, Session
from console.errors import RefusedError, UsageError
from console.monitor.errors import MOST_ERRORS, SECONDS_MOST
from console.monitor.filters import Filters
from console.monitor.message import Message, MessageQuery, ReadBound
from console.monitor.message import key_of as message_key
from console.monitor.message_count import (
    ROWS_AT_ONCE,
    ChunkRow,
    CountedRow,
    Group,
    MessageCount,
    last_row,
    read_chunk,
)
from console.monitor.messages import TRANSACTION_SECONDS, check, check_payload, read_task
from console.monitor.scan_query import LOCK_NEXT, READ_AT_ONCE, MessageSource, Search, locks_next
from console.monitor.scans import EVERYTHING, By, Grouping, Scan, ScanKey, read_key, scans_for

if TYPE_CHECKING:
    from sqlalchemy import Connection

CHANGED = "popped, changed or in other hands meanwhile"
_ROWS_OF_A_PAGE = 20
"""At the least, unless they are large."""


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
    count: int
    locations: tuple[str, ...] | str
    """A text: an array that only the server reads."""
    ids: tuple[str | None, ...] = ()
    """Of rows that were read."""

    def bound(self, product: Product) -> object:
        """The locations as a statement binds them."""
        text = isinstance(self.locations, str)
        return self.locations if text else product.array(self.locations)


@dataclass(frozen=True)
class ChosenRow:
    """The last row considered, and the chosen ones of one group. The arrays are texts that only the
    server reads."""

    position: int
    key_time: str | None
    key_id: str
    label: str | None
    side: int | None
    matching: int
    keys: str | None
    marks: str | None
    due: str | None

    def of(self, storage: Storage, state: str, scan: str) -> ChosenGroup:
        arrays = {name: getattr(self, name) for name in ("keys", "marks", "due")}
        return ChosenGroup(
            storage, state, scan, Group(self.label, self.side), self.matching, arrays
        )


@dataclass(frozen=True)
class ChosenGroup:
    """Messages of one storage, in one state, that were chosen and not read."""

    storage: Storage
    state: str
    scan: str
    """Empty: archived ones."""
    group: Group
    count: int
    arrays: Mapping[str, str | None]
    """Their keys, marks (ids with attempts) and due times: texts that only the server reads."""


@dataclass(frozen=True)
class _UnpackedRow:
    key: str
    id: str | None
    attempts: int | None
    due: str | None


@dataclass(frozen=True)
class Chosen:
    """The messages of a batch, chosen and not read."""

    groups: tuple[ChosenGroup, ...]

    def __len__(self) -> int:
        return sum(group.count for group in self.groups)

    def merged(self) -> Chosen:
        """The same with one group for all of a scan, with the arrays of its groups: claims of a
        thousand sessions are not locked one by one."""
        of_scan: dict[tuple[Storage, str, str], list[ChosenGroup]] = defaultdict(list)
        for group in self.groups:
            of_scan[group.storage, group.state, group.scan].append(group)
        return Chosen(tuple(map(_merged, of_scan.values())))

    def read(self, connection: Connection) -> list[Message]:
        """What a batch must know of each."""
        found = []
        for of in self.groups:
            for row in sql.rows(connection, _UnpackedRow, "actions.unpack_chosen", **of.arrays):
                number = int(row.key) if of.storage is Storage.SLOTS else None
                key = ScanKey(of.scan, row.due or "", row.key).text if of.scan else row.key
                found.append(Message(key, row.id, of.state, attempts=row.attempts, number=number))
        return found


def _merged(groups: Sequence[ChosenGroup]) -> ChosenGroup:
    first = groups[0]
    if len(groups) == 1:
        return first
    arrays = {name: _joined([of.arrays[name] for of in groups]) for name in first.arrays}
    return replace(first, count=sum(of.count for of in groups), arrays=arrays)


def _joined(texts: Sequence[str | None]) -> str | None:
    """One array of several, none of which is empty: `{1,2}` and `{3}`, or JSON's `[1,2]` and
    `[3]`."""
    known = [text for text in texts if text is not None]
    if not known:
        return None
    return known[0][0] + ",".join(text[1:-1] for text in known) + known[0][-1]


@dataclass(frozen=True)
class LockedRow:
    """The last row considered, and the messages before it: those that match and, of these, those
    that are locked."""

    position: int
    key_time: str | None
    key_id: str
    matching: int
    locked: int
    locations: str


@dataclass(frozen=True)
class NextMessages:
    """The next messages of a selection, from a place on: they are chosen by the statement that
    locks them, in the transaction of their batch. Without those of a grouping that are at its
    limit, or only those of some groups."""

    selection: Selection
    place: object
    most: int
    grouping: Grouping
    limit: object
    groups: Sequence[Group] = ()
    until: ScanKey | None = None
    """The last one that was considered when the groups were chosen."""
    behind: object = None
    """The place behind that one."""

    def lock(self, connection: Connection) -> tuple[list[LockedRows], int]:
        """As `lock`: each time the same messages, unless they have changed."""
        self.selection.return_to(self.place)
        return self.selection.lock(connection, self)


Batch: TypeAlias = "Sequence[Message] | Chosen | NextMessages"


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
        "next": "no",
        **source.key_conditions,
        **conditions,
    }
    return sql.Scope({**plain.values, **source.key_values}, options, plain.roles)


def lock(
    connection: Connection, source: MessageSource, chosen: Batch
) -> tuple[list[LockedRows], int]:
    """Lock the rows that are unchanged since they were chosen; and the number of the others.

    Waits for no lock. Grouped by storage and state, each in the order of `chosen`.
    """
    if isinstance(chosen, NextMessages):
        return chosen.lock(connection)
    if not isinstance(chosen, Chosen):
        return lock_rows(connection, source, chosen)
    held = []
    for of in chosen.groups:
        name = source.statement_name("lock_chosen")
        values = {**of.arrays, "state": of.state}
        within = scope(source, of.storage, lock="yes")
        row = sql.row(connection, _LockedChosen, name, within, **values)
        held.append(LockedRows(of.storage, of.state, row.locked, row.locations))
    return held, len(chosen) - sum(rows.count for rows in held)


@dataclass(frozen=True)
class _LockedChosen:
    locked: int
    locations: str


def lock_rows(
    connection: Connection, source: MessageSource, chosen: Sequence[Message]
) -> tuple[list[LockedRows], int]:
    """The same of messages that were read."""
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
            held.append(LockedRows(storage, state, len(some), locations, ids))
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


class Selection:
    """The messages of an action, in the order in which it takes them. Not thread-safe."""

    complete = True
    """False: the search was cut short, and there may be more."""
    countable = False
    """Whether they can be counted without being read."""
    choosable = False
    """Whether a batch of them can be chosen and locked without being read."""
    lockable = False
    """Whether one statement does both."""
    place: object = None
    """Behind those that were returned or locked."""
    finished = False
    """Whether there are no more, as far as is known."""

    def next(self, most: int) -> list[Message]:
        """At most `most` further messages; empty at the end."""
        raise NotImplementedError

    def count(
        self, grouping: Grouping, limit: object, most: int | None = None, *, behind: bool = False
    ) -> Iterator[list[CountedRow]]:
        """The first `most` of them, a chunk at a time; whatever was returned already, or only those
        `behind` its place."""
        raise NotImplementedError

    def choose(self, most: int, grouping: Grouping, limit: object) -> Chosen | None:
        """At most `most` further messages, without reading them; None at the end."""
        raise NotImplementedError

    def groups(
        self, most: int, grouping: Grouping, limit: object
    ) -> tuple[list[Group], ScanKey | None, object]:
        """The groups of at most `most` further messages, the last row considered, and the place
        from which one chunk has them; none at the end."""
        raise NotImplementedError

    def lock(self, connection: Connection, wanted: NextMessages) -> tuple[list[LockedRows], int]:
        """Lock further messages, as the function `lock` does."""
        raise NotImplementedError

    def return_to(self, place: object) -> None:
        """Go on from there."""
        raise NotImplementedError


class ErrorSelection(Selection):
    """The errors that a plan has found in an error group."""

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


def require_one_order(filters: Filters) -> None:
    """UsageError where the newest are to be kept of messages that are not taken oldest first."""
    if filters.keep_newest is not None and len(filters.ids) > 1:
        raise UsageError(
            "keep-newest does not go with several ids.",
            why="They are taken one id after another, whatever their ages.",
        )


class QueueSelection(Selection):
    """The matching messages of a queue, oldest first."""

    def __init__(self, source: MessageSource, criteria: SelectionCriteria) -> None:
        """UsageError for filters that do not apply to one of the states."""
        filters, states = criteria.filters, criteria.states
        if filters.keep_newest is not None and len(states) > 1:
            raise UsageError(
                "keep-newest needs one state.",
                why=f"They are taken one state after another: {', '.join(states)}.",
                next_step="Say which with --filter state=...",
            )
        require_one_order(filters)
        if filters.keep_newest is not None and (why := source.why_not_by_age(states[0])):
            raise UsageError(
                f"keep-newest does not apply to {source.queue.name!r}.",
                why=why,
                next_step="Select by age instead: --filter older=1h",
            )
        self._criteria = criteria
        self._source = source
        self.state = states[0] if len(states) == 1 else ""
        """The only one of them; empty: there are several."""
        bare = replace(filters, limit=None, keep_newest=None)
        for state in states:
            check(source.queue, replace(bare, state=state))
        each = source.normalize(bare).each
        self._left = [replace(one, state=state) for state in states for one in each]
        """The scans that remain: one for each state and id."""
        self._all = tuple(self._left)
        check_payload(source, bare)
        self._after: ScanKey | None = None
        self._seen: set[str | None] = set()
        self._extra = 0
        """Without an order to continue in: rows to read beyond those seen."""
        self._holes = 0
        """Chunks in a row that had none of them."""
        self.complete = True
        self._bounded = filters.error_group is not None
        self._bound = ReadBound(MOST_ERRORS, SECONDS_MOST)

    def next(self, most: int) -> list[Message]:
        while self._left and self._within_bounds():
            limit = most + self._extra
            search = Search(self._source, self._query(self._left[0], limit), self._after_text)
            self._run(search)
            self._bound.rows += search.read
            messages = self._new(search.messages)
            if search.next is not None:
                self._after = search.next
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
    def _after_text(self) -> str | None:
        return None if self._after is None else self._after.text

    @property
    def countable(self) -> bool:  # type: ignore[override]
        """They are in an order, as far as is known, and the server alone decides about each."""
        filters = self._criteria.filters
        named = bool(filters.ids) or filters.error_group is not None
        # Where a heap's rows have no locations, as in SQL Server, nothing shows where to go on.
        heap = self._source.queue.design.order is Order.NONE
        unordered = heap and not locks_next(self._source.product)
        return not (named or unordered or self._seen or self._extra)

    @property
    def choosable(self) -> bool:  # type: ignore[override]
        queue = self._source.queue
        return self.countable and queue.kind is Kind.INSTALLED and not queue.design.waits_itself

    @property
    def lockable(self) -> bool:  # type: ignore[override]
        return self.choosable and locks_next(self._source.product)

    @property
    def finished(self) -> bool:  # type: ignore[override]
        return not self._left

    @property
    def place(self) -> object:  # type: ignore[override]
        return tuple(self._left), self._after, self._holes

    def return_to(self, place: object) -> None:
        left, self._after, self._holes = cast(
            "tuple[tuple[Filters, ...], ScanKey | None, int]", place
        )
        self._left = list(left)

    def count(
        self, grouping: Grouping, limit: object, most: int | None = None, *, behind: bool = False
    ) -> Iterator[list[CountedRow]]:
        session, database = self._criteria.session, self._criteria.database
        left = EVERYTHING if most is None else most
        after = self._after_text if behind else None
        for filters in [*self._left] if behind else self._all:
            query = replace(self._query(filters, 1), grouping=grouping, group_limit=limit)
            counts, after = MessageCount(self._source, query, left, after), None
            for counted in counts.chunks(session, database):
                left -= sum(part.matching for part in counted)
                yield counted

    def choose(self, most: int, grouping: Grouping, limit: object) -> Chosen | None:
        while self._left:
            session, source = self._criteria.session, self._source
            with session.transaction(read_task(source.queue)) as connection:
                source.begin_read(connection, self._criteria.database)
                query = self._grouped(most, grouping, limit)
                scan, rows = self._chunk(connection, ChosenRow, "chosen", query)
            if any(row.matching for row in rows):
                storage = self._storage_of(scan)
                found = (row.of(storage, scan.state, scan.name) for row in rows if row.matching)
                return Chosen(tuple(found))
        return None

    def groups(
        self, most: int, grouping: Grouping, limit: object
    ) -> tuple[list[Group], ScanKey | None, object]:
        session, source = self._criteria.session, self._source
        room = None
        while self._left:
            place = self.place
            with session.transaction(read_task(source.queue)) as connection:
                source.begin_read(connection, self._criteria.database)
                query = self._grouped(most, grouping, limit)
                scan, rows = self._chunk(connection, CountedRow, "counted", query, room)
            if (found := sum(row.matching for row in rows)) > most:
                self.return_to(place)
                room = most
            elif found:
                groups = [row.group for row in rows if row.matching]
                return groups, message_key(scan, last_row(rows)), place
        return [], None, self.place

    def lock(self, connection: Connection, wanted: NextMessages) -> tuple[list[LockedRows], int]:
        begun = time.monotonic()
        groups = tuple(group.text for group in wanted.groups)
        room = None if wanted.until is None else ROWS_AT_ONCE
        while self._left and time.monotonic() - begun < TRANSACTION_SECONDS:
            query = self._grouped(wanted.most, wanted.grouping, wanted.limit)
            query = replace(query, groups=groups, until=wanted.until)
            scan, rows = self._chunk(connection, LockedRow, LOCK_NEXT, query, room)
            full = bool(rows) and last_row(rows).position >= ROWS_AT_ONCE
            if wanted.until is not None and not full:
                self.return_to(wanted.behind)
            for row in rows:
                if row.matching:
                    storage = self._storage_of(scan)
                    held = LockedRows(storage, scan.state, row.locked, row.locations)
                    return [held] if row.locked else [], row.matching - row.locked
            if wanted.until is not None:
                break
        return [], 0

    def _storage_of(self, scan: Scan) -> Storage:
        if self._source.queue.design.flow is not Flow.NUMBERS:
            return Storage.TABLE
        return Storage.SLOTS if scan.of_slots else Storage.IN_HAND

    def _chunk(
        self,
        connection: Connection,
        row_type: type[ChunkRow],
        last: str,
        query: MessageQuery,
        room: int | None = None,
    ) -> tuple[Scan, list[ChunkRow]]:
        """The next chunk; without a size (`room`), larger the more of those before it had none."""
        filters, most = query.filters, query.limit
        all_scans = scans_for(self._source.queue, filters)
        scans = tuple(scan for scan in all_scans if scan.state not in self._source.hidden)
        key = self._after
        index = 0 if key is None else read_key(key.text, scans)[0]
        scan = scans[index]
        if room is not None:
            most = room
        else:
            room = READ_AT_ONCE if filters.narrowing else most
            if scan.by is By.LOCATION:
                room = 1 + room // _ROWS_OF_A_PAGE
            if not filters.reads_values:
                room <<= min(self._holes, 10)
            if last == "counted":
                most = room
        request = replace(query.scan_request(scan), n=most, read_limit=room, sizes=False)
        rows, key = read_chunk(connection, self._source, request, key, row_type, last)
        found = any(row.matching for row in rows)
        self._holes = 0 if found or key is None else self._holes + 1
        if key is None and index + 1 < len(scans):
            key = ScanKey(scans[index + 1].name, dated=scans[index + 1].dated)
        if key is None:
            self._next_scan()
        else:
            self._after = key
        return scan, rows

    def _grouped(self, most: int, grouping: Grouping, limit: object) -> MessageQuery:
        """For the first of the scans that remain."""
        query = self._query(self._left[0], most)
        return replace(query, grouping=grouping, group_limit=limit)

    def _query(self, filters: Filters, most: int) -> MessageQuery:
        return MessageQuery(filters, most, oldest_first=True, moment=self._criteria.cutoff)

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
        self._holes = 0

    def _run(self, search: Search) -> None:
        while not search.finished:
            with self._criteria.session.transaction(read_task(self._source.queue)) as connection:
                self._source.begin_read(connection, self._criteria.database)
                search.step(connection)
