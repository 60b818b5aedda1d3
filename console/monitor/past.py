"""What is known of the time before: PAST of a feature's package `past`, if there is one."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from console import features
from console.errors import UsageError
from console.monitor.consumers import PastSample
from console.monitor.rates import QueueName
from console.monitor.snapshot import QueueSnapshot


class QueueForecast(Protocol):
    """What to expect of a queue's coming hours."""

    def with_filling(self, seen: QueueSnapshot, now: datetime, /) -> QueueSnapshot:
        """With the time at which a ring will be full, where the forecast says so."""
        ...


class Forecasts(Protocol):
    """Of the queues of one connection."""

    def refreshed(self) -> Mapping[QueueName, QueueForecast]:
        """Those that are known, read again after a while. Reads from disk."""
        ...


class Past(Protocol):
    """Its methods read from disk."""

    def folder(self) -> Path:
        """Where the screens of this user record."""
        ...

    def consumers(
        self, root: Path, connection: str, schema: str, queue: str, now: datetime, /
    ) -> Sequence[PastSample]:
        """Of the last day, by what is recorded in that folder, in order of time."""
        ...

    def forecasts(self, connection: str, /) -> Forecasts: ...

    def expecting(
        self, seen: Sequence[QueueSnapshot], connection: str, /
    ) -> Sequence[QueueSnapshot]:
        """Rings with the time at which they will be full by the forecast. ConsoleError."""
        ...


def past() -> Past | None:
    """None: no feature that is not off knows any."""
    known: Past | None = next((module.PAST for module in features.modules("past")), None)
    return known


def without_past(what: str) -> UsageError:
    """The refusal of what is of no use without it."""
    return UsageError(
        f"{what} is off.",
        why="It belongs to the feature history, which is not in this console.",
        next_step="Install a dbq-console that has it.",
    )
