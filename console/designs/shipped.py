"""The shipped designs, by author."""

from dataclasses import replace
from functools import partial

from console.designs.model import (
    ARCHIVE_AT_POP,
    CONSUMERS,
    EVERY_VERB,
    FINISHING_VERBS,
    HISTORY,
    MAX_BYTES,
    NO_SUBSCRIBERS,
    NOTIFY,
    PAYLOAD,
    Design,
    Flow,
    Option,
)
from console.designs.order import Order

# Thomas Kejser, "Implementing Message Queues in Relational Databases" (2012).

NAIVE = Design(
    name="naive",
    title="naive queue",
    source='Kejser, "naïve"',
    summary=(
        "A sequence, a unique index, delete the first in order: consumers wait for each other. "
        "A baseline to measure against, and because such queues exist."
    ),
    advice=(
        "Promises that messages leave in the order of their numbers, one consumer after the "
        "other, as far as their pushes are committed: PostgreSQL does not see an open push, and "
        "later numbers overtake it; on SQL Server pops wait for it, once its row is inserted. "
        "It costs speed: every consumer waits for the one before it to commit, so more "
        "consumers make nothing faster (2,900 messages a second where fifo does 12,300 on the "
        "same machine). Choose it as a baseline to measure against, or to operate one that already "
        "exists; never for something new."
    ),
    details=(
        "One table, one sequence, one unique index. A pop deletes the row with the lowest number "
        "and skips nothing: if another consumer holds that row, it waits. One that pops and does "
        "not commit stops all the others; the waits show it at the root of the tree."
    ),
    options=(PAYLOAD, replace(MAX_BYTES, default="8000"), NOTIFY, ARCHIVE_AT_POP),
    states=("ready",),
    verbs=EVERY_VERB,
    roles={"id": "message_id", "pushed_at": "time", "payload": "message"},
)

