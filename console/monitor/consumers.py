"""Consumers and producers of a queue, as they were seen at a moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from console.catalog import Queue


@dataclass(frozen=True)
class Consumer:
    """Sessions that are one consumer or producer. All texts are its own: untrusted.

    None: not known, for the reason in `unknown`, or there is no such thing.
    """

    name: str | None
    """What it calls itself when it pops, else its application_name."""
    does: tuple[str, ...]
    """`pop`, `push`; empty: not seen, only that it locks rows there."""
    program: str | None
    host: str | None
    user: str | None
    sessions: int | None
    since: datetime | None
    """Since when the oldest of its sessions is connected; by the database's clock, as all times."""
    last_pop: datetime | None
    last_call: datetime | None
    """When a statement of it was last seen that pops or pushes, whether or not it got anything."""
    messages_per_second: float | None
    claims: int | None
    estimated: tuple[str, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    """What is not known -> why."""
    identities: tuple[str, ...] = ()
    """Its sessions, as claims name them: the first of them."""
    last_seen: datetime | None = None
    """Of one that is gone: when it was there last."""

    @property
    def who(self) -> tuple[str | None, ...]:
        return (self.name, self.program, self.host, self.user)

    def as_json(self) -> dict[str, object]:
        shown = {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in vars(self).items()
        }
        return shown | {
            "does": list(self.does),
            "identities": list(self.identities),
            "estimated": list(self.estimated),
            "unknown": dict(self.unknown),
        }


@dataclass(frozen=True)
class Consumers:
    queue: Queue
    at: datetime
    consumers: tuple[Consumer, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    """What could not be seen -> why."""

    def as_json(self) -> dict[str, object]:
        return {
            "queue": self.queue.name,
            "schema": self.queue.schema,
            "design": self.queue.design.name,
            "at": self.at.isoformat(),
            "consumers": [one.as_json() for one in self.consumers],
            "missing": [{"what": what, "why": why} for what, why in self.missing.items()],
        }
