"""Running a transaction again that the server undid by itself."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from console.errors import TransientError

Result = TypeVar("Result")

_PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)


def _always() -> bool:
    return True


def again(work: Callable[[], Result], *, while_true: Callable[[], bool] = _always) -> Result:
    """What `work` returns, which must be one whole transaction or less than one.

    Runs it up to six times, as long as it ends with TransientError and `while_true` still holds.
    """
    for pause in _PAUSES_SECONDS:
        try:
            return work()
        except TransientError:
            if not while_true():
                raise
            # Two that were in each other's way must not meet again.
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  # no secret depends on it
    return work()
