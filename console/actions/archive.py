"""Archive: move finished messages, done or in error, from the queue's table into its archive.

Purge: move ready messages and errors into the archive, or delete them; never claimed ones. A ring's
slots are emptied in place and their numbers recorded as void: producers and consumers go on.

Also here: the selection of archived messages, for restore, in the order of their archiving."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from console import sql
from console.actions import broker
from console.actions.availability import require_archive, require_verb
from console.actions.execute import Batching, execute
from console.actions.message_action import MessageAction, RowAction, deleted_along, select
from console.actions.pop import require_subscriber
from console.actions.rows import (
    Batch,
    Chosen,
    ChosenRow,
    Selection,
    SelectionCriteria,
    Storage,
    require_one_order,
)
from console.actions.selected import SelectedMessages
from console.catalog import Kind, Queue, audit
from console.catalog.audit import Ledger, Outcome
from console.designs import Flow
from console.engines import Database, Session
from console.errors import BusyError, ConnectionFailedError, RefusedError
from console.monitor import wording
from console.monitor.filters import NOTHING, Filters
from console.monitor.message import ERROR_LENGTH, Message
from console.monitor.message_count import ROWS_AT_ONCE, CountedRow
from console.monitor.messages import check_payload, read_task
from console.monitor.sample import take_sample
from console.monitor.scan_query import MessageSource, Row, scope_of, values_of, yes_no
from console.monitor.scans import By, Grouping, Scan, ScanKey, ScanRequest
from console.monitor.snapshot import snapshot
from console.plan import Control, OnProgress, Progress, Result

if TYPE_CHECKING:
    from sqlalchemy import Connection

_VOIDS_AT_ONCE = 1_000
"""Void numbers that one pop drops, at most."""


class Purge(RowAction):
    """`reason` is kept with each archived message; `permanently`: delete instead."""

    verb = "purge"
    states = ("ready", "error")
    allowed = ("ready", "scheduled", "error")
    requires_name = True

    def __init__(
        self, source: MessageSource, *, reason: str = "", permanently: bool = False
    ) -> None:
        """RefusedError where there is no archive to purge into."""
        queue = source.queue
        require_verb(queue, self.verb)
        if not permanently:
            require_archive(queue, "To delete for good, use --permanently.")
        if queue.kind is Kind.ADOPTED and queue.design.flow is Flow.NUMBERS:
            raise RefusedError(
                f"The ring {queue.name!r} was adopted: this console does not empty its slots.",
                why="Its callers manage its numbers themselves.",
            )
        if queue.kind is Kind.ADOPTED and queue.design.waits_itself:
            raise RefusedError(
                f"The queue {queue.name!r} was adopted: this console does not receive from it.",
                why="Only its owner knows when to end one of its conversations.",
            )
        if queue.subscribers:  # slots only: each subscriber has its own messages in hand
            options = {**queue.options, "in_hand": "off"}
            source = replace(source, queue=replace(queue, options=options))
        super().__init__(source, detail="deleted for good" if permanently else reason)
        self.statement = "delete_rows" if permanently else "archive_rows"
        self._permanently = permanently
        self._reason = f"purge: {reason}" if reason else "purge"

    def select(self, criteria: SelectionCriteria) -> Selection:
        if self.source.queue.design.waits_itself:
            broker.require_from_the_front(self.verb, criteria.filters)
        return super().select(criteria)

    def apply(self, connection: Connection, chosen: Batch, action_id: int) -> Ledger:
        if self.source.queue.design.waits_itself and isinstance(chosen, Sequence):
            bound = self.bound(action_id)
            statement = self.source.statement_name(self.statement)
            return broker.receive(connection, self.source, statement, chosen, **bound)
        return super().apply(connection, chosen, action_id)

    def bound(self, action_id: int) -> dict[str, object]:
        return {} if self._permanently else {"reason": self._reason, "action_id": action_id}

    def consequences(
        self, session: Session, selected: SelectedMessages
    ) -> tuple[list[str], list[str]]:
        queue = self.source.queue
        others, obstacles = deleted_along(session, self.source)
        if self._permanently:
            lines = ["they are deleted for good"]
        else:
            lines = [f"they go into {queue.name}_archive; restore brings them back"]
        if queue.subscribers:
            names = ", ".join(subscriber.name for subscriber in queue.subscribers)
            lines.append(f"each is dropped for those of {names} that have not popped it")
            lines.append(
                "what one of them has in hand stays: use release, requeue, archive for that"
            )
        if queue.design.waits_itself:
            lines.append("each conversation waits for the duration of a batch")
        if queue.design.flow is Flow.NUMBERS and selected.by_state.get("ready"):
            lines.append("their slots are free at once; pops step over their numbers")
            if selected.count > _VOIDS_AT_ONCE:
                lines.append(
                    f"a pop steps over at most {_VOIDS_AT_ONCE:,} numbers and then returns nothing "
                    "once; a relay afterwards avoids that"
                )
        return lines + others, obstacles


# Archiving round the clock, as Zabir does: finished messages leave in small batches, for ever.
# Each round selects anew, with a new cut-off, and is skipped while the queue is busy.


def rounds(
    database: Database,
    action: MessageAction,
    filters: Filters,
    every_seconds: float,
    hot_above: int | None,
    batching: Batching,
    control: Control,
    on_progress: OnProgress,
) -> Result:
    """Until `control` stops it. A lost connection or a held lock costs only one round.

    `hot_above`: a round is skipped while more messages are ready.
    """
    total = Ledger()
    while not control.stopped:
        done: Result | None = None
        try:
            if not (skipped := _why_skipped(database, action.source.queue, hot_above)):
                selected = select(database, action, filters)
                if selected.count:
                    done = execute(database, action, selected, batching, control)
                    total += done.ledger
                else:
                    skipped = "nothing to archive"
        except (BusyError, ConnectionFailedError) as error:
            skipped = error.why or error.what
        on_progress(Progress(total.out, None, skipped or "archiving", total, done))
        control.wait(every_seconds)
    return Result(Outcome.STOPPED, (f"archived {total.out:,} until it was stopped",), total)


def _why_skipped(database: Database, queue: Queue, hot_above: int | None) -> str:
    """Why a round does nothing; empty: it does."""
    if hot_above is None:
        return ""
    (seen,) = take_sample(database, only=[queue]).queues
    ready = snapshot(seen, database.label).ready
    if ready is not None and ready > hot_above:
        return f"{ready:,} messages are ready, more than {hot_above:,}"
    return ""


class Archive(RowAction):
    """Never a ready message, whatever its age."""

    verb = "archive"
    allowed = ("done", "error")
    statement = "archive_rows"

    def __init__(self, source: MessageSource, *, reason: str = "") -> None:
        """RefusedError where there is no archive."""
        queue = source.queue
        require_verb(queue, self.verb)
        require_subscriber(queue)
        require_archive(queue)
        super().__init__(source, detail=reason)
        # Where a finished message is deleted, only errors stay.
        self.states = ("done",) if "done" in queue.states else ("error",)
        self._reason = f"archive: {reason}" if reason else "archive"

    def bound(self, action_id: int) -> dict[str, object]:
        return {"reason": self._reason, "action_id": action_id}

    def consequences(
        self, session: Session, selected: SelectedMessages
    ) -> tuple[list[str], list[str]]:
        del session, selected
        return [f"they go into {self.source.queue.name}_archive; restore brings them back"], []


@dataclass(frozen=True)
class Taken:
    """Which rows of an archive, besides the filters on messages. None: any."""

    action: int | None = None
    """The number of the action that archived them."""
    reason: str | None = None
    """A text that their reason contains, ignoring case."""
    popped: bool = False
    """Only those that a pop archived; False: all others."""


@dataclass(frozen=True)
class _ArchivedRow:
    position: int
    matches: bool
    archive_id: int
    id: str
    state: str
    pushed_at: datetime | None
    age_seconds: float
    due_at: datetime | None
    attempts: int
    claimed_at: datetime | None
    claimed_by: str | None
    done_at: datetime | None
    title: str | None
    payload_bytes: int | None
    error: str | None

    @property
    def message(self) -> Message:
        """The row as a message, whose key is the archive_id."""
        fields = {name: value for name, value in vars(self).items() if name not in _OWN_FIELDS}
        error = None if self.error is None else self.error[:ERROR_LENGTH]
        fields |= {"key": str(self.archive_id), "error": error, "error_cut": error != self.error}
        return Message(**fields)


_OWN_FIELDS = {"position", "matches", "archive_id"}
_READ_AT_ONCE = 5_000
"""Rows of an archive that one statement reads where not all of them match."""
_PURGES_AT_ONCE = 50_000


class ArchiveSelection(Selection):
    """The matching rows of a queue's archive, in the order of their archiving.

    `older` and `newer` are about the time in the archive.
    """

    def __init__(
        self, source: MessageSource, criteria: SelectionCriteria, taken: Taken, restoring: sql.Scope
    ) -> None:
        """`restoring`: with what the server finds what restore would do with each.
        UsageError for filters that do not apply to an archive."""
        check_payload(source, criteria.filters)
        require_one_order(criteria.filters)
        filters = replace(source.normalize(criteria.filters), limit=None, keep_newest=None)
        self._filters, *self._next_filters = filters.each
        self._criteria = criteria
        self._source = source
        self._taken = taken
        self._restoring = restoring
        self._after = 0
        self._finished = False
        self.countable = not criteria.filters.ids and criteria.filters.error_group is None
        self.choosable = self.countable

    def next(self, most: int) -> list[Message]:
        while self._continues():
            narrowed = self._filters != NOTHING or self._taken != Taken()
            read_limit = max(most, _READ_AT_ONCE) if narrowed else most
            name = "matching_archived"
            rows = self._read(_ArchivedRow, name, read_limit, most, self._after)
            if rows:
                self._after = rows[-1].archive_id
            self._finished = not rows or (len(rows) < most and rows[-1].position < read_limit)
            if messages := [
                row.message for row in rows if row.matches and self._in_error_group(row)
            ]:
                return messages
        return []

    def count(
        self, grouping: Grouping, limit: object, most: int | None = None, *, behind: bool = False
    ) -> Iterator[list[CountedRow]]:
        del grouping, limit, most
        after, more = (self._after, not self._finished) if behind else (0, True)
        while more:
            rows = self._read(CountedRow, "counted_archived", ROWS_AT_ONCE, ROWS_AT_ONCE, after)
            more = bool(rows) and rows[0].position == ROWS_AT_ONCE
            after = int(rows[0].key_id) if rows else after
            yield rows

    def choose(self, most: int, grouping: Grouping, limit: object) -> Chosen | None:
        del grouping, limit
        narrowed = self._filters != NOTHING or self._taken != Taken()
        read_limit = max(most, _READ_AT_ONCE) if narrowed else most
        while not self._finished:
            rows = self._read(ChosenRow, "chosen_archived", read_limit, most, self._after)
            self._after = int(rows[0].key_id) if rows else self._after
            found = sum(row.matching for row in rows)
            self._finished = not rows or (found < most and rows[0].position < read_limit)
            if found:
                return Chosen(tuple(row.of(Storage.TABLE, "", "") for row in rows))
        return None

    def _continues(self) -> bool:
        """Each id is searched from the beginning: the archive has no index on ids."""
        if self._finished and self._next_filters:
            self._filters, self._after, self._finished = self._next_filters.pop(0), 0, False
        return not self._finished

    def _in_error_group(self, row: _ArchivedRow) -> bool:
        group = self._filters.error_group
        return group is None or group == wording.group_key(row.error or "")

    def _read(
        self, row_type: type[Row], name: str, read_limit: int, most: int, after: int
    ) -> list[Row]:
        request = ScanRequest(
            Scan("archive", By.ID),
            read_limit=read_limit,
            n=most,
            after=ScanKey("archive", id=str(after)),
            filters=self._filters,
            moment=self._criteria.cutoff,
            error_length=max(wording.TEXT_LENGTH, ERROR_LENGTH + 1),
        )
        conditions = {
            "by_state": yes_no(self._filters.state is not None),
            "by_action": yes_no(self._taken.action is not None),
            "by_reason": yes_no(self._taken.reason is not None),
            "popped": yes_no(self._taken.popped),
        }
        plain = scope_of(self._source, request)
        with self._criteria.session.transaction(read_task(self._source.queue)) as connection:
            self._source.begin_read(connection, self._criteria.database)
            return sql.rows(
                connection,
                row_type,
                self._source.statement_name(name),
                sql.Scope(
                    {**plain.values, **self._restoring.values},
                    {**plain.options, **self._restoring.options, **conditions},
                    plain.roles,
                ),
                **{
                    **values_of(self._source, request),
                    "state": self._filters.state,
                    "action": self._taken.action,
                    "reason": self._taken.reason,
                },
            )


@dataclass(frozen=True)
class _Purges:
    rows_read: int
    lowest: int | None
    action_id: int | None


def last_purge(source: MessageSource, criteria: SelectionCriteria) -> int | None:
    """The number of the last purge of which the archive still has messages.

    Reads backwards in chunks; ends early where the audit has no later purge.
    """
    queue, product = source.queue, source.product
    greatest: int | None = None
    before: int | None = None
    with criteria.session.transaction(read_task(queue)) as connection:
        wanted = audit.EntryFilter(queue.schema, queue.name, "purge")
        newest = next((e.action_id for e in audit.entries(connection, wanted, 1)), None)
    while True:
        with criteria.session.transaction(read_task(queue)) as connection:
            source.begin_read(connection, criteria.database)
            purges = sql.row(
                connection,
                _Purges,
                "actions.last_purge",
                queue.scope(product),
                before=before,
                read_limit=_PURGES_AT_ONCE,
                moment=criteria.cutoff,
            )
        greatest = max(filter(None, (greatest, purges.action_id)), default=None)
        if purges.rows_read < _PURGES_AT_ONCE or (greatest is not None and greatest == newest):
            return greatest
        before = purges.lowest
