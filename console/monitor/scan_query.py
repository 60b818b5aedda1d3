"""Statements over a scan of a queue's messages, and the search through its scans.

A statement is composed of a design's `messages`, `chunk` of common.sql and a last step, so that a
DBA sees exactly the conditions that apply; every value is bound. A search goes on until a page is
full, the scans end, or a bound is reached.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from console import sql
from console.catalog import Kind, Queue, in_hand, relations, require_rows
from console.engines import Database, Product, product_of
from console.errors import RefusedError, UsageError
from console.monitor.filters import MOST_PAYLOAD_FILTERS, Filters
from console.monitor.message import Message, MessageQuery, MessageRow, ReadBound, key_of
from console.monitor.rates import CLOCKS_DIFFER_SECONDS
from console.monitor.sample_queries import limit_transaction
from console.monitor.scans import (
    SINCE,
    By,
    Extent,
    Scan,
    ScanKey,
    ScanRequest,
    beyond,
    next_chunk,
    read_key,
    scans_for,
)
from console.monitor.wording import group_key

if TYPE_CHECKING:
    from sqlalchemy import Connection, TextClause

Row = TypeVar("Row")

LOCK_NEXT = "lock_next"
READ_MOST = 50_000
"""Messages that one search reads at most."""
READ_AT_ONCE = 2_000
PAGES_MOST = 2_000
"""Pages of a table without an index that one search reads at most."""
PAGES_AT_ONCE = 32
SECONDS_MOST = 5.0
"""After this time a search starts no further statement."""
STATEMENT_SECONDS = 5.0
_INTEGER_BITS = {
    **dict.fromkeys(("tinyint", "smallint"), 15),
    **dict.fromkeys(("int", "integer"), 31),
    **dict.fromkeys(("bigint", "int8"), 63),
}


@dataclass(frozen=True)
class KeyType:
    """The type of the key of a table, a domain's own, and the schema of the operators that sort it:
    those of an extension's type are in its schema."""

    schema: str
    name: str
    operators: str | None

    @classmethod
    def of(cls, connection: Connection, queue: Queue) -> KeyType:
        """RefusedError where nothing sorts it."""
        column = queue.roles.get("id")
        if column is None:
            return _BUILT_IN
        found = cls.read(connection, queue, column)
        if found.operators is None:
            raise RefusedError(
                f"The messages of {queue.name!r} cannot be put in order.",
                why=f"Rows cannot be sorted and chosen by the type of {column}, {found.name}.",
                next_step="Forget the queue, and adopt it with another column for the role id, or "
                "without one.",
            )
        return found

    @classmethod
    def read(cls, connection: Connection, queue: Queue, column: str) -> KeyType:
        if not sql.has(connection, "catalog.key_type"):
            return _BUILT_IN
        scope = queue.scope(connection)
        rows = sql.rows(connection, cls, "catalog.key_type", scope, column=column)
        return rows[0] if rows else _BUILT_IN


_BUILT_IN = KeyType("pg_catalog", "text", "pg_catalog")
_TIME = KeyType("pg_catalog", "timestamptz", "pg_catalog")


