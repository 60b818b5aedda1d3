"""Shared by the tests of the presets: a library's tables, and what the console shows of them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tests.cli.calls import Console
from tests.contract.traffic import at_work
from tests.servers import connect, run_in

STATES = ("ready", "scheduled", "claimed", "stuck", "errors", "done")


@dataclass(frozen=True)
class Tables:
    """Tables of a library, in one schema."""

    url: str
    schema: str

    def create(self, script: str) -> None:
        with connect(self.url) as connection:
            connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{self.schema}"'.encode())
        self.run(script)

    def run(self, script: str) -> None:
        """Run SQL with the schema first on the search path."""
        run_in(self.url, self.schema, script)

    def rows(self, query: str | bytes, given: Any = None) -> list[Any]:
        with connect(self.url) as connection:
            connection.execute(f'SET search_path = "{self.schema}", public'.encode())
            sent = query.encode() if isinstance(query, str) else query
            cursor = connection.execute(sent, given)
            return cursor.fetchall() if cursor.description is not None else []


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
