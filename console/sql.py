"""Named statements from `queries/`: loading, rendering for one queue, running into row types.

A file of `queries/` is SQL that its engine would take as it stands, for a queue whose name is
the text `{queue}`. Rendering replaces two things only:

- a quoted identifier with a placeholder in it, `"{queue}_push"`, becomes that identifier for the
  real queue, quoted by the engine's dialect (`[{queue}_push]` for SQL Server);
- a quoted literal with a placeholder in it, `'{size}'`, becomes that value as a literal. An
  identifier inside a literal (`'"{schema}"."{queue}_seq"'`) is quoted as an identifier first.

Lines between `-- when option=a|b` and `-- end` stay only where the queue has such an option;
`-- when role due_at` (or `-- when no role due_at`) asks for a column with that role. A line `GO` of
a script ends a batch, for engines that want them sent one by one. Values that change from call to
call are never rendered: they are bound, as `:name`.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, TextClause, Unicode, text
from sqlalchemy.engine.interfaces import Dialect

from console.errors import UsageError

Row = TypeVar("Row")

_NAME = re.compile(r"^-- name: (?P<name>[a-z][a-z0-9_]*)$", re.MULTILINE)
_WHEN = re.compile(
    r"^\s*-- when (?:(?P<no>no )?role (?P<role>\w+)|(?P<option>\w+)=(?P<values>[\w|]+))$"
)
_END = re.compile(r"^\s*-- end$")
_BATCH_END = re.compile(r"^GO$", re.MULTILINE)
# A quoted identifier by the sign that opens it in the dialect; in PostgreSQL "[" is a subscript.
_QUOTED_NAMES = {'"': r'"(?:[^"]|"")*"', "[": r"\[(?:[^\]\n]|\]\])*\]"}
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_BODY_QUOTE = "$dbq$"
_PLAIN: dict[str, Dialect] = {}


@dataclasses.dataclass(frozen=True)
class Statement:
    """One named statement (or script) as it stands in its file."""

    engine: str
    file: str
    name: str
    comment: str
    """What it returns: the comment's first line under the name."""
    template: str

    @property
    def label(self) -> str:
        """How the server's DBA sees it, in the comment at its head."""
        return f"{self.file}.{self.name}"


@dataclasses.dataclass(frozen=True)
class Scope:
    """What a rendering may put in: the names, the options and the roles of one queue."""

    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    roles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Role -> column. A role's column is also the value of its placeholder."""


def queries_folder() -> Traversable:
    """Where the SQL lies: inside the installed package, else beside it (a checkout)."""
    packaged = resources.files("console") / "queries"
    if packaged.is_dir():
        return packaged
    return Path(__file__).resolve().parent.parent / "queries"


@cache
def statements(engine: str, file: str) -> Mapping[str, Statement]:
    """All statements of one file, by name, in the order of the file. KeyError where it lacks."""
    path = queries_folder() / engine / f"{file}.sql"
    if not path.is_file():
        raise KeyError(f"{engine}/{file}.sql")
    parts = _NAME.split(path.read_text(encoding="utf-8"))
    found: dict[str, Statement] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        comment, _, template = body.strip("\n").partition("\n")
        if name in found:
            raise ValueError(f"{engine}/{file}.sql names {name!r} twice")
        if not comment.startswith("-- "):
            raise ValueError(f"{engine}/{file}.sql: {name!r} lacks its line of comment")
        found[name] = Statement(engine, file, name, comment[3:], template.strip("\n"))
    return found


def quote_identifier(dialect: Dialect, name: str) -> str:
    """`name`, whole, quoted the way the dialect quotes, whatever is in it."""
    quoted: str = _plain(dialect).identifier_preparer.quote_identifier(name)
    return quoted


def quote_literal(dialect: Dialect, value: str) -> str:
    """`value` as a character literal of the dialect."""
    plain = _plain(dialect)
    # The dialect's own kind of text: N'...' for SQL Server, which would lose signs without the N.
    process = Unicode().dialect_impl(plain).literal_processor(plain)
    if process is None:
        raise TypeError(f"the dialect {dialect.name} renders no literals")
    return str(process(value))


