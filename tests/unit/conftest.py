"""What several tests of SQL Server's engine begin with."""

from collections.abc import Iterator

import pytest

from console.engines import Database
from tests.unit.mssql_tools import Odbc, opened, stand_in_for_pyodbc


@pytest.fixture
def odbc(monkeypatch: pytest.MonkeyPatch) -> Odbc:
    return stand_in_for_pyodbc(monkeypatch)


@pytest.fixture
def mssql(odbc: Odbc) -> Iterator[Database]:
    """A database of the stand-in."""
    del odbc
    database = opened()
    yield database
    database.close()
