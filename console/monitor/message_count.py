"""Counts or chooses matching messages on the server, a chunk of keys a statement; none is read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from console.engines import Database, Session
from console.monitor.message import MessageQuery, ScanRow, key_of
from console.monitor.messages import TRANSACTION_SECONDS, read_task
from console.monitor.scan_query import READ_AT_ONCE, MessageSource, fetch
from console.monitor.scans import (
    EVERYTHING,
    By,
    Scan,
    ScanKey,
    ScanRequest,
    beyond,
    next_chunk,
    read_key,
    scans_for,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

_PAGES_OF_VALUES = 100
ROWS_AT_ONCE = 20_000
PAGES_AT_ONCE = 500


class _ChunkRow(ScanRow, Protocol):
    @property
    def matching(self) -> int: ...


ChunkRow = TypeVar("ChunkRow", bound=_ChunkRow)


class Group(NamedTuple):
    """What messages that are counted or chosen together have in common, as far as was asked."""

    label: str | None = None
    """Their claimant; of archived messages: what restore would do with them."""
    side: int | None = 0
    """Of a limit: -1 below, 1 above, 0 at it; None: not known."""

    @property
    def text(self) -> str:
        """As SQL's `concat(side, ' ', label)`."""
        return f"{'' if self.side is None else self.side} {self.label or ''}"


@dataclass(frozen=True)
class CountedRow:
    """The last row of a chunk, and what its matching rows of one group are together."""

    position: int
    key_time: str | None
    key_id: str
    state: str | None
    label: str | None
    side: int | None
    matching: int
    payload_bytes: int | None
    """None: of at least one it is not known."""
    oldest_seconds: float | None
    newest_seconds: float | None

    @property
    def group(self) -> Group:
        return Group(self.label, self.side)


class MessageCount:
    """Counts in the order of a search, the first `most` of them; the query names a state."""

    def __init__(
        self,
        source: MessageSource,
        query: MessageQuery,
        most: int = EVERYTHING,
        after: str | None = None,
    ) -> None:
        """`after`: the text of a key, behind which it begins."""
        self._source = source
        self._most = most
        self._query = replace(query, filters=source.normalize(query.filters))
        self._left = [
            scan
            for scan in scans_for(source.queue, self._query.filters)
            if scan.state not in source.hidden
        ]
        self._key: ScanKey | None = None
        if after is not None:
            first, self._key = read_key(after, tuple(self._left))
            del self._left[:first]

    def chunks(self, session: Session, database: Database) -> Iterator[list[CountedRow]]:
        """In short transactions, until all are counted."""
        while self._left and self._most > 0:
            counted: list[list[CountedRow]] = []
            with session.transaction(read_task(self._source.queue)) as connection:
                self._source.begin_read(connection, database)
                started = time.monotonic()
                while self._left and self._most > 0:
                    counted.append(self._next(connection, self._left[0]))
                    if time.monotonic() - started >= TRANSACTION_SECONDS:
                        break
            yield from counted

    def _next(self, connection: Connection, scan: Scan) -> list[CountedRow]:
        request = replace(self._query.scan_request(scan), n=self._most)
        if self._query.filters.reads_values:
            few = _PAGES_OF_VALUES if scan.by is By.LOCATION else READ_AT_ONCE
            request = replace(request, read_limit=few)
        rows, self._key = read_chunk(
            connection, self._source, request, self._key, CountedRow, "counted"
        )
        if self._key is None:
            self._left.pop(0)
        self._most -= sum(row.matching for row in rows)
        return rows


def read_chunk(
    connection: Connection,
    source: MessageSource,
    request: ScanRequest,
    key: ScanKey | None,
    row_type: type[ChunkRow],
    last: str,
) -> tuple[list[ChunkRow], ScanKey | None]:
    """What the statement `last` returns of the next chunk after a key; and the key to go on from.
    None: the scan has ended.

    Of a chunk with more than `request.n` matching rows it goes on from the last one of these.
    """
    scan = request.scan
    after = key if key and key.id else None
    if not scan.chunks:
        request = replace(request, after=after, read_limit=min(request.read_limit, ROWS_AT_ONCE))
        rows: list[ChunkRow] = []
        if after is not None and after.same_time:
            by_id = replace(request, same_time=True)
            rows = fetch(connection, source, by_id, row_type, last)
        # These come first of all that follow: enough of them, or up to the last, are the chunk.
        if not (_more(rows, request) or (rows and key_of(scan, last_row(rows)) == request.until)):
            rows = fetch(connection, source, request, row_type, last)
        if not _more(rows, request):
            return rows, None
        key = key_of(scan, last_row(rows))
        same = after is not None and key.time == after.time and source.rereads_times(request)
        return rows, replace(key, same_time=same)
    extent = source.extent(connection)
    by_page = scan.by is By.LOCATION
    room = min(request.read_limit, PAGES_AT_ONCE if by_page else ROWS_AT_ONCE)
    rows_of_chunk = EVERYTHING if by_page else room
    chunk = next_chunk(scan, extent, key, down=request.down, room=room)
    if chunk is None:
        return [], None
    after = after if by_page else None
    request = replace(
        request, after=after, chunk=chunk, slots=extent.slots, read_limit=rows_of_chunk
    )
    rows = fetch(connection, source, request, row_type, last)
    if _full(rows, request):
        return rows, key_of(scan, last_row(rows))
    return rows, beyond(scan, chunk, down=request.down)


def last_row(rows: Sequence[ChunkRow]) -> ChunkRow:
    return max(rows, key=lambda row: row.position)


def _more(rows: Sequence[ChunkRow], request: ScanRequest) -> bool:
    """Whether its bounds have ended it."""
    return bool(rows) and (last_row(rows).position >= request.read_limit or _full(rows, request))


def _full(rows: Sequence[_ChunkRow], request: ScanRequest) -> bool:
    return sum(row.matching for row in rows) >= request.n
