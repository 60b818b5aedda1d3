"""pgmq's own queues: its functions make, read and end the messages; the console shows the same."""

import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from console.catalog import find
from console.engines import open_database
from console.monitor.memory import Memory
from console.monitor.rates import RateWindow
from console.monitor.sample import estimates, take_sample
from tests.cli.calls import Console
from tests.contract import pgmq_library as pgmq
from tests.contract.libraries import counts, figures, findings, listed, planned
from tests.servers import EXTERNAL_URL, READ_CATALOG, Server, execute, fresh_database, login, value


@pytest.fixture
def console(database_url: str) -> Console:
    """The command line on a database of this test, with pgmq and an empty queue `jobs`."""
    return Console(pgmq.pgmq(database_url).url)


@pytest.mark.long
def test_queues_are_discovered_and_counted(console: Console) -> None:
    execute(
        console.url,
        """
        SELECT pgmq.create('orders'); SELECT pgmq.create_unlogged('other');
        SELECT pgmq.send_batch('orders', ARRAY['{"n": 1}', '{"n": 2}', '{"n": 3}']::jsonb[]);
        SELECT pgmq.send('orders', '{"n": 4}', 3600);
        """,
    )
    execute(console.url, "SELECT count(*) FROM pgmq.read('orders', 3600, 1)")
    empty, first, second = console.done("discover", "--json").json["found"]
    assert [one["queues"] for one in (empty, first, second)] == [["jobs"], ["orders"], ["other"]]
    assert first["version"] is None  # it was not installed as an extension
    console.done(*shlex.split(first["commands"][0])[1:])
    console.done("adopt", "theirs", "--preset", "pgmq", "--queue", "Other")
    assert figures(console, "orders") == counts(2, 1, 1, 0, None, 0)
    assert figures(console, "theirs")["ready"] == 0
    (claim,) = listed(console, "orders", "--state", "claimed", "--payload")
    assert (claim["id"], claim["attempts"], claim["payload"]) == ("1", 1, '{"n": 1}')
    console("requeue", "orders", "--yes").failed(4, "visible again")
    console.done("release", "orders", "--force", "--yes")
    assert figures(console, "orders")["claimed"] == 0
    assert value(console.url, "SELECT read_ct FROM pgmq.q_orders WHERE msg_id = 1") == 1
    assert value(console.url, "SELECT count(*) FROM pgmq.read('orders', 0, 9)") == 3


def test_discover_shows_the_version_of_the_extension(server: Server) -> None:
    with fresh_database(server.url) as url:
        if int(str(value(url, "SHOW server_version_num"))) < 180000 or EXTERNAL_URL:
            pytest.skip("it takes an extension of a server's own folders only")
        with TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            pgmq.install_extension(url, Path(folder))
        execute(url, "SELECT pgmq.create('orders')")
        found = Console(url).done("discover", "--json").json["found"]
        assert [(one["preset"], one["version"]) for one in found] == [("pgmq", pgmq.VERSION)]
        shown = Console(url).done("discover").text
        assert f"pgmq.q_orders, table version {pgmq.VERSION}" in shown


def test_messages_being_read_have_waiting_times(console: Console) -> None:
    execute(
        console.url,
        """
        SELECT pgmq.create('orders'); SELECT pgmq.send('orders', '{}') FROM generate_series(1, 21);
        """,
    )
    execute(console.url, "SELECT count(*) FROM pgmq.read('orders', 3600, 1)")
    execute(console.url, "UPDATE pgmq.q_orders SET vt = now() WHERE read_ct > 0")
    execute(console.url, "SELECT count(*) FROM pgmq.read('orders', 3600, 21)")
    execute(
        console.url,
        "UPDATE pgmq.q_orders SET enqueued_at = last_read_at - (msg_id - 1) * interval '1 s'",
    )
    console.done("adopt", "orders", "--preset", "pgmq")
    waiting = console.status("orders")["latency"]["waiting"]
    # Unknown for the first one, which was read twice.
    assert (waiting["messages"], waiting["p50_seconds"]) == (20, 10.5)
    lines = console.done("status", "orders").text
    assert "orders: waiting p50 10.5 s, p95 19.1 s, p99 19.8 s (20 messages of " in lines
    assert "orders: processing ? (no index on the time of the end is known)" in lines