@dataclass(frozen=True)
class MessageSource:
    """A queue whose messages are read, with the types of its ids and payloads."""

    product: Product
    queue: Queue
    payload: str
    """text, json or bytes; empty: it has no payload column."""
    id_type: str
    hidden: Mapping[str, str] = field(default_factory=dict)
    """State -> why the server hides its messages from this login."""
    key_type: KeyType = _BUILT_IN
    due_type: KeyType = _TIME
    """Of the due times: a date may be later than any timestamptz."""
    numbered: bool = True
    """Whether its keys, where they are its order, are numbers."""
    narrow: bool = False
    """Whether its keys are texts of a type that gives way to that of texts as they are sent."""

    @classmethod
    def of(cls, connection: Connection, queue: Queue) -> MessageSource:
        """Queries the server only for adopted tables."""
        product = product_of(connection)
        if queue.kind is Kind.INSTALLED:
            return cls.installed(product, queue)
        columns = relations.columns(connection, queue.schema, queue.table)
        types = {column.name: column.type for column in columns}
        base_types = {column.name: column.base_type for column in columns}
        body = queue.roles.get("payload")
        kind = "" if body is None else _payload_kind(types.get(body, ""), product)
        id_type = types.get(queue.roles.get("id", ""), "")
        key_type = KeyType.of(connection, queue)
        due = queue.roles.get("due_at")
        due_type = KeyType.read(connection, queue, due) if due else _TIME
        base_type = base_types.get(queue.roles.get("id", ""), "")
        numbered, narrow = base_type in product.number_types, base_type in product.narrow_types
        hidden = _hidden(connection, queue)
        return cls(product, queue, kind, id_type, hidden, key_type, due_type, numbered, narrow)

    @classmethod
    def installed(cls, product: Product, queue: Queue) -> MessageSource:
        """Of a queue that the console installed; needs no query."""
        id_type = product.id_types[queue.design.id_type]
        key_type = replace(_BUILT_IN, name=id_type)
        return cls(product, queue, queue.options["payload"], id_type, key_type=key_type)

    @property
    def key_values(self) -> Mapping[str, str]:
        """For the statements that compare keys."""
        key, due = self.key_type, self.due_type
        return {
            "key_schema": key.schema,
            "key_type": key.name,
            "key_operators": key.operators or "",
            "due_schema": due.schema,
            "due_type": due.name,
        }

    @property
    def key_conditions(self) -> Mapping[str, str]:
        """For the same: whether their operators need their schema, and whether they are narrow."""
        own = self.key_type.operators != _BUILT_IN.operators
        return {"own_operators": yes_no(own), "narrow": yes_no(self.narrow)}

    def rereads_times(self, request: ScanRequest) -> bool:
        """Whether each chunk of its scan reads all messages of the time where it begins, because
        the index of that time has them in no order of their keys."""
        scan = request.scan
        found_by_id = scan.by_age and scan.state != "ready" and not request.down
        return found_by_id and not self.product.time_indexes_have_keys

    def why_not_by_age(self, state: str) -> str:
        """Why the messages in that state are not taken from the oldest to the newest; empty: they
        are."""
        for scan in scans_for(self.queue, Filters(state=state)):
            if scan.by is By.LOCATION:
                return "They have no order: a new message takes the place of one that is gone."
            if scan.by is By.TIME and not scan.by_age:
                return "They are in the order of their due times, not of their ages."
            if scan.by is By.ID and scan.dated and not self.numbered:
                return f"They are in the order of their ids, which are no numbers: {self.id_type}."
        return ""

    def statement_name(self, name: str) -> str:
        """Of a statement in the design's file."""
        return f"{self.queue.design.name}.{name}"

    def begin_read(self, connection: Connection, database: Database) -> None:
        """First in a transaction that reads messages."""
        limit_transaction(connection, database, STATEMENT_SECONDS)
        self.wait_for_relay(connection)

    def wait_for_relay(self, connection: Connection) -> None:
        """First in any transaction: at a ring it waits while a relay runs; for a library's table it
        sets the search path. RefusedError if the server hides all rows."""
        self.check_visible(None)
        name = self.statement_name("wait_for_relay")
        ours = self.queue.kind is Kind.INSTALLED or self.queue.design.library
        if ours and sql.has(connection, name):
            connection.execute(sql.query(name, connection.dialect, self._scope()))

    def check_visible(self, state: str | None) -> None:
        """RefusedError if the server hides messages of that state (None: all) from this login."""
        require_rows(self.queue)
        of_all = set(self.queue.states) <= self.hidden.keys()
        if of_all or state in self.hidden:
            what = "messages" if of_all else f"{state} messages"
            why = next(iter(self.hidden.values()))
            raise RefusedError(
                f"The {what} of {self.queue.name!r} cannot be seen.",
                why=f"{why[0].upper()}{why[1:]}.",
                next_step="Use a login that owns the table, or one that was granted its rows.",
            )

    def extent(self, connection: Connection) -> Extent:
        return sql.row(connection, Extent, self.statement_name("extent"), self._scope())

    def _scope(self) -> sql.Scope:
        return self.queue.scope(self.product)

    def normalize_id(self, text: str) -> str:
        """The id in the server's form. UsageError if no id can be that text."""
        bits = _INTEGER_BITS.get(self.id_type)
        if bits is not None:
            if _INTEGER.fullmatch(text) and -(2**bits) <= int(text) < 2**bits:
                return str(int(text))
            key = "4711"
        elif self.id_type in _UUIDS:
            try:
                return _UUIDS[self.id_type](str(UUID(text)))
            except ValueError:
                key = "6f1f2a30-3c1e-4f0e-9f43-0c8d7a5b1e52"
        else:
            return text
        raise UsageError(
            f"{text!r} is not a key of the queue {self.queue.name!r}.",
            next_step=f"A key of it looks like {key}: dbq-console messages shows them, as id.",
        )

    def normalize(self, filters: Filters) -> Filters:
        """With the ids in the server's form, each once."""
        return replace(filters, ids=tuple(dict.fromkeys(map(self.normalize_id, filters.ids))))

    def check(self, scan: Scan, key: ScanKey) -> None:
        """UsageError if no message of the scan can have the key."""
        if not key.id:
            return
        if scan.by is By.LOCATION or (scan.by is By.TIME and not self.id_type):
            fits = _LOCATION.fullmatch(key.id)
        elif scan.by in {By.ARRIVAL, By.NUMBER}:
            fits = _INTEGER.fullmatch(key.id)
        else:
            self.normalize_id(key.id)
            return
        if not fits:
            raise UsageError(f"{key.text!r} is not a position in the queue {self.queue.name!r}.")


