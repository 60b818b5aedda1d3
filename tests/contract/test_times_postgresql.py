"""Times outside the years 1 to 9999, of every role in every design: found at small cost, with what
can be done."""

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.engine import Engine

from tests.cli.calls import Console
from tests.contract.test_odd_values_postgresql import FAR
from tests.servers import Server, connect, execute, fresh_database

pytestmark = pytest.mark.slow

FINISHING = ("pushed_at", "claimed_at", "done_at")
DESIGNS = {
    **dict.fromkeys(("naive", "heap", "fifo", "stack", "ring"), ("pushed_at",)),
    "pending": ("pushed_at", "due_at"),
    **dict.fromkeys(("claim", "status", "split", "ring in_hand=on"), FINISHING),
}
"""Design with its option -> the roles of its times."""
COLUMNS = {
    "pushed_at": {"pushed_at", "created_at", "queue_date_time", "time"},
    "due_at": {"due_time"},
    "claimed_at": {"claimed_at", "processing_started_at"},
    "done_at": {"done_at"},
}
MOST_PAGES = 500


@pytest.fixture(scope="module")
def console(server: Server) -> Iterator[Console]:
    with fresh_database(server.url) as url:
        yield Console(url)


def far_times(console: Console, name: str) -> dict[str, dict[str, Any]]:
    """The findings by the role of their time."""
    answer = console("doctor", name, "--idle-for", "0s", "--json")
    (examined,) = answer.json["queues"]
    assert not [one for one in examined["unseen"] if "times" in one], examined["unseen"]
    found = [one for one in examined["findings"] if one["code"] == "time_out_of_range"]
    return {one["evidence"]["time"]: one for one in found}


def time_columns(console: Console, name: str) -> dict[str, list[tuple[str, str]]]:
    """Role -> table and column, of the queue's own tables but its archive."""
    query = """SELECT table_name, column_name FROM information_schema.columns
        WHERE starts_with(table_name, %s) AND table_name !~ '_(archive|data)$'
        AND data_type = 'timestamp with time zone'"""
    rows = execute(console.url, query, [name])
    return {role: [one for one in rows if one[1] in names] for role, names in COLUMNS.items()}


@pytest.mark.thinned(5)
@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("design", DESIGNS)
def test_each_time_out_of_range_is_found(console: Console, design: str, far: str) -> None:
    shape, *options = design.split()
    name = f"far_{shape}_{len(options)}_{FAR.index(far)}"
    console.install(design, name)
    console.done("push", name, "-", "--lines", stdin=b"a\nb\nc\n")
    if DESIGNS[design] == FINISHING:
        first, _ = console.popped(name, "--count", "2")
        console.done("fail", name, first["id"], "--error", "no")
    assert far_times(console, name) == {}
    for role in DESIGNS[design]:
        for table, column in time_columns(console, name)[role]:
            execute(
                console.url, f"UPDATE {table} SET {column} = '{far}' WHERE {column} IS NOT NULL"
            )
    found = far_times(console, name)
    assert set(found) == set(DESIGNS[design])
    for role, one in found.items():
        evidence = one["evidence"]
        assert evidence["messages"] == len(evidence["ids"]) == len(evidence["times"]) > 0
        assert set(evidence["times"]) == {far}
        assert (one["repair"] is None) == (role != "due_at")
        assert "by hand (UPDATE)" in one["judgement"] or one["repair"]
    if "due_at" in found:
        fix = ["--idle-for", "0s", "--fix", "--code", "time_out_of_range", "--yes", name]
        console("doctor", name, *fix)
        assert set(far_times(console, name)) == {"pushed_at"}
        with connect(console.url) as connection:
            soon = f"SELECT count(*) FROM {name} WHERE due_time < now() + interval '2 seconds'"
            assert connection.execute(soon.encode()).fetchone() == (3,)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("design", ["claim", "status", "split", "ring in_hand=on"])
