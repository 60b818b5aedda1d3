"""A ring's slots are updated on their own page (HOT): no new index entries, nothing to vacuum."""

import random
from collections.abc import Callable

import pytest
from psycopg.sql import SQL

from console.actions import relay
from console.actions.push import Payload
from console.designs import Flow
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.variants import DEFAULTS, Variant
from tests.servers import connect, wait_until

SIZE = 120
LAPS = 3
WIDTHS = (16, 300, 1000, 1300, 2600, 7000)
"""Some fill a page to a nicety, some leave much of it: 2,600 is two slots and a half."""


def updates(client: Client, suffix: str = "") -> tuple[int, int]:
    """(updates, HOT ones among them) of the ring's table, by the server's counters."""
    counters = SQL(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables"
        " WHERE schemaname = %s AND relname = %s"
    )
    with connect(client.url) as connection:
        table = client.queue.name + suffix
        row = connection.execute(counters, [client.queue.schema, table]).fetchone()
    assert row is not None
    return row


def counted(client: Client, expected: int) -> None:
    """Wait until the server's counters have so many updates: sessions that end hand theirs in."""
    client.database.close()
    wait_until(lambda: updates(client)[0] >= expected, "all updates are counted")


def full_width(kind: str, width: int, number: int) -> Payload:
    """As wide as a slot takes, and not to be compressed."""
    dice = random.Random(number)
    if kind == "bytes":
        return dice.randbytes(width)
    if kind == "json":
        return '"' + "".join(dice.choices("0123456789abcdef", k=width - 2)) + '"'
    return "".join(dice.choices("0123456789abcdef", k=width))


def fill_and_empty(client: Client, payloads: list[Payload]) -> None:
    """Every slot of a page in one transaction."""
    for _ in range(LAPS):
        assert None not in client.push_many(payloads)
        assert len(client.drain(50)) == SIZE


def by_turns(client: Client, payloads: list[Payload]) -> None:
    """One slot after the other, each in a transaction of its own."""
    for _ in range(LAPS):
        for payload in payloads:
            assert client.push(payload) is not None
            assert client.pop() is not None


TURNED = {16, 2600}
"""Widths whose slots have their turns, and are laid anew, in the short tier too."""
RINGS = [v for v in DEFAULTS if v.design.flow is Flow.NUMBERS]
CASES = [
    *((fill_and_empty, kind, width) for kind in ("text", "json", "bytes") for width in WIDTHS),
    *((by_turns, "text", width) for width in WIDTHS),
]


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("laps", "kind", "width"), CASES, ids=lambda part: getattr(part, "__name__", None)
)
@pytest.mark.parametrize("ring", RINGS, ids=str)
def test_nearly_all_updates_of_slots_are_hot_from_the_first_lap(
    use_postgresql: Use,
    ring: Variant,
    width: int,
    kind: str,
    laps: Callable[[Client, list[Payload]], None],
    long: bool,
) -> None:
    if laps is by_turns and width not in TURNED and not long:
        pytest.skip("with --long: each slot's turn is a transaction")
    given = {"size": str(SIZE), "max_bytes": str(width), "payload": kind}
    client = use_postgresql(Variant(ring.design, given))
    counted(client, SIZE)
    prefill, prefill_hot = updates(client)

    laps(client, [full_width(kind, width, number) for number in range(SIZE)])

    counted(client, prefill + 2 * LAPS * SIZE)
    all_updates, hot = updates(client)
    assert all_updates - prefill == 2 * LAPS * SIZE
    assert (hot - prefill_hot) / (all_updates - prefill) >= 0.95


@pytest.mark.parametrize(
    "width",
    [w if w in TURNED else pytest.param(w, marks=pytest.mark.long) for w in WIDTHS],
)
@pytest.mark.parametrize("ring", RINGS, ids=str)
def test_so_are_those_of_a_ring_that_was_laid_anew(
    use_postgresql: Use, ring: Variant, width: int
) -> None:
    given = {"size": str(SIZE // 2), "max_bytes": str(width)}
    client = use_postgresql(Variant(ring.design, given))
    payloads = [full_width("text", width, number) for number in range(SIZE)]
    client.push_many(payloads[: SIZE // 2])
    relay.relay(client.database, client.queue, SIZE)
    client.drain()
    counted(client, SIZE)
    before, before_hot = updates(client)

    fill_and_empty(client, payloads)

    counted(client, before + 2 * LAPS * SIZE)
    after, after_hot = updates(client)
    assert (after_hot - before_hot) / (after - before) >= 0.95
