"""Oban by the SQL files of its Python package, run as it runs them: its code wants Python 3.12."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as PipeEnd
from pathlib import Path
from typing import Any
from uuid import uuid4

from psycopg.types.json import Jsonb

from tests.contract.fetched import from_pip
from tests.contract.killed import killed
from tests.servers import connect, run_in

PACKAGE = "oban==0.7.0"
_ELIXIR = """
ALTER TABLE oban_jobs ALTER errors DROP DEFAULT;
ALTER TABLE oban_jobs ALTER errors TYPE jsonb[] USING '{}', ALTER errors SET DEFAULT '{}';
DROP TABLE oban_producers;
DROP TABLE oban_leaders;
CREATE UNLOGGED TABLE oban_peers (name text PRIMARY KEY, node text, started_at timestamp,
    expires_at timestamp);
"""
"""What Elixir's tables differ in, as far as they are read (lib/oban/migrations/postgres)."""


def installed() -> Path:
    """The folder of its SQL files; skips, with the reason, where pip does not get them."""
    return from_pip(PACKAGE, "--ignore-requires-python") / "oban" / "queries"


@dataclass(frozen=True)
class ObanAtWork:
    """Its tables in one schema, and what its application would do."""

    url: str
    queries: Path
    schema: str = "their_oban"

    def install(self, *, elixir: bool = False) -> None:
        with connect(self.url) as connection:
            connection.execute(f"CREATE SCHEMA {self.schema}".encode())
        self.run((self.queries / "install.sql").read_text())
        if elixir:
            self.run(_ELIXIR)

    def run(self, script: str) -> None:
        run_in(self.url, self.schema, script)

    def ask(self, statement: str, /, **given: Any) -> list[Any]:
        """The rows of one of its statements."""
        with connect(self.url) as connection:
            connection.execute(f"SET search_path = {self.schema}, public".encode())
            done = connection.execute((self.queries / f"{statement}.sql").read_bytes(), given)
            return done.fetchall() if done.description else []

    def insert(
        self, queue: str, number: int, *, state: str = "available", later: bool = False
    ) -> list[int]:
        """So many jobs of one try; their ids."""
        with connect(self.url) as connection:
            (due,) = connection.execute(
                b"SELECT timezone('UTC', now() + interval '1 h')"
            ).fetchone() or (None,)
        nothing: dict[str, Any] = {
            "inserted_at": None,
            "meta": Jsonb({}),
            "priority": 0,
            "tags": [],
        }
        return [
            self.ask(
                "insert_job",
                **nothing,
                args=Jsonb({"n": n}),
                max_attempts=1,
                queue=queue,
                scheduled_at=due if later else None,
                state=state,
                worker="Their.Worker",
            )[0][0]
            for n in range(number)
        ]

    def begin(self, queue: str) -> "Producer":
        """A producer, with its first heartbeat."""
        made = Producer(self, queue)
        self.ask(
            "insert_producer",
            uuid=made.uuid,
            name="oban",
            node=made.node,
            queue=queue,
            meta=Jsonb({}),
        )
        return made

    def leave(self, queue: str, number: int) -> list[int]:
        """A producer is killed in the midst of so many jobs; their ids."""
        (jobs,) = killed(_hang, self, queue, number)
        return [int(job) for job in jobs]

    @contextmanager
    def working(self, queue: str, work: Callable[[int], None]) -> Iterator[None]:
        """A producer is at it, in a thread of its own."""
        producer, over = self.begin(queue), threading.Event()

        def loop() -> None:
            while not over.wait(0.02):
                for job in producer.fetch(5):
                    work(job[0])
                    producer.end(job, "completed")

        thread = threading.Thread(target=loop)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(60)


def _hang(of: ObanAtWork, queue: str, number: int, told: PipeEnd) -> None:
    told.send([job[0] for job in of.begin(queue).fetch(number)])
    threading.Event().wait()


@dataclass(frozen=True)
class Producer:
    """Takes jobs of one queue."""

    of: ObanAtWork
    queue: str
    node: str = "worker.1"
    uuid: str = field(default_factory=lambda: str(uuid4()))

    def fetch(self, demand: int) -> list[Any]:
        return self.of.ask(
            "fetch_jobs", queue=self.queue, demand=demand, attempted_by=[self.node, self.uuid]
        )

    def end(self, job: Any, state: str, error: str = "") -> None:
        """As its executor acknowledges it."""
        told = {"attempt": 1, "at": "2026-01-02T03:04:05+00:00", "error": error}
        self.of.ask(
            "ack_job",
            id=job[0],
            attempted_at=job[13],
            state=state,
            attempt_change=None,
            schedule_in=None,
            error=Jsonb(told) if error else None,
            meta=None,
        )