@dataclass(frozen=True)
class _Hidden:
    state: str
    problem: str


def _hidden(connection: Connection, queue: Queue) -> dict[str, str]:
    name = f"{queue.design.name}.hidden"
    if not sql.has(connection, name):
        return {}
    rows = sql.rows(connection, _Hidden, name, queue.scope(connection))
    return {row.state: row.problem for row in rows}


_UUIDS: Mapping[str, Callable[[str], str]] = {"uuid": str.lower, "uniqueidentifier": str.upper}
"""As each engine writes them."""
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_LOCATION = re.compile(r"\([0-9]{1,10},[0-9]{1,5}\)")


def _payload_kind(column: str, product: Product) -> str:
    """The kind of payload in an adopted table's column, by its type."""
    kinds = {"json": "json", "binary": "bytes", "image": "bytes"}
    for kind in ("text", "bytes", "json"):  # JSON that is kept as text has the type of text
        kinds[product.payload_types[kind].partition("(")[0]] = kind
    return kinds.get(column.partition("(")[0], "text")


def fetch(
    connection: Connection,
    source: MessageSource,
    request: ScanRequest,
    row_type: type[Row],
    last: str,
) -> list[Row]:
    """The rows of one request, through the statement `last` of common.sql."""
    return sql.rows(
        connection, row_type, query(source, request, last), **values_of(source, request)
    )


def query(source: MessageSource, request: ScanRequest, last: str) -> TextClause:
    steps = [("scanned", source.statement_name(request.scan.statement)), ("chunk", "common.chunk")]
    scope = scope_of(source, request)
    if last == LOCK_NEXT:
        steps.append(("chosen", "common.next_chosen"))
        steps.append(("held", source.statement_name("lock_chosen_now")))
        scope = _locking(source.queue, request, scope)
    return sql.piped(steps, f"common.{last}", source.product.dialect, scope)


def _locking(queue: Queue, request: ScanRequest, scope: sql.Scope) -> sql.Scope:
    storage = "slots" if request.scan.of_slots else "table"
    until = yes_no(request.until)
    options = {**scope.options, "storage": storage, "next": "yes", "lock": "yes", "until": until}
    scope = sql.Scope(scope.values, options, scope.roles)
    return in_hand(queue, scope) if request.scan.in_hand else scope


def locks_next(product: Product) -> bool:
    """Whether one statement chooses messages and locks them."""
    return sql.has(product, f"common.{LOCK_NEXT}")


def scope_of(source: MessageSource, request: ScanRequest) -> sql.Scope:
    """The conditions and names for rendering the statements of a request."""
    queue, scan, filters = source.queue, request.scan, request.filters
    scope = (queue.of(scan.subscriber) if scan.subscriber else queue).scope(source.product)
    roles = scan.roles(queue)
    body = request.payload_length is not None
    beside = queue.design.table_suffix != "" and queue.kind is Kind.INSTALLED
    known = source.payload != ""
    start = "exactly" if request.exactly else "same_time" if request.same_time else "after"
    conditions = {
        "scan": scan.condition,
        "sorted": request.sorted,
        "located": yes_no(queue.kind is Kind.INSTALLED and not scan.of_slots),
        "start": "beginning" if request.after is None else start,
        "payload": source.payload or "text",
        "body": yes_no(body and known),
        "with_payload": yes_no(
            known and (body or bool(filters.payload) or (request.sizes and not beside))
        ),
        "by_age": "scan" if scan.by_age else "row",
        "by_cutoff": yes_no(request.moment is not None),
        "by_older": yes_no(filters.older is not None),
        "by_newer": yes_no(filters.newer is not None),
        "by_id": yes_no(bool(filters.ids) and not request.exactly),
        "by_error": yes_no(bool(filters.errors)),
        "hashed": yes_no(filters.error_group is not None),
        "by_claimed_by": yes_no(filters.claimed_by is not None),
        "by_payload": yes_no(bool(filters.payload)),
        "bounded": yes_no(request.n < request.read_limit),
        "grouped": request.grouping.value,
    }
    conditions.update(source.key_conditions)
    values = {
        **scope.values,
        **source.key_values,
        "since": roles.get(SINCE.get(scan.state, ""), ""),
    }
    for number in range(1, MOST_PAYLOAD_FILTERS + 1):
        conditions[f"by_payload_{number}"] = yes_no(number <= len(filters.payload))
    for number, equals in enumerate(filters.payload, 1):
        values[f"payload_path_{number}"] = equals.json_path
    return sql.Scope(values, {**scope.options, **conditions}, roles)


