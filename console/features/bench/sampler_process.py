"""A console beside a round: its sampler in a process of its own, one sample a second.

    python -m console.features.bench.sampler_process

It reads the database's URL from its input, and exits when that ends.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from console.engines import Database, open_database
from console.errors import ConnectionFailedError
from console.load import processes
from console.monitor.sample import SAMPLING_TIMEOUTS
from console.monitor.sampler import Reading, Sampler

_READY_SECONDS = 30.0


@contextmanager
def console_beside(database: Database, folder: Path) -> Iterator[None]:
    """It samples all queues of the database, as the screens do, while the context is open."""
    errors = folder / "sampler.err"
    with errors.open("wb") as log:
        process = processes.start("console.features.bench.sampler_process", stderr=log)
    try:
        processes.send_line(process, database.complete_url().render_as_string(hide_password=False))
        if processes.read_line(process, time.monotonic() + _READY_SECONDS) != "sampled":
            raise ConnectionFailedError(
                "The console beside the bench did not start.",
                why=errors.read_text(errors="replace").strip()[-500:],
            )
        yield
    finally:
        processes.kill(process)


def main() -> None:
    url = sys.stdin.readline().strip()
    database = open_database(url, timeouts=SAMPLING_TIMEOUTS)
    first = threading.Event()

    def deliver(_: Reading) -> None:
        if not first.is_set():
            first.set()
            os.write(1, b"sampled\n")

    Sampler(database, interval_seconds=1.0).start(deliver)
    while os.read(0, 1024):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
