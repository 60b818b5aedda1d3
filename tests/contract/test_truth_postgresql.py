"""What the monitoring says of a queue is so, or is marked, or is said to be unknown."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from uuid import uuid4

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from console.actions import relay
from console.catalog import Kind, Queue
from console.designs import DESIGNS, Flow, Order
from console.engines import Database, open_database
from console.monitor.memory import Memory
from console.monitor.sample import SAMPLING_TIMEOUTS, take_sample
from console.monitor.sampler import Sampler
from console.monitor.snapshot import QueueSnapshot, snapshot
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.traffic import Traffic, at_work
from tests.contract.variants import BEHAVIOURS, DEFAULTS, Variant
from tests.filling import STATES, fill
from tests.servers import TIMEOUTS, connect, wait_until

pytestmark = pytest.mark.thinned(3)

IN_HAND = [v for v in BEHAVIOURS if v.options.get("in_hand") == "on"]
LOOKED_AT = DEFAULTS + IN_HAND
"""Other options change how messages flow, and nothing that a look reads."""
KEEPING = [v for v in LOOKED_AT if v.finishes]
DELETING = [v for v in DEFAULTS if v.design.flow is Flow.DELETED]
ERROR = 0.15
"""How far an estimate may be off."""


def of(name: str) -> Variant:
    (variant,) = (v for v in DEFAULTS if v.design.name == name)
    return variant


def large(variant: Variant, size: int = 60_000, max_bytes: int = 16) -> Variant:
    """With room, where a design wants to know that before."""
    if "size" not in variant.options:
        return variant
    return Variant(
        variant.design, {**variant.given, "size": str(size), "max_bytes": str(max_bytes)}
    )


def filled(client: Client, **counts: int) -> dict[str, int]:
    """Fill the states that the design has; what a look should find."""
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


def counts(seen: QueueSnapshot) -> dict[str, int | None]:
    return {state: getattr(seen, state) for state in STATES if getattr(seen, state) is not None}


@pytest.mark.parametrize("variant", LOOKED_AT, ids=str)
def test_every_state_of_a_quiet_queue_is_counted_exactly(
    use_postgresql: Use, variant: Variant
) -> None:
    client = use_postgresql(large(variant))
    assert counts(client.snapshot()) == filled(client)
    expected = filled(client, done=37, errors=11, claimed=5, stuck=3, ready=90, scheduled=21)
    seen = client.snapshot()
    assert counts(seen) == expected
    assert seen.estimated == ()
    assert "ready" not in seen.unknown


@pytest.mark.parametrize("count", [10_000, 10_001])
@pytest.mark.parametrize("variant", LOOKED_AT, ids=str)
def test_up_to_ten_thousand_is_exact_and_above_it_is_marked(
    use_postgresql: Use, variant: Variant, count: int
) -> None:
    client = use_postgresql(large(variant))
    filled(client, ready=count)
    seen = client.snapshot()
    if count == 10_000:
        assert (seen.ready, seen.estimated) == (count, ())
    else:
        assert seen.estimated == ("ready",)
        near(seen.ready, count)


def near(estimate: int | None, truth: int) -> None:
    assert estimate is not None
    assert abs(estimate - truth) <= ERROR * truth, f"{estimate} for {truth}"


@pytest.mark.thinned(3)
@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("variant", LOOKED_AT, ids=str)
def test_several_deep_states_are_told_apart(
    use_postgresql: Use, variant: Variant, analyzed: bool
) -> None:
    """An incident: the ready ones pile up in front of all that was done."""
    client = use_postgresql(large(variant))
    expected = filled(client, done=100_000, errors=13_000, scheduled=40_000, ready=25_000)
    if analyzed:
        with connect(client.url) as connection:
            connection.execute("VACUUM ANALYZE")
    seen = client.snapshot()
    deep = {state for state, count in expected.items() if count}
    assert set(seen.estimated) == deep
    for state in deep:
        near(getattr(seen, state), expected[state])


@pytest.mark.parametrize("variant", DELETING, ids=str)
def test_a_backlog_that_drains_is_not_taken_for_less_than_it_is(
    use_postgresql: Use, variant: Variant
) -> None:
    """Vacuum's own count goes wrong here: the pages that it skips are the full ones."""
    client = use_postgresql(variant)
    filled(client, ready=200_000)
    table = Identifier(client.queue.schema, client.queue.table)
    with connect(client.url) as connection:
        connection.execute(SQL("VACUUM ANALYZE {}").format(table))
        for left in (100_000, 40_000):
            drop_oldest(connection, client.queue, left)
            connection.execute(SQL("VACUUM {}").format(table))
            seen = client.snapshot()
            assert seen.estimated == ("ready",)
            near(seen.ready, left)


