"""Figures that a sample cannot read, or not quickly, are unknown, not zero, and delay no others."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url

from console.actions import relay
from console.catalog import Kind, Queue
from console.designs import DESIGNS
from console.engines import Database, Timeouts, open_database
from console.monitor.memory import Memory
from console.monitor.snapshot import QueueSnapshot
from tests.cli.calls import Console
from tests.contract.client import Client, sampled
from tests.contract.conftest import Use
from tests.contract.traffic import at_work
from tests.contract.variants import default
from tests.servers import READ_CATALOG, connect, execute, login, wait_until

TIMEOUTS = Timeouts(connect_seconds=20, statement_seconds=20.0, lock_seconds=0.5)
"""Four times those of a sampler: statements time out here on purpose, not on a busy machine."""


@pytest.fixture
def sampling_database(postgresql: Database) -> Iterator[Database]:
    """The module's database with the timeouts of a sampler."""
    url = postgresql.url.render_as_string(hide_password=False)
    with closing(open_database(url, timeouts=TIMEOUTS)) as database:
        yield database


def test_a_ring_without_its_configuration_affects_no_other_queue(
    use_postgresql: Use, sampling_database: Database
) -> None:
    ring, fifo = use_postgresql(default("ring")), use_postgresql(default("fifo"))
    fifo.push("x")
    config = Identifier(ring.queue.schema, f"{ring.queue.name}_config")
    with connect(ring.url) as connection:
        connection.execute(SQL("CREATE TABLE kept AS SELECT * FROM {}").format(config))
        connection.execute(SQL("DELETE FROM {}").format(config))
        (broken, sound), _ = sampled(sampling_database, ring.queue, fifo.queue)
        connection.execute(SQL("INSERT INTO {} SELECT * FROM kept").format(config))
        connection.execute("DROP TABLE kept")
    assert (broken.ready, broken.problem) == (None, "its configuration is empty")
    assert (sound.ready, sound.problem) == (1, "")


def test_figures_that_the_login_may_not_read_are_unknown(use_postgresql: Use) -> None:
    visible, hidden = use_postgresql(default("claim")), use_postgresql(default("fifo"))
    for client in (visible, hidden):
        client.push_many(["a", "b"])
    visible.pop_many(1)
    table = visible.queue.table
    with (
        login(visible.url, *READ_CATALOG, f'GRANT SELECT ON "{table}" TO {{}}') as url,
        closing(open_database(url)) as database,
        visible.database.transaction("hold") as connection,
    ):
        connection.exec_driver_sql(f'UPDATE public."{table}" SET attempts = attempts')
        (hidden_snapshot, visible_snapshot), _ = sampled(database, hidden.queue, visible.queue)
    assert (visible_snapshot.ready, visible_snapshot.claimed, visible_snapshot.holders) == (1, 1, 1)
    assert visible_snapshot.claims is not None
    assert [claim.owner for claim in visible_snapshot.claims] == ["unknown"]
    assert visible_snapshot.held_seconds is None
    assert (hidden_snapshot.ready, hidden_snapshot.age_seconds) == (None, None)
    assert "permission denied" in hidden_snapshot.problem
    assert {"ready", "age_seconds", "push_per_second"} <= set(hidden_snapshot.unknown)


def test_a_relay_hides_only_its_own_ring_and_delays_no_sample(
    use_postgresql: Use, sampling_database: Database
) -> None:
    ring, fifo = use_postgresql(default("ring")), use_postgresql(default("fifo"))
    queues = [ring.queue, fifo.queue]
    for client in (ring, fifo):
        client.push_many(["a", "b"])
    memory = Memory()
    with connect(ring.url) as connection:
        parked = Identifier(ring.queue.schema, f"{ring.queue.name}_parked")
        connection.execute("BEGIN")
        connection.execute(SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(parked))
        for _ in range(3):
            (hidden, observed), seconds = sampled(sampling_database, *queues, memory=memory)
            assert (hidden.ready, hidden.gap, hidden.capacity) == (None, None, None)
            assert {"ready", "gap", "capacity", "age_seconds"} <= set(hidden.unknown)
            assert "lock" in hidden.problem
            assert observed.ready == 2
            assert seconds < TIMEOUTS.statement_seconds / 2
        connection.execute("ROLLBACK")
    both, _ = sampled(sampling_database, *queues, memory=memory)
    assert [observed.ready for observed in both] == [2, 2]


def test_samples_during_relays_never_have_wrong_figures(
    use_postgresql: Use, sampling_database: Database
) -> None:
    client = use_postgresql(default("ring"))
    client.push_many(["x"] * 100)
    relay.relay(client.database, client.queue, 200)
    relaid = 1

    def relays() -> Iterator[None]:
        nonlocal relaid
        while True:
            relay.relay(client.database, client.queue, 200 + relaid % 2 * 5000)
            relaid += 1
            yield

    memory = Memory()
    observed: list[QueueSnapshot] = []
    with at_work(relays()):
        while relaid < 8 or len(observed) < 30:
            observed += sampled(sampling_database, client.queue, memory=memory)[0]
    assert {queue.ready for queue in observed} <= {100, None}
    assert {queue.gap for queue in observed} <= {100, None}
    assert {queue.capacity for queue in observed} <= {200, 5200, None}
    assert all(queue.problem for queue in observed if queue.gap is None)


