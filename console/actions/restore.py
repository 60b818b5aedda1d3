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

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from console import sql
from console.actions.archive import ArchiveSelection, Taken, last_purge
from console.actions.availability import require_archive, require_verb
from console.actions.message_action import MessageAction
from console.actions.requeue import target_state
from console.actions.rows import (
    Batch,
    Chosen,
    Moved,
    NextMessages,
    Selection,
    SelectionCriteria,
    Storage,
    scope,
)
from console.actions.selected import SelectedMessages
from console.catalog import Kind, decisions
from console.catalog.audit import Ledger
from console.designs import Order
from console.engines import Session
from console.errors import UsageError
from console.monitor.message import Message
from console.monitor.message_count import Group
from console.monitor.scan_query import MessageSource
from console.monitor.scans import Grouping

if TYPE_CHECKING:
    from sqlalchemy import Connection

GONE = "restored, or in other hands meanwhile"
FULL = "the ring is full"
RESERVED = "on its way into a lake (pipeline archive)"
ID_TAKEN = "its id was taken meanwhile"


_RESERVED, _TOO_LONG = "reserved", "too_long"
_OWN_ID, _NEW_ID, _PUSHED = "own_id", "new_id", "pushed"


@dataclass(frozen=True)
class _Labelled:
    archive_id: int
    label: str
    """What restore does with it: one of the five above."""


@dataclass(frozen=True)
class _Locked:
    """The rows of a batch that are locked now; the arrays of keys are texts."""

    locked: int
    reserved: int
    too_long: int
    kept: int
    kept_keys: str
    pushed: int
    pushed_keys: str


