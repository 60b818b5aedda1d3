"""DDL that waits for an old transaction stops everybody: its root and the stopped are named."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

import psycopg
import pytest

from console.doctor.diagnose import diagnose
from console.engines import open_database
from console.monitor.limits import Severity
from console.monitor.sampler import Sampler
from console.tui.findings import queue_findings
from tests.cli.calls import Console
from tests.servers import connect, value, wait_until

WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'"


@dataclass
class Locked:
    url: str
    root: int
    ddl: int


@pytest.fixture
def locked(database_url: str) -> Iterator[Locked]:
    """The queue `orders`: a SELECT in an open transaction, an ALTER TABLE, and a push behind it."""
    url = database_url
    Console(url).done("install", "fifo", "orders")
    with (
        closing(connect(url)) as root,
        closing(connect(url)) as ddl,
        closing(connect(url)) as push,
    ):
        root.execute("BEGIN")
        root.execute("SELECT count(*) FROM orders")
        with (
            waiting(ddl, "ALTER TABLE orders ADD COLUMN note text"),
            at_least(url, 1),
            waiting(push, "SELECT orders_push('x')"),
            at_least(url, 2),
        ):
            yield Locked(url, root.info.backend_pid, ddl.info.backend_pid)
            with suppress(psycopg.OperationalError):  # a test may have ended it
                root.execute("ROLLBACK")


@contextmanager
def waiting(connection: psycopg.Connection[tuple[object, ...]], text: str) -> Iterator[None]:
    thread = threading.Thread(target=connection.execute, args=(text,))
    thread.start()
    yield
    thread.join()


@contextmanager
def at_least(url: str, waiters: int) -> Iterator[None]:
    wait_until(lambda: int(str(value(url, WAITING))) >= waiters, "they wait")
    yield


def test_the_root_and_whom_it_stops_are_named_everywhere(locked: Locked) -> None:
    root, ddl = f"session {locked.root}", f"session {locked.ddl}"
    console = Console(locked.url)
    with closing(open_database(locked.url)) as database:
        (seen,) = Sampler(database).sample().queues
        assert seen.problem.startswith(root)
        assert f"stops {ddl}" in seen.problem
        assert "1 session behind it" in seen.problem
        (found,) = diagnose(database, patience_seconds=0.1)
        (finding,) = [one for one in found.findings if one.code.name == "table_locked"]
        assert finding.summary.startswith(root)
        assert ddl in str(finding.evidence["stopped"])
        assert found.severity is Severity.CRITICAL
        views = queue_findings(("c", "public", "orders"), seen, (), found)
        view = views[0]
        assert "problem" not in [one.code for one in views]
        assert (view.code, view.finding) == ("table_locked", finding)
        assert finding.repair is not None
        assert finding.repair.command.startswith(f"dbq-console end-session orders {locked.root}")
    for verb in ("status", "check", "doctor"):
        answer = console(verb, "orders")
        assert root in answer.text + answer.err, verb
        assert ddl in answer.text + answer.err, verb


def test_ending_the_root_frees_everybody(locked: Locked) -> None:
    with closing(open_database(locked.url)) as database:
        (found,) = diagnose(database, patience_seconds=0.1)
        (finding,) = [one for one in found.findings if one.code.name == "table_locked"]
        assert finding.repair is not None
        finding.repair.run(database)
        wait_until(lambda: value(locked.url, WAITING) == 0, "nobody waits")
        (found,) = diagnose(database, patience_seconds=0.1)
        assert not [one for one in found.findings if one.code.name == "table_locked"]