SLOW_VIEW = """
CREATE TABLE "{0} rows" (id bigint PRIMARY KEY, at timestamptz, status smallint, body text);
INSERT INTO "{0} rows" SELECT i, now(), i % 5, 'x' FROM generate_series(0, 49) AS i;
CREATE VIEW "{0}" AS
    SELECT * FROM "{0} rows" WHERE status <> 0
    UNION ALL
    SELECT r.* FROM (SELECT pg_sleep({1}) OFFSET 0) AS wait, "{0} rows" AS r WHERE r.status = 0;
"""
"""A stand-in for a head that is slow to read: a query for ready rows waits."""


def slow_queue(client: Client, suffix: str = "") -> Queue:
    name = f"sick {client.queue.name} {suffix}"
    execute(client.url, SLOW_VIEW.format(name, 20.0))
    roles = {"id": "id", "pushed_at": "at", "status": "status", "payload": "body"}
    return Queue("public", name, DESIGNS["status"], {}, roles, Kind.ADOPTED)


def test_a_slow_figure_is_unknown_and_delays_nothing(
    use_postgresql: Use, sampling_database: Database
) -> None:
    """And it is skipped for a while, then tried again automatically."""
    now = [1000.0]
    client = use_postgresql(default("fifo"))
    client.push_many(["a", "b"])
    sick = slow_queue(client)
    queues, memory = [sick, client.queue], Memory(lambda: now[0])
    for _ in range(3):
        (slow, well), seconds = sampled(sampling_database, *queues, memory=memory)
        assert seconds < TIMEOUTS.statement_seconds
        assert well.ready == 2
        assert (slow.ready, slow.age_seconds) == (None, None)
        assert {"ready", "age_seconds"} <= set(slow.unknown) & set(slow.slow)
        assert (slow.claimed, slow.errors, slow.done) == (10, 10, 10)
        assert slow.problem == ""
    with connect(client.url) as connection:
        cured = f'CREATE OR REPLACE VIEW "{sick.name}" AS SELECT * FROM "{sick.name} rows"'
        connection.execute(cured.encode())
    (still, _), _ = sampled(sampling_database, *queues, memory=memory)
    assert still.ready is None
    now[0] += 11.0
    for _ in range(2):
        (known, _), _ = sampled(sampling_database, *queues, memory=memory)
        assert known.ready == 10
    assert known.age_seconds is not None
    assert known.slow == ()


def test_many_slow_queues_do_not_hide_the_others(
    use_postgresql: Use, sampling_database: Database
) -> None:
    client = use_postgresql(default("fifo"))
    client.push_many(["a", "b"])
    sick = [slow_queue(client, f"s{i}") for i in range(6)]
    memory = Memory()

    def healthy_queue_is_sampled() -> bool:
        (*slow, observed), seconds = sampled(sampling_database, *sick, client.queue, memory=memory)
        assert seconds < TIMEOUTS.statement_seconds
        assert all(queue.ready is None and queue.problem == "" for queue in slow)
        return observed.ready == 2

    wait_until(healthy_queue_is_sampled, "the one that is well is seen")
    assert healthy_queue_is_sampled()


def test_rows_that_row_security_hides_are_not_counted_as_none(use_postgresql: Use) -> None:
    """A policy would hide them without a word: refused, unless the URL permits what it shows."""
    client = use_postgresql(default("claim"))
    client.push_many(["a", "b"])
    name, table = client.queue.name, Identifier(client.queue.schema, client.queue.table)
    execute(client.url, SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(table))
    execute(client.url, SQL("CREATE POLICY a ON {} USING (payload = 'a')").format(table))
    granted = f'GRANT ALL ON "{client.queue.table}" TO {{}}'
    with login(client.url, *READ_CATALOG, granted) as url:
        theirs = Console(url)
        (found,) = theirs.done("status", name, "--json").json["queues"]
        checked = theirs("check", name)
        for words in (["messages", name], ["errors", name], ["release", name], ["purge", name]):
            theirs(*words).failed(4, "row security hides rows", "row_security=on")
        shown = make_url(url).set(query={"options": "-c row_security=on"})
        permitted = Console(shown.render_as_string(hide_password=False))
        assert len(permitted.done("messages", name, "--json").json["messages"]) == 1
    assert (found["ready"], found["claimed"], found["errors"]) == (None, None, None)
    assert "row security hides rows" in found["problem"]
    assert (checked.status, checked.text[:11]) == (1, "DBQ UNKNOWN")
