"""A pending queue: popped by due time, and never before it."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg.sql import SQL, Identifier

from console.designs import DESIGNS, Order
from tests.contract.client import Client, call
from tests.contract.conftest import Use
from tests.contract.messages import sender
from tests.contract.variants import BEHAVIOURS, Variant
from tests.contract.workers import Consume, Schedule, WorkerPool, schedule
from tests.servers import connect, wait_until

DUE = [v for v in BEHAVIOURS if v.order is Order.DUE]
ARCHIVED = Variant(DESIGNS["pending"], {"archive_at_pop": "on"})


def in_hours(hours: float) -> datetime:
    return datetime.now(UTC) + timedelta(hours=hours)


def rows(client: Client, query: str, table: str = "") -> list[tuple[Any, ...]]:
    name = Identifier(client.queue.schema, client.queue.name + table)
    with closing(connect(client.url)) as connection:
        return connection.execute(SQL(query).format(name)).fetchall()


@pytest.mark.parametrize(
    "batch", [0, 3, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 100))]
)
@pytest.mark.parametrize("variant", DUE, ids=str)
def test_what_is_due_comes_by_due_time_and_the_rest_does_not(
    use_postgresql: Use, variant: Variant, batch: int
) -> None:
    client = use_postgresql(variant)
    for hours in (-1, 5, -3, -2, 0.5, -4):
        call(client, "push", payload=str(hours), due_time=in_hours(hours))
    call(client, "push_many", payloads=["-5", "-5 too"], due_time=in_hours(-5))
    call(client, "push_many", payloads=["6", "7"], due_time=in_hours(6))
    client.push("now")
    client.push_many(["now too", "and now"])

    if batch:
        came = client.drain(batch)
    else:
        came = [m for m in (client.pop() for _ in range(20)) if m is not None]

    due = ["-5", "-5 too", "-4", "-3", "-2", "-1", "now", "now too", "and now"]
    assert [message.payload for message in came] == due
    status = client.status()
    assert (status.ready, status.scheduled) == (0, 4)
    assert [row[0] for row in rows(client, "SELECT payload FROM {} ORDER BY due_time")] == [
        "0.5",
        "5",
        "6",
        "7",
    ]


def test_a_message_becomes_due(use_postgresql: Use) -> None:
    client = use_postgresql(ARCHIVED)
    call(client, "push", payload="later", due_time=in_hours(1))
    assert client.pop() is None
    assert client.pop_many(5) == []
    rows(client, "UPDATE {} SET due_time = clock_timestamp() RETURNING 1")
    assert [message.payload for message in client.pop_many(5)] == ["later"]


@pytest.mark.long
def test_consumers_in_processes_of_their_own_pop_nothing_early(
    use_postgresql: Use, worker_pool: WorkerPool
) -> None:
    client = use_postgresql(ARCHIVED)
    url, queue = client.url, client.queue

    outcome = worker_pool.run(
        [Schedule(url, queue, producer, 150, within_seconds=1.5) for producer in range(2)],
        [
            Consume(url, queue, 0, rollbacks=0.05, late_commits=0.05),
            Consume(url, queue, 1, batch=5, rollbacks=0.05),
        ],
    )

    assert len(outcome.messages) == len({m.id for m in outcome.messages}) == 300
    assert {sender(m.payload) for m in outcome.messages} == set(outcome.pushed)
    early = "SELECT id, due_at, done_at FROM {} WHERE done_at < due_at OR due_at < pushed_at"
    assert rows(client, early, "_archive") == []
    assert rows(client, "SELECT count(*) FROM {}", "_archive") == [(300,)]
    assert client.status().scheduled == 0


def test_what_becomes_due_while_a_consumer_pops_comes_by_due_time(use_postgresql: Use) -> None:
    client = use_postgresql(ARCHIVED)
    pushed = schedule(Schedule(client.url, client.queue, 0, 200, within_seconds=1.0))
    came: list[str] = []

    def all_came() -> bool:
        while messages := client.pop_many(3):
            came.extend(message.id for message in messages)
        return len(came) == 200

    wait_until(all_came, "every message became due")
    assert set(came) == set(pushed.values())
    due = rows(client, "SELECT due_at FROM {} ORDER BY archive_id", "_archive")
    assert due == sorted(due)