def drop_oldest(connection: psycopg.Connection, queue: Queue, left: int) -> None:
    """Pop all but so many; an unordered design as its table lies."""
    direction = "ASC" if queue.design.order is Order.LIFO else "DESC"
    id_of = Identifier(queue.roles["id"])
    connection.execute(
        SQL(
            "DELETE FROM {table} WHERE {id} NOT IN"
            " (SELECT {id} FROM {table} ORDER BY {id} " + direction + " LIMIT {left})"
        ).format(table=Identifier(queue.schema, queue.table), id=id_of, left=left)
    )


@pytest.fixture
def sampling(postgresql: Database) -> Iterator[Database]:
    """The module's database as the sampler sees it, with the sampler's time-outs."""
    url = postgresql.url.render_as_string(hide_password=False)
    with closing(open_database(url, timeouts=SAMPLING_TIMEOUTS)) as database:
        yield database


@contextmanager
def patient(database: Database, memory: Memory) -> Iterator[Callable[..., QueueSnapshot]]:
    """Look with a memory, as a sampler does."""

    def look(queue: Queue) -> QueueSnapshot:
        (seen,) = take_sample(database, only=[queue], memory=memory).queues
        return snapshot(seen, "test")

    yield look


@pytest.mark.parametrize("variant", LOOKED_AT, ids=str)
def test_a_deep_queue_is_followed_while_it_is_not_counted(
    use_postgresql: Use, postgresql: Database, variant: Variant
) -> None:
    """Between two counts the estimate moves with what the engine counts anyway."""
    client = use_postgresql(large(variant, 120_000))
    filled(client, ready=60_000)
    with patient(postgresql, Memory()) as look:
        near(look(client.queue).ready, 60_000)
        near(look(client.queue).ready, 60_000)
        with connect(client.url) as connection:
            name = Identifier(client.queue.schema, f"{client.queue.name}_push_many")
            more = SQL("SELECT count(*) FROM {}(array_fill('x'::text, ARRAY[30000]))")
            connection.execute(more.format(name))
        # The session has ended, so its counters come at once or nearly so.
        wait_until(lambda: (look(client.queue).ready or 0) > 80_000, "the new messages are seen")
        near(look(client.queue).ready, 90_000)


@pytest.mark.parametrize("left", [0, 12, 15_000])
def test_a_deep_queue_that_is_emptied_is_counted_at_once(
    use_postgresql: Use, postgresql: Database, left: int
) -> None:
    client = use_postgresql(of("fifo"))
    filled(client, ready=60_000)
    with patient(postgresql, Memory()) as look:
        near(look(client.queue).ready, 60_000)
        near(look(client.queue).ready, 60_000)
        with connect(client.url) as connection:
            drop_oldest(connection, client.queue, left)
        seen = look(client.queue)
        if left <= 10_000:
            assert (seen.ready, seen.estimated) == (left, ())
        else:
            near(seen.ready, left)


