"""Figures that the processes of a round share while it runs: a page of memory, a row for each."""

import mmap
from pathlib import Path

_COLUMNS = 5
_BYTES = 8


class Board:
    """One row a worker: messages pushed, messages popped, then how long its last calls took."""

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

    def write_took(self, row: int, p50: int, p95: int, p99: int) -> None:
        """Say how long its calls take now, in microseconds."""
        at = row * _COLUMNS
        self._cells[at + 2], self._cells[at + 3], self._cells[at + 4] = p50, p95, p99

    @property
    def pushed(self) -> int:
        """Messages that all workers pushed so far."""
        return sum(self._cells[0::_COLUMNS])

    @property
    def popped(self) -> int:
        """Messages that all workers popped so far."""
        return sum(self._cells[1::_COLUMNS])

    def took(self) -> list[tuple[int, int, int]]:
        """How long calls take now, by worker: p50, p95, p99 in microseconds; 0: not known yet."""
        cells = list(self._cells)
        return list(zip(*(cells[column::_COLUMNS] for column in (2, 3, 4)), strict=True))

    def close(self) -> None:
        """Give the memory back."""
        self._cells.release()
        self._memory.close()
