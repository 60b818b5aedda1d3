"""The tools, once a process."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from tests.microsoft.ring_sessions import Trees, procedures, variant
from tests.microsoft.tools import Tools, tools, why_not


@pytest.fixture(scope="session")
def microsoft() -> Iterator[Tools]:
    """Microsoft's tools; skips, with the reason, where they are not and need not be."""
    if reason := why_not():
        pytest.skip(reason)
    with tools() as started:
        yield started


@pytest.fixture(scope="session")
def read(microsoft: Tools) -> Callable[[str, int], Trees]:
    """The procedures of a ring of that way, with subscribers or without."""
    return cache(lambda way, subscribers: procedures(microsoft, variant(way, subscribers)))
