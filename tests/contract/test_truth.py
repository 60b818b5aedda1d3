"""Figures of the monitoring are correct, or marked as estimates, or unknown.

Counts and rates on PostgreSQL; the rest of a sample on every engine.
"""

import time
from contextlib import closing

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from console import sql
from console.actions import pop
from console.catalog import LIMITS, Queue
from console.designs import DESIGNS, Flow, Order
from console.engines import Database, open_database
from console.monitor.memory import Memory
from console.monitor.rates import MAY_BE_SLOW, StatusRow
from console.monitor.sampler import Sampler
from console.monitor.snapshot import QueueSnapshot
from tests.contract.client import Client, sampled
from tests.contract.conftest import Use
from tests.contract.traffic import Traffic
from tests.contract.variants import BEHAVIOURS, DEFAULTS, Variant, default
from tests.servers import TIMEOUTS, connect, execute, wait_until
from tests.tools.filling import STATES, fill

pytestmark = pytest.mark.thinned(3)

IN_HAND = [v for v in BEHAVIOURS if v.options.get("in_hand") == "on"]
SAMPLED = DEFAULTS + IN_HAND
"""Other options change how messages flow, and nothing that a sample reads."""
DELETING = [v for v in DEFAULTS if v.design.flow is Flow.DELETED]
ERROR = 0.15
"""The relative error that an estimate may have."""


def with_room(variant: Variant, size: int = 60_000, max_bytes: int = 16) -> Variant:
    """With room for many messages, where the design has a fixed size."""
    if "size" not in variant.options:
        return variant
    return Variant(
        variant.design, {**variant.given, "size": str(size), "max_bytes": str(max_bytes)}
    )


def fill_states(client: Client, **counts: int) -> dict[str, int]:
    """Fill the states that the design has; the counts that a sample should show."""
    states = {state for state in STATES if state in _states(client.queue)}
    kept = {state: count for state, count in counts.items() if state in states}
    with connect(client.url) as connection:
        fill(connection, client.queue, kept)
    expected = dict.fromkeys(states, 0) | kept
    if "stuck" in expected:
        expected["claimed"] += expected["stuck"]
    return expected


def _states(queue: Queue) -> set[str]:
    states = {"errors" if state == "error" else state for state in queue.states}
    return states | {"stuck"} if "claimed" in states else states


def counts(observed: QueueSnapshot) -> dict[str, int | None]:
    return {
        state: getattr(observed, state) for state in STATES if getattr(observed, state) is not None
    }


@pytest.mark.parametrize("variant", SAMPLED, ids=str)
def test_every_state_of_a_quiet_queue_is_counted_exactly(
    use_postgresql: Use, variant: Variant
) -> None:
    client = use_postgresql(with_room(variant))
    assert counts(client.snapshot()) == fill_states(client)
    expected = fill_states(client, done=37, errors=11, claimed=5, stuck=3, ready=90, scheduled=21)
    observed = client.snapshot()
    assert counts(observed) == expected
    assert observed.estimated == ()
    assert "ready" not in observed.unknown


@pytest.mark.parametrize("count", [10_000, 10_001])
@pytest.mark.parametrize("variant", SAMPLED, ids=str)
def test_counts_up_to_ten_thousand_are_exact_and_higher_ones_marked_as_estimates(
    use_postgresql: Use, variant: Variant, count: int
) -> None:
    client = use_postgresql(with_room(variant))
    fill_states(client, ready=count)
    observed = client.snapshot()
    if count == 10_000:
        assert (observed.ready, observed.estimated) == (count, ())
    else:
        assert observed.estimated == ("ready",)
        check_near(observed.ready, count)


def check_near(estimate: int | None, truth: int) -> None:
    assert estimate is not None
    assert abs(estimate - truth) <= ERROR * truth, f"{estimate} for {truth}"


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("variant", SAMPLED, ids=str)
def test_several_deep_states_are_estimated_separately(
    use_postgresql: Use, variant: Variant, analyzed: bool
) -> None:
    """An incident: ready messages pile up next to many done ones."""
    client = use_postgresql(with_room(variant))
    expected = fill_states(client, done=40_000, errors=13_000, scheduled=20_000, ready=25_000)
    if analyzed:
        execute(client.url, "VACUUM ANALYZE")
    observed = client.snapshot()
    deep = {state for state, count in expected.items() if count}
    assert set(observed.estimated) == deep
    for state in deep:
        check_near(getattr(observed, state), expected[state])


