"""From a URL to an ODBC connection string, and to the name that a connection is shown by.

Whatever a URL or its `odbc_connect` says is passed on; what is missing is added. No message repeats
any of it that may be a secret.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import URL

from console.engines.mssql.drivers import Driver, Family, showable
from console.errors import UsageError

Words = list[tuple[str, str]]
"""The keywords of a connection string with their values, in their order."""

_SERVER = ("SERVER", "Address", "Addr", "Network Address")
_SECRETS = ("PWD", "Password", "AccessToken")
_FIELDS = ("username", "user", "password", "host", "port", "database")
"""Parts of a URL that may stand in its query as well."""

_OURS = ("odbc_connect", "autocommit", "ansi", "unicode_results")
"""Of the query, what is no keyword of ODBC."""

_PROTOCOL = re.compile(r"(?:tcp|np|lpc|admin):", re.IGNORECASE)
_SERVER_NAME = re.compile(r"[\w.:()\[\]$-]+(?:\\[\w$]+)?(?:,\s*\d+)?")
_KEYWORD = re.compile(r"[A-Za-z][\w ./-]*")


@dataclass(frozen=True)
class Target:
    """What to connect to: a connection string without what the driver decides."""

    words: Words

    @property
    def driver(self) -> str:
        """The driver that the URL names, or nothing."""
        return value(self.words, "DRIVER")

    @property
    def dsn(self) -> str:
        """The data source that the URL names, or nothing: it has a driver of its own."""
        return value(self.words, "DSN", "FILEDSN")

    @property
    def secrets(self) -> frozenset[str]:
        """What must be in no message, as it is and as it stands in the connection string."""
        found = [v for k, v in self.words if v and _is(k, *_SECRETS)]
        return frozenset(found) | {v.replace("}", "}}") for v in found}


def target(url: URL, data_sources: Sequence[str] = ()) -> Target:
    """What the URL asks for. `data_sources` are the names of those that this machine has."""
    given = _query(url)
    words = read(given.get("odbc_connect", ""))
    fields = {**_fields(url), **{k: v for k, v in given.items() if k in _FIELDS}}
    more = {k: v for k, v in given.items() if k not in (*_FIELDS, *_OURS)}
    words += [(k, v) for k, v in more.items() if not has(words, k)]
    host, port = fields.get("host", ""), fields.get("port", "")
    if not has(words, "DSN", "FILEDSN", *_SERVER):
        alone = host and not (port or fields.get("database") or has(words, "DRIVER"))
        if alone and host.casefold() in {name.casefold() for name in data_sources}:
            words.append(("DSN", host))
        else:
            words.append(("SERVER", f"{host or 'localhost'}{f',{port}' if port else ''}"))
    user = fields.get("username") or fields.get("user", "")
    for keyword, found in (
        ("DATABASE", fields.get("database", "")),
        ("UID", user),
        ("PWD", fields.get("password", "") if user else ""),
    ):
        if found and not has(words, keyword):
            words.append((keyword, found))
    anonymous = not has(words, "UID", "Authentication", "Trusted_Connection", "DSN", "FILEDSN")
    if anonymous and "odbc_connect" not in given:
        words.append(("Trusted_Connection", "Yes"))
    return Target(words)


def connection_string(asked: Target, driver: Driver, application_name: str) -> str:
    """The whole connection string for this driver."""
    words = [(k, v) for k, v in asked.words if not _is(k, "DRIVER")]
    if not asked.dsn:
        words.insert(0, ("DRIVER", driver.name))
    added: dict[Family, Words] = {
        # A connection that the driver replaced in silence would be another session: what is bound
        # to the session, a claim or a transaction, would go on in one that knows nothing of it.
        Family.MICROSOFT: [("ConnectRetryCount", "0")],
        Family.FREETDS: [("TDS_Version", "7.4"), ("ClientCharset", "UTF-8")],
        Family.OTHER: [],
    }
    for keyword, found in [("APP", application_name), *added[driver.family]]:
        if not has(words, keyword):
            words.append((keyword, found))
    text = ";".join(f"{k}={_quoted(v, driver.family, k)}" for k, v in words)
    try:
        text.encode("utf-16-le")
    except UnicodeEncodeError:
        raise _unreadable("It is not valid Unicode.") from None
    if "\0" in text:
        raise _unreadable("It holds the character NUL.")
    return text


def label(url: URL) -> str:
    """Server and database, never a user or a password."""
    words = target(url).words
    server = _PROTOCOL.sub("", value(words, *_SERVER)).replace(", ", ",")
    database = value(words, "DATABASE")
    if not server:
        name = value(words, "DSN", "FILEDSN")
    elif _SERVER_NAME.fullmatch(server):
        name = ":".join(server.rsplit(",", 1))
    else:
        name = "?"  # a forgotten semicolon can put anything there
    shown = database if "=" not in database and ";" not in database else "?"
    return f"{name if '=' not in name and ';' not in name else '?'}/{shown}"


def value(words: Words, *keywords: str) -> str:
    """The value of the first of these keywords, as a driver takes it."""
    return next((v for k, v in words if _is(k, *keywords)), "")


def has(words: Words, *keywords: str) -> bool:
    """Whether any of these keywords is given."""
    return any(_is(k, *keywords) for k, _ in words)


def read(text: str) -> Words:
    """A connection string's keywords and values; UsageError where it is none."""
    return list(_pairs(text))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        if text[at] in "; \t\r\n":
            at += 1
            continue
        keyword, sign, _ = text[at:].partition("=")
        if not sign or not _KEYWORD.fullmatch(keyword.strip()):
            raise _unreadable(f"Its part at character {at + 1} has not the form keyword=value.")
        at += len(keyword) + 1
        while at < len(text) and text[at] in " \t":
            at += 1
        if at < len(text) and text[at] == "{":
            found, at = _braced(text, at)
        else:
            end = text.find(";", at)
            end = len(text) if end < 0 else end
            found, at = text[at:end].strip(), end
        yield keyword.strip(), found


