"""What a verb would do to messages: how many, which, what follows from it; and its texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from console.audit import Subject
from console.catalog import Queue
from console.formats import UNKNOWN, count, duration
from console.monitor.filters import Filters
from console.monitor.message import Message

MANY_MESSAGES = 1_000
"""More than these require the queue's name as confirmation."""


class SelectedError(NamedTuple):
    """One error of an error group, as it was when its text was read; a batch checks it again."""

    id: str | None
    attempts: int | None
    error_hash: str

    @property
    def message(self) -> Message:
        """As a message to be locked and moved, of which nothing else is known."""
        return Message("", self.id, "error", attempts=self.attempts, error_hash=self.error_hash)


@dataclass(frozen=True)
class Total:
    """How many messages are in a state; None: not known."""

    count: int | None
    estimated: bool = False

    @property
    def text(self) -> str:
        return UNKNOWN if self.count is None else count(self.count, estimated=self.estimated)


@dataclass(frozen=True)
class Plan:
    verb: str
    queue: Queue
    connection: str
    production: bool
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
    sql: str
    requires_name: bool
    detail: str
    age_label: str = "in that state"
    consequences: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    targets: tuple[SelectedError, ...] = ()
    """The errors of an error group."""
    complete: bool = True
    """False: the search was cut short, and there may be more."""
    canary: str = ""
    """What the canary does, for the operator; empty: no canary."""

    @property
    def requires_queue_name(self) -> bool:
        """Whether `y` is not enough."""
        return self.requires_name or self.production or self.count > MANY_MESSAGES

    @property
    def subject(self) -> Subject:
        return Subject(
            self.verb,
            self.queue.schema,
            self.queue.name,
            self.connection,
            self.filters.words,
            self.cutoff,
            self.count,
            self.detail,
        )

    def as_json(self) -> dict[str, object]:
        """Keys as they are documented; the sample has keys and times, never a payload."""
        return {
            "verb": self.verb,
            "queue": self.queue.name,
            "schema": self.queue.schema,
            "design": self.queue.design.name,
            "connection": self.connection,
            "production": self.production,
            "filters": list(self.filters.words),
            "states": list(self.states),
            "cutoff": self.cutoff.isoformat(),
            "count": self.count,
            "by_state": dict(self.by_state),
            "totals": {state: vars(total) for state, total in self.totals.items()},
            "complete": self.complete,
            "canary": self.canary or None,
            "skipped": dict(self.excluded),
            "oldest_seconds": self.oldest_seconds,
            "newest_seconds": self.newest_seconds,
            "payload_bytes": self.payload_bytes,
            "sample": [_sampled(message) for message in self.sample],
            "sql": self.sql,
            "consequences": list(self.consequences),
            "obstacles": list(self.obstacles),
            "confirmation": "name" if self.requires_queue_name else "y",
            "detail": self.detail,
        }

    def lines(self, *, sample: bool = True) -> list[str]:
        """`sample`: with the names of the first messages."""
        of = f"{self.queue.label} (design {self.queue.design.name}{self.queue.subscriber_suffix})"
        where = f"{of} on {self.connection}"
        production = ", PRODUCTION" if self.production else ""
        noun = "message" if self.count == 1 else "messages"
        found = [f"{self.verb} {where}{production}", f"  {self.count:,} {noun}{self._totals_text}"]
        if self.filters.words:
            found.append(f"  filters: {'  '.join(self.filters.words)}")
        if self.filters.error_group is not None:
            found.append("  each by its id, attempts and error: what has changed is skipped")
        if not self.complete:
            found.append("  the search was cut short: there may be more of this group")
        if self.oldest_seconds is not None and self.newest_seconds is not None:
            ages = " to ".join(
                dict.fromkeys((duration(self.newest_seconds), duration(self.oldest_seconds)))
            )
            found.append(
                f"  {self.age_label} for {ages}, at {self.cutoff:%H:%M:%S} UTC, the cut-off"
            )
        if self.payload_bytes is not None and self.count:
            found.append(f"  payloads: {self.payload_bytes:,} bytes")
        found += [f"  skipped: {n:,} {why}" for why, n in self.excluded.items()]
        if self.filters.keep_newest:
            found.append(f"  skipped: the newest {self.filters.keep_newest:,}")
        found += [f"  {line}" for line in self.consequences]
        if self.canary:
            found.append(f"  canary: {self.canary}")
        if self.sample and sample:
            names = ", ".join(one.id or one.key or "?" for one in self.sample)
            found.append(f"  the first: {names}")
        return found + [f"  REFUSED: {line}" for line in self.obstacles]

    @property
    def _totals_text(self) -> str:
        if self.count and not self.totals:
            return ", the first that match; further matches were not counted"
        shown = {state: total for state, total in self.totals.items() if total.count != 0}
        totals = [f"{total.text} {state}" for state, total in shown.items()]
        return f" (of {', '.join(totals)})" if totals else ""


def _sampled(message: Message) -> dict[str, object]:
    return {
        "id": message.id,
        "state": message.state,
        "age_seconds": message.age_seconds,
        "attempts": message.attempts,
        "error": message.error,
        "claimed_by": message.claimed_by,
    }