@pytest.mark.parametrize("variant", DELETING, ids=str)
def test_a_draining_backlog_is_not_underestimated(use_postgresql: Use, variant: Variant) -> None:
    """Vacuum's own count is wrong here: the pages that it skips are the full ones."""
    client = use_postgresql(variant)
    fill_states(client, ready=80_000)
    table = Identifier(client.queue.schema, client.queue.table)
    with connect(client.url) as connection:
        connection.execute(SQL("VACUUM ANALYZE {}").format(table))
        for left in (40_000, 20_000):
            delete_oldest(connection, client.queue, left)
            connection.execute(SQL("VACUUM {}").format(table))
            observed = client.snapshot()
            assert observed.estimated == ("ready",)
            check_near(observed.ready, left)


def delete_oldest(connection: psycopg.Connection, queue: Queue, left: int) -> None:
    """Delete the oldest rows until `left` remain."""
    direction = "ASC" if queue.design.order is Order.LIFO else "DESC"
    id_of = Identifier(queue.roles["id"])
    connection.execute(
        SQL(
            "DELETE FROM {table} WHERE {id} NOT IN"
            " (SELECT {id} FROM {table} ORDER BY {id} " + direction + " LIMIT {left})"
        ).format(table=Identifier(queue.schema, queue.table), id=id_of, left=left)
    )


@pytest.mark.long
@pytest.mark.parametrize("variant", SAMPLED, ids=str)
def test_the_estimate_of_a_deep_queue_follows_pushes_between_counts(
    use_postgresql: Use, postgresql: Database, variant: Variant
) -> None:
    """Between two counts the estimate follows the engine's own counters."""
    client = use_postgresql(with_room(variant, 120_000))
    fill_states(client, ready=60_000)
    memory = Memory()

    def ready() -> int:
        ((observed,), _) = sampled(postgresql, client.queue, memory=memory)
        return observed.ready or 0

    for _ in range(2):
        check_near(ready(), 60_000)
    with connect(client.url) as connection:
        name = Identifier(client.queue.schema, f"{client.queue.name}_push_many")
        more = SQL("SELECT count(*) FROM {}(array_fill('x'::text, ARRAY[30000]))")
        connection.execute(more.format(name))
    # The session has ended, so its counters arrive almost at once.
    wait_until(lambda: ready() > 80_000, "the new messages are seen")
    check_near(ready(), 90_000)


@pytest.mark.parametrize("left", [0, 12, 15_000])
def test_a_deep_queue_that_is_emptied_is_counted_at_once(
    use_postgresql: Use, postgresql: Database, left: int
) -> None:
    client = use_postgresql(default("fifo"))
    fill_states(client, ready=60_000)
    memory = Memory()
    for _ in range(2):
        ((observed,), _) = sampled(postgresql, client.queue, memory=memory)
        check_near(observed.ready, 60_000)
    with connect(client.url) as connection:
        delete_oldest(connection, client.queue, left)
    ((observed,), _) = sampled(postgresql, client.queue, memory=memory)
    if left <= 10_000:
        assert (observed.ready, observed.estimated) == (left, ())
    else:
        check_near(observed.ready, left)


@pytest.mark.long
@pytest.mark.parametrize("variant", SAMPLED, ids=str)
def test_a_count_under_traffic_is_correct_for_one_moment_of_the_sample(
    use_postgresql: Use, variant: Variant
) -> None:
    client = use_postgresql(with_room(variant, 10_000, max_bytes=300))
    assert None not in client.push_many(client.payloads(*range(500)))
    traffic = Traffic(client, producers=1, consumers=1, batch=1, pause_seconds=0.0)
    with traffic.running(min_finished=20):
        for _ in range(25):
            pushed, popped = len(traffic.pushed), traffic.popped
            observed = client.snapshot()
            most = 500 + traffic.offered - popped
            least = 500 + pushed - traffic.requested
            assert observed.ready is not None
            assert least <= observed.ready <= most
            assert observed.estimated == ()
            assert observed.age_seconds is None or observed.age_seconds >= 0


