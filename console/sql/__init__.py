"""Named statements from `queries/`: rendered for one queue, run into row types.

A statement is named by its file and name, `"common.push"`; the engine is that of the connection's
dialect. `rows`, `row` and `value` run a query, `run` a script; `query` and `script` render.
`templates` selects the lines for a queue; then two things are replaced:

- a quoted identifier with a placeholder in it, `"{queue}_push"`, becomes that identifier for the
  real queue, quoted by the engine's dialect (`[{queue}_push]` for SQL Server);
- a quoted literal with a placeholder in it, `'{size}'`, becomes that value as a literal. An
  identifier inside a literal (`'"{schema}"."{queue}_seq"'`) is quoted as an identifier first.

A line `GO` ends a batch of a script. Values that change from call to call are bound, `:name`, never
rendered.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from types import UnionType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from console.errors import UsageError
from console.sql import templates

if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult, TextClause
    from sqlalchemy.engine.interfaces import Dialect

Row = TypeVar("Row")
Scope = templates.Scope
Statement = templates.Statement
NOTHING = templates.NOTHING
UNTRUSTED_MARK, UNTRUSTED = templates.UNTRUSTED_MARK, templates.UNTRUSTED
statement = templates.statement
chosen = templates.chosen
_BATCH_END = re.compile(r"^GO$", re.MULTILINE)
# Quoted identifiers by the dialect's opening quote; in PostgreSQL "[" is a subscript.
_QUOTED_NAMES = {'"': r'"(?:[^"]|"")*"', "[": r"\[(?:[^\]\n]|\]\])*\]"}
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_BODY_QUOTE = "$dbq$"
_PLAIN: dict[str, Dialect] = {}
_CACHE_SIZE = 500
"""Rendered queries, with their scopes of about 6 kB each."""
Query: TypeAlias = "str | Statement | TextClause"
"""What `rows` and similar functions can run: a statement, its name, or a rendered query."""


class HasDialect(Protocol):
    """A connection or an engine module."""

    @property
    def dialect(self) -> Dialect: ...


def has(on: HasDialect, of: str) -> bool:
    """Whether the engine has the statement `of`."""
    return templates.there_is(on.dialect.name, of)


def quote_identifier(dialect: Dialect, name: str) -> str:
    """`name` as one identifier, quoted by the dialect, whatever it contains."""
    quoted: str = _plain(dialect).identifier_preparer.quote_identifier(name)
    return quoted


def quote_literal(dialect: Dialect, value: str) -> str:
    from sqlalchemy import Unicode  # noqa: PLC0415  # a verb imports what it uses

    plain = _plain(dialect)
    # The dialect's Unicode text: N'...' for SQL Server, which would lose characters without the N.
    process = Unicode().dialect_impl(plain).literal_processor(plain)
    if process is None:
        raise TypeError(f"the dialect {dialect.name} renders no literals")
    return str(process(value))


def _plain(dialect: Dialect) -> Dialect:
    # With a paramstyle of percent signs the preparer would double those in names.
    if dialect.name not in _PLAIN:
        _PLAIN[dialect.name] = type(dialect)(paramstyle="named")  # type: ignore[call-arg]
    return _PLAIN[dialect.name]


def script(of: str | Statement, dialect: Dialect, scope: Scope = NOTHING) -> str:
    """The statement's full text, without bound values: what a DBA could paste."""
    return _render(statement(dialect.name, of), dialect, scope, for_text=False)


def plain(text: str) -> str:
    return "\n".join(
        line for line in text.splitlines() if not line.strip().startswith("--")
    ).strip()


def query(of: str | Statement, dialect: Dialect, scope: Scope = NOTHING) -> TextClause:
    """The statement, ready to be executed with bound values."""
    return _query(statement(dialect.name, of), _plain(dialect), scope)


@templates.cleared_with_presets
@lru_cache(maxsize=_CACHE_SIZE)
def _query(found: Statement, dialect: Dialect, scope: Scope) -> TextClause:
    from sqlalchemy import text  # noqa: PLC0415  # a verb imports what it uses

    return text(f"/* dbq {found.label} */ " + _render(found, dialect, scope, for_text=True))


@dataclasses.dataclass(frozen=True)
class UnionMember:
    """A rendered member of a union; reusable."""

    label: str
    text: str


def part(of: str | Statement, dialect: Dialect, scope: Scope) -> UnionMember:
    """The statement, which binds nothing, as a member of `union`. Shared by databases with the same
    queues."""
    return _part(statement(dialect.name, of), dialect, scope)


@templates.cleared_with_presets
@lru_cache(maxsize=_CACHE_SIZE)
def _part(found: Statement, dialect: Dialect, scope: Scope) -> UnionMember:
    rendered = _render(found, dialect, scope, for_text=False)
    return UnionMember(found.label, rendered.rstrip().removesuffix(";"))


