"""Oban's own jobs: its statements make and end them, and the console shows the same."""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as PipeEnd
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.cli.calls import Console
from tests.contract.child_processes import killed
from tests.contract.libraries import (
    Tables,
    adopt,
    counts,
    discovered,
    error_group,
    figures,
    listed,
    planned,
    working,
)
from tests.contract.packages import from_pip
from tests.servers import value, wait_until

PACKAGE = "oban==0.7.0"
_ELIXIR = """
ALTER TABLE oban_jobs ALTER errors DROP DEFAULT;
ALTER TABLE oban_jobs ALTER errors TYPE jsonb[] USING '{}', ALTER errors SET DEFAULT '{}';
DROP TABLE oban_producers;
DROP TABLE oban_leaders;
CREATE UNLOGGED TABLE oban_peers (name text PRIMARY KEY, node text, started_at timestamp,
    expires_at timestamp);
"""
"""Differences of Elixir's tables, as far as they are read (lib/oban/migrations/postgres)."""


def installed() -> Path:
    """The folder of its SQL files; skips, with the reason, where pip cannot install them."""
    return from_pip(PACKAGE, "--ignore-requires-python") / "oban" / "queries"


@dataclass(frozen=True)
class ObanApp(Tables):
    """Its tables, and the calls of an application."""

    queries: Path

    def install(self, *, elixir: bool = False) -> None:
        self.create((self.queries / "install.sql").read_text())
        if elixir:
            self.run(_ELIXIR)

    def execute(self, statement: str, /, **given: Any) -> list[Any]:
        """Run one of its statements; the rows."""
        return self.rows((self.queries / f"{statement}.sql").read_bytes(), given)

    def insert(
        self, queue: str, number: int, *, state: str = "available", later: bool = False
    ) -> list[int]:
        """Insert jobs with one attempt; their ids."""
        ((due,),) = self.rows("SELECT timezone('UTC', now() + interval '1 h')")
        given: dict[str, Any] = {"inserted_at": None, "meta": Jsonb({}), "priority": 0, "tags": []}
        given |= {"max_attempts": 1, "queue": queue, "state": state, "worker": "Their.Worker"}
        given["scheduled_at"] = due if later else None
        inserted = [
            self.execute("insert_job", **given, args=Jsonb({"n": n})) for n in range(number)
        ]
        return [row[0] for (row,) in inserted]

    def begin(self, queue: str) -> "Producer":
        """A producer, with its first heartbeat."""
        producer = Producer(self, queue)
        given = {"name": "oban", "node": producer.node, "queue": queue, "meta": Jsonb({})}
        self.execute("insert_producer", uuid=producer.uuid, **given)
        return producer

    def leave(self, queue: str, number: int) -> list[int]:
        """A producer is killed while it runs `number` jobs; their ids."""
        (jobs,) = killed(_hang, self, queue, number)
        return [int(job) for job in jobs]

    def working(self, queue: str, work: Callable[[int], None]) -> AbstractContextManager[object]:
        """A producer runs jobs of the queue."""
        producer = self.begin(queue)

        def step() -> None:
            for job in producer.fetch(5):
                work(job[0])
                producer.end(job, "completed")

        return working(step)


def _hang(of: ObanApp, queue: str, number: int, reports: PipeEnd) -> None:
    reports.send([job[0] for job in of.begin(queue).fetch(number)])
    threading.Event().wait()


@dataclass(frozen=True)
class Producer:
    """Takes jobs of one queue."""

    of: ObanApp
    queue: str
    node: str = "worker.1"
    uuid: str = field(default_factory=lambda: str(uuid4()))

    def fetch(self, demand: int) -> list[Any]:
        return self.of.execute(
            "fetch_jobs", queue=self.queue, demand=demand, attempted_by=[self.node, self.uuid]
        )

    def end(self, job: Any, state: str, error: str = "") -> None:
        """Acknowledge the job as its executor does."""
        details = {"attempt": 1, "at": "2026-01-02T03:04:05+00:00", "error": error}
        self.of.execute(
            "ack_job",
            id=job[0],
            attempted_at=job[13],
            state=state,
            attempt_change=None,
            schedule_in=None,
            error=Jsonb(details) if error else None,
            meta=None,
        )


JOBS = "their_oban.oban_jobs"


@pytest.fixture
def oban(console: Console) -> ObanApp:
    return ObanApp(console.url, "their_oban", installed())


def filled(oban: ObanApp) -> None:
    oban.insert("mail", 7)
    oban.insert("mail", 2, later=True)
    oban.insert("report", 3)
    producer = oban.begin("mail")
    first, second, third = producer.fetch(3)
    producer.end(first, "completed")
    producer.end(second, "discarded", "no host 8")
    oban.execute("cancel_many_jobs", ids=[producer.fetch(1)[0][0]])
    oban.execute("cancel_many_jobs", ids=oban.insert("mail", 1))
    assert third[1] == "executing"


