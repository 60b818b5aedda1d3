"""The program of the bench's worker processes: `python -m console.features.bench.worker`.

It reads its WorkerTask (a line of JSON), connects, writes `ready`, reads the round's Times, works,
saves its log in a file and writes `done`. When its input ends, it exits.
"""

import gc
import importlib
import io
import json
import os
import signal
import sys
import threading
from pathlib import Path

from console.errors import ConsoleError
from console.load.worker_round import SharedCounters, Times, WorkerRound, WorkerTask


def main() -> int:
    """Work one round; the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Unbuffered: a thread waiting in a buffered read would block the interpreter's exit.
    source = io.FileIO(0, closefd=False)
    line = source.readline()
    if not line:
        return 1
    task = WorkerTask(**json.loads(line))

    def wait_for_go() -> Times:
        _write("ready")
        times = source.readline()
        if not times:
            os._exit(1)
        threading.Thread(target=_exit_with_parent, daemon=True).start()
        return Times(**json.loads(times))

    worker_round = WorkerRound(task, SharedCounters(Path(task.counters)), wait_for_go)
    module, _, name = task.driver.partition(":")
    drive = getattr(importlib.import_module(module), name)
    # A collection scans every message kept: milliseconds in which no client runs.
    gc.disable()
    try:
        drive(worker_round)
    except ConsoleError as error:
        _write(f"failed {' '.join(str(error).split())}")
        return 1
    worker_round.end()
    worker_round.call_log.save(Path(task.call_log))
    _write("done")
    return 0


def _write(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def _exit_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
