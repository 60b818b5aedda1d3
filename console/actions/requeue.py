"""Requeue: what failed can be popped again. Its attempts stay counted, its error is forgotten."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from console import sql
from console.actions.ledger import Ledger
from console.actions.plan import Plan, require_verb
from console.actions.push import require_interface
from console.actions.rows import (
    Held,
    Moved,
    RowMover,
    Shelf,
    against_the_rule,
    by_shelf,
    scope,
    standing,
    statement,
)
from console.catalog import Kind
from console.designs import Flow
from console.engines import Session
from console.errors import ConnectionFailedError, RefusedError, UsageError
from console.monitor.message import Message
from console.monitor.walked import Source

FULL = "the other queue is full"
_GOES_INTO: Mapping[str, tuple[str, ...]] = {
    "text": ("text", "json"),
    "json": ("json", "text"),
    "bytes": ("bytes",),
}
"""Payload -> those of queues that can take it; of text, only what is JSON goes into json."""
_NO_LIMIT = str(2**63 - 1)


@dataclass(frozen=True)
class _Weighed:
    id: str | None
    too_long: bool | None
    """None: there is no payload."""


class Requeue(RowMover):
    """To its old place, or behind all that are ready (`to_back`), where the design has an order."""

    verb = "requeue"
    states = ("error",)
    allowed = ("error",)
    statement = "make_ready"

    def __init__(self, source: Source, *, to_back: bool = False) -> None:
        """UsageError where the queue has no such verb, or no back to go to."""
        queue = source.queue
        require_verb(queue, self.verb)
        ring = queue.design.flow is Flow.NUMBERS
        if to_back and queue.design.library:
            raise UsageError(
                f"Nothing goes to the back of {queue.name!r}.",
                why=f"It is requeued {queue.design.requeued}.",
            )
        if to_back and (ring or "pushed_at" not in queue.roles):
            why = "Its pops take what was in hand before all that lies in the slots."
            if not ring:
                why = "It was adopted without a column for the role pushed_at."
            raise UsageError(f"Nothing goes to the back of {queue.name!r}.", why=why)
        super().__init__(
            source, detail="to the back" if to_back else "", to_back="yes" if to_back else "no"
        )
        self._to_back = to_back

    def consequence(self, session: Session, plan: Plan) -> tuple[list[str], list[str]]:
        """Where in the order they come."""
        del plan
        queue = self.source.queue
        if queue.design.library:
            lines = [f"they become ready again, {queue.design.requeued}"]
            return lines, against_the_rule(session, self.source)
        if queue.design.flow is Flow.NUMBERS:
            return ["they are popped next, before what lies in the slots"], []
        if self._to_back:
            return ["they go behind all that are ready now; their push time becomes now"], []
        return ["they go back to their old place: before all that were pushed later"], []


class RequeueTo(RowMover):
    """Into another queue of the same database, through its own push: a new message there.

    What that queue does not take (over its limit, no JSON, a full ring) stays in error here.
    """

    verb = "requeue"
    states = ("error",)
    allowed = ("error",)
    statement = "push_to"

    def __init__(self, source: Source, *, to: Source) -> None:
        """UsageError where the other queue cannot have such messages."""
        queue, target = source.queue, to.queue
        require_verb(queue, self.verb)
        if queue.design.library:
            raise RefusedError(
                f"Nothing of {queue.name!r}, which {queue.design.library} keeps, goes elsewhere.",
                why="Only the library takes its own messages away.",
            )
        require_interface(target)
        if (queue.schema, queue.name) == (target.schema, target.name):
            raise UsageError(
                f"{queue.name!r} is the same queue.",
                next_step="Without --to, errors are requeued where they are.",
            )
        if to.payload not in _GOES_INTO.get(source.payload, ()):
            raise UsageError(
                f"Messages of {queue.name!r} cannot go into {target.name!r}.",
                why=f"Their payload is {source.payload or 'not known'}, that queue's {to.payload}.",
            )
        both = "status" in target.roles and "status" in queue.roles
        titled = both and queue.kind is Kind.INSTALLED
        super().__init__(
            source,
            detail=f"to {target.label}",
            target_payload=to.payload,
            titles="yes" if titled else "no",
        )
        self._to = to
        self._limit = target.options.get("max_bytes", "unlimited")
        self._too_long = f"over {target.name}'s limit of {self._limit} bytes"
        self._unfit = f"no {to.payload} payload, as {target.name} wants it"

    def consider(self, session: Session, chosen: Sequence[Message]) -> Mapping[str, list[Message]]:
        """Leaves alone what the other queue could not take."""
        left: dict[str, list[Message]] = defaultdict(list)
        with session.transaction("weigh messages") as connection:
            self.source.pass_gate(connection)
            for shelf, messages in by_shelf(self.source.queue, chosen):
                unfit = self._weigh(connection, shelf, [message.id for message in messages])
                for message in messages:
                    if message.id in unfit:
                        left[unfit[message.id]].append(message)
        return left

    def consequence(self, session: Session, plan: Plan) -> tuple[list[str], list[str]]:
        """Where they come there, and whether there is room."""
        target = self._to.queue
        with session.transaction("look at the other queue") as connection:
            self._to.pass_gate(connection)
            now = standing(connection, self._to)
        lines = [
            f"they go into {target.label} as new messages, where {now.count} are ready; "
            "they leave this queue",
            "their attempts start anew there, and their errors are forgotten",
        ]
        needs, obstacles = now.needs(plan.count)
        return lines + needs, [f"{target.name} {obstacle}" for obstacle in obstacles]

    def stops(self, ledger: Ledger) -> str:
        """A full ring takes nothing more."""
        if FULL not in ledger.failed:
            return ""
        return f"{self._to.queue.name} is full: what it did not take is still in error here"

    def _scope(self, shelf: Shelf) -> sql.Scope:
        plain = scope(self.source, shelf, **self._conditions)
        target = self._to.queue.scope(self._to.product)
        values = {
            "target_schema": target.values["schema"],
            "target": target.values["queue"],
            "target_payload_type": target.values["payload_type"],
            "target_max_bytes": _NO_LIMIT if self._limit == "unlimited" else self._limit,
        }
        return replace(plain, values={**plain.values, **values})

    def _weigh(
        self, connection: Connection, shelf: Shelf, ids: Sequence[str | None]
    ) -> dict[str | None, str]:
        """Why the other queue could not take them, of those that it could not."""
        if not ids:
            return {}
        try:
            with connection.begin_nested():
                rows = sql.fetch(
                    connection,
                    _Weighed,
                    statement(self.source, "weigh"),
                    self._scope(shelf),
                    keys=self.source.product.array([id_ or "" for id_ in ids]),
                )
        except DBAPIError as error:
            told = self.source.product.translate(error, "weigh messages")
            if isinstance(told, (RefusedError, ConnectionFailedError)):
                raise
            if len(ids) == 1:
                return {ids[0]: self._unfit}
            half = len(ids) // 2
            return self._weigh(connection, shelf, ids[:half]) | self._weigh(
                connection, shelf, ids[half:]
            )
        told_of = {True: self._too_long, None: self._unfit}
        return {row.id: told_of[row.too_long] for row in rows if row.too_long in told_of}

    def script(self) -> str:
        """The statement as it runs on each batch."""
        ring = self.source.queue.design.flow is Flow.NUMBERS
        within = self._scope(Shelf.IN_HAND if ring else Shelf.TABLE)
        return sql.script(self._statement, self.source.product.dialect, within)

    def _move(self, connection: Connection, held: Held, action_id: int) -> Ledger:
        del action_id
        unfit = self._weigh(connection, held.shelf, held.ids)
        places = [
            place for place, id_ in zip(held.places, held.ids, strict=True) if id_ not in unfit
        ]
        moved = Moved(0, 0)
        if places:
            (moved,) = sql.fetch(
                connection,
                Moved,
                self._statement,
                self._scope(held.shelf),
                places=self.source.product.array(places),
            )
        failed = Counter(unfit.values())
        if stayed := len(places) - moved.taken_out:
            failed[FULL] = stayed
        return Ledger(len(held.places), moved.taken_out, moved.put_in, failed=dict(failed))
