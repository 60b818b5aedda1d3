"""Counts matching messages on the server, a chunk of keys a statement: no row of them is read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from console.engines import Database, Session
from console.monitor.message import MessageQuery, key_of
from console.monitor.messages import TRANSACTION_SECONDS, read_task
from console.monitor.scan_query import MessageSource, fetch
from console.monitor.scans import By, Scan, ScanKey, beyond, next_chunk, read_key, scans_for

if TYPE_CHECKING:
    from sqlalchemy import Connection

ROWS_AT_ONCE = 20_000
PAGES_AT_ONCE = 500


@dataclass(frozen=True)
class CountedRow:
    """The last row of a chunk, and what the matching rows of the chunk are together."""

    position: int
    key_time: str | None
    key_id: str
    matching: int
    payload_bytes: int | None
    """None: of at least one it is not known."""
    oldest_seconds: float | None
    newest_seconds: float | None


class MessageCount:
    """Counts those after a key, in the order of a search; the query names a state."""

    def __init__(self, source: MessageSource, query: MessageQuery, after: str | None) -> None:
        self._source = source
        self._query = replace(query, filters=source.normalize(query.filters))
        scans = [
            scan
            for scan in scans_for(source.queue, self._query.filters)
            if scan.state not in source.hidden
        ]
        self._key: ScanKey | None = None
        at = 0
        if after is not None:
            at, self._key = read_key(after, tuple(scans))
        self._left = scans[at:]

    def chunks(self, session: Session, database: Database) -> Iterator[CountedRow]:
        """In short transactions, until all are counted."""
        while self._left:
            counted: list[CountedRow] = []
            with session.transaction(read_task(self._source.queue)) as connection:
                self._source.begin_read(connection, database)
                started = time.monotonic()
                while self._left and time.monotonic() - started < TRANSACTION_SECONDS:
                    counted += self._next(connection, self._left[0])
            yield from counted

    def _next(self, connection: Connection, scan: Scan) -> list[CountedRow]:
        after = self._key if self._key and self._key.id else None
        request = self._query.scan_request(scan, after=after)
        if not scan.chunks:
            request = replace(request, read_limit=ROWS_AT_ONCE)
            rows = fetch(connection, self._source, request, CountedRow, "counted")
            self._key = key_of(scan, rows[-1]) if rows else None
            if not rows or rows[-1].position < ROWS_AT_ONCE:
                self._end_scan()
            return rows
        extent = self._source.extent(connection)
        by_page = scan.by is By.LOCATION
        room = PAGES_AT_ONCE if by_page else ROWS_AT_ONCE
        chunk = next_chunk(scan, extent, self._key, down=request.down, room=room)
        if chunk is None:
            self._end_scan()
            return []
        request = replace(
            request, after=after if by_page else None, chunk=chunk, slots=extent.slots
        )
        self._key = beyond(scan, chunk, down=request.down)
        return fetch(connection, self._source, request, CountedRow, "counted")

    def _end_scan(self) -> None:
        self._left.pop(0)
        self._key = None
