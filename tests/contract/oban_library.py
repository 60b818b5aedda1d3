"""Oban's own statements, from the SQL files in its Python package."""

import threading
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as PipeEnd
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

from psycopg.types.json import Jsonb

from tests.contract.child_processes import forking_with, killed
from tests.contract.libraries import LibraryApp, once, working
from tests.contract.packages import from_pip

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


forking_with(__name__)


@dataclass(frozen=True)
class ObanApp(LibraryApp):
    """Its tables, and the calls of an application."""

    queries: Path
    preset: ClassVar[str] = "oban"

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

    def add(self, number: int) -> list[int]:
        jobs = self.insert("mail", number)
        self.run("UPDATE oban_jobs SET max_attempts = 5")
        return jobs

    def fail(self, number: int) -> list[int]:
        jobs = self.insert("mail", number)
        producer = self.begin("mail")
        for job in producer.fetch(number):
            producer.end(job, "discarded", "no host")
        return jobs

    def leave(self, number: int) -> list[int]:
        (jobs,) = killed(_hang, self, number)
        return [int(job) for job in jobs]

    def silence(self) -> None:
        self.run(
            """
            UPDATE oban_producers SET updated_at = updated_at - interval '1 h';
            UPDATE oban_jobs SET attempted_at = attempted_at - interval '1 h'
            WHERE state = 'executing'
            """
        )

    def working(self) -> AbstractContextManager[object]:
        """A producer runs jobs of the queue "mail"."""
        producer = self.begin("mail")

        def step() -> None:
            for job in producer.fetch(5):
                self.note(job[0])
                producer.end(job, "completed")

        return working(step)

    def taken(self) -> "Counter[str]":
        return self.counter(
            "SELECT j.id FROM oban_jobs AS j, LATERAL generate_series(1, j.attempt)"
        )


def _hang(of: ObanApp, number: int, reports: PipeEnd) -> None:
    reports.send([job[0] for job in of.begin("mail").fetch(number)])
    threading.Event().wait()


@once
def oban(url: str) -> ObanApp:
    app = ObanApp(url, "their_oban", installed())
    app.install()
    return app


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