def test_a_ring_without_its_configuration_spoils_no_other_queue(
    use_postgresql: Use, sampling: Database
) -> None:
    ring, fifo = use_postgresql(of("ring")), use_postgresql(of("fifo"))
    fifo.push("x")
    config = Identifier(ring.queue.schema, f"{ring.queue.name}_config")
    with connect(ring.url) as connection:
        connection.execute(SQL("CREATE TABLE kept AS SELECT * FROM {}").format(config))
        connection.execute(SQL("DELETE FROM {}").format(config))
        sample = take_sample(sampling, only=[ring.queue, fifo.queue])
        connection.execute(SQL("INSERT INTO {} SELECT * FROM kept").format(config))
        connection.execute("DROP TABLE kept")
    broken, sound = (snapshot(queue, "test") for queue in sample.queues)
    assert (broken.ready, broken.problem) == (None, "its configuration is empty")
    assert (sound.ready, sound.problem) == (1, "")


@pytest.mark.parametrize("variant", LOOKED_AT, ids=str)
def test_under_traffic_a_count_is_of_one_moment_of_the_look(
    use_postgresql: Use, variant: Variant
) -> None:
    client = use_postgresql(large(variant, 10_000, max_bytes=300))
    assert None not in client.push_many(client.payloads(*range(500)))
    traffic = Traffic(client, producers=1, consumers=1, batch=1, pause_seconds=0.0)
    with traffic.going_on(least=20):
        for _ in range(25):
            pushed, popped = len(traffic.pushed), traffic.popped
            seen = client.snapshot()
            most = 500 + traffic.offered - popped
            least = 500 + pushed - traffic.wanted
            assert seen.ready is not None
            assert least <= seen.ready <= most
            assert seen.estimated == ()
            assert seen.age_seconds is None or seen.age_seconds >= 0


@pytest.mark.parametrize("variant", LOOKED_AT, ids=str)
def test_rates_are_those_of_what_was_pushed_and_popped(
    use_postgresql: Use, postgresql: Database, variant: Variant
) -> None:
    """Until all counters are in, a rate is too low or unknown, but no zero and never negative."""
    client = use_postgresql(large(variant))
    pushed, popped = 400, 150
    windows = Sampler(postgresql, timeouts=TIMEOUTS)
    first = own(windows, client)
    assert first.push_per_second is None
    assert "push_per_second" in first.unknown
    began = time.monotonic()
    with closing(open_database(client.url)) as database:
        other = Client(database, client.queue)
        other.push_many(["x"] * pushed)
        assert len(other.pop_many(popped)) == popped

    def complete() -> bool:
        seen = own(windows, client)
        elapsed = time.monotonic() - began
        assert seen.push_per_second is None or seen.push_per_second > 0
        assert seen.pop_per_second is None or seen.pop_per_second >= 0
        if seen.push_per_second is None or seen.pop_per_second is None:
            return False
        return (
            seen.push_per_second * elapsed >= 0.9 * pushed
            and seen.pop_per_second * elapsed >= 0.9 * popped
        )

    wait_until(complete, "the rates are complete", 9.0)  # inside of the window of 10 s


def own(sampler: Sampler, client: Client) -> QueueSnapshot:
    reading = sampler.look()
    assert reading.error is None
    (seen,) = (queue for queue in reading.queues if queue.queue == client.queue.name)
    return seen


def test_counters_that_are_reset_are_a_gap(use_postgresql: Use, postgresql: Database) -> None:
    """All at once, or only those of the queue's table."""
    client = use_postgresql(of("fifo"))
    client.push_many(["x"] * 100)
    whole = "SELECT pg_stat_reset()"
    table = f'"{client.queue.schema}"."{client.queue.table}"'
    single = f"SELECT pg_stat_reset_single_table_counters('{table}'::regclass)"
    sampler = Sampler(postgresql, timeouts=TIMEOUTS)
    with connect(client.url) as connection:
        for reset in (whole, single):
            wait_until(lambda: own(sampler, client).push_per_second is not None, "rates are known")
            wait_until(lambda: (client.status().inserted or 0) > 0, "pushes were counted")
            own(sampler, client)
            connection.execute(reset.encode())
            seen = own(sampler, client)
            assert (seen.push_per_second, seen.pop_per_second) == (None, None)
            assert {"push_per_second", "pop_per_second"} <= set(seen.unknown)
            assert own(sampler, client).push_per_second is not None
            client.push_many(["x"] * 100)
            client.database.close()


