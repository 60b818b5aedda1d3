"""What a look tells of a queue beside its counts, on every engine."""

from contextlib import closing

import pytest

from console import sql
from console.actions import pop
from console.catalog import LIMITS
from console.designs import DESIGNS
from console.engines import open_database
from console.monitor.figures import FIGURES, StatusRow
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.variants import BEHAVIOURS, DEFAULTS, Variant
from tests.servers import wait_until

LOOKED_AT = DEFAULTS + [v for v in BEHAVIOURS if v.options.get("in_hand") == "on"]
KEEPING = [v for v in LOOKED_AT if v.finishes]


@pytest.mark.parametrize("variant", KEEPING, ids=str)
def test_claims_have_owners(use: Use, variant: Variant) -> None:
    client = use(variant)
    client.push_many(client.payloads(0, 1, 2))
    with closing(open_database(client.url)) as database:
        Client(database, client.queue).pop_many(1, "left early")
    with closing(open_database(client.url)) as database:
        Client(database, client.queue).pop_many(1, 'here \' "it" is')
        expected = {"left early": "gone", 'here \' "it" is': "alive"}
        if "sessions" in client.database.capabilities.missing:
            expected = dict.fromkeys(expected, "unknown")

        def told() -> bool:
            # A server may need a moment to see that somebody has left.
            claims = client.snapshot().claims or ()
            return {claim.consumer: str(claim.owner) for claim in claims} == expected

        wait_until(told, "each claim has its owner")
        seen = client.snapshot().claims or ()
    assert [claim.consumer for claim in seen] == list(expected)  # the oldest first
    assert [claim.attempts for claim in seen] == [1, 1]
    assert all((claim.claimed_seconds or -1.0) >= 0 for claim in seen)


@pytest.mark.parametrize("variant", DEFAULTS, ids=str)
def test_who_holds_rows_in_an_open_transaction(use: Use, variant: Variant) -> None:
    client = use(variant)
    client.push_many(client.payloads(0, 1))
    if "sessions" in client.database.capabilities.missing:
        pytest.skip(client.database.capabilities.missing["sessions"])
    assert client.snapshot().holders == 0
    with (
        closing(open_database(client.url)) as database,
        database.transaction("pop") as connection,
    ):
        assert pop.pop_many(connection, client.queue, 1)
        seen = client.snapshot()
    (holder,) = seen.held_by
    assert (holder.application_name, holder.state) == ("dbq-console", "idle in transaction")
    assert holder.transaction_seconds is not None
    assert holder.held_seconds == seen.held_seconds
    assert client.snapshot().holders == 0


def test_a_ring_of_many_slots_is_counted_while_its_gap_is_small(use: Use) -> None:
    client = use(Variant(DESIGNS["ring"], {"size": "10300", "max_bytes": "16"}))
    client.push_many([str(number) for number in range(10)])
    client.pop_many(3)
    seen = client.snapshot()
    assert (seen.ready, seen.gap, seen.capacity) == (7, 7, 10_300)
    assert "ready" not in seen.estimated


@pytest.mark.parametrize("variant", LOOKED_AT, ids=str)
def test_what_is_left_out_costs_nothing_and_is_nothing(use: Use, variant: Variant) -> None:
    client = use(variant)
    client.push_many(client.payloads(0, 1, 2))
    client.pop_many(1)
    product = client.database.product
    for left_out in (set(FIGURES), {"ready"}, {"age_seconds"}):
        limits = dict.fromkeys(LIMITS.keys() & {f"{figure}_limit" for figure in left_out}, "0")
        part = sql.part(
            f"{variant.design.name}.status", product.dialect, client.queue.scope(product, **limits)
        )
        with client.database.transaction("look", read_only=True) as connection:
            (row,) = sql.union(connection, StatusRow, [part])
        usual = client.status()
        for figure in FIGURES:
            known, found = getattr(usual, figure), getattr(row, figure)
            if figure == "age_seconds":
                assert (found is None) == (known is None or figure in left_out)
            else:
                assert found == (known and (0 if figure in left_out else known)), figure
