"""A queue's own statements as its server has them, beside what this console would install."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from console import sql
from console.actions import shipped
from console.actions.upgrade import How, body_of, installed_code
from console.catalog import Queue
from console.engines import Database, Product


@dataclass(frozen=True)
class Part:
    """One function (procedure) or table."""

    kind: str
    """`function` or `table`."""
    name: str
    installed: str | None
    """Its text; None: it is not there, or this login may not see it."""
    shipped: str | None = None
    """What this console would install, where that is another text."""
    how: How | None = None
    """How they differ; None: they do not, or there is nothing to compare with."""


@dataclass(frozen=True)
class _Column:
    name: str
    type: str


def parts(database: Database, queue: Queue) -> tuple[Part, ...]:
    """Functions, then tables, as scripts make them. Of an adopted queue its table alone."""
    with database.transaction(f"read the code of {queue.name!r}", read_only=True) as connection:
        product = database.product
        return (*_functions(connection, product, queue), *_tables(connection, product, queue))


def _functions(connection: Connection, product: Product, queue: Queue) -> Iterator[Part]:
    wanted = {code.name: code for code in shipped.code(product, queue)}
    rows = installed_code(connection, product, queue, list(wanted)) if wanted else []
    for name, code in wanted.items():
        would = _text(code.name, code.signature, code.body)
        there = [row for row in rows if row.name == name]
        if not there:
            yield Part("function", name, None, would, How.MISSING)
        for row in there:
            body = body_of(product, row)
            if body is None:
                yield Part("function", name, None, would, How.HIDDEN)
                continue
            text = _text(row.name, row.signature, body)
            if row.signature != code.signature:
                yield Part("function", name, text, would, How.CALLED_OTHERWISE)
            elif body != code.body:
                yield Part("function", name, text, would, How.OTHER)
            else:
                yield Part("function", name, text)


def _text(name: str, signature: str, body: str) -> str:
    """A signature is empty where it is a part of the body."""
    return f"{name}{signature}\n{body}" if signature else f"{name} {body}"


def _tables(connection: Connection, product: Product, queue: Queue) -> Iterator[Part]:
    wanted: dict[str, list[shipped.Column]] = {}
    for column in shipped.columns(product, queue):
        wanted.setdefault(column.table, []).append(column)
    for table in dict.fromkeys((queue.table, *wanted)):
        columns = wanted.get(table, [])
        there = sql.fetch(
            connection,
            _Column,
            sql.statements(product.name, "catalog")["columns"],
            sql.Scope(),
            schema=queue.schema,
            table=table,
        )
        yield _table(table, there, columns)


def _table(table: str, there: Sequence[_Column], wanted: Sequence[shipped.Column]) -> Part:
    """Types are written in other words by scripts and by servers: columns are compared by name."""
    names = {column.name for column in there}
    lacking = [column for column in wanted if column.name not in names]
    installed = "\n".join(f"{column.name} {column.type}" for column in there)
    if not there:
        return Part("table", table, None, _columns(wanted), How.MISSING)
    if lacking:
        return Part("table", table, installed, f"{installed}\n{_columns(lacking)}", How.OLDER)
    return Part("table", table, installed)


def _columns(columns: Sequence[shipped.Column]) -> str:
    return "\n".join(f"{column.name} {column.definition}" for column in columns)
