"""Remus Rusanu, "Using tables as Queues" (2010)."""

from console.designs.model import Design, Option, Order
from console.designs.options import (
    ARCHIVE_AT_POP,
    EVERY_VERB,
    EVERYWHERE,
    MAX_BYTES,
    NOTIFY,
    PAYLOAD,
    SESSION_VERBS,
)

_OPTIONS = (PAYLOAD, MAX_BYTES, NOTIFY, ARCHIVE_AT_POP)
_VERBS = (*EVERY_VERB, *SESSION_VERBS)
_ROLES = {"id": "id", "pushed_at": "pushed_at", "payload": "payload"}

HEAP = Design(
    name="heap",
    title="heap queue",
    source="Rusanu",
    summary=(
        "No order and no index, any row that is free: the simplest, and fast while vacuum keeps "
        "the table short. How old the oldest message is cannot be told."
    ),
    advice=(
        'Promises only that each message comes once. It costs the order, and the figure "age": '
        "nothing tells the oldest message. With no index to keep up, push and pop are as cheap as "
        "a row can be, as long as vacuum keeps up with the deletes. Choose it for independent "
        "jobs of which none must come before another, and where nobody will ask how old the "
        "oldest is."
    ),
    engines=EVERYWHERE,
    options=_OPTIONS,
    states=("ready",),
    verbs=_VERBS,
    roles=_ROLES,
    needed_roles=("payload",),
    order=Order.NONE,
    age_is_known=False,
)

FIFO = Design(
    name="fifo",
    title="FIFO queue",
    source="Rusanu",
    summary=(
        "An ordered key and a delete that returns its row. order=lax lets many consumers work at "
        "once; order=strict keeps the exact order, one transaction at a time."
    ),
    advice=(
        "Promises the order of pushes: with order=lax nearly, for locked rows are skipped and a "
        "late commit comes late; with order=strict exactly, one transaction at a time. A pop "
        "deletes, so a message whose consumer dies after its commit is gone, and a consumer that "
        "works inside the pop's transaction holds its row for that long. It costs one index and "
        "the dead rows of the deletes. Choose it first: it is simple, quick (12,300 messages a "
        "second) and forgiving; take strict only where the exact order is worth one consumer's "
        "speed."
    ),
    engines=EVERYWHERE,
    options=(
        *_OPTIONS,
        Option(
            "order",
            "lax: locked rows are skipped; strict: one transaction pops at a time, exact order",
            "lax",
            choices=("lax", "strict"),
        ),
    ),
    states=("ready",),
    verbs=_VERBS,
    roles=_ROLES,
    option_orders={("order", "strict"): Order.STRICT},
)

STACK = Design(
    name="stack",
    title="LIFO stack",
    source="Rusanu",
    summary="The newest first: what lies at the bottom waits for as long as the top is busy.",
    advice=(
        "Promises the newest message first. It costs the old ones: while the top is busy the "
        "bottom waits, for ever if need be, and no figure but the age tells. Choose it where only "
        "fresh messages have a value, as previews or undo steps, and purge what has grown old."
    ),
    engines=EVERYWHERE,
    options=_OPTIONS,
    states=("ready",),
    verbs=_VERBS,
    roles=_ROLES,
    order=Order.LIFO,
)

PENDING = Design(
    name="pending",
    title="pending queue",
    source="Rusanu",
    summary="Each message has a due time: popped in the order of due times and never before.",
    advice=(
        "Promises that no message comes before it is due, and that of those that are due the "
        "earliest comes first. It costs an index on the due time, and dead rows at its head where "
        "much becomes due at once. Choose it for timers, retries with a pause, and reminders; for "
        "messages that are all due at once fifo is the same with less."
    ),
    engines=EVERYWHERE,
    options=_OPTIONS,
    states=("ready", "scheduled"),
    verbs=_VERBS,
    roles={**_ROLES, "due_at": "due_time"},
    needed_roles=("payload", "due_at"),
    order=Order.DUE,
)