@pytest.mark.long
def test_job_counts_equal_those_of_oban(console: Console, oban: ObanApp) -> None:
    oban.install()
    filled(oban)
    assert discovered(console, "oban")["queues"] == ["mail", "report"]
    # Elixir's migrations store the version in a comment on the table; Python's do not.
    for comment, version in ((None, None), ("'14'", "14"), ("'jobs of 2 shops'", None)):
        if comment:
            oban.run(f"COMMENT ON TABLE oban_jobs IS {comment}")
        assert discovered(console, "oban")["version"] == version
        version_shown = "oban_jobs, table version 14" in console.done("discover").text
        assert version_shown == (version is not None)
    adopt(console, "oban", "mail", "report")
    theirs: Counter[tuple[str, str]] = Counter()
    every = ["available", "scheduled", "retryable", "executing", "discarded", "completed"]
    for state, queue, number in oban.execute("count_jobs", states=every):
        theirs[queue, state] += number
        theirs["jobs", state] += number
    for name in ("jobs", "mail", "report"):
        scheduled = theirs[name, "scheduled"] + theirs[name, "retryable"]
        assert figures(console, name) == counts(
            theirs[name, "available"],
            scheduled,
            theirs[name, "executing"],
            0,
            theirs[name, "discarded"],
            theirs[name, "completed"],
        )
    assert theirs["jobs", "executing"] == 2
    assert error_group(console, "mail") == (1, "no host 8")


@pytest.mark.long
def test_discarded_jobs_are_retried_once_each_while_workers_run(
    console: Console, oban: ObanApp
) -> None:
    oban.install()
    jobs = oban.insert("mail", 60)
    producer = oban.begin("mail")
    for job in producer.fetch(60):
        producer.end(job, "discarded", "no host")
    adopt(console, "oban")
    ran: list[int] = []
    left = f"SELECT count(*) FROM {JOBS} WHERE state <> 'completed'"
    with oban.working("mail", ran.append), oban.working("mail", ran.append):
        console.done("requeue", "jobs", "--yes")
        wait_until(lambda: value(console.url, left) == 0, "its workers ran what was retried")
    assert Counter(ran) == Counter(jobs)
    assert value(console.url, f"SELECT max(attempt) FROM {JOBS}") == 2


def test_only_jobs_of_a_dead_producer_are_rescued(console: Console, oban: ObanApp) -> None:
    oban.install()
    oban.insert("mail", 6)
    oban.run("UPDATE oban_jobs SET max_attempts = 5 WHERE id % 3 > 0")
    dead, alive = oban.begin("mail"), oban.begin("mail")
    left = [job[0] for job in dead.fetch(3)]
    alive.fetch(3)
    oban.run("UPDATE oban_jobs SET attempted_at = attempted_at - interval '1 h'")
    oban.execute("delete_producer", uuid=dead.uuid)
    adopt(console, "oban")
    assert figures(console, "jobs")["stuck"] == 6
    (examined,) = console("doctor", "jobs", "--json").json["queues"]
    assert "claims_gone" in {one["code"] for one in examined["findings"]}
    plan = console.done("release", "jobs", "--dry-run").text
    assert "skipped: 3 their owner is alive" in plan
    console.done("release", "jobs", "--yes")
    states = f"SELECT string_agg(id || ' ' || state, ', ' ORDER BY id) FROM {JOBS} WHERE id < 4"
    assert value(console.url, states) == "1 available, 2 available, 3 discarded"
    assert left == [1, 2, 3]
    assert value(console.url, f"SELECT meta ->> 'rescued' FROM {JOBS} WHERE id = 1") == "1"


@pytest.mark.long
def test_jobs_of_a_killed_producer_are_run_once_by_others(console: Console, oban: ObanApp) -> None:
    oban.install()
    jobs = oban.insert("mail", 40)
    oban.run("UPDATE oban_jobs SET max_attempts = 5")
    left = oban.leave("mail", 12)
    adopt(console, "oban")
    assert planned(console, "release", "jobs")["count"] == 0
    oban.run(
        """
        UPDATE oban_producers SET updated_at = updated_at - interval '1 h';
        UPDATE oban_jobs SET attempted_at = attempted_at - interval '1 h' WHERE state = 'executing'
        """
    )
    assert figures(console, "jobs")["stuck"] == len(left) == 12
    ran: list[int] = []
    unfinished = f"SELECT count(*) FROM {JOBS} WHERE state <> 'completed'"
    with oban.working("mail", ran.append), oban.working("mail", ran.append):
        console.done("release", "jobs", "--yes")
        wait_until(lambda: value(console.url, unfinished) == 0, "others ran what was released")
    assert Counter(ran) == Counter(jobs)
    tried = f"SELECT count(*) FROM {JOBS} WHERE attempt = 2"
    assert value(console.url, tried) == 12


@pytest.mark.long
def test_elixirs_tables_are_monitored_and_acted_on(console: Console, oban: ObanApp) -> None:
    oban.install(elixir=True)
    oban.insert("mail", 3)
    oban.run(
        """
        UPDATE oban_jobs SET state = 'executing', attempt = 1, attempted_at = timezone('UTC',
            now() - interval '1 h'),
            attempted_by = '{node@host,uuid}' WHERE id = 1;
        UPDATE oban_jobs SET state = 'discarded', attempt = 1, discarded_at = timezone('UTC',
            now()),
            errors = ARRAY['{"attempt": 1, "at": "2026-01-01T00:00:00Z",
                "error": "no host 9"}']::jsonb[] WHERE id = 2;
        """
    )
    adopt(console, "oban")
    assert figures(console, "jobs") == counts(1, 0, 1, 1, 1, 0)
    (error,) = listed(console, "jobs", "--state", "error")
    assert error["error"] == "no host 9"
    console.done("requeue", "jobs", "--yes")
    assert value(console.url, f"SELECT meta FROM {JOBS} WHERE id = 2") == {}
    assert planned(console, "release", "jobs")["count"] == 0
    console.done("release", "jobs", "--unknown", "--yes")
    assert figures(console, "jobs") == counts(2, 0, 0, 0, 1, 0)
