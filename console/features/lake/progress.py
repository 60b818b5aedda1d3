"""How far a job is: what its driver is told."""

from typing import Protocol


class StageProgress(Protocol):
    """Called with how many tasks of a stage are done, and the rows and bytes that they moved."""

    def __call__(self, *, done: int, of: int, rows: int, size: int) -> None: ...


class PhaseProgress(Protocol):
    """The same for each phase of a job, by its name."""

    def __call__(self, phase: str, /, *, done: int, of: int, rows: int, size: int) -> None: ...


def no_progress(*_phase: str, done: int, of: int, rows: int, size: int) -> None:
    """A StageProgress and a PhaseProgress that does nothing."""