RING = Design(
    name="ring",
    title="preallocated ring with two sequences",
    source='Kejser, "LMAX\'ed"',
    summary=(
        "Preallocated slots, updated in place: a steady rate, also under an old transaction, and "
        "the least forgiving design. It has a fixed capacity, and a caller that dies costs a "
        "number: the console finds and repairs it."
    ),
    advice=(
        "Promises a steady rate and no growth: slots are made once and updated in place, so "
        "nothing is deleted, and while an old transaction keeps vacuum away it goes on at the same "
        "rate, where a queue whose rows die falls to a fraction (measured after one minute: ring "
        "2,344 messages a second, fifo 237). Without one, fifo is about as fast, and faster one "
        "message at a time. It costs a fixed capacity (a "
        "full ring refuses pushes), every slot's full width on disk from the first day, and "
        "attention: each call that is rolled back or killed consumes a number for nothing, which "
        "the console finds and repairs. Messages come in the order in which numbers were drawn, "
        "not in that of commits. Choose it for a steady, high rate of small messages, if you "
        "monitor it; with in_hand=on where consumers may die."
    ),
    details=(
        "One sequence numbers the pushes, another the pops, and number n is in slot n mod size; "
        "the key is the only index. A full ring returns null. A sequence is not transactional, "
        "so a caller that rolls back or dies consumes its number for nothing. A consumed push "
        "number is a hole; a message whose pop number was consumed is an orphan, which no pop "
        "fetches. The doctor proves both and repairs them under traffic. A pop that comes before "
        "its message parks its number, and later pops check parked numbers first: at most 64; if "
        "there are more, each has its turn within a proven number of calls (fewer than 2 for "
        "each KiB of the parked numbers' table on PostgreSQL; 2 for each 40 numbers parked since "
        "the oldest on SQL Server). A parked number whose push was lost is a hole, and no pop "
        "drops it: that is safe only once no push can still hold it. doctor --fix does so, and "
        "record automatically, once such a hole is an hour old or there are more than slots. A "
        "message whose consumer dies after its pop is gone, unless in_hand=on. With content=apart "
        "a slot has only numbers; one whose message was deleted is not popped. With "
        "subscribers=a,b each gets every message once: pop('a'), pop_many(n, 'a'); with in_hand=on "
        "pop('a', consumer, bound), pop_many(n, 'a', consumer, bound), complete('a', id, "
        "attempts), fail('a', id, error, attempts). Each costs a narrow row per slot; one that "
        "stops fills the ring, until skip moves what it owes into the archive."
    ),
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
            "size", "number of slots: the most messages it can hold", "10000", maximum=100_000_000
        ),
        Option(
            "cache",
            "how many numbers of each sequence the server caches: it writes once for all of "
            "them. Its price: a crash or a fail-over skips them, each skipped pop number is an "
            "orphan, and a ring that skips as many as it has slots is full until a relay. auto: "
            "a quarter of the slots, of the pushes' at most 100, of the pops' 50",
            "auto",
            words=("auto",),
            maximum=1_000_000,
            engines=("mssql",),
        ),
        Option(
            "commit_wait_ms",
            "for how many milliseconds a pop waits for a message whose push is not committed yet, "
            "checking every 5; then its number is parked. With a synchronous replica a commit "
            "takes 5 to 20. Its price: a pop whose message is lost takes that long",
            "5",
            maximum=1000,
            engines=("mssql",),
        ),
        HISTORY,
        CONSUMERS,
        Option(
            "in_hand",
            "pop keeps the message in <queue>_in_hand until complete: for consumers that may die",
            "off",
            choices=("off", "on"),
        ),
        Option(
            "content",
            "where messages are stored: in slots, or apart, in tables "
            "<queue>_content_N, and of any size "
            "(max_bytes: unlimited). Its price: a push also inserts a row, a pop deletes one",
            "slot",
            choices=("slot", "apart"),
        ),
        Option("partitions", "with content=apart: in how many tables", "8", maximum=64),
        Option(
            "subscribers",
            "names, each of which gets every message once, in order: pop('billing'). A slot is "
            "free when all have popped it, so the slowest fills the ring",
            NO_SUBSCRIBERS,
            words=(NO_SUBSCRIBERS,),
            names=True,
            maximum=32,
        ),
    ),
    needs=("owner",),
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


# Remus Rusanu, "Using tables as Queues" (2010).

_DELETING_OPTIONS = (PAYLOAD, MAX_BYTES, NOTIFY, ARCHIVE_AT_POP)
_DELETING_ROLES = {"id": "id", "pushed_at": "pushed_at", "payload": "payload"}
_deleting = partial(
    Design,
    source="Rusanu",
    options=_DELETING_OPTIONS,
    states=("ready",),
    verbs=EVERY_VERB,
    roles=_DELETING_ROLES,
)

HEAP = _deleting(
    name="heap",
    title="heap queue",
    summary=(
        "No order and no index, any row that is free: the simplest, and fast while vacuum keeps "
        "the table short. The age of the oldest message is not known."
    ),
    advice=(
        'Promises only that each message comes once. It costs the order, and the figure "age": '
        "nothing shows the oldest message. With no index to maintain, push and pop are as cheap as "
        "a row can be, as long as vacuum keeps up with the deletes. Choose it for independent jobs "
        "that need no order, and if the oldest's age is not needed."
    ),
    details=(
        "A table without an order: a pop deletes any unlocked row, and the age is shown "
        "as ?. Where an old transaction keeps dead rows, every pop reads all of them again: the "
        "finding dead_head, or a queue that is slow although no session waits."
    ),
    needed_roles=("payload",),
    order=Order.NONE,
    age_is_known=False,
)

