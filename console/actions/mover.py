"""A verb on the messages of one queue: what differs between such verbs, in one class each.

Most do the same to every row that they hold: `RowMover` is one statement of actions.sql.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from console import sql
from console.actions.rows import CHANGED, Choosing, Held, Moved, Selection, Storage, hold, scope
from console.audit import Ledger
from console.designs import Flow
from console.engines import Session
from console.monitor.message import Message
from console.monitor.scan_query import MessageSource

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from console.actions.canary import Followed
    from console.actions.plan import Plan


class Candidates(Protocol):
    """The messages that an action is for, in the order in which it takes them."""

    @property
    def complete(self) -> bool:
        """False: the search was cut short, and there may be more."""
        ...

    def next(self, most: int) -> list[Message]:
        """The next ones, at most so many; none: that was all."""
        ...


class Mover:
    verb = ""
    states: tuple[str, ...] = ()
    """The messages that it takes where the filters name no state."""
    allowed: tuple[str, ...] = ()
    """The states that a filter may name."""
    wants_name = False
    """Whether it wants the queue's name however few they are."""
    aged = "in that state"
    """Where, or how, the messages have been for as long as their ages say."""
    followed: Followed | None = None
    """What becomes of the last batch; None: nothing tells it."""

    def __init__(self, source: MessageSource, detail: str = "") -> None:
        """`detail`: what the audit keeps besides: a target, a reason."""
        self.source = source
        self.detail = detail

    def choice(self, of: Choosing) -> Candidates:
        """Where the queue's messages lie, oldest first."""
        return Selection(self.source, of)

    def consider(self, session: Session, chosen: Sequence[Message]) -> Mapping[str, list[Message]]:
        """Of some that match: those that it would leave alone, by the reason."""
        del session, chosen
        return {}

    def consequence(self, session: Session, plan: Plan) -> tuple[list[str], list[str]]:
        """What follows, in the design's own terms; and what stands in the way."""
        del session, plan
        return [], []

    def script(self) -> str:
        """The statement that would act, as a DBA can read it."""
        raise NotImplementedError

    def act(self, connection: Connection, chosen: Sequence[Message], action_id: int) -> Ledger:
        """One batch, in the caller's transaction."""
        raise NotImplementedError

    def stops(self, ledger: Ledger) -> str:
        """Why nothing more can be done after a batch that ended so; empty: it goes on."""
        del ledger
        return ""


class RowMover(Mover):
    statement = ""
    """Its name in actions.sql."""

    def __init__(self, source: MessageSource, *, detail: str = "", **conditions: str) -> None:
        """`conditions` are what the statement's `-- when` asks for besides queue and storage."""
        whose = source.queue.whose.removeprefix(", ")
        super().__init__(source, ", ".join(filter(None, (whose, detail))))
        self._conditions = {"verb": self.verb, **conditions}
        self.states = tuple(state for state in self.states if state in source.queue.states)
        self.allowed = tuple(state for state in self.allowed if state in source.queue.states)

    def bound(self, action_id: int) -> dict[str, object]:
        """What the statement binds besides the rows."""
        del action_id
        return {}

    def script(self) -> str:
        """The statement as it runs on each batch, for the storage that most rows lie on."""
        ring = self.source.queue.design.flow is Flow.NUMBERS
        storage = Storage.TABLE
        if ring:
            storage = Storage.SLOTS if "ready" in self.states else Storage.IN_HAND
        within = scope(self.source, storage, **self._conditions)
        return sql.script(self.source.own(self.statement), self.source.product.dialect, within)

    def act(self, connection: Connection, chosen: Sequence[Message], action_id: int) -> Ledger:
        self.source.pass_gate(connection)
        held, skipped = hold(connection, self.source, chosen)
        ledger = Ledger(selected=skipped, skipped={CHANGED: skipped} if skipped else {})
        if self.followed is not None and self.followed.wanted:
            ids = {id_ for some in held for id_ in some.ids}
            self.followed.begin(connection, [one for one in chosen if one.id in ids])
        for some in held:
            ledger += self._move(connection, some, action_id)
        return ledger

    def _move(self, connection: Connection, held: Held, action_id: int) -> Ledger:
        moved = sql.row(
            connection,
            Moved,
            self.source.own(self.statement),
            scope(self.source, held.storage, **self._conditions),
            places=self.source.product.array(list(held.places)),
            state=held.state,
            **self.bound(action_id),
        )
        # A library's own rule may leave some where they are.
        stayed = len(held.places) - moved.taken_out
        why = self.source.queue.design.stays
        failed = {why: stayed} if stayed > 0 and why else {}
        return Ledger(len(held.places), moved.taken_out, moved.put_in, failed=failed)
