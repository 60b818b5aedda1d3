"""Verbs on many messages beside one plain SQL statement that does the same, and many databases.

    python -m tests.tools.speed large doctor --rows 1000000

For each verb a queue is filled, the plain statement runs on it, it is filled again, and the verb
runs: batches, checks and ledger included. Time and CPU are those of this process and the server's.
"""

import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from console.actions import execute
from console.actions.archive import Archive, Purge
from console.actions.export import PAYLOAD_BYTES, ExportRequest, export
from console.actions.install import install
from console.actions.message_action import MessageAction
from console.actions.requeue import Release, Requeue
from console.actions.reschedule import Reschedule
from console.actions.restore import Restore
from console.catalog import Queue, installed_queue
from console.designs import design
from console.engines import Database, Timeouts, open_database
from console.features.demo.embedded import EmbeddedServer
from console.monitor.filters import NOTHING
from console.monitor.scan_query import MessageSource
from console.plan import Plan
from tests.cli.calls import COMMAND
from tests.servers import connect, fresh_database
from tests.tools.filling import fill
from tests.tui.fleet import NAME, fleet_on

PATIENT = Timeouts(statement_seconds=86400.0, lock_seconds=60.0)
SETTINGS = {"max_wal_size": "8GB", "shared_buffers": "1GB"}
PAYLOAD = "x" * 100
INTO_ARCHIVE = (
    "INSERT INTO deep_archive (id, payload, pushed_at, state, attempts, reason, action_id"
)


@dataclass(frozen=True)
class Case:
    design: str
    state: str
    action: Callable[[MessageSource], MessageAction]
    plain: str
    """The statement that does the same."""
    purged: bool = False
    """Whether the messages are in the archive."""


CASES: Mapping[str, Case] = {
    "requeue": Case(
        "claim",
        "errors",
        Requeue,
        "UPDATE deep SET errors = NULL, done_at = NULL, claimed_by = NULL, "
        "processing_started_at = NULL WHERE errors IS NOT NULL",
    ),
    "release": Case(
        "status",
        "claimed",
        partial(Release, stuck_after_seconds=0.0, unknown=True),
        "UPDATE deep SET status = 0, claimed_at = NULL, claimed_by = NULL WHERE status = 1",
    ),
    "archive": Case(
        "status",
        "done",
        Archive,
        f"WITH gone AS (DELETE FROM deep WHERE status = 2 RETURNING *) {INTO_ARCHIVE}, title, "
        "claimed_at, claimed_by, done_at, error) SELECT id, text_data, queue_date_time, 'done', "
        "attempts, 'archive', 1, title, claimed_at, claimed_by, done_at, errors FROM gone",
    ),
    "purge": Case(
        "fifo",
        "ready",
        Purge,
        f"WITH gone AS (DELETE FROM deep RETURNING *) {INTO_ARCHIVE}) "
        "SELECT id, payload, pushed_at, 'ready', 0, 'purge', 1 FROM gone",
    ),
    "reschedule": Case(
        "pending",
        "scheduled",
        partial(Reschedule, in_seconds=3600.0),
        "UPDATE deep SET due_time = now() + interval '1 hour'",
    ),
    "restore": Case(
        "claim",
        "errors",
        Restore,
        "WITH gone AS (DELETE FROM deep_archive RETURNING *) INSERT INTO deep (id, payload, "
        "created_at, attempts, errors, processing_started_at, claimed_by, done_at) SELECT id, "
        "payload, pushed_at, attempts, error, claimed_at, claimed_by, done_at FROM gone",
        purged=True,
    ),
}


@dataclass(frozen=True)
class Spent:
    seconds: float
    server: float
    """CPU seconds of the server's processes."""
    client: float


@dataclass(frozen=True)
class Compared:
    verb: str
    rows: int
    plain: Spent
    plan: Spent
    run: Spent

    @property
    def ratio(self) -> float:
        """The verb's rows a second beside the plain statement's; 0.5: half as many."""
        return self.plain.seconds / self.run.seconds

    @property
    def cpu_ratio(self) -> float:
        return self.plain.server / (self.run.server + self.run.client)

    @property
    def client_share(self) -> float:
        """Of the verb's time, with its plan."""
        return (self.run.client + self.plan.client) / (self.run.seconds + self.plan.seconds)