@pytest.mark.parametrize("variant", SAMPLED, ids=str)
def test_rates_equal_what_was_pushed_and_popped(
    use_postgresql: Use, postgresql: Database, variant: Variant
) -> None:
    """Until all counters have arrived a rate is too low or unknown, but not zero or negative."""
    client = use_postgresql(with_room(variant))
    pushed, popped = 400, 150
    windows = Sampler(postgresql, timeouts=TIMEOUTS)
    first = sampled_queue(windows, client)
    assert first.push_per_second is None
    assert "push_per_second" in first.unknown
    began = time.monotonic()
    with closing(open_database(client.url)) as database:
        other = Client(database, client.queue)
        other.push_many(["x"] * pushed)
        assert len(other.pop_many(popped)) == popped

    def complete() -> bool:
        observed = sampled_queue(windows, client)
        elapsed = time.monotonic() - began
        assert observed.push_per_second is None or observed.push_per_second > 0
        assert observed.pop_per_second is None or observed.pop_per_second >= 0
        if observed.push_per_second is None or observed.pop_per_second is None:
            return False
        return (
            observed.push_per_second * elapsed >= 0.9 * pushed
            and observed.pop_per_second * elapsed >= 0.9 * popped
        )

    wait_until(complete, "the rates are complete", 9.0)  # within the window of 10 s


def sampled_queue(sampler: Sampler, client: Client) -> QueueSnapshot:
    reading = sampler.sample()
    assert reading.error is None
    (observed,) = (queue for queue in reading.queues if queue.queue == client.queue.name)
    return observed


def test_rates_are_unknown_after_a_reset_of_the_counters(
    use_postgresql: Use, postgresql: Database
) -> None:
    """All counters, or only those of the queue's table."""
    client = use_postgresql(default("fifo"))
    client.push_many(["x"] * 100)
    reset_all = "SELECT pg_stat_reset()"
    table = f'"{client.queue.schema}"."{client.queue.table}"'
    reset_table = f"SELECT pg_stat_reset_single_table_counters('{table}'::regclass)"
    sampler = Sampler(postgresql, timeouts=TIMEOUTS)
    with connect(client.url) as connection:
        for reset in (reset_all, reset_table):
            wait_until(
                lambda: sampled_queue(sampler, client).push_per_second is not None,
                "rates are known",
            )
            wait_until(lambda: (client.status().inserted or 0) > 0, "pushes were counted")
            sampled_queue(sampler, client)
            connection.execute(reset.encode())
            observed = sampled_queue(sampler, client)
            assert (observed.push_per_second, observed.pop_per_second) == (None, None)
            assert {"push_per_second", "pop_per_second"} <= set(observed.unknown)
            assert sampled_queue(sampler, client).push_per_second is not None
            client.push_many(["x"] * 100)
            client.database.close()


def test_a_deep_queue_is_estimated_correctly_without_its_counters(use_postgresql: Use) -> None:
    client = use_postgresql(default("fifo"))
    fill_states(client, ready=50_000)
    execute(client.url, "SELECT pg_stat_reset()")
    check_near(client.snapshot().ready, 50_000)


def test_only_the_oldest_claims_are_listed(use_postgresql: Use) -> None:
    client = use_postgresql(default("claim"))
    fill_states(client, claimed=500, stuck=4)
    observed = client.snapshot()
    assert observed.claims is not None
    assert (observed.claimed, len(observed.claims)) == (504, 10)
    assert sum((claim.claimed_seconds or 0) > 3000 for claim in observed.claims) == 4


def test_a_lagging_counter_makes_no_false_zero(use_postgresql: Use, postgresql: Database) -> None:
    """An idle session keeps its counts for up to ten seconds."""
    client = use_postgresql(default("fifo"))
    sampler = Sampler(postgresql, timeouts=TIMEOUTS)
    assert sampled_queue(sampler, client).ready == 0
    with connect(client.url) as connection:
        push = SQL("SELECT {}('x')").format(
            Identifier(client.queue.schema, f"{client.queue.name}_push")
        )
        for count in (1, 2, 3):
            connection.execute(push)
            observed = sampled_queue(sampler, client)
            assert observed.ready == count
            assert observed.push_per_second is None or observed.push_per_second > 0


WITH_CLAIMS = [v for v in SAMPLED if v.finishes]


