"""Restore: archived messages go back into their queue, each batch in one transaction.

Where the queue keeps its rows (claim, status, split, a ring's in_hand) they come back in their
former state, a claimed one as an error, and with their ids; with a new id where the old one is
taken. Where a pop deletes, they are pushed again at the end, in their old order, by the queue's own
push. Messages that a full ring does not take stay in the archive; the batch is not undone, because
each number that a push draws and gives back would be a hole.

A popped message (archive_at_pop=on) was delivered: restoring it delivers it twice. So `popped`
selects these and no others, and nothing else selects them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from console import sql
from console.actions.archive import ArchiveSelection, Taken, last_purge
from console.actions.availability import require_archive, require_verb
from console.actions.message_action import MessageAction
from console.actions.requeue import target_state
from console.actions.rows import Moved, Selection, SelectionCriteria, Storage, scope
from console.actions.selected import SelectedMessages
from console.catalog import Kind, decisions
from console.catalog.audit import Ledger
from console.designs import Order
from console.engines import Session
from console.errors import UsageError
from console.monitor.message import Message
from console.monitor.scan_query import MessageSource

if TYPE_CHECKING:
    from sqlalchemy import Connection

GONE = "restored, or in other hands meanwhile"
FULL = "the ring is full"
RESERVED = "on its way into a lake (pipeline archive)"
ID_TAKEN = "its id was taken meanwhile"


class _Method(IntEnum):
    NEW_ID = 0
    OWN_ID = 1
    PUSHED = 2


@dataclass(frozen=True)
class _ArchivedNow:
    archive_id: int
    reserved: bool
    too_long: bool
    id_is_free: bool


class _EmptySelection:
    complete = True

    def next(self, most: int) -> list[Message]:
        del most
        return []


class Restore(MessageAction):
    """Without filters, action or reason: what the archive still has of the last purge."""

    verb = "restore"
    states: tuple[str, ...] = ("ready", "scheduled", "claimed", "error", "done")
    """Their states when they came into the archive."""
    allowed = states
    in_queue = False

    def __init__(
        self,
        source: MessageSource,
        *,
        action: int | None = None,
        reason: str | None = None,
        popped: bool = False,
    ) -> None:
        """Those that `action` archived, or whose reason contains `reason`. RefusedError without an
        archive."""
        queue = source.queue
        if queue.kind is Kind.ARCHIVE:
            raise UsageError(
                f"The queue {queue.name!r} was uninstalled: its messages cannot be restored.",
                why=f"They are in the table {queue.label}_archive.",
                next_step="Install a queue under another name, and push the payloads of that "
                "table into it.",
            )
        require_verb(queue, self.verb)
        require_archive(queue)
        if popped and action is not None:
            raise UsageError(
                "Popped messages belong to no action.",
                next_step="Name the action or popped messages, not both.",
            )
        self._taken = Taken(action, reason, popped)
        super().__init__(source, _describe(self._taken))
        self._in_hand = queue.options.get("in_hand") == "on" and not queue.subscribers
        self._keeps = queue.design.keeps_row
        self._limit = queue.options.get("max_bytes", "unlimited")
        self._methods = bytearray()
        """The `_Method` of each matching message, in order: a byte each, as there may be many."""

    def select(self, criteria: SelectionCriteria) -> Selection:
        self._methods.clear()
        taken = self._taken
        if taken == Taken() and not criteria.filters.narrowing and criteria.filters.state is None:
            action = last_purge(self.source, criteria)
            if action is None:
                self.detail = "the archive has nothing from a purge"
                return _EmptySelection()
            taken = Taken(action)
            self.detail = f"{_describe(taken)}, the last purge"
        return ArchiveSelection(self.source, criteria, taken)

    def excluded(self, session: Session, chosen: Sequence[Message]) -> Mapping[str, list[Message]]:
        """Messages over the queue's present limit."""
        with session.transaction("read archived messages") as connection:
            rows = self._rows(connection, chosen, lock="no", lakes=_lakes(connection))
        left: dict[str, list[Message]] = defaultdict(list)
        for message in chosen:
            row = rows.get(message.key)
            if row is not None and row.reserved:
                left[RESERVED].append(message)
            elif row is not None and row.too_long:
                left[self._too_long].append(message)
            else:
                self._methods.append(self._method(message, free=row is not None and row.id_is_free))
        return left

    def _method(self, message: Message, *, free: bool) -> _Method:
        if self._keeps_state(message):
            return _Method.OWN_ID if free else _Method.NEW_ID
        return _Method.PUSHED

    def _keeps_state(self, message: Message) -> bool:
        """A ring's popped messages were in in_hand, whatever their state there."""
        was_popped = message.state in {"claimed", "error"} or (message.attempts or 0) > 0
        return self._keeps or (self._in_hand and was_popped)

    @property
    def _too_long(self) -> str:
        return f"over the queue's limit of {self._limit} bytes"

    def consequences(
        self, session: Session, selected: SelectedMessages
    ) -> tuple[list[str], list[str]]:
        methods = Counter(self._methods[: selected.count])
        lines: list[str] = []
        obstacles: list[str] = []
        own, new, pushed = (
            methods[one] for one in (_Method.OWN_ID, _Method.NEW_ID, _Method.PUSHED)
        )
        if own or new:
            lines.append(f"as they were: {own:,} with their id, {new:,} with a new one")
        if selected.by_state.get("claimed"):
            lines.append("those that were claimed come back as errors")
        if pushed:
            with session.transaction("read the queue") as connection:
                self.source.wait_for_relay(connection)
                now = target_state(connection, self.source)
            lines.append(
                f"{pushed:,} are pushed again and get a new id; {self._position(now.count)}"
            )
            needs, obstacles = now.needs(pushed)
            lines += needs
            if names := ", ".join(subscriber.name for subscriber in self.source.queue.subscribers):
                lines.append(f"every subscriber gets them, even one that had them before: {names}")
        if self._taken.popped:
            lines.append("they were delivered once before: consumers get them again")
        return lines, obstacles

    def _position(self, ready: str) -> str:
        """Where a push puts them, in the design's own terms."""
        order = self.source.queue.design.order_with(self.source.queue.options)
        if order is Order.LIFO:
            return f"runs next, before {ready} older messages"
        if order is Order.DUE:
            return "each at its due time"
        if order is Order.NONE:
            return "in no particular order"
        return f"goes behind {ready} messages"

    def script(self) -> str:
        if self._keeps:
            name, within = "restore_rows", scope(self.source, Storage.TABLE, ids="kept")
        else:
            name, within = "restore_by_push", scope(self.source, Storage.TABLE)
        return sql.script(self.source.statement_name(name), self.source.product.dialect, within)

    def apply(self, connection: Connection, chosen: Sequence[Message], action_id: int) -> Ledger:
        del action_id
        self.source.wait_for_relay(connection)
        # No plan of the pipeline may reserve what is restored, nor restore take what is reserved.
        if (lakes := _lakes(connection)) == "yes":
            within = scope(self.source, Storage.TABLE)
            sql.run(connection, "pipeline.add_plan", within)
            sql.values(connection, str, self.source.statement_name("lock_lake_plan"), within)
        rows = self._rows(connection, chosen, lock="yes", lakes=lakes)
        reserved = sum(row.reserved for row in rows.values())
        rows = {key: row for key, row in rows.items() if not row.reserved}
        held = [message for message in chosen if message.key in rows]
        fit = [message for message in held if not rows[message.key].too_long]
        gone, failed = len(chosen) - len(held) - reserved, len(held) - len(fit)
        as_they_were = [message for message in fit if self._keeps_state(message)]
        others = [message for message in fit if not self._keeps_state(message)]
        return (
            Ledger(selected=gone, skipped={GONE: gone} if gone else {})
            + Ledger(selected=reserved, skipped={RESERVED: reserved} if reserved else {})
            + Ledger(selected=failed, failed={self._too_long: failed} if failed else {})
            + self._put_back(connection, as_they_were)
            + self._push_back(connection, others)
        )

    def stop_reason(self, ledger: Ledger) -> str:
        if FULL not in ledger.failed:
            return ""
        return (
            f"{FULL}: the rest is still in the archive; run the same action again once there are "
            "free slots"
        )

    def _put_back(self, connection: Connection, messages: Sequence[Message]) -> Ledger:
        """First those whose id is free; then the rest, with new ids."""
        ledger = Ledger()
        for ids in ("kept", "new"):
            if ledger.out < len(messages):
                moved = self._move(connection, "restore_rows", messages, ids=ids)
                ledger += Ledger(out=moved.taken_out, into=moved.put_in)
        return _with_remainder(ledger, len(messages), ID_TAKEN)

    def _push_back(self, connection: Connection, messages: Sequence[Message]) -> Ledger:
        ledger = Ledger()
        if messages:
            moved = self._move(connection, "restore_by_push", messages)
            ledger = Ledger(out=moved.taken_out, into=moved.put_in)
        return _with_remainder(ledger, len(messages), FULL)

    @property
    def _storage(self) -> Storage:
        return Storage.IN_HAND if self._in_hand else Storage.TABLE

    def _rows(
        self, connection: Connection, chosen: Sequence[Message], **conditions: str
    ) -> dict[str, _ArchivedNow]:
        kept = "kept" if self._keeps or self._in_hand else "pushed"
        rows = sql.rows(
            connection,
            _ArchivedNow,
            self.source.statement_name("lock_archived"),
            scope(self.source, self._storage, rows=kept, **conditions),
            keys=self.source.product.array([message.key for message in chosen]),
        )
        return {str(row.archive_id): row for row in rows}

    def _move(
        self, connection: Connection, name: str, messages: Sequence[Message], **conditions: str
    ) -> Moved:
        return sql.row(
            connection,
            Moved,
            self.source.statement_name(name),
            scope(self.source, self._storage, **conditions),
            keys=self.source.product.array([message.key for message in messages]),
        )


def _lakes(connection: Connection) -> str:
    """Whether plans of the pipeline are kept here: yes or no."""
    return "yes" if decisions.catalog_contents(connection).lakes else "no"


def _with_remainder(ledger: Ledger, selected: int, why: str) -> Ledger:
    """The same, with those of `selected` that did not move as failed."""
    stayed = max(0, selected - ledger.out)
    return ledger + Ledger(selected=selected, failed={why: stayed} if stayed else {})


def _describe(taken: Taken) -> str:
    parts = []
    if taken.action is not None:
        parts.append(f"of action {taken.action}")
    if taken.reason is not None:
        parts.append(f"reason ~{taken.reason}")
    if taken.popped:
        parts.append("popped messages")
    return ", ".join(parts)
