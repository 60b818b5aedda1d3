"""The Spark session, and how a job's tasks run on it.

A task is a function of a module and an item of plain JSON; what it returns is plain JSON too. Spark
only spreads the items: each task moves its own data. `Plain` runs the same tasks one after the
other in this process, where Spark is not wanted.
"""

import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from console import errors
from console.errors import ConsoleError, UsageError
from console.pipeline.java import INSTALL, java_home

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Item = Mapping[str, Any]
Work = Callable[[Item], dict[str, Any]]
"""A task: a function that stands in a module, for it crosses processes by its name."""

_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 120.0
"""A job that no executor works on for so long is given up: it might wait for ever."""


class StageProgress(Protocol):
    """Hears of the progress of a stage: how many of its tasks are done, with how much."""

    def __call__(self, *, done: int, of: int, rows: int, size: int) -> None: ...


def no_progress(*, done: int, of: int, rows: int, size: int) -> None:
    """Where nobody listens."""


class Tasks(Protocol):
    """Whoever runs the tasks of a stage."""

    def run(
        self,
        work: Work,
        items: Sequence[Item],
        on_progress: StageProgress = no_progress,
        *,
        at_once: int | None = None,
    ) -> list[dict[str, Any]]:
        """What `work` returned for each item, in their order; the first ConsoleError of any.

        No more than `at_once` of them run at a time.
        """
        ...


class LocalTasks:
    """In this process, one after the other."""

    def run(
        self,
        work: Work,
        items: Sequence[Item],
        on_progress: StageProgress = no_progress,
        *,
        at_once: int | None = None,
    ) -> list[dict[str, Any]]:
        """As `Tasks`; the first error ends it."""
        del at_once  # one is never too many
        results: list[dict[str, Any]] = []
        rows = size = 0
        for item in items:
            result = work(item)
            rows, size = rows + int(result.get("rows", 0)), size + int(result.get("bytes", 0))
            results.append(result)
            on_progress(done=len(results), of=len(items), rows=rows, size=size)
        return results


class SparkTasks:
    """On a Spark context: one partition, and so one Spark task, an item.

    As an RDD and not as a table: what Spark knows of SQL takes longer to load than all else.
    """

    def __init__(self, context: "SparkContext") -> None:
        self._context = context

    def run(
        self,
        work: Work,
        items: Sequence[Item],
        on_progress: StageProgress = no_progress,
        *,
        at_once: int | None = None,
    ) -> list[dict[str, Any]]:
        """As `Tasks`. All items are tried, also after one failed: no task is cut off half-way."""
        if not items:
            return []
        done, rows, size = (self._context.accumulator(0) for _ in range(3))

        def count(row_count: int, byte_count: int) -> None:
            done.add(1)
            rows.add(row_count)
            size.add(byte_count)

        said: list[int] = []

        def tell() -> None:
            now = int(done.value)
            if said != [now]:
                said[:] = [now]
                on_progress(done=now, of=len(items), rows=int(rows.value), size=int(size.value))

        def job(first: int, number: int) -> list[dict[str, Any]]:
            """So many items from one on, as one job of Spark's."""
            mine = items[first : first + number]
            # A task is sent its own item only: all those of a year would take long to read.
            return self._context.parallelize(mine, number).map(_each(work, count)).collect()

        with polled(tell):
            try:
                if at_once is None or self._never_more(at_once, len(items)):
                    results = job(0, len(items))
                else:
                    results = self._a_few(job, len(items), at_once)
            except Exception as error:
                raise _spark_error(error) from error
        tell()
        for result in results:
            if failed := result.get("failed"):
                raise _rebuilt(failed)
        return results

    def _never_more(self, at_once: int, number: int) -> bool:
        """Whether one job with all items keeps to it: no more items, or no more cores here."""
        context = self._context
        local = (context.master or "").startswith("local")
        return number <= at_once or (local and context.defaultParallelism <= at_once)

    def _a_few(
        self, job: Callable[[int, int], list[dict[str, Any]]], number: int, at_once: int
    ) -> list[dict[str, Any]]:
        """Each item as a job of its own: Spark has no other bound on tasks of all executors."""
        threads = ThreadPoolExecutor(at_once, "dbq task")
        try:
            answers = [threads.submit(job, position, 1) for position in range(number)]
            wait(answers)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            self._context.cancelAllJobs()
            raise
        threads.shutdown()
        return [result for answer in answers for result in answer.result()]


def _each(work: Work, count: Callable[[int, int], None]) -> Callable[[Item], dict[str, Any]]:
    """What a worker does with an item that it is sent."""

    def each(item: Item) -> dict[str, Any]:
        result = _caught(work, item)
        count(int(result.get("rows", 0)), int(result.get("bytes", 0)))
        return result

    return each


