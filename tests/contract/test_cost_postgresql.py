"""The cost of a sample does not depend on the depth of the queues.

Updates of a ring's slots stay on their page (HOT): no new index entries, nothing to vacuum. So do
those of its subscribers' rows, and a batch reads each row once.
"""

import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from console import catalog
from console.actions import relay
from console.actions.push import Payload
from console.catalog import Queue, lookups
from console.designs import DESIGNS, Flow
from console.doctor import context
from console.doctor.diagnose import diagnose
from console.doctor.stopped_consumers import ConsumptionHistory
from console.engines import Database, Timeouts, open_database
from console.monitor.memory import Memory
from console.monitor.sample import SAMPLING_TIMEOUTS, take_sample
from console.monitor.snapshot import snapshot
from tests.contract.client import Client
from tests.contract.conftest import Use, use_of
from tests.contract.installs import installed
from tests.contract.plans import Statement, recorded
from tests.contract.test_plans_postgresql import auto_explain, on_each_table, without_autovacuum
from tests.contract.variants import BEHAVIOURS, DEFAULTS, Variant, default
from tests.servers import connect, execute, statements_sent, wait_until
from tests.tools.filling import fill

__all__ = ["auto_explain"]

SAMPLED = DEFAULTS + [v for v in BEHAVIOURS if v.options.get("in_hand") == "on"]
"""Other options change how messages flow, and nothing that a sample reads."""
SHALLOW = 10_000
"""The highest depth that is counted exactly."""
ESTIMATING = {100_000: 200, 1_000_000: 300, 10_000_000: 300}
"""Depth -> pages allowed in addition for a deeper queue: its estimate."""
DEEP_PAGES = 400
"""Pages of a sample of a queue known to be deep: the estimate, and the ends. With each doubling of
the depth an estimate by ids reads four more chunks."""
SAMPLE_PAGES = 1200
"""Pages that any sample may read."""
TIMES_PAGES = 30
"""Pages of the latest 100 messages of three states, adjacent here, and of their indexes."""
PAYLOAD = "0123456789abcdef"


@pytest.fixture(scope="session")
def depths(long: bool) -> tuple[int, ...]:
    return (1_000_000, 10_000_000) if long else (100_000,)


@pytest.fixture
def use_without_timeout(postgresql: Database) -> Iterator[Use]:
    """Like use_postgresql, for queues that take minutes to fill."""
    url = postgresql.url.render_as_string(hide_password=False)
    with closing(open_database(url, timeouts=Timeouts(statement_seconds=3600.0))) as database:
        yield from use_of(database)


SampleCost = Callable[..., int]


@contextmanager
def sampling(url: str) -> Iterator[SampleCost]:
    """Count the pages that a sample on a new connection reads: by all its statements, or by those
    whose text contains `of`."""
    with recorded(url) as (database, recorder):

        def sampled_pages(queue: Queue, memory: Memory, of: str = "") -> int:
            recorder.take()
            (sampled,) = take_sample(database, only=[queue], memory=memory).queues
            assert sampled.row is not None, sampled.problem
            statements: list[Statement] = recorder.take()
            assert any(".status" in statement.text for statement in statements)
            return sum(statement.buffers for statement in statements if of in statement.text)

        yield sampled_pages


