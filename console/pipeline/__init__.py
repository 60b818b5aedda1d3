"""The Spark pipeline: archives and history too large for one table or one machine.

The only package that knows pyspark, and only `session` imports it: a job is plain Python, handed
the tasks to run, so that each runs and is tested without Spark as well.
"""

from typing import Protocol


class PhaseProgress(Protocol):
    """Hears how many parts of a phase are done, with how many rows; `size` is in bytes."""

    def __call__(self, phase: str, /, *, done: int, of: int, rows: int, size: int) -> None: ...


def no_progress(phase: str, /, *, done: int, of: int, rows: int, size: int) -> None:
    """Where nobody listens."""