def test_a_deep_queue_whose_counters_are_lost_is_still_deep(use_postgresql: Use) -> None:
    client = use_postgresql(of("fifo"))
    filled(client, ready=50_000)
    with connect(client.url) as connection:
        connection.execute("SELECT pg_stat_reset()")
    near(client.snapshot().ready, 50_000)


@pytest.mark.parametrize("variant", KEEPING, ids=str)
def test_claims_have_owners(use_postgresql: Use, variant: Variant) -> None:
    client = use_postgresql(large(variant))
    client.push_many(["a", "b", "c", "d"])
    with closing(open_database(client.url)) as database:
        gone = Client(database, client.queue)
        gone.pop_many(1, "left early")
    with closing(open_database(client.url)) as database:
        alive = Client(database, client.queue)
        alive.pop_many(1, 'here \' "it" is')
        with connect(client.url) as connection:
            fill(connection, client.queue, {"claimed": 1})
        seen = client.snapshot()
    assert seen.claims is not None
    assert seen.claimed == len(seen.claims) == 3
    owners = {claim.consumer: claim.owner for claim in seen.claims}
    assert owners == {"left early": "gone", 'here \' "it" is': "alive", None: "unknown"}
    (theirs,) = (claim for claim in seen.claims if claim.consumer is None)
    assert (theirs.claimed_by, theirs.session) == ("w", None)
    ages = [claim.claimed_seconds for claim in seen.claims]
    assert all(age is not None and age >= 0 for age in ages)
    assert ages == sorted(ages, key=lambda age: -(age or 0))
    assert all(not claim.bound for claim in seen.claims)


def test_only_the_oldest_claims_are_listed(use_postgresql: Use) -> None:
    client = use_postgresql(of("claim"))
    filled(client, claimed=500, stuck=4)
    seen = client.snapshot()
    assert seen.claims is not None
    assert (seen.claimed, len(seen.claims)) == (504, 10)
    assert sum((claim.claimed_seconds or 0) > 3000 for claim in seen.claims) == 4


@pytest.mark.parametrize("variant", DEFAULTS, ids=str)
def test_who_holds_rows_in_an_open_transaction(use_postgresql: Use, variant: Variant) -> None:
    client = use_postgresql(variant)
    client.push_many(["a", "b"])
    before = client.snapshot()
    assert (before.holders, before.held_seconds, before.held_by) == (0, None, ())
    with connect(client.url) as connection:
        connection.execute("SET application_name = 'a worker'")
        connection.execute("BEGIN")
        pop = SQL("SELECT id FROM {}()").format(
            Identifier(client.queue.schema, f"{client.queue.name}_pop")
        )
        assert connection.execute(pop).fetchone() is not None
        seen = client.snapshot()
        (holder,) = seen.held_by
        assert (seen.holders, holder.session) == (1, connection.info.backend_pid)
        assert (holder.application_name, holder.state) == ("a worker", "idle in transaction")
        assert holder.transaction_seconds is not None
        assert holder.transaction_seconds > 0
        assert holder.held_seconds == seen.held_seconds
        connection.execute("ROLLBACK")
    assert client.snapshot().holders == 0


@pytest.fixture
def nobody(postgresql: Database) -> Iterator[tuple[Database, str]]:
    """A login that may look at queues, and knows nothing of other sessions; and its name."""
    name = f"looker_{uuid4().hex}"
    url = postgresql.url.render_as_string(hide_password=False)
    role = Identifier(name)
    with connect(url) as connection:
        connection.execute(SQL("CREATE ROLE {} LOGIN PASSWORD 'looks'").format(role))
        try:
            theirs = postgresql.url.set(username=name, password="looks")
            with closing(open_database(theirs.render_as_string(hide_password=False))) as database:
                yield database, name
        finally:
            connection.execute(SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(role))


