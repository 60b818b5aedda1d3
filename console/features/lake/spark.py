"""The Spark session, and how a job's tasks run on it.

A task is a module's function and an item of JSON; it returns JSON. Spark only distributes the
items: each task moves its own data.
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
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from console import errors
from console.errors import ConsoleError, UsageError
from console.features.lake.java import INSTALL, java_home
from console.features.lake.progress import StageProgress, no_progress
from console.formats import plain

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Item = Mapping[str, Any]
Work = Callable[[Item], dict[str, Any]]
"""A task: a function at a module's top level, pickled by its name."""

_POLL_SECONDS = 0.5
_NO_EXECUTOR_SECONDS = 120.0
"""A job that no executor works on for so long is given up."""


class Tasks(Protocol):
    """Runs the tasks of a stage."""

    def run(
        self,
        work: Work,
        items: Sequence[Item],
        on_progress: StageProgress = no_progress,
        *,
        at_once: int | None = None,
    ) -> list[dict[str, Any]]:
        """What `work` returned for each item, in order; raises the first task's ConsoleError.

        At most `at_once` tasks run at a time.
        """
        ...


class SparkTasks:
    """On a Spark context: each item is a partition, and so a Spark task.

    An RDD, not a DataFrame: loading Spark's SQL takes longer than all else.
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
        """All items are tried, even after one failed: no task is stopped half-way."""
        if not items:
            return []
        done, rows, size = (self._context.accumulator(0) for _ in range(3))

        def task(item: Item) -> dict[str, Any]:
            result = _result_or_error(work, item)
            done.add(1)
            rows.add(int(result.get("rows", 0)))
            size.add(int(result.get("bytes", 0)))
            return result

        reported: list[int] = []

        def report() -> None:
            now = int(done.value)
            if reported != [now]:
                reported[:] = [now]
                on_progress(done=now, of=len(items), rows=int(rows.value), size=int(size.value))

        def job(some: Sequence[Item]) -> list[dict[str, Any]]:
            # One partition each: a task is sent its own item only.
            return self._context.parallelize(some, len(some)).map(task).collect()

        with polling(report):
            try:
                if at_once is None or self._cannot_exceed(at_once, len(items)):
                    results = job(items)
                else:
                    results = self._limited(job, items, at_once)
            except Exception as error:
                raise _spark_error(error) from error
        report()
        for result in results:
            if failed := result.get("failed"):
                raise _rebuilt(failed)
        return results

    def _cannot_exceed(self, at_once: int, items: int) -> bool:
        """Whether one job never runs more tasks at a time: too few items, or too few cores."""
        context = self._context
        local = (context.master or "").startswith("local")
        return items <= at_once or (local and context.defaultParallelism <= at_once)

    def _limited(
        self,
        job: Callable[[Sequence[Item]], list[dict[str, Any]]],
        items: Sequence[Item],
        at_once: int,
    ) -> list[dict[str, Any]]:
        """Each item as a job of its own: Spark has no other limit across executors."""
        threads = ThreadPoolExecutor(at_once, "dbq task")
        try:
            futures = [threads.submit(job, [item]) for item in items]
            wait(futures)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            self._context.cancelAllJobs()
            raise
        threads.shutdown()
        return [result for future in futures for result in future.result()]


@contextmanager
def polling(poll: Callable[[], None]) -> Iterator[None]:
    """While the body runs, a thread calls `poll` every half second."""
    finished = threading.Event()

    def loop() -> None:
        while not finished.wait(_POLL_SECONDS):
            poll()

    thread = threading.Thread(target=loop, name="dbq progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _result_or_error(work: Work, item: Item) -> dict[str, Any]:
    """Errors are returned: Spark would raise them as a traceback's text."""
    try:
        return work(item)
    except ConsoleError as error:
        parts = {"what": error.what, "why": error.why, "next_step": error.next_step}
        status = error.exit_status
        return {"failed": {"kind": type(error).__name__, "exit_status": status, **parts}}


