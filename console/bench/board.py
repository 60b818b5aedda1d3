"""Figures that the processes of a round share while it runs: a page of memory, a row for each."""

import mmap
from pathlib import Path

_COLUMNS = 3
_BYTES = 8


class Board:
    """One row a worker: messages pushed, messages popped, the median of its last calls in µs."""

    def __init__(self, path: Path, rows: int = 0) -> None:
        """Open it; with `rows`, make it."""
        if rows:
            path.write_bytes(bytes(rows * _COLUMNS * _BYTES))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._cells = memoryview(self._memory).cast("q")

    def write(self, row: int, pushed: int, popped: int) -> None:
        """Say how far one worker is. Each writes its own row only."""
        at = row * _COLUMNS
        self._cells[at], self._cells[at + 1] = pushed, popped

    def write_median(self, row: int, microseconds: int) -> None:
        """Say how long its calls take now."""
        self._cells[row * _COLUMNS + 2] = microseconds

    @property
    def pushed(self) -> int:
        """Messages that all workers pushed so far."""
        return sum(self._cells[0::_COLUMNS])

    @property
    def popped(self) -> int:
        """Messages that all workers popped so far."""
        return sum(self._cells[1::_COLUMNS])

    def medians(self) -> list[int]:
        """How long calls take now, by worker, in µs; 0: not known yet."""
        return list(self._cells[2::_COLUMNS])

    def close(self) -> None:
        """Give the memory back."""
        self._cells.release()
        self._memory.close()
