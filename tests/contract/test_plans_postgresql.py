"""The plans of push and pop use an index and read few pages, whatever the depth."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import text

from console.actions import relay
from console.catalog import Queue
from console.designs import Order
from console.monitor.sample import take_sample
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.plans import Call, Session, Statement, recorded
from tests.contract.variants import BEHAVIOURS, DEFAULTS, Variant
from tests.servers import Server, connect, execute
from tests.tools.filling import fill

ROUNDS = 7
"""From the sixth call on a session uses generic plans."""
BATCH = 100
MANY = ["many"] * BATCH
ENDS = ("complete", "fail")
BOUNDS = {
    "push": 25,
    "pop": 100,
    "push_many": 15 * BATCH,
    "pop_many": 20 * BATCH,
    "complete": 40,
    "fail": 40,
}
"""The most pages (8 kB, from the cache or not) that one call may read, whatever the depth."""
APART_PAGES = 20
"""Pages that a call for one message reads in addition with content=apart: by its key."""
CATALOG_PAGES = 300
"""Pages that one call of a session may read in addition: the system catalog, once."""
SAMPLE_PAGES = 2500
"""Pages that one sample may read: at most 10,001 rows of each state."""
LOST_NUMBERS_PAGES = 600
"""Pages that a pop of a ring may read in addition for parked numbers: 64 of them, by index."""


pytestmark = pytest.mark.usefixtures("auto_explain")

PLANNED = [v for v in BEHAVIOURS if v.options.get("archive_at_pop") != "on"]
"""The archive adds an insert and changes no other plan."""


@pytest.fixture(scope="module")
def auto_explain(server: Server) -> None:
    """Skip if the server lacks this module, or the login may not load it."""
    with connect(server.url) as connection:
        try:
            connection.execute("LOAD 'auto_explain'")
        except (psycopg.errors.UndefinedFile, psycopg.errors.InsufficientPrivilege) as error:
            pytest.skip(f"needs auto_explain: {error}")


@pytest.fixture(scope="session")
def depth(long: bool) -> int:
    return 1_000_000 if long else 20_000


def with_room(variant: Variant, depth: int) -> Variant:
    """With room for `depth` messages, where the design has a fixed size."""
    if "size" not in variant.options:
        return variant
    return Variant(variant.design, {**variant.given, "size": str(depth * 2), "max_bytes": "32"})


def tables_of(client: Client) -> list[str]:
    rows = execute(
        client.url,
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE %s",
        [client.queue.name + "%"],
    )
    return [name for (name,) in rows]


def on_each_table(client: Client, statement: str) -> None:
    with connect(client.url) as connection:
        for table in tables_of(client):
            name = Identifier(client.queue.schema, table)
            connection.execute(SQL(statement).format(name))


def load(client: Client, count: int, *, claimed: int | None = None) -> None:
    """Push `count` messages by the queue's own push_many, a few at a time.

    Designs with claims also get `claimed` ones, by default as many.
    """
    name = Identifier(client.queue.schema, client.queue.name + "_push_many")
    call = SQL(
        "SELECT count(pushed.id) FROM generate_series(1, %s) AS calls (call), LATERAL {}("
        "ARRAY(SELECT 'message ' || call || ' ' || i FROM generate_series(1, 20) AS i)"
        ") AS pushed (id)"
    )
    with connect(client.url) as connection:
        for _ in range(0, count, 10_000):
            row = connection.execute(call.format(name), [500]).fetchone()
            assert row == (10_000,)
        if client.queue.finishes:
            fill(connection, client.queue, {"claimed": count if claimed is None else claimed})


def call_everything(session: Session, queue: Queue) -> dict[str, list[Call]]:
    """Call every function often enough to get generic plans."""
    calls = {
        "push": [session.call("push", "%s::text", "one") for _ in range(ROUNDS)],
        "pop": [session.call("pop") for _ in range(ROUNDS)],
        "push_many": [session.call("push_many", "%s::text[]", MANY) for _ in range(ROUNDS)],
        "pop_many": [session.call("pop_many", "%s::integer", BATCH) for _ in range(ROUNDS)],
    }
    if queue.finishes:
        kind = {"bigint": "bigint", "uuid": "uuid"}[queue.design.id_type]
        claims = [row for verb in ("pop", "pop_many") for call in calls[verb] for row in call.rows]
        calls["complete"] = [
            session.call("complete", f"%s::{kind}, %s", row[0], row[3])
            for row in claims[: 2 * ROUNDS]
        ]
        calls["fail"] = [
            session.call("fail", f"%s::{kind}, 'no', %s", row[0], row[3])
            for row in claims[2 * ROUNDS : 4 * ROUNDS]
        ]
    return calls


def check(client: Client, calls: dict[str, list[Call]], *, situation: str) -> None:
    """Every call used an index, stayed within its limit, and took no more than n messages."""
    sequential = {client.queue.table} if client.queue.design.order is Order.NONE else set()
    may_be_read_whole = ("_config", "_waiting", "_push_seq", "_pop_seq")
    for verb, made in calls.items():
        where = f"{verb} in a session {situation}"
        for statement in (one for call in made for one in call.statements):
            scanned = {
                table for table in statement.sequential() if not table.endswith(may_be_read_whole)
            }
            assert scanned <= sequential, f"reads {scanned} whole: {where}"
            assert not statement.selected_again(), f"chooses its rows again: {where}"
        apart = APART_PAGES if client.queue.partitions else 0
        check_bounds(made, BOUNDS[verb] + apart, where)
        assert all(len(call.rows) <= BATCH for call in made)
    assert all(len(call.rows) == 1 for call in calls["pop"])
    assert all(len(call.rows) == BATCH for call in calls["pop_many"])
    assert all(call.rows == [(True,)] for verb in ENDS for call in calls.get(verb, []))


def check_bounds(calls: list[Call], limit: int, where: str) -> None:
    most_expensive, *others = sorted((call.buffers for call in calls), reverse=True)
    assert others[0] <= limit, f"{others[0]} pages: {where}"
    assert most_expensive <= limit + CATALOG_PAGES, f"{most_expensive} pages: {where}"


def without_autovacuum(client: Client) -> None:
    """Statistics then change only by the test's own ANALYZE."""
    on_each_table(client, "ALTER TABLE {} SET (autovacuum_enabled = off)")


