"""All rows of a queue in one state, read in chunks by an index and within bounds."""

from collections.abc import Iterator
from typing import Protocol, TypeVar

from console import sql
from console.doctor.context import LOCK_SECONDS, STATEMENT_SECONDS, CheckContext
from console.formats import numbered
from console.monitor.message import Placed, ReadBound, last_key, pages
from console.monitor.sample_queries import limit_transaction
from console.monitor.scan_query import MessageSource, query, values_of
from console.monitor.scans import Scan, ScanKey, ScanRequest

CHUNK_ROWS = 10_000
"""Rows that one statement reads."""
NEWEST = 2**63 - 1
"""No id is higher: where a scan from the newest down begins."""
MOST_ROWS = 1_000_000
"""So many are examined; the rest is told."""


class CountedRow(Placed, Protocol):
    """A row that tells how many its chunk has examined."""

    @property
    def looked(self) -> int: ...


AnyCountedRow = TypeVar("AnyCountedRow", bound=CountedRow)


def bound_of(context: CheckContext) -> ReadBound:
    return ReadBound(MOST_ROWS, context.patience_seconds)


def told(bound: ReadBound) -> str:
    return f"{numbered(int(bound.rows), 'row')} in {bound.took:.0f} s were"


def scanned(
    context: CheckContext,
    what: str,
    scan: Scan,
    row_type: type[AnyCountedRow],
    last: str,
    **values: object,
) -> Iterator[AnyCountedRow]:
    """The rows that the statement `last` of common.sql tells of a scan.

    Those of each chunk end with its last one, whatever that is. What lies behind the bounds is
    told in `unseen`.
    """

    def read(key: ScanKey | None) -> list[AnyCountedRow]:
        return page(context, scan, key, row_type, last, **values)

    def after(rows: list[AnyCountedRow]) -> tuple[int, ScanKey | None]:
        looked = max(rows, key=lambda row: row.position).looked if rows else 0
        return looked, None if looked < CHUNK_ROWS else last_key(scan, rows)

    bound = bound_of(context)
    for rows in pages(None, read, after, bound):
        yield from rows
    if bound.met:
        state = f" of those that are {scan.state}" if scan.state else ""
        context.unseen.append(f"{what}: {told(bound)} examined{state}, the others not")


def page(
    context: CheckContext,
    scan: Scan,
    after: ScanKey | None,
    row_type: type[AnyCountedRow],
    last: str,
    **values: object,
) -> list[AnyCountedRow]:
    with context.moment() as connection:
        source = MessageSource.of(connection, context.queue)
        limit_transaction(connection, context.database, STATEMENT_SECONDS, LOCK_SECONDS)
        source.pass_gate(connection)
        ask = ScanRequest(scan, look=CHUNK_ROWS, after=after)
        bound = values_of(source, ask) | values
        return sql.rows(connection, row_type, query(source, ask, last), **bound)
