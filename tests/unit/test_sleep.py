"""A main thread sleeps no longer than it should, whenever a signal comes."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from console.clock import sleep
from tests.servers import PATIENCE_SECONDS

_NUMBER = signal.SIGUSR1


class _HandledError(Exception):
    pass


@contextmanager
def caught_elsewhere() -> Iterator[None]:
    """A signal comes that another thread catches for the kernel: as one that comes right before a
    sleep begins, it ends no sleep."""
    handled, missed = threading.Event(), threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        handled.set()
        raise _HandledError

    def catch() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {_NUMBER})
        time.sleep(0.05)  # the main thread's own sleep has begun
        os.kill(os.getpid(), _NUMBER)
        if not handled.wait(PATIENCE_SECONDS):
            missed.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before = signal.signal(_NUMBER, handle)
    signal.pthread_sigmask(signal.SIG_BLOCK, {_NUMBER})
    catcher = threading.Thread(target=catch)
    try:
        catcher.start()
        yield
    finally:
        catcher.join()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {_NUMBER})
        signal.signal(_NUMBER, before)
        assert not missed.is_set()


def test_a_signal_that_ends_no_sleep_is_handled_nevertheless() -> None:
    with pytest.raises(_HandledError), caught_elsewhere():
        sleep(3600.0)


def test_it_ends_with_its_event_or_after_its_time() -> None:
    stop = threading.Event()
    assert not sleep(0.0, stop)
    assert not sleep(-1.0, stop)
    threading.Timer(0.01, stop.set).start()
    assert sleep(3600.0, stop)