def union(connection: Connection, row_type: type[Row], parts: Sequence[UnionMember]) -> list[Row]:
    """The rows of all parts by one UNION ALL, unordered."""
    label = "+".join(sorted({part.label for part in parts}))
    # A line break, because a part may end with a comment.
    body = "\nUNION ALL\n".join(f"({part.text}\n)" for part in parts)
    result = connection.exec_driver_sql(
        f"/* dbq {label} */ {body}", execution_options={"no_parameters": True}
    )
    return rows_of(result.keys(), result.fetchall(), row_type, label)


def piped(
    steps: Sequence[tuple[str, str]], last: str, dialect: Dialect, scope: Scope
) -> TextClause:
    """One statement: each step is a common table expression, the last is the query."""
    names = tuple(name for name, _ in steps)
    found = tuple(statement(dialect.name, of) for of in (*(of for _, of in steps), last))
    return _piped(names, found, _plain(dialect), scope)


@templates.cleared_with_presets
@lru_cache(maxsize=_CACHE_SIZE)
def _piped(
    names: Sequence[str], found: Sequence[Statement], dialect: Dialect, scope: Scope
) -> TextClause:
    from sqlalchemy import text  # noqa: PLC0415  # a verb imports what it uses

    label = "+".join(one.label for one in found)
    *tables, end = (_render(one, dialect, scope, for_text=True).rstrip("; \n") for one in found)
    named = (f"{name} AS ({table})" for name, table in zip(names, tables, strict=True))
    return text(f"/* dbq {label} */ WITH {', '.join(named)} {end}")


def batches(of: str | Statement, dialect: Dialect, scope: Scope = NOTHING) -> list[str]:
    """The batches of a script, separated by `GO`; split before names are filled in."""
    found = statement(dialect.name, of)
    parts = _BATCH_END.split(chosen(found, scope))
    return [
        _fill(dataclasses.replace(found, template=part), dialect, scope, for_text=False)
        for part in parts
        if part.strip()
    ]


def run(connection: Connection, of: str | Statement, scope: Scope = NOTHING) -> None:
    """Run a script of several statements, which binds nothing."""
    label = _label(connection, of)
    for batch in batches(of, connection.dialect, scope):
        # Without parameters the driver accepts several statements and leaves "%" alone.
        connection.exec_driver_sql(
            f"/* dbq {label} */\n{batch}", execution_options={"no_parameters": True}
        )


def rows(
    connection: Connection,
    row_type: type[Row],
    of: Query,
    scope: Scope = NOTHING,
    /,
    **values: object,
) -> list[Row]:
    """The statement's rows as `row_type`, a dataclass; TypeError if their columns differ."""
    result = _executed(connection, of, scope, values)
    return rows_of(result.keys(), result.fetchall(), row_type, _label(connection, of))


def row(
    connection: Connection,
    row_type: type[Row],
    of: Query,
    scope: Scope = NOTHING,
    /,
    **values: object,
) -> Row:
    (found,) = rows(connection, row_type, of, scope, **values)
    return found


def values(
    connection: Connection,
    type_: type[Row] | UnionType,
    of: Query,
    scope: Scope = NOTHING,
    /,
    **bound: object,
) -> list[Row]:
    """The values of a statement's only column; TypeError if it has another number of columns."""
    result = _executed(connection, of, scope, bound)
    return values_of(result.keys(), result.fetchall(), type_, _label(connection, of))


def value(
    connection: Connection,
    type_: type[Row] | UnionType,
    of: Query,
    scope: Scope = NOTHING,
    /,
    **bound: object,
) -> Row:
    """The value of a statement that returns one column of exactly one row."""
    (found,) = values(connection, type_, of, scope, **bound)
    return found


def _label(connection: Connection, of: Query) -> str:
    if not isinstance(of, str | Statement):
        return of.text.removeprefix("/* dbq ").partition(" ")[0]
    return statement(connection.dialect.name, of).label


def _executed(
    connection: Connection, of: Query, scope: Scope, bound: Mapping[str, object]
) -> CursorResult[Any]:
    rendered = query(of, connection.dialect, scope) if isinstance(of, str | Statement) else of
    try:
        return connection.execute(rendered, bound)
    except UnicodeEncodeError as error:
        # Raised by the driver before sending, and not a subclass of its errors.
        raise UsageError(
            "The text is not valid Unicode.",
            why=str(error),
            next_step="Send it in UTF-8, or use a queue with payload=bytes.",
        ) from error


