"""All rows of a queue in one state, read in chunks by an index and within bounds."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from console import sql
from console.doctor.context import CheckContext
from console.formats import numbered
from console.monitor.message import ReadBound, last_key, pages
from console.monitor.scan_query import MessageSource, query, values_of
from console.monitor.scans import Scan, ScanKey, ScanRequest

CHUNK_ROWS = 10_000
"""Rows that one statement reads."""
NEWEST = 2**63 - 1
"""The highest id: where a scan from the newest down begins."""
MOST_ROWS = 1_000_000
"""Rows that are examined at most; the rest is reported as unseen."""

SHOWN_IDS = 10
"""In a finding's evidence."""


@dataclass(frozen=True)
class CountedRow:
    """The first columns of each such statement."""

    key_time: str | None
    key_id: str
    position: int
    rows_read: int
    """Rows examined in its chunk."""
    id: str | None


@dataclass
class RowTally:
    """How many rows were found, and the first ids."""

    count: int = 0
    ids: list[str] = field(default_factory=list)

    def add(self, id_: str | None) -> None:
        self.count += 1
        if len(self.ids) < SHOWN_IDS:
            self.ids.append(id_ or "?")


AnyCountedRow = TypeVar("AnyCountedRow", bound=CountedRow)


def bound_of(context: CheckContext) -> ReadBound:
    return ReadBound(MOST_ROWS, context.patience_seconds)


def describe(bound: ReadBound) -> str:
    return f"{numbered(int(bound.rows), 'row')} were examined in {bound.took:.0f} s"


def scan_rows(
    context: CheckContext,
    what: str,
    scan: Scan,
    row_type: type[AnyCountedRow],
    last: str,
    **values: object,
) -> Iterator[AnyCountedRow]:
    """The rows that the statement `last` of common.sql selects from a scan.

    Each chunk ends with its last row, selected or not. Rows beyond the bounds are reported as
    unseen.
    """

    def read(after: ScanKey | None) -> list[AnyCountedRow]:
        with context.limited_transaction() as connection:
            source = MessageSource.of(connection, context.queue)
            source.wait_for_relay(connection)
            request = ScanRequest(scan, read_limit=CHUNK_ROWS, after=after)
            bound = values_of(source, request) | values
            return sql.rows(connection, row_type, query(source, request, last), **bound)

    def after(rows: list[AnyCountedRow]) -> tuple[int, ScanKey | None]:
        rows_read = max(rows, key=lambda row: row.position).rows_read if rows else 0
        return rows_read, None if rows_read < CHUNK_ROWS else last_key(scan, rows)

    bound = bound_of(context)
    for rows in pages(None, read, after, bound):
        yield from rows
    if bound.met:
        state = f", of those that are {scan.state}" if scan.state else ""
        context.unseen.append(f"{what}: {describe(bound)}{state}; the others were not")
