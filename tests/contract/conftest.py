"""Fixtures of the contract: a database per module, an installed queue per test."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from console import catalog, sql
from console.actions.install import missing_requirement
from console.designs import Design
from console.engines import PRODUCTS, Database, open_database
from tests.cli.calls import Console
from tests.contract.client import Client
from tests.contract.installs import installed
from tests.contract.variants import Variant
from tests.contract.workers import WorkerPool
from tests.servers import TIMEOUTS, Server, fresh_database, fresh_mssql_database, url_of
from tests.servers.poolers import Pooler

Use = Callable[[Variant], Client]


@pytest.fixture
def new_database(server: Server, pooler: Pooler) -> Iterator[Database]:
    """A PostgreSQL database for this test only, which the console has never used."""
    with fresh_database(server.url) as url:
        database = pooler(open_database(url))
        yield database
        database.close()


@pytest.fixture
def console(database_url: str) -> Console:
    """The command line on a database of this test, which it has never used."""
    return Console(database_url)


ENGINES_UNDER_TEST = [
    engine for engine in sorted(PRODUCTS) if engine == "postgresql" or url_of(engine)
]
"""The engines for which this run has a server; test_catalog reports the others."""


@pytest.fixture(scope="module", params=ENGINES_UNDER_TEST)
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """An empty database of each engine in turn.

    PostgreSQL: on the suite's server. Another engine: where DBQ_TEST_<ENGINE>_URL points to.
    """
    engine: str = request.param
    if engine == "postgresql":
        yield request.getfixturevalue("postgresql")
        return
    if reason := _no_queues(url_of(engine)):
        pytest.skip(reason)
    with fresh_mssql_database(url_of(engine)) as url:
        database = open_database(url, timeouts=TIMEOUTS)
        yield database
        database.close()


def _no_queues(url: str) -> str:
    """Why the server cannot have queues; empty where it can."""
    server = open_database(url, timeouts=TIMEOUTS)
    try:
        return server.capabilities.missing.get("queues", "")
    finally:
        server.close()


@pytest.fixture
def single_connection(database: Database) -> Iterator[Database]:
    """The same database through one connection: successive calls share a session."""
    url = database.url.render_as_string(hide_password=False)
    other = open_database(url, timeouts=TIMEOUTS)
    yield other
    other.close()


@pytest.fixture
def requires_session_views(database: Database) -> None:
    """Skip where the server has no views of its sessions; another test checks that it says so."""
    if reason := database.capabilities.missing.get("waits"):
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def skip_impossible_design(request: pytest.FixtureRequest) -> None:
    """Skip, with the reason, a design that this server cannot have."""
    parameters: dict[str, object] = getattr(getattr(request.node, "callspec", None), "params", {})
    if "database" not in parameters:
        return
    database: Database = request.getfixturevalue("database")
    for value in parameters.values():
        of = value.design if isinstance(value, Variant) else value
        if isinstance(of, Design) and (why := missing_requirement(database, of)):
            pytest.skip(f"{of.name}: {why}")


REFUSED_THROUGH_A_POOLER = {
    "test_prove.py": "prove",
    "test_maintain_postgresql.py": "maintain",
    "test_missing_indexes_and_keys_are_created": "CREATE INDEX CONCURRENTLY",
    "test_a_key_that_cannot_be_created_is_named": "CREATE INDEX CONCURRENTLY",
    "test_a_prepared_transaction_is_rolled_back": "ROLLBACK PREPARED",
    "test_a_consumer_that_waits_is_registered_and_gets_what_is_pushed": "LISTEN",
    "test_every_statement_runs_and_fills_its_row_type": "LISTEN",
}
"""A file or a test -> what of it needs a session of its own (words: tests/cli/test_poolers.py)."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect designs and options that the engine lacks; skip what a pooler makes impossible."""
    for item in items if config.getoption("--pooled") else ():
        names = {item.path.name, getattr(item, "originalname", "")}
        for name in names & REFUSED_THROUGH_A_POOLER.keys():
            why = REFUSED_THROUGH_A_POOLER[name]
            item.add_marker(pytest.mark.skip(reason=f"refused through a pooler: {why}"))
    absent = {item for item in items if isinstance(item, pytest.Function) and _is_absent(item)}
    if absent:
        config.hook.pytest_deselected(items=list(absent))
        items[:] = [item for item in items if item not in absent]


def _is_absent(item: pytest.Function) -> bool:
    parameters: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    only_postgresql = {"postgresql", "use_postgresql", "new_database"} & set(item.fixturenames)
    engine = "postgresql" if only_postgresql else parameters.get("database")
    if not isinstance(engine, str):
        return False
    return any(
        (isinstance(value, Variant) and engine not in value.engines)
        or (isinstance(value, Design) and engine not in value.engines)
        for value in parameters.values()
    )


_numbers = itertools.count(1)


def use_of(database: Database) -> Iterator[Use]:
    """Install variants under unique names; drop them at the end."""
    used: list[Client] = []

    def use(variant: Variant) -> Client:
        client = installed(database, variant, f"queue {next(_numbers)}")
        used.append(Client(database, client.queue.views[0]))
        return used[-1]

    yield use
    # Thousands of files of unused queues would make the server's checkpoints slow.
    # What else `uninstall` does (confirm, count, audit) is for queues in use.
    with database.transaction("clean up") as connection:
        known = {queue.label for queue in catalog.queues(connection)}
        for queue in (client.queue for client in used if client.queue.label in known):
            waiting = ["common.drop_waiting"] if queue.options.get("notify") == "on" else []
            archive = ["common.drop_archive", "catalog.erase"]
            for script in (f"{queue.design.name}.drop", *waiting, *archive):
                sql.run(connection, script, queue.scope(connection))


@pytest.fixture
def use(database: Database) -> Iterator[Use]:
    """Install a variant under a unique name and use it, on every engine."""
    yield from use_of(database)


@pytest.fixture
def client(use: Use, variant: Variant) -> Client:
    """The test's variant, installed and in use."""
    return use(variant)


@pytest.fixture
def use_postgresql(postgresql: Database) -> Iterator[Use]:
    """Install a variant under a unique name and use it, on PostgreSQL."""
    yield from use_of(postgresql)


@pytest.fixture(scope="session")
def worker_pool() -> Iterator[WorkerPool]:
    """Four processes for producers and consumers."""
    with WorkerPool(4) as worker_pool:
        yield worker_pool


@pytest.fixture(scope="module")
def report() -> Iterator[Path]:
    """A file that the server can write, which may run as another user."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        found = Path(folder) / "ran"
        found.touch()
        found.chmod(0o666)
        yield found
