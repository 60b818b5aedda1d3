"""A standalone Spark cluster on the loopback, from the wheel's programs, and an object store."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from unittest import mock

import psutil

from console.cli import __main__ as command_line
from console.features.lake import java
from tests.cli.calls import COMMAND
from tests.servers import free_port, wait_until

_EXECUTOR = "CoarseGrainedExecutorBackend"
_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_START_SECONDS = 300.0


class Cluster:
    """Two workers with a core each. Its daemons are killed with -9, as if a machine failed."""

    def __init__(self, folder: Path, environment: Mapping[str, str], workers: int = 2) -> None:
        """The environment is added to the usual one of jobs and workers."""
        import pyspark  # noqa: PLC0415  # the extra's

        self.folder = folder
        self._more = environment
        self.home = Path(pyspark.__file__).parent
        self._port, self._recovery = free_port(), folder / "recovery"
        self._running: list[subprocess.Popen[bytes]] = []
        self._names = iter(range(10**6))
        self.events = folder / "events"
        self.events.mkdir(parents=True)
        self.configure()
        self.master = self.start_master()
        self.workers = [self.start_worker() for _ in range(workers)]

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """Shared by driver and workers, without this process's secrets."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DBQ_", "AWS_"))}
        return {
            **kept,
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JAVA_HOME": str(java.java_home()),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "128m",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_CONF_DIR": str(self.folder),
            "TMPDIR": str(self.folder),
            "XDG_STATE_HOME": str(self.folder / "state"),
            **self._more,
        }

    def configure(self, **more: str) -> None:
        """Spark's settings file, as an operator would write it."""
        settings = {
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": _JVM_OPTIONS,
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self.events.as_uri(),
            # As text, in one file, to be searched.
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            **more,
        }
        lines = [f"{name} {value}\n" for name, value in settings.items()]
        (self.folder / "spark-defaults.conf").write_text("".join(lines))

    def start_master(self, *, recovers: bool = True) -> "subprocess.Popen[bytes]":
        """Always at the same address; it recovers the state of an earlier one if it `recovers`."""
        words = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0"]
        options = {
            "spark.deploy.recoveryMode": "FILESYSTEM" if recovers else "NONE",
            "spark.deploy.recoveryDirectory": self._recovery,
        }
        self.master = self._daemon("master.Master", words, options)
        wait_until(lambda: is_listening(self._port), "the master", seconds=_START_SECONDS)
        return self.master

    def start_worker(self) -> "subprocess.Popen[bytes]":
        name = f"work-{next(self._names)}"
        words = ["--host", "127.0.0.1", "--cores", "1", "--memory", "700m", "--webui-port", "0"]
        words += ["--work-dir", str(self.folder / name), self.url]
        return self._daemon("worker.Worker", words, {})

    def _daemon(
        self, name: str, words: list[str], options: Mapping[str, object]
    ) -> "subprocess.Popen[bytes]":
        java = " ".join(f"-D{option}={value}" for option, value in options.items())
        log = self.folder / f"{name}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                [str(self.home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *words],
                env={**self.environment, "SPARK_DAEMON_JAVA_OPTS": f"{_JVM_OPTIONS} {java}"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def executors(self, worker: "subprocess.Popen[bytes]") -> list[psutil.Process]:
        """The JVMs that a worker has started; its other children come and go."""
        try:
            children = psutil.Process(worker.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [child for child in children if _is_executor(child)]

    def kill(self, process: "subprocess.Popen[bytes]") -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()

    def job(self, url: str, *words: str, submitted: bool = False) -> "subprocess.Popen[str]":
        """A verb of the pipeline on this cluster; its environment names the database."""
        if submitted:
            submit = str(self.home / "bin" / "spark-submit")
            command = [submit, "--master", self.url, str(command_line.__file__)]
        else:
            command = [*COMMAND]
            words = (*words, "--master", self.url)
        return subprocess.Popen(
            [*command, "pipeline", *words, "--json"],
            env={**self.environment, "DBQ_URL": url},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def executors_used(self) -> dict[str, set[str]]:
        """Application -> the executors that ended tasks of it, from the event logs."""
        found: dict[str, set[str]] = {}
        for path in self.events.rglob("*"):
            for line in path.read_text().splitlines() if path.is_file() else ():
                event = json.loads(line)
                if event["Event"] == "SparkListenerTaskEnd":
                    found.setdefault(path.name, set()).add(event["Task Info"]["Executor ID"])
        return found

    def close(self) -> None:
        left = []
        for process in self._running:
            if process.poll() is None:
                left += psutil.Process(process.pid).children(recursive=True)
                self.kill(process)
        for one in left:
            if one.is_running():
                one.kill()
        psutil.wait_procs(left, timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _is_executor(process: psutil.Process) -> bool:
    try:
        return _EXECUTOR in " ".join(process.cmdline())
    except psutil.Error:
        return False


# -- a real S3 interface in a separate process, and credentials where clients look for them

BUCKET = "bucket"
SECRET = "Pl4nted-s3cret"


@contextmanager
def object_store() -> Iterator[str]:
    """Its endpoint, set in the environment while the body runs; it has one bucket."""
    endpoint = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: is_listening(port), "the object store")
        with mock.patch.dict(os.environ, s3_environment(endpoint)):
            from pyarrow import fs  # noqa: PLC0415

            files = fs.S3FileSystem(endpoint_override=endpoint, allow_bucket_creation=True)  # type: ignore[attr-defined]
            files.create_dir(BUCKET)
            yield endpoint
    finally:
        process.kill()
        process.wait()


def s3_environment(endpoint: str) -> dict[str, str]:
    """As an operator would export them."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
