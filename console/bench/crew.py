"""The worker processes of a round, seen from the process that runs the bench.

A worker gets its task, with the database's password in it, by its standard input, never by its
command line. That pipe then stays open: its end tells the worker to leave, whatever became of us.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

import console
from console.bench.journal import Journal
from console.bench.shift import Task, Times
from console.errors import ConnectionFailedError

_READY_SECONDS = 30.0
_DONE_SECONDS = 8.0


class Crew:
    """All workers of a round. At the end of the context none of them is left."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._workers = [_Worker(task) for task in tasks]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.kill()

    def wait_until_ready(self) -> None:
        """Until all have their connections. ConnectionFailedError where one has not."""
        deadline = time.monotonic() + _READY_SECONDS
        for worker in self._workers:
            word = worker.word(deadline)
            if word != "ready":
                raise ConnectionFailedError(
                    "A process of the bench did not get ready.", why=worker.why(word)
                )

    def go(self, times: Times) -> None:
        """Tell all when what happens."""
        for worker in self._workers:
            worker.tell(json.dumps(asdict(times)))

    def journals(self, stop_us: int) -> list[Journal]:
        """What they did, once all have ended. ConnectionFailedError where one cannot tell."""
        deadline = stop_us / 1e6 + _DONE_SECONDS
        found = []
        for worker in self._workers:
            word = worker.word(deadline)
            if word != "done":
                raise ConnectionFailedError(
                    "A process of the bench ended without its journal.", why=worker.why(word)
                )
            found.append(Journal.load(Path(worker.task.journal)))
        return found


class _Worker:
    def __init__(self, task: Task) -> None:
        self.task = task
        self._complaints = Path(f"{task.journal}.err")
        with self._complaints.open("wb") as complaints:
            self._process = subprocess.Popen(
                # -P: not the folder in which the user is; another "console" may lie there.
                [sys.executable, "-P", "-m", "console.bench.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                cwd="/",
                env=environment(),
                start_new_session=True,  # a Ctrl-C is for us: we end the workers
            )
        self.tell(json.dumps(asdict(task)))

    def tell(self, line: str) -> None:
        pipe = self._process.stdin
        if pipe is not None:
            with suppress(BrokenPipeError):  # it has ended: its word will not come
                pipe.write(line.encode() + b"\n")
                pipe.flush()

    def word(self, deadline: float) -> str:
        """The next line that it says; empty where it ended or was late."""
        output = self._process.stdout
        if output is None:
            return ""
        wait = max(0.0, deadline - time.monotonic())
        if not select.select([output], [], [], wait)[0]:
            return ""
        return os.read(output.fileno(), 10_000).decode(errors="replace").strip()

    def why(self, word: str) -> str:
        """What went wrong, as far as it said so."""
        if word.startswith("failed "):
            return word.removeprefix("failed ")
        said = self._complaints.read_text(errors="replace").strip().splitlines()
        return said[-1] if said else "It was too late, or was killed."

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def environment() -> dict[str, str]:
    """Ours, and the place where this package was found, which may be a checkout."""
    place = str(Path(console.__file__).resolve().parent.parent)
    given = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([place, given] if given else [place])}