def with_room(variant: Variant, depth: int) -> Variant:
    """With room for `depth` messages, where the design has a fixed size."""
    if "size" not in variant.options:
        return variant
    return Variant(
        variant.design, {**variant.given, "size": str(depth + depth // 10), "max_bytes": "16"}
    )


def filled(client: Client, depth: int) -> None:
    with connect(client.url) as connection:
        fill(connection, client.queue, {"ready": depth}, PAYLOAD)


@pytest.mark.long
@pytest.mark.thinned(2, payload=False)
@pytest.mark.usefixtures("auto_explain")
@pytest.mark.parametrize("vacuumed", [False, True])
@pytest.mark.parametrize("variant", SAMPLED, ids=str)
def test_the_cost_of_a_sample_does_not_grow_with_the_depth(
    use_without_timeout: Use, variant: Variant, depths: tuple[int, ...], vacuumed: bool
) -> None:
    costs: dict[int, tuple[int, int]] = {}
    for depth in (SHALLOW, *depths):
        client = use_without_timeout(with_room(variant, depth))
        without_autovacuum(client)
        filled(client, depth)
        if vacuumed:
            on_each_table(client, "VACUUM ANALYZE {}")
        with sampling(client.url) as sampled_pages:
            sampled_pages(client.queue, Memory())  # the first sample of a session costs more
            memory = Memory()
            costs[depth] = sampled_pages(client.queue, memory), sampled_pages(client.queue, memory)
    print(f"{variant}: pages of the first sample and of the next, by depth: {costs}")
    shallow, _ = costs[SHALLOW]
    for depth in depths:
        first, later = costs[depth]
        assert first <= shallow + ESTIMATING[depth]
        assert first <= SAMPLE_PAGES
        assert later <= DEEP_PAGES


@pytest.mark.long
@pytest.mark.usefixtures("auto_explain")
@pytest.mark.parametrize("variant", [v for v in SAMPLED if v.finishes], ids=str)
def test_the_cost_of_a_sample_does_not_grow_with_claims_errors_and_done(
    use_postgresql: Use, variant: Variant, depths: tuple[int, ...]
) -> None:
    states = {"claimed": "claimed", "error": "errors", "done": "done"}
    counts = {
        states[state]: depths[0] for state in variant.queue("s", "q").states if state in states
    }
    client = use_postgresql(with_room(variant, 100))
    without_autovacuum(client)
    with connect(client.url) as connection:
        fill(connection, client.queue, counts, PAYLOAD)
    with sampling(client.url) as sampled_pages:
        sampled_pages(client.queue, Memory())
        memory = Memory()
        first, later = sampled_pages(client.queue, memory), sampled_pages(client.queue, memory)
        times = sampled_pages(client.queue, Memory(), ".times */")
        none = sampled_pages(client.queue, memory, ".times */")
    print(f"{variant}: {first} pages, then {later}; how long messages waited: {times}")
    assert first <= SAMPLE_PAGES
    assert later <= DEEP_PAGES
    assert 0 < times <= TIMES_PAGES
    assert none == 0


@pytest.mark.usefixtures("auto_explain")
def test_the_cost_of_waiting_times_does_not_grow_with_the_archive(
    use_postgresql: Use, depths: tuple[int, ...]
) -> None:
    client = use_postgresql(default("fifo", archive_at_pop="on"))
    table = Identifier(client.queue.schema, f"{client.queue.name}_archive")
    execute(
        client.url,
        SQL(
            "INSERT INTO {} (id, payload, pushed_at, state, attempts, reason)"
            " SELECT n, 'x', now(), 'done', 1, 'pop' FROM generate_series(1, {}) AS n"
        ).format(table, depths[0]),
    )
    with sampling(client.url) as sampled_pages:
        assert 0 < sampled_pages(client.queue, Memory(), ".archive_times */") <= 10


def test_a_new_connection_sends_one_statement_of_its_own(
    postgresql: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its settings hold. What SQLAlchemy would query, libpq received at the login."""
    sent: list[Any] = []
    execute = psycopg.Cursor.execute

    def recording(cursor: psycopg.Cursor, query: Any, *rest: Any, **more: Any) -> object:
        sent.append(query)
        return execute(cursor, query, *rest, **more)

    monkeypatch.setattr(psycopg.Cursor, "execute", recording)
    url = postgresql.url.render_as_string(hide_password=False)
    with closing(open_database(url)) as database, database.transaction("read") as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
        assert connection.get_isolation_level() == "READ COMMITTED"
    assert b"standard_conforming_strings" in sent[0]
    assert sent[1] == "SELECT 1"
    assert len(sent) == 3  # the last one reads the isolation level


def many(database: Database, count: int, first: int = 0) -> list[Queue]:
    queues = []
    for number in range(first, first + count):
        variant = DEFAULTS[number % len(DEFAULTS)]
        if "postgresql" in variant.engines:
            queues.append(installed(database, variant, f"queue {number}").queue)
    return queues


@pytest.mark.long
def test_two_hundred_queues_take_a_handful_of_statements(new_database: Database) -> None:
    queues = many(new_database, 220)
    url = new_database.url.render_as_string(hide_password=False)
    with closing(open_database(url, timeouts=SAMPLING_TIMEOUTS)) as database:
        memory = Memory()
        take_sample(database, memory=memory)  # also reads what the server can do
        with statements_sent() as statements:
            sample = take_sample(database, memory=memory)
    assert len(sample.queues) == len(queues) >= 190
    assert {snapshot(queue, "test").ready for queue in sample.queues} == {0}
    unions = -(-len(queues) // new_database.product.sampled_together)
    # How many sessions there are, what catalog there is, whether it has changed; for each union its
    # settings, the gates of the rings and the status; at the end the sessions that hold rows, after
    # its settings.
    assert len(statements) <= 3 + 3 * unions + 2
    assert all(statement.startswith("/* dbq ") for statement in statements)


def test_a_doctor_of_many_queues_sends_most_of_its_statements_once(
    new_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "FRESH_SECONDS", math.inf)
    monkeypatch.setattr(context, "_SHARED_SECONDS", math.inf)

    def sent() -> int:
        consumption = ConsumptionHistory(waits=False)
        with statements_sent() as statements:
            diagnoses = diagnose(new_database, consumption=consumption)
        assert all(not diagnosis.findings for diagnosis in diagnoses)
        return len(statements)

    few = len(many(new_database, len(DEFAULTS)))
    sent()  # also reads what the server can do
    for_few = sent()
    more = [*catalog.in_use(new_database), *many(new_database, len(DEFAULTS), few)]
    a_queue = (sent() - for_few) / (len(more) - few)
    assert a_queue <= 14
    # The others are for the database, four or five for each design: of plans by which indexes.
    assert for_few - a_queue * few <= 100


@pytest.mark.long
def test_a_broken_queue_costs_a_few_statements_once(new_database: Database) -> None:
    """The first sample searches for the broken queue; the next ones know it."""
    queues = many(new_database, 60)
    memory = Memory()
    take_sample(new_database, memory=memory)
    with statements_sent() as usual:
        take_sample(new_database, memory=memory)
    with connect(new_database.url.render_as_string(hide_password=False)) as connection:
        broken = next(queue for queue in queues if queue.design.flow is not Flow.NUMBERS)
        connection.execute(SQL("DROP TABLE {} CASCADE").format(Identifier("public", broken.table)))
    for more in (50, 3):
        with statements_sent() as statements:
            sample = take_sample(new_database, memory=memory)
        assert [one.queue.name for one in sample.queues if one.row is None] == [broken.name]
        assert len(statements) <= len(usual) + more


@pytest.fixture
def dead_head(use_postgresql: Use) -> Iterator[Client]:
    """A fifo with 900,000 dead rows at its head, which an old transaction keeps from vacuum."""
    client = use_postgresql(default("fifo"))
    with connect(client.url) as old, connect(client.url) as connection:
        old.execute("BEGIN")
        old.execute("SELECT txid_current()")
        fill(connection, client.queue, {"ready": 950_000})
        table = Identifier(client.queue.schema, client.queue.table)
        connection.execute(SQL("DELETE FROM {} WHERE id <= 900000").format(table))
        connection.execute(SQL("VACUUM {}").format(table))
        yield client
        old.execute("ROLLBACK")


@pytest.mark.long
@pytest.mark.usefixtures("auto_explain")
def test_known_dead_rows_at_the_head_cost_nothing_and_hide_no_other_queue(
    dead_head: Client, use_postgresql: Use
) -> None:
    memory = Memory(lambda: 0.0)
    with sampling(dead_head.url) as sampled_pages:
        sampled_pages(dead_head.queue, Memory())
        assert sampled_pages(dead_head.queue, Memory()) > 5 * SAMPLE_PAGES
        for figure in ("ready", "age_seconds"):
            memory.was_slow(dead_head.queue, figure)
        assert sampled_pages(dead_head.queue, memory, of=".status") <= 100

    other = use_postgresql(default("claim"))
    other.push_many(["a", "b"])
    queues, memory = [dead_head.queue, other.queue], Memory()
    # A limit between the time of the head and a healthy one, on fast and slow machines.
    seconds = head_seconds(dead_head) / 3
    limits = Timeouts(connect_seconds=5, statement_seconds=100 * seconds, lock_seconds=0.5)
    with closing(open_database(dead_head.url, timeouts=limits)) as database:

        def both() -> bool:
            sample = take_sample(database, only=queues, memory=memory)
            slow, healthy = (snapshot(queue, "test") for queue in sample.queues)
            assert slow.problem == ""
            unknown = (slow.ready, slow.age_seconds) == (None, None)
            return unknown and healthy.ready == 2 and {"ready", "age_seconds"} <= set(slow.slow)

        wait_until(both, "the healthy queue is seen beside the other")
        assert both()


def head_seconds(client: Client) -> float:
    """The shortest time to read the first message."""
    table = Identifier(client.queue.schema, client.queue.table)
    head = SQL("SELECT id FROM {} ORDER BY id LIMIT 1").format(table)
    times = []
    with connect(client.url) as connection:
        connection.execute("SET enable_seqscan = off")
        for _ in range(3):
            started = time.monotonic()
            connection.execute(head)
            times.append(time.monotonic() - started)
    return min(times)


SIZE = 120
LAPS = 3
WIDTHS = (16, 300, 1000, 1300, 2600, 7000)
"""Some fill a page exactly, some leave much of it unused: a page has 2.5 slots of 2,600."""


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


def wait_for_updates(client: Client, expected: int) -> None:
    """Wait until the server has counted the updates: sessions report theirs when they end."""
    client.database.close()
    wait_until(lambda: updates(client)[0] >= expected, "all updates are counted")


def full_width(kind: str, width: int, number: int) -> Payload:
    """A payload as wide as the slot, and incompressible."""
    random_numbers = random.Random(number)
    if kind == "bytes":
        return random_numbers.randbytes(width)
    if kind == "json":
        return '"' + "".join(random_numbers.choices("0123456789abcdef", k=width - 2)) + '"'
    return "".join(random_numbers.choices("0123456789abcdef", k=width))


def fill_and_empty(client: Client, payloads: list[Payload]) -> None:
    """All slots of a page change in one transaction."""
    for _ in range(LAPS):
        assert None not in client.push_many(payloads)
        assert len(client.drain(50)) == SIZE


def slot_by_slot(client: Client, payloads: list[Payload]) -> None:
    """Each slot changes in a separate transaction."""
    for _ in range(LAPS):
        for payload in payloads:
            assert client.push(payload) is not None
            assert client.pop() is not None


SHORT_WIDTHS = {16, 2600}
"""Widths tested slot by slot, and after a resize, in the short tier too."""
RINGS = [v for v in DEFAULTS if v.design.flow is Flow.NUMBERS]
CASES = [
    *((fill_and_empty, kind, width) for kind in ("text", "json", "bytes") for width in WIDTHS),
    *((slot_by_slot, "text", width) for width in WIDTHS),
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
    if laps is slot_by_slot and width not in SHORT_WIDTHS and not long:
        pytest.skip("with --long: each slot's turn is a transaction")
    given = {"size": str(SIZE), "max_bytes": str(width), "payload": kind}
    client = use_postgresql(Variant(ring.design, given))
    wait_for_updates(client, SIZE)
    prefill, prefill_hot = updates(client)

    laps(client, [full_width(kind, width, number) for number in range(SIZE)])

    wait_for_updates(client, prefill + 2 * LAPS * SIZE)
    all_updates, hot = updates(client)
    assert all_updates - prefill == 2 * LAPS * SIZE
    assert (hot - prefill_hot) / (all_updates - prefill) >= 0.95


@pytest.mark.parametrize(
    "width", [w if w in SHORT_WIDTHS else pytest.param(w, marks=pytest.mark.long) for w in WIDTHS]
)
@pytest.mark.parametrize("ring", RINGS, ids=str)
def test_nearly_all_updates_of_slots_are_hot_after_a_resize(
    use_postgresql: Use, ring: Variant, width: int
) -> None:
    given = {"size": str(SIZE // 2), "max_bytes": str(width)}
    client = use_postgresql(Variant(ring.design, given))
    payloads = [full_width("text", width, number) for number in range(SIZE)]
    client.push_many(payloads[: SIZE // 2])
    relay.relay(client.database, client.queue, SIZE)
    client.drain()
    wait_for_updates(client, SIZE)
    before, before_hot = updates(client)

    fill_and_empty(client, payloads)

    wait_for_updates(client, before + 2 * LAPS * SIZE)
    after, after_hot = updates(client)
    assert (after_hot - before_hot) / (after - before) >= 0.95


def ring_with_subscribers(use: Use, names: str, size: int) -> Client:
    return use(Variant(DESIGNS["ring"], {"size": str(size), "subscribers": names}))


@pytest.mark.parametrize("names", ["a", "a,b,c"])
def test_nearly_all_updates_of_the_popped_table_are_hot(use_postgresql: Use, names: str) -> None:
    client = ring_with_subscribers(use_postgresql, names, SIZE)
    fill_and_empty(client, ["x"] * SIZE)
    client.database.close()
    expected = LAPS * SIZE * len(names.split(","))
    wait_until(lambda: updates(client, "_popped")[0] >= expected, "all updates are counted")
    everything, hot = updates(client, "_popped")
    assert everything == expected
    assert hot / everything >= 0.95


def test_a_batch_does_not_look_up_each_slot_separately(use_postgresql: Use) -> None:
    """8 pages per message: 4 by key, 4 by position. With each slot by its key it was 12."""
    client = ring_with_subscribers(use_postgresql, "a,b,c", 1000)
    client.push_many(["x" * 300] * 1000)
    pop = SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM {}(100, 'a')").format(
        Identifier(client.queue.name + "_pop_many")
    )
    with connect(client.url) as connection:
        for _ in range(7):  # then plans are generic
            row = connection.execute(pop).fetchone()
    assert row is not None
    ((explained,),) = row
    assert explained["Plan"]["Actual Rows"] == 100
    assert explained["Plan"]["Shared Hit Blocks"] <= 8 * 100
