"""Starts a run of the pipeline as a process of its own, which outlives whoever started it."""

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from console.errors import ConsoleError
from console.pipeline import runs
from console.pipeline.runs import RunFile

RUN_ID = "DBQ_RUN"
"""The variable by which a run is told its id."""
_THEIRS = ("DBQ_URL", "DBQ_PROFILE", "DBQ_RIGHTS", RUN_ID)
"""What would say otherwise than the command line of a run."""
_PLAN_SECONDS = 600.0
_TAIL = 4_000


@dataclass(frozen=True)
class Job:
    """What is to be run: the words behind `dbq-console`, which anybody on the machine can read,
    and what nobody else shall: the environment."""

    verb: str
    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    queue: str = ""
    connection: str = ""
    lake: str = ""

    @property
    def command(self) -> list[str]:
        # -P: not the folder in which the user is; another project's "console" may lie there.
        return [sys.executable, "-P", "-m", "console.cli", *self.words]

    def environ(self, **more: str) -> dict[str, str]:
        mine = {name: text for name, text in os.environ.items() if name not in _THEIRS}
        return {**mine, **self.environment, **more}


def command_line(words: Sequence[str]) -> str:
    """A run's command line, as it is typed."""
    return shlex.join(["dbq-console", *words])


class DryRun:
    """What a dry run says; it is asked in a thread, and may be cut off from another."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._over = False

    def run(self) -> list[str]:
        """The lines of the plan. ConsoleError, with the verb's own words, where there is none."""
        with self._lock:
            if self._over:
                raise ConsoleError("Making the plan was interrupted.")
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
        """Nobody wants it any more. Does not wait."""
        with self._lock:
            self._over = True
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()


def start(job: Job, root: Path | None = None) -> str:
    """Begin; the run's id. ConsoleError where no process or no file could be made.

    The process hears nothing of this one's end. What it says goes to files beside the run's own.
    """
    place = root or runs.folder()
    id_ = runs.new_id()
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        files = [
            os.open(place / f"{id_}.{end}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            for end in ("out", "err")
        ]
    except OSError as error:
        raise ConsoleError(
            "The run could not be started.", why=f"{place}: {error.strerror or error}"
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
    # Until its own word comes, and where that never does.
    record = RunFile.begin(
        place,
        job.verb,
        id_,
        process.pid,
        words=job.words,
        queue=job.queue,
        connection=job.connection,
        lake=job.lake,
    )
    threading.Thread(
        target=_wait, args=(process, record, place), name=f"run {id_}", daemon=True
    ).start()
    return id_


def _wait(process: "subprocess.Popen[bytes]", record: RunFile, place: Path) -> None:
    """Take its exit status, so that it leaves nothing; where it has said nothing itself, say it."""
    status = process.wait()
    found = next((run for run in runs.read(place).runs if run.id == record.id), None)
    if found is not None and found.status is None and status > 0:
        error = _error(tail(record.id, "err", place), status)
        record.end(status, {"what": error.what, "why": error.why})


def tail(id_: str, end: str, root: Path | None = None) -> str:
    """The last of what a run has written to its `out` or `err`; empty: nothing."""
    path = (root or runs.folder()) / f"{id_}.{end}"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _error(err: str, status: int) -> ConsoleError:
    """The words of a verb that failed, in three parts again."""
    lines: Sequence[str] = [line for line in err.splitlines() if line.strip()]
    what, *why = lines[-3:] or [f"The process ended with {status}, without a message."]
    return ConsoleError(what, why="\n".join(why))
