"""Where readings come from, and what time it is: the two things that tests replace."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from console.catalog import STUCK_AFTER_SECONDS
from console.clock import elapsed
from console.engines import Database
from console.monitor import Reading, Sampler
from console.monitor.asking import StuckAfter


def _utc() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Clock:
    """`monotonic` is for ages, `utc` is what the corner of the screen shows."""

    monotonic: Callable[[], float] = elapsed
    utc: Callable[[], datetime] = _utc


class Feed(Protocol):
    """One connection's source of readings. No method of it ever waits."""

    @property
    def name(self) -> str:
        """The connection's name on the screen."""

    @property
    def interval_seconds(self) -> float:
        """The pause between two looks."""

    @interval_seconds.setter
    def interval_seconds(self, seconds: float) -> None: ...

    def start(self, deliver: Callable[[Reading], None]) -> None:
        """Begin to look; `deliver` may be called in any thread."""

    def look_now(self) -> None:
        """Do not wait for the rest of the pause."""

    def stop(self) -> None:
        """Deliver nothing more. Does not wait for a look that is under way."""


class SamplerFeed:
    """The feed of a real database: a sampler in its own daemon thread."""

    def __init__(
        self,
        database: Database,
        *,
        interval_seconds: float = 1.0,
        stuck_after_seconds: StuckAfter = STUCK_AFTER_SECONDS,
        name: str = "",
    ) -> None:
        self.name = name or database.label
        self._database = database
        self._interval_seconds = interval_seconds
        self._stuck_after_seconds = stuck_after_seconds
        self._sampler: Sampler | None = None

    @property
    def interval_seconds(self) -> float:
        """The pause between two looks."""
        return self._interval_seconds

    @interval_seconds.setter
    def interval_seconds(self, seconds: float) -> None:
        self._interval_seconds = seconds
        if self._sampler is not None:
            self._sampler.interval_seconds = seconds

    def start(self, deliver: Callable[[Reading], None]) -> None:
        """Begin to look; `deliver` is called in the sampler's thread."""
        self._sampler = Sampler(
            self._database,
            deliver,
            interval_seconds=self._interval_seconds,
            stuck_after_seconds=self._stuck_after_seconds,
        )
        self._sampler.start()

    def look_now(self) -> None:
        """Do not wait for the rest of the pause."""
        if self._sampler is not None:
            self._sampler.look_now()

    def stop(self) -> None:
        """Deliver nothing more; a look that hangs in a dead server is left to its daemon thread."""
        if self._sampler is not None:
            self._sampler.stop()
