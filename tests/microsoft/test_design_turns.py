"""Every design's procedures, interleaved at random: nothing is lost, doubled, or left over."""

from collections.abc import Callable
from functools import cache

import pytest

from tests.contract.variants import BEHAVIOURS, Variant, on
from tests.microsoft.design_sessions import Installation, Run
from tests.microsoft.tools import Tools

DESIGNS = {str(variant): variant for variant in on("mssql", BEHAVIOURS) if variant.design.name != "broker"}
Made = Callable[[Variant], Installation]


@pytest.fixture(scope="session")
def made(microsoft: Tools) -> Made:
    """The installation of a variant, read once."""
    return cache(lambda variant: Installation(variant, microsoft.tree))


@pytest.fixture(params=DESIGNS.values(), ids=str)
def variant(request: pytest.FixtureRequest) -> Variant:
    found: Variant = request.param
    return found


@pytest.mark.parametrize("faults", [(), ("attention",), ("failover", "attention")], ids=str)
def test_each_message_comes_once(made: Made, variant: Variant, faults: tuple[str, ...], long: bool) -> None:
    for seed in range(2000 if long else 20):
        run = Run(made(variant), seed, faults=faults)
        run.run_interleaved()
        run.drain_and_check()
