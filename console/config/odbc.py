"""The connection string in a URL's `odbc_connect`, as far as its secrets are concerned."""

import re
from collections.abc import Callable

_WORD = re.compile(r"\s*([^=;{}]+?)\s*=\s*(\{(?:[^}]|\}\})*\}|[^;{][^;]*|)\s*(?:;|$)")

Words = list[tuple[str, str]]
"""Keywords with their values as they are written, braces and all."""


def words(text: str) -> Words | None:
    """The keywords of a connection string in their order; None where it cannot be read whole."""
    found, at = [], 0
    text = text.strip().rstrip(";")
    while at < len(text):
        word = _WORD.match(text, at)
        if word is None:
            return None
        found.append((word[1], word[2].strip()))
        at = word.end()
    return found


def written(found: Words) -> str:
    """The connection string of these words."""
    return ";".join(f"{keyword}={value}" for keyword, value in found)


def braced(value: str) -> str:
    """A value that may hold any sign, as it is written."""
    return "{" + value.replace("}", "}}") + "}"


def filled(value: str, fill: Callable[[str], str]) -> str:
    """A written value after `fill` put others' text into it: that text stays one value."""
    if value.startswith("{"):
        value = value[1:-1].replace("}}", "}")
    return braced(fill(value))
