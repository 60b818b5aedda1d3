"""Trying again where somebody else holds what an action needs for itself alone."""

import time
from collections.abc import Callable
from typing import TypeVar

from console.errors import BusyError

Done = TypeVar("Done")

_ATTEMPTS_SECONDS = 30.0
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0


def insist(once: Callable[[], Done]) -> Done:
    """What it returns. It is called again after growing pauses; the last BusyError is raised.

    Each call is a transaction that changed nothing where it was kept out.
    """
    deadline = time.monotonic() + _ATTEMPTS_SECONDS
    pause = _FIRST_PAUSE
    while True:
        try:
            return once()
        except BusyError:
            if time.monotonic() + pause > deadline:
                raise
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
