"""Which engines the contract was not run on, said aloud."""

import pytest

from console.engines import PRODUCTS
from tests.contract.conftest import HERE


@pytest.mark.parametrize("engine", PRODUCTS)
def test_the_contract_is_run_on(engine: str) -> None:
    if engine not in HERE:
        pytest.skip(f"DBQ_TEST_{engine.upper()}_URL names no server: nothing was run on {engine}")