class _EmptySelection(Selection):
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
        self._has_lakes = False
        self._labels: dict[str, str] = {}
        """Of messages that were examined, by their keys, until they are counted."""

    def select(self, criteria: SelectionCriteria) -> Selection:
        self._labels.clear()
        taken = self._taken
        if taken == Taken() and not criteria.filters.narrowing and criteria.filters.state is None:
            action = last_purge(self.source, criteria)
            if action is None:
                self.detail = "the archive has nothing from a purge"
                return _EmptySelection()
            taken = Taken(action)
            self.detail = f"{_describe(taken)}, the last purge"
        with criteria.session.transaction("read archived messages") as connection:
            restoring = self.restoring_scope(lakes=self._lakes(connection))
        return ArchiveSelection(self.source, criteria, taken, restoring)

    by_group = True
    chosen_unjudged = True
    grouping = Grouping.BY_LABEL

    def excluded(self, session: Session, chosen: Sequence[Message]) -> Mapping[str, list[Message]]:
        with session.transaction("read archived messages") as connection:
            rows = sql.rows(
                connection,
                _Labelled,
                self.source.statement_name("labelled_archived"),
                self.restoring_scope(lakes=self._lakes(connection)),
                keys=self.source.product.array([message.key for message in chosen]),
            )
        self._labels |= {str(row.archive_id): row.label for row in rows}
        left: dict[str, list[Message]] = defaultdict(list)
        for message in chosen:
            group = Group(self._labels.setdefault(message.key, _PUSHED))
            for why in self.groups_excluded(session, [group]).values():
                left[why].append(message)
        return left

    def group_of(self, message: Message) -> Group:
        return Group(self._labels.pop(message.key))

    def groups_excluded(self, session: Session, groups: Sequence[Group]) -> Mapping[Group, str]:
        """Messages over the queue's present limit, or on their way into a lake."""
        del session
        why = {_RESERVED: RESERVED, _TOO_LONG: self._too_long}
        return {group: why[group.label] for group in groups if group.label in why}

    @property
    def _too_long(self) -> str:
        return f"over the queue's limit of {self._limit} bytes"

    def consequences(
        self, session: Session, selected: SelectedMessages
    ) -> tuple[list[str], list[str]]:
        lines: list[str] = []
        obstacles: list[str] = []
        own, new, pushed = (
            selected.by_group.get(Group(label), 0) for label in (_OWN_ID, _NEW_ID, _PUSHED)
        )
        if own or new:
            lines.append(f"as they were: {own:,} with their id, {new:,} with a new one")
        if selected.by_state.get("claimed"):
            lines.append("those that were claimed come back as errors")
        if pushed:
            with session.transaction("read the queue") as connection:
                self.source.wait_for_relay(connection)
                now = target_state(connection, self.source)
            lines.append(f"pushed again, with new ids: {pushed:,}; {self._position(now.count)}")
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

    def apply(self, connection: Connection, chosen: Batch, action_id: int) -> Ledger:
        del action_id
        self.source.wait_for_relay(connection)
        # No plan of the pipeline may reserve what is restored, nor restore take what is reserved.
        if (lakes := self._lakes(connection)) == "yes":
            within = scope(self.source, Storage.TABLE)
            sql.run(connection, "pipeline.add_plan", within)
            sql.values(connection, str, self.source.statement_name("lock_lake_plan"), within)
        if isinstance(chosen, Chosen):
            (group,) = chosen.groups
            keys: object = group.arrays["keys"]
        elif isinstance(chosen, NextMessages):
            raise TypeError("what restore does with each is read before it is locked")
        else:
            keys = self.source.product.array([message.key for message in chosen])
        row = sql.row(
            connection,
            _Locked,
            self.source.statement_name("lock_archived"),
            self.restoring_scope(lakes=lakes),
            keys=keys,
        )
        gone, reserved, failed = len(chosen) - row.locked, row.reserved, row.too_long
        return (
            Ledger(selected=gone, skipped={GONE: gone} if gone else {})
            + Ledger(selected=reserved, skipped={RESERVED: reserved} if reserved else {})
            + Ledger(selected=failed, failed={self._too_long: failed} if failed else {})
            + self._put_back(connection, row.kept, row.kept_keys)
            + self._push_back(connection, row.pushed, row.pushed_keys)
        )

    def stop_reason(self, ledger: Ledger) -> str:
        if FULL not in ledger.failed:
            return ""
        return (
            f"{FULL}: the rest is still in the archive; run the same action again once there are "
            "free slots"
        )

    def _put_back(self, connection: Connection, count: int, keys: str) -> Ledger:
        """First those whose id is free; then the rest, with new ids."""
        ledger = Ledger()
        for ids in ("kept", "new"):
            if ledger.out < count:
                moved = self._move(connection, "restore_rows", keys, ids=ids)
                ledger += Ledger(out=moved.taken_out, into=moved.put_in)
        return _with_remainder(ledger, count, ID_TAKEN)

    def _push_back(self, connection: Connection, count: int, keys: str) -> Ledger:
        ledger = Ledger()
        if count:
            moved = self._move(connection, "restore_by_push", keys)
            ledger = Ledger(out=moved.taken_out, into=moved.put_in)
        return _with_remainder(ledger, count, FULL)

    @property
    def keeps_rows(self) -> bool:
        """Whether some come back as they were."""
        return self._keeps or self._in_hand

    def restoring_scope(self, **conditions: str) -> sql.Scope:
        """`rows`: which come back as they were; the others are pushed again."""
        rows = "kept" if self._keeps else "popped" if self._in_hand else "pushed"
        storage = Storage.IN_HAND if self._in_hand else Storage.TABLE
        return scope(self.source, storage, rows=rows, **conditions)

    def _lakes(self, connection: Connection) -> str:
        """Whether plans of the pipeline are kept here: yes or no. Their tables are not removed."""
        self._has_lakes = self._has_lakes or decisions.catalog_contents(connection).lakes
        return "yes" if self._has_lakes else "no"

    def _move(self, connection: Connection, name: str, keys: str, **conditions: str) -> Moved:
        statement = self.source.statement_name(name)
        return sql.row(connection, Moved, statement, self.restoring_scope(**conditions), keys=keys)


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