def test_a_message_that_becomes_visible_by_itself_is_never_stuck(console: Console) -> None:
    execute(console.url, "SELECT pgmq.create('orders'); SELECT pgmq.send('orders', '{}')")
    execute(console.url, "SELECT count(*) FROM pgmq.read('orders', 7200, 1)")
    execute(console.url, "UPDATE pgmq.q_orders SET last_read_at = now() - interval '1 h'")
    console.done("adopt", "orders", "--preset", "pgmq")
    claimed = counts(0, 0, 1, 0, None, 0)
    assert figures(console, "orders") == claimed
    assert findings(console, "orders") == {}
    plan = console.done("release", "orders", "--dry-run").text
    assert "comes back automatically after its time-out" in plan
    assert "counts as stuck" not in plan
    # As in its versions before 1.8, which do not store when a message was read: an unknown age is
    # not counted as zero.
    for table in ("q_orders", "a_orders"):
        execute(console.url, f"ALTER TABLE pgmq.{table} DROP COLUMN last_read_at")
    console.done("forget", "orders")
    console.done("adopt", "orders", "--preset", "pgmq")
    assert figures(console, "orders")["stuck"] == 0
    left = planned(console, "release", "orders")["skipped"]
    assert left == {"nobody can tell since when they are claimed": 1}
    assert planned(console, "release", "orders", "--unknown")["count"] == 1


def test_a_partitioned_queue_is_counted_estimated_and_maintained_by_its_partitions(
    console: Console,
) -> None:
    execute(console.url, pgmq.PARTITIONED)
    console.done("adopt", "parts", "--preset", "pgmq")
    database = open_database(console.url)
    try:
        with database.transaction("look", read_only=True) as connection:
            queue = find(connection, "parts")
        window = RateWindow(queue.design.flow)

        def sample_at(at: float) -> Any:
            execute(console.url, "SELECT pg_stat_force_next_flush()")
            (sample,) = take_sample(database, only=[queue]).queues
            assert sample.row is not None
            return sample, window.add(at, sample.row, counts_rows=True)

        sample_at(0.0)
        # Ids of 10,000 and more are in the second partition.
        execute(
            console.url,
            """
            SELECT pgmq.send_batch('parts', array_agg('{}'::jsonb)) FROM generate_series(1, 19000);
            SELECT count(*) FROM pgmq.pop('parts', 2000);
            SELECT pg_stat_force_next_flush();
            """,
        )
        sample, rates = sample_at(10.0)
        assert (rates.push, rates.pop) == (1900.0, 200.0)
        assert sample.row.rows_estimated == 17_000
        with database.transaction("estimate", read_only=True) as connection:
            (found,) = estimates(connection, [(queue, sample.row)], Memory()).values()
        assert found["ready"] == pytest.approx(17_000, rel=0.1)
    finally:
        database.close()
    assert (figures(console, "parts")["ready"] or 0) > 15_000

    plan = console.done("maintain", "parts", "--dry-run", "--json").json["plan"]
    assert [table["name"] for table in plan["tables"]] == [
        *("q_parts_default", "q_parts_p0", "q_parts_p10000")
    ]
    assert sum(table["live_rows"] for table in plan["tables"]) == 17_000
    assert {step["target"] for step in plan["steps"] if step["what"] == "analyze"} <= {
        *("q_parts_default", "q_parts_p0", "q_parts_p10000")
    }
    assert plan["indexes"]


ARCHIVED = """
SELECT pgmq.send_batch('orders', ARRAY['{"n": 1}', '{"n": 2}', '{"n": 3}']::jsonb[]);
SELECT pgmq.archive('orders', ARRAY[1, 3]);
SELECT pg_stat_force_next_flush();
"""


def done_figure(console: Console) -> tuple[Any, bool, bool]:
    """The figure `done`: its value, whether it is estimated, whether it is unknown."""
    status = console.status("orders")
    assert not status["problem"]
    return status["done"], "done" in status["estimated"], "done" in status["unknown"]


