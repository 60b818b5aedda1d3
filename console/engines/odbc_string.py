"""ODBC connection strings: `KEYWORD=value;KEYWORD={value};...`

Read by one parser, for the driver and for what is shown: what two would read differently could show
a password."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_KEYWORD = re.compile(r"[A-Za-z][\w ./-]*")


class MalformedError(ValueError):
    """A connection string that cannot be read; its text never repeats a value."""


@dataclass(frozen=True)
class Attribute:
    """A keyword with its value, which may contain any character."""

    keyword: str
    value: str
    braced: bool = False
    """Whether it was, or is to be, written in braces."""

    def is_(self, *keywords: str) -> bool:
        """Whether its keyword is one of these; case does not count."""
        return self.keyword.casefold() in {keyword.casefold() for keyword in keywords}

    def __str__(self) -> str:
        """As it stands in a connection string."""
        return f"{self.keyword}={in_braces(self.value) if self.braced else self.value}"


def is_keyword(text: str) -> bool:
    """Whether it can be a keyword."""
    return _KEYWORD.fullmatch(text) is not None


def in_braces(value: str) -> str:
    """The value in braces, where it may contain any character."""
    return "{" + value.replace("}", "}}") + "}"


def parse(text: str) -> list[Attribute]:
    """The attributes of a connection string, in order. MalformedError."""
    attributes = []
    at = 0
    while at < len(text):
        if text[at] in "; \t\r\n":
            at += 1
            continue
        keyword, equals, _ = text[at:].partition("=")
        if not equals or not is_keyword(keyword.strip()):
            raise MalformedError(
                f"Its part at character {at + 1} does not have the form keyword=value."
            )
        at += len(keyword) + 1
        while at < len(text) and text[at] in " \t":
            at += 1
        if braced := at < len(text) and text[at] == "{":
            value, at = _braced(text, at)
        else:
            end = text.find(";", at)
            end = len(text) if end < 0 else end
            value, at = text[at:end].strip(), end
        attributes.append(Attribute(keyword.strip(), value, braced))
    return attributes


def joined(attributes: Iterable[Attribute]) -> str:
    """The connection string of these attributes."""
    return ";".join(map(str, attributes))


def _braced(text: str, start: int) -> tuple[str, int]:
    """The value in braces at `start`, and its end. `}}` in it is one `}`."""
    at = start + 1
    while (at := text.find("}", at)) >= 0:
        rest = text[at + 1 :].lstrip(" \t")
        if not rest or rest.startswith(";"):
            return text[start + 1 : at].replace("}}", "}"), len(text) - len(rest)
        at += 2 if rest.startswith("}") else 1
    raise MalformedError(f"The brace at character {start + 1} is not closed as it should be.")
