"""Shared by the tests of the presets: a library's tables, and what the console shows of them."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, ClassVar, TypeVar

from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url

from tests.cli.calls import Console
from tests.contract.traffic import at_work
from tests.servers import EXTERNAL_URL, connect, execute, run_in

STATES = ("ready", "scheduled", "claimed", "stuck", "errors", "done")


@dataclass(frozen=True)
class Tables:
    """Tables of a library, in one schema."""

    url: str
    schema: str

    def create(self, script: str) -> None:
        execute(self.url, f'CREATE SCHEMA IF NOT EXISTS "{self.schema}"')
        self.run(script)

    def run(self, script: str) -> None:
        """Run SQL with the schema first on the search path."""
        run_in(self.url, self.schema, script)

    def do(self, script: str) -> Any:
        """Run a script in the library's language: SQL, unless it has another one."""
        self.run(script)

    def rows(self, query: str | bytes, given: Any = None) -> list[Any]:
        with connect(self.url) as connection:
            connection.execute(f'SET search_path = "{self.schema}", public'.encode())
            sent = query.encode() if isinstance(query, str) else query
            cursor = connection.execute(sent, given)
            return cursor.fetchall() if cursor.description is not None else []

    def column(self, query: str, given: Any = None) -> list[Any]:
        return [one for (one,) in self.rows(query, given)]


class LibraryApp(Tables):
    """An application of a library, on tables of its own: what the scenarios of
    test_libraries_at_work need of it. Its jobs are in one queue unless a method says otherwise, and
    are named by their ids."""

    preset: ClassVar[str]
    release: ClassVar[Sequence[str]] = ()
    """Options without which the jobs of a killed worker are not released."""
    keeps: ClassVar[str] = ""
    """A word of the refusal, if the console does not release jobs of this library."""
    taken_back: ClassVar[bool] = False
    """Its workers take a job back after a time-out, so no job is ever stuck."""
    stays: ClassVar[str] = ""
    """Why the failed job of `replaced` stays so, in the console's words."""
    stays_in_plan: ClassVar[bool] = False
    """Its plan says so already, not only the run."""
    waits: ClassVar[str] = ""
    """A query of all jobs that its workers will take, now or later, by its own columns."""

    def add(self, number: int) -> list[Any]:
        """Jobs that a worker may take at once."""
        raise NotImplementedError

    def fail(self, number: int) -> list[Any]:
        """Jobs that have failed for good, by a cause that is gone by now."""
        raise NotImplementedError

    def replaced(self) -> tuple[Any, Any]:
        """A failed job, and another one that waits in its place by its key."""
        raise NotImplementedError

    def leave(self, number: int) -> list[Any]:
        """A worker is killed while it runs so many of the jobs."""
        raise NotImplementedError

    def silence(self) -> None:
        """As if an hour had passed since a worker was killed."""

    def stalled(self) -> Sequence[Any] | None:
        """Jobs of killed workers, by a function of the library, if it has one."""
        return None

    def recover(self) -> None:
        """Do what the library has for jobs of a killed worker instead of a release."""

    def working(self) -> AbstractContextManager[object]:
        """A worker runs jobs until the end of the block."""
        raise NotImplementedError

    def note_runs(self) -> None:
        self.run("CREATE TABLE IF NOT EXISTS public.ran (job text)")

    def note(self, job: object) -> None:
        self.rows("INSERT INTO public.ran VALUES (%s)", [str(job)])

    def waiting(self) -> "Counter[str]":
        return self.counter(self.waits)

    def runs(self) -> "Counter[str]":
        """How often each job was run to its end, as its workers noted it."""
        return self.counter("SELECT job FROM public.ran")

    def taken(self) -> "Counter[str] | None":
        """How often each job was taken by a worker, if the library keeps that."""
        return None

    def counter(self, query: str) -> "Counter[str]":
        return Counter(map(str, self.column(query)))


T = TypeVar("T", bound=Tables)


def once(create: Callable[[str], T]) -> Callable[[str], T]:
    """`create`, which makes a library's tables in an empty database. A process makes them once on
    each server; other databases are copies of the first."""
    made: dict[str, tuple[Identifier, T]] = {}

    @wraps(create)
    def copied(url: str) -> T:
        server = make_url(url).set(database="postgres").render_as_string(hide_password=False)
        name = str(make_url(url).database)
        of = SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
        if EXTERNAL_URL:
            return create(url)
        if server not in made:
            made[server] = Identifier(f"{name}_made"), create(url)
            execute(server, of.format(made[server][0], Identifier(name)))
            return made[server][1]
        template, tables = made[server]
        with connect(server) as connection:
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))
            connection.execute(of.format(Identifier(name), template))
        return replace(tables, url=url)

    return copied


def working(step: Callable[[], object]) -> AbstractContextManager[object]:
    """A worker in a thread: it repeats the step until the end of the block."""

    def work() -> Iterator[None]:
        while True:
            step()
            yield

    return at_work(work(), pause_seconds=0.02)


def figures(console: Console, name: str) -> dict[str, Any]:
    """State -> count, by `status`; None where it is unknown or there is no such state."""
    status = console.status(name)
    assert not status["problem"]
    return {state: status[state] for state in STATES}


def counts(*numbers: int | None) -> dict[str, int | None]:
    """The same, from numbers in the order of STATES."""
    return dict(zip(STATES, numbers, strict=True))


def error_group(console: Console, name: str) -> tuple[int, str]:
    """Of the only error group: its count, and a sample."""
    (group,) = console.done("errors", name, "--json").json["groups"]
    return group["count"], str(group["sample"])


def discovered(console: Console, preset: str) -> dict[str, Any]:
    """The only tables that `discover` finds, which are of this preset."""
    (found,) = console.done("discover", "--json").json["found"]
    assert found["preset"] == preset
    return dict(found)


def adopt(console: Console, preset: str, *queues: str) -> None:
    """All its jobs as the queue `jobs`, and each of these queues separately."""
    console.done("adopt", "jobs", "--preset", preset)
    for queue in queues:
        console.done("adopt", queue, "--preset", preset, "--queue", queue)


def listed(console: Console, name: str, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = console.done("messages", name, "--json", *words).json["messages"]
    return found


def planned(console: Console, *words: str) -> dict[str, Any]:
    plan: dict[str, Any] = console.done(*words, "--dry-run", "--json").json["plan"]
    return plan


def findings(console: Console, name: str) -> dict[str, dict[str, Any]]:
    """Findings of the doctor, by code."""
    (examined,) = console("doctor", name, "--idle-for", "0s", "--json").json["queues"]
    assert not [words for words in examined["unseen"] if "pause" in words or "tried again" in words]
    return {one["code"]: one for one in examined["findings"]}
