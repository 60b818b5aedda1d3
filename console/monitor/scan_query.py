"""A queue whose messages are read, one statement over a scan of it, and the search through scans.

A statement joins a design's `messages`, `chunk` of common.sql and what is wanted of it to one, so
that a DBA sees exactly the conditions that were asked for; every value is bound. A search goes on
until a page is full, the scans end, or a bound is met.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from console import relations, sql
from console.catalog import Kind, Queue
from console.engines import Database, Product, product_of
from console.errors import RefusedError, UsageError
from console.monitor.filters import MOST_PAYLOAD_FILTERS, Filters
from console.monitor.message import Message, MessageQuery, MessageRow, ReadBound, key_of
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

READ_MOST = 50_000
"""So many messages one search reads at most, to find those that match."""
READ_AT_ONCE = 2_000
PAGES_MOST = 2_000
"""So many pages of a table without an index one search reads at most."""
PAGES_AT_ONCE = 32
SECONDS_MOST = 5.0
"""After this time a search begins no further statement."""
STATEMENT_SECONDS = 5.0
_INTEGER_BITS = {
    **dict.fromkeys(("tinyint", "smallint"), 15),
    **dict.fromkeys(("int", "integer"), 31),
    **dict.fromkeys(("bigint", "int8"), 63),
}


@dataclass(frozen=True)
class MessageSource:
    """A queue whose messages are read, and of what types its ids and payloads are."""

    product: Product
    queue: Queue
    payload: str
    """text, json or bytes; empty: nothing tells the payload."""
    id_type: str
    hidden: Mapping[str, str] = field(default_factory=dict)
    """The states whose messages the server hides from this login, and why."""

    @classmethod
    def of(cls, connection: Connection, queue: Queue) -> MessageSource:
        """Asks the server only where the table is somebody else's."""
        product = product_of(connection)
        if queue.kind is Kind.INSTALLED:
            return cls.ours(product, queue)
        found = relations.columns(connection, queue.schema, queue.table)
        types = {column.name: column.type for column in found}
        body = queue.roles.get("payload")
        kind = "" if body is None else _kind(types.get(body, ""), product)
        id_type = types.get(queue.roles.get("id", ""), "")
        return cls(product, queue, kind, id_type, _hidden(connection, queue))

    @classmethod
    def ours(cls, product: Product, queue: Queue) -> MessageSource:
        """Of a queue that the console installed: nothing has to be asked."""
        id_type = product.id_types[queue.design.id_type]
        return cls(product, queue, queue.options["payload"], id_type)

    def own(self, name: str) -> str:
        """The statement of the design's own file."""
        return f"{self.queue.design.name}.{name}"

    def begin(self, connection: Connection, database: Database) -> None:
        """What comes first in a transaction that reads messages."""
        limit_transaction(connection, database, STATEMENT_SECONDS)
        self.pass_gate(connection)

    def pass_gate(self, connection: Connection) -> None:
        """What comes first in any transaction at a ring: it waits while a relay runs.

        Of a library's table: its functions find each other by the search path. RefusedError where
        the server hides its rows: nothing of it may then be told as none.
        """
        self.check_seen(None)
        ours = self.queue.kind is Kind.INSTALLED or self.queue.design.library
        if sql.has(connection, self.own("wait_for_relay")) and ours:
            connection.execute(
                sql.query(self.own("wait_for_relay"), connection.dialect, self._scope())
            )

    def check_seen(self, state: str | None) -> None:
        """RefusedError where the server hides the messages of that state from this login; of none:
        where it hides all of them."""
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
        """The ends of its scan by chunks."""
        return sql.row(connection, Extent, self.own("extent"), self._scope())

    def _scope(self) -> sql.Scope:
        return self.queue.scope(self.product)

    def id_of(self, text: str) -> str:
        """The text in the form that ids have here. UsageError where none can be it."""
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

    def known(self, filters: Filters) -> Filters:
        """The same with ids in the form that they have here, each once."""
        return replace(filters, ids=tuple(dict.fromkeys(map(self.id_of, filters.ids))))

    def check(self, scan: Scan, key: ScanKey) -> None:
        """UsageError where the key can be no message's of the scan."""
        if not key.id:
            return
        if scan.by is By.LOCATION or (scan.by is By.TIME and not self.id_type):
            fits = _PLACE.fullmatch(key.id)
        elif scan.by in {By.ARRIVAL, By.NUMBER}:
            fits = _INTEGER.fullmatch(key.id)
        else:
            self.id_of(key.id)
            return
        if not fits:
            raise UsageError(f"{key.text!r} is not a place in the queue {self.queue.name!r}.")


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
"""As each engine writes them out."""
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_PLACE = re.compile(r"\([0-9]{1,10},[0-9]{1,5}\)")


def _kind(column: str, product: Product) -> str:
    """What payload a column of somebody else's holds, by its type."""
    kinds = {"json": "json", "binary": "bytes", "image": "bytes"}
    for kind in ("text", "bytes", "json"):  # where JSON is kept as text, text may be JSON
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
    """The whole statement of a request."""
    steps = [("scanned", source.own(request.scan.statement)), ("chunk", "common.chunk")]
    return sql.piped(steps, f"common.{last}", source.product.dialect, scope_of(source, request))


