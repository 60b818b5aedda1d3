"""Tables, sequences and columns in the server's own catalog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from console import sql
from console.catalog import lookups
from console.engines import product_of

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    base_type: str = ""
    """Of a domain or an alias, the type below it; else its type, without length or precision."""
    computed: bool = False
    """The server computes it from others: no statement can set it."""
    required: bool = False
    """It is NOT NULL."""
    default_text: str | None = ""
    """As the server writes it; empty: it has none; None: this login may not see it."""
    table_name: str = ""


@dataclass(frozen=True)
class Relation:
    """A table, a sequence or another named object."""

    name: str
    kind: str


def columns(connection: Connection, schema: str, *tables: str) -> Sequence[Column]:
    """Of these tables and views; none of those that do not exist."""

    def read(on: Connection, names: Sequence[str]) -> list[Column]:
        wanted = product_of(on).array(names)
        return sql.rows(on, Column, "catalog.columns", schema=schema, tables=wanted)

    return lookups.by_name(
        connection, "columns", schema, tables, read, lambda column: column.table_name
    )


def named(connection: Connection, schema: str, names: Sequence[str]) -> Sequence[Relation]:
    def read(on: Connection, names: Sequence[str]) -> list[Relation]:
        wanted = product_of(on).array(names)
        return sql.rows(on, Relation, "catalog.relations", schema=schema, names=wanted)

    return lookups.by_name(connection, "relations", schema, names, read, lambda it: it.name)
