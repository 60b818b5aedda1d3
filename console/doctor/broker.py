"""Service Broker: a queue that is off, activation that does not start, conversations that pile up,
messages that cannot be delivered."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from console.actions import broker
from console.actions.plan import MANY_MESSAGES
from console.catalog import Kind, Queue
from console.doctor.checks import MOST, ago, ask, can_ask, checked, command, counted
from console.doctor.finding import Code, Finding, Severity
from console.doctor.look import Look
from console.engines import Database
from console.formats import duration
from console.monitor.broker import BrokerHealth, health
from console.rights import Rights

MANY_CONVERSATIONS = 1_000
"""One a session, or two a message on its way, are normal; so many more are not."""
ENDED = "CD"
"""Ended by both sides: the engine takes such a conversation away by itself, half an hour later."""
OVER = {"DI": "ended by the other side alone", "ER": "broken"}
"""States of conversations that wait to be ended here."""
_NOTIFIED = "NOTIFIED"

BROKER_OFF = Code(
    "broker_off",
    Severity.CRITICAL,
    "Service Broker is switched off in the database: nothing is delivered",
)
QUEUE_OFF = Code(
    "broker_queue_off",
    Severity.CRITICAL,
    "a broker queue is switched off, by poison messages or by somebody: nothing can be popped",
)
UNDELIVERED = Code(
    "broker_undelivered",
    Severity.CRITICAL,
    "messages are stuck in the transmission queue, with the reason that the server gives",
)
LEAK = Code(
    "broker_conversations",
    Severity.WARNING,
    "conversations pile up: somebody begins them and does not end them",
)
NOT_STARTED = Code(
    "broker_activation",
    Severity.WARNING,
    "activation is on and does not work: its monitor is gone, or what it starts receives nothing",
)
ACTIVATION_OFF = Code(
    "broker_activation_off",
    Severity.NOTE,
    "activation is registered and switched off, while messages wait",
)

CODES: tuple[Code, ...] = (
    *(BROKER_OFF, QUEUE_OFF, UNDELIVERED, LEAK, NOT_STARTED, ACTIVATION_OFF),
)


def applies(queue: Queue) -> bool:
    """Whether it is one of Service Broker's."""
    return queue.design.waits_itself


def examine(look: Look) -> Iterator[Finding]:
    """Every finding; what cannot be told goes to `look.unseen`."""
    if not applies(look.queue):
        return
    yield from checked(look, "the queue's switches", _switches)
    yield from checked(look, "messages on their way", _undelivered)
    yield from checked(look, "conversations", _conversations)
    yield from checked(look, "activation", _activation)


@dataclass(frozen=True)
class SwitchOn:
    """The queue gives and takes messages again. Implements `Repair`."""

    queue: Queue

    summary: str = "switch the queue on again"
    unattended: bool = False
    """A poison message would switch it off again: somebody looks at its head first."""
    wants_name: bool = False
    rights: Rights = Rights.ADMIN

    @property
    def command(self) -> str:
        """The verb."""
        return command(self.queue, "requeue")

    def plan(self, database: Database) -> Sequence[str]:
        """The verb's plan."""
        return broker.plan_switch(database, self.queue).lines()

    def run(self, database: Database) -> Sequence[str]:
        """Switch it on."""
        broker.switch_on(database, self.queue)
        return ["the queue is on"]


@dataclass(frozen=True)
class EndConversations:
    """Conversations that are over on the other side are ended here too. Implements `Repair`."""

    queue: Queue
    count: int

    summary: str = "end the conversations that are over and hold nothing"
    unattended: bool = True

    @property
    def rights(self) -> Rights:
        """What the connection must be allowed."""
        return Rights.OPERATOR

    @property
    def wants_name(self) -> bool:
        """As the verb does."""
        return self.count > MANY_MESSAGES

    @property
    def command(self) -> str:
        """The verb."""
        return command(self.queue, "release")

    def plan(self, database: Database) -> Sequence[str]:
        """The verb's plan."""
        return broker.plan_conversations(database, self.queue).lines()

    def run(self, database: Database) -> Sequence[str]:
        """End them, in batches."""
        planned = broker.plan_conversations(database, self.queue)
        ended = broker.end_conversations(database, planned).out
        return [f"{ended:,} conversations were ended"]


def _switches(look: Look) -> Iterator[Finding]:
    with look.moment() as connection:
        found = health(connection, look.database.product, look.queue)
    yield from switches_of(look.queue, found)


def switches_of(queue: Queue, found: BrokerHealth) -> Iterator[Finding]:
    """The database's switch, or the queue's own two."""
    if not found.broker_enabled:
        yield Finding(
            BROKER_OFF,
            "Service Broker is off in this database",
            evidence={"broker_enabled": False},
            cause="a restored or attached database has it off until somebody switches it on",
            consequence="pushes pile up in sys.transmission_queue, and no pop gets them. "
            "ALTER DATABASE CURRENT SET ENABLE_BROKER waits until nobody else is in the database",
        )
        return
    if found.is_receive_enabled and found.is_enqueue_enabled:
        return
    off = "takes no messages" if found.is_receive_enabled else "is off"
    yield Finding(
        QUEUE_OFF,
        f"the queue {off}; {counted(found.transmission, 'message')} not delivered",
        evidence={
            "is_receive_enabled": found.is_receive_enabled,
            "is_enqueue_enabled": found.is_enqueue_enabled,
            "transmission": found.transmission,
        },
        cause="five pops of one message were rolled back in a row (a poison message, at the head "
        "still), or somebody switched it off",
        consequence="every pop fails, and pushes pile up in sys.transmission_queue until it is on",
        repair=None if queue.kind is not Kind.INSTALLED else SwitchOn(queue),
    )


