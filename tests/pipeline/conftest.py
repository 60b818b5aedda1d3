"""Fixtures of the pipeline: one Spark session for the suite, a lake and queues per test.

All tests that need Spark are in `test_on_spark.py`, which runs in one process
(tests/conftest.py), so there is one JVM.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from console.engines import Database
from console.features.lake.lake import Lake
from tests.contract.client import Client
from tests.pipeline.archive_tools import push_and_pop
from tests.tools.queues import install_queue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAST = {
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Settings that make a small job fast without changing what it does."""

_NUMBERS = itertools.count(1)
NewQueue = Callable[..., Client]


@pytest.fixture(scope="session")
def java_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder for the wrapper of Java, not in the home of the user who runs the suite."""
    folder = tmp_path_factory.mktemp("cache")
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(folder)):
        yield folder


@pytest.fixture(scope="session")
def spark(java_folder: Path) -> Iterator["SparkSession"]:
    pytest.importorskip("pyspark", reason="needs Spark: pip install 'dbq-console[pipeline]'")
    from console.features.lake.spark import session  # noqa: PLC0415

    with session("tests", "local[2,4]", FAST) as started:
        yield started


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake for this test."""
    return Lake(tmp_path / "lake")


@pytest.fixture
def new_queue(postgresql: Database) -> NewQueue:
    """A function that installs a queue for this test, by design and options."""

    def new(name: str, label: str = "", **options: str) -> Client:
        queue = install_queue(postgresql, f"{name}.{label} {next(_NUMBERS)} ü", name, **options)
        return Client(postgresql, queue)

    return new


@pytest.fixture
def filled(new_queue: NewQueue) -> Client:
    """A queue with 30 popped messages in its archive."""
    client = new_queue("fifo", archive_at_pop="on")
    push_and_pop(client, 30)
    return client
