"""What one sample of the monitoring costs its server: the same, however deep the queues are.

A ring's slots are updated on their own page (HOT): no new index entries, nothing to vacuum. So are
the rows of its subscribers, and a batch meets each of them once.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from console.actions import relay
from console.actions.push import Payload
from console.catalog import Queue
from console.designs import DESIGNS, Flow
from console.engines import Database, Timeouts, open_database
from console.monitor.memory import Memory
from console.monitor.sample import SAMPLING_TIMEOUTS, take_sample
from console.monitor.sample_queries import TOGETHER
from console.monitor.snapshot import snapshot
from tests.contract.client import Client
from tests.contract.conftest import Use, use_of
from tests.contract.installs import installed
from tests.contract.plans import Statement, recorded
from tests.contract.test_plans_postgresql import auto_explain, on_each_table, without_autovacuum
from tests.contract.variants import BEHAVIOURS, DEFAULTS, Variant, default
from tests.filling import fill
from tests.servers import connect, statements_sent, wait_until

__all__ = ["auto_explain"]

LOOKED_AT = DEFAULTS + [v for v in BEHAVIOURS if v.options.get("in_hand") == "on"]
"""Other options change how messages flow, and nothing that a sample reads."""
SHALLOW = 10_000
"""The most that is counted to the last row."""
ESTIMATING = {100_000: 200, 1_000_000: 300, 10_000_000: 300}
"""What may come on top of that for a deeper queue: its estimate, of nothing but what is over."""
DEEP = 400
"""What a sample costs while it knows that the queue is deep: the estimate, and the ends. With each
doubling of the depth an estimate by ids reads four more chunks."""
SAMPLE_PAGES = 1200
"""What any sample may cost."""
TIMES = 30
"""What the latest 100 messages of three states cost, which lie together here, and their indexes."""
PAYLOAD = "0123456789abcdef"


@pytest.fixture(scope="session")
def depths(long: bool) -> tuple[int, ...]:
    return (1_000_000, 10_000_000) if long else (100_000,)


@pytest.fixture
def use_patiently(postgresql: Database) -> Iterator[Use]:
    """As use_postgresql, for queues that take minutes to make."""
    url = postgresql.url.render_as_string(hide_password=False)
    with closing(open_database(url, timeouts=Timeouts(statement_seconds=3600.0))) as database:
        yield from use_of(database)


Look = Callable[..., int]


@contextmanager
def sampling(url: str) -> Iterator[Look]:
    """The pages that one sample through a connection of its own reads, by all its statements, or by
    those whose text has `of`."""
    with recorded(url) as (database, recorder):

        def sampled_pages(queue: Queue, memory: Memory, of: str = "") -> int:
            recorder.take()
            (seen,) = take_sample(database, only=[queue], memory=memory).queues
            assert seen.row is not None, seen.problem
            asked: list[Statement] = recorder.take()
            assert any(".status" in one.text for one in asked)
            return sum(one.buffers for one in asked if of in one.text)

        yield sampled_pages


def wide(variant: Variant, depth: int) -> Variant:
    """With room for `depth` messages, where a design wants to know that before."""
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
@pytest.mark.parametrize("variant", LOOKED_AT, ids=str)
def test_the_cost_of_a_sample_does_not_grow_with_the_depth(
    use_patiently: Use, variant: Variant, depths: tuple[int, ...], vacuumed: bool
) -> None:
    costs: dict[int, tuple[int, int]] = {}
    for depth in (SHALLOW, *depths):
        client = use_patiently(wide(variant, depth))
        without_autovacuum(client)
        filled(client, depth)
        if vacuumed:
            on_each_table(client, "VACUUM ANALYZE {}")
        with sampling(client.url) as sampled_pages:
            sampled_pages(client.queue, Memory())  # a session's first one costs more
            memory = Memory()
            costs[depth] = sampled_pages(client.queue, memory), sampled_pages(client.queue, memory)
    print(f"{variant}: pages of the first sample and of the next, by depth: {costs}")
    shallow, _ = costs[SHALLOW]
    for depth in depths:
        first, later = costs[depth]
        assert first <= shallow + ESTIMATING[depth]
        assert first <= SAMPLE_PAGES
        assert later <= DEEP


@pytest.mark.long
@pytest.mark.usefixtures("auto_explain")
@pytest.mark.parametrize("variant", [v for v in LOOKED_AT if v.finishes], ids=str)
def test_the_cost_of_a_sample_does_not_grow_with_claims_errors_and_done(
    use_postgresql: Use, variant: Variant, depths: tuple[int, ...]
) -> None:
    states = {"claimed": "claimed", "error": "errors", "done": "done"}
    counts = {
        states[state]: depths[0] for state in variant.queue("s", "q").states if state in states
    }
    client = use_postgresql(wide(variant, 100))
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
    assert later <= DEEP
    assert 0 < times <= TIMES
    assert none == 0


@pytest.mark.usefixtures("auto_explain")
def test_the_cost_of_waiting_times_does_not_grow_with_the_archive(
    use_postgresql: Use, depths: tuple[int, ...]
) -> None:
    client = use_postgresql(default("fifo", archive_at_pop="on"))
    table = Identifier(client.queue.schema, f"{client.queue.name}_archive")
    with connect(client.url) as connection:
        connection.execute(
            SQL(
                "INSERT INTO {} (id, payload, pushed_at, state, attempts, reason)"
                " SELECT n, 'x', now(), 'done', 1, 'pop' FROM generate_series(1, {}) AS n"
            ).format(table, depths[0])
        )
    with sampling(client.url) as sampled_pages:
        assert 0 < sampled_pages(client.queue, Memory(), ".archive_times */") <= 10


def test_a_new_connection_sends_no_statement_of_its_own(
    postgresql: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What SQLAlchemy wants to know of a server, libpq was told at the login."""
    sent: list[object] = []
    execute = psycopg.Cursor.execute

    def recording(cursor: psycopg.Cursor, query: Any, *rest: Any, **more: Any) -> object:
        sent.append(query)
        return execute(cursor, query, *rest, **more)

    monkeypatch.setattr(psycopg.Cursor, "execute", recording)
    url = postgresql.url.render_as_string(hide_password=False)
    with closing(open_database(url)) as database, database.transaction("read") as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
        assert connection.get_isolation_level() == "READ COMMITTED"
    assert sent[0] == "SELECT 1"
    assert len(sent) == 2  # the other: which level it is


