"""Where in a TOML file each value stands, which `tomllib` does not tell."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Path = tuple[str, ...]


@dataclass(frozen=True)
class Statement:
    """A table's head, or a key with its value."""

    first: int
    """Its lines, from 1."""
    last: int
    table: Path
    """The table that it begins, or in which it stands."""
    paths: tuple[Path, ...]
    """Everything that it sets, whole; the first is itself or what is above it."""
    is_head: bool


def lines(text: str) -> dict[Path, int]:
    """The path of every table and value -> the line, from 1, on which it begins."""
    found: dict[Path, int] = {}
    for statement in statements(text):
        for path in statement.paths:
            found.setdefault(path, statement.first)
    return found


def statements(text: str) -> Iterator[Statement]:
    """What the text says, in its order; comments are left out.

    The text must be TOML that `tomllib` takes. It is read statement by statement: a statement
    goes on until it can be read by itself, so no second parser decides where a value ends.
    """
    table: Path = ()
    statement, begins = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if not statement:
            begins = number
        statement += line + "\n"
        try:
            read = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        paths = list(_paths(read))
        is_head = statement.lstrip().startswith("[")
        if is_head:
            table = paths[-1]
        else:
            paths = [(*table, *path) for path in paths]
        if paths:
            yield Statement(begins, number, table, tuple(paths), is_head)
        statement = ""


def _paths(table: Mapping[str, Any], above: Path = ()) -> Iterator[Path]:
    for name, value in table.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from _paths(value, (*above, name))
