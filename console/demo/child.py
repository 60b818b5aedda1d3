"""A worker process, seen from the process that starts it."""

import json
import os
import select
import subprocess
import time
from threading import Event
from typing import IO

from console import processes

_LEAVE_SECONDS = 6.0


class Child:
    """One worker process. `role` is a key of `console.demo.worker.ROLES`."""

    def __init__(self, role: str, settings: dict[str, object], log: IO[bytes] | None) -> None:
        """Start it. What it has to tell goes to `log`, or to where our own log goes."""
        self._process = processes.start("console.demo.worker", role, stderr=log)
        processes.tell(self._process, json.dumps(settings))

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
        processes.close(self._process)

    def kill(self) -> None:
        """SIGKILL, as the kernel does when memory is short."""
        processes.kill(self._process)
