"""What this console would install, read from the very scripts that do: code and columns.

So there is no second list of them that could differ from the first.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from console import sql
from console.catalog import Kind, Queue
from console.engines import Product


@dataclass(frozen=True)
class Code:
    """One function or procedure."""

    name: str
    signature: str
    """Another one means that callers see another function; empty where that can be altered."""
    body: str
    """With its settings."""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    table: str
    name: str
    definition: str
    place: str
    """The table, quoted."""

    @property
    def mendable(self) -> bool:
        """Whether it can be added to rows that are there already."""
        words = self.definition.upper()
        filled = "NOT NULL" not in words or "DEFAULT" in words
        return filled and not re.search(r"\b(GENERATED|IDENTITY|PRIMARY KEY)\b", words)

    @property
    def statement(self) -> str:
        """Adds it."""
        return f"ALTER TABLE {self.place} ADD {self.name} {self.definition}"


_IDENT = r'(?:"(?:[^"]|"")*"|\[(?:[^\]]|\]\])*\]|\w+)'
_FUNCTION = re.compile(
    rf"^CREATE OR REPLACE FUNCTION {_IDENT}\.(?P<name>{_IDENT})\((?P<arguments>.*?)\)\s+"
    r"RETURNS (?P<result>(?:SETOF )?\w+|TABLE \(.*?\))\s+LANGUAGE plpgsql(?P<settings>.*?) "
    r"AS (?P<quote>\$dbq\d*\$)(?P<body>.*?)(?P=quote);",
    re.MULTILINE | re.DOTALL,
)
_PROCEDURE = re.compile(
    rf"^CREATE\s+(?:OR\s+ALTER\s+)?PROC(?:EDURE)?\s+{_IDENT}\.(?P<name>{_IDENT})(?P<rest>.*)",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
_SETTING = re.compile(r"SET (\w+) = '?([^'\s]*)'?")
_TABLE = re.compile(
    rf"CREATE (?:UNLOGGED )?TABLE (?:IF NOT EXISTS )?(?P<place>{_IDENT}\.(?P<name>{_IDENT})) \(\n"
    r"(?P<columns>.*?)\n\s*\)",
    re.DOTALL,
)
_COLUMN = re.compile(r"^\s*(?P<name>[a-z]\w*) (?P<definition>.+?),?\s*$")
_NO_COLUMN = re.compile(r"\s*(?:CONSTRAINT|PRIMARY|UNIQUE|CHECK|INDEX|WITH|FOREIGN)\b")
_INDEX = re.compile(
    rf"^CREATE (?:NONCLUSTERED )?INDEX (?:{_IDENT} )?ON (?P<place>{_IDENT}\.{_IDENT}) .*?;",
    re.MULTILINE | re.DOTALL,
)
_COMMENT = re.compile(r"""("(?:[^"]|"")*"|\[(?:[^\]]|\]\])*\])|--[^\n]*""")
"""Or a quoted name, in which two dashes are no comment."""
_Scripts = Callable[[Product, Queue], Iterator[sql.Statement]]
_CATALOG_WORDS = {"timestamptz": "timestamp with time zone", "int8": "bigint"}
"""Types as the scripts write them -> as PostgreSQL does."""


def code(product: Product, queue: Queue) -> list[Code]:
    """All functions (procedures) of the queue."""
    if queue.kind is not Kind.INSTALLED:
        return []
    found = [code_of(product, text) for text in _batches(product, queue, _code_scripts)]
    return [one for some in found for one in some]


def code_of(product: Product, text: str) -> list[Code]:
    """Those that a text makes: a script of ours, or a definition that the server kept."""
    if product.name == "mssql":
        return [
            # How it is made (CREATE, ALTER) is no part of it, nor are blanks at its ends.
            Code(_unquoted(m["name"]), "", m["rest"].replace("\r\n", "\n").strip())
            for m in _PROCEDURE.finditer(text)
        ]
    return [
        Code(
            _unquoted(m["name"]),
            f"({_arguments(m['arguments'])}) RETURNS {_result(m['result'])}",
            body_of([f"{k}={v}" for k, v in _SETTING.findall(m["settings"])], m["body"]),
        )
        for m in _FUNCTION.finditer(text)
    ]


def body_of(settings: Sequence[str], body: str) -> str:
    """What a function does, with its settings before it."""
    return "\n".join((*sorted(settings), body))


def columns(product: Product, queue: Queue) -> list[Column]:
    """All columns of the queue's tables."""
    return _columns(_batches(product, queue, _table_scripts))


def catalog_columns(product: Product) -> list[Column]:
    """All columns of the console's own tables."""
    bootstrap = sql.statements(product.name, "catalog")["bootstrap"]
    return _columns(sql.batches(bootstrap, product.dialect, sql.Scope()))


def indexes_on(product: Product, queue: Queue, column: Column) -> list[str]:
    """Statements that make the indexes that a column is in: without it there is none of them."""
    word = re.compile(rf"\b{column.name}\b")
    return [
        match[0]
        for text in _batches(product, queue, _table_scripts)
        for match in _INDEX.finditer(text)
        if match["place"] == column.place and word.search(match[0].removeprefix(match["place"]))
    ]


def _columns(texts: Sequence[str]) -> list[Column]:
    found = []
    for text in texts:
        for table in _TABLE.finditer(text):
            for commented in table["columns"].split("\n"):
                line = _COMMENT.sub(r"\1", commented)
                column = None if _NO_COLUMN.match(line) else _COLUMN.match(line)
                if column:
                    name = _unquoted(table["name"])
                    found.append(Column(name, column["name"], column["definition"], table["place"]))
    return found


def _batches(product: Product, queue: Queue, scripts: _Scripts) -> list[str]:
    scope = queue.scope(product)
    chosen = scripts(product, queue)
    return [text for part in chosen for text in sql.batches(part, product.dialect, scope)]


def _code_scripts(product: Product, queue: Queue) -> Iterator[sql.Statement]:
    yield sql.statements(product.name, queue.design.name)["functions"]
    if queue.options.get("notify") == "on":
        yield sql.statements(product.name, "common")["wait_functions"]


def _table_scripts(product: Product, queue: Queue) -> Iterator[sql.Statement]:
    common = sql.statements(product.name, "common")
    if queue.kind is Kind.INSTALLED:
        yield sql.statements(product.name, queue.design.name)["tables"]
        if queue.options.get("notify") == "on":
            yield common["waiting"]
    yield common["archive"]


def _unquoted(name: str) -> str:
    if name[0] in '"[':
        close = '"' if name[0] == '"' else "]"
        return name[1:-1].replace(close * 2, close)
    return name


def _arguments(text: str) -> str:
    """As PostgreSQL writes them."""
    return ", ".join(_typed(argument) for argument in text.split(",") if argument.strip())


def _typed(argument: str) -> str:
    name, kind, *rest = argument.replace('"', "").split()
    plain = kind.removesuffix("[]")
    array = kind[len(plain) :]
    return " ".join((name, _CATALOG_WORDS.get(plain, plain) + array, *rest))


def _result(text: str) -> str:
    if text.startswith("TABLE"):
        return f"TABLE({_arguments(text[text.index('(') + 1 : -1])})"
    *words, kind = text.split()
    return " ".join((*words, _CATALOG_WORDS.get(kind, kind)))
