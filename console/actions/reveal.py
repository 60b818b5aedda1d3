"""Show one message without its masks: who did that is in the audit before anybody sees it."""

from dataclasses import dataclass

from console import audit
from console.catalog import Queue
from console.engines import Database
from console.errors import BusyError, ConnectionFailedError, RefusedError, UsageError
from console.monitor.message import Message
from console.monitor.messages import message
from console.rights import Rights


@dataclass(frozen=True)
class Revealed:
    """The message without masks, and where it is written that it was shown."""

    message: Message | None
    """None: it is no longer there in that state."""
    only_locally: bool
    """The database's audit could not be written; this machine's own was."""


def reveal(
    database: Database,
    queue: Queue,
    key: str,
    *,
    rights: Rights,
    payload_bytes: int | None = None,
) -> Revealed:
    """Read the message at `key`, as a page of messages gave it, with nothing hidden.

    RefusedError without the rights of an operator, and where nobody could keep that it was done.
    """
    filters = (f"key={key}",)
    subject = audit.Subject(
        "reveal", queue.schema, queue.name, database.label, filters=filters, planned=1
    )
    if rights < Rights.OPERATOR:
        error = RefusedError(
            "Masked values are not shown.",
            why=f"That needs the right operator; this connection has {rights.word}.",
            next_step="Use a connection with more rights.",
        )
        audit.note(subject, audit.Outcome.REFUSED, detail=str(error))
        raise error
    only_locally = not _kept_in_the_database(database, subject)
    found = message(database, queue, key, payload_bytes=payload_bytes)
    return Revealed(found, only_locally)


def _kept_in_the_database(database: Database, subject: audit.Subject) -> bool:
    """Whether the database keeps it; where it cannot, this machine must."""
    doing = "record in the audit that a message is revealed"
    try:
        with database.transaction(doing) as connection:
            record = audit.ActionRecord.begin(connection, subject)
            record.end(connection, audit.Outcome.DONE)
    except (ConnectionFailedError, BusyError, UsageError):
        raise
    except RefusedError as error:
        if not audit.note(subject, audit.Outcome.DONE, detail=f"only here: {error.why}"):
            raise RefusedError(
                "Masked values are not shown.",
                why=f"The audit could not record it: {error.why}",
                next_step=f"Make sure that {audit.local_file()} can be written.",
            ) from error
        return False
    audit.note(subject, audit.Outcome.DONE, action_id=record.action_id)
    return True
