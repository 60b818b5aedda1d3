"""What an action would do, as a value: nothing runs without one, and nothing beyond it.

A plan is made at one moment, its cut-off: what comes into its state later is never part of it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from sqlalchemy import Connection

from console import catalog, sql
from console.actions.audit import Subject
from console.actions.choosing import Candidates
from console.actions.ledger import Ledger
from console.catalog import Kind, Queue
from console.engines import Database, Session
from console.errors import RefusedError, UsageError
from console.formats import duration
from console.monitor.filters import NOTHING, Filters
from console.monitor.message import Message
from console.monitor.walked import Source

MANY_MESSAGES = 1_000
"""An action on more than these wants the queue's name as confirmation."""
SAMPLE = 3
_AT_ONCE = 5_000


class Mover(Protocol):
    """One verb on the messages of one queue: everything that differs between such verbs."""

    @property
    def verb(self) -> str:
        """Its name."""
        ...

    @property
    def states(self) -> tuple[str, ...]:
        """The messages that it takes where the filters name no state."""
        ...

    @property
    def allowed(self) -> tuple[str, ...]:
        """The states that a filter may name."""
        ...

    @property
    def wants_name(self) -> bool:
        """Whether it wants the queue's name however few they are."""
        ...

    @property
    def detail(self) -> str:
        """What the audit keeps besides: a target, a reason."""
        ...

    @property
    def aged(self) -> str:
        """Where, or how, the messages have been for as long as their ages say."""
        ...

    @property
    def source(self) -> Source:
        """The queue, and what its ids and payloads are."""
        ...

    def choice(
        self,
        database: Database,
        session: Session,
        filters: Filters,
        states: Sequence[str],
        cutoff: datetime,
    ) -> Candidates:
        """Those that match, for a plan as for what it plans."""
        ...

    def consider(self, session: Session, chosen: Sequence[Message]) -> Mapping[str, list[Message]]:
        """Of some that match: those that it would leave alone, by the reason."""
        ...

    def consequence(self, session: Session, plan: "Plan") -> tuple[list[str], list[str]]:
        """What follows, in the design's own terms; and what stands in the way."""
        ...

    def script(self) -> str:
        """The statement that would act, as a DBA can read it."""
        ...

    def act(self, connection: Connection, chosen: Sequence[Message], action_id: int) -> Ledger:
        """One batch, in the caller's transaction."""
        ...

    def stops(self, ledger: Ledger) -> str:
        """Why nothing more can be done after a batch that ended so; empty: it goes on."""
        ...


@dataclass(frozen=True)
class Plan:
    """Counted exactly, at the cut-off."""

    verb: str
    queue: Queue
    connection: str
    production: bool
    filters: Filters
    states: tuple[str, ...]
    cutoff: datetime
    """By the server's clock."""
    matching: int
    """Messages that match, before limit and keep-newest."""
    by_state: Mapping[str, int]
    left_alone: Mapping[str, int]
    """Reason -> messages that match and would be left alone."""
    oldest_seconds: float | None
    """Of those it is for, since they came into their state."""
    newest_seconds: float | None
    payload_bytes: int | None
    """None: not known without reading the payloads."""
    sample: tuple[Message, ...]
    """The first that it would take."""
    sql: str
    wants_name: bool
    detail: str
    aged: str = "in that state"
    consequences: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    """Why it cannot be done as it stands."""

    @property
    def count(self) -> int:
        """How many messages it would act on."""
        left = self.matching - sum(self.left_alone.values()) - (self.filters.keep_newest or 0)
        return max(0, left if self.filters.limit is None else min(left, self.filters.limit))

    @property
    def wants_queue_name(self) -> bool:
        """Whether `y` is not enough."""
        return self.wants_name or self.production or self.count > MANY_MESSAGES

    @property
    def subject(self) -> Subject:
        """For the audit."""
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
            "matching": self.matching,
            "by_state": dict(self.by_state),
            "left_alone": dict(self.left_alone),
            "oldest_seconds": self.oldest_seconds,
            "newest_seconds": self.newest_seconds,
            "payload_bytes": self.payload_bytes,
            "sample": [_sampled(message) for message in self.sample],
            "sql": self.sql,
            "consequences": list(self.consequences),
            "obstacles": list(self.obstacles),
            "confirmation": "name" if self.wants_queue_name else "y",
            "detail": self.detail,
        }

    def lines(self) -> list[str]:
        """The plan in words."""
        where = f"{self.queue.label} (design {self.queue.design.name}) on {self.connection}"
        production = ", PRODUCTION" if self.production else ""
        noun = "message" if self.count == 1 else "messages"
        found = [f"{self.verb} {where}{production}", f"  {self.count:,} {noun}{self._which}"]
        if self.filters.words:
            found.append(f"  filters: {'  '.join(self.filters.words)}")
        if self.oldest_seconds is not None and self.newest_seconds is not None:
            ages = " to ".join(
                dict.fromkeys((duration(self.newest_seconds), duration(self.oldest_seconds)))
            )
            found.append(f"  {self.aged} for {ages}, at {self.cutoff:%H:%M:%S} UTC, the cut-off")
        if self.payload_bytes is not None and self.count:
            found.append(f"  payloads: {self.payload_bytes:,} bytes")
        found += [f"  left alone: {n:,} {why}" for why, n in self.left_alone.items()]
        if self.filters.keep_newest:
            found.append(f"  left alone: the newest {self.filters.keep_newest:,}")
        found += [f"  {line}" for line in self.consequences]
        if self.sample:
            found.append("  the first: " + ", ".join(_named(one) for one in self.sample))
        return found + [f"  REFUSED: {line}" for line in self.obstacles]

    @property
    def _which(self) -> str:
        counts = [f"{count:,} {state}" for state, count in self.by_state.items() if count]
        return f" (of {', '.join(counts)})" if counts else ""


