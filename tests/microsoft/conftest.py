"""The tools, once a process."""

from collections.abc import Iterator

import pytest

from tests.microsoft.tools import Tools, tools, why_not


@pytest.fixture(scope="session")
def microsoft() -> Iterator[Tools]:
    """Microsoft's tools; skips, with the reason, where they are not and need not be."""
    if reason := why_not():
        pytest.skip(reason)
    with tools() as started:
        yield started
