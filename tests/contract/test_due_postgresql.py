"""Messages pushed for a later time: they are as old as they are due; overdue, they are found."""

import random

import pytest
from psycopg.sql import SQL, Identifier

from console.actions import execute, message_action
from console.actions.reschedule import Reschedule
from console.features.presets.designs import LIBRARIES
from console.monitor.filters import parse
from tests.cli.calls import Console
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import read_messages
from tests.contract.libraries import Tables, adopt, findings, listed
from tests.contract.library_table import BY_NAME, DUE, SCHEMA, Library
from tests.contract.message_actions import source_of
from tests.contract.stand_in import RIVER, SOLID_QUEUE, StandIn
from tests.contract.variants import default
from tests.servers import connect

pytestmark = pytest.mark.slow

JUST_NOW = "now() - interval '3 s'"


def add(tables: Tables, script: str, due: str) -> None:
    tables.run(script.format(due=due))


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
        waiting = [min(time) for time in times if time[1] > 0]
        age = client.snapshot().age_seconds
        assert age == (pytest.approx(max(waiting), abs=60) if waiting else None)


def test_the_age_of_each_message_is_since_it_is_due(use_postgresql: Use) -> None:
    client = use_postgresql(default("pending"))
    insert(client, (86_400, 3), (600, 7_200), (600, -7_200))
    ages = [message.age_seconds for message in read_messages(client).messages]
    assert ages == [pytest.approx(seconds, abs=60) for seconds in (600, 3, 600)]
    assert len(read_messages(client, "state=ready", "older=5m").messages) == 1


def test_a_plan_contains_what_becomes_due_after_it(use_postgresql: Use) -> None:
    client = use_postgresql(default("pending"))
    insert(client, (60, -3600), (60, 30))
    later = Reschedule(source_of(client), in_seconds=7_200)
    made = message_action.select(client.database, later, parse([]))
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


LONG_AGO = "now() - interval '3 hours'"
STAGED = [of for of in DUE if of.due.staged]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("job", "script"),
    [*((of, of.due.waits) for of in DUE), *((of, of.due.staged) for of in STAGED)],
    ids=[*map(str, DUE), *(f"{of} not staged" for of in STAGED)],
)
def test_a_job_is_as_old_as_it_is_due_and_a_finding_if_nobody_took_it(
    console: Console, job: Library, script: str
) -> None:
    tables = job.create(console.url)
    queue = ["--queue", job.queue] if job.queue else []
    console.done("adopt", "jobs", "--preset", job.preset, *queue)
    add(tables, script, "now() + interval '3 hours'")
    assert "messages_overdue" not in findings(console, "jobs")
    assert console.done("check", "jobs", "--max-overdue", "1m").text.startswith("DBQ OK")
    job.empty(tables)
    if script == job.due.waits:
        add(tables, script, JUST_NOW)
        status = console.status("jobs")
        assert (status["ready"], 2 < status["age_seconds"] < 60) == (1, True)
        (message,) = listed(console, "jobs")
        assert 2 < message["age_seconds"] < 60
        assert console.done("check", "jobs", "--max-age", "10m").text.startswith("DBQ OK")
        assert listed(console, "jobs", "--filter", "older=10m") == []
        job.empty(tables)
    add(tables, script, LONG_AGO)
    found = findings(console, "jobs")["messages_overdue"]
    evidence = found["evidence"]
    assert (evidence["messages"], evidence["not_made_ready"]) == (1, int(script == job.due.staged))
    assert evidence["oldest_seconds"] == pytest.approx(10_800, abs=60)
    assert evidence["oldest_id"] == listed(console, "jobs")[0]["id"]
    assert "3 h" in found["summary"]
    design = LIBRARIES[job.preset]
    assert design.takes_due in found["cause"]
    assert design.overdue in found["judgement"]
    assert console("check", "jobs").text.startswith("DBQ WARNING")
    assert console("check", "jobs", "--max-overdue", "1h", "--plugin").status == 2
    (checked,) = console.done("check", "jobs", "--max-overdue", "4h", "--json").json["queues"]
    assert checked["figures"]["overdue_seconds"]["value"] == pytest.approx(10_800, abs=60)


