"""The messages that an action selects at one moment, its cut-off: how many, which, what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from console.formats import UNKNOWN, count
from console.monitor.filters import Filters
from console.monitor.message import Message
from console.monitor.message_count import Group


class SelectedError(NamedTuple):
    """One error of an error group, as it was when its text was read; a batch checks it again."""

    id: str | None
    attempts: int | None
    error_hash: str

    @property
    def message(self) -> Message:
        """As a message to be locked and moved: nothing else of it is known."""
        id_, attempts, error_hash = self
        return Message("", id_, "error", attempts=attempts, error_hash=error_hash)


@dataclass(frozen=True)
class Total:
    """How many messages are in a state; None: not known."""

    count: int | None
    estimated: bool = False

    @property
    def text(self) -> str:
        return UNKNOWN if self.count is None else count(self.count, estimated=self.estimated)


@dataclass(frozen=True)
class SelectedMessages:
    filters: Filters
    states: tuple[str, ...]
    cutoff: datetime
    """By the server's clock."""
    count: int
    """Messages that it would act on."""
    by_state: Mapping[str, int]
    totals: Mapping[str, Total]
    """All matching messages of each state. Empty: more than `limit`, and not counted."""
    excluded: Mapping[str, int]
    """Reason -> matching messages that would be skipped."""
    oldest_seconds: float | None
    """Since it came into its state."""
    newest_seconds: float | None
    payload_bytes: int | None
    """None: not known without reading the payloads."""
    sample: tuple[Message, ...]
    detail: str
    """For the audit."""
    production: bool = False
    consequences: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    targets: tuple[SelectedError, ...] = ()
    """The errors of an error group."""
    by_group: Mapping[Group, int] = field(default_factory=dict)
    """Group -> how many of it the action would act on."""
    complete: bool = True
    """False: the search was cut short, and there may be more."""
