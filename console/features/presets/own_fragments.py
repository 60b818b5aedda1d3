"""Checks that the definitions in a user's own preset are expressions that write nothing: by the
server's own parser and planner, on the actual table, without running them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from console import sql
from console.catalog import Queue
from console.engines import product_of
from console.errors import ConnectionFailedError, RefusedError, UsageError
from console.features.presets.designs.own_file import OwnFile
from console.formats import numbered
from console.monitor.scan_query import KeyType

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


_COMPARED = re.compile(
    r"\bm\.(\w+)\s*(?:[=<>!~@|#]|(?:NOT\s+)?(?:I?LIKE|IN|BETWEEN|SIMILAR)\b|IS\s+(?:NOT\s+)?DISTINCT)"
    r"|[=<>!~@|#]\s*m\.(\w+)",
    re.IGNORECASE,
)
"""A column that a bare operator compares, on its left or on its right."""


@dataclass(frozen=True)
class Fragment:
    name: str
    """Its key in the file; of a column that a verb sets: `requeue: column`."""
    type: str
    """By the server; empty: unknown."""
    problem: str
    """Why it cannot be used; empty: it can."""


@dataclass(frozen=True)
class _Typed:
    type: str
    kind: str


@dataclass(frozen=True)
class StatesRow:
    states: str
    """Separated by blanks; empty: none."""
    status: str | None
    """Of rows in no state."""
    rows: int
    id: str | None
    """Of one such row."""

    @property
    def several(self) -> bool:
        return " " in self.states


def fragments(connection: Connection, queue: Queue, file: OwnFile) -> list[Fragment]:
    """The file's definitions, checked by the server; needs a read-only transaction."""
    return [_check_fragment(connection, queue, *fragment) for fragment in file.fragments()]


def _check_fragment(
    connection: Connection, queue: Queue, name: str, definition: str, kind: str
) -> Fragment:
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415  # a verb imports what it uses

    try:
        with connection.begin_nested():
            if why := _write_problem(connection, queue, definition):
                return Fragment(name, "", why)
            if why := _operator_problem(connection, queue, definition):
                return Fragment(name, "", why)
            typed = sql.row(
                connection, _Typed, *fragment_statement(connection, queue, "typed", definition)
            )
    except DBAPIError as error:
        translated = product_of(connection).translate(error, f"check {name}")
        if isinstance(translated, RefusedError) and not queue.design.trusted:
            translated.next_step = (
                "A preset that is not trusted is checked as dbq_reader: the owner of what it reads "
                "must grant SELECT on it to dbq_reader."
            )
        if isinstance(translated, ConnectionFailedError | RefusedError):
            raise translated from error
        return Fragment(name, "", translated.why)
    if kind and typed.kind != kind:
        return Fragment(name, typed.type, f"it is {typed.type}, not {kind}{_ADVICE.get(kind, '')}")
    return Fragment(name, typed.type, "")


def fragment_statement(
    connection: Connection, queue: Queue, statement: str, definition: str
) -> tuple[sql.Statement, sql.Scope]:
    """A statement of own.sql for one definition of the queue's preset."""
    found = sql.statement(connection.dialect.name, f"{queue.design.name}.{statement}")
    template = found.template.replace("{fragment}", f"{{{definition}}}")
    return replace(found, template=template), queue.scope(connection)


def _write_problem(connection: Connection, queue: Queue, definition: str) -> str:
    """Why it may do more than read; empty: it only reads."""
    for name in ("planned", "nested"):
        statement, scope = fragment_statement(connection, queue, name, definition)
        for node in nodes(sql.value(connection, list, statement, scope)):
            if why := _WRITING.get(node["Node Type"]):
                return why
            if node.get("Alias") == _SUBQUERY:
                return _volatile(connection, statement, scope)
    return ""


def _operator_problem(connection: Connection, queue: Queue, definition: str) -> str:
    """Why a comparison is not the one that is meant: without a schema it finds the server's own
    operators, which take an extension's type for a text, and match nothing or something else."""
    statement, scope = fragment_statement(connection, queue, "typed", definition)
    text = sql.script(statement, connection.dialect, scope)
    for column in sorted({match[1] or match[2] for match in _COMPARED.finditer(text)}):
        bound = {"column": column}
        for key in sql.rows(connection, KeyType, "catalog.key_type", scope, **bound):
            if "pg_catalog" not in {key.schema, key.operators}:
                own = f"OPERATOR({key.operators or key.schema}.=)"
                return (
                    f"m.{column} has the type {key.schema}.{key.name}: compare it as "
                    f"CAST(m.{column} AS text), or by its own operator, as in m.{column} {own} 'x'"
                )
    return ""


def nodes(plan: list[Any]) -> Iterator[Mapping[str, Any]]:
    """All nodes of a query plan, the top one first."""
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
        f"it calls a function that is VOLATILE{which}: it may write, or differ from row to row. "
        "For the time use statement_timestamp()"
    )


def count_states(connection: Connection, queue: Queue, n: int) -> list[StatesRow]:
    """Counts the first `n` rows by their states, the most frequent first."""
    of = f"{queue.design.name}.state_combinations"
    return sql.rows(connection, StatesRow, of, queue.scope(connection), n=n)


def overlap(row: StatesRow) -> str:
    states = " and ".join(row.states.split())
    return (
        f"{numbered(row.rows, 'row')} in two states at once, {states}, such as the one with the id "
        f"{row.id}"
    )


def require(connection: Connection, queue: Queue, file: OwnFile) -> None:
    """UsageError, with all problems, where the preset does not fit the table."""
    problems = [
        f"{fragment.name}: {fragment.problem}"
        for fragment in fragments(connection, queue, file)
        if fragment.problem
    ]
    if not problems:
        problems = [
            overlap(states_row)
            for states_row in count_states(connection, queue, _FEW_ROWS)
            if states_row.several
        ]
    if problems:
        raise UsageError(
            f"The preset {queue.design.name!r} does not fit {queue.schema}.{queue.table}.",
            why="\n".join(problems),
            next_step=f"Correct {queue.design.file}, then: dbq-console preset check FILE",
        )