def many(database: Database, count: int) -> list[Queue]:
    made = []
    for number in range(count):
        variant = DEFAULTS[number % len(DEFAULTS)]
        if "postgresql" in variant.engines:
            made.append(installed(database, variant, f"queue {number}").queue)
    return made


@pytest.mark.long
def test_two_hundred_queues_take_a_handful_of_statements(new_database: Database) -> None:
    queues = many(new_database, 220)
    url = new_database.url.render_as_string(hide_password=False)
    with closing(open_database(url, timeouts=SAMPLING_TIMEOUTS)) as database:
        take_sample(database)  # also asks what the server can do
        with statements_sent() as statements:
            sample = take_sample(database)
    assert len(sample.queues) == len(queues) >= 190
    assert {snapshot(queue, "test").ready for queue in sample.queues} == {0}
    unions = -(-len(queues) // TOGETHER)
    # The catalog's five, one of which reads what operators have decided (paused, protected,
    # silenced); for each union its settings, the gates of the rings and the status; at the end who
    # holds rows, and how long messages waited, each after its settings.
    assert len(statements) <= 5 + 3 * unions + 4
    assert all(statement.startswith("/* dbq ") for statement in statements)


@pytest.mark.long
def test_a_broken_queue_costs_a_few_statements_once(new_database: Database) -> None:
    """The sample that meets it searches for it; the next ones know."""
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
        assert sampled_pages(dead_head.queue, memory) <= 100

    other = use_postgresql(default("claim"))
    other.push_many(["a", "b"])
    queues, memory = [dead_head.queue, other.queue], Memory()
    # A limit between what the head takes and what is healthy, on a fast machine and on a slow one.
    seconds = head_seconds(dead_head) / 3
    limits = Timeouts(connect_seconds=5, statement_seconds=100 * seconds, lock_seconds=0.5)
    with closing(open_database(dead_head.url, timeouts=limits)) as database:

        def both() -> bool:
            sample = take_sample(database, only=queues, memory=memory)
            sick, well = (snapshot(queue, "test") for queue in sample.queues)
            assert sick.problem == ""
            unknown = (sick.ready, sick.age_seconds) == (None, None)
            return unknown and well.ready == 2 and {"ready", "age_seconds"} <= set(sick.slow)

        wait_until(both, "the healthy queue is seen beside the other")
        assert both()


def head_seconds(client: Client) -> float:
    """How long one sample at the first message takes, at its fastest."""
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
def test_nearly_all_updates_of_slots_are_hot_after_a_resize(
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


def subscribed(use: Use, names: str, size: int) -> Client:
    return use(Variant(DESIGNS["ring"], {"size": str(size), "subscribers": names}))


@pytest.mark.parametrize("names", ["a", "a,b,c"])
def test_nearly_all_updates_of_the_popped_table_are_hot(use_postgresql: Use, names: str) -> None:
    client = subscribed(use_postgresql, names, SIZE)
    fill_and_empty(client, ["x"] * SIZE)
    client.database.close()
    expected = LAPS * SIZE * len(names.split(","))
    wait_until(lambda: updates(client, "_popped")[0] >= expected, "all updates are counted")
    everything, hot = updates(client, "_popped")
    assert everything == expected
    assert hot / everything >= 0.95


def test_a_batch_does_not_look_up_each_slot_separately(use_postgresql: Use) -> None:
    """Eight pages a message: four by key and four by place. Each slot by its key took twelve."""
    client = subscribed(use_postgresql, "a,b,c", 1000)
    client.push_many(["x" * 300] * 1000)
    pop = SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM {}(100, 'a')").format(
        Identifier(client.queue.name + "_pop_many")
    )
    with connect(client.url) as connection:
        for _ in range(7):  # plans are there by then
            row = connection.execute(pop).fetchone()
    assert row is not None
    ((explained,),) = row
    assert explained["Plan"]["Actual Rows"] == 100
    assert explained["Plan"]["Shared Hit Blocks"] <= 8 * 100
