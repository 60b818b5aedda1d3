"""The worker processes of a round, seen from the process that runs the bench."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from console import processes
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
            self._process = processes.start("console.bench.worker", stderr=complaints)
        self.tell(json.dumps(asdict(task)))

    def tell(self, line: str) -> None:
        processes.tell(self._process, line)

    def word(self, deadline: float) -> str:
        """The next line that it says; empty where it ended or was late."""
        return processes.word(self._process, deadline)

    def why(self, word: str) -> str:
        """What went wrong, as far as it said so."""
        if word.startswith("failed "):
            return word.removeprefix("failed ")
        said = self._complaints.read_text(errors="replace").strip().splitlines()
        return said[-1] if said else "It was too late, or was killed."

    def kill(self) -> None:
        processes.kill(self._process)