def leave_some(client: Client, count: int) -> None:
    """Leave few messages in every state, and matching statistics."""
    client.push_many(["few"] * 3 * count)
    if client.queue.finishes:
        for number, popped in enumerate(client.pop_many(2 * count)):
            assert client.complete(popped) if number % 2 else client.fail(popped, "no")
        client.push_many(["few"] * count)
        client.pop_many(count)
    else:
        client.pop_many(2 * count)
    on_each_table(client, "VACUUM ANALYZE {}")


@pytest.mark.thinned(4)
@pytest.mark.parametrize("variant", BEHAVIOURS, ids=str)
def test_calls_on_a_deep_queue_use_an_index_and_read_few_pages(
    use_postgresql: Use, variant: Variant, depth: int
) -> None:
    """In a session from when it was empty, in a new one without statistics, and with them."""
    client = use_postgresql(with_room(variant, depth))
    without_autovacuum(client)
    with Session(client.url, client.queue) as old, Session(client.url, client.queue) as new:
        check(client, call_everything(old, client.queue), situation="on a new queue")
        load(client, depth)
        check(client, call_everything(old, client.queue), situation="from when it was empty")
        check(client, call_everything(new, client.queue), situation="without statistics")
    on_each_table(client, "ANALYZE {}")
    with Session(client.url, client.queue) as session:
        check(client, call_everything(session, client.queue), situation="with statistics")


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("variant", [v for v in PLANNED if v.finishes], ids=str)
def test_plans_made_while_few_were_claimed_stay_cheap(
    use_postgresql: Use, variant: Variant, depth: int
) -> None:
    """The index of claims was the smallest one then; now it contains most rows."""
    client = use_postgresql(with_room(variant, depth))
    without_autovacuum(client)
    load(client, depth, claimed=0)
    on_each_table(client, "VACUUM ANALYZE {}")
    with Session(client.url, client.queue) as session:
        check(client, call_everything(session, client.queue), situation="while few were claimed")
        with connect(client.url) as connection:
            fill(connection, client.queue, {"claimed": depth})
        check(
            client, call_everything(session, client.queue), situation="from when few were claimed"
        )


@contextmanager
def sampled(client: Client) -> Iterator[Callable[[], Statement]]:
    """Sample the queue repeatedly; the status statement of the last sample."""
    with recorded(client.url) as (database, recorder):

        def sampled_status() -> Statement:
            for _ in range(ROUNDS):
                (seen,) = take_sample(database, only=[client.queue]).queues
                assert seen.row is not None, seen.problem
            return [one for one in recorder.take() if ".status" in one.text][-1]

        yield sampled_status


@pytest.mark.long
@pytest.mark.thinned(4)
@pytest.mark.parametrize("left", [0, pytest.param(10, marks=pytest.mark.long)])
@pytest.mark.parametrize("variant", PLANNED, ids=str)
def test_plans_made_while_the_queue_was_short_stay_cheap(
    use_postgresql: Use, variant: Variant, depth: int, left: int
) -> None:
    """The worst case for a planner: correct statistics of a table with one page or none."""
    client = use_postgresql(with_room(variant, depth))
    url, queue = client.url, client.queue
    without_autovacuum(client)
    leave_some(client, left)
    with Session(url, queue) as old, Session(url, queue) as new, sampled(client) as sampled_status:
        assert sampled_status().buffers <= SAMPLE_PAGES
        check(client, call_everything(old, queue), situation="on a short queue")
        load(client, depth)
        assert sampled_status().buffers <= SAMPLE_PAGES
        check(client, call_everything(old, queue), situation="from when it was short")
        check(client, call_everything(new, queue), situation="with statistics of a short queue")
    assert (client.snapshot().ready or 0) >= 10_000


