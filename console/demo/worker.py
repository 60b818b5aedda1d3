"""The main program of the demo's worker processes: `python -m console.demo.worker ROLE`.

The first line of its input is its settings as JSON; the input's end tells it to leave.
"""

import io
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from console.demo import faults, traffic

ROLES: dict[str, Callable[[Any, threading.Event], None]] = {
    "traffic": traffic.run,
    "faults": faults.run,
    "victim": faults.run_victim,
}
"""What a worker may be. Each runs until the event is set, then finishes what it has in hand."""

_LEAVE_SECONDS = 4.0


def main() -> None:
    """Run one role until the parent closes the pipe or is gone."""
    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(process)d %(message)s"
    )
    # Unbuffered: a thread that waits in a buffered read would hold the interpreter's end up.
    line = io.FileIO(0, closefd=False).readline()
    if not line:
        return
    threading.Thread(target=_leave_with_parent, args=(stop,), daemon=True).start()
    ROLES[sys.argv[1]](json.loads(line), stop)


def _leave_with_parent(stop: threading.Event) -> None:
    while not stop.is_set() and os.read(0, 1024):
        pass
    stop.set()
    time.sleep(_LEAVE_SECONDS)  # a thread may hang in a server that does not answer
    os._exit(1)


if __name__ == "__main__":
    main()
