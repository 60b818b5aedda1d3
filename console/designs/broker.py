"""SQL Server Service Broker, discussed by Rusanu and by Kejser as the server's own queue."""

from console.designs.model import Design, Option, Order
from console.designs.options import ARCHIVE_AT_POP, EVERY_VERB, MAX_BYTES, PAYLOAD

BROKER = Design(
    name="broker",
    title="Service Broker queue",
    source="SQL Server Service Broker",
    summary=(
        "The server's own queue: waiting and activation are the engine's, and so are conversations "
        "that leak and messages that poison a queue. Five pops rolled back in a row switch it off."
    ),
    advice=(
        "Promises what the server itself does: consumers wait inside the engine and are woken, "
        "procedures can be started as messages come, and a message can go to another database in "
        "the same transaction. It costs understanding: conversations that nobody ends leak, five "
        "pops rolled back in a row switch the queue off, and nothing can be put back in its "
        "place. Choose it where SQL Server is given, waiting must cost nothing, and somebody "
        "knows Service Broker."
    ),
    engines=("mssql",),
    options=(
        PAYLOAD,
        MAX_BYTES,
        ARCHIVE_AT_POP,
        Option(
            "conversation",
            "kept: each session reuses one conversation, which keeps the order of its sends; "
            "each: one conversation a message, slower, with no order between them",
            "kept",
            choices=("kept", "each"),
        ),
        Option(
            "activation",
            "on: makes an example of a procedure that the engine starts when messages come",
            "off",
            choices=("off", "on"),
        ),
    ),
    states=("ready",),
    verbs=(*EVERY_VERB, "requeue", "release"),
    roles={"id": "id", "pushed_at": "pushed_at", "payload": "message_body"},
    order=Order.SESSIONS,
    option_orders={("conversation", "each"): Order.NONE},
    needs=("broker",),
    id_type="uuid",
    waits_itself=True,
)