def test_what_the_login_may_not_see_is_unknown(
    use_postgresql: Use, nobody: tuple[Database, str]
) -> None:
    database, name = nobody
    seen_one, hidden = use_postgresql(of("claim")), use_postgresql(of("fifo"))
    for client in (seen_one, hidden):
        client.push_many(["a", "b"])
    seen_one.pop_many(1)
    with connect(seen_one.url) as connection:
        table = Identifier(seen_one.queue.schema, seen_one.queue.table)
        connection.execute(SQL("GRANT SELECT ON {} TO {}").format(table, Identifier(name)))
        catalog = SQL(
            "GRANT USAGE ON SCHEMA dbq TO {0}; GRANT SELECT ON ALL TABLES IN SCHEMA dbq TO {0}"
        )
        connection.execute(catalog.format(Identifier(name)))
    with seen_one.database.transaction("hold") as connection_of_another:
        connection_of_another.exec_driver_sql(
            f'UPDATE "{seen_one.queue.table}" SET attempts = attempts'
        )
        sample = take_sample(database, only=[hidden.queue, seen_one.queue])
    no, yes = (snapshot(queue, "test") for queue in sample.queues)
    assert (yes.ready, yes.claimed, yes.holders) == (1, 1, 1)
    assert yes.claims is not None
    assert [claim.owner for claim in yes.claims] == ["unknown"]
    assert yes.held_seconds is None
    assert (no.ready, no.age_seconds) == (None, None)
    assert "permission denied" in no.problem
    assert {"ready", "age_seconds", "push_per_second"} <= set(no.unknown)


def test_a_relay_hides_its_own_ring_alone_and_stalls_nobody(
    use_postgresql: Use, sampling: Database
) -> None:
    ring, fifo = use_postgresql(of("ring")), use_postgresql(of("fifo"))
    queues = [ring.queue, fifo.queue]
    for client in (ring, fifo):
        client.push_many(["a", "b"])
    memory = Memory()
    with connect(ring.url) as connection:
        parked = Identifier(ring.queue.schema, f"{ring.queue.name}_parked")
        connection.execute("BEGIN")
        connection.execute(SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(parked))
        for _ in range(3):
            sample = take_sample(sampling, only=queues, memory=memory)
            hidden, seen = (snapshot(queue, "test") for queue in sample.queues)
            assert (hidden.ready, hidden.gap, hidden.capacity) == (None, None, None)
            assert {"ready", "gap", "capacity", "age_seconds"} <= set(hidden.unknown)
            assert "lock" in hidden.problem
            assert seen.ready == 2
            assert sample.latency_seconds < SAMPLING_TIMEOUTS.statement_seconds / 2
        connection.execute("ROLLBACK")
    sample = take_sample(sampling, only=queues, memory=memory)
    assert [snapshot(queue, "test").ready for queue in sample.queues] == [2, 2]


def test_a_relay_at_work_never_shows_a_false_figure(
    use_postgresql: Use, sampling: Database
) -> None:
    client = use_postgresql(of("ring"))
    client.push_many(["x"] * 100)
    relaid = 0

    def relays() -> Iterator[None]:
        nonlocal relaid
        while True:
            relay.relay(client.database, client.queue, 200 + relaid % 2 * 5000)
            relaid += 1
            yield

    memory = Memory()
    seen: list[QueueSnapshot] = []
    with at_work(relays()):
        while relaid < 8 or len(seen) < 30:
            (queue,) = take_sample(sampling, only=[client.queue], memory=memory).queues
            seen.append(snapshot(queue, "test"))
    assert {queue.ready for queue in seen} <= {100, None}
    assert {queue.gap for queue in seen} <= {100, None}
    assert {queue.capacity for queue in seen} <= {200, 5200, None}
    assert all(queue.problem for queue in seen if queue.gap is None)


SICK = """
CREATE TABLE "{0} rows" (id bigint PRIMARY KEY, at timestamptz, status smallint, body text);
INSERT INTO "{0} rows" SELECT i, now(), i % 5, 'x' FROM generate_series(0, 49) AS i;
CREATE VIEW "{0}" AS
    SELECT * FROM "{0} rows" WHERE status <> 0
    UNION ALL
    SELECT r.* FROM (SELECT pg_sleep({1}) OFFSET 0) AS wait, "{0} rows" AS r WHERE r.status = 0;
"""
"""A stand-in for a head that is slow to read: who asks for ready rows waits."""


