"""Changes of a queue's own objects while callers use it.

A lock that waits for one long transaction stops all callers that come after it, on both engines:
who waits for a lock is served in the order of asking. So each wait is short, and between two of
them those behind it go on.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from console.engines import lock_limit
from console.errors import BusyError

Done = TypeVar("Done")

_ATTEMPTS_SECONDS = 30.0
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_FIRST_LIMIT = 0.2
LONGEST_LIMIT = 1.0
"""Seconds that it waits for a lock; where callers' transactions are longer than the first limit, a
longer one gets in between."""
LINE = (
    f"  it waits for a lock for {_FIRST_LIMIT:g} s, in later attempts for up to "
    f"{LONGEST_LIMIT:g} s, and lets the callers behind it go on in between, for "
    f"{_ATTEMPTS_SECONDS:g} s"
)
"""What a plan says of it."""


def retry_while_busy(once: Callable[[], Done]) -> Done:
    """Call it again after each BusyError, with growing pauses; the last one is raised.

    Each call is one transaction, which has changed nothing where it raised BusyError.
    """
    deadline = time.monotonic() + _ATTEMPTS_SECONDS
    pause, limit = _FIRST_PAUSE, _FIRST_LIMIT
    while True:
        try:
            with lock_limit(limit):
                return once()
        except BusyError:
            if time.monotonic() + pause > deadline:
                raise
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
            limit = min(limit * 2, LONGEST_LIMIT)
