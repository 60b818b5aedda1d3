"""Fixtures of the command line's tests: a database per module, a queue name per test."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.calls import Console
from tests.servers import Server, fresh_database


@pytest.fixture(scope="module")
def console(server: Server) -> Iterator[Console]:
    """The command line on a database of this module."""
    with fresh_database(server.url) as url:
        yield Console(url)


@pytest.fixture
def empty(database_url: str) -> Console:
    """The command line on a new database."""
    return Console(database_url)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The configuration file if XDG_CONFIG_HOME is `tmp_path`; it does not exist yet."""
    path = tmp_path / "dbq-console" / "config.toml"
    path.parent.mkdir()
    return path


_numbers = itertools.count(1)

Install = Callable[..., str]


@pytest.fixture
def install(console: Console) -> Install:
    """Installs a queue of a design with these `k=v` options; returns its name."""

    def make(design: str, *options: str) -> str:
        name = f"{design} {next(_numbers)}"
        given = [word for option in options for word in ("--option", option)]
        console.done("install", design, name, *given)
        return name

    return make
