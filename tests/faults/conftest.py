"""Fixtures of the faults: the contract's queues, on the database of the module."""

from collections.abc import Iterator

import pytest

from console.engines import Database
from tests.contract.conftest import Use, use_of


@pytest.fixture
def use(postgresql: Database) -> Iterator[Use]:
    """Install a variant under a name of its own and use it."""
    yield from use_of(postgresql)
