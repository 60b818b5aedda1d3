"""Fixtures of the bench's tests."""

from collections.abc import Iterator

import pytest

from console.engines import Database, open_database
from tests.cli.calls import Console
from tests.servers import Server, fresh_database


@pytest.fixture(scope="module")
def console(server: Server) -> Iterator[Console]:
    """The command line on a database of this module."""
    with fresh_database(server.url) as url:
        yield Console(url)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A database of one test."""
    database = open_database(database_url)
    yield database
    database.close()
