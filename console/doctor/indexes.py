"""The indexes and keys that a queue's tables are made with, and which of them are not there.

What is wanted is read from the very script that makes the tables.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from console import sql
from console.actions import maintain
from console.catalog import Queue
from console.doctor.checks import ask, texts
from console.doctor.look import Look
from console.engines import Product


@dataclass(frozen=True)
class Wanted:
    """One index, or one key, as the script makes it."""

    table: str
    columns: tuple[str, ...]
    condition: str
    is_key: bool
    statement: str
    """Makes it; empty: a key, which is made with its table."""
    is_primary: bool = False

    @property
    def label(self) -> str:
        """What it is on."""
        where = f" where {self.condition}" if self.condition else ""
        return f"{self.table} ({', '.join(self.columns)}){where}"


@dataclass(frozen=True)
class Index:
    """One index that is there."""

    table_name: str
    name: str
    columns: Any
    condition: str | None
    is_unique: bool
    valid: bool
    being_built: bool

    def is_wanted(self, wanted: Wanted) -> bool:
        """Whether it does what that one is for."""
        return (
            self.table_name == wanted.table
            and [_bare(column) for column in texts(self.columns)]
            == [_bare(c) for c in wanted.columns]
            and _bare(self.condition or "") == _bare(wanted.condition)
            and (self.is_unique or not wanted.is_key)
        )

    def keeps(self, wanted: Wanted) -> bool:
        """Whether it keeps those ids apart: what an interrupted statement left does not."""
        return self.is_wanted(wanted) and (self.valid or not _LEFT.search(self.name))


_MADE = "_key_made"
"""What a key is made of has this name until it is the key."""
_LEFT = re.compile(rf"{_MADE}$|_ccnew\d*$")
# Names as either engine quotes them, and what only one of them writes.
_IDENT = r'(?:"(?:[^"]|"")*"|\[(?:[^\]]|\]\])*\])'
_TABLE = re.compile(
    rf"CREATE (?:UNLOGGED )?TABLE {_IDENT}\.(?P<name>{_IDENT}) \(\n(?P<columns>.*?)\n\)",
    re.DOTALL,
)
_COLUMN_KEY = re.compile(
    r"^\s*(?P<columns>[a-z]\w*) .*\b(?P<kind>PRIMARY KEY|UNIQUE)\b", re.MULTILINE
)
_TABLE_KEY = re.compile(
    rf"^\s*(?:CONSTRAINT {_IDENT} )?(?P<kind>PRIMARY KEY|UNIQUE)(?: CLUSTERED)? "
    r"\((?P<columns>[^)]+)\)",
    re.MULTILINE,
)
_INDEX = re.compile(
    rf"^CREATE (?:NONCLUSTERED )?INDEX (?:{_IDENT} )?ON {_IDENT}\.(?P<name>{_IDENT}) "
    r"\((?P<columns>.*?)\)(?:\s+INCLUDE \([^)]*\))?(?:\s+WHERE (?P<condition>[^;]*?))?"
    r"(?:\s+WITH \([^)]*\))?;$",
    re.MULTILINE,
)


def wanted(product: Product, queue: Queue) -> list[Wanted]:
    """All that the design's script makes."""
    script = sql.statements(product.name, queue.design.name)["tables"]
    text = "\n".join(sql.batches(script, product.dialect, queue.scope(product)))
    return list(_keys(text)) + [
        Wanted(
            _unquoted(found["name"]),
            tuple(found["columns"].split(", ")),
            found["condition"] or "",
            is_key=False,
            statement=found[0],
        )
        for found in _INDEX.finditer(text)
    ]


def _keys(text: str) -> Iterator[Wanted]:
    for table in _TABLE.finditer(text):
        name = _unquoted(table["name"])
        for kind in (_COLUMN_KEY, _TABLE_KEY):
            for found in kind.finditer(table["columns"]):
                columns = tuple(found["columns"].split(", "))
                primary = found["kind"] == "PRIMARY KEY"
                yield Wanted(name, columns, "", is_key=True, statement="", is_primary=primary)


def there(look: Look, tables: Sequence[str]) -> list[Index]:
    """The indexes of those tables."""
    product = look.database.product
    names = product.array(sorted(set(tables)))
    return ask(look, Index, "indexes", schema=look.queue.schema, tables=names)


def key_step(product: Product, schema: str, one: Wanted) -> maintain.Step:
    """A key of one or two columns, made beside the traffic as far as that goes (PostgreSQL)."""
    made = f"{one.table}{_MADE}"
    column, second = (*one.columns, "")[:2]
    values = {"schema": schema, "relation": one.table, "index": made}
    values |= {"column": column, "second": second}
    values["constraint"] = f"{one.table}_pkey" if one.is_primary else f"{one.table}_key"
    kind = "primary" if one.is_primary else "unique"
    scope = sql.Scope(values, {"columns": str(len(one.columns)), "key": kind})

    def text(name: str) -> str:
        script = sql.script(
            sql.statements(product.name, "maintenance")[name], product.dialect, scope
        )
        return "\n".join(x for x in script.splitlines() if not x.strip().startswith("--")).strip()

    return maintain.Step(
        "ADD KEY",
        one.table,
        f"it is missing: {one.label}",
        (text("drop_leftover"), text("make_unique"), text("make_key")),
        always=text("drop_leftover"),  # its own name is gone with the key that is made of it
    )


def on_tables(look: Look, missing: Sequence[Wanted]) -> list[Wanted]:
    """Those whose table is there: one that is not is a finding of its own."""
    if not missing:
        return []
    tables = {table.name for table in maintain.measure(look.database, look.queue).tables}
    return [one for one in missing if one.table in tables]


def _bare(text: str) -> str:
    """Without what the server writes otherwise than the script: brackets, quotes, blanks."""
    return re.sub(r'[\s()"\[\]]', "", text).lower()


def _unquoted(name: str) -> str:
    return name[1:-1].replace(name[-1] * 2, name[-1])
