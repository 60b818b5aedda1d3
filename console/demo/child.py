"""A worker process, seen from the process that starts it.

It gets its settings, with the database's password in them, by its standard input, never by its
command line. That pipe then stays open: its end tells the worker that it shall leave, whether this
side closed it or died.
"""

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from threading import Event
from typing import IO

import console

_LEAVE_SECONDS = 6.0


class Child:
    """One worker process. `role` is a key of `console.demo.worker.ROLES`."""

    def __init__(self, role: str, settings: dict[str, object], log: IO[bytes] | None) -> None:
        """Start it. What it has to tell goes to `log`, or to where our own log goes."""
        self._process = subprocess.Popen(
            # -P: not the folder in which the user is; another project's "console" may lie there.
            [sys.executable, "-P", "-m", "console.demo.worker", role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env=_environment(),
            start_new_session=True,  # a Ctrl-C is for us: we end the workers in good order
        )
        pipe = self._process.stdin
        if pipe is not None:
            pipe.write(json.dumps(settings).encode() + b"\n")
            pipe.flush()

    def wait_for_word(self, seconds: float, give_up: Event) -> bool:
        """Wait for the one line that a worker says. False: it ended, was late, or we gave up."""
        output = self._process.stdout
        deadline = time.monotonic() + seconds
        while output is not None and not give_up.is_set() and time.monotonic() < deadline:
            if select.select([output], [], [], 0.05)[0]:
                return bool(os.read(output.fileno(), 100))
        return False

    def ask_to_leave(self) -> None:
        """Close its input; it finishes what it has in hand and ends."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def stop(self) -> None:
        """Ask it to leave and wait until it has; kill it where that takes too long."""
        self.ask_to_leave()
        try:
            self._process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close()

    def kill(self) -> None:
        """SIGKILL, as the kernel does when memory is short."""
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _environment() -> dict[str, str]:
    """Ours, and the place where this package was found, which may be a checkout."""
    place = str(Path(console.__file__).resolve().parent.parent)
    given = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([place, given] if given else [place])}
