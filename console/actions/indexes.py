"""The indexes and keys that a queue's tables should have, read from the script that creates them,
those that they have, and the statements that create a missing one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from console import sql
from console.actions import shipped
from console.actions.maintenance import MaintainStep
from console.actions.shipped import unquoted
from console.catalog import Kind, Queue, lookups, relations
from console.engines import Database, Product, product_of

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True)
class ShippedIndex:
    table: str
    columns: tuple[str, ...]
    condition: str
    is_key: bool
    statement: str
    """Creates it; empty for a key, which its table's statement creates."""
    is_primary: bool = False

    @property
    def label(self) -> str:
        where = f" where {self.condition}" if self.condition else ""
        return f"{self.table} ({', '.join(self.columns)}){where}"


@dataclass(frozen=True)
class Index:
    table_name: str
    name: str
    columns: Any
    condition: str | None
    is_unique: bool
    valid: bool
    being_built: bool

    def matches(self, shipped: ShippedIndex) -> bool:
        return (
            self.table_name == shipped.table
            and [normalized(column) for column in sql.texts(self.columns)]
            == [normalized(c) for c in shipped.columns]
            and normalized(self.condition or "") == normalized(shipped.condition)
            and (self.is_unique or not shipped.is_key)
        )

    def enforces(self, shipped: ShippedIndex) -> bool:
        """Whether it keeps the ids unique: a leftover of an interrupted statement does not."""
        return self.matches(shipped) and (self.valid or not _LEFTOVER.search(self.name))


_KEY_INDEX = "_key_made"
"""Suffix of the index of which a key is made, until it is the key."""
_LEFTOVER = re.compile(rf"{_KEY_INDEX}$|_ccnew\d*$")
# Names as either engine quotes them, and what only one of them writes.
_IDENT = r'(?:"(?:[^"]|"")*"|\[(?:[^\]]|\]\])*\])'
_TABLE = re.compile(
    rf"CREATE (?:UNLOGGED )?TABLE {_IDENT}\.(?P<name>{_IDENT}) \(\n(?P<columns>.*?)\n\)", re.DOTALL
)
_COLUMN_KEY = re.compile(
    r"^\s*(?P<columns>[a-z]\w*) .*\b(?P<kind>PRIMARY KEY|UNIQUE)\b", re.MULTILINE
)
_TABLE_KEY = re.compile(
    rf"^\s*(?:CONSTRAINT {_IDENT} )?(?P<kind>PRIMARY KEY|UNIQUE)(?: (?:NON)?CLUSTERED)? "
    r"\((?P<columns>[^)]+)\)",
    re.MULTILINE,
)
_INDEX = re.compile(
    rf"^CREATE (?:NONCLUSTERED )?INDEX (?:{_IDENT} )?ON {_IDENT}\.(?P<name>{_IDENT}) "
    r"\((?P<columns>.*?)\)(?:\s+INCLUDE \([^)]*\))?(?:\s+WHERE (?P<condition>[^;]*?))?"
    r"(?:\s+WITH \([^)]*\))?;$",
    re.MULTILINE,
)


def shipped_indexes(product: Product, queue: Queue) -> list[ShippedIndex]:
    text = _script(product, queue)
    return list(_keys(text)) + [
        ShippedIndex(
            unquoted(match["name"]),
            tuple(match["columns"].split(", ")),
            match["condition"] or "",
            is_key=False,
            statement=match[0],
        )
        for match in _INDEX.finditer(text)
    ]


def shipped_tables(product: Product, queue: Queue) -> list[tuple[str, str]]:
    matches = _TABLE.finditer(_script(product, queue))
    return [(unquoted(table["name"]), table["columns"]) for table in matches]


def _script(product: Product, queue: Queue) -> str:
    return "\n".join(
        batch
        for script in shipped.tables_of(product, queue)
        for batch in sql.batches(script, product.dialect, queue.scope(product))
    )


def _keys(text: str) -> Iterator[ShippedIndex]:
    for table in _TABLE.finditer(text):
        name = unquoted(table["name"])
        for kind in (_COLUMN_KEY, _TABLE_KEY):
            for match in kind.finditer(table["columns"]):
                columns = tuple(match["columns"].split(", "))
                primary = match["kind"] == "PRIMARY KEY"
                yield ShippedIndex(name, columns, "", is_key=True, statement="", is_primary=primary)


def installed(connection: Connection, queue: Queue, tables: Sequence[str]) -> Sequence[Index]:
    statement = sql.statement(connection.dialect.name, f"{queue.design.name}.indexes")

    def read(on: Connection, names: Sequence[str]) -> list[Index]:
        wanted = product_of(on).array(names)
        return sql.rows(on, Index, statement, schema=queue.schema, tables=wanted)

    schema = queue.schema
    return lookups.by_name(
        connection, statement.label, schema, tables, read, lambda index: index.table_name
    )


def missing(connection: Connection, queue: Queue) -> list[ShippedIndex]:
    """Of its tables that exist. The indexes of an adopted table are its owner's; Service Broker has
    its own."""
    product = product_of(connection)
    if queue.kind is not Kind.INSTALLED or not (wanted := shipped_indexes(product, queue)):
        return []
    tables = sorted({shipped_index.table for shipped_index in wanted})
    indexes = installed(connection, queue, tables)
    there = {row.name for row in relations.named(connection, queue.schema, tables)}
    return [
        shipped_index
        for shipped_index in wanted
        if shipped_index.table in there
        and not any(
            index.enforces(shipped_index) if shipped_index.is_key else index.matches(shipped_index)
            for index in indexes
        )
    ]


def steps(
    database: Database, queue: Queue, lacking: Iterable[ShippedIndex]
) -> tuple[MaintainStep, ...]:
    """That create these while callers continue, online where the server can."""
    online = "online_rebuild" not in database.capabilities.missing
    return tuple(_step(database.product, queue.schema, index, online=online) for index in lacking)


def _step(product: Product, schema: str, index: ShippedIndex, *, online: bool) -> MaintainStep:
    """`online`: whether this server can."""
    if index.is_key:
        return _key_step(product, schema, index)
    statement = index.statement.replace(*product.online_index, 1) if online else index.statement
    return MaintainStep(
        "CREATE INDEX",
        index.table,
        f"it is missing: {index.label}",
        (statement,),
        online=statement != index.statement,
    )


def _key_step(product: Product, schema: str, index: ShippedIndex) -> MaintainStep:
    """Creates a key of one or two columns, online as far as possible (PostgreSQL)."""
    made = f"{index.table}{_KEY_INDEX}"
    column, second = (*index.columns, "")[:2]
    values = {"schema": schema, "relation": index.table, "index": made}
    values |= {"column": column, "second": second}
    values["constraint"] = f"{index.table}_pkey" if index.is_primary else f"{index.table}_key"
    kind = "primary" if index.is_primary else "unique"
    scope = sql.Scope(values, {"columns": str(len(index.columns)), "key": kind})

    def text(name: str) -> str:
        return sql.plain(sql.script(f"maintenance.{name}", product.dialect, scope))

    return MaintainStep(
        "ADD KEY",
        index.table,
        f"it is missing: {index.label}",
        (text("drop_leftover"), text("make_unique"), text("make_key")),
        always=text("drop_leftover"),  # the key that is made of it has another name
    )


def normalized(text: str) -> str:
    """Without what the server writes differently from the script: brackets, quotes, blanks."""
    return re.sub(r'[\s()"\[\]]', "", text).lower()
