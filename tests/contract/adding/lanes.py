"""A queue with an express lane."""

from console.designs.model import EVERY_VERB, MAX_BYTES, PAYLOAD, Design
from console.designs.order import Order

LANES = Design(
    name="lanes",
    title="queue with an express lane",
    source="nobody's article",
    summary="What is pushed into lane 0 goes before all that wait in lane 1.",
    advice="Choose it where a few messages cannot wait behind the many.",
    engines=("postgresql",),
    options=(PAYLOAD, MAX_BYTES),
    states=("ready",),
    verbs=EVERY_VERB,
    roles={"id": "id", "pushed_at": "pushed_at", "payload": "payload"},
    order=Order.LAX,
    like="fifo",
)