def _rebuilt(failed: Mapping[str, Any]) -> ConsoleError:
    known = getattr(errors, failed["kind"], None)
    kind = known if isinstance(known, type) and issubclass(known, ConsoleError) else ConsoleError
    error = kind(failed["what"], why=failed["why"], next_step=failed["next_step"])
    error.exit_status = failed["exit_status"]
    return error


@contextmanager
def _worded() -> Iterator[None]:
    """Errors of Spark, which come when a DataFrame is carried out, as ConsoleErrors."""
    from py4j.protocol import Py4JError  # noqa: PLC0415  # the extra's
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise _spark_error(error) from error


_FILE = re.compile(r"FAILED_READ_FILE|CANNOT_READ_FILE|FileNotFound|FILE_NOT_EXIST|PARQUET|JSON")


def _spark_error(error: Exception) -> Exception:
    """Spark's error for the operator: its last line of a Python error, else its first line."""
    lines = [line.strip(" \t:") for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith("An error occurred while call")]
    python = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    if about := next((line for line in lines if _FILE.search(line)), None):
        return ConsoleError(
            "Spark cannot read a file.",
            why=about,
            next_step="Check that it is there, whole, and what its ending says; then run it again.",
        )
    return ConsoleError(
        "A task of the pipeline failed on Spark.",
        why=[*lines[:1], *python][-1] if lines else type(error).__name__,
        next_step="What was done is kept: run the same command again to continue.",
    )


def require_extra() -> None:
    """UsageError, with what to install, where a part of the extra [pipeline] is missing."""
    for name, what in _EXTRA.items():
        with suppress(ValueError):  # of a module that a test has disabled
            if find_spec(name) is not None:
                continue
        raise ConsoleError(
            f"The pipeline needs {what}, which is not installed.",
            next_step=f"Install it with: {INSTALL}",
        )


_EXTRA = {
    "pyspark": "PySpark",
    "numpy": "NumPy",
    "adbc_driver_postgresql": "ADBC's driver",
    "deltalake": "Delta Lake's library",
}


def tasks_at_once(master: str | None, at_once: int) -> int:
    """The most tasks that run at a time, as far as is known before Spark has started."""
    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master or LOCAL)
    if under_submit() or local is None:
        return at_once
    cores = os.cpu_count() or 1 if local[1] == "*" else int(local[1] or 1)
    return min(cores, at_once)


def under_submit() -> bool:
    """Whether spark-submit started this process, and so the JVM on a master of its own."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@dataclass(frozen=True)
class Security:
    """What protects the connections of a job: Spark's, not the database's."""

    master: str
    authenticated: bool
    encrypted: bool

    @property
    def line(self) -> str:
        if self.authenticated and self.encrypted:
            return f"Spark on {plain(self.master)}: its connections are authenticated and encrypted"
        lacking = [] if self.authenticated else ["authenticated (spark.authenticate)"]
        lacking += [] if self.encrypted else ["encrypted (spark.network.crypto.enabled)"]
        return (
            f"Spark on {plain(self.master)}: its connections are not {' and not '.join(lacking)}: "
            "who reaches its ports can get the messages and the database's password"
        )

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def security(master: str | None) -> Security:
    """Of a job on that master, before Spark has started: always on this machine alone, on a cluster
    by its configuration."""
    configured = _configured()
    where = master or (configured.get("spark.master", "?") if under_submit() else LOCAL)
    if where.startswith("local"):
        return Security(where, authenticated=True, encrypted=True)
    on = {name for name, value in configured.items() if value.lower() == "true"}
    authenticated = "spark.authenticate" in on
    encrypted = bool(on & _ENCRYPTION)
    return Security(where, authenticated, encrypted)


def _configured() -> dict[str, str]:
    """The settings of spark-submit, else those of the settings file that Spark would read."""
    if under_submit():
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415  # the extra's, slow to import

        SparkContext._ensure_initialized()  # noqa: SLF001  # else a SparkConf asks no JVM
        return dict(SparkConf().getAll())
    home = os.environ.get("SPARK_HOME", "")
    folder = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
    try:
        text = Path(folder, "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return dict(_SETTING.findall(text))


@contextmanager
def session(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None
) -> "Iterator[SparkSession]":
    """A Spark session, stopped at the end. `settings`: of Spark. ConsoleError where Spark fails in
    the body."""
    with _running(name, master, settings):
        from pyspark.sql import SparkSession  # noqa: PLC0415  # the extra's, and slow to import

        with _worded():
            yield SparkSession.builder.getOrCreate()


@contextmanager
def tasks(name: str, master: str | None = None) -> Iterator[Tasks]:
    """Tasks on Spark; its JVM only distributes them."""
    with _running(name, master, None if under_submit() else _QUICK_START) as context:
        yield SparkTasks(context)


@contextmanager
def _running(
    name: str, master: str | None, settings: Mapping[str, str] | None
) -> "Iterator[SparkContext]":
    context = start(name, master, settings)
    try:
        with _giving_up(context):
            yield context
    finally:
        # After an interrupted call PySpark warns about its JVM, which ends with this process.
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            context.stop()


@contextmanager
def _giving_up(context: "SparkContext") -> Iterator[None]:
    """ConsoleError where the body's jobs wait, and a cluster has no executor for them."""
    if (context.master or "").startswith("local"):
        yield
        return
    status, began = context.statusTracker(), list[float]()
    given_up = threading.Event()

    def check() -> None:
        with suppress(Exception):  # the JVM is ending
            executors = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # noqa: SLF001
            if executors or not status.getActiveJobsIds():
                began.clear()
            elif not began:
                began.append(time.monotonic())
            elif time.monotonic() - began[0] >= _NO_EXECUTOR_SECONDS:
                given_up.set()
                context.cancelAllJobs()

    try:
        with polling(check):
            yield
    except Exception as error:
        if not given_up.is_set():
            raise
        raise ConsoleError(
            "No executor of the cluster works for this job.",
            why=f"There was none for {_NO_EXECUTOR_SECONDS:g} s: no worker has enough cores and "
            "memory free, or the master was restarted and has lost its state.",
            next_step="Check the master. What was done is kept: run the same command again.",
        ) from error