def rows_of(names: Any, rows: Any, row_type: type[Row], label: str) -> list[Row]:
    """The rows of a result as `row_type`; TypeError if the columns differ."""
    returned = tuple(names)
    expected = tuple(field.name for field in dataclasses.fields(row_type))  # type: ignore[arg-type]
    if returned != expected:
        raise TypeError(
            f"{label} returned the columns {returned}, {row_type.__name__} has {expected}"
        )
    # By columns: most have no value that changes, which C tells faster than a call for each.
    columns = [
        one if _UNCHANGED.issuperset(map(type, one)) else map(_known, one)
        for one in zip(*rows, strict=True)
    ]
    return list(map(row_type, *columns)) if columns else []


def values_of(names: Any, rows: Any, type_: type[Row] | UnionType, label: str) -> list[Row]:
    """The values of a result's only column."""
    if len(returned := tuple(names)) != 1:
        raise TypeError(f"{label} returned the columns {returned}, not one of {type_}")
    return [_known(value) for (value,) in rows]


def texts(value: Any) -> list[str]:
    """An array of a row: a list, or the JSON text of an engine that has no arrays."""
    found = json.loads(value) if isinstance(value, str) else value
    return [str(next(iter(it.values()))) if isinstance(it, dict) else str(it) for it in found or []]


_UNCHANGED = {int, str, bool, bytes, type(None)}
"""Types of values that `_known` leaves as they are."""


def _known(value: Any) -> Any:
    """A time without a zone is UTC in all designs; seconds since a time without end are unknown."""
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class EscapedText(str):
    """A text with bytes that are no UTF-8, which are escaped in it: `\\xff`."""

    raw: bytes
    """As the database has it."""


@cache
def _lexer(opening_quote: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns of comments, quoted identifiers and literals, and of identifiers alone."""
    name = _QUOTED_NAMES[opening_quote]
    comment, literal = r"--[^\n]*|/\*.*?\*/", r"N?'(?:[^']|'')*'"
    tokens = rf"(?P<comment>{comment})|(?P<identifier>{name})|(?P<literal>{literal})"
    return re.compile(tokens, re.DOTALL), re.compile(name)


def _render(statement: Statement, dialect: Dialect, scope: Scope, *, for_text: bool) -> str:
    for_queue = dataclasses.replace(statement, template=chosen(statement, scope))
    return _fill(for_queue, dialect, scope, for_text=for_text)


def _fill(statement: Statement, dialect: Dialect, scope: Scope, *, for_text: bool) -> str:
    """Fill names and values into a template without directives."""
    values = {**scope.values, **scope.roles}
    template = statement.template.replace(_BODY_QUOTE, _body_quote(values))

    opening = _plain(dialect).identifier_preparer.initial_quote

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise KeyError(
                f"{statement.label} has {match[0]}, and this queue no such role or value: for a "
                f"role's column put the lines between `-- when role {match[1]}` and `-- end`"
            )
        return values[match[1]]

    def fill(quoted: str) -> str:
        return _PLACEHOLDER.sub(value, quoted)

    def identifier(token: str) -> str:
        close = token[-1]
        return quote_identifier(dialect, fill(token[1:-1].replace(close * 2, close)))

    def literal(token: str) -> str:
        inner = token[token.index("'") + 1 : -1].replace("''", "'")
        _, identifiers = _lexer(opening)
        filled = [fill(piece) for piece in identifiers.split(inner)]
        names = [identifier(name) for name in identifiers.findall(inner)]
        text = filled[0] + "".join(n + p for n, p in zip(names, filled[1:], strict=True))
        return quote_literal(dialect, text)

    def put_in(token: str) -> str:
        text = identifier(token) if token[0] == opening else literal(token)
        return text.replace(":", "\\:") if for_text else text

    pieces = list(_pieces(template, opening, for_text=for_text))
    put = {token: put_in(token) for token in set(pieces[1::2])}
    pieces[1::2] = [put[token] for token in pieces[1::2]]
    return "".join(pieces)


@lru_cache(maxsize=templates.CACHE_SIZE)
def _pieces(template: str, opening_quote: str, *, for_text: bool) -> Sequence[str]:
    """The template in pieces: every second one is a quoted text with placeholders, the others are
    sent as they are. Cached for all queues."""
    tokens, _ = _lexer(opening_quote)
    pieces, begin = [""], 0
    for match in tokens.finditer(template):
        token = match[0]
        pieces[-1] += template[begin : match.start()]
        begin = match.end()
        if match["comment"] is not None:
            pieces[-1] += token if not for_text or UNTRUSTED.match(token) else ""
        elif _PLACEHOLDER.search(token):
            pieces += [token, ""]
        else:
            pieces[-1] += token.replace(":", "\\:") if for_text else token
    pieces[-1] += template[begin:]
    return tuple(pieces)


def _body_quote(values: Mapping[str, str]) -> str:
    """A dollar quote for function bodies that occurs in none of their names."""
    quote, number = _BODY_QUOTE, 0
    while any(quote in value for value in values.values()):
        number += 1
        quote = f"$dbq{number}$"
    return quote
