"""Service Broker: disabled queues, activation that does not start, conversations that pile up,
messages that cannot be delivered."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from console.catalog import Kind, Queue
from console.doctor.context import MOST, CheckContext, CheckGroup, counted
from console.doctor.finding import Code, Finding
from console.doctor.repairs import enable_queue, end_conversations
from console.formats import duration
from console.monitor.limits import Severity
from console.monitor.rates import BrokerHealth, health

MANY_CONVERSATIONS = 1_000
"""One for each session, or two for a message in delivery, are normal; this many more are not."""
ENDED = "CD"
"""Ended by both sides: the engine removes such a conversation half an hour later."""
HALF_ENDED = {"DI": "ended by the other side alone", "ER": "broken"}
"""States of conversations that wait to be ended here."""
_NOTIFIED = "NOTIFIED"

BROKER_OFF = Code(
    "broker_off",
    Severity.CRITICAL,
    "Service Broker is disabled in the database: nothing is delivered",
    judgement="enabling it waits until no other session is in the database: choose the time",
)
QUEUE_OFF = Code(
    "broker_queue_off",
    Severity.CRITICAL,
    "a broker queue is disabled, by poison messages or by hand: nothing can be popped",
    repair="doctor --fix --code: it enables the queue",
)
UNDELIVERED = Code(
    "broker_undelivered",
    Severity.CRITICAL,
    "messages are stuck in the transmission queue, with the reason that the server gives",
    judgement="fix the reason that the server gives: a route, a certificate, a disabled queue",
)
LEAK = Code(
    "broker_conversations",
    Severity.WARNING,
    "conversations pile up: they are started and not ended",
    judgement="only the code of both sides shows which one does not end them",
    repair="doctor --fix --code: it ends those that the other side has ended",
)
NOT_STARTED = Code(
    "broker_activation",
    Severity.WARNING,
    "activation is on and does not work: its monitor is missing, or its procedure receives nothing",
    judgement="its procedure fails: see the server's error log",
)
ACTIVATION_OFF = Code(
    "broker_activation_off",
    Severity.NOTE,
    "activation is registered but disabled, while messages wait",
    judgement="it was left disabled: ALTER QUEUE ... WITH ACTIVATION (STATUS = ON) starts it",
)


def _check_state(context: CheckContext) -> Iterator[Finding]:
    with context.transaction() as connection:
        broker_health = health(connection, context.queue)
    yield from check_state(context.queue, broker_health)


def check_state(queue: Queue, health: BrokerHealth) -> Iterator[Finding]:
    if not health.broker_enabled:
        yield Finding(
            BROKER_OFF,
            "Service Broker is disabled in this database",
            evidence={"broker_enabled": False},
            cause="after a restore or attach of the database it stays disabled until it is enabled",
            consequence="pushes pile up in sys.transmission_queue, and no pop gets them. "
            "ALTER DATABASE CURRENT SET ENABLE_BROKER waits until no other session is in the "
            "database",
        )
        return
    if health.enabled:
        return
    off = "takes no messages" if health.is_receive_enabled else "is disabled"
    yield Finding(
        QUEUE_OFF,
        f"the queue {off}; {counted(health.transmission or 0, 'message')} not delivered",
        evidence={
            "is_receive_enabled": health.is_receive_enabled,
            "is_enqueue_enabled": health.is_enqueue_enabled,
            "transmission": health.transmission,
        },
        cause="five pops of one message were rolled back in a row (a poison message, still at the "
        "head), or it was disabled by hand",
        consequence="every pop fails, and pushes pile up in sys.transmission_queue until it is "
        "enabled",
        repair=None if queue.kind is not Kind.INSTALLED else enable_queue(queue),
    )


@dataclass(frozen=True)
class Undelivered:
    found: int
    oldest_seconds: float | None
    status: str | None


def _check_undelivered(context: CheckContext) -> Iterator[Finding]:
    if context.can_query("undelivered messages", "undelivered"):
        for undelivered in context.query(Undelivered, "undelivered"):
            yield from check_undelivered(undelivered, context.thresholds.stuck_after_seconds)


def check_undelivered(undelivered: Undelivered, limit_seconds: float) -> Iterator[Finding]:
    """Normally a message is in the transmission queue for milliseconds."""
    oldest = undelivered.oldest_seconds or 0.0
    if not undelivered.found or (not undelivered.status and oldest < limit_seconds):
        return
    yield Finding(
        UNDELIVERED,
        f"{counted(undelivered.found, 'message')} not delivered, "
        f"the oldest for {duration(oldest)}: "
        f"{undelivered.status or 'the server gives no reason'}",
        evidence={
            "count": undelivered.found,
            "oldest_seconds": undelivered.oldest_seconds,
            "transmission_status": undelivered.status,
        },
        cause=undelivered.status or "the server has not tried yet, or is busy with other messages",
        consequence="they are kept, and delivered once the reason is fixed; until then no pop sees "
        "them",
        for_seconds=undelivered.oldest_seconds,
    )


@dataclass(frozen=True)
class _States:
    state: str
    found: int


def _check_conversations(context: CheckContext) -> Iterator[Finding]:
    if context.can_query("conversations", "conversations"):
        states = {row.state: row.found for row in context.query(_States, "conversations")}
        ready = None if context.snapshot is None else context.snapshot.ready
        yield from check_leak(context.queue, states, ready)


def check_leak(queue: Queue, states: Mapping[str, int], ready: int | None) -> Iterator[Finding]:
    """More open conversations than undelivered messages account for; or more ended ones than are
    counted."""
    open_now = sum(count for state, count in states.items() if state != ENDED)
    ended = states.get(ENDED, 0)
    if open_now <= MANY_CONVERSATIONS + 2 * (ready or 0) and ended <= MOST:
        return
    half_ended = sum(states.get(state, 0) for state in HALF_ENDED)
    piling = open_now > MANY_CONVERSATIONS + 2 * (ready or 0)
    what = f"{counted(open_now, 'conversation')} open" if piling else ""
    if not piling:
        what = f"{counted(ended, 'conversation')} ended and not removed yet"
    why = "; ".join(f"{states[s]:,} {text}" for s, text in HALF_ENDED.items() if states.get(s))
    repairable = bool(half_ended) and queue.kind is Kind.INSTALLED
    yield Finding(
        LEAK,
        what + (f": {why}" if why else ""),
        evidence={"by_state": dict(states), "ready": ready},
        cause="one side ends its conversations, or no longer exists, and the other never ends them"
        if half_ended
        else "a conversation is started for every message and never ended, or all at once",
        consequence="they stay in the database for good, and every SEND and RECEIVE gets slower",
        repair=end_conversations(queue) if repairable else None,
    )


@dataclass(frozen=True)
class Activation:
    """What a queue starts when messages arrive. `monitored`: whether its monitor is visible."""

    activated: str | None
    enabled: bool
    monitored: bool
    state: str | None
    activated_seconds: float | None


def _check_activation(context: CheckContext) -> Iterator[Finding]:
    if not context.can_query("activation", "activation"):
        return
    for activation in context.query(Activation, "activation"):
        if activation.activated and activation.enabled and not activation.monitored:
            missing = context.database.capabilities.missing
            why = missing.get("sessions", "this login lacks VIEW SERVER STATE")
            context.unseen.append(f"activation: its monitor is not visible: {why}")
            continue
        ready = None if context.snapshot is None else context.snapshot.ready
        yield from check_activation(activation, ready, context.thresholds.stuck_after_seconds)


def check_activation(
    activation: Activation, ready: int | None, limit_seconds: float
) -> Iterator[Finding]:
    if not activation.activated or not ready:
        return
    evidence = {
        "procedure": activation.activated,
        "state": activation.state,
        "activated_seconds": activation.activated_seconds,
        "ready": ready,
    }
    if not activation.enabled:
        yield Finding(
            ACTIVATION_OFF,
            f"{activation.activated} is registered but disabled, {ready:,} ready",
            evidence=evidence,
            cause="installing leaves it disabled, and maintenance may have too",
            consequence="no procedure is started for these messages; consumers that call pop get "
            "them. "
            "ALTER QUEUE ... WITH ACTIVATION (STATUS = ON) starts it",
        )
        return
    waited = activation.activated_seconds or 0.0
    if activation.state is not None and not (
        activation.state == _NOTIFIED and waited >= limit_seconds
    ):
        return
    missing = activation.state is None
    yield Finding(
        NOT_STARTED,
        f"activation is on, {ready:,} ready, and "
        + ("the queue has no monitor" if missing else f"nothing received for {duration(waited)}"),
        evidence=evidence,
        cause="the queue's monitor was dropped: the queue, its procedure or the broker is "
        "disabled, or was until recently"
        if missing
        else f"{activation.activated} was started and receives nothing: it fails or lacks a right; "
        "its errors are in the server's error log",
        consequence="no procedure is started for these messages; consumers that call pop get them. "
        "ALTER QUEUE ... WITH ACTIVATION (STATUS = OFF), then ON, restarts it",
        for_seconds=None if missing else waited,
    )


CHECKS = CheckGroup(
    (BROKER_OFF, QUEUE_OFF, UNDELIVERED, LEAK, NOT_STARTED, ACTIVATION_OFF),
    {
        "the state of the queue": _check_state,
        "undelivered messages": _check_undelivered,
        "conversations": _check_conversations,
        "activation": _check_activation,
    },
    lambda queue: queue.design.waits_itself,
)
