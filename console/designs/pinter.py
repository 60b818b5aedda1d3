"""Ákos Pintér, "Implementing a Simple Queue" (2021)."""

from console.designs.model import Design, Flow, Order
from console.designs.options import (
    EVERY_VERB,
    EVERYWHERE,
    FINISHING_VERBS,
    MAX_BYTES,
    NOTIFY,
    PAYLOAD,
)

CLAIM = Design(
    name="claim",
    title="test-and-set claim queue",
    source="Pintér",
    summary=(
        "A pop marks the row and leaves it until it is completed or failed: nothing is lost with a "
        "consumer, and a claim whose owner died waits for an operator."
    ),
    advice=(
        "Promises that no message is lost with its consumer: a pop only marks the row, and "
        "complete takes it away. What failed stays with its error, what was left behind stays "
        "claimed until an operator, or a timer of yours, releases it; so a message can be worked "
        "on twice. It costs one write more a message than a design that deletes. Choose it where "
        "losing a message is worse than doing one twice, and where errors are to be looked at and "
        "tried again."
    ),
    engines=EVERYWHERE,
    options=(PAYLOAD, MAX_BYTES, NOTIFY),
    states=("ready", "claimed", "error"),
    verbs=(*EVERY_VERB, *FINISHING_VERBS),
    roles={
        "id": "id",
        "pushed_at": "created_at",
        "claimed_at": "processing_started_at",
        "claimed_by": "claimed_by",
        "error": "errors",
        "attempts": "attempts",
        "payload": "payload",
        "done_at": "done_at",
    },
    needed_roles=("id", "claimed_at", "payload"),
    order=Order.LAX,
    flow=Flow.CLAIMED,
    keeps_row=True,
    id_type="uuid",
)