def values_of(source: MessageSource, request: ScanRequest) -> dict[str, object]:
    """All values that a statement may bind; those it does not name are not sent."""
    filters = request.filters
    first, last = request.chunk or (0, 0)
    slots = request.slots or 1
    equals = [
        {"path": [str(step) for step in payload_equals.path], "value": payload_equals.value}
        for payload_equals in filters.payload
    ]
    return {
        "read_limit": request.read_limit,
        "n": request.n,
        "after_id": request.after.id if request.after else None,
        "after_time": request.after.time if request.after else None,
        "until_id": request.until.id if request.until else None,
        "until_time": request.until.time if request.until else None,
        "groups": source.product.array(request.groups),
        "first": first,
        "last": last,
        "first_slot": first % slots,
        "last_slot": last % slots,
        "payload_length": request.payload_length,
        "error_length": request.error_length,
        "moment": request.moment,
        **_seconds("older", filters.older),
        **_seconds("newer", filters.newer),
        "id": filters.id,
        "state": filters.state,
        "ahead": CLOCKS_DIFFER_SECONDS,
        "errors": source.product.array(filters.errors),
        "claimed_by": filters.claimed_by,
        "payload_equals": json.dumps(equals, ensure_ascii=False),
        "stuck_after": request.group_limit,
        "due_time": request.group_limit,
        **{
            f"payload_value_{n}": payload_equals.value
            for n, payload_equals in enumerate(filters.payload, 1)
        },
    }


def _seconds(name: str, seconds: float | None) -> dict[str, object]:
    """An interval as one number, and as the integers that SQL Server's DATEADD takes."""
    seconds_part, rest = divmod(seconds or 0.0, 1)
    return {name: seconds, f"{name}_s": int(seconds_part), f"{name}_us": round(rest * 1e6)}


def yes_no(condition: object) -> str:
    return "yes" if condition else "no"


