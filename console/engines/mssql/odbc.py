"""From a URL to an ODBC connection string and a connection's label.

Everything in the URL or its `odbc_connect` is passed on, and what is missing is added. No message
repeats anything that may be a secret.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import platform
import re
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console.engines import odbc_string
from console.engines.odbc_string import Attribute
from console.errors import ConnectionFailedError, UsageError

if TYPE_CHECKING:
    from sqlalchemy import URL

EXTRA = "pip install 'dbq-console[mssql]'"
"""Brings pyodbc and, on Linux and macOS, Microsoft's driver."""

WHEEL = "mssql_python_odbc"
"""The import name of the wheel that holds Microsoft's driver."""


class Family(Enum):
    """A driver's vendor: connection strings differ."""

    MICROSOFT = "Microsoft"
    FREETDS = "FreeTDS"
    OTHER = "other"


@dataclass(frozen=True)
class Driver:
    """An ODBC driver as a connection string names it: its registered name or its library."""

    name: str

    @property
    def family(self) -> Family:
        """By the names that both vendors use everywhere."""
        name = self.name.rpartition("/")[2].casefold()
        if "freetds" in name or "tdsodbc" in name:
            return Family.FREETDS
        if "sql server" in name or "msodbcsql" in name or "sqlncli" in name:
            return Family.MICROSOFT
        return Family.OTHER


_MICROSOFT = re.compile(r"ODBC Driver (\d+) for SQL Server")
_SHOWABLE = re.compile(r"[\w ().,+/\\:-]{1,200}")
_MACHINES = {"amd64": "x86_64", "aarch64": "arm64"}


def load_pyodbc() -> Any:
    """The module pyodbc; ConnectionFailedError without it or the driver manager that it loads."""
    try:
        odbc: Any = importlib.import_module("pyodbc")
    except ModuleNotFoundError as error:
        raise ConnectionFailedError(
            "SQL Server needs the Python package pyodbc.",
            why="It is not installed.",
            next_step=EXTRA,
        ) from error
    except ImportError as error:
        raise ConnectionFailedError(
            "SQL Server needs the Python package pyodbc.",
            why=f"It is installed but cannot be loaded: {error}.",
            next_step=f"Install the ODBC driver manager: {_packages().manager}",
        ) from error
    # The pool is SQLAlchemy's: a connection closed there must be closed at the server too.
    odbc.pooling = False
    return odbc


def choose(named: str, odbc: Any) -> Driver:
    """The driver named in the URL; else Microsoft's newest that is installed, Microsoft's in the
    wheel, or FreeTDS."""
    installed = _installed(odbc)
    if named:
        return _named(named, installed)
    if microsoft := [name for name in installed if _MICROSOFT.fullmatch(name)]:
        return Driver(max(microsoft, key=_version))
    path, problem = _in_wheel()
    if path:
        return Driver(path)
    if freetds := [name for name in installed if Driver(name).family is Family.FREETDS]:
        return Driver(freetds[0])
    packages = _packages()
    if problem:
        raise ConnectionFailedError(
            "There is no ODBC driver for SQL Server that works here.",
            why=f"Microsoft's, from the Python package, cannot be loaded: {problem}.",
            next_step=f"Install what it needs: {packages.manager}",
        )
    raise ConnectionFailedError(
        "There is no ODBC driver for SQL Server here.",
        why=f"Installed: {', '.join(installed) or 'none'}.",
        next_step=f"{EXTRA} brings Microsoft's"
        + (f"; or FreeTDS: {packages.freetds}" if packages.freetds else "."),
    )


def showable(text: str) -> str:
    """The text, if it looks like a mere name: other parts of a URL may be secret."""
    return repr(text) if _SHOWABLE.fullmatch(text) else "that the URL names"


def _installed(odbc: Any) -> list[str]:
    try:
        return list(odbc.drivers())
    except odbc.Error:
        return []  # a broken odbcinst.ini: a driver by its path still works


