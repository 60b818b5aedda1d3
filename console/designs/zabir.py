"""Omar Al Zabir, "Building High Performance Queue in Database" (2010)."""

from console.designs.model import Design, Flow, Option, Order
from console.designs.options import (
    EVERY_VERB,
    EVERYWHERE,
    FINISHING_VERBS,
    MAX_BYTES,
    NOTIFY,
    PAYLOAD,
)

_ROLES = {
    "id": "id",
    "pushed_at": "queue_date_time",
    "status": "status",
    "claimed_at": "claimed_at",
    "claimed_by": "claimed_by",
    "error": "errors",
    "attempts": "attempts",
    "done_at": "done_at",
}
_STATES = ("ready", "claimed", "error", "done")

STATUS = Design(
    name="status",
    title="status queue",
    source='Zabir, "QueueSlow"',
    summary=(
        "One wide table with a status; batches are locked, updated and counted, one consumer at a "
        "time. Done rows stay until they are archived."
    ),
    advice=(
        "Promises a history: a row goes from pending to processing to processed and stays until "
        "it is archived, payload and all. It costs speed and room: consumers take their batches "
        "one after the other, every change rewrites the whole wide row, and the table grows until "
        "somebody archives. Choose it for batches with one consumer, or where others read the "
        "table as their report; else take split or claim."
    ),
    engines=EVERYWHERE,
    options=(PAYLOAD, MAX_BYTES, NOTIFY),
    states=_STATES,
    verbs=(*EVERY_VERB, *FINISHING_VERBS),
    roles={**_ROLES, "payload": "text_data"},
    needed_roles=("id", "status", "payload"),
    order=Order.LAX,
    flow=Flow.CLAIMED,
    keeps_row=True,
)

SPLIT = Design(
    name="split",
    title="split meta/data queue",
    source="Zabir, QueueMeta and QueueData",
    summary=(
        "What is searched in a narrow table, the payload beside it: updates stay small whatever "
        "the payload. Done rows stay until they are archived."
    ),
    advice=(
        "Promises what status does, history included, but keeps what changes in a narrow table "
        "and the payload beside it, so that updates stay small whatever the payload, and with "
        "dequeue=single many consumers work at once. It costs a second table: two inserts a push "
        "and a join a pop. Choose it for large payloads whose messages must stay on record after "
        "they were processed, and archive them round the clock."
    ),
    engines=EVERYWHERE,
    options=(
        PAYLOAD,
        MAX_BYTES,
        NOTIFY,
        Option(
            "dequeue",
            "single: one statement that skips locked rows; two_step: choose, update, compare",
            "single",
            choices=("single", "two_step"),
        ),
    ),
    states=_STATES,
    verbs=(*EVERY_VERB, *FINISHING_VERBS),
    roles=_ROLES,
    needed_roles=("id", "status"),
    order=Order.LAX,
    flow=Flow.CLAIMED,
    keeps_row=True,
    table_suffix="_meta",
)
