"""The main program of the bench's worker processes: `python -m console.bench.worker`.

The first line of its input is its Task as JSON. It says `ready`, gets the round's Times as the
second line, works, leaves its log in a file and says `done`. The input's end tells it to leave.
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

from console.bench.worker_round import SharedCounters, Times, WorkerRound, WorkerTask
from console.errors import ConsoleError


def main() -> int:
    """Work one round; the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Unbuffered: a thread that waits in a buffered read would hold the interpreter's end up.
    source = io.FileIO(0, closefd=False)
    line = source.readline()
    if not line:
        return 1
    task = WorkerTask(**json.loads(line))

    def wait_for_go() -> Times:
        _say("ready")
        go = source.readline()
        if not go:
            os._exit(1)
        threading.Thread(target=_leave_with_parent, daemon=True).start()
        return Times(**json.loads(go))

    worker_round = WorkerRound(task, SharedCounters(Path(task.counters)), wait_for_go)
    module, _, name = task.driver.partition(":")
    drive = getattr(importlib.import_module(module), name)
    # A collection reads every message that is kept: milliseconds in which no client moves.
    gc.disable()
    try:
        drive(worker_round)
    except ConsoleError as error:
        _say(f"failed {' '.join(str(error).split())}")
        return 1
    worker_round.end()
    worker_round.call_log.save(Path(task.call_log))
    _say("done")
    return 0


def _say(words: str) -> None:
    os.write(1, f"{words}\n".encode())


def _leave_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
