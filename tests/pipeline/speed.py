"""The speed of archive, compared with the same data without Spark in one run.

    python -m tests.pipeline.speed [--rows 2000000] [--bytes 300] [--master 'local[*]']
    python -m tests.pipeline.speed --cluster [--rows 2000000]    local[2], then two workers
    python -m tests.pipeline.speed rollup | verify [ROWS]

On a separate embedded server with durable commits. Not a test: these times depend on the machine
as much as on the code.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import psycopg
import pyarrow as pa
from psycopg.sql import SQL, Identifier

from console.catalog import Queue
from console.designs import Order
from console.engines import Database, Timeouts, open_database
from console.features.demo.embedded import EmbeddedServer
from console.features.lake import spark as spark_jobs
from console.features.lake.archive import export, files, job
from console.features.lake.archive.files import Writer, pq
from console.features.lake.archive.plan import ArchiveRequest
from console.features.lake.lake import Lake
from console.features.lake.rollup import job as rollups
from console.features.lake.spark import Item, Tasks, tasks
from tests.pipeline.recorded import BEGIN, all_rows, fill
from tests.servers import connect, fresh_database
from tests.servers.cluster import Cluster
from tests.tools.local_tasks import LocalTasks
from tests.tools.queues import install_queue

SETTINGS = {"max_wal_size": "8GB", "shared_buffers": "512MB"}
PATIENT = Timeouts(statement_seconds=86400.0, lock_seconds=60.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--bytes", type=int, default=300)
    parser.add_argument("--master", default="local[*]")
    parser.add_argument(
        "--cluster", action="store_true", help="archive by local[2], then by a cluster of its own"
    )
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cluster:
        compare_with_cluster(["--rows", str(options.rows), "--bytes", str(options.bytes)])
        return
    with (
        EmbeddedServer.start(settings=SETTINGS) as server,
        fresh_database(server.url) as url,
        tempfile.TemporaryDirectory(prefix="dbq-speed-") as folder,
    ):
        database = open_database(url, timeouts=PATIENT)
        work = archive_only if options.alone else measure
        work(database, Path(folder), options.rows, options.bytes, options.master)
        database.close()


def archive_only(database: Database, folder: Path, count: int, size: int, master: str) -> None:
    queue, lake = filled(database, count, size), Lake(folder / "lake")
    offered = job.find(database, queue, lake, ArchiveRequest(retention=0.0))
    where = master.partition(":")[0]
    with peak_memory() as peak:
        began = time.monotonic()
        with tasks("speed", master) as spark_tasks:
            warm(spark_tasks, export.url_for_tasks(database))
            line(f"{where}: start", 0, time.monotonic() - began, peak)
            archive(database, offered, lake, spark_tasks, peak, f"{where}: ")


def compare_with_cluster(words: Sequence[str]) -> None:
    """On two cores of one process, then on a cluster of two workers with a core each. Each in a
    separate process: a JVM that has been used is faster, and keeps its settings."""
    command = [sys.executable, "-m", "tests.pipeline.speed", "--alone", *words, "--master"]
    subprocess.run([*command, "local[2]"], check=True)
    with (
        tempfile.TemporaryDirectory(prefix="dbq-speed-") as folder,
        Cluster(Path(folder), {}) as cluster,
    ):
        subprocess.run([*command, cluster.url], check=True, env=cluster.environment)


def measure(database: Database, folder: Path, count: int, size: int, master: str) -> None:
    """Each method once; archive last, because it deletes."""
    queue = filled(database, count, size)
    url = export.url_for_tasks(database)
    print(f"{count:,} rows with {size:,} bytes of payload, {psutil.cpu_count()} cores", flush=True)
    with peak_memory() as peak:
        report_speed("binary COPY to nowhere", count, lambda: copied(url, queue), peak)
        report_speed("ADBC to Arrow batches", count, lambda: read(url, queue), peak)
        report_speed(
            "ADBC + pyarrow to Parquet", count, lambda: written(url, queue, folder / "p"), peak
        )
        report_speed(
            "  the same, with digests", count, lambda: summed(url, queue, folder / "s"), peak
        )
    with peak_memory() as peak:
        began = time.monotonic()
        offered = job.find(database, queue, Lake(folder / "lake"), ArchiveRequest(retention=0.0))
        line("plan", count, time.monotonic() - began, peak)
        began = time.monotonic()
        with tasks("speed", master) as spark_tasks:
            line("start of Spark", 0, time.monotonic() - began, peak)
            report_speed("first tasks of Spark", 0, lambda: warm(spark_tasks, url), peak)
            archive(database, offered, Lake(folder / "lake"), spark_tasks, peak)
    again = filled(database, min(count // 2, 200_000), size)
    with peak_memory() as peak:
        print("the same tasks without Spark, in one process", flush=True)
        offered = job.find(database, again, Lake(folder / "lake"), ArchiveRequest(retention=0.0))
        archive(database, offered, Lake(folder / "lake"), LocalTasks(), peak)


def start_worker(item: Item) -> dict[str, Any]:
    """A task that only starts a worker, with all modules that archive's tasks import."""
    with export.reader("postgresql", item["url"]):
        return {}


