"""Consumers and producers of a queue: the values, and their labels.

All texts are their own: untrusted.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from console.catalog import Queue
from console.formats import NOT_APPLICABLE, UNKNOWN, count, duration, rate


@dataclass(frozen=True)
class Consumer:
    """Sessions that are one consumer or producer. None: nothing, or not known: see `unknown`."""

    name: str | None
    """The name that it gives when it pops, or its application_name."""
    does: tuple[str, ...]
    """`pop`, `push`; empty: it was only seen to lock rows."""
    program: str | None
    host: str | None
    user: str | None
    sessions: int | None
    since: datetime | None
    """When its oldest session connected; all times are by the database's clock."""
    last_pop: datetime | None
    last_call: datetime | None
    """When a statement of it that pops or pushes was last seen, successful or not."""
    messages_per_second: float | None
    claims: int | None
    estimated: tuple[str, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Field -> why it is not known."""
    identities: tuple[str, ...] = ()
    """The first of its sessions, as claims name them."""
    last_seen: datetime | None = None
    """If it has disconnected: when it was last seen."""

    @property
    def identity(self) -> tuple[str | None, ...]:
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
            "consumers": [consumer.as_json() for consumer in self.consumers],
            "missing": [{"what": what, "why": why} for what, why in self.missing.items()],
        }


@dataclass(frozen=True)
class PastSample:
    """The consumers that were seen at one time, as it was recorded."""

    at: datetime
    consumers: tuple[Consumer, ...]
    late: bool
    """Whether messages waited for too long."""


_TITLES = {"last_pop": "last pop", "messages_per_second": "messages a second", "does": "pops?"}


def name(consumer: Consumer) -> str:
    return consumer.name or UNKNOWN


def actions(consumer: Consumer) -> str:
    """`pops`, `pops, pushes`."""
    return (
        ", ".join(f"{what}{'es' if what == 'push' else 's'}" for what in consumer.does) or UNKNOWN
    )


def client(consumer: Consumer) -> str:
    program = consumer.program if consumer.program != consumer.name else None
    parts = (consumer.host, program, f"user {consumer.user}" if consumer.user else None)
    return ", ".join(part for part in parts if part) or UNKNOWN


def sessions(consumer: Consumer) -> str:
    return (
        UNKNOWN
        if consumer.sessions is None
        else count(consumer.sessions)
        if consumer.sessions
        else "gone"
    )


def ago(then: datetime | None, now: datetime) -> str:
    return UNKNOWN if then is None else duration(max(0.0, (now - then).total_seconds()))


def last_pop(consumer: Consumer, now: datetime) -> str:
    if consumer.does == ("push",):
        return NOT_APPLICABLE
    return ago(consumer.last_pop, now)


def last_call(consumer: Consumer, now: datetime) -> str:
    return ago(consumer.last_call, now)


def rate_estimate(consumer: Consumer) -> str:
    per_second = consumer.messages_per_second
    return UNKNOWN if per_second is None else f"≈{rate(per_second)}"


def claims(consumer: Consumer) -> str:
    if consumer.claims is None:
        return NOT_APPLICABLE
    return count(consumer.claims, estimated="claims" in consumer.estimated)


def unknown_reasons(consumers: Iterable[Consumer]) -> list[str]:
    """Each reason once: `last pop: no claim of it was seen yet`."""
    fields_by_reason: dict[str, dict[str, None]] = {}
    for consumer in consumers:
        for name_, why in consumer.unknown.items():
            fields_by_reason.setdefault(why, {})[_TITLES.get(name_, name_)] = None
    return [f"{', '.join(names)}: {why}" for why, names in fields_by_reason.items()]


NO_RECORDER = "nothing records it: the feature history is not in this console"
NOT_RECORDED = (
    "nothing was recorded of it in the last day: an open console records, or dbq-console record"
)


def latest(samples: Iterable[PastSample]) -> tuple[Consumer, ...]:
    """Each as it was last seen."""
    seen = (consumer for sample in samples for consumer in sample.consumers)
    return tuple({consumer.identity: consumer for consumer in seen}.values())


def disconnected(seen: Collection[Consumer], there: Collection[Consumer]) -> tuple[Consumer, ...]:
    """The consumers that are no longer there, the last seen first."""
    with_client = {
        consumer.name for consumer in (*seen, *there) if consumer.program or consumer.host
    }
    present = {consumer.identity for consumer in there}
    consumers = [
        consumer
        for consumer in seen
        # Claims that outlived their session have no program and no host.
        if consumer.identity not in present
        and (consumer.program or consumer.host or consumer.name not in with_client)
    ]
    return tuple(sorted(consumers, key=lambda consumer: str(consumer.last_seen), reverse=True))
