"""Signals that ask a program to end, kept from interrupting what must be finished."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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
