"""Queues of libraries that cannot be run here: read and acted on, on tables like theirs."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
from sqlalchemy import create_engine

from tests.cli.calls import Console
from tests.contract import stand_in
from tests.contract.figures import counts, figures, sampled_error
from tests.contract.packages import from_pip
from tests.contract.stand_in import HANGFIRE, RIVER, SOLID_QUEUE, StandIn
from tests.servers import wait_until

PACKAGE = "riverqueue==0.7.0"
WANTS = "greenlet>=3,<4"
"""It imports SQLAlchemy's asyncio, which is an extra of that."""


class Send:
    """A job's arguments, as its client wants them."""

    kind = "send"

    def __init__(self, n: int) -> None:
        self.n = n

    def to_json(self) -> str:
        return json.dumps({"n": self.n})


@pytest.fixture
def river(console: Console, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its package, whose `client` is on tables like its own."""
    monkeypatch.syspath_prepend(from_pip(PACKAGE, WANTS))
    StandIn(console.url, "Theirs").install(RIVER)
    riverqueue: Any = import_module("riverqueue")
    engine = create_engine(console.url, connect_args={"options": '-c search_path="Theirs"'})
    driver = import_module("riverqueue.driver.riversqlalchemy").Driver(engine)
    riverqueue.client = riverqueue.Client(driver)
    yield riverqueue
    engine.dispose()


@pytest.mark.long
def test_what_its_own_client_inserts_is_told_as_it_tells_it(console: Console, river: Any) -> None:
    mail, report = river.InsertOpts(queue="mail"), river.InsertOpts(queue="report")
    later = river.InsertOpts(queue="mail", scheduled_at=datetime.now(UTC) + timedelta(hours=1))
    jobs = [river.client.insert(Send(n), insert_opts=mail).job for n in range(3)]
    jobs.append(river.client.insert(Send(3), insert_opts=later).job)
    many = [river.InsertManyParams(Send(n), insert_opts=report) for n in (4, 5)]
    assert river.client.insert_many(many) == 2
    theirs = StandIn(console.url, "Theirs")
    # Its clients in Go write down the queues that they work on; none is running here.
    theirs.run("INSERT INTO river_queue (name) VALUES ('mail'), ('report')")

    (found,) = console.done("discover", "--json").json["found"]
    assert (found["preset"], found["queues"]) == ("river", ["mail", "report"])
    for command in found["commands"]:
        console.done(*command.split()[1:])
    assert [str(job.state) for job in jobs] == ["available"] * 3 + ["scheduled"]
    assert figures(console, "mail") == counts(3, 1, 0, 0, 0, 0)
    assert figures(console, "report") == counts(2, 0, 0, 0, 0, 0)
    assert figures(console, "river_job") == counts(5, 1, 0, 0, 0, 0)
    listed = console.done("messages", "mail", "--state", "scheduled", "--payload", "--json").json
    (message,) = listed["messages"]
    assert (message["id"], message["title"]) == (str(jobs[3].id), jobs[3].kind)
    assert json.loads(message["payload"]) == jobs[3].args == {"n": 3}
    assert datetime.fromisoformat(message["due_at"]) == jobs[3].scheduled_at

    # And once they have failed, they are retried as any, its tries counted as it set them.
    fails = "UPDATE river_job SET state = 'discarded', attempt = max_attempts, finalized_at = now()"
    theirs.run(f"{fails} WHERE queue = 'report'")
    assert figures(console, "report") == counts(0, 0, 0, 0, 2, 0)
    ran: list[int] = []
    with theirs.working(stand_in.RIVER_TAKES, stand_in.RIVER_ENDS, ran.append):
        console.done("requeue", "report", "--yes")
        over = counts(0, 1, 0, 0, 0, 5)
        wait_until(lambda: figures(console, "river_job") == over, "all were run")
    assert len(ran) == len({*ran}) == 5
    tries = "SELECT DISTINCT max_attempts FROM river_job WHERE queue = 'report'"
    assert theirs.rows(tries) == [(river.MAX_ATTEMPTS_DEFAULT + 1,)]


@pytest.fixture
def theirs(console: Console) -> StandIn:
    return StandIn(console.url, "Theirs")


def test_river(console: Console, theirs: StandIn) -> None:
    theirs.install(RIVER)
    theirs.run(
        """
        INSERT INTO river_queue (name) VALUES ('mail'), ('report');
        INSERT INTO river_job (queue) SELECT 'mail' FROM generate_series(1, 4);
        INSERT INTO river_job (queue, state, scheduled_at) VALUES ('mail', 'scheduled',
            now() + interval '1 h');
        INSERT INTO river_job (queue, state, attempt, errors, finalized_at, unique_key,
            unique_states)
        SELECT 'report', 'discarded', 1, ARRAY['{"error": "no host 7"}'::jsonb], now(), 'one',
            B'11110101'
        FROM generate_series(1, 2);
        INSERT INTO river_job (queue, state, attempted_at, attempted_by)
        VALUES ('report', 'running', now() - interval '1 h', '{old,new}');
        INSERT INTO river_job (queue, state, finalized_at) VALUES ('mail', 'completed', now()),
            ('mail', 'cancelled', now());
        """
    )
    (found,) = console.done("discover", "--json").json["found"]
    assert (found["preset"], found["queues"]) == ("river", ["mail", "report"])
    assert found["version"] == "7"
    console.done("adopt", "jobs", "--preset", "river")
    console.done("adopt", "mail", "--preset", "river", "--queue", "mail")
    assert figures(console, "jobs") == counts(4, 1, 1, 1, 2, 1)
    assert figures(console, "mail") == counts(4, 1, 0, 0, 0, 1)
    (claim,) = console.done("messages", "jobs", "--state", "claimed", "--json").json["messages"]
    assert claim["claimed_by"] == "new"
    assert sampled_error(console, "jobs") == (2, "no host 7")
    refused = console("release", "jobs", "--yes")
    assert (refused.status, "JobRescuer" in refused.err) == (4, True)
    done = console.done("requeue", "jobs", "--yes").text
    assert "unique_key" in done
    assert figures(console, "jobs") == counts(5, 1, 1, 1, 1, 1)


def test_solid_queue(console: Console, theirs: StandIn) -> None:
    theirs.install(SOLID_QUEUE)
    theirs.run(
        """
        INSERT INTO solid_queue_jobs (arguments) SELECT '{"executions": 3,
            "arguments": [7]}' FROM generate_series(1, 10);
        UPDATE solid_queue_jobs SET queue_name = 'report' WHERE id > 8;
        UPDATE solid_queue_jobs SET concurrency_key = 'one' WHERE id IN (5, 8);
        INSERT INTO solid_queue_ready_executions (job_id, queue_name, created_at) SELECT id,
            queue_name, created_at FROM solid_queue_jobs WHERE id IN (1, 2, 9);
        INSERT INTO solid_queue_scheduled_executions (job_id, queue_name, created_at) VALUES (3,
            'mail', now());
        INSERT INTO solid_queue_blocked_executions (job_id, queue_name, created_at) VALUES (8,
            'mail', now());
        INSERT INTO solid_queue_failed_executions (job_id, error, created_at) SELECT id,
            '{"exception_class": "IOError", "message": "no host 7"}', now()
        FROM solid_queue_jobs WHERE id IN (4, 5);
        INSERT INTO solid_queue_processes (last_heartbeat_at) VALUES (timezone('UTC', now())),
            (timezone('UTC', now()) - interval '1 h');
        INSERT INTO solid_queue_claimed_executions (job_id, process_id, created_at)
        VALUES (6, 1, timezone('UTC', now() - interval '1 h')), (7, 2, timezone('UTC',
            now() - interval '1 h'));
        UPDATE solid_queue_jobs SET finished_at = timezone('UTC', now()) WHERE id = 10;
        """
    )
    (found,) = console.done("discover", "--json").json["found"]
    assert (found["preset"], found["queues"]) == ("solid-queue", ["mail", "report"])
    console.done("adopt", "jobs", "--preset", "solid-queue")
    console.done("adopt", "mail", "--preset", "solid-queue", "--queue", "mail")
    assert figures(console, "jobs") == counts(3, 2, 2, 1, 2, 1)
    assert figures(console, "mail") == counts(2, 2, 2, 1, 2, 0)
    assert sampled_error(console, "jobs") == (2, "IOError: no host 7")
    plan = console.done("requeue", "jobs", "--dry-run", "--json").json["plan"]
    assert (plan["count"], ["concurrency_key" in why for why in plan["left_alone"]]) == (1, [True])
    console.done("requeue", "jobs", "--yes")
    assert theirs.rows(
        """
        SELECT arguments::jsonb ->> 'executions', arguments::jsonb -> 'arguments'
        FROM solid_queue_jobs WHERE id = 4
        """
    ) == [("0", [7])]
    assert "skipped: 1 their owner is alive" in console.done("release", "jobs", "--dry-run").text
    console.done("release", "jobs", "--yes")
    assert figures(console, "jobs") == counts(5, 2, 1, 0, 1, 1)
    ready = theirs.rows("SELECT job_id FROM solid_queue_ready_executions ORDER BY 1")
    assert [job for (job,) in ready] == [1, 2, 4, 7, 9]


def test_all_that_is_found_is_adopted_after_the_plan(console: Console, theirs: StandIn) -> None:
    theirs.install(RIVER + SOLID_QUEUE + HANGFIRE)
    planned = console("discover", "--adopt")
    assert planned.status == 4
    assert "adopt Theirs.river_job as river_job" in planned.out.decode()
    assert console.done("discover", "--adopt", "--dry-run", "--json").json["adopts"] == [
        *("job", "river_job", "solid_queue_jobs"),
    ]
    assert console.done("status", "--json").json["queues"] == []
    console.done("discover", "--adopt", "--yes")
    found = console.done("status", "--json").json["queues"]
    assert {one["queue"] for one in found} == {"job", "river_job", "solid_queue_jobs"}
    assert "already adopted" in console.done("discover", "--adopt", "--yes").text
    assert console("discover", "--yes").status == 2


_FAILED = {
    "river": (
        RIVER,
        "INSERT INTO river_job (state, attempt, finalized_at) "
        "SELECT 'discarded', 1, now() FROM generate_series(1, 60)",
        stand_in.RIVER_TAKES,
        stand_in.RIVER_ENDS,
        "SELECT FROM river_job WHERE state <> 'completed'",
    ),
    "solid-queue": (
        SOLID_QUEUE,
        "INSERT INTO solid_queue_jobs (arguments) SELECT '{}' FROM generate_series(1, 60);"
        "INSERT INTO solid_queue_failed_executions (job_id, created_at) "
        "SELECT id, now() FROM solid_queue_jobs",
        stand_in.SOLID_QUEUE_TAKES,
        stand_in.SOLID_QUEUE_ENDS,
        "SELECT FROM solid_queue_jobs WHERE finished_at IS NULL",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("preset", _FAILED)
def test_what_failed_is_retried_once_each_under_workers(
    console: Console, theirs: StandIn, preset: str
) -> None:
    tables, fails, takes, ends, left = _FAILED[preset]
    theirs.install(tables)
    theirs.run(fails)
    console.done("adopt", "jobs", "--preset", preset)
    ran: list[int] = []
    with theirs.working(takes, ends, ran.append), theirs.working(takes, ends, ran.append):
        console.done("requeue", "jobs", "--yes")
        wait_until(lambda: not theirs.rows(left), "workers ran what was retried")
    assert Counter(ran) == Counter(range(1, 61))


@pytest.mark.long
def test_what_a_killed_process_of_solid_queue_left_is_run_once_under_others(
    console: Console, theirs: StandIn
) -> None:
    theirs.install(SOLID_QUEUE)
    theirs.run(
        """
        INSERT INTO solid_queue_processes (last_heartbeat_at) VALUES (timezone('UTC', now()));
        INSERT INTO solid_queue_jobs (arguments) SELECT '{}' FROM generate_series(1, 20);
        INSERT INTO solid_queue_ready_executions (job_id, queue_name, created_at)
        SELECT id, queue_name, created_at FROM solid_queue_jobs
        """
    )
    console.done("adopt", "jobs", "--preset", "solid-queue")
    left = theirs.leave(stand_in.SOLID_QUEUE_TAKES)
    assert figures(console, "jobs") == counts(20 - len(left), 0, len(left), 0, 0, 0)
    assert console.done("release", "jobs", "--dry-run", "--json").json["plan"]["count"] == 0
    # The others are another process than the one that is silent now.
    theirs.run(
        """
        UPDATE solid_queue_processes SET last_heartbeat_at = last_heartbeat_at - interval '1 h';
        INSERT INTO solid_queue_processes (last_heartbeat_at) VALUES (timezone('UTC', now()))
        """
    )
    takes = stand_in.SOLID_QUEUE_TAKES.replace("SELECT job_id, 1,", "SELECT job_id, 2,")
    ran: list[int] = []
    ends = stand_in.SOLID_QUEUE_ENDS
    with theirs.working(takes, ends, ran.append), theirs.working(takes, ends, ran.append):
        console.done("release", "jobs", "--yes")
        unfinished = "SELECT FROM solid_queue_jobs WHERE finished_at IS NULL"
        wait_until(lambda: not theirs.rows(unfinished), "the others ran what was released")
    assert Counter(ran) == Counter(range(1, 21))
    assert len(left) == 5
