"""How fast archive is, beside the same data without Spark, in one run.

    python -m tests.pipeline.speed [--rows 2000000] [--bytes 300] [--master 'local[*]']
    python -m tests.pipeline.speed --cluster [--rows 2000000]    local[2] beside two workers
    python -m tests.pipeline.speed rollup | verify [ROWS]

On an embedded server of its own, with durable commits. Not a test: these times are the machine's
as much as ours.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg.sql import SQL, Identifier

from console.actions.install import install
from console.catalog import Queue, installed_queue
from console.designs import design
from console.engines import Database, Timeouts, open_database
from console.engines.embedded import EmbeddedServer
from console.pipeline.archive import export, files, job
from console.pipeline.archive.files import Writer, pq
from console.pipeline.archive.plan import ArchiveRequest
from console.pipeline.lake import Lake
from console.pipeline.spark import Item, LocalTasks, Tasks, tasks
from tests.pipeline import speed_tables
from tests.pipeline.cluster import Cluster
from tests.servers import connect, fresh_database

SETTINGS = {"max_wal_size": "8GB", "shared_buffers": "512MB"}
PATIENT = Timeouts(statement_seconds=86400.0, lock_seconds=60.0)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--bytes", type=int, default=300)
    parser.add_argument("--master", default="local[*]")
    parser.add_argument(
        "--cluster", action="store_true", help="archive by local[2], then by a cluster of its own"
    )
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.cluster:
        beside(["--rows", str(asked.rows), "--bytes", str(asked.bytes)])
        return
    with (
        EmbeddedServer.start(settings=SETTINGS) as server,
        fresh_database(server.url) as url,
        tempfile.TemporaryDirectory(prefix="dbq-speed-") as folder,
    ):
        database = open_database(url, timeouts=PATIENT)
        work = alone if asked.alone else measure
        work(database, Path(folder), asked.rows, asked.bytes, asked.master)
        database.close()


def alone(database: Database, folder: Path, count: int, size: int, master: str) -> None:
    """The archive and nothing beside it, with tasks for two cores."""
    queue, lake = filled(database, count, size), Lake(folder / "lake")
    offered = job.preview(database, queue, lake, ArchiveRequest(retention=0.0), at_once=2)
    where = master.partition(":")[0]
    with watched() as peak:
        began = time.monotonic()
        with tasks("speed", master) as spreading:
            warm(spreading, export.url_for_tasks(database))
            line(f"{where}: start", 0, time.monotonic() - began, peak)
            archive(database, offered, lake, spreading, peak, f"{where}: ")


def beside(words: Sequence[str]) -> None:
    """On two cores of one process, then on a cluster of two workers with a core each. Both in a
    process of its own: a JVM that has worked already is quicker, and keeps its settings."""
    command = [sys.executable, "-m", "tests.pipeline.speed", "--alone", *words, "--master"]
    subprocess.run([*command, "local[2]"], check=True)
    with (
        tempfile.TemporaryDirectory(prefix="dbq-speed-") as folder,
        Cluster(Path(folder), {}) as cluster,
    ):
        subprocess.run([*command, cluster.url], check=True, env=cluster.environment)


def measure(database: Database, folder: Path, count: int, size: int, master: str) -> None:
    """Each way once; the archive, which deletes, last."""
    queue = filled(database, count, size)
    url = export.url_for_tasks(database)
    print(f"{count:,} rows with {size:,} bytes of payload, {psutil.cpu_count()} cores", flush=True)
    with watched() as peak:
        report_speed("binary COPY to nowhere", count, lambda: copied(url, queue), peak)
        report_speed("ADBC to Arrow batches", count, lambda: read(url, queue), peak)
        report_speed(
            "ADBC + pyarrow to Parquet", count, lambda: written(url, queue, folder / "p"), peak
        )
        report_speed(
            "  the same, with digests", count, lambda: summed(url, queue, folder / "s"), peak
        )
    with watched() as peak:
        began = time.monotonic()
        offered = job.preview(database, queue, Lake(folder / "lake"), ArchiveRequest(retention=0.0))
        line("plan", count, time.monotonic() - began, peak)
        began = time.monotonic()
        with tasks("speed", master) as spreading:
            line("start of Spark", 0, time.monotonic() - began, peak)
            report_speed("first tasks of Spark", 0, lambda: warm(spreading, url), peak)
            archive(database, offered, Lake(folder / "lake"), spreading, peak)
    again = filled(database, min(count // 2, 200_000), size)
    with watched() as peak:
        print("the same tasks without Spark, in one process", flush=True)
        offered = job.preview(database, again, Lake(folder / "lake"), ArchiveRequest(retention=0.0))
        archive(database, offered, Lake(folder / "lake"), LocalTasks(), peak)


def connected(item: Item) -> dict[str, Any]:
    """A task that only brings a worker up, with all modules that archive's tasks import."""
    with export.reader("postgresql", item["url"]):
        return {}


