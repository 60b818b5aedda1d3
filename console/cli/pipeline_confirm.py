"""A job of the pipeline that changes a queue is confirmed like any action."""

from typing import Any, Protocol

from console.actions import audit as auditing
from console.actions.plan import MANY_MESSAGES
from console.catalog import Queue
from console.cli.context import Call
from console.cli.pipeline_record import kept
from console.engines import Database
from console.errors import RefusedError


class Offer(Protocol):
    """What a job would do to a queue."""

    @property
    def queue(self) -> Queue: ...

    def lines(self) -> list[str]: ...

    def as_json(self) -> dict[str, Any]: ...


def confirmed(  # what a confirmation is about
    call: Call,
    database: Database,
    verb: str,
    offered: Offer,
    yes: str | None,
    *,
    messages: int,
    dry_run: bool,
) -> bool:
    """Whether to go on; where not, the plan is the answer. RefusedError without a confirmation.

    `dry_run`: also where there is nothing to do: then any confirmation is as good as another.
    """
    by_name = messages > MANY_MESSAGES or call.production(database)
    try:
        return call.confirmed(
            offered.as_json(), offered.lines(), yes, dry_run=dry_run, by_name=by_name
        )
    except RefusedError as error:
        if yes is None and (record := kept()) is not None:
            record.forget()  # it was only the plan
        subject = auditing.Subject.of(database, offered.queue, verb)
        auditing.note(subject, auditing.Outcome.REFUSED, detail=error.what)
        raise