def test_a_pending_message_that_is_due_and_that_nobody_popped_is_a_finding(
    console: Console,
) -> None:
    console.done("install", "pending", "mail")
    console.done("push", "mail", "at once")
    with connect(console.url) as connection:
        connection.execute(
            b"UPDATE mail SET pushed_at = now() - interval '1 day',"
            b" due_time = now() - interval '1 day'"
        )
        # What was to be popped at once has an age, and no due time that was missed.
        assert "messages_overdue" not in findings(console, "mail")
        connection.execute(
            b"INSERT INTO mail (payload, pushed_at, due_time)"
            b" VALUES ('x', now() - interval '1 day', now() - interval '3 h')"
        )
    found = findings(console, "mail")["messages_overdue"]
    assert (found["evidence"]["messages"], found["evidence"]["not_made_ready"]) == (1, 0)
    assert "dbq-console consumers mail" in found["judgement"]
    assert console("check", "mail").text.startswith("DBQ WARNING")
    console.done("check", "mail", "--max-overdue", "4h")
    console.done("pause", "mail", "--yes", "mail")
    assert "paused" in findings(console, "mail")["messages_overdue"]["cause"]
    console.done("silence", "messages_overdue", "mail", "--for", "1h")
    assert console.done("check", "mail").text.startswith("DBQ OK")


@pytest.mark.parametrize(
    ("due", "figure", "words"),
    [
        ("0044-03-15 12:00:00+00 BC", pytest.approx(6.5e10, rel=0.1), "due 7"),
        ("-infinity", None, "due at -infinity"),
    ],
)
def test_a_message_due_before_1970_is_overdue_since_no_false_time(
    console: Console, due: str, figure: object, words: str
) -> None:
    theirs = StandIn(console.url, SCHEMA)
    theirs.create(RIVER)
    adopt(console, "river")
    add(theirs, BY_NAME["river"].due.staged, f"timestamptz '{due}'")
    found = findings(console, "jobs")["messages_overdue"]
    assert found["evidence"]["oldest_seconds"] == figure
    assert found["since"] is None
    shown = console("doctor", "jobs", "--idle-for", "0s").text
    assert "since 1970" not in shown
    assert ("due and not taken, the first at -infinity" in shown) == (figure is None)
    checked = console("check", "jobs", "--max-overdue", "1h", "--plugin")
    assert checked.status == 2
    assert words in checked.text
    (one,) = console("check", "jobs", "--max-overdue", "1h", "--json").json["queues"]
    assert one["figures"]["overdue_seconds"]["status"] == "critical"
    assert one["figures"]["overdue_seconds"]["value"] == figure


@pytest.mark.parametrize(
    ("semaphore", "overdue"),
    [
        ("", True),
        ("0, timezone('UTC', now() - interval '3 h')", True),
        ("1, timezone('UTC', now() + interval '1 h')", True),
        # A job that runs holds it.
        ("0, timezone('UTC', now() + interval '1 h')", False),
    ],
)
def test_a_blocked_job_of_solid_queue_is_overdue_once_its_semaphore_is_free(
    console: Console, semaphore: str, overdue: bool
) -> None:
    theirs = StandIn(console.url, SCHEMA)
    theirs.create(SOLID_QUEUE)
    theirs.run(
        """
        INSERT INTO solid_queue_jobs (concurrency_key, scheduled_at)
        VALUES ('one', timezone('UTC', now()));
        INSERT INTO solid_queue_blocked_executions
            (job_id, queue_name, created_at, concurrency_key, expires_at)
        SELECT id, queue_name, created_at, concurrency_key, timezone('UTC', now() - interval '3 h')
        FROM solid_queue_jobs;
        INSERT INTO solid_queue_processes (kind, last_heartbeat_at)
        VALUES ('Dispatcher', timezone('UTC', now()))
        """
    )
    if semaphore:
        theirs.run(f"INSERT INTO solid_queue_semaphores VALUES (1, 'one', {semaphore})")
    adopt(console, "solid-queue")
    found = findings(console, "jobs")
    assert ("messages_overdue" in found) == overdue
    if overdue:
        assert found["messages_overdue"]["evidence"]["not_made_ready"] == 1
        assert found["messages_overdue"]["evidence"]["should_have"] == "process 1"


def test_the_finding_names_who_should_have_made_the_job_ready(console: Console) -> None:
    theirs = StandIn(console.url, SCHEMA)
    theirs.create(RIVER)
    adopt(console, "river")
    add(theirs, BY_NAME["river"].due.staged, LONG_AGO)
    found = findings(console, "jobs")["messages_overdue"]
    assert found["evidence"]["should_have"] is None
    assert "none does so now" in found["cause"]
    assert "should_have: none\n" in console("doctor", "jobs", "--idle-for", "0s").text
    theirs.run(
        "INSERT INTO river_leader VALUES (now(), now() + interval '1 h', 'host 7', 'default')"
    )
    found = findings(console, "jobs")["messages_overdue"]
    assert found["evidence"]["should_have"] == "host 7"
    assert "host 7" in found["cause"]
    theirs.run("DROP TABLE river_leader")
    assert findings(console, "jobs")["messages_overdue"]["evidence"]["should_have"] == "?"
    assert "should_have: ?\n" in console("doctor", "jobs", "--idle-for", "0s").text
