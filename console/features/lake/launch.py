"""Starts a pipeline run as a process of its own, which outlives the console."""

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from console.errors import ConsoleError, RefusedError
from console.features.lake import runs
from console.features.lake.runs import RunFile

RUN_ID = "DBQ_RUN"
"""The environment variable with a run's id."""
_NOT_INHERITED = ("DBQ_URL", "DBQ_PROFILE", "DBQ_RIGHTS", RUN_ID)
"""They would override a run's command line."""
_PLAN_SECONDS = 600.0
_TAIL = 4_000


@dataclass(frozen=True)
class Job:
    """The words after `dbq-console`, which every user of the machine can read; secrets go into the
    environment."""

    verb: str
    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    queue: str = ""
    connection: str = ""
    lake: str = ""

    @property
    def command(self) -> list[str]:
        # -P: the current folder may have a package "console" of its own.
        return [sys.executable, "-P", "-m", "console.cli", *self.words]

    def environ(self, **more: str) -> dict[str, str]:
        own = {name: text for name, text in os.environ.items() if name not in _NOT_INHERITED}
        return {**own, **self.environment, **more}


def command_line(words: Sequence[str]) -> str:
    """As it is typed."""
    return shlex.join(["dbq-console", *words])


class DryRun:
    """Makes a plan with --dry-run, in a thread; another thread may cancel it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._cancelled = False

    def run(self) -> list[str]:
        """The lines of the plan. ConsoleError, with the verb's own message."""
        with self._lock:
            if self._cancelled:
                raise RefusedError("Making the plan was interrupted.")
            self._process = process = subprocess.Popen(
                self._job.command,
                env=self._job.environ(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        with process:
            try:
                out, err = process.communicate(timeout=_PLAN_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise ConsoleError("Making the plan takes too long.") from None
        if process.returncode:
            raise _error(err, process.returncode)
        return out.splitlines()

    def cancel(self) -> None:
        """Does not wait."""
        with self._lock:
            self._cancelled = True
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()


def start(job: Job, root: Path | None = None) -> str:
    """The run's id. ConsoleError where its process or files could not be created.

    It goes on when this process ends. Its output goes to files beside the run's own.
    """
    folder = root or runs.folder()
    id_ = runs.new_id()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        files = [
            os.open(folder / f"{id_}.{stream}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            for stream in ("out", "err")
        ]
    except OSError as error:
        raise ConsoleError(
            "The run could not be started.", why=f"{folder}: {error.strerror or error}"
        ) from error
    try:
        process = subprocess.Popen(
            job.command,
            env=job.environ(**{RUN_ID: id_}),
            stdin=subprocess.DEVNULL,
            stdout=files[0],
            stderr=files[1],
            start_new_session=True,
        )
    except OSError as error:
        raise ConsoleError(
            "The run could not be started.", why=f"{sys.executable}: {error.strerror or error}"
        ) from error
    finally:
        for descriptor in files:
            os.close(descriptor)
    # Until it writes its own, or if it never does.
    record = RunFile.begin(
        folder,
        job.verb,
        id_,
        process.pid,
        words=job.words,
        queue=job.queue,
        connection=job.connection,
        lake=job.lake,
    )
    threading.Thread(
        target=_wait, args=(process, record, folder), name=f"run {id_}", daemon=True
    ).start()
    return id_


def _wait(process: "subprocess.Popen[bytes]", record: RunFile, folder: Path) -> None:
    """Reap the process; where it failed without recording its end, record it."""
    status = process.wait()
    run = next((run for run in runs.read(folder).runs if run.id == record.id), None)
    if run is not None and run.status is None and status > 0:
        error = _error(tail(record.id, "err", folder), status)
        record.end(status, {"what": error.what, "why": error.why})


def tail(id_: str, stream: str, root: Path | None = None) -> str:
    """The end of a run's output: its `out` or `err`."""
    path = (root or runs.folder()) / f"{id_}.{stream}"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _error(err: str, status: int) -> ConsoleError:
    """The error that a verb has printed."""
    lines: Sequence[str] = [line for line in err.splitlines() if line.strip()]
    what, *why = lines[-3:] or [f"The process ended with {status}, without a message."]
    return ConsoleError(what, why="\n".join(why))