@dataclass(frozen=True)
class Undelivered:
    """What waits in the transmission queue."""

    found: int
    oldest_seconds: float | None
    status: str | None


def _undelivered(look: Look) -> Iterator[Finding]:
    if can_ask(look, "messages on their way", "undelivered"):
        for found in ask(look, Undelivered, "undelivered"):
            yield from undelivered_of(found, look.thresholds.stuck_after_seconds)


def undelivered_of(found: Undelivered, limit_seconds: float) -> Iterator[Finding]:
    """A message passes the transmission queue in milliseconds, unless there is a reason."""
    oldest = found.oldest_seconds or 0.0
    if not found.found or (not found.status and oldest < limit_seconds):
        return
    yield Finding(
        UNDELIVERED,
        f"{counted(found.found, 'message')} not delivered, the oldest for {duration(oldest)}: "
        f"{found.status or 'the server gives no reason'}",
        evidence={
            "count": found.found,
            "oldest_seconds": found.oldest_seconds,
            "transmission_status": found.status,
        },
        cause=found.status or "the server has not tried yet, or is busy with others",
        consequence="they are kept and delivered once the reason is gone; no pop sees them before",
        since=ago(found.oldest_seconds),
    )


@dataclass(frozen=True)
class _States:
    state: str
    found: int


def _conversations(look: Look) -> Iterator[Finding]:
    if can_ask(look, "conversations", "conversations"):
        states = {row.state: row.found for row in ask(look, _States, "conversations")}
        ready = None if look.snapshot is None else look.snapshot.ready
        yield from leak_of(look.queue, states, ready)


def leak_of(queue: Queue, states: Mapping[str, int], ready: int | None) -> Iterator[Finding]:
    """More open conversations than messages on their way account for. Ended ones count for none,
    unless there are more than any look counts."""
    open_now = sum(count for state, count in states.items() if state != ENDED)
    ended = states.get(ENDED, 0)
    if open_now <= MANY_CONVERSATIONS + 2 * (ready or 0) and ended <= MOST:
        return
    over = sum(states.get(state, 0) for state in OVER)
    piling = open_now > MANY_CONVERSATIONS + 2 * (ready or 0)
    what = f"{counted(open_now, 'conversation')} open" if piling else ""
    if not piling:
        what = f"{counted(ended, 'conversation')} ended and not taken away yet"
    told = "; ".join(f"{states[s]:,} {why}" for s, why in OVER.items() if states.get(s))
    mendable = bool(over) and queue.kind is Kind.INSTALLED
    yield Finding(
        LEAK,
        what + (f": {told}" if told else ""),
        evidence={"by_state": dict(states), "ready": ready},
        cause="one side ends its conversations, or is gone, and the other never does"
        if over
        else "conversations are begun for every message, and ended by nobody or all at once",
        consequence="each stays in the database for good, and every SEND and RECEIVE gets slower",
        repair=EndConversations(queue, over) if mendable else None,
    )


@dataclass(frozen=True)
class Activation:
    """What a queue starts when messages come. `monitored`: whether this login sees its monitor."""

    activated: str | None
    enabled: bool
    monitored: bool
    state: str | None
    activated_seconds: float | None


def _activation(look: Look) -> Iterator[Finding]:
    if not can_ask(look, "activation", "activation"):
        return
    for found in ask(look, Activation, "activation"):
        if found.activated and found.enabled and not found.monitored:
            missing = look.database.capabilities.missing
            why = missing.get("sessions", "this login lacks VIEW SERVER STATE")
            look.unseen.append(f"activation: its monitor is hidden: {why}")
            continue
        ready = None if look.snapshot is None else look.snapshot.ready
        yield from activation_of(found, ready, look.thresholds.stuck_after_seconds)


def activation_of(found: Activation, ready: int | None, limit_seconds: float) -> Iterator[Finding]:
    """What keeps messages from their consumer; without any messages nothing does."""
    if not found.activated or not ready:
        return
    evidence = {
        "procedure": found.activated,
        "state": found.state,
        "activated_seconds": found.activated_seconds,
        "ready": ready,
    }
    if not found.enabled:
        yield Finding(
            ACTIVATION_OFF,
            f"{found.activated} is registered and switched off, {ready:,} ready",
            evidence=evidence,
            cause="an install leaves it off, and so does whoever maintains it",
            consequence="nobody is started for these messages; consumers that call pop get them. "
            "ALTER QUEUE ... WITH ACTIVATION (STATUS = ON) starts it",
        )
        return
    waited = found.activated_seconds or 0.0
    if found.state is not None and not (found.state == _NOTIFIED and waited >= limit_seconds):
        return
    gone = found.state is None
    yield Finding(
        NOT_STARTED,
        f"activation is on, {ready:,} ready, and "
        + ("the queue has no monitor" if gone else f"nothing received for {duration(waited)}"),
        evidence=evidence,
        cause="the queue's monitor was dropped: the queue, its procedure or the broker is off, or "
        "was until lately"
        if gone
        else f"{found.activated} was started and does not receive: it fails, or may not; its "
        "errors stand in the server's error log",
        consequence="nobody is started for these messages; consumers that call pop get them. "
        "ALTER QUEUE ... WITH ACTIVATION (STATUS = OFF), then ON, begins anew",
        since=None if gone else ago(waited),
    )