def compare(rows: int) -> Iterator[Compared]:
    with EmbeddedServer.start(settings=SETTINGS) as server:
        for verb, case in CASES.items():
            with _installed(server.url, case.design) as (database, url, queue):
                yield _compare(database, url, queue, verb, rows)
        with _installed(server.url, "fifo") as (database, url, queue):
            yield _compare_export(database, url, queue, rows)


@contextmanager
def _installed(server: str, name: str) -> Iterator[tuple[Database, str, Queue]]:
    """A database with an empty queue of that design, and its URL."""
    of = design(name)
    queue = installed_queue("public", "deep", of, of.complete_options({}, "postgresql"))
    with fresh_database(server) as url, closing(open_database(url, timeouts=PATIENT)) as database:
        install(database, queue)
        yield database, url, queue


def _compare(database: Database, url: str, queue: Queue, verb: str, rows: int) -> Compared:
    case = CASES[verb]
    _refill(url, queue, case, rows)
    with connect(url) as connection, _spending() as plain:
        connection.execute("SET search_path = public")
        assert connection.execute(case.plain.encode()).rowcount == rows
    _refill(url, queue, case, rows)
    with database.transaction("read the queue", read_only=True) as session:
        source = MessageSource.of(session, queue)
    plans: list[Plan] = []
    with _spending() as planned:
        plans.append(execute.plan(database, case.action(source)))
    with _spending() as run:
        assert plans[0].run_to_end().done == rows
    return Compared(verb, rows, plain[0], planned[0], run[0])


def _compare_export(database: Database, url: str, queue: Queue, rows: int) -> Compared:
    """JSON Lines with payloads, at any rate, beside a COPY of the same as JSON into a file."""
    statement = "COPY (SELECT row_to_json(m) FROM deep AS m ORDER BY m.id) TO STDOUT"
    with connect(url) as connection, TemporaryDirectory() as folder:
        fill(connection, queue, {"ready": rows}, PAYLOAD)
        connection.execute("VACUUM ANALYZE")
        with (
            Path(folder, "plain").open("wb") as file,
            connection.cursor() as cursor,
            _spending() as plain,
            cursor.copy(statement) as lines,
        ):
            file.writelines(lines)
        path = Path(folder, "export.jsonl")
        request = ExportRequest(queue, NOTHING, path, PAYLOAD_BYTES, rate=float(rows))
        with _spending() as run:
            assert export(database, request).progress.messages == rows
    return Compared("export", rows, plain[0], Spent(0.0, 0.0, 0.0), run[0])


def _refill(url: str, queue: Queue, case: Case, rows: int) -> None:
    with connect(url) as connection:
        connection.execute("TRUNCATE deep, deep_archive")
        fill(connection, queue, {case.state: rows}, PAYLOAD)
        if case.purged:
            connection.execute(
                f"WITH gone AS (DELETE FROM deep RETURNING *) {INTO_ARCHIVE}, claimed_at, "
                "claimed_by, done_at, error) SELECT id, payload, created_at, 'error', attempts, "
                "'purge', 1, processing_started_at, claimed_by, done_at, errors FROM gone".encode()
            )
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


@contextmanager
def _spending() -> Iterator[list[Spent]]:
    """What the block has taken, once it is over."""
    spent: list[Spent] = []
    began, server, client = time.perf_counter(), _server_cpu(), time.process_time()
    yield spent
    spent.append(
        Spent(time.perf_counter() - began, _server_cpu() - server, time.process_time() - client)
    )


def _server_cpu() -> float:
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # its parent has its times, too
            if "postgres" in process.name():
                total += sum(process.cpu_times()[:4])
    return total


def doctor_of_fleet(databases: int, queues: int) -> Spent:
    """`doctor --fleet`, with a message in each queue."""
    settings = {"fsync": "off", "max_connections": "300"}
    with (
        EmbeddedServer.start(settings=settings) as server,
        TemporaryDirectory() as folder,
        fleet_on([server.url], Path(folder), databases, queues) as fleet,
    ):
        for index in range(databases):
            fleet.push(index)
        environment = {**os.environ, **fleet.environment, "XDG_STATE_HOME": folder}
        began, before_server = time.perf_counter(), _server_cpu()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [*COMMAND, "doctor", "--fleet", NAME, "--json"]
        subprocess.run(command, env=environment, check=False, stdout=subprocess.DEVNULL)
        took = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Spent(took, _server_cpu() - before_server, sum(after[:2]) - sum(before[:2]))