def sick_queue(client: Client, seconds: float) -> Queue:
    name = f"sick {client.queue.name}"
    with connect(client.url) as connection:
        connection.execute(SICK.format(name, seconds).encode())
    roles = {"id": "id", "pushed_at": "at", "status": "status", "payload": "body"}
    return Queue("public", name, DESIGNS["status"], {}, roles, Kind.ADOPTED)


def test_a_figure_that_is_slow_is_unknown_and_stalls_nothing(
    use_postgresql: Use, sampling: Database
) -> None:
    """And it is skipped for a while, then tried again by itself."""
    now = [1000.0]
    client = use_postgresql(of("fifo"))
    client.push_many(["a", "b"])
    sick = sick_queue(client, 20.0)
    queues, memory = [sick, client.queue], Memory(lambda: now[0])
    for _ in range(3):
        sample = take_sample(sampling, only=queues, memory=memory)
        assert sample.latency_seconds < SAMPLING_TIMEOUTS.statement_seconds
        slow, well = (snapshot(queue, "test") for queue in sample.queues)
        assert well.ready == 2
        assert (slow.ready, slow.age_seconds) == (None, None)
        assert {"ready", "age_seconds"} <= set(slow.unknown) & set(slow.slow)
        assert (slow.claimed, slow.errors, slow.done) == (10, 10, 10)
        assert slow.problem == ""
    with connect(client.url) as connection:
        cured = f'CREATE OR REPLACE VIEW "{sick.name}" AS SELECT * FROM "{sick.name} rows"'
        connection.execute(cured.encode())
    still = snapshot(take_sample(sampling, only=queues, memory=memory).queues[0], "test")
    assert still.ready is None
    now[0] += 11.0
    known = [
        snapshot(take_sample(sampling, only=queues, memory=memory).queues[0], "test")
        for _ in range(2)
    ]
    assert [seen.ready for seen in known] == [10, 10]
    assert known[-1].age_seconds is not None
    assert known[-1].slow == ()


def test_many_slow_queues_leave_room_for_the_others(
    use_postgresql: Use, sampling: Database
) -> None:
    client = use_postgresql(of("fifo"))
    client.push_many(["a", "b"])
    sick = [sick_queue_named(client, f"s{i}", 20.0) for i in range(30)]
    memory = Memory()

    def well() -> bool:
        sample = take_sample(sampling, only=[*sick, client.queue], memory=memory)
        assert sample.latency_seconds < SAMPLING_TIMEOUTS.statement_seconds
        *slow, seen = (snapshot(queue, "test") for queue in sample.queues)
        assert all(queue.ready is None and queue.problem == "" for queue in slow)
        return seen.ready == 2

    wait_until(well, "the one that is well is seen")
    assert well()


def sick_queue_named(client: Client, suffix: str, seconds: float) -> Queue:
    return sick_queue(Client(client.database, _renamed(client.queue, suffix)), seconds)


def _renamed(queue: Queue, suffix: str) -> Queue:
    return Queue(queue.schema, f"{queue.name} {suffix}", queue.design, queue.options, queue.roles)


def test_a_lagging_counter_makes_no_false_zero(use_postgresql: Use, postgresql: Database) -> None:
    """A session that rests keeps its counts for up to ten seconds."""
    client = use_postgresql(of("fifo"))
    sampler = Sampler(postgresql, timeouts=TIMEOUTS)
    assert own(sampler, client).ready == 0
    with connect(client.url) as connection:
        push = SQL("SELECT {}('x')").format(
            Identifier(client.queue.schema, f"{client.queue.name}_push")
        )
        for count in (1, 2, 3):
            connection.execute(push)
            seen = own(sampler, client)
            assert seen.ready == count
            assert seen.push_per_second is None or seen.push_per_second > 0
