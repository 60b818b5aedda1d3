"""What this console would install, code and columns, parsed from the scripts that install it."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from console import sql
from console.catalog import Kind, Queue
from console.engines import Product


@dataclass(frozen=True)
class Routine:
    name: str
    signature: str
    """With another one, callers see another function; empty where it can be altered."""
    body: str
    """With its settings."""


@dataclass(frozen=True)
class ShippedColumn:
    table: str
    name: str
    definition: str
    quoted_table: str

    @property
    def repairable(self) -> bool:
        """Whether it can be added to a table with rows."""
        definition = self.definition.upper()
        has_value = "NOT NULL" not in definition or "DEFAULT" in definition
        return has_value and not re.search(r"\b(GENERATED|IDENTITY|PRIMARY KEY)\b", definition)

    @property
    def statement(self) -> str:
        return f"ALTER TABLE {self.quoted_table} ADD {self.name} {self.definition}"

    @property
    def default(self) -> str:
        """Its clause of the definition, on SQL Server with the constraint's name; or empty."""
        match = _DEFAULT.search(self.definition)
        return match[0] if match else ""

    def has_default(self, installed: str) -> bool:
        """Whether a default, as a server writes it, is the shipped one."""
        match = _DEFAULT.search(self.definition)
        return _plain(installed) == (_plain(match["value"]) if match else "")


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
_SETTING = re.compile(r"SET (\w+) = '?([^'\n]*?)'?(?=\s+SET\s|\s*\n|\s*\Z)")
_TABLE = re.compile(
    rf"CREATE (?:UNLOGGED )?TABLE (?:IF NOT EXISTS )?(?P<table>{_IDENT}\.(?P<name>{_IDENT})) \(\n"
    r"(?P<columns>.*?)\n\s*\)",
    re.DOTALL,
)
_SEQUENCE = re.compile(rf"CREATE SEQUENCE (?:IF NOT EXISTS )?{_IDENT}\.(?P<name>{_IDENT})")
_COLUMN = re.compile(r"^\s*(?P<name>[a-z]\w*) (?P<definition>.+?),?\s*$")
_NO_COLUMN = re.compile(r"\s*(?:CONSTRAINT|PRIMARY|UNIQUE|CHECK|INDEX|WITH|FOREIGN)\b")
_DEFAULT = re.compile(
    rf"(?:\bCONSTRAINT {_IDENT} )?(?<!\bBY )\bDEFAULT (?P<value>N?'(?:[^']|'')*'|\w+(?:\(\))?)"
)
_CAST = re.compile(r"::[a-z ]+$")
_INDEX = re.compile(
    rf"^CREATE (?:NONCLUSTERED )?INDEX (?:{_IDENT} )?ON (?P<table>{_IDENT}\.{_IDENT}) .*?;",
    re.MULTILINE | re.DOTALL,
)
_NAMED_INDEX = re.compile(
    rf"CREATE (?:UNIQUE )?INDEX (?:IF NOT EXISTS )?(?P<name>{_IDENT})\s+ON dbq\b"
)
_COMMENT = re.compile(r"""("(?:[^"]|"")*"|\[(?:[^\]]|\]\])*\])|--[^\n]*""")
"""A comment, or a quoted name, in which two dashes start none."""
_Scripts = Callable[[Product, Queue], Iterable[str]]
_TYPE_NAMES = {"timestamptz": "timestamp with time zone", "int8": "bigint"}
"""Types as the scripts write them -> as PostgreSQL's catalog does."""


def code(product: Product, queue: Queue) -> list[Routine]:
    if queue.kind is not Kind.INSTALLED:
        return []
    texts = _batches(product, queue, lambda _, of: code_scripts(of))
    routiness = [code_of(product, text) for text in texts]
    return [routine for some in routiness for routine in some]


def code_of(product: Product, text: str) -> list[Routine]:
    """The routines that a script of ours, or a definition kept by the server, creates."""
    if product.keeps_definitions:
        return [
            # Without CREATE or ALTER, and without blanks at either end.
            Routine(unquoted(m["name"]), "", m["rest"].replace("\r\n", "\n").strip())
            for m in _PROCEDURE.finditer(text)
        ]
    return [
        Routine(
            unquoted(m["name"]),
            f"({_arguments(m['arguments'])}) RETURNS {_result(m['result'])}",
            body_of([f"{k}={v}" for k, v in _SETTING.findall(m["settings"])], m["body"]),
        )
        for m in _FUNCTION.finditer(text)
    ]


