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
    engines=EVERYWHERE,
    options=_OPTIONS,
    states=("ready", "scheduled"),
    verbs=_VERBS,
    roles={**_ROLES, "due_at": "due_time"},
    needed_roles=("payload", "due_at"),
    order=Order.DUE,
)
