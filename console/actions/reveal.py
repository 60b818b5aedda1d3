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
    record = kept_in_the_database(database, subject, refused="Masked values are not shown.")
    found = message(database, queue, key, payload_bytes=payload_bytes)
    return Revealed(found, record is None)


def kept_in_the_database(
    database: Database, subject: audit.Subject, *, refused: str, ended: bool = True
) -> audit.ActionRecord | None:
    """The database's record of it; None where only this machine could keep it, and did.

    `ended`: as done already. RefusedError, which begins with `refused`, where neither keeps it.
    """
    doing = f"record in the audit that messages are read ({subject.verb})"
    outcome = audit.Outcome.DONE if ended else audit.Outcome.RUNNING
    try:
        with database.transaction(doing) as connection:
            record = audit.ActionRecord.begin(connection, subject)
            if ended:
                record.end(connection, outcome)
    except (ConnectionFailedError, BusyError, UsageError):
        raise
    except RefusedError as error:
        if not audit.note(subject, outcome, detail=f"only here: {error.why}"):
            raise RefusedError(
                refused,
                why=f"The audit could not record it: {error.why}",
                next_step=f"Make sure that {audit.local_file()} can be written.",
            ) from error
        return None
    if ended:
        audit.note(subject, outcome, action_id=record.action_id)
    return record