def warm(spark_tasks: Tasks, url: str) -> None:
    """The fixed cost of the first job of a session: classes, workers, their modules."""
    spark_tasks.run(start_worker, [{"url": url} for _ in range(4)])


def archive(
    database: Database,
    offered: job.RowsToArchive,
    lake: Lake,
    tasks: Tasks,
    peak: Callable[[], str],
    where: str = "archive: ",
) -> None:
    (done,) = job.archive(database, offered, lake, tasks, cores=os.cpu_count() or 1)
    assert done.deleted == offered.rows
    for phase, seconds in done.seconds.items():
        line(f"{where}{phase}", done.rows[phase], seconds, peak)
    line(f"{where}all of it", done.deleted, sum(done.seconds.values()), peak)
    print(f"  {done.files} files, {done.size / 1e6:,.0f} MB of {done.bytes / 1e6:,.0f} MB")


def filled(database: Database, count: int, size: int) -> Queue:
    """A queue with this many rows in its archive, as pops would have left them."""
    queue = install_queue(database, f"speed {count}", "fifo", archive_at_pop="on")
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
    return Identifier(queue.schema, f"{queue.name}_archive")


def copied(url: str, queue: Queue) -> None:
    """The most that the server can send."""
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        statement = SQL("COPY {} TO STDOUT (FORMAT binary)").format(table(queue))
        with cursor.copy(statement) as data:
            for _ in data:
                pass


def query(queue: Queue) -> str:
    """The same columns as the archive's."""
    return (
        "SELECT archive_id, CAST(id AS text) AS id, payload, pushed_at, done_at, state, attempts, "
        "error, reason, claimed_at, claimed_by, action_id, "
        f"archived_at FROM {table(queue).as_string()}"
    )


def read(url: str, queue: Queue) -> None:
    """Into memory, then discarded."""
    with export.reader("postgresql", url) as source:
        for _ in source.batches(query(queue)):
            pass


def written(url: str, queue: Queue, path: Path) -> None:
    """One process, one file; without checksums."""
    with (
        export.reader("postgresql", url) as source,
        pq.ParquetWriter(path, files.SCHEMA, compression="zstd", compression_level=1) as writer,
    ):
        for batch in source.batches(query(queue)):
            writer.write_batch(files.conform(batch, "text"))


def summed(url: str, queue: Queue, path: Path) -> None:
    """As a task does it: with the digest of every column."""
    with (
        export.reader("postgresql", url) as source,
        path.open("wb") as file,
        Writer(file) as writer,
    ):
        for batch in source.batches(query(queue)):
            writer.write(files.conform(batch, "text"))


def report_speed(what: str, count: int, work: Callable[[], None], peak: Callable[[], str]) -> None:
    began = time.monotonic()
    work()
    line(what, count, time.monotonic() - began, peak)


def line(what: str, count: int, seconds: float, peak: Callable[[], str]) -> None:
    rate = f"{count / seconds:12,.0f} rows/s" if count and seconds else " " * 19
    print(f"{what:28}{seconds:9.2f} s{rate}   {peak()}", flush=True)


