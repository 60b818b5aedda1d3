"""Fixtures for tests of SQL Server's engine."""

from collections.abc import Iterator

import pytest

from console.engines import Database
from tests.unit.mssql_tools import Odbc, open_mssql, stand_in_for_pyodbc


@pytest.fixture
def odbc(monkeypatch: pytest.MonkeyPatch) -> Odbc:
    return stand_in_for_pyodbc(monkeypatch)


@pytest.fixture
def mssql(odbc: Odbc) -> Iterator[Database]:
    """A database of the stand-in."""
    del odbc
    database = open_mssql()
    yield database
    database.close()
