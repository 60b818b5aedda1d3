"""How fast rollup and verify are here: `python -m tests.pipeline.speed rollup | verify`."""

import hashlib
import json
import os
import sys
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from console.designs import Order
from console.pipeline import spark as spark_jobs
from console.pipeline.lake import Lake
from console.pipeline.rollup import job
from tests.pipeline.recorded import BEGIN, fill

SETTINGS = {"spark.driver.memory": "3g"}


def say(**what: object) -> None:
    """One line of figures."""
    print(json.dumps({**what, "load": os.getloadavg()[0]}), flush=True)


def digest(lake: Path, day: str = "*") -> str:
    """Of all rows of all tables: equal only where every row is."""
    whole = hashlib.sha256()
    for path in sorted((lake / "rollup").glob(f"*/*/*/date={day}/*.parquet")):
        whole.update(str(path.parent.relative_to(lake)).encode())
        table = pq.read_table(path, partitioning=None)  # type: ignore[no-untyped-call]
        whole.update(repr(table.to_pylist()).encode())
    return whole.hexdigest()[:16]


def rollup(samples: int = 2_000_000) -> None:
    """A week of a recording: all of it, all of it again, one day of it again."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        step = 7 * 86_400 * 20 / samples
        made = fill(root / "recordings", days=7, queues=20, step_seconds=round(step))
        last = (BEGIN + timedelta(days=6)).date()
        with spark_jobs.session("speed", "local[2]", SETTINGS) as spark:
            spark.range(10).count()

            def tasks() -> AbstractContextManager[spark_jobs.Tasks]:
                return nullcontext(spark_jobs.SparkTasks(spark.sparkContext))

            for name, days in (
                ("first", None),
                ("again", job.Days(BEGIN.date(), last)),
                ("one day", job.Days(last, last)),
            ):
                lake = Lake(root / "lake")
                places = [str(root / "recordings")]
                done = job.rollup(tasks, lake, places, days)
                rows = sum(done.rows.values())
                say(
                    run=name,
                    samples=made,
                    read=rows,
                    seconds=round(done.seconds, 1),
                    samples_per_second=round(rows / done.seconds),
                    tables=done.tables,
                    result=digest(root / "lake"),
                )


def verify(messages: int = 5_000_000) -> None:
    """Logs with known faults."""
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        numbers = np.arange(messages)
        ids = pa.array(numbers).cast(pa.string())
        at = int(BEGIN.timestamp()) * 1_000_000 + numbers * 100
        pushes = {"id": ids, "number": numbers, "at": pa.array(at, pa.timestamp("us", "UTC"))}
        pq.write_table(pa.table(pushes), root / "push.parquet")  # type: ignore[no-untyped-call]
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
        pq.write_table(pa.table(pops), root / "pop.parquet")  # type: ignore[no-untyped-call]
        expected = {"lost": 10, "doubled": len(twice)}
        from console.pipeline import verify as verifying  # noqa: PLC0415

        with spark_jobs.session("speed", "local[2]", SETTINGS) as spark:
            spark.range(10).count()
            began = time.monotonic()
            logs = (str(root / f"{log}.parquet") for log in ("push", "pop"))
            read = [verifying.read_log(spark, log) for log in logs]
            found = verifying.verify(spark, read[0], read[1], Order.LAX)
            seconds = time.monotonic() - began
        highest = np.maximum.accumulate(order[np.lexsort((order, when))])
        told = int((order[np.lexsort((order, when))] < highest).sum())
        say(
            rows=found.pops,
            seconds=round(seconds, 1),
            rows_per_second=round(found.pops / seconds),
            found={name: getattr(found, name) for name in (*expected, "overtaken", "farthest")},
            expected={**expected, "overtaken": told},
        )


def main() -> None:
    """Measure what the command line asks for."""
    {"rollup": rollup, "verify": verify}[sys.argv[1]](*map(int, sys.argv[2:]))
