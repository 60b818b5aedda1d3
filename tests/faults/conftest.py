"""Fixtures of the faults: the contract's queues and rings, on the database of the module."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from console.engines import Database
from tests.contract.conftest import Use, use_of
from tests.faults.ring_tools import Make, Ring, make_ring
from tests.servers import Server, fresh_database


@pytest.fixture
def use(postgresql: Database) -> Iterator[Use]:
    """Install a variant under a name of its own and use it."""
    yield from use_of(postgresql)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach: pytest's own are closed to all but one."""
    folder = Path(tempfile.mkdtemp(prefix="dbq-console-test-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def rings_url(server: Server) -> Iterator[str]:
    """One database for all rings of a module."""
    with fresh_database(server.url) as url:
        yield url


@pytest.fixture
def make(rings_url: str) -> Iterator[Make]:
    """Makes rings, each under a name of its own; of 20 slots, unless told otherwise."""
    made: list[Ring] = []

    def one(url: str = rings_url, **options: object) -> Ring:
        given: dict[str, Any] = {"size": 20, **options}
        made.append(make_ring(url, **given))
        return made[-1]

    yield one
    for ring in made:
        ring.close()