@contextmanager
def polled(tell: Callable[[], None]) -> Iterator[None]:
    """While the body runs, `tell` is called now and then, from a thread."""
    over = threading.Event()

    def loop() -> None:
        while not over.wait(_POLL_SECONDS):
            tell()

    thread = threading.Thread(target=loop, name="dbq progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _caught(work: Work, item: Item) -> dict[str, Any]:
    """The result, or the error as one: Spark would only bring back its traceback, as text."""
    try:
        return work(item)
    except ConsoleError as error:
        parts = {"what": error.what, "why": error.why, "next_step": error.next_step}
        status = error.exit_status
        return {"failed": {"kind": type(error).__name__, "exit_status": status, **parts}}


def _rebuilt(failed: Mapping[str, Any]) -> ConsoleError:
    found = getattr(errors, failed["kind"], None)
    kind = found if isinstance(found, type) and issubclass(found, ConsoleError) else ConsoleError
    error = kind(failed["what"], why=failed["why"], next_step=failed["next_step"])
    error.exit_status = failed["exit_status"]
    return error


def _spark_error(error: Exception) -> Exception:
    """An error of Spark's as one for the operator: Python's own word in it, else its first."""
    lines = [line.strip(" \t:") for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith("An error occurred while call")]
    python = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return ConsoleError(
        "A task of the pipeline failed on Spark.",
        why=[*lines[:1], *python][-1] if lines else type(error).__name__,
        next_step="What was done is kept: run the same command again to continue.",
    )


def require_extra() -> None:
    """UsageError, which says what to install, where a part of the extra [pipeline] is missing."""
    for name, what in _EXTRA.items():
        # A module that was put out of the way has no specification: ValueError.
        with suppress(ValueError):
            if find_spec(name) is not None:
                continue
        raise UsageError(
            f"The pipeline needs {what}, which is not installed.",
            next_step=f"Install it with: {INSTALL}",
        )


_EXTRA = {"pyspark": "PySpark", "numpy": "NumPy", "adbc_driver_postgresql": "ADBC's driver"}


def tasks_at_once(master: str | None, at_once: int) -> int:
    """So many tasks work at a time at most, as far as that is known before Spark has started."""
    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master or "local[*]")
    if under_submit() or local is None:
        return at_once
    cores = os.cpu_count() or 1 if local[1] == "*" else int(local[1] or 1)
    return min(cores, at_once)


def under_submit() -> bool:
    """Whether spark-submit started this process: then master and JVM are its business."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def session(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None
) -> "Iterator[SparkSession]":
    """A Spark session, stopped at the end. `settings` are Spark's, by their own names."""
    with _running(name, master, settings):
        from pyspark.sql import SparkSession  # noqa: PLC0415  # the extra's, and slow to import

        spark = SparkSession.builder.getOrCreate()
        _spread(spark)
        yield spark


@contextmanager
def tasks(name: str, master: str | None = None) -> Iterator[Tasks]:
    """Tasks on a Spark of their own, whose JVM does nothing but hand them out."""
    with _running(name, master, None if under_submit() else _QUICK_START) as context:
        yield SparkTasks(context)


@contextmanager
def _running(
    name: str, master: str | None, settings: Mapping[str, str] | None
) -> "Iterator[SparkContext]":
    context = start(name, master, settings)
    try:
        with _executors_awaited(context):
            yield context
    finally:
        # Where a signal cut off a call, PySpark finds no end of it, and warns of its JVM, which
        # ends with this process.
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            context.stop()


@contextmanager
def _executors_awaited(context: "SparkContext") -> Iterator[None]:
    """A ConsoleError, while the body runs, where jobs wait and no executor comes."""
    if (context.master or "").startswith("local"):
        yield
        return
    status, began = context.statusTracker(), list[float]()
    given_up = threading.Event()

    def look() -> None:
        with suppress(Exception):  # the JVM is ending
            there = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # noqa: SLF001
            if there or not status.getActiveJobsIds():
                began.clear()
            elif not began:
                began.append(time.monotonic())
            elif time.monotonic() - began[0] >= _PATIENCE_SECONDS:
                given_up.set()
                context.cancelAllJobs()

    try:
        with polled(look):
            yield
    except Exception as error:
        if not given_up.is_set():
            raise
        raise ConsoleError(
            "No executor of the cluster works for this job.",
            why=f"There was none for {_PATIENCE_SECONDS:g} s: no worker has enough cores and "
            "memory free, or the master was started again without what it knew.",
            next_step="Look at the master. What was done is kept: run the same command again.",
        ) from error


def start(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None
) -> "SparkContext":
    """Spark on `master`, else on all cores here; under spark-submit on its master.

    UsageError without the extra or without a Java.
    """
    require_extra()
    if under_submit() and master is not None:
        raise UsageError(
            "The master is set by spark-submit.",
            why="Its JVM has one already, and --master of the verb would be another.",
            next_step="Give --master to spark-submit, before the file.",
        )
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415  # the extra's, and slow to import

    wanted = dict(_SETTINGS)
    if not under_submit():
        master = master or "local[*]"
        if master.startswith("local"):
            wanted |= _LOCAL
        os.environ["JAVA_HOME"] = str(java_home())
    # The workers' Python is this one: what is installed here is what they need.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    asked = SparkConf().setAppName(f"dbq-console {name}")
    if master is not None:
        asked = asked.setMaster(master)
    asked = asked.setAll([*wanted.items(), *(settings or {}).items()])
    try:
        return SparkContext.getOrCreate(asked)
    except Exception as error:
        raise ConsoleError(
            "Spark could not be started.",
            why=(str(error).strip().splitlines() or [type(error).__name__])[0],
            next_step="Check --master, and that a Java 17 or newer runs here.",
        ) from error


def _spread(spark: "SparkSession") -> None:
    """Where nobody has said how many, a local master of spark-submit's gets as many parts as cores
    too, and a cluster a few more than its own: Spark's 200 are many small ones."""
    context = spark.sparkContext
    if context.getConf().contains(_PARTITIONS):
        return
    local = (context.master or "").startswith("local")
    cores = context.defaultParallelism
    spark.conf.set(_PARTITIONS, str(cores if local else max(_LEAST_PARTS, 2 * cores)))


_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Two attempts of one range at a time would be in each other's way, and gain nothing.
    "spark.speculation": "false",
}
_QUICK_START = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Half of what the JVM takes until its first tasks is to compile well what runs but once."""
_LEAST_PARTS = 32
_PARTITIONS = "spark.sql.shuffle.partitions"
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    _PARTITIONS: str(os.cpu_count() or 1),
}