def scope_of(source: MessageSource, request: ScanRequest) -> sql.Scope:
    """The conditions and names that the statements of one request are rendered with."""
    queue, scan, filters = source.queue, request.scan, request.filters
    scope = (queue.of(scan.subscriber) if scan.subscriber else queue).scope(source.product)
    roles = scan.roles(queue)
    body = request.payload_length is not None
    beside = queue.design.table_suffix != "" and queue.kind is Kind.INSTALLED
    known = source.payload != ""
    conditions = {
        "scan": scan.condition,
        "sorted": request.sorted,
        "start": "beginning"
        if request.after is None
        else "exactly"
        if request.exactly
        else "after",
        "payload": source.payload or "text",
        "body": yes_no(body and known),
        "with_payload": yes_no(known and (body or bool(filters.payload) or not beside)),
        "by_age": "scan" if scan.by_age else "row",
        "by_cutoff": yes_no(request.moment is not None),
        "by_older": yes_no(filters.older is not None),
        "by_newer": yes_no(filters.newer is not None),
        "by_id": yes_no(bool(filters.ids) and not request.exactly),
        "by_error": yes_no(bool(filters.errors)),
        "hashed": yes_no(filters.error_group is not None),
        "by_claimed_by": yes_no(filters.claimed_by is not None),
        "by_payload": yes_no(bool(filters.payload)),
    }
    values = {**scope.values, "since": roles.get(SINCE.get(scan.state, ""), "")}
    for number in range(1, MOST_PAYLOAD_FILTERS + 1):
        conditions[f"by_payload_{number}"] = yes_no(number <= len(filters.payload))
    for number, equals in enumerate(filters.payload, 1):
        values[f"payload_path_{number}"] = equals.json_path
    return sql.Scope(values, {**scope.options, **conditions}, roles)


def values_of(source: MessageSource, request: ScanRequest) -> dict[str, object]:
    """Everything that a statement may bind; what its text does not name is not sent."""
    filters = request.filters
    first, last = request.chunk or (0, 0)
    slots = request.slots or 1
    equals = [
        {"path": [str(step) for step in one.path], "value": one.value} for one in filters.payload
    ]
    return {
        "look": request.read_limit,
        "n": request.n,
        "after_id": request.after.id if request.after else None,
        "after_time": request.after.time if request.after else None,
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
        "errors": source.product.array(filters.errors),
        "claimed_by": filters.claimed_by,
        "payload_equals": json.dumps(equals, ensure_ascii=False),
        **{f"payload_value_{n}": one.value for n, one in enumerate(filters.payload, 1)},
    }


def _seconds(name: str, seconds: float | None) -> dict[str, object]:
    """An interval as one number, and in the whole numbers that SQL Server's DATEADD takes."""
    whole, rest = divmod(seconds or 0.0, 1)
    return {name: seconds, f"{name}_s": int(whole), f"{name}_us": round(rest * 1e6)}


def yes_no(condition: object) -> str:
    return "yes" if condition else "no"


