"""Fixtures of the command line's tests: a database a module, a queue's name a test."""

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
    """The command line on a database that it has never seen."""
    return Console(database_url)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The configuration file of who has `tmp_path` for his XDG_CONFIG_HOME; it is not there yet."""
    path = tmp_path / "dbq-console" / "config.toml"
    path.parent.mkdir()
    return path


_numbers = itertools.count(1)

Install = Callable[..., str]


@pytest.fixture
def install(console: Console) -> Install:
    """Install a queue of a design with these `k=v` options; its name."""

    def make(design: str, *options: str) -> str:
        name = f"{design} {next(_numbers)}"
        given = [word for option in options for word in ("--option", option)]
        console.done("install", design, name, *given)
        return name

    return make
