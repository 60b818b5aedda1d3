"""Looking at all of a table, stretch after stretch: each statement reads its rows and no more."""

import time
from dataclasses import dataclass, field

STRETCH = 10_000
"""Rows that one statement looks at."""
NEWEST = 2**63 - 1
"""No id is higher: where a walk from the newest down begins."""
MOST_ROWS = 1_000_000
"""So many are looked at; the rest is told."""


@dataclass
class Bound:
    """How far a look goes: so many rows, and so long. Its first stretch it always looks at."""

    seconds: float
    rows: int = 0
    """Looked at so far."""
    _began: float = field(default_factory=time.monotonic)

    def goes_on(self, looked: int) -> bool:
        """Whether to look at another stretch, after one of so many rows."""
        self.rows += looked
        return self.rows < MOST_ROWS and time.monotonic() - self._began < self.seconds

    @property
    def told(self) -> str:
        """What was looked at, in words."""
        return f"{self.rows:,} rows in {time.monotonic() - self._began:.0f} s were"
