"""Messages that were pushed for a later time: their age is since that time, not since the push."""

import random

import pytest
from psycopg.sql import SQL, Identifier

from console.actions import execute, plan
from console.actions.reschedule import Reschedule
from console.monitor.filters import parse
from tests.cli.calls import Console
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.due_jobs import DUE_JOBS, SCHEMA, DueJob
from tests.contract.filled import read_messages
from tests.contract.libraries import Tables, adopt, listed
from tests.contract.message_actions import source_of
from tests.contract.stand_in import SOLID_QUEUE, StandIn
from tests.contract.variants import default
from tests.servers import connect

JUST_NOW = "now() - interval '3 s'"


def add(tables: Tables, script: str, due: str) -> None:
    tables.run(script.format(due=due))


@pytest.mark.parametrize("job", DUE_JOBS, ids=str)
def test_a_job_that_was_delayed_is_as_old_as_it_is_due(console: Console, job: DueJob) -> None:
    tables = job.create(console.url)
    add(tables, job.waits, JUST_NOW)
    queue = ["--queue", job.queue] if job.queue else []
    console.done("adopt", "jobs", "--preset", job.preset, *queue)
    status = console.status("jobs")
    assert status["ready"] == 1
    assert 2 < status["age_seconds"] < 60
    (message,) = listed(console, "jobs")
    assert 2 < message["age_seconds"] < 60
    assert console.done("check", "jobs", "--max-age", "10m").text.startswith("DBQ OK")
    assert listed(console, "jobs", "--filter", "older=10m") == []


def insert(client: Client, *times: tuple[float, float]) -> None:
    """A message for each pair of seconds: since its push, since its due time."""
    table = Identifier(client.queue.schema, client.queue.name)
    with connect(client.url) as connection:
        for pushed, due in times:
            connection.execute(
                SQL(
                    "INSERT INTO {} (payload, pushed_at, due_time) VALUES ('x',"
                    " now() - make_interval(secs => {}), now() - make_interval(secs => {}))"
                ).format(table, pushed, due)
            )


@pytest.mark.parametrize("seed", range(3))
def test_the_age_of_a_pending_queue_is_of_the_message_that_could_be_popped_first(
    use_postgresql: Use, seed: int
) -> None:
    client = use_postgresql(default("pending"))
    numbers = random.Random(seed)
    times: list[tuple[float, float]] = []
    for _ in range(10):
        # Also due before its push, and due later.
        new = (numbers.uniform(0, 90_000), numbers.uniform(-90_000, 90_000))
        insert(client, new)
        times.append(new)
        waiting = [min(one) for one in times if one[1] > 0]
        age = client.snapshot().age_seconds
        assert age == (pytest.approx(max(waiting), abs=60) if waiting else None)


def test_the_age_of_each_message_is_since_it_is_due(use_postgresql: Use) -> None:
    client = use_postgresql(default("pending"))
    insert(client, (86_400, 3), (600, 7_200), (600, -7_200))
    ages = [one.age_seconds for one in read_messages(client).messages]
    assert ages == [pytest.approx(seconds, abs=60) for seconds in (600, 3, 600)]
    assert len(read_messages(client, "state=ready", "older=5m").messages) == 1


def test_a_plan_contains_what_becomes_due_after_it(use_postgresql: Use) -> None:
    client = use_postgresql(default("pending"))
    insert(client, (60, -3600), (60, 30))
    later = Reschedule(source_of(client), in_seconds=7_200)
    made = plan.make(client.database, later, parse([]))
    with connect(client.url) as connection:
        table = Identifier(client.queue.schema, client.queue.name)
        connection.execute(SQL("UPDATE {} SET due_time = clock_timestamp()").format(table))
    result = execute.execute(client.database, later, made)
    assert (made.count, result.ledger.out) == (2, 2)


def test_a_job_that_solid_queue_made_ready_again_is_as_old_as_that(console: Console) -> None:
    theirs = StandIn(console.url, SCHEMA)
    theirs.create(SOLID_QUEUE)
    theirs.run(
        """
        INSERT INTO solid_queue_jobs (arguments, created_at, updated_at)
        VALUES ('{}', now() - interval '1 day', now() - interval '1 day');
        INSERT INTO solid_queue_failed_executions (job_id, created_at) SELECT id, now()
        FROM solid_queue_jobs
        """
    )
    adopt(console, "solid-queue")
    console.done("requeue", "jobs", "--yes")
    assert console.status("jobs")["age_seconds"] < 60
    (message,) = listed(console, "jobs")
    assert message["age_seconds"] < 60
    # Nor did it wait for a day once it is claimed: for how long is not known.
    theirs.run(
        """
        DELETE FROM solid_queue_ready_executions;
        INSERT INTO solid_queue_claimed_executions (job_id, created_at)
        SELECT id, timezone('UTC', now()) FROM solid_queue_jobs
        """
    )
    assert console.status("jobs")["latency"]["waiting"]["messages"] == 0