class Search:
    """The messages for one page, found a step at a time."""

    def __init__(self, source: MessageSource, wanted: MessageQuery, after: str | None) -> None:
        filters = source.known(wanted.filters)
        if len(filters.ids) > 1:
            raise ValueError("one search is for one id")
        self.found: list[Message] = []
        self.next: ScanKey | None = None
        """Where to go on; None: there is nothing more, or no order to go on in."""
        self.read = 0
        """About how many messages were read to find them."""
        self.complete = True
        """False: it ended before the page was full, or left out a state, and there may be more."""
        self._source = source
        self._wanted = replace(wanted, filters=filters)
        source.check_seen(filters.state)
        scans = scans_for(source.queue, filters)
        self._scans = tuple(scan for scan in scans if scan.state not in source.hidden)
        self.complete = len(self._scans) == len(scans)
        self._at = 0
        self._key: ScanKey | None = None
        if after is not None:
            self._at, self._key = read_key(after, self._scans)
            source.check(self._scans[self._at], self._key)
        self._last: ScanKey | None = None
        self._installed = source.queue.kind is Kind.INSTALLED
        self._holes = 0
        self._bound = ReadBound(1, SECONDS_MOST)
        """In shares of all that may be read."""
        self.ended = not self._scans

    def step(self, connection: Connection) -> None:
        """One statement further."""
        scan = self._scans[self._at]
        if scan.chunks:
            self._next_chunk(connection, scan)
        else:
            self._next_rows(connection, scan)
        if not self.ended and not self._bound.goes_on(0):
            self._stop()

    @property
    def _room(self) -> int:
        """One more than the page takes says that it is not the last."""
        return self._wanted.limit - len(self.found) + 1

    def _next_rows(self, connection: Connection, scan: Scan) -> None:
        filters = self._wanted.filters
        request = self._wanted.scan_request(
            scan, after=self._key if self._key and self._key.id else None
        )
        if filters.id is not None and scan.by is By.ID:
            request = self._wanted.scan_request(
                scan, after=ScanKey(scan.name, id=filters.id), exactly=True
            )
        dense = not filters.narrowing and scan.name != "parked"
        # Of which kind an error is only we can tell: then all that match come back.
        most = self._room if filters.error_group is None else READ_AT_ONCE
        request = replace(request, read_limit=self._room if dense else READ_AT_ONCE, n=most)
        rows = fetch(connection, self._source, request, MessageRow, "matching")
        more = bool(rows) and rows[-1].position >= request.read_limit
        self.read += rows[-1].position if rows else 0
        if self._take(rows, scan) or (more and not rows[-1].key_id):
            self._end_full()
        elif more and not self.ended:
            self._key = key_of(scan, rows[-1])
            self._bound.rows += request.read_limit / READ_MOST
        elif not self.ended:
            self._next_scan()

    def _next_chunk(self, connection: Connection, scan: Scan) -> None:
        extent = self._source.extent(connection)
        if extent.first is None or extent.last is None:
            self._take_any(connection, scan)
            return
        down = self._wanted.scan_request(scan).down
        room = PAGES_AT_ONCE if scan.by is By.LOCATION else self._numbers()
        chunk = next_chunk(scan, extent, self._key, down=down, room=room)
        if chunk is None:
            self._next_scan()
            return
        number = self._number_of_the_id(scan)
        if number is not None and extent.first <= number <= extent.last:
            self._take(self._read(connection, scan, (number, number), extent), scan)
        if self.ended:
            return
        if self._take(self._read(connection, scan, chunk, extent), scan):
            self._end_full()
        elif not self.ended:
            self._key = beyond(scan, chunk, down=down)
            self._holes += 1
            most = PAGES_MOST if scan.by is By.LOCATION else READ_MOST
            self._bound.rows += (chunk[1] - chunk[0] + 1) / most

    def _read(
        self, connection: Connection, scan: Scan, chunk: tuple[int, int], extent: Extent
    ) -> list[MessageRow]:
        after = self._key if scan.by is By.LOCATION and self._key and self._key.id else None
        request = self._wanted.scan_request(scan, after=after)
        request = replace(request, chunk=chunk, slots=extent.slots, n=self._room)
        return fetch(connection, self._source, request, MessageRow, "matching")

    def _number_of_the_id(self, scan: Scan) -> int | None:
        """Where a message of a ring is, unless a relay has moved it: read before the rest."""
        sought = self._wanted.filters.id
        first_look = self._key is None and self._installed
        return int(sought) if sought and first_look and scan.by is By.NUMBER else None

    def _numbers(self) -> int:
        """How many to read: what the page needs, and ever more where they turn out to be holes."""
        if self._wanted.filters.narrowing:
            return READ_AT_ONCE
        return min(READ_AT_ONCE, self._room << min(self._holes, 10))

    def _take_any(self, connection: Connection, scan: Scan) -> None:
        """What comes first where nothing gives an order: there is no place to go on from."""
        if scan.by is By.NUMBER:
            raise UsageError(
                f"The messages of {self._source.queue.name!r} cannot be found.",
                why="This login does not see the next numbers of the ring's sequences.",
                next_step="Ask for the right to read them.",
            )
        if self._key is not None:
            name = self._source.queue.name
            raise UsageError(f"The list of {name!r} has no order to continue in.")
        look = READ_MOST if self._wanted.filters.narrowing else self._room
        request = replace(self._wanted.scan_request(scan), read_limit=look, n=self._room)
        rows = fetch(connection, self._source, request, MessageRow, "matching")
        more = self._take(rows, scan)
        self.complete = not more and all(row.position < look for row in rows)
        self.ended = True

    def _take(self, rows: Sequence[MessageRow], scan: Scan) -> bool:
        """Put what matches on the page; whether there is one more than it takes."""
        state = self._wanted.filters.state
        for row in rows:
            if row.matches and state in (None, row.state) and self._of_the_kind(row):
                if len(self.found) == self._wanted.limit:
                    return True
                self.found.append(self._wanted.message(row, scan))
                self._last = key_of(scan, row)
                # The one with that id; of somebody else's table nobody knows that, and each of
                # several subscribers may have it.
                one = self._installed and not scan.subscriber
                self.ended = self._wanted.filters.id is not None and one
        return False

    def _of_the_kind(self, row: MessageRow) -> bool:
        kind = self._wanted.filters.error_group
        return kind is None or kind == group_key(row.error or "")

    def _next_scan(self) -> None:
        self._at, self._key = self._at + 1, None
        self.ended = self._at == len(self._scans)

    def _end_full(self) -> None:
        """The page is full, and there is more."""
        self.ended = True
        if self._last is not None and self._last.id:
            self.next = self._last
        else:
            self.complete = False  # without ids there is no place to go on from

    def _stop(self) -> None:
        """A bound is met."""
        scan = self._scans[self._at]
        if len(self.found) == self._wanted.limit:
            self._end_full()
            return
        self.next = self._key or ScanKey(scan.name, dated=scan.dated)
        self.complete = False
        self.ended = True