def warm(spreading: Tasks, url: str) -> None:
    """What the first job of a session costs whatever it does: classes, workers, their modules."""
    spreading.run(connected, [{"url": url} for _ in range(4)])


def archive(
    database: Database,
    offered: job.ArchivePreview,
    lake: Lake,
    tasks: Tasks,
    peak: Callable[[], str],
    where: str = "archive: ",
) -> None:
    """A line for each phase."""
    (done,) = job.archive(database, offered, lake, tasks)
    assert done.deleted == offered.rows
    for phase, seconds in done.seconds.items():
        line(f"{where}{phase}", done.rows[phase], seconds, peak)
    line(f"{where}all of it", done.deleted, sum(done.seconds.values()), peak)
    print(f"  {done.files} files, {done.size / 1e6:,.0f} MB of {done.bytes / 1e6:,.0f} MB")


def filled(database: Database, count: int, size: int) -> Queue:
    """A queue in whose archive so many rows lie, as pops would have left them."""
    of = design("fifo")
    options = of.complete_options({"archive_at_pop": "on"}, "postgresql")
    queue = installed_queue("public", f"speed {count}", of, options)
    install(database, queue)
    with connect(database.url.render_as_string(hide_password=False)) as connection:
        insert = SQL(
            "INSERT INTO {} "
            "(id, payload, pushed_at, done_at, state, attempts, reason, archived_at) "
            "SELECT n, substr(repeat(md5(CAST(n AS text)), {}), 1, {}), now(), now(), 'done', 1, "
            "'pop', now() - n * interval '10 milliseconds' FROM generate_series(1, {}) AS n"
        ).format(table(queue), size // 32 + 1, size, count)
        connection.execute(insert)
        connection.execute(SQL("VACUUM ANALYZE {}").format(table(queue)))
    return queue


def table(queue: Queue) -> Identifier:
    """The archive's."""
    return Identifier(queue.schema, f"{queue.name}_archive")


def copied(url: str, queue: Queue) -> None:
    """What the server can send at most."""
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        whole = SQL("COPY {} TO STDOUT (FORMAT binary)").format(table(queue))
        with cursor.copy(whole) as data:
            for _ in data:
                pass


def query(queue: Queue) -> str:
    """The same columns as the archive's."""
    return (
        "SELECT archive_id, CAST(id AS text) AS id, payload, pushed_at, done_at, state, attempts, "
        "error, reason, CAST(NULL AS text) AS title, CAST(NULL AS timestamptz) AS due_at, "
        f"archived_at FROM {table(queue).as_string()}"
    )


def read(url: str, queue: Queue) -> None:
    """Into memory, and away."""
    with export.reader("postgresql", url) as source:
        for _ in source.batches(query(queue)):
            pass


def written(url: str, queue: Queue, path: Path) -> None:
    """One process, one file; without checksums."""
    schema = files.schema("text")
    with (
        export.reader("postgresql", url) as source,
        pq.ParquetWriter(path, schema, compression="zstd", compression_level=1) as writer,
    ):
        for batch in source.batches(query(queue)):
            writer.write_batch(files.conform(batch, "text"))


def summed(url: str, queue: Queue, path: Path) -> None:
    """As a task does it: with the digest of every column."""
    with (
        export.reader("postgresql", url) as source,
        path.open("wb") as file,
        Writer(file, "text") as writer,
    ):
        for batch in source.batches(query(queue)):
            writer.write(files.conform(batch, "text"))


def report_speed(what: str, count: int, work: Callable[[], None], peak: Callable[[], str]) -> None:
    """Do it, with its line."""
    began = time.monotonic()
    work()
    line(what, count, time.monotonic() - began, peak)


def line(what: str, count: int, seconds: float, peak: Callable[[], str]) -> None:
    """One line of the table."""
    rate = f"{count / seconds:12,.0f} rows/s" if count and seconds else " " * 19
    print(f"{what:28}{seconds:9.2f} s{rate}   {peak()}", flush=True)


@contextmanager
def watched() -> Iterator[Callable[[], str]]:
    """The most memory that this process and its children have had, but for the server's."""
    over, most = threading.Event(), {"python": 0, "java": 0}

    def look() -> None:
        while not over.wait(0.1):
            now = {"python": 0, "java": 0}
            for process in (ours := psutil.Process(), *ours.children(recursive=True)):
                try:
                    name = process.name()
                    kind = "java" if "java" in name else "python" if "python" in name else ""
                    if kind and "embedded" not in " ".join(process.cmdline()):
                        now[kind] += process.memory_full_info().pss
                except psutil.Error:
                    continue
            for kind, size in now.items():
                most[kind] = max(most[kind], size)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield lambda: f"{most['python'] / 1e6:,.0f} MB python, {most['java'] / 1e6:,.0f} MB java"
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    if sys.argv[1:2] in (["rollup"], ["verify"]):
        speed_tables.main()
    else:
        main()
