"""What a sample has of a queue besides its counts, on every engine."""

from contextlib import closing

import psycopg
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
from tests.filling import fill
from tests.servers import connect, wait_until

pytestmark = pytest.mark.thinned(3, payload=False)

LOOKED_AT = DEFAULTS + [v for v in BEHAVIOURS if v.options.get("in_hand") == "on"]
KEEPING = [v for v in LOOKED_AT if v.finishes]


@pytest.mark.parametrize("variant", KEEPING, ids=str)
def test_claims_have_owners(use: Use, variant: Variant) -> None:
    client = use(variant)
    client.push_many(client.payloads(0, 1, 2, 3))
    with closing(open_database(client.url)) as database:
        Client(database, client.queue).pop_many(1, "left early")
    with closing(open_database(client.url)) as database:
        Client(database, client.queue).pop_many(1, 'here \' "it" is')
        expected: dict[str | None, str] = {"left early": "gone", 'here \' "it" is': "alive"}
        if client.database.product.name == "postgresql":
            with connect(client.url) as connection:
                fill(connection, client.queue, {"claimed": 1})  # by a name that is no session's
            expected[None] = "unknown"
        if "sessions" in client.database.capabilities.missing:
            expected = dict.fromkeys(expected, "unknown")

        def told() -> bool:
            # A server may need a moment to see that somebody has left.
            claims = client.snapshot().claims or ()
            return {claim.consumer: str(claim.owner) for claim in claims} == expected

        wait_until(told, "each claim has its owner")
        seen = client.snapshot()
    assert seen.claimed == len(seen.claims or ()) == len(expected)
    ages = [claim.claimed_seconds for claim in seen.claims or ()]
    assert all(age is not None and age >= 0 for age in ages)
    assert ages == sorted(ages, key=lambda age: -(age or 0))  # the oldest first
    assert all(not claim.bound for claim in seen.claims or ())
    theirs = [claim for claim in seen.claims or () if claim.consumer is None]
    assert [(claim.claimed_by, claim.session) for claim in theirs] == [("w", None)] * len(theirs)
    ours = [claim for claim in seen.claims or () if claim.consumer is not None]
    assert [(claim.consumer, claim.attempts) for claim in ours] == [
        ("left early", 1),
        ('here \' "it" is', 1),
    ]


@pytest.mark.parametrize("variant", DEFAULTS, ids=str)
def test_who_holds_rows_in_an_open_transaction(use: Use, variant: Variant) -> None:
    client = use(variant)
    client.push_many(client.payloads(0, 1))
    if "sessions" in client.database.capabilities.missing:
        pytest.skip(client.database.capabilities.missing["sessions"])
    before = client.snapshot()
    assert (before.holders, before.held_seconds, before.held_by) == (0, None, ())
    with (
        closing(open_database(client.url)) as database,
        database.transaction("pop") as connection,
    ):
        assert pop.pop_many(connection, client.queue, 1)
        seen = client.snapshot()
        (holder,) = seen.held_by
        assert seen.holders == 1
        driver = connection.connection.driver_connection
        if isinstance(driver, psycopg.Connection):
            assert holder.session == driver.info.backend_pid
    assert (holder.application_name, holder.state) == ("dbq-console", "idle in transaction")
    assert holder.transaction_seconds is not None
    assert holder.transaction_seconds > 0
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
        with client.database.transaction("read", read_only=True) as connection:
            (row,) = sql.union(connection, StatusRow, [part])
        usual = client.status()
        for figure in FIGURES:
            known, found = getattr(usual, figure), getattr(row, figure)
            if figure == "age_seconds":
                assert (found is None) == (known is None or figure in left_out)
            else:
                assert found == (known and (0 if figure in left_out else known)), figure