def test_the_command_for_claims_releases_them(console: Console, design: str, far: str) -> None:
    name = f"left_{design.split(maxsplit=1)[0]}_{FAR.index(far)}"
    console.install(design, name)
    console.done("push", name, "-", "--lines", stdin=b"a\nb\n")
    console.popped(name, "--count", "2")
    for table, column in time_columns(console, name)["claimed_at"]:
        execute(console.url, f"UPDATE {table} SET {column} = '{far}' WHERE {column} IS NOT NULL")
    found = far_times(console, name)["claimed_at"]
    _, _, command = found["judgement"].partition(", or: dbq-console ")
    result = console.done(*shlex.split(command), "--yes", name, "--json").json["result"]
    assert (result["done"], result["skipped"]) == (2, {})
    assert console.status(name)["ready"] == 2


def reads_of(console: Console, name: str) -> list[int]:
    """The pages that each statement reads which looks for such times."""
    statements: list[str] = []

    def ran(_: Connection, __: object, statement: str, *rest: object) -> None:
        if ".far_times */" in statement:
            statements.append(statement)

    event.listen(Engine, "after_cursor_execute", ran)
    try:
        console("doctor", name, "--idle-for", "0s", "--json")
    finally:
        event.remove(Engine, "after_cursor_execute", ran)
    with connect(console.url) as connection:
        connection.execute(b"SET enable_seqscan = off; SET enable_bitmapscan = off")
        explained = b"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "
        plans = [connection.execute(explained + one.encode()).fetchone() for one in statements]
    texts = [plan[0] if plan else "" for plan in plans]
    roots = [(json.loads(text) if isinstance(text, str) else text)[0]["Plan"] for text in texts]
    return [root["Shared Hit Blocks"] + root["Shared Read Blocks"] for root in roots]


MANY = 200_000
INDEXES: Mapping[str, int] = {
    "": 1,
    "CREATE INDEX ON deep (pushed_at)": 2,
    "CREATE INDEX ON deep (id, pushed_at)": 1,
}
"""An index of a deep table -> how many of the first and the last message's push times are found."""


@pytest.mark.thinned(2)
@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("analyzed", [True, False])
def test_of_a_deep_table_little_is_read(console: Console, index: str, analyzed: bool) -> None:
    console("forget", "deep")
    execute(
        console.url,
        f"""DROP TABLE IF EXISTS deep;
        CREATE TABLE deep (id bigint, pushed_at timestamp, due_at timestamptz, payload text);
        ALTER TABLE deep SET (autovacuum_enabled = off);
        INSERT INTO deep VALUES (0, '0044-03-15 BC', now(), 'x');
        INSERT INTO deep SELECT n, now(), now(), 'x' FROM generate_series(1, {MANY}) AS n;
        INSERT INTO deep VALUES ({MANY + 1}, 'infinity', '-infinity', 'x');
        CREATE INDEX ON deep (due_at); {index}; {"ANALYZE deep" if analyzed else ""}""",
    )
    roles = ("id", "pushed_at", "due_at", "payload")
    words = [word for one in roles for word in ("--map", f"{one}={one}")]
    console.done("adopt", "deep", "--design", "pending", *words)
    found = far_times(console, "deep")
    counts = {role: one["evidence"]["messages"] for role, one in found.items()}
    assert counts == {"due_at": 1, "pushed_at": INDEXES[index]}
    assert max(reads_of(console, "deep")) < MOST_PAGES


def test_of_a_deep_queue_each_state_is_read_by_its_index(console: Console) -> None:
    console.done("install", "claim", "far_deep")
    execute(
        console.url,
        f"""INSERT INTO far_deep (payload) SELECT 'x' FROM generate_series(1, {MANY});
        INSERT INTO far_deep (payload, created_at) VALUES ('x', 'infinity');
        INSERT INTO far_deep (payload, processing_started_at) VALUES ('x', '-infinity');
        INSERT INTO far_deep (payload, processing_started_at, errors, done_at)
        VALUES ('x', now(), 'no', 'infinity');
        ANALYZE far_deep""",
    )
    assert set(far_times(console, "far_deep")) == set(FINISHING)
    assert max(reads_of(console, "far_deep")) < MOST_PAGES
