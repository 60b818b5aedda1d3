"""Purge: take messages out of a queue, ready or in error, into its archive or for good.

Never a claimed one. Of a ring the slots are emptied where they are and their numbers recorded as
void, so that producers and consumers go on meanwhile.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection

from console.actions import broker
from console.actions.choosing import Candidates
from console.actions.ledger import Ledger
from console.actions.plan import Plan, require_verb
from console.actions.rows import RowMover
from console.catalog import Kind
from console.designs import Flow
from console.engines import Database, Session
from console.errors import RefusedError
from console.monitor.filters import Filters
from console.monitor.message import Message
from console.monitor.walked import Source

_VOIDS_AT_ONCE = 1_000
"""So many void numbers one pop drops at most."""


class Purge(RowMover):
    """`reason` stands with each message in the archive; `permanently`: there is none."""

    verb = "purge"
    states = ("ready", "error")
    allowed = ("ready", "scheduled", "error")
    wants_name = True

    def __init__(self, source: Source, *, reason: str = "", permanently: bool = False) -> None:
        """RefusedError where there is no archive to purge into."""
        queue = source.queue
        require_verb(queue, self.verb)
        if queue.kind is Kind.ADOPTED and not permanently:
            raise RefusedError(
                f"The queue {queue.name!r} was adopted and has no archive.",
                why="The console makes no tables beside somebody else's.",
                next_step="Delete for good with --permanently, if that is meant.",
            )
        if queue.kind is Kind.ADOPTED and queue.design.flow is Flow.NUMBERS:
            raise RefusedError(
                f"The ring {queue.name!r} was adopted: its slots are not emptied by this console.",
                why="Its callers keep its numbers on their side.",
            )
        if queue.kind is Kind.ADOPTED and queue.design.waits_itself:
            raise RefusedError(
                f"The queue {queue.name!r} was adopted: it is not received from by this console.",
                why="Only its owner knows when one of its conversations is to be ended.",
            )
        told = "deleted for good" if permanently else reason
        super().__init__(source, detail=told)
        self.statement = "destroy" if permanently else "put_away"
        self._permanently = permanently
        self._reason = f"purge: {reason}" if reason else "purge"

    def choice(
        self,
        database: Database,
        session: Session,
        filters: Filters,
        states: Sequence[str],
        cutoff: datetime,
    ) -> Candidates:
        """Where the queue's messages lie, oldest first."""
        if self.source.queue.design.waits_itself:
            broker.require_from_the_front(self.verb, filters)
        return super().choice(database, session, filters, states, cutoff)

    def act(self, connection: Connection, chosen: Sequence[Message], action_id: int) -> Ledger:
        """One batch, in the caller's transaction."""
        if self.source.queue.design.waits_itself:
            bound = self.bound(action_id)
            return broker.receive(connection, self.source, self._statement, chosen, **bound)
        return super().act(connection, chosen, action_id)

    def bound(self, action_id: int) -> dict[str, object]:
        """Why the archive has it, and whose doing it was."""
        return {} if self._permanently else {"reason": self._reason, "action_id": action_id}

    def consequence(self, session: Session, plan: Plan) -> tuple[list[str], list[str]]:
        """Where they go, and what that means for those that stay."""
        del session
        queue = self.source.queue
        if self._permanently:
            lines = ["they are deleted: nothing brings them back"]
        else:
            lines = [f"they go into {queue.name}_archive; restore brings them back"]
        if queue.design.waits_itself:
            lines.append("a conversation waits meanwhile, for the length of a batch")
        if queue.design.flow is Flow.NUMBERS and plan.by_state.get("ready"):
            lines.append("their slots are free at once; pops step over their numbers")
            if plan.count > _VOIDS_AT_ONCE:
                lines.append(
                    f"a pop steps over {_VOIDS_AT_ONCE:,} numbers at most and then finds nothing "
                    "for once; a relay afterwards spares that"
                )
        return lines, []
