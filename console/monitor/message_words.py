"""What a message tells, in words: the same on the command line and on screens.

All texts of a message are data: whoever shows them makes them safe first.
"""

from console.catalog import Queue
from console.designs import Flow, Order
from console.formats import NOT_APPLICABLE, UNKNOWN, count, duration
from console.monitor.errors import ErrorGroup
from console.monitor.message import Message


def columns(queue: Queue) -> tuple[str, ...]:
    """What the messages of a queue tell of themselves, each of which fits a column."""
    ring = ("number", "slot") if queue.design.flow is Flow.NUMBERS else ()
    due = ("due",) if queue.design.order is Order.DUE else ()
    tries = ("tries",) if queue.finishes else ()
    return ("id", *ring, "state", "age", *tries, "bytes", *due, "pushed")


def figure(message: Message, column: str) -> str:
    """One of those that are neither a time nor free text."""
    if column == "tries":
        return tries(message)
    if column in {"number", "slot"}:
        value = message.number if column == "number" else message.slot
        return NOT_APPLICABLE if value is None else str(value)
    if column == "age":
        return UNKNOWN if message.age_seconds is None else duration(message.age_seconds)
    return UNKNOWN if message.payload_bytes is None else count(message.payload_bytes)


def tries(message: Message) -> str:
    """How often it was popped."""
    if message.attempts is not None:
        return str(message.attempts)
    in_its_slot = message.number is not None
    return NOT_APPLICABLE if in_its_slot else UNKNOWN


def owner(claimed_by: str | None) -> str:
    """Who claimed: the name that the consumer gave first, for lines are short."""
    if claimed_by is None:
        return UNKNOWN
    session, named, consumer = claimed_by.partition(" consumer=")
    return f"{consumer} ({session})" if named else claimed_by


def tried(group: ErrorGroup) -> str:
    """How often the messages of a kind of error were popped: `1`, `1 to 5`, `?`."""
    least, most = (
        UNKNOWN if n is None else str(n) for n in (group.attempts_least, group.attempts_most)
    )
    return least if least == most else f"{least} to {most}"
