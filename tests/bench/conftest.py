"""Fixtures of the bench's tests."""

from collections.abc import Iterator

import pytest

from console.engines import Database, open_database
from tests.cli.conftest import console  # noqa: F401


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = open_database(database_url)
    yield database
    database.close()