def _version(name: str) -> int:
    match = _MICROSOFT.fullmatch(name)
    return int(match[1]) if match else 0


def _named(named: str, installed: Sequence[str]) -> Driver:
    for name in installed:
        if name.casefold() == named.casefold():
            return Driver(name)
    if Path(named).is_absolute() and Path(named).is_file():
        return Driver(named)
    raise ConnectionFailedError(
        f"The ODBC driver {showable(named)} is not installed.",
        why=f"Installed: {', '.join(installed) or 'none'}.",
        next_step="Leave `driver` out of the URL to let the console choose.",
    )


def _in_wheel() -> tuple[str, str]:
    """The library in Microsoft's wheel that can be loaded here, or why none can."""
    problem = ""
    for path in _libraries():
        try:
            # The driver manager reports "file not found" whatever is missing; this is specific.
            ctypes.CDLL(str(path))
        except OSError as error:
            problem = problem or str(error)
        else:
            return str(path), ""
    return "", problem


def _libraries() -> list[Path]:
    """The wheel's drivers for this machine, those for this distribution first."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or not spec.submodule_search_locations:
        return []
    machine = platform.machine().casefold()
    machine = _MACHINES.get(machine, machine)
    here = _distribution()
    found: list[tuple[bool, Path]] = []
    for folder in map(Path, spec.submodule_search_locations):
        for path in folder.rglob("libmsodbcsql*"):
            parts = path.relative_to(folder).parts
            if machine in parts and path.is_file():
                words = {word for part in parts for word in part.split("_")}
                found.append((here.isdisjoint(words), path))
    return [path for _, path in sorted(found)]


def _distribution() -> set[str]:
    """The system's ID and ID_LIKE: {"ubuntu", "debian"}, {"darwin"}."""
    if sys.platform != "linux":
        return {sys.platform}
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return set()
    return {release.get("ID", ""), *release.get("ID_LIKE", "").split()} - {""}


@dataclass(frozen=True)
class _Packages:
    manager: str
    """Installs the driver manager and the libraries of Microsoft's driver."""
    freetds: str


_PACKAGES = {
    "debian": _Packages(
        "apt-get install unixodbc libgssapi-krb5-2", "apt-get install unixodbc tdsodbc"
    ),
    "rhel": _Packages("dnf install unixODBC krb5-libs", "dnf install unixODBC freetds"),
    "fedora": _Packages("dnf install unixODBC krb5-libs", "dnf install unixODBC freetds"),
    "suse": _Packages("zypper install unixODBC krb5", ""),
    "alpine": _Packages("apk add unixodbc krb5-libs", "apk add unixodbc freetds"),
    "arch": _Packages("pacman -S unixodbc krb5", "pacman -S unixodbc freetds"),
    "darwin": _Packages("brew install unixodbc krb5", "brew install unixodbc freetds"),
}


def _packages() -> _Packages:
    here = _distribution()
    for name, packages in _PACKAGES.items():
        if name in here:
            return packages
    return _Packages("the system's packages unixODBC and krb5 (libgssapi_krb5)", "")


_SERVER = ("SERVER", "Address", "Addr", "Network Address")
_SECRETS = ("PWD", "Password", "AccessToken")
_ACCESS_TOKEN = "accesstoken"  # noqa: S105  # what Authentication says
"""Of `Authentication`, our own: the password is an access token."""
_NOT_BESIDE_TOKEN = ("UID", "User", "Trusted_Connection", "Authentication", *_SECRETS)
"""Keywords that Microsoft's driver refuses beside one."""
_TOKEN_ATTRIBUTE = 1256
"""SQL_COPT_SS_ACCESS_TOKEN"""
_SHORTEST_TOKEN = 32
"""A shorter one makes the driver crash (microsoft/mssql-python#278)."""
_TOKEN = re.compile(r"[!-~]+")
_FIELDS = ("username", "user", "password", "host", "port", "database")
"""Parts of a URL that may also be in its query."""

