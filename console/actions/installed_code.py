"""A queue's own statements as its server has them, beside what this console would install."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from console import catalog
from console.actions import shipped
from console.actions.pause import installed_code
from console.actions.upgrade import How, body_of
from console.catalog import Queue
from console.engines import Database, product_of

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True)
class InstalledObject:
    kind: str
    """`function` or `table`."""
    name: str
    installed: str | None
    """Its text; None: it is missing, or this login may not see it."""
    shipped: str | None = None
    """What this console would install, where that is another text."""
    how: How | None = None
    """How they differ; None: they do not, or there is nothing to compare with."""


def parts(database: Database, queue: Queue) -> tuple[InstalledObject, ...]:
    """Functions, then tables, as scripts make them. Of an adopted queue its table alone."""
    with database.transaction(f"read the code of {queue.name!r}", read_only=True) as connection:
        return (*_functions(connection, queue), *_tables(connection, queue))


def _functions(connection: Connection, queue: Queue) -> Iterator[InstalledObject]:
    product = product_of(connection)
    wanted = {code.name: code for code in shipped.code(product, queue)}
    rows = installed_code(connection, queue, list(wanted)) if wanted else []
    for name, code in wanted.items():
        would = _text(code.name, code.signature, code.body)
        there = [row for row in rows if row.name == name]
        if not there:
            yield InstalledObject("function", name, None, would, How.MISSING)
        for row in there:
            body = body_of(product, row)
            if body is None:
                yield InstalledObject("function", name, None, would, How.HIDDEN)
                continue
            text = _text(row.name, row.signature, body)
            if row.signature != code.signature:
                yield InstalledObject("function", name, text, would, How.CALLED_OTHERWISE)
            elif body != code.body:
                yield InstalledObject("function", name, text, would, How.OTHER)
            else:
                yield InstalledObject("function", name, text)


def _text(name: str, signature: str, body: str) -> str:
    """A signature is empty where it is a part of the body."""
    return f"{name}{signature}\n{body}" if signature else f"{name} {body}"


def _tables(connection: Connection, queue: Queue) -> Iterator[InstalledObject]:
    wanted: dict[str, list[shipped.ShippedColumn]] = {}
    for column in shipped.columns(product_of(connection), queue):
        wanted.setdefault(column.table, []).append(column)
    for table in dict.fromkeys((queue.table, *wanted)):
        columns = wanted.get(table, [])
        yield _table(table, catalog.columns(connection, queue.schema, table), columns)


def _table(
    table: str, there: Sequence[catalog.Column], wanted: Sequence[shipped.ShippedColumn]
) -> InstalledObject:
    """Types are written in other words by scripts and by servers: columns are compared by name."""
    names = {column.name for column in there}
    lacking = [column for column in wanted if column.name not in names]
    installed = "\n".join(f"{column.name} {column.type}" for column in there)
    if not there:
        return InstalledObject("table", table, None, _columns(wanted), How.MISSING)
    if lacking:
        return InstalledObject(
            "table", table, installed, f"{installed}\n{_columns(lacking)}", How.OLDER
        )
    return InstalledObject("table", table, installed)


def _columns(columns: Sequence[shipped.ShippedColumn]) -> str:
    return "\n".join(f"{column.name} {column.definition}" for column in columns)
