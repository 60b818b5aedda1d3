"""Connection URLs, with secrets kept apart for the driver."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from console import engines
from console.engines import odbc_string
from console.engines.odbc_string import Attribute
from console.errors import ConnectionFailedError, UsageError

if TYPE_CHECKING:
    from sqlalchemy import URL

HIDDEN = "***"

VARIABLE = re.compile(r"\$\{env:([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r".*(password|passwd|passphrase|pwd|secret|token)", re.IGNORECASE)
"""Names of values in a query or a connection string that are never shown. The path of a password
file, such as libpq's `passfile`, is not secret."""

_ODBC = "odbc_connect"
_PASSWORD = "password"  # noqa: S105  # the name of a part


@dataclass(frozen=True, repr=False)
class ConnectionUrl:
    """A URL as written; its `${env:NAME}` are looked up when the connection is opened.

    If it is a single variable with the whole URL, `known` is needed for more.
    """

    _parsed: URL | None
    """With a number in place of each variable, since numbers are valid in every part of a URL."""
    _variables: Mapping[str, str]
    """Number -> the variable's name."""

    @classmethod
    def read(cls, text: str) -> ConnectionUrl:
        """The URL in a text. UsageError, which never repeats it."""
        names = VARIABLE.findall(text)
        for name in names:
            check_variable(name)
        if VARIABLE.fullmatch(text):
            return cls(None, {"": names[0]})
        if VARIABLE.search(text.partition("://")[0]):
            raise UsageError(
                "The connection URL must name its engine.",
                why="A variable can contain a whole URL, or a part after the ://.",
            )
        base = uuid4().int
        numbers = {f"1{base:039}{at:04}": name for at, name in enumerate(names)}
        left = iter(numbers)
        return cls(_checked(engines.parse_url(VARIABLE.sub(lambda _: next(left), text))), numbers)

    def known(self, environment: Mapping[str, str]) -> ConnectionUrl:
        """This URL, or the one in its variable. ConnectionFailedError, UsageError."""
        if self._parsed is not None:
            return self
        text = _variable(self._variables[""], environment)
        return ConnectionUrl(_checked(engines.parse_url(text)), {})

    def __repr__(self) -> str:
        """Without its secrets."""
        return f"ConnectionUrl({self.shown})"

    @property
    def shown(self) -> str:
        """For display: secrets are `***`, variables as written."""
        if self._parsed is None:
            return f"${{env:{self._variables['']}}}"
        hidden = str(uuid4().int)
        text = _map(self._parsed, secret=lambda _: hidden).render_as_string(hide_password=False)
        return self._named(text.replace(hidden, HIDDEN))

    @property
    def public(self) -> URL:
        """Without its secrets, with variables as written. Only for a `known` URL."""
        return _map(self._require_parsed(), text=self._named, secret=lambda _: None)

    @property
    def contains_secret(self) -> bool:
        """Whether it contains a secret in clear text."""
        found: list[str] = []
        if self._parsed is not None:
            _map(self._parsed, secret=found.append)
        return any(not any(number in value for number in self._variables) for value in found)

    def complete(self, environment: Mapping[str, str], password: str | None = None) -> URL:
        """The URL for the driver. ConnectionFailedError if a variable is not set."""
        values = {number: _variable(name, environment) for number, name in self._variables.items()}

        def fill(text: str) -> str:
            for number, value in values.items():
                text = text.replace(number, value)
            return _sendable(text)

        url = _map(self._require_parsed(), text=fill, secret=fill, foreign=True)
        if password is None:
            # Equivalent for a driver, but SQLAlchemy hides only this part.
            apart = url.query.get(_PASSWORD)
            if url.password is None and isinstance(apart, str):
                url = url.difference_update_query([_PASSWORD]).set(password=apart)
            return url
        if isinstance(given := url.query.get(_ODBC), str):
            public = [part for part in odbc_string.parse(given) if not _is_secret(part.keyword)]
            secret = Attribute("PWD", _sendable(password), braced=True)
            return url.update_query_dict({_ODBC: odbc_string.joined([*public, secret])})
        return url.set(password=_sendable(password))

    def _require_parsed(self) -> URL:
        if self._parsed is None:
            raise ValueError("this URL's variable has not been looked up")
        return self._parsed

    def _named(self, text: str) -> str:
        for number, name in self._variables.items():
            text = text.replace(number, f"${{env:{name}}}")
        return text


