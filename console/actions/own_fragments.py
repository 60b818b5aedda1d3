"""Whether what a user's own preset defines are expressions that write nothing: the server's own
parser and planner say so, of the table that is there, and run none of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from console import sql
from console.catalog import Queue
from console.designs.own_file import OwnFile
from console.engines import product_of
from console.errors import ConnectionFailedError, RefusedError, UsageError
from console.formats import numbered

if TYPE_CHECKING:
    from sqlalchemy import Connection

_CALLED = re.compile(r"([a-z_]\w*)\s*\(", re.IGNORECASE)
_SUBQUERY = "dbq_value"
_WRITING = {
    "ModifyTable": "it writes: an expression only reads",
    "LockRows": "it locks rows (FOR UPDATE): an expression only reads",
}
_FEW_ROWS = 100_000
_ADVICE = {
    "a time": ": where a column keeps UTC without a zone, timezone('UTC', m.COLUMN)",
    "a text": ": CAST(... AS text)",
}


@dataclass(frozen=True)
class Fragment:
    name: str
    """What it is for; of a column that is set: `requeue: column`."""
    type: str
    """By the server; empty: it has none."""
    problem: str
    """Why it cannot be taken; empty: it can."""


@dataclass(frozen=True)
class _Typed:
    type: str
    kind: str


@dataclass(frozen=True)
class StatesRow:
    states: str
    """With blanks between them; empty: in none."""
    status: str | None
    """Of rows in none."""
    rows: int
    id: str | None
    """One of them."""

    @property
    def several(self) -> bool:
        return " " in self.states


def fragments(connection: Connection, queue: Queue, file: OwnFile) -> list[Fragment]:
    """Each of the file's, looked at by the server. In a read-only transaction; nothing is run."""
    return [_check_fragment(connection, queue, *one) for one in file.fragments()]


def _check_fragment(
    connection: Connection, queue: Queue, name: str, definition: str, kind: str
) -> Fragment:
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415  # a verb imports what it uses

    try:
        with connection.begin_nested():
            why = _written(connection, queue, definition)
            if why:
                return Fragment(name, "", why)
            found = sql.row(
                connection, _Typed, *fragment_statement(connection, queue, "typed", definition)
            )
    except DBAPIError as error:
        told = product_of(connection).translate(error, f"look at {name}")
        if isinstance(told, RefusedError) and not queue.design.trusted:
            told.next_step = (
                "What is not trusted is looked at by dbq_reader: whoever owns what the preset "
                "reads has to grant it SELECT on that."
            )
        if isinstance(told, ConnectionFailedError | RefusedError):
            raise told from error
        return Fragment(name, "", told.why)
    if kind and found.kind != kind:
        return Fragment(name, found.type, f"it is {found.type}, not {kind}{_ADVICE.get(kind, '')}")
    return Fragment(name, found.type, "")


def fragment_statement(
    connection: Connection, queue: Queue, statement: str, definition: str
) -> tuple[sql.Statement, sql.Scope]:
    """The statement of own.sql about one definition of the queue's preset."""
    found = sql.statement(connection.dialect.name, f"{queue.design.name}.{statement}")
    template = found.template.replace("{fragment}", f"{{{definition}}}")
    return replace(found, template=template), queue.scope(connection)


def _written(connection: Connection, queue: Queue, definition: str) -> str:
    """Why it does more than to look; empty: it does not."""
    for name in ("planned", "nested"):
        statement, scope = fragment_statement(connection, queue, name, definition)
        for node in nodes(sql.value(connection, list, statement, scope)):
            if why := _WRITING.get(node["Node Type"]):
                return why
            if node.get("Alias") == _SUBQUERY:
                return _volatile(connection, statement, scope)
    return ""


def nodes(plan: list[Any]) -> Iterator[Mapping[str, Any]]:
    """All of a plan, the uppermost first."""
    left = [one["Plan"] for one in plan]
    while left:
        node = left.pop(0)
        left[:0] = node.get("Plans", [])
        yield node


def _volatile(connection: Connection, statement: sql.Statement, scope: sql.Scope) -> str:
    text = sql.script(statement, connection.dialect, scope)
    called = sorted({name.lower() for name in _CALLED.findall(text)})
    of = f"{scope.values['design']}.volatile"
    names = sql.values(connection, str, of, names=product_of(connection).array(called))
    which = f" ({', '.join(names)})" if names else ""
    return (
        f"it calls a function that is VOLATILE{which}: such a one may write, or differ from row to "
        "row. The time is statement_timestamp()"
    )


def count_states(connection: Connection, queue: Queue, n: int) -> list[StatesRow]:
    """In which states the first `n` rows are, most of them first."""
    of = f"{queue.design.name}.states_met"
    return sql.rows(connection, StatesRow, of, queue.scope(connection), n=n)


def overlap(row: StatesRow) -> str:
    states = " and ".join(row.states.split())
    return (
        f"{numbered(row.rows, 'row')} in two states at once, {states}, as that with the id {row.id}"
    )


def require(connection: Connection, queue: Queue, file: OwnFile) -> None:
    """UsageError, with all that is wrong, where the preset does not hold of the table as it is."""
    problems = [
        f"{one.name}: {one.problem}" for one in fragments(connection, queue, file) if one.problem
    ]
    if not problems:
        problems = [
            overlap(one) for one in count_states(connection, queue, _FEW_ROWS) if one.several
        ]
    if problems:
        raise UsageError(
            f"The preset {queue.design.name!r} does not hold of {queue.schema}.{queue.table}.",
            why="\n".join(problems),
            next_step=f"Correct {queue.design.file}, then: dbq-console preset check FILE",
        )