def _plain(dialect: Dialect) -> Dialect:
    # A paramstyle without percent signs: the preparer would double those in names otherwise.
    if dialect.name not in _PLAIN:
        _PLAIN[dialect.name] = type(dialect)(paramstyle="named")  # type: ignore[call-arg]
    return _PLAIN[dialect.name]


def script(statement: Statement, dialect: Dialect, scope: Scope) -> str:
    """The statement's full text, without bound values: what a DBA could paste."""
    return _render(statement, dialect, scope, for_text=False)


def query(statement: Statement, dialect: Dialect, scope: Scope) -> TextClause:
    """The statement ready to be executed with bound values."""
    return text(f"/* dbq {statement.label} */ " + _render(statement, dialect, scope, for_text=True))


@dataclasses.dataclass(frozen=True)
class Part:
    """One member of a union, rendered; it may be kept and used again."""

    label: str
    text: str


def part(statement: Statement, dialect: Dialect, scope: Scope) -> Part:
    """The statement, which binds nothing, as a member of unions."""
    rendered = _render(statement, dialect, scope, for_text=False)
    return Part(statement.label, rendered.rstrip().removesuffix(";"))


def fetch_union(connection: Connection, row_type: type[Row], parts: Sequence[Part]) -> list[Row]:
    """The rows of all parts, in no order, by one statement; they must have the same columns."""
    label = "+".join(sorted({part.label for part in parts}))
    # The part may end with a comment, which must not take the bracket in.
    body = "\nUNION ALL\n".join(f"({part.text}\n)" for part in parts)
    result = connection.exec_driver_sql(
        f"/* dbq {label} */ {body}", execution_options={"no_parameters": True}
    )
    return rows_of(result.keys(), result.fetchall(), row_type, label)


def piped(
    steps: Sequence[tuple[str, Statement]], last: Statement, dialect: Dialect, scope: Scope
) -> TextClause:
    """One statement: each step is a table, under its name, for those after it and for the last."""
    label = "+".join(statement.label for statement in (*(step for _, step in steps), last))
    tables = (f"{name} AS ({_piece(step, dialect, scope)})" for name, step in steps)
    return text(f"/* dbq {label} */ WITH {', '.join(tables)} {_piece(last, dialect, scope)}")


def _piece(statement: Statement, dialect: Dialect, scope: Scope) -> str:
    return _render(statement, dialect, scope, for_text=True).rstrip("; \n")


def batches(statement: Statement, dialect: Dialect, scope: Scope) -> list[str]:
    """What a script sends to the server, one after the other: all of it, or up to each `GO`.

    Split before names are put in, so that none of them can end a batch.
    """
    parts = _BATCH_END.split(_choose(statement, scope))
    return [
        _fill(dataclasses.replace(statement, template=part), dialect, scope, for_text=False)
        for part in parts
        if part.strip()
    ]


def run_script(connection: Connection, statement: Statement, scope: Scope) -> None:
    """Run a script of several statements, which binds nothing."""
    for batch in batches(statement, connection.dialect, scope):
        # Without parameters the driver takes several statements at once and leaves "%" alone.
        connection.exec_driver_sql(
            f"/* dbq {statement.label} */\n{batch}", execution_options={"no_parameters": True}
        )


def fetch(
    connection: Connection,
    row_type: type[Row],
    statement: Statement,
    scope: Scope,
    **values: object,
) -> list[Row]:
    """Run the statement and return its rows as `row_type`, a dataclass.

    Raises TypeError, naming the columns, when the statement's are not exactly the dataclass's.
    """
    try:
        result = connection.execute(query(statement, connection.dialect, scope), values)
    except UnicodeEncodeError as error:
        # The driver meets it before the server does, and it is no error of the driver's family.
        raise UsageError(
            "The text is not valid Unicode.",
            why=str(error),
            next_step="Send it in UTF-8, or use a queue with payload=bytes.",
        ) from error
    return rows_of(result.keys(), result.fetchall(), row_type, statement.label)