@contextmanager
def peak_memory() -> Iterator[Callable[[], str]]:
    """The peak memory of this process and its children, except for the server's."""
    over, most = threading.Event(), {"python": 0, "java": 0}

    def poll() -> None:
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

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield lambda: f"{most['python'] / 1e6:,.0f} MB python, {most['java'] / 1e6:,.0f} MB java"
    finally:
        over.set()
        thread.join()


# -- rollup and verify

OF_TABLES = {"spark.driver.memory": "3g"}


def print_json(**what: object) -> None:
    print(json.dumps({**what, "load": os.getloadavg()[0]}), flush=True)


def digest(lake: Lake) -> str:
    """A digest of all rows of the rollups: equal only if every row is."""
    return hashlib.sha256(repr(sorted(all_rows(lake).items())).encode()).hexdigest()[:16]


def rollup(samples: int = 2_000_000) -> None:
    """Roll up a week of a recording: all of it, all of it again, one day again."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        step = 7 * 86_400 * 20 / samples
        made = fill(root / "recordings", days=7, queues=20, step_seconds=round(step))
        last = (BEGIN + timedelta(days=6)).date()
        with spark_jobs.session("speed", "local[2]", OF_TABLES) as spark:
            spark.range(10).count()

            def tasks() -> AbstractContextManager[spark_jobs.Tasks]:
                return nullcontext(spark_jobs.SparkTasks(spark.sparkContext))

            for name, days in (
                ("first", None),
                ("again", rollups.Days(BEGIN.date(), last)),
                ("one day", rollups.Days(last, last)),
            ):
                lake = Lake(root / "lake")
                folders = [str(root / "recordings")]
                done = rollups.rollup(tasks, lake, folders, days)
                rows = sum(done.rows.values())
                print_json(
                    run=name,
                    samples=made,
                    read=rows,
                    seconds=round(done.seconds, 1),
                    samples_per_second=round(rows / done.seconds),
                    tables=done.tables,
                    result=digest(lake),
                )


def verify(messages: int = 5_000_000) -> None:
    """Verify logs with known faults."""
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        numbers = np.arange(messages)
        ids = pa.array(numbers).cast(pa.string())
        at = int(BEGIN.timestamp()) * 1_000_000 + numbers * 100
        pushes = {"id": ids, "number": numbers, "at": pa.array(at, pa.timestamp("us", "UTC"))}
        pq.write_table(pa.table(pushes), root / "push.parquet")
        # Ten lost, each 300,000th popped twice, some a little late.
        popped_at = at + 60_000_000
        late = random.choice(messages - 1000, 1000, replace=False)
        popped_at[late] += 5_050
        keep = np.ones(messages, bool)
        keep[np.arange(10) * 1000 + 7] = False
        twice = np.arange(0, messages, 300_000)
        order = np.concatenate([numbers[keep], twice])
        when = np.concatenate([popped_at[keep], popped_at[twice] + 1])
        pops = {
            "id": pa.array(order).cast(pa.string()),
            "at": pa.array(when, pa.timestamp("us", "UTC")),
        }
        pq.write_table(pa.table(pops), root / "pop.parquet")
        expected = {"lost": 10, "doubled": len(twice)}
        from console.features.lake import verify as verifying  # noqa: PLC0415

        with spark_jobs.session("speed", "local[2]", OF_TABLES) as spark:
            spark.range(10).count()
            began = time.monotonic()
            logs = (str(root / f"{log}.parquet") for log in ("push", "pop"))
            read = [verifying.read_log(spark, log) for log in logs]
            verify_result = verifying.verify(spark, read[0], read[1], Order.LAX)
            seconds = time.monotonic() - began
        highest = np.maximum.accumulate(order[np.lexsort((order, when))])
        overtaken = int((order[np.lexsort((order, when))] < highest).sum())
        print_json(
            rows=verify_result.pops,
            seconds=round(seconds, 1),
            rows_per_second=round(verify_result.pops / seconds),
            found={
                name: getattr(verify_result, name) for name in (*expected, "overtaken", "farthest")
            },
            expected={**expected, "overtaken": overtaken},
        )


if __name__ == "__main__":
    if sys.argv[1:2] in (["rollup"], ["verify"]):
        {"rollup": rollup, "verify": verify}[sys.argv[1]](*map(int, sys.argv[2:]))
    else:
        main()