RINGS = [v for v in PLANNED if "relay" in v.design.verbs]


@pytest.mark.long
@pytest.mark.parametrize("variant", RINGS, ids=str)
def test_plans_made_while_the_ring_was_small_stay_cheap(
    use_postgresql: Use, variant: Variant, depth: int
) -> None:
    given = {**variant.given, "size": "800", "max_bytes": "32"}
    client = use_postgresql(Variant(variant.design, given))
    without_autovacuum(client)
    on_each_table(client, "VACUUM ANALYZE {}")
    with Session(client.url, client.queue) as session:
        check(client, call_everything(session, client.queue), situation="on a small ring")
        relay.relay(client.database, client.queue, depth)
        load(client, depth // 2)
        check(client, call_everything(session, client.queue), situation="from when it was small")


@pytest.mark.long
@pytest.mark.parametrize("void", [False, True])
@pytest.mark.parametrize("variant", RINGS, ids=str)
def test_calls_on_a_ring_with_many_lost_numbers_stay_cheap(
    use_postgresql: Use, variant: Variant, depth: int, void: bool
) -> None:
    """As many as a crash with large gaps leaves: a pop still reads 64 of them."""
    client = use_postgresql(with_room(variant, depth))
    queue = client.queue
    without_autovacuum(client)
    with Session(client.url, queue) as session:
        check(client, call_everything(session, queue), situation="on a new ring")
        with connect(client.url) as connection:
            parked = Identifier(queue.schema, queue.name + "_parked")
            connection.execute(
                SQL(
                    "INSERT INTO {} (number, void, parked_at)"
                    " SELECT -n, %s, now() FROM generate_series(1, %s) AS n"
                ).format(parked),
                [void, depth],
            )
        calls = call_everything(session, queue)
    check_parked_reads([*calls["pop"], *calls["pop_many"]], queue, sweeps=not void)
    apart = APART_PAGES if client.queue.partitions else 0
    for verb in ("push", "push_many"):
        check_bounds(calls[verb], BOUNDS[verb] + apart, verb)
    for verb in ("pop", "pop_many"):
        check_bounds(calls[verb], BOUNDS[verb] + apart + LOST_NUMBERS_PAGES, verb)
        assert all(call.rows for call in calls[verb])
    on_each_table(client, "ANALYZE {}")
    with Session(client.url, queue) as session:
        calls = call_everything(session, queue)
    check_parked_reads([*calls["pop"], *calls["pop_many"]], queue, sweeps=not void)


def check_parked_reads(calls: list[Call], queue: Queue, *, sweeps: bool) -> None:
    """Parked numbers whose turn it is are read from part of a page; the table is never scanned."""
    parked = queue.name + "_parked"
    for call in calls:
        assert parked not in {t for one in call.statements for t in one.sequential()}
        reads = [
            node
            for statement in call.statements
            for node in statement.nodes()
            if node.get("Relation Name") == parked and node["Node Type"] == "Tid Range Scan"
        ]
        assert len(reads) == sweeps
        assert all(node["Actual Rows"] <= 40 for node in reads)


def test_pops_of_a_heap_cost_the_dead_pages_in_front(use_postgresql: Use) -> None:
    """It has no index: a pop reads all pages before the first message.

    Vacuum frees dead pages for new messages, but until these arrive a pop still reads them.
    """
    (variant,) = (v for v in DEFAULTS if v.order is Order.NONE)
    client = use_postgresql(variant)
    queue = client.queue
    without_autovacuum(client)
    load(client, 50_000)  # of 150,000 the server would begin a scan in its middle
    with Session(client.url, queue) as session:
        session.call("pop")  # the first call of a session costs more
        cheap = session.call("pop")
        with client.database.transaction("an old transaction") as old:
            old.execute(text("SELECT 1 FROM pg_class"))
            old.execute(text("SELECT txid_current()"))
            session.call("pop_many", "%s::integer", 20_000)
            on_each_table(client, "VACUUM {}")
            expensive = session.call("pop")
        on_each_table(client, "VACUUM {}")
        vacuumed = session.call("pop")
    dead_pages = 20_000 // 200
    print(f"pages that a pop reads: {cheap.buffers}, behind 20,000 dead rows {expensive.buffers},")
    print(f"vacuumed, before new messages come: {vacuumed.buffers}")
    assert all(call.rows for call in (cheap, expensive, vacuumed))
    assert {"Seq Scan"} == {
        node["Node Type"]
        for statement in cheap.statements
        for node in statement.nodes()
        if node.get("Alias") == "free"
    }
    assert cheap.buffers <= BOUNDS["pop"]
    assert expensive.buffers > dead_pages
