"""Connecting to one database, a thread at a time.

A server that was away meets one caller of each console and not all of them at once; and where that
one cannot connect, those that waited behind it have their answer too.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from console.engines.waiting import why_not_wait

Raw = TypeVar("Raw")

_LOOKS_EVERY_SECONDS = 0.1
"""At whether the thread still has patience."""


class Turns:
    """Whose turn it is to connect."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._error: Exception | None = None

    def connect(self, connect: Callable[[], Raw]) -> Raw:
        """What `connect` gives. Its error, or that of the one who tried while this one waited."""
        before = self._failures
        with self._turn():
            if self._error is not None and self._failures != before:
                raise _again(self._error)
            try:
                return connect()
            except Exception as error:
                # Who only lost patience has not found out how the server is.
                if not why_not_wait():
                    self._failures += 1
                    self._error = error
                raise

    @contextmanager
    def _turn(self) -> Iterator[None]:
        while not self._lock.acquire(timeout=_LOOKS_EVERY_SECONDS):
            if why_not_wait():
                break  # it connects no more: the driver says why
        else:
            try:
                yield
            finally:
                self._lock.release()
            return
        yield


def _again(error: Exception) -> Exception:
    """The same for another thread: one object in two would mix their tracebacks."""
    same = type(error)(*error.args)
    for note in getattr(error, "__notes__", ()):
        same.add_note(note)
    return same
