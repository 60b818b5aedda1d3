"""The console beside a round: its sampler in a process of its own, one sample a second.

    python -m console.bench.sampler_process

Its input is the database's URL, then nothing until it shall leave.
"""

import os
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from console import processes
from console.engines import Database, open_database
from console.errors import ConnectionFailedError
from console.monitor.sample import SAMPLING_TIMEOUTS
from console.monitor.sampler import Reading, Sampler

if TYPE_CHECKING:
    import subprocess

_READY_SECONDS = 30.0


class SamplerProcess:
    """Looks at all queues of the database, as the screens do, as long as the context is open."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._url = database.complete_url().render_as_string(hide_password=False)
        self._log = folder / "watch.err"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = processes.start("console.bench.sampler_process", stderr=log)
        processes.tell(self._process, self._url)
        if processes.word(self._process, time.monotonic() + _READY_SECONDS) != "looked":
            self._end()
            raise ConnectionFailedError(
                "The console beside the bench did not start.",
                why=self._log.read_text(errors="replace").strip()[-500:],
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            processes.kill(self._process)


def main() -> None:
    """Look until the parent closes the pipe or is gone."""
    url = sys.stdin.readline().strip()
    database = open_database(url, timeouts=SAMPLING_TIMEOUTS)
    first = threading.Event()

    def deliver(_: Reading) -> None:
        if not first.is_set():
            first.set()
            os.write(1, b"looked\n")

    Sampler(database, interval_seconds=1.0).start(deliver)
    while os.read(0, 1024):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