_ROW_SECURITY = "row_security"
_OURS = ("odbc_connect", "autocommit", "ansi", "unicode_results", _ROW_SECURITY)
"""Query parameters that are not ODBC keywords."""

_PROTOCOL = re.compile(r"(?:tcp|np|lpc|admin):", re.IGNORECASE)
_SERVER_NAME = re.compile(r"[\w.:()\[\]$-]+(?:\\[\w$]+)?(?:,\s*\d+)?")


@dataclass(frozen=True)
class OdbcTarget:
    """What to connect to: a connection string before driver-specific additions."""

    attributes: Sequence[Attribute]

    @property
    def driver(self) -> str:
        """The driver named in the URL, or empty."""
        return _value(self.attributes, "DRIVER")

    @property
    def dsn(self) -> str:
        """The data source named in the URL, or empty: it has its own driver."""
        return _value(self.attributes, "DSN", "FILEDSN")

    @property
    def takes_token(self) -> bool:
        """Whether the password is an access token."""
        return _value(self.attributes, "Authentication").casefold() == _ACCESS_TOKEN

    @property
    def secrets(self) -> frozenset[str]:
        """What no message may contain, plain and as escaped in the connection string."""
        secrets = {given.value for given in self.attributes if given.is_(*_SECRETS)} - {""}
        return frozenset(secrets | {secret.replace("}", "}}") for secret in secrets})


def target(url: URL, data_sources: Sequence[str] = ()) -> OdbcTarget:
    """The target of the URL. `data_sources`: the names of this machine's data sources."""
    given = _query(url)
    attributes = read(given.get("odbc_connect", ""))
    fields = {**_fields(url), **{k: v for k, v in given.items() if k in _FIELDS}}
    more = {k: v for k, v in given.items() if k not in (*_FIELDS, *_OURS)}
    attributes += [Attribute(k, v) for k, v in more.items() if not _has(attributes, k)]
    host, port = fields.get("host", ""), fields.get("port", "")
    if not _has(attributes, "DSN", "FILEDSN", *_SERVER):
        alone = host and not (port or fields.get("database") or _has(attributes, "DRIVER"))
        if alone and host.casefold() in {name.casefold() for name in data_sources}:
            attributes.append(Attribute("DSN", host))
        else:
            server = f"{host or 'localhost'}{f',{port}' if port else ''}"
            attributes.append(Attribute("SERVER", server))
    user = fields.get("username") or fields.get("user", "")
    for keyword, value in (
        ("DATABASE", fields.get("database", "")),
        ("UID", user),
        ("PWD", fields.get("password", "") if user or OdbcTarget(attributes).takes_token else ""),
    ):
        if value and not _has(attributes, keyword):
            attributes.append(Attribute(keyword, value))
    named = _has(attributes, "UID", "Authentication", "Trusted_Connection", "DSN", "FILEDSN")
    if not named and "odbc_connect" not in given:
        attributes.append(Attribute("Trusted_Connection", "Yes"))
    return OdbcTarget(attributes)


def wants_filtered(url: URL) -> bool:
    """Whether the URL says that rows may be hidden, as `row_security=on` does for PostgreSQL."""
    given = _query(url).get(_ROW_SECURITY, "off").casefold()
    if given not in {"on", "off"}:
        raise _unreadable(f"It has {_ROW_SECURITY}={showable(given)}: it is on or off.")
    return given == "on"


def connection_string(target_: OdbcTarget, driver: Driver, application_name: str) -> str:
    """The complete connection string for this driver."""
    left_out = ("DRIVER", *(_NOT_BESIDE_TOKEN if target_.takes_token else ()))
    attributes = [given for given in target_.attributes if not given.is_(*left_out)]
    if not target_.dsn:
        attributes.insert(0, Attribute("DRIVER", driver.name))
    added = {
        # A silent reconnect would be a new session, without the old one's claims and transaction.
        Family.MICROSOFT: [Attribute("ConnectRetryCount", "0")],
        Family.FREETDS: [Attribute("TDS_Version", "7.4"), Attribute("ClientCharset", "UTF-8")],
        Family.OTHER: [],
    }
    for attribute in (Attribute("APP", application_name), *added[driver.family]):
        if not _has(attributes, attribute.keyword):
            attributes.append(attribute)
    text = ";".join(_written(attribute, driver.family) for attribute in attributes)
    try:
        text.encode("utf-16-le")
    except UnicodeEncodeError:
        raise _unreadable("It is not valid Unicode.") from None
    if "\0" in text:
        raise _unreadable("It contains the character NUL.")
    return text


