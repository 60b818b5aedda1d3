"""Worker processes, and signals in the process that starts them."""

import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType
from typing import IO

from console.load import processes


@contextmanager
def signals_noted() -> Iterator[threading.Event]:
    """In the body, Ctrl-C, SIGTERM and SIGHUP only set the event."""
    event = threading.Event()
    with _signals_recorded(event, []):
        yield event


@contextmanager
def signals_deferred() -> Iterator[threading.Event]:
    """The same; afterwards the first signal that came takes effect."""
    event = threading.Event()
    numbers: list[int] = []
    try:
        with _signals_recorded(event, numbers):
            yield event
    finally:
        if numbers:
            signal.raise_signal(numbers[0])


@contextmanager
def _signals_recorded(event: threading.Event, numbers: list[int]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can handle signals
        return

    def note(number: int, _: FrameType | None) -> None:
        numbers.append(number)
        event.set()

    handled = [signal.SIGINT, signal.SIGTERM]
    # Under nohup SIGHUP stays ignored.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handled.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


_LEAVE_SECONDS = 6.0


class Child:
    """One worker process. `role` is a key of `console.features.demo.worker.ROLES`."""

    def __init__(self, role: str, settings: dict[str, object], log: IO[bytes] | None) -> None:
        """Start it. Its log goes to `log`, or else to our own standard error."""
        self._process = processes.start("console.features.demo.worker", role, stderr=log)
        processes.send_line(self._process, json.dumps(settings))

    def wait_for_line(self, seconds: float, give_up: Event) -> bool:
        """Wait for the one line that a worker sends. False: it ended, was late, or `give_up`."""
        output = self._process.stdout
        deadline = time.monotonic() + seconds
        while output is not None and not give_up.is_set() and time.monotonic() < deadline:
            if select.select([output], [], [], 0.05)[0]:
                return bool(os.read(output.fileno(), 100))
        return False

    def request_stop(self) -> None:
        """Close its input; it finishes its current work and ends."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def stop(self) -> None:
        """Request a stop and wait for it; kill it if that takes too long."""
        self.request_stop()
        try:
            self._process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        processes.close(self._process)

    def kill(self) -> None:
        """SIGKILL, as the kernel does when memory is short."""
        processes.kill(self._process)
