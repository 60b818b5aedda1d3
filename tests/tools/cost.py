"""The cost of one monitoring sample: pages and CPU milliseconds, by design and depth.

    python -m tests.tools.cost --rows 10000 --rows 1000000 [--design fifo ...]
    python -m tests.tools.cost --queues 200

Runs on its own embedded server. Ten million rows need 10 GB of disk and some minutes each. The
tests compare pages. Times are measured only here, as they depend on the machine: the CPU of the
client and of its server process (Linux).
"""

import argparse
import os
import subprocess
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
from console.features.demo.embedded import EmbeddedServer
from console.monitor.memory import Memory
from console.monitor.sample import SAMPLING_TIMEOUTS, take_sample
from console.monitor.snapshot import snapshot
from tests.cli.calls import COMMAND
from tests.contract.plans import Recorder
from tests.servers import connect, fresh_database
from tests.tools.filling import fill

DESIGNS = designs_on("postgresql")
SAMPLES = 101
PATIENT = Timeouts(statement_seconds=86400.0, lock_seconds=60.0)
SETTINGS = {"fsync": "off", "max_wal_size": "8GB", "shared_buffers": "1GB"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, action="append", default=[])
    parser.add_argument("--design", action="append", choices=list(DESIGNS), default=[])
    parser.add_argument("--queues", type=int, default=0)
    arguments = parser.parse_args()
    with EmbeddedServer.start(settings=SETTINGS) as server:
        if arguments.queues:
            measure_many(server.url, arguments.queues)
        if arguments.rows:
            measure_depths(server.url, arguments.design or list(DESIGNS), arguments.rows)


def measure_depths(server_url: str, designs: Sequence[str], depths: Sequence[int]) -> None:
    """A line per design and depth: the first sample, and later ones."""
    print(
        f"{'design':8} {'ready':>11} {'counted':>12} {'pages':>6} {'ms':>7}  {'then':>5} {'ms':>6}"
    )
    for design in designs:
        for depth in depths:
            with fresh_database(server_url) as url:
                queue = create_queue(url, design, depth)
                print(f"{design:8} {depth:11,} {measure(url, queue)}", flush=True)


def create_queue(url: str, name: str, depth: int) -> Queue:
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


def measure(url: str, queue: Queue) -> str:
    """Pages and times of samples without a memory, and with one."""
    with closing(open_database(url, timeouts=SAMPLING_TIMEOUTS)) as database:
        first_snapshot = snapshot(take_sample(database, only=[queue]).queues[0], "")
        mark = "≈" if "ready" in first_snapshot.estimated else ""
        process = server_process(database)
        first = milliseconds(lambda: take_sample(database, only=[queue]), process)
        memory = Memory()
        take_sample(database, only=[queue], memory=memory)
        later = milliseconds(lambda: take_sample(database, only=[queue], memory=memory), process)
    with page_counter(url) as sample:
        sample(queue, Memory())
        memory = Memory()
        pages, then = sample(queue, memory), sample(queue, memory)
    ready = "?" if first_snapshot.ready is None else f"{mark}{first_snapshot.ready:,}"
    return f"{ready:>12} {pages:6} {first:7.1f}  {then:5} {later:6.1f}"


def milliseconds(work: Callable[[], object], process: int) -> float:
    """The mean CPU time of a call, of this process and of the server's."""
    started = time.process_time() + cpu_seconds(process)
    for _ in range(SAMPLES):
        work()
    return (time.process_time() + cpu_seconds(process) - started) / SAMPLES * 1000


def cpu_seconds(process: int) -> float:
    """The CPU seconds of a process so far."""
    times = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")


def server_process(database: Database) -> int:
    """The process that serves the pool's only connection."""
    with database.autocommit("ask") as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        return driver.info.backend_pid


@contextmanager
def page_counter(url: str) -> Iterator[Callable[[Queue, Memory], int]]:
    """A function that takes a sample and returns the pages that its statements read."""
    with closing(open_database(url, timeouts=PATIENT)) as database:
        with database.autocommit("record") as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, psycopg.Connection)
            recorder = Recorder(driver)

        def sample(queue: Queue, memory: Memory) -> int:
            recorder.take()
            take_sample(database, only=[queue], memory=memory)
            return sum(statement.buffers for statement in recorder.take())

        yield sample


def measure_many(server_url: str, count: int) -> None:
    """One sample of many queues, a SELECT 1 for comparison, and `dbq-console status`."""
    with fresh_database(server_url) as url:
        with closing(open_database(url, timeouts=PATIENT)) as database:
            for number in range(count):
                install(database, some_queue(number))
        with closing(open_database(url, timeouts=SAMPLING_TIMEOUTS)) as database:
            memory = Memory()
            statements = count_statements(lambda: take_sample(database))
            process = server_process(database)
            one_sample = milliseconds(lambda: take_sample(database), process)
            sampler = milliseconds(lambda: take_sample(database, memory=memory), process)
            select_1 = milliseconds(lambda: select_one(database), process)
        begun = time.perf_counter()
        command = [*COMMAND, "status", "--json", "--url", url]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lasted = time.perf_counter() - begun
    print(f"{count} queues: {statements} statements")
    print(
        f"SELECT 1: {select_1:.2f} ms; a sample: {one_sample:.1f} ms, a sampler's: {sampler:.1f} ms"
    )
    print(f"dbq-console status --json, as a process of its own: {lasted:.2f} s")


def some_queue(number: int) -> Queue:
    design = list(DESIGNS.values())[number % len(DESIGNS)]
    given = {"size": "300"} if design.name == "ring" else {}
    options = design.complete_options(given, "postgresql")
    return installed_queue("public", f"queue {number}", design, options)


def select_one(database: Database) -> None:
    with database.autocommit("ask") as connection:
        connection.execute(text("SELECT 1"))


def count_statements(work: Callable[[], object]) -> int:
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
