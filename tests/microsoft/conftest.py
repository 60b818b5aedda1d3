"""Microsoft's tools, started once per process."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from tests.microsoft.design_sessions import Installation
from tests.microsoft.ring_sessions import Trees, variant
from tests.microsoft.tools import Tools, tools, why_unavailable


@pytest.fixture(scope="session")
def microsoft() -> Iterator[Tools]:
    """Microsoft's tools; skips, with the reason, if they are missing and not required."""
    if reason := why_unavailable():
        pytest.skip(reason)
    with tools() as started:
        yield started


@pytest.fixture(scope="session")
def ring_of(microsoft: Tools) -> Callable[[str, int], Installation]:
    """A ring of that kind, with subscribers or without."""
    return cache(lambda kind, subscribers: Installation(variant(kind, subscribers), microsoft.tree))


@pytest.fixture(scope="session")
def trees_of(ring_of: Callable[[str, int], Installation]) -> Callable[[str, int], Trees]:
    """The procedures of such a ring."""
    return lambda kind, subscribers: ring_of(kind, subscribers).procedures
