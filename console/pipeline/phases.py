"""How a job says how far it is: phase by phase."""

from typing import Protocol


class Told(Protocol):
    """Hears how many parts of a phase are done, with how many rows; `size` is in bytes."""

    def __call__(self, phase: str, /, *, done: int, of: int, rows: int, size: int) -> None: ...


def untold(phase: str, /, *, done: int, of: int, rows: int, size: int) -> None:
    """Where nobody listens."""