class Search:
    """Finds the messages of one page, a statement at a time."""

    def __init__(self, source: MessageSource, query: MessageQuery, after: str | None) -> None:
        filters = source.normalize(query.filters)
        if len(filters.ids) > 1:
            raise ValueError("one search is for one id")
        self.messages: list[Message] = []
        self.next: ScanKey | None = None
        """Where the next page begins; None: there is none, or no order."""
        self.read = 0
        self._source = source
        self._query = replace(query, filters=filters)
        source.check_visible(filters.state)
        scans = scans_for(source.queue, filters)
        self._scans = tuple(scan for scan in scans if scan.state not in source.hidden)
        self.complete = len(self._scans) == len(scans)
        """False: it stopped before the page was full, or left out a hidden state."""
        self._index = 0
        self._key: ScanKey | None = None
        if after is not None:
            self._index, self._key = read_key(after, self._scans)
            source.check(self._scans[self._index], self._key)
        self._last: ScanKey | None = None
        self._installed = source.queue.kind is Kind.INSTALLED
        self._holes = 0
        self._bound = ReadBound(1, SECONDS_MOST)
        """`rows` is the share read of all that may be read."""
        self.finished = not self._scans

    def step(self, connection: Connection) -> None:
        scan = self._scans[self._index]
        if scan.chunks:
            self._next_chunk(connection, scan)
        else:
            self._next_rows(connection, scan)
        if not self.finished and not self._bound.may_continue(0):
            self._stop()

    @property
    def _room(self) -> int:
        """One more than the page holds, to know whether it is the last."""
        return self._query.limit - len(self.messages) + 1

    def _next_rows(self, connection: Connection, scan: Scan) -> None:
        filters = self._query.filters
        after = self._key if self._key and self._key.id else None
        if exactly := filters.id is not None and scan.by is By.ID:
            after = ScanKey(scan.name, id=filters.id)
        request = self._query.scan_request(scan, after=after, exactly=exactly)
        dense = not filters.narrowing and scan.name != "parked"
        # The server cannot tell error groups apart: all errors that match come back.
        most = self._room if filters.error_group is None else READ_AT_ONCE
        request = replace(request, read_limit=self._room if dense else READ_AT_ONCE, n=most)
        rows = fetch(connection, self._source, request, MessageRow, "matching")
        more = bool(rows) and rows[-1].position >= request.read_limit
        self.read += rows[-1].position if rows else 0
        if self._take(rows, scan) or (more and not rows[-1].key_id):
            self._end_with_more()
        elif more and not self.finished:
            self._key = key_of(scan, rows[-1])
            self._bound.rows += request.read_limit / READ_MOST
        elif not self.finished:
            self._next_scan()

    def _next_chunk(self, connection: Connection, scan: Scan) -> None:
        extent = self._source.extent(connection)
        if extent.first is None or extent.last is None:
            self._take_unordered(connection, scan)
            return
        down = self._query.scan_request(scan).down
        room = PAGES_AT_ONCE if scan.by is By.LOCATION else self._numbers_at_once()
        chunk = next_chunk(scan, extent, self._key, down=down, room=room)
        if chunk is None:
            self._next_scan()
            return
        number = self._number_of_the_id(scan)
        if number is not None and extent.first <= number <= extent.last:
            self._take(self._read(connection, scan, (number, number), extent), scan)
        if self.finished:
            return
        if self._take(self._read(connection, scan, chunk, extent), scan):
            self._end_with_more()
        elif not self.finished:
            self._key = beyond(scan, chunk, down=down)
            self._holes += 1
            most = PAGES_MOST if scan.by is By.LOCATION else READ_MOST
            self._bound.rows += (chunk[1] - chunk[0] + 1) / most

    def _read(
        self, connection: Connection, scan: Scan, chunk: tuple[int, int], extent: Extent
    ) -> list[MessageRow]:
        after = self._key if scan.by is By.LOCATION and self._key and self._key.id else None
        request = self._query.scan_request(scan, after=after)
        request = replace(request, chunk=chunk, slots=extent.slots, n=self._room)
        return fetch(connection, self._source, request, MessageRow, "matching")

    def _number_of_the_id(self, scan: Scan) -> int | None:
        """The number of a ring's message with the id, unless a relay moved it: tried first."""
        sought = self._query.filters.id
        first_step = self._key is None and self._installed
        return int(sought) if sought and first_step and scan.by is By.NUMBER else None

    def _numbers_at_once(self) -> int:
        """As many as the page needs, and ever more if they turn out to be holes."""
        if self._query.filters.narrowing:
            return READ_AT_ONCE
        return min(READ_AT_ONCE, self._room << min(self._holes, 10))

    def _take_unordered(self, connection: Connection, scan: Scan) -> None:
        """The first messages where there is no order, and so no next page."""
        if scan.by is By.NUMBER:
            raise RefusedError(
                f"The messages of {self._source.queue.name!r} cannot be found.",
                why="The next numbers of the ring's sequences are not known: this login may not "
                "read them, or the database is a copy, and a subscription replicates none.",
                next_step="Ask for the right to read them; of a copy, ask its publisher.",
            )
        if self._key is not None:
            name = self._source.queue.name
            raise UsageError(f"The list of {name!r} has no order to continue in.")
        limit = READ_MOST if self._query.filters.narrowing else self._room
        request = replace(self._query.scan_request(scan), read_limit=limit, n=self._room)
        rows = fetch(connection, self._source, request, MessageRow, "matching")
        more = self._take(rows, scan)
        self.complete = not more and all(row.position < limit for row in rows)
        self.finished = True

    def _take(self, rows: Sequence[MessageRow], scan: Scan) -> bool:
        """Put the matching rows on the page; whether there are more."""
        state = self._query.filters.state
        for row in rows:
            if row.matches and state in (None, row.state) and self._in_error_group(row):
                if len(self.messages) == self._query.limit:
                    return True
                self.messages.append(self._query.message(row, scan))
                self._last = key_of(scan, row)
                # An id is unique, but not in adopted tables, nor among subscribers.
                one = self._installed and not scan.subscriber
                self.finished = self._query.filters.id is not None and one
        return False

    def _in_error_group(self, row: MessageRow) -> bool:
        key = self._query.filters.error_group
        return key is None or key == group_key(row.error or "")

    def _next_scan(self) -> None:
        self._index, self._key = self._index + 1, None
        self.finished = self._index == len(self._scans)

    def _end_with_more(self) -> None:
        self.finished = True
        if self._last is not None and self._last.id:
            self.next = self._last
        else:
            self.complete = False  # without ids there is no key to go on from

    def _stop(self) -> None:
        scan = self._scans[self._index]
        if len(self.messages) == self._query.limit:
            self._end_with_more()
            return
        self.next = self._key or ScanKey(scan.name, dated=scan.dated)
        self.complete = False
        self.finished = True