def rows_of(names: Any, rows: Any, row_type: type[Row], label: str) -> list[Row]:
    """The rows of a result as `row_type`; a column that drifted fails with its name."""
    returned = tuple(names)
    expected = tuple(field.name for field in dataclasses.fields(row_type))  # type: ignore[arg-type]
    if returned != expected:
        raise TypeError(
            f"{label} returned the columns {returned}, {row_type.__name__} has {expected}"
        )
    return [row_type(*map(_in_utc, row)) for row in rows]


def _in_utc(value: object) -> object:
    """A time without a zone is UTC: all designs keep it so, whatever the column's type tells."""
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


@cache
def _lexer(opening_quote: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What a rendering looks at (comments, quoted identifiers, literals), and identifiers alone."""
    name = _QUOTED_NAMES[opening_quote]
    comment, literal = r"--[^\n]*|/\*.*?\*/", r"N?'(?:[^']|'')*'"
    tokens = rf"(?P<comment>{comment})|(?P<identifier>{name})|(?P<literal>{literal})"
    return re.compile(tokens, re.DOTALL), re.compile(name)


def _render(statement: Statement, dialect: Dialect, scope: Scope, *, for_text: bool) -> str:
    chosen = dataclasses.replace(statement, template=_choose(statement, scope))
    return _fill(chosen, dialect, scope, for_text=for_text)


def _fill(statement: Statement, dialect: Dialect, scope: Scope, *, for_text: bool) -> str:
    """The names and values put into a template that has no more conditions."""
    values = {**scope.values, **scope.roles}
    template = statement.template.replace(_BODY_QUOTE, _body_quote(values))

    tokens, identifiers = _lexer(_plain(dialect).identifier_preparer.initial_quote)

    def fill(quoted: str) -> str:
        return _PLACEHOLDER.sub(lambda match: values[match[1]], quoted)

    def identifier(match: re.Match[str]) -> str:
        token = match[0]
        if not _PLACEHOLDER.search(token):
            return token
        close = token[-1]
        return quote_identifier(dialect, fill(token[1:-1].replace(close * 2, close)))

    def literal(token: str) -> str:
        if not _PLACEHOLDER.search(token):
            return token
        inner = token[token.index("'") + 1 : -1].replace("''", "'")
        pieces = identifiers.split(inner)
        names = [identifier(match) for match in identifiers.finditer(inner)]
        filled = [fill(piece) for piece in pieces]
        whole = filled[0] + "".join(n + p for n, p in zip(names, filled[1:], strict=True))
        return quote_literal(dialect, whole)

    def replace(match: re.Match[str]) -> str:
        if match["comment"] is not None:
            return "" if for_text else match[0]
        replaced = identifier(match) if match["identifier"] is not None else literal(match[0])
        return replaced.replace(":", "\\:") if for_text else replaced

    return tokens.sub(replace, template)


def _choose(statement: Statement, scope: Scope) -> str:
    """The template without the lines whose condition this queue does not meet."""
    kept: list[str] = []
    open_conditions: list[bool] = []
    for line in statement.template.split("\n"):
        if when := _WHEN.match(line):
            if when["role"]:
                open_conditions.append((when["role"] in scope.roles) != bool(when["no"]))
            else:
                wanted = when["values"].split("|")
                open_conditions.append(scope.options.get(when["option"]) in wanted)
        elif _END.match(line):
            if not open_conditions:
                raise ValueError(f"{statement.label}: a '-- end' has no '-- when' that can be read")
            open_conditions.pop()
        elif all(open_conditions):
            kept.append(line)
    if open_conditions:
        raise ValueError(f"{statement.label}: a '-- when' has no '-- end'")
    return "\n".join(kept)


def _body_quote(values: Mapping[str, str]) -> str:
    """A dollar quote for function bodies that stands in none of the names put into them."""
    quote, number = _BODY_QUOTE, 0
    while any(quote in value for value in values.values()):
        number += 1
        quote = f"$dbq{number}$"
    return quote
