"""The clock by which ages and rates are told."""

import sys
import time


def _that_counts_sleep() -> int | None:
    """The one that runs on while the machine is suspended; None: the usual one has to do.

    Linux stops its monotonic clock then, and so does Python's on macOS: figures from before a night
    in a bag would look a second old in the morning.
    """
    if sys.platform == "darwin":
        return time.CLOCK_MONOTONIC
    return getattr(time, "CLOCK_BOOTTIME", None)


_CLOCK = _that_counts_sleep()


def elapsed() -> float:
    """Seconds since some moment, those too in which this machine was asleep. Never runs back."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