def start(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None
) -> "SparkContext":
    """Spark on `master`, by default on all local cores; under spark-submit on its master.

    UsageError without the extra or Java.
    """
    require_extra()
    if under_submit() and master is not None:
        raise UsageError(
            "The master is set by spark-submit.",
            why="Its JVM has one already; --master of the verb would be another.",
            next_step="Give --master to spark-submit, before the file.",
        )
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415  # the extra's, and slow to import

    defaults = dict(_SETTINGS)
    if not under_submit():
        master = master or LOCAL
        os.environ["JAVA_HOME"] = str(java_home())
        if master.startswith("local"):
            defaults |= _LOCAL
    elif security(None).master.startswith("local"):
        defaults |= _SECURE
    # Workers run this Python: it has the packages that they need.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    conf = SparkConf().setAppName(f"dbq-console {name}")
    if master is not None:
        conf = conf.setMaster(master)
    conf = conf.setAll([*defaults.items(), *(settings or {}).items()])
    try:
        return SparkContext.getOrCreate(conf)
    except Exception as error:
        raise ConsoleError(
            "Spark could not be started.",
            why=(str(error).strip().splitlines() or [type(error).__name__])[0],
            next_step="Check --master, and that Java 17 or newer runs here.",
        ) from error


LOCAL = "local[*,4]"
"""All cores; what fails for its worker's sake, as when it was killed for its memory, is tried up to
four times."""
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Two attempts at one range would wait for each other's lock.
    "spark.speculation": "false",
    # Of data that is written to disk. Without it PySpark also puts the items of tasks, and so the
    # database's password, into a temporary file.
    "spark.io.encryption.enabled": "true",
}
_SECURE = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
"""On this machine the secret is made by Spark, and no other process learns it."""
_ENCRYPTION = {
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
    "spark.ssl.rpc.enabled",
}
_SETTING = re.compile(r"(?m)^[ \t]*([^#\s=:]+)[ \t]*[\s=:][ \t]*(\S+)")
_QUICK_START = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Half of the JVM's time until the first tasks goes into optimizing code that runs once."""
_LOCAL = _SECURE | {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # To begin with: Spark merges small ones. Its 200 cost some seconds here.
    "spark.sql.shuffle.partitions": "32",
}
