"""Fixtures of the pipeline: one Spark session for the suite, a lake and a queue a test.

What needs Spark is in the one file `test_on_spark.py`: its tests run in one process
(tests/conftest.py), and so there is one JVM.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from console.actions.install import install
from console.catalog import installed_queue
from console.designs import design
from console.engines import Database
from console.pipeline.lake import Lake
from tests.contract.client import Client
from tests.pipeline.archive_tools import popped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAST = {
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""What makes a small job quick; nothing that changes what it does."""

_NUMBERS = itertools.count(1)
Use = Callable[..., Client]


@pytest.fixture(scope="session")
def java_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the wrapper of Java is made: not in the folder of whoever runs the suite."""
    folder = tmp_path_factory.mktemp("cache")
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(folder)):
        yield folder


@pytest.fixture(scope="session")
def spark(java_folder: Path) -> Iterator["SparkSession"]:
    pytest.importorskip("pyspark", reason="needs Spark: pip install 'dbq-console[pipeline]'")
    from console.pipeline.spark import session  # noqa: PLC0415

    with session("tests", "local[2]", FAST) as started:
        yield started


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake of this test alone."""
    return Lake(tmp_path / "lake")


@pytest.fixture
def use(postgresql: Database) -> Use:
    """A function that installs a queue of this test: its design, its options."""

    def one(name: str, label: str = "", **options: str) -> Client:
        of = design(name)
        queue = installed_queue(
            "public",
            f"{name}.{label} {next(_NUMBERS)} ü",
            of,
            of.complete_options(options, "postgresql"),
        )
        install(postgresql, queue)
        return Client(postgresql, queue)

    return one


@pytest.fixture
def filled(use: Use) -> Client:
    """30 popped messages."""
    client = use("fifo", archive_at_pop="on")
    popped(client, 30)
    return client
