"""Fixtures: queues of the contract suite, and rings, in the module's database."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from console.actions import execute
from console.engines import Database, open_database
from console.features.demo.embedded import EmbeddedServer
from tests.contract.conftest import use_of
from tests.contract.variants import Variant
from tests.faults.harness.queue import FaultyQueue, Use
from tests.faults.harness.ring import Make, Ring, make_ring
from tests.servers import Server, fresh_database


@pytest.fixture
def use(postgresql: Database) -> Iterator[Use]:
    """Install a variant under a unique name and use it, with so many messages."""
    with contextmanager(use_of)(postgresql) as install:

        def use(variant: Variant, messages: int = 0) -> FaultyQueue:
            queue = FaultyQueue(postgresql, install(variant).queue)
            if messages:
                assert None not in queue.push_many(queue.payloads(*range(messages)))
            return queue

        yield use


@pytest.fixture
def new_database(database_url: str) -> Iterator[Database]:
    """A database for this test only, which the console has never used."""
    database = open_database(database_url)
    yield database
    database.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can access, unlike pytest's own."""
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
    """Creates rings with unique names, by default with 20 slots."""
    yield from _rings(rings_url)


@pytest.fixture(scope="module")
def own_rings_url(module_server: EmbeddedServer) -> str:
    """One database for all rings, as each additional one makes a server's shutdown longer."""
    return module_server.create_database("rings")


@pytest.fixture
def make_own(own_server: EmbeddedServer, own_rings_url: str) -> Iterator[Make]:
    """`make`, on `own_server`."""
    yield from _rings(own_rings_url)


def _rings(url: str) -> Iterator[Make]:
    made: list[Ring] = []

    def one(url: str = url, **options: object) -> Ring:
        given: dict[str, Any] = {"size": 20, **options}
        made.append(make_ring(url, **given))
        return made[-1]

    yield one
    for ring in made:
        ring.close()


@pytest.fixture
def queues_url(database_url: str) -> str:
    """A database with the queues `mail`, `orders` and `lines`."""
    from tests.faults.harness.connections import make_queues  # noqa: PLC0415  # needs Textual

    make_queues(database_url)
    return database_url


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses before an action's progress is looked up on a new connection."""
    monkeypatch.setattr(execute, "_RECONNECT_PAUSES", (0.0, 0.1))