@pytest.mark.parametrize("variant", WITH_CLAIMS, ids=str)
def test_claims_have_owners(client: Client) -> None:
    client.push_many(client.payloads(0, 1, 2, 3))
    with closing(open_database(client.url)) as database:
        Client(database, client.queue).pop_many(1, "left early")
    with closing(open_database(client.url)) as database:
        Client(database, client.queue).pop_many(1, 'here \' "it" is')
        expected: dict[str | None, str] = {"left early": "gone", 'here \' "it" is': "alive"}
        if client.database.product.name == "postgresql":
            with connect(client.url) as connection:
                fill(connection, client.queue, {"claimed": 1})  # by a name without a session
            expected[None] = "unknown"
        if "sessions" in client.database.capabilities.missing:
            expected = dict.fromkeys(expected, "unknown")

        def owners_are_known() -> bool:
            # A server may need a moment to notice a disconnect.
            claims = client.snapshot().claims or ()
            return {claim.consumer: str(claim.owner) for claim in claims} == expected

        wait_until(owners_are_known, "each claim has its owner")
        observed = client.snapshot()
    assert observed.claimed == len(observed.claims or ()) == len(expected)
    ages = [claim.claimed_seconds for claim in observed.claims or ()]
    assert all(age is not None and age >= 0 for age in ages)
    assert ages == sorted(ages, key=lambda age: -(age or 0))  # the oldest first
    assert all(not claim.bound for claim in observed.claims or ())
    theirs = [claim for claim in observed.claims or () if claim.consumer is None]
    assert [(claim.claimed_by, claim.session) for claim in theirs] == [("w", None)] * len(theirs)
    ours = [claim for claim in observed.claims or () if claim.consumer is not None]
    assert [(claim.consumer, claim.attempts) for claim in ours] == [
        ("left early", 1),
        ('here \' "it" is', 1),
    ]


@pytest.mark.parametrize("variant", DEFAULTS, ids=str)
def test_the_session_that_holds_rows_is_reported(client: Client) -> None:
    client.push_many(client.payloads(0, 1))
    if "sessions" in client.database.capabilities.missing:
        pytest.skip(client.database.capabilities.missing["sessions"])
    before = client.snapshot()
    assert (before.holders, before.held_seconds, before.held_by) == (0, None, ())
    with closing(open_database(client.url)) as database, database.transaction("pop") as connection:
        assert pop.pop_many(connection, client.queue, 1)
        observed = client.snapshot()
        (holder,) = observed.held_by
        assert observed.holders == 1
        driver = connection.connection.driver_connection
        if isinstance(driver, psycopg.Connection):
            assert holder.session == driver.info.backend_pid
    assert (holder.application_name, holder.state) == ("dbq-console", "idle in transaction")
    assert holder.transaction_seconds is not None
    assert holder.transaction_seconds > 0
    assert holder.held_seconds == observed.held_seconds
    assert client.snapshot().holders == 0


def test_a_ring_of_many_slots_is_counted_exactly_while_its_gap_is_small(use: Use) -> None:
    client = use(Variant(DESIGNS["ring"], {"size": "10300", "max_bytes": "16"}))
    client.push_many([str(number) for number in range(10)])
    client.pop_many(3)
    observed = client.snapshot()
    assert (observed.ready, observed.gap, observed.capacity) == (7, 7, 10_300)
    assert "ready" not in observed.estimated


@pytest.mark.parametrize("variant", SAMPLED, ids=str)
def test_figures_that_are_left_out_are_zero_or_unknown(client: Client, variant: Variant) -> None:
    client.push_many(client.payloads(0, 1, 2))
    client.pop_many(1)
    product = client.database.product
    for left_out in (set(MAY_BE_SLOW), {"ready"}, {"age_seconds"}):
        limits = dict.fromkeys(LIMITS.keys() & {f"{figure}_limit" for figure in left_out}, "0")
        part = sql.part(
            f"{variant.design.name}.status", product.dialect, client.queue.scope(product, **limits)
        )
        with client.database.transaction("read", read_only=True) as connection:
            (row,) = sql.union(connection, StatusRow, [part])
        usual = client.status()
        for figure in MAY_BE_SLOW:
            known, found = getattr(usual, figure), getattr(row, figure)
            if figure == "age_seconds":
                assert (found is None) == (known is None or figure in left_out)
            else:
                assert found == (known and (0 if figure in left_out else known)), figure
