"""Where in a TOML file each value stands, which `tomllib` does not tell."""

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[str, ...]


def lines(text: str) -> dict[Path, int]:
    """The path of every table and value -> the line, from 1, on which it begins.

    The text must be TOML that `tomllib` takes. It is read statement by statement: a statement
    goes on until it can be read by itself, so no second parser decides where a value ends.
    """
    found: dict[Path, int] = {}
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
        is_header = statement.lstrip().startswith("[")
        for path in paths:
            found.setdefault(path if is_header else (*table, *path), begins)
        if is_header:
            table = paths[-1]
        statement = ""
    return found


def _paths(table: Mapping[str, Any], above: Path = ()) -> Iterator[Path]:
    for name, value in table.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from _paths(value, (*above, name))