def access_token(target_: OdbcTarget, driver: Driver, name: str) -> dict[int, bytes]:
    """The attribute that gives Microsoft's driver the token: its length in bytes, and UTF-16."""
    token = _value(target_.attributes, *_SECRETS)
    if driver.family is Family.FREETDS:
        why = "FreeTDS takes none: only Microsoft's driver does."
        next_step = EXTRA
    elif not token:
        why = "The connection has no password: it would be the token."
        next_step = _HOW_TO_GET_ONE
    elif len(token) < _SHORTEST_TOKEN or not _TOKEN.fullmatch(token):
        why = "What the connection has as its password is too short for one, or has a blank in it."
        next_step = f"It must be the token alone. {_HOW_TO_GET_ONE}"
    else:
        data = token.encode("utf-16-le")
        return {_TOKEN_ATTRIBUTE: struct.pack("<I", len(data)) + data}
    raise ConnectionFailedError(
        f"There is no access token for {name}.", why=why, next_step=next_step
    )


_HOW_TO_GET_ONE = (
    'In the profile: password = "command:az account get-access-token --resource '
    'https://database.windows.net/ --query accessToken --output tsv"'
)


def label(url: URL) -> str:
    """Server and database, never a user or a password."""
    attributes = target(url).attributes
    server = _PROTOCOL.sub("", _value(attributes, *_SERVER)).replace(", ", ",")
    database = _value(attributes, "DATABASE")
    if not server:
        name = _value(attributes, "DSN", "FILEDSN")
    elif _SERVER_NAME.fullmatch(server):
        name = ":".join(server.rsplit(",", 1))
    else:
        name = "?"  # after a forgotten semicolon it may be anything
    shown = database if "=" not in database and ";" not in database else "?"
    return f"{name if '=' not in name and ';' not in name else '?'}/{shown}"


def read(text: str) -> list[Attribute]:
    """A connection string's attributes; UsageError if it is malformed."""
    try:
        return odbc_string.parse(text)
    except odbc_string.MalformedError as error:
        raise _unreadable(str(error)) from None


def _value(attributes: Sequence[Attribute], *keywords: str) -> str:
    """The value of the first of these keywords, as a driver does it."""
    return next((given.value for given in attributes if given.is_(*keywords)), "")


def _has(attributes: Sequence[Attribute], *keywords: str) -> bool:
    return any(given.is_(*keywords) for given in attributes)


def _written(attribute: Attribute, family: Family) -> str:
    """The attribute, in braces if needed."""
    text = attribute.value
    plain = text == text.strip() and not text.startswith("{") and ";" not in text
    if plain and not attribute.is_("DRIVER"):
        return f"{attribute.keyword}={text}"
    # FreeTDS 1.3, which distributions have, reads everything up to "};" literally.
    quoted = f"{{{text}}}" if family is Family.FREETDS else odbc_string.in_braces(text)
    return f"{attribute.keyword}={quoted}"


def _query(url: URL) -> dict[str, str]:
    """The URL's query, each keyword once."""
    query: dict[str, str] = {}
    for keyword, given in url.query.items():
        if not isinstance(given, str):
            raise _unreadable(f"It gives the keyword {showable(keyword)} more than once.")
        if not odbc_string.is_keyword(keyword):
            raise _unreadable("Its query has a name that is not an ODBC keyword.")
        query[keyword] = given
    return query


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