def test_archived_messages_are_done(console: Console) -> None:
    execute(console.url, "SELECT pgmq.create('orders')")
    console.done("adopt", "orders", "--preset", "pgmq")
    assert done_figure(console) == (0, False, False)
    execute(console.url, ARCHIVED)
    assert done_figure(console) == (2, True, False)
    assert "≈2" in console.done("status", "orders").text
    done = listed(console, "orders", "--state", "done")
    assert [(one["id"], one["state"]) for one in done] == [("3", "done"), ("1", "done")]
    assert done[0]["done_at"]
    assert [one["id"] for one in listed(console, "orders")] == ["2", "3", "1"]
    for id_, state in (("2", "ready"), ("3", "done")):
        (named,) = listed(console, "orders", "--filter", f"id={id_}")
        assert named["state"] == state
    assert planned(console, "release", "orders", "--force")["count"] == 0
    # No false zero if rows exist and the counters were reset, as after a crash.
    reset = "SELECT pg_stat_reset_single_table_counters('pgmq.a_orders'::regclass)"
    execute(console.url, reset)
    assert done_figure(console) == (None, False, True)
    execute(console.url, "ANALYZE pgmq.a_orders")
    assert done_figure(console) == (2, True, False)
    check_unreadable_archive(console)


def check_unreadable_archive(console: Console) -> None:
    """`done` is unknown without rights to the archive, and without an archive."""
    theirs = ("GRANT USAGE ON SCHEMA pgmq TO {}", "GRANT SELECT ON pgmq.q_orders TO {}")
    with login(console.url, *READ_CATALOG, *theirs) as url:
        reader = Console(url)
        assert done_figure(reader) == (None, False, True)
        listed = reader.done("messages", "orders", "--json").json
        assert [one["id"] for one in listed["messages"]] == ["2"]
        assert listed["complete"] is False
        reader("messages", "orders", "--state", "done").failed(4, "may not read the table")
    execute(console.url, "DROP TABLE pgmq.a_orders")
    assert done_figure(console) == (None, False, True)


def test_a_partitioned_archive_is_estimated_by_its_partitions(console: Console) -> None:
    execute(
        console.url,
        """
        SELECT pgmq.create('orders');
        ALTER TABLE pgmq.a_orders RENAME TO a_orders_old;
        CREATE TABLE pgmq.a_orders (LIKE pgmq.a_orders_old INCLUDING DEFAULTS)
        PARTITION BY RANGE (msg_id);
        CREATE TABLE pgmq.a_orders_p0 PARTITION OF pgmq.a_orders FOR VALUES FROM (0) TO (3);
        CREATE TABLE pgmq.a_orders_p3 PARTITION OF pgmq.a_orders FOR VALUES FROM (3) TO (9);
        CREATE TABLE pgmq.a_orders_p9 PARTITION OF pgmq.a_orders FOR VALUES FROM (9) TO (99);
        """
        + ARCHIVED,
    )
    console.done("adopt", "orders", "--preset", "pgmq")
    assert done_figure(console) == (2, True, False)
    assert [one["id"] for one in listed(console, "orders", "--state", "done")] == ["3", "1"]


def test_an_archive_is_estimated_with_what_inherits_from_it(console: Console) -> None:
    execute(
        console.url,
        """
        SELECT pgmq.create('orders');
        CREATE TABLE pgmq.a_old () INHERITS (pgmq.a_orders);
        INSERT INTO pgmq.a_old (msg_id, enqueued_at, vt) SELECT i, now(), now()
        FROM generate_series(1, 50) AS s (i);
        ANALYZE pgmq.a_old;
        """,
    )
    console.done("adopt", "orders", "--preset", "pgmq")
    assert done_figure(console) == (50, True, False)


def test_rows_of_two_partitions_with_the_same_ctid_are_distinguished(console: Console) -> None:
    """And rows in the default partition are a finding."""
    execute(console.url, pgmq.PARTITIONED)
    insert = "INSERT INTO pgmq.q_parts (msg_id, vt, message) VALUES ({}, now(), '{{}}')"
    for number in (1, 10001):
        execute(console.url, insert.format(number))
    execute(console.url, "SELECT count(*) FROM pgmq.read('parts', 7200, 2)")
    assert value(console.url, "SELECT count(DISTINCT ctid) FROM pgmq.q_parts") == 1
    console.done("adopt", "parts", "--preset", "pgmq")
    words = ("--force", "--filter", "id=10001", "--yes", "--json")
    result = console.done("release", "parts", *words).json["result"]
    assert (result["selected"], result["done"]) == (1, 1)
    hidden = "SELECT string_agg(msg_id::text, ' ') FROM pgmq.q_parts WHERE vt > now()"
    assert value(console.url, hidden) == "1"

    assert "default_partition" not in findings(console, "parts")
    execute(console.url, insert.format(70000))
    evidence = findings(console, "parts")["default_partition"]["evidence"]
    assert evidence == {"partition": "q_parts_default", "rows": 1}
