"""Finding pyodbc and an ODBC driver for SQL Server, and saying how to get them here."""

import ctypes
import importlib
import importlib.util
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from console.errors import ConnectionFailedError

EXTRA = "pip install 'dbq-console[mssql]'"
"""Brings pyodbc and, on Linux and macOS, Microsoft's driver."""

WHEEL = "mssql_python_odbc"
"""The import name of the wheel that holds Microsoft's driver."""


class Family(Enum):
    """Who made a driver: their connection strings differ."""

    MICROSOFT = "Microsoft"
    FREETDS = "FreeTDS"
    OTHER = "other"


@dataclass(frozen=True)
class Driver:
    """An ODBC driver as a connection string names it: as it is registered, or by its library."""

    name: str

    @property
    def family(self) -> Family:
        """By the names that both makers use everywhere."""
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
    """The module pyodbc; ConnectionFailedError where it, or the driver manager it loads, lacks."""
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
    """The driver that the URL names, else the best one to be had.

    That is the newest of Microsoft's that is installed, Microsoft's in the wheel, FreeTDS.
    """
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
        why=f"Installed are: {', '.join(installed) or 'none'}.",
        next_step=f"{EXTRA} brings Microsoft's"
        + (f"; or FreeTDS: {packages.freetds}" if packages.freetds else "."),
    )


def showable(text: str) -> str:
    """The text, where it looks like a name and nothing else: what a URL holds may be a secret."""
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
        why=f"Installed are: {', '.join(installed) or 'none'}.",
        next_step="Leave `driver` out of the URL to let the console choose one.",
    )


def _in_wheel() -> tuple[str, str]:
    """The library in Microsoft's wheel that can be loaded here, and why there is none."""
    problem = ""
    for path in _libraries():
        try:
            # The driver manager says "file not found" whatever is missing; this says what.
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
    """What this system calls itself and what it is like: {"ubuntu", "debian"}, {"darwin"}."""
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
    """Installs the driver manager and what Microsoft's driver loads."""
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