def check_variable(name: str) -> None:
    """UsageError if it is no valid name of an environment variable."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            "The name of an environment variable is missing or wrong.",
            why="After ${env: comes a name of letters, digits and underscores, then }.",
            next_step="Example: ${env:ORDERS_PASSWORD}",
        )


def filled(text: str, environment: Mapping[str, str]) -> str:
    """The text with its variables inserted. ConnectionFailedError if one is not set."""
    return VARIABLE.sub(lambda match: _variable(match[1], environment), text)


def _variable(name: str, environment: Mapping[str, str]) -> str:
    if name not in environment:
        raise ConnectionFailedError(
            f"The environment variable {name} is not set.",
            why="The connection's URL or password refers to it.",
            next_step=f"Set {name}, then try again.",
        )
    return environment[name]


def _checked(url: URL) -> URL:
    # SQLAlchemy ends the password at the first "@" and would show the rest as the host.
    misread = url.host or "", "" if url.username else url.database or ""
    if any("@" in part for part in misread):
        raise UsageError(
            "The connection URL cannot be read.",
            why="There is one @ too many before its host.",
            next_step="In a user name or password, write @ as %40, : as %3A and / as %2F.",
        )
    given = url.query.get(_ODBC, "")
    try:
        if isinstance(given, str):
            odbc_string.parse(given)
            return url
    except odbc_string.MalformedError:
        pass
    raise UsageError(
        "The connection URL cannot be read.",
        why="Its odbc_connect does not have the form KEYWORD=value;KEYWORD={value};...",
    )


def _sendable(text: str) -> str:
    """The text, unless it would be cut at a NUL by some drivers, or cannot be encoded."""
    if "\0" in text or any("\ud800" <= sign <= "\udfff" for sign in text):
        raise UsageError(
            "The connection's URL or password cannot be used.",
            why="It is not valid Unicode, or it contains the character NUL.",
        )
    return text


def _is_secret(name: str) -> bool:
    return _SECRET.fullmatch(name.strip()) is not None


def _map(
    url: URL,
    *,
    text: Callable[[str], str] = str,
    secret: Callable[[str], str | None],
    foreign: bool = False,
) -> URL:
    """The URL with each part replaced; a secret is left out for None.

    `foreign`: the replacements may contain special characters.
    """
    query: dict[str, Any] = {}
    for name, value in url.query.items():
        given = [value] if isinstance(value, str) else value
        if name == _ODBC:
            new: list[str | None] = [_map_odbc(one, text, secret, foreign=foreign) for one in given]
        else:
            new = [secret(one) if _is_secret(name) else text(one) for one in given]
        kept = [one for one in new if one is not None]
        if kept:
            query[text(name)] = kept[0] if isinstance(value, str) else kept
    return type(url).create(
        url.drivername,
        username=None if url.username is None else text(url.username),
        password=secret(str(url.password)) if url.password else None,
        host=None if url.host is None else text(url.host),
        port=_port(url.port, text, foreign=foreign),
        database=None if url.database is None else text(url.database),
        query=query,
    )


def _map_odbc(
    given: str, text: Callable[[str], str], secret: Callable[[str], str | None], *, foreign: bool
) -> str:
    kept = []
    for part in odbc_string.parse(given):
        value = (secret if part.value and _is_secret(part.keyword) else text)(part.value)
        if value is not None:
            braced = part.braced or (foreign and value != part.value)
            kept.append(replace(part, value=value, braced=braced))
    return odbc_string.joined(kept)


def _port(port: int | None, text: Callable[[str], str], *, foreign: bool) -> int | None:
    if port is None:
        return None
    number = text(str(port))
    if number.isdecimal():
        return int(number)
    if foreign:
        raise ConnectionFailedError(
            "The connection's port is not a number.",
            why="Its environment variable contains something else.",
        )
    return None
