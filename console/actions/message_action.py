"""What a verb does to messages. Most are a `RowAction`, which runs one statement on all rows that
it has locked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from console import relations, sql
from console.actions.canary import CanaryTracker
from console.actions.message_plan import Plan
from console.actions.rows import (
    CHANGED,
    LockedRows,
    Moved,
    QueueSelection,
    Selection,
    SelectionCriteria,
    Storage,
    lock_rows,
    run_others_code,
    scope,
)
from console.audit import Ledger
from console.catalog import Kind
from console.designs import Flow
from console.engines import Session
from console.monitor.message import Message
from console.monitor.scan_query import MessageSource

if TYPE_CHECKING:
    from sqlalchemy import Connection


class MessageAction:
    """What a verb does to messages: what it selects and leaves alone, its consequences, its SQL."""

    verb = ""
    states: tuple[str, ...] = ()
    """The states that it takes where the filters name none."""
    allowed: tuple[str, ...] = ()
    """The states that a filter may name."""
    requires_name = False
    """Whether the queue's name is required as confirmation, however few the messages."""
    age_label = "in that state"
    """What the messages' ages are measured from, for the plan."""
    tracker: CanaryTracker | None = None
    """None: its messages have no results to wait for."""

    def __init__(self, source: MessageSource, detail: str = "") -> None:
        """`detail`: for the audit: a target, a reason."""
        self.source = source
        self.detail = detail

    def select(self, criteria: SelectionCriteria) -> Selection:
        return QueueSelection(self.source, criteria)

    def excluded(self, session: Session, chosen: Sequence[Message]) -> Mapping[str, list[Message]]:
        """Reason -> the messages among `chosen` that it would leave alone."""
        del session, chosen
        return {}

    def consequences(self, session: Session, plan: Plan) -> tuple[list[str], list[str]]:
        """What follows, in the design's own terms; and the obstacles."""
        del session, plan
        return [], []

    def obstacles(self, session: Session) -> list[str]:
        """Why the table as it is cannot take it."""
        del session
        return []

    def script(self) -> str:
        """The statement that would run, readable for a DBA."""
        raise NotImplementedError

    def apply(self, connection: Connection, chosen: Sequence[Message], action_id: int) -> Ledger:
        """One batch, in the caller's transaction."""
        raise NotImplementedError

    def stop_reason(self, ledger: Ledger) -> str:
        """Why no further batch can run after this one; empty: it goes on."""
        del ledger
        return ""


class RowAction(MessageAction):
    """Runs one statement of actions.sql on the rows that it has locked."""

    statement = ""
    sets: tuple[str, ...] = ()
    """The roles whose columns it gives another value."""
    clears: tuple[str, ...] = ()
    """Those that it sets to NULL."""

    def __init__(self, source: MessageSource, *, detail: str = "", **conditions: str) -> None:
        """`conditions`: values for the statement's `-- when` lines."""
        whose = source.queue.subscriber_suffix.removeprefix(", ")
        super().__init__(source, ", ".join(filter(None, (whose, detail))))
        self._conditions = {"verb": self.verb, **conditions}
        self.states = tuple(state for state in self.states if state in source.queue.states)
        self.allowed = tuple(state for state in self.allowed if state in source.queue.states)

    def bound(self, action_id: int) -> dict[str, object]:
        """Further bound values of the statement."""
        del action_id
        return {}

    def obstacles(self, session: Session) -> list[str]:
        """Columns of an adopted table that do not take what it writes."""
        queue = self.source.queue
        if queue.kind is not Kind.ADOPTED or queue.design.library:
            return []
        with session.transaction(f"read the columns of {queue.name!r}") as connection:
            columns = relations.columns(connection, queue.schema, queue.table)
        cleared = {queue.roles.get(role) for role in self.clears}
        written = cleared | {queue.roles.get(role) for role in self.sets}
        return [
            f"The server computes the column {one.name!r}, which {self.verb} writes: change what "
            "it is computed from, as its owner does."
            if one.computed
            else f"The column {one.name!r}, which {self.verb} sets to NULL, is NOT NULL."
            for one in columns
            if (one.computed and one.name in written) or (one.required and one.name in cleared)
        ]

    def script(self) -> str:
        """The statement as it runs on each batch, for the storage of most rows."""
        ring = self.source.queue.design.flow is Flow.NUMBERS
        storage = Storage.TABLE
        if ring:
            storage = Storage.SLOTS if "ready" in self.states else Storage.IN_HAND
        within = scope(self.source, storage, **self._conditions)
        return sql.script(
            self.source.statement_name(self.statement), self.source.product.dialect, within
        )

    def apply(self, connection: Connection, chosen: Sequence[Message], action_id: int) -> Ledger:
        self.source.wait_for_relay(connection)
        locked, skipped = lock_rows(connection, self.source, chosen)
        ledger = Ledger(selected=skipped, skipped={CHANGED: skipped} if skipped else {})
        if self.tracker is not None and self.tracker.enabled:
            ids = {id_ for some in locked for id_ in some.ids}
            self.tracker.begin(connection, [one for one in chosen if one.id in ids])
        for some in locked:
            ledger += self._move(connection, some, action_id)
        return ledger

    def _move(self, connection: Connection, held: LockedRows, action_id: int) -> Ledger:
        with run_others_code(connection, self.source.queue):
            moved = sql.row(
                connection,
                Moved,
                self.source.statement_name(self.statement),
                scope(self.source, held.storage, **self._conditions),
                locations=self.source.product.array(list(held.locations)),
                state=held.state,
                **self.bound(action_id),
            )
        # A library's own rule may leave some unchanged.
        stayed = len(held.locations) - moved.taken_out
        why = self.source.queue.design.stays
        failed = {why: stayed} if stayed > 0 and why else {}
        return Ledger(len(held.locations), moved.taken_out, moved.put_in, failed=failed)
