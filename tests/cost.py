"""What one look of the monitoring costs: pages and milliseconds of processors, by design and depth.

    python -m tests.cost --rows 10000 --rows 1000000 [--design fifo ...]
    python -m tests.cost --queues 200

Runs on an embedded server of its own. Ten million rows want 10 GB of disk and some minutes each.
The tests compare pages; times stand here, for they are the machine's as much as ours: what the
client and its server process spent (Linux).
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
from sqlalchemy import Engine, event, text

from console.actions.install import install
from console.catalog import Queue, installed_queue
from console.designs import designs_on
from console.engines import Database, Timeouts, open_database
from console.engines.embedded import EmbeddedServer
from console.monitor.memory import Memory
from console.monitor.sample import SAMPLING_TIMEOUTS, take_sample
from console.monitor.snapshot import snapshot
from tests.contract.plans import Recorder
from tests.filling import fill
from tests.servers import connect, fresh_database

DESIGNS = designs_on("postgresql")
LOOKS = 101
PATIENT = Timeouts(statement_seconds=86400.0, lock_seconds=60.0)
SETTINGS = {"fsync": "off", "max_wal_size": "8GB", "shared_buffers": "1GB"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, action="append", default=[])
    parser.add_argument("--design", action="append", choices=list(DESIGNS), default=[])
    parser.add_argument("--queues", type=int, default=0)
    asked = parser.parse_args()
    with EmbeddedServer.start(settings=SETTINGS) as server:
        if asked.queues:
            measure_many(server.url, asked.queues)
        if asked.rows:
            measure_depths(server.url, asked.design or list(DESIGNS), asked.rows)


def measure_depths(server_url: str, designs: Sequence[str], depths: Sequence[int]) -> None:
    """One line for each design and depth: of the first look, and of those after it."""
    print(f"{'design':8} {'ready':>11} {'seen':>12} {'pages':>6} {'ms':>7}  {'then':>5} {'ms':>6}")
    for design in designs:
        for depth in depths:
            with fresh_database(server_url) as url:
                queue = made(url, design, depth)
                print(f"{design:8} {depth:11,} {measured(url, queue)}", flush=True)


def made(url: str, name: str, depth: int) -> Queue:
    """A queue of that depth, vacuumed and analyzed."""
    design = DESIGNS[name]
    given = {"size": str(depth + depth // 10), "max_bytes": "16"} if name == "ring" else {}
    queue = installed_queue("public", "deep", design, design.complete_options(given, "postgresql"))
    with closing(open_database(url, timeouts=PATIENT)) as database:
        install(database, queue)
    with connect(url) as connection:
        fill(connection, queue, {"ready": depth}, "0123456789abcdef")
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")
    return queue


def measured(url: str, queue: Queue) -> str:
    """Pages and times of the first look with no memory, and of those that have one."""
    with closing(open_database(url, timeouts=SAMPLING_TIMEOUTS)) as database:
        seen = snapshot(take_sample(database, only=[queue]).queues[0], "")
        mark = "≈" if "ready" in seen.estimated else ""
        process = server_process(database)
        first = milliseconds(lambda: take_sample(database, only=[queue]), process)
        memory = Memory()
        take_sample(database, only=[queue], memory=memory)
        later = milliseconds(lambda: take_sample(database, only=[queue], memory=memory), process)
    with recording(url) as look:
        look(queue, Memory())
        memory = Memory()
        pages, then = look(queue, memory), look(queue, memory)
    ready = "?" if seen.ready is None else f"{mark}{seen.ready:,}"
    return f"{ready:>12} {pages:6} {first:7.1f}  {then:5} {later:6.1f}"


def milliseconds(work: Callable[[], object], process: int) -> float:
    """The mean of some calls, of the processors: ours, and the server process's."""
    started = time.process_time() + on_processor(process)
    for _ in range(LOOKS):
        work()
    return (time.process_time() + on_processor(process) - started) / LOOKS * 1000


def on_processor(process: int) -> float:
    """How many seconds it has run."""
    times = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")


def server_process(database: Database) -> int:
    """Which one serves the pool's one connection."""
    with database.autocommit("ask") as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        return driver.info.backend_pid


@contextmanager
def recording(url: str) -> Iterator[Callable[[Queue, Memory], int]]:
    """The pages that all statements of one look read."""
    with closing(open_database(url, timeouts=PATIENT)) as database:
        with database.autocommit("record") as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, psycopg.Connection)
            recorder = Recorder(driver)

        def look(queue: Queue, memory: Memory) -> int:
            recorder.take()
            take_sample(database, only=[queue], memory=memory)
            return sum(statement.buffers for statement in recorder.take())

        yield look


def measure_many(server_url: str, count: int) -> None:
    """One look at many queues beside a SELECT 1, and what the command line takes for it."""
    with fresh_database(server_url) as url:
        with closing(open_database(url, timeouts=PATIENT)) as database:
            for number in range(count):
                install(database, some_queue(number))
        with closing(open_database(url, timeouts=SAMPLING_TIMEOUTS)) as database:
            memory = Memory()
            statements = counted(lambda: take_sample(database))
            process = server_process(database)
            one_look = milliseconds(lambda: take_sample(database), process)
            sampler = milliseconds(lambda: take_sample(database, memory=memory), process)
            one = milliseconds(lambda: select_one(database), process)
        begun = time.perf_counter()
        command = [sys.executable, "-m", "console.cli", "status", "--json", "--url", url]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lasted = time.perf_counter() - begun
    print(f"{count} queues: {statements} statements")
    print(f"SELECT 1: {one:.2f} ms; one look: {one_look:.1f} ms, a sampler's: {sampler:.1f} ms")
    print(f"dbq-console status --json, as a process of its own: {lasted:.2f} s")


def some_queue(number: int) -> Queue:
    design = list(DESIGNS.values())[number % len(DESIGNS)]
    given = {"size": "300"} if design.name == "ring" else {}
    options = design.complete_options(given, "postgresql")
    return installed_queue("public", f"queue {number}", design, options)


def select_one(database: Database) -> None:
    with database.autocommit("ask") as connection:
        connection.execute(text("SELECT 1"))


def counted(work: Callable[[], object]) -> int:
    """How many statements are sent."""
    sent: list[str] = []

    def ran(connection: object, cursor: object, statement: str, *rest: object) -> None:
        sent.append(statement)

    work()
    event.listen(Engine, "after_cursor_execute", ran)
    try:
        work()
    finally:
        event.remove(Engine, "after_cursor_execute", ran)
    return len(sent)


if __name__ == "__main__":
    main()