FIFO = _deleting(
    name="fifo",
    title="FIFO queue",
    summary=(
        "An ordered key and a delete that returns its row. order=lax lets many consumers work at "
        "once; order=strict keeps the exact order, one transaction at a time."
    ),
    advice=(
        "Promises the order of pushes: with order=lax nearly, as locked rows are skipped and a "
        "late commit comes late; with order=strict exactly, one transaction at a time. A pop "
        "deletes, so a message whose consumer dies after its commit is gone, and a consumer that "
        "works inside the pop's transaction holds its row for that long. It costs one index and "
        "the dead rows of the deletes. Choose it first: it is simple, quick (12,300 messages a "
        "second) and forgiving; take strict only where the exact order is worth one consumer's "
        "speed."
    ),
    details=(
        "A pop deletes the first row and returns it in one statement. With order=lax a message "
        "may be overtaken by the next ones while its push, or the pop before it, is not "
        "committed. With order=strict one transaction pushes and one pops at a time, as slowly as "
        "those transactions are long. A consumer that works inside the pop's transaction gets its "
        "row back by rollback."
    ),
    options=(
        *_DELETING_OPTIONS,
        Option(
            "order",
            "lax: locked rows are skipped; strict: one transaction pops at a time, exact order",
            "lax",
            choices=("lax", "strict"),
        ),
    ),
    option_orders={("order", "strict"): Order.STRICT},
)

STACK = _deleting(
    name="stack",
    title="LIFO stack",
    summary="The newest first: the bottom waits for as long as the top is busy.",
    advice=(
        "Promises the newest message first. It costs the old ones: while the top is busy the "
        "bottom waits, possibly forever, and only the age shows it. Choose it where only fresh "
        "messages matter, such as previews or undo steps, and purge old ones."
    ),
    details=("Like fifo from the other end. The finding starved says that the bottom waits."),
    order=Order.LIFO,
)

PENDING = _deleting(
    name="pending",
    title="pending queue",
    summary="Each message has a due time: popped in the order of due times and never before.",
    advice=(
        "Promises that no message comes before it is due, and that of those that are due the "
        "earliest comes first. It costs an index on the due time, and dead rows at its head if "
        "many become due at once. Choose it for timers, retries with a pause, and reminders; for "
        "messages that are all due at once fifo does the same for less."
    ),
    details=(
        "The server's clock decides. It does not promise that a message comes as soon as it is "
        "due: that takes a consumer that polls. If very many fall due together, pops read "
        "past dead rows at the head until vacuum has run."
    ),
    states=("ready", "scheduled"),
    verbs=(*EVERY_VERB, "reschedule"),
    roles={**_DELETING_ROLES, "due_at": "due_time"},
    push_takes=("due",),
    needed_roles=("payload", "due_at"),
    order=Order.DUE,
)


# Ákos Pintér, "Implementing a Simple Queue" (2021).

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
        "complete removes it. What failed stays with its error, what a dead consumer leaves "
        "behind stays claimed until an operator, or a timer of yours, releases it; so a message "
        "can be worked on twice. It costs one more write per message than a design that deletes. "
        "Choose it where losing a message is worse than doing one twice, and where errors are to "
        "be examined and retried."
    ),
    details=(
        "A pop marks the oldest free row, with who claims it, in one statement; complete deletes "
        "it, fail keeps it with its error. attempts tells a late consumer that its claim is no "
        "longer its own. What can go wrong is a stuck claim or an error, and both are visible."
    ),
    options=(PAYLOAD, MAX_BYTES, NOTIFY, HISTORY, CONSUMERS),
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
    flow=Flow.CLAIMED,
    keeps_row=True,
    id_type="uuid",
    push_takes=("id",),
)


# Omar Al Zabir, "Building High Performance Queue in Database" (2010).

_STATUS_ROLES = {
    "id": "id",
    "pushed_at": "queue_date_time",
    "status": "status",
    "claimed_at": "claimed_at",
    "claimed_by": "claimed_by",
    "error": "errors",
    "attempts": "attempts",
    "done_at": "done_at",
}
_with_status = partial(
    Design,
    states=("ready", "claimed", "error", "done"),
    verbs=(*EVERY_VERB, *FINISHING_VERBS),
    flow=Flow.CLAIMED,
    keeps_row=True,
    push_takes=("title",),
)

