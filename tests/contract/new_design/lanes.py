"""A queue with an express lane."""

from console.designs.model import Design, Order
from console.designs.options import EVERY_VERB, MAX_BYTES, PAYLOAD, SESSION_VERBS

LANES = Design(
    name="lanes",
    title="queue with an express lane",
    source="nobody's article",
    summary="What is pushed into lane 0 goes before all that wait in lane 1.",
    advice="Choose it where a few messages cannot wait behind the many.",
    engines=("postgresql",),
    options=(PAYLOAD, MAX_BYTES),
    states=("ready",),
    verbs=(*EVERY_VERB, *SESSION_VERBS),
    roles={"id": "id", "pushed_at": "pushed_at", "payload": "payload"},
    order=Order.LAX,
    like="fifo",
)
