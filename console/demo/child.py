"""A worker process, seen from the process that starts it."""

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

from console import processes


@contextmanager
def noted() -> Iterator[threading.Event]:
    """Inside, Ctrl-C, SIGTERM and SIGHUP only set the event that is given."""
    event = threading.Event()
    with _taken(event, []):
        yield event


@contextmanager
def held() -> Iterator[threading.Event]:
    """Inside, the same; afterwards the first one that came does what it would have done."""
    event = threading.Event()
    numbers: list[int] = []
    try:
        with _taken(event, numbers):
            yield event
    finally:
        if numbers:
            signal.raise_signal(numbers[0])


@contextmanager
def _taken(event: threading.Event, numbers: list[int]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals, and only it may say what they do
        return

    def note(number: int, _: FrameType | None) -> None:
        numbers.append(number)
        event.set()

    wanted = [signal.SIGINT, signal.SIGTERM]
    # Under nohup a lost terminal is no reason to end.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        wanted.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


_LEAVE_SECONDS = 6.0


class Child:
    """One worker process. `role` is a key of `console.demo.worker.ROLES`."""

    def __init__(self, role: str, settings: dict[str, object], log: IO[bytes] | None) -> None:
        """Start it. What it has to tell goes to `log`, or to where our own log goes."""
        self._process = processes.start("console.demo.worker", role, stderr=log)
        processes.send_line(self._process, json.dumps(settings))

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