def _braced(text: str, start: int) -> tuple[str, int]:
    """The value in braces that begins at `start`, and where it ends. `}}` in it is one `}`."""
    at = start + 1
    while (at := text.find("}", at)) >= 0:
        rest = text[at + 1 :].lstrip(" \t")
        if not rest or rest.startswith(";"):
            return text[start + 1 : at].replace("}}", "}"), len(text) - len(rest)
        at += 2 if rest.startswith("}") else 1
    raise _unreadable(f"The brace at character {start + 1} is not closed as it should be.")


def _quoted(text: str, family: Family, keyword: str) -> str:
    """The value, in braces where it must be."""
    plain = text == text.strip() and not text.startswith("{") and ";" not in text
    if plain and not _is(keyword, "DRIVER"):
        return text
    # FreeTDS 1.3, the one that distributions have, takes all up to "};" as it stands.
    return "{" + (text if family is Family.FREETDS else text.replace("}", "}}")) + "}"


def _is(keyword: str, *names: str) -> bool:
    return keyword.casefold() in {name.casefold() for name in names}


def _query(url: URL) -> dict[str, str]:
    """The URL's query, each keyword once."""
    found: dict[str, str] = {}
    for keyword, given in url.query.items():
        if not isinstance(given, str):
            raise _unreadable(f"It gives the keyword {showable(keyword)} more than once.")
        if not _KEYWORD.fullmatch(keyword):
            raise _unreadable("Its query has a name that is no keyword of ODBC.")
        found[keyword] = given
    return found


def _fields(url: URL) -> dict[str, str]:
    given = {
        "username": url.username,
        "password": url.password,
        "host": url.host,
        "port": url.port,
        "database": url.database,
    }
    return {name: str(found) for name, found in given.items() if found}


def _unreadable(why: str) -> UsageError:
    return UsageError(
        "The connection URL cannot be read.",
        why=why,
        next_step="Example: mssql+pyodbc://user@host:1433/database",
    )