def body_of(settings: Sequence[str], body: str) -> str:
    """A function's settings and body, for comparison."""
    return "\n".join((*sorted(settings), body))


def columns(product: Product, queue: Queue) -> list[ShippedColumn]:
    return _columns(_batches(product, queue, _table_scripts))


def tables_of(product: Product, queue: Queue) -> list[str]:
    """The scripts that create the design's tables."""
    scripts = [f"{queue.design.name}.{name}" for name in ("tables", "added")]
    return [script for script in scripts if sql.has(product, script)]


def added(product: Product, queue: Queue) -> list[str]:
    """The script, if any, that creates what a queue of an older version lacks."""
    script = f"{queue.design.name}.added"
    return [script] if sql.has(product, script) and queue.kind is Kind.INSTALLED else []


def code_scripts(queue: Queue) -> list[str]:
    """The scripts that create the queue's functions (procedures)."""
    waits = queue.options.get("notify") == "on"
    return [f"{queue.design.name}.functions", *(["common.wait_functions"] if waits else [])]


def added_sequences(product: Product, queue: Queue) -> list[str]:
    """The sequences that `added` creates: where one is missing, the script has to run."""
    texts = _batches(product, queue, added)
    return [unquoted(match["name"]) for text in texts for match in _SEQUENCE.finditer(text)]


def catalog_columns(product: Product) -> list[ShippedColumn]:
    return _columns(_catalog(product))


def catalog_indexes(product: Product) -> list[str]:
    """The names of those that are no keys."""
    return [unquoted(m["name"]) for text in _catalog(product) for m in _NAMED_INDEX.finditer(text)]


def catalog_code(product: Product) -> list[Routine]:
    """The functions of its triggers, where those have functions."""
    return [routine for text in _catalog(product) for routine in code_of(product, text)]


def _catalog(product: Product) -> list[str]:
    return sql.batches("catalog.bootstrap", product.dialect)


def indexes_on(product: Product, queue: Queue, column: ShippedColumn) -> list[str]:
    """The statements that create the indexes on a column, which are missing with it."""
    word = re.compile(rf"\b{column.name}\b")
    return [
        match[0]
        for text in _batches(product, queue, _table_scripts)
        for match in _INDEX.finditer(text)
        if match["table"] == column.quoted_table
        and word.search(match[0].removeprefix(match["table"]))
    ]


def _columns(texts: Sequence[str]) -> list[ShippedColumn]:
    columns = []
    for text in texts:
        for table in _TABLE.finditer(text):
            for commented in table["columns"].split("\n"):
                line = _COMMENT.sub(r"\1", commented)
                column = None if _NO_COLUMN.match(line) else _COLUMN.match(line)
                if column:
                    name = unquoted(table["name"])
                    columns.append(
                        ShippedColumn(name, column["name"], column["definition"], table["table"])
                    )
    return columns


def _batches(product: Product, queue: Queue, scripts: _Scripts) -> list[str]:
    scope = queue.scope(product)
    chosen = scripts(product, queue)
    return [text for part in chosen for text in sql.batches(part, product.dialect, scope)]


def _table_scripts(product: Product, queue: Queue) -> Iterator[str]:
    if queue.kind is Kind.INSTALLED:
        yield from tables_of(product, queue)
        if queue.options.get("notify") == "on":
            yield "common.waiting"
    yield "common.archive"


def unquoted(name: str) -> str:
    if name[0] in '"[':
        close = '"' if name[0] == '"' else "]"
        return name[1:-1].replace(close * 2, close)
    return name


def _plain(default: str) -> str:
    """Without what servers add: parentheses, a cast, capitals; of a text without its N."""
    text = default
    while text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    text = _CAST.sub("", text)
    return text.removeprefix("N") if "'" in text else text.lower()


def _arguments(text: str) -> str:
    return ", ".join(_typed(argument) for argument in text.split(",") if argument.strip())


def _typed(argument: str) -> str:
    name, kind, *rest = argument.replace('"', "").split()
    plain = kind.removesuffix("[]")
    array = kind[len(plain) :]
    return " ".join((name, _TYPE_NAMES.get(plain, plain) + array, *rest))


def _result(text: str) -> str:
    if text.startswith("TABLE"):
        return f"TABLE({_arguments(text[text.index('(') + 1 : -1])})"
    *words, kind = text.split()
    return " ".join((*words, _TYPE_NAMES.get(kind, kind)))