def _sampled(message: Message) -> dict[str, object]:
    return {
        "id": message.id,
        "state": message.state,
        "age_seconds": message.age_seconds,
        "attempts": message.attempts,
        "error": message.error,
        "claimed_by": message.claimed_by,
    }


def _named(message: Message) -> str:
    return message.id or message.key or "?"


@dataclass(frozen=True)
class _Moment:
    moment: datetime


@dataclass
class _Count:
    by_state: Counter[str] = field(default_factory=Counter)
    left_alone: Counter[str] = field(default_factory=Counter)
    oldest: float | None = None
    newest: float | None = None
    payload_bytes: int | None = 0
    sample: list[Message] = field(default_factory=list)

    def add(self, chosen: Sequence[Message], left: Mapping[str, list[Message]]) -> None:
        self.by_state.update(message.state for message in chosen)
        self.left_alone.update({why: len(some) for why, some in left.items()})
        out = {id(message) for some in left.values() for message in some}
        taken = [message for message in chosen if id(message) not in out]
        for message in taken:
            if message.payload_bytes is None or self.payload_bytes is None:
                self.payload_bytes = None
            else:
                self.payload_bytes += message.payload_bytes
        ages = [message.age_seconds for message in taken if message.age_seconds is not None]
        if ages:
            self.oldest = max(ages) if self.oldest is None else max(self.oldest, *ages)
            self.newest = min(ages) if self.newest is None else min(self.newest, *ages)
        self.sample += taken[: SAMPLE - len(self.sample)]


def require_verb(queue: Queue, verb: str) -> None:
    """UsageError where queues of its kind have no such verb, with those that it has."""
    if queue.kind is Kind.ARCHIVE:
        raise UsageError(f"Of {queue.name!r} only its archive is left.")
    if why := queue.design.refusals.get(verb):
        raise RefusedError(
            f"{verb} is not for the queue {queue.name!r}, which {queue.design.library} keeps.",
            why=f"{why}.",
        )
    if verb not in queue.verbs:
        raise UsageError(
            f"The queue {queue.name!r} has no verb {verb}.",
            why=f"Its design is {queue.design.name}; that has: {', '.join(queue.verbs)}.",
        )


def states_for(mover: Mover, queue: Queue, filters: Filters) -> tuple[str, ...]:
    """The states that are meant. UsageError for one that the verb never takes."""
    if filters.state is None:
        return mover.states
    if filters.state not in mover.allowed:
        raise UsageError(
            f"{mover.verb} takes no messages in the state {filters.state!r}.",
            next_step=f"Of {queue.name!r} it takes: {', '.join(mover.allowed)}.",
        )
    return (filters.state,)


def make(
    database: Database,
    mover: Mover,
    filters: Filters = NOTHING,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Plan:
    """Count what the action would be for. Changes nothing. `progress` is told how many so far."""
    queue = mover.source.queue
    states = states_for(mover, queue, filters)
    doing = f"plan {mover.verb} of {queue.name!r}"
    with database.session(doing, read_only=True) as session:
        with session.transaction(doing) as connection:
            product = database.product
            (now,) = sql.fetch(
                connection,
                _Moment,
                sql.statements(product.name, "actions")["moment"],
                sql.Scope(),
            )
            production = database.production or catalog.is_production(connection, product)
        counted = _Count()
        choice = mover.choice(database, session, filters, states, now.moment)
        while chosen := choice.next(_AT_ONCE):
            counted.add(chosen, mover.consider(session, chosen))
            progress(sum(counted.by_state.values()))
        plan = Plan(
            verb=mover.verb,
            queue=queue,
            connection=database.label,
            production=production,
            filters=filters,
            states=states,
            cutoff=now.moment,
            matching=sum(counted.by_state.values()),
            by_state=dict(counted.by_state),
            left_alone=dict(counted.left_alone),
            oldest_seconds=counted.oldest,
            newest_seconds=counted.newest,
            payload_bytes=counted.payload_bytes,
            sample=tuple(counted.sample),
            sql=mover.script(),
            wants_name=mover.wants_name,
            detail=mover.detail,
            aged=mover.aged,
        )
        consequences, obstacles = mover.consequence(session, plan)
    return Plan(
        **{**vars(plan), "consequences": tuple(consequences), "obstacles": tuple(obstacles)}
    )


def require_possible(plan: Plan) -> None:
    """RefusedError where something stands in the plan's way."""
    if plan.obstacles:
        raise RefusedError(
            f"{plan.verb} of {plan.queue.name!r} cannot be done as it stands.",
            why=" ".join(plan.obstacles),
        )
