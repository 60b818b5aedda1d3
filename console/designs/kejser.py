"""Thomas Kejser, "Implementing Message Queues in Relational Databases" (2012)."""

from dataclasses import replace

from console.designs.model import Design, Flow, Option, Order
from console.designs.options import (
    ARCHIVE_AT_POP,
    EVERY_VERB,
    EVERYWHERE,
    FINISHING_VERBS,
    MAX_BYTES,
    NOTIFY,
    PAYLOAD,
)

NAIVE = Design(
    name="naive",
    title="naive queue",
    source='Kejser, "naïve"',
    summary=(
        "A sequence, a unique index, delete the first in order: consumers wait for each other. "
        "To measure against, and because such queues exist."
    ),
    advice=(
        "Promises that messages leave in the order of their numbers, one consumer after the "
        "other. It costs speed: every consumer waits for the one before it to commit, so more "
        "consumers make nothing faster (2,900 messages a second where fifo does 12,300 on the "
        "same machine). Choose it to measure against, or to look after one that is already there; "
        "never for something new."
    ),
    engines=EVERYWHERE,
    options=(PAYLOAD, replace(MAX_BYTES, default="8000"), NOTIFY, ARCHIVE_AT_POP),
    states=("ready",),
    verbs=EVERY_VERB,
    roles={"id": "message_id", "pushed_at": "time", "payload": "message"},
    order=Order.LAX,
)

RING = Design(
    name="ring",
    title="preallocated ring with two sequences",
    source='Kejser, "LMAX\'ed"',
    summary=(
        "Preallocated slots, updated in place: the fastest design and the least forgiving. It has "
        "a fixed capacity, and a caller that dies costs a number: the console finds and mends it."
    ),
    advice=(
        "Promises the most messages a second and no growth: slots are made once and updated in "
        "place, so there is nothing to vacuum and nothing to delete. It costs a fixed capacity (a "
        "full ring refuses pushes), every slot's full width on disk from the first day, and "
        "attention: each call that is rolled back or killed spends a number for nothing, which "
        "the console finds and mends. Messages come in the order in which numbers were drawn, not "
        "of commits. Choose it for a steady, high rate of small messages where somebody watches; "
        "with in_hand=on where consumers may die."
    ),
    engines=EVERYWHERE,
    options=(
        PAYLOAD,
        Option(
            "max_bytes",
            "the largest payload in bytes; every slot is prefilled at this width",
            "1000",
            maximum=7000,
        ),
        NOTIFY,
        ARCHIVE_AT_POP,
        Option(
            "size", "how many slots: the most messages it can hold", "10000", maximum=100_000_000
        ),
        Option(
            "in_hand",
            "pop keeps the message in <queue>_in_hand until complete: for consumers that may die",
            "off",
            choices=("off", "on"),
        ),
    ),
    states=("ready",),
    verbs=(*EVERY_VERB, "resize", "relay"),
    option_verbs={("in_hand", "on"): FINISHING_VERBS},
    option_states={("in_hand", "on"): ("claimed", "error")},
    roles={
        "slot": "slot",
        "id": "message_id",
        "pushed_at": "time",
        "payload": "message",
        "reference_count": "reference_count",
        "push_sequence": "_push_seq",
        "pop_sequence": "_pop_seq",
    },
    needed_roles=("slot", "id", "payload", "reference_count", "push_sequence", "pop_sequence"),
    order=Order.NUMBERS,
    flow=Flow.NUMBERS,
)