STATUS = _with_status(
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
        "it is archived. Choose it for batches with one consumer, where others read the table as "
        "their report, or because such a table already exists; else take split or claim."
    ),
    details=(
        "A batch is locked, updated and counted, and the next consumer waits until it is "
        "committed: one that does not commit stops the others. The finding archive_lags says that "
        "archiving lags behind."
    ),
    options=(PAYLOAD, MAX_BYTES, NOTIFY, HISTORY, CONSUMERS),
    roles={**_STATUS_ROLES, "payload": "text_data"},
    needed_roles=("id", "status", "payload"),
)

SPLIT = _with_status(
    name="split",
    title="split meta/data queue",
    source="Zabir, QueueMeta and QueueData",
    summary=(
        "What is searched in a narrow table, the payload in another: updates stay small whatever "
        "the payload. Done rows stay until they are archived."
    ),
    advice=(
        "Promises what status does, history included, but keeps what changes in a narrow table and "
        "the payload in another, so that updates stay small whatever the payload, and with "
        "dequeue=single many consumers work at once. It costs a second table: two inserts per push "
        "and a join per pop. Choose it for large payloads whose messages must stay on record after "
        "they are processed, and archive them continuously."
    ),
    details=(
        "dequeue=two_step is Zabir's first way, one batch at a time. A message without its payload "
        "is possible if somebody deletes rows by hand: the finding payload_missing."
    ),
    options=(
        PAYLOAD,
        MAX_BYTES,
        NOTIFY,
        HISTORY,
        CONSUMERS,
        Option(
            "dequeue",
            "single: one statement that skips locked rows; two_step: choose, update, compare",
            "single",
            choices=("single", "two_step"),
        ),
    ),
    roles=_STATUS_ROLES,
    needed_roles=("id", "status"),
    table_suffix="_meta",
)


# SQL Server Service Broker, discussed by Rusanu and by Kejser as the server's own queue.

BROKER = Design(
    name="broker",
    title="Service Broker queue",
    source="SQL Server Service Broker",
    summary=(
        "The server's own queue: waiting and activation are the engine's, and so are leaking "
        "conversations and poison messages. Five pops rolled back in a row disable it."
    ),
    advice=(
        "Promises what the server itself does: consumers wait inside the engine and are woken, "
        "procedures can be started as messages come, and a message can go to another database in "
        "the same transaction. It takes understanding: conversations that are not ended leak, five "
        "pops rolled back in a row disable the queue, and a message cannot be put back in its "
        "place. Choose it where you are on SQL Server anyway, waiting must cost nothing, and "
        "you know Service Broker."
    ),
    details=(
        "Procedures start as messages come with activation=on, and order holds within a "
        "conversation. The findings are broker_conversations and broker_queue_off. A popped "
        "message cannot be put back in its place."
    ),
    engines=("mssql",),
    options=(
        PAYLOAD,
        MAX_BYTES,
        ARCHIVE_AT_POP,
        Option(
            "conversation",
            "kept: each session reuses one conversation, which keeps the order of its sends; "
            "each: one conversation per message, slower, with no order between them",
            "kept",
            choices=("kept", "each"),
        ),
        Option(
            "activation",
            "on: installs an example procedure that the engine starts when messages come",
            "off",
            choices=("off", "on"),
        ),
    ),
    states=("ready",),
    verbs=(*EVERY_VERB, "requeue"),
    roles={"id": "id", "pushed_at": "pushed_at", "payload": "message_body"},
    order=Order.SESSIONS,
    option_orders={("conversation", "each"): Order.NONE},
    needs=("broker", "owner"),
    id_type="uuid",
    waits_itself=True,
)
