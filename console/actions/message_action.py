"""What a verb does to messages, a `MessageAction`; most are a `RowAction`, which runs one statement
on all rows that it has locked. And which messages it selects: nothing runs beyond these.

They are selected at one moment, the cut-off: messages that come into their state later never belong
to them.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from console import catalog, sql
from console.actions.canary import CanaryTracker
from console.actions.rows import (
    CHANGED,
    Batch,
    LockedRows,
    Moved,
    QueueSelection,
    Selection,
    SelectionCriteria,
    Storage,
    lock,
    run_others_code,
    scope,
)
from console.actions.selected import SelectedError, SelectedMessages, Total
from console.catalog import Kind, Queue, decisions, relations
from console.catalog.audit import Ledger
from console.catalog.decisions import Decision
from console.designs import Flow
from console.engines import Database, Session
from console.errors import ConsoleError, RefusedError, UsageError
from console.monitor.filters import NOTHING, Filters
from console.monitor.message import Message
from console.monitor.message_count import CountedRow, Group
from console.monitor.rates import STATES, StatusRow, known_age
from console.monitor.sample import ArchivedRow, EstimateRow, QueueSample
from console.monitor.scan_query import MessageSource
from console.monitor.scans import Grouping
from console.monitor.snapshot import snapshot

if TYPE_CHECKING:
    from sqlalchemy import Connection

SAMPLE = 3
_MOST_EXAMINED = 5_000
"""Messages examined at a time."""


class MessageAction:
    """What a verb does to messages: what it selects and leaves alone, its consequences, its SQL."""

    verb = ""
    states: tuple[str, ...] = ()
    """The states that it takes where the filters name none."""
    allowed: tuple[str, ...] = ()
    """The states that a filter may name."""
    requires_name = False
    """Whether the queue's name is required as confirmation, however few the messages."""
    in_queue = True
    """Whether it takes them from the queue; False: from its archive."""
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
        left: dict[str, list[Message]] = defaultdict(list)
        groups = [self.group_of(message) for message in chosen]
        why = self.groups_excluded(session, groups)
        for message, group in zip(chosen, groups, strict=True):
            if group in why:
                left[why[group]].append(message)
        return left

    @property
    def by_group(self) -> bool:
        """Whether `groups_excluded` decides about all messages of a group together."""
        return type(self).excluded is MessageAction.excluded

    chosen_unjudged = False
    """Whether what is chosen without being read has also what `excluded` would name."""
    grouping = Grouping.NO

    @property
    def group_limit(self) -> object:
        """The limit of the grouping: a time, or seconds."""
        return None

    def group_of(self, message: Message) -> Group:
        """The group that the grouping puts it into."""
        del message
        return Group()

    def groups_excluded(self, session: Session, groups: Sequence[Group]) -> Mapping[Group, str]:
        """Group -> why it would leave its messages alone, for those that it would."""
        del session, groups
        return {}

    def consequences(
        self, session: Session, selected: SelectedMessages
    ) -> tuple[list[str], list[str]]:
        """What follows, in the design's own terms; and the obstacles."""
        del session, selected
        return [], []

    def obstacles(self, session: Session) -> list[str]:
        """Why the table as it is cannot take it."""
        del session
        return []

    def script(self) -> str:
        """The statement that would run, readable for a DBA."""
        raise NotImplementedError

    def apply(self, connection: Connection, chosen: Batch, action_id: int) -> Ledger:
        """One batch, in the caller's transaction."""
        raise NotImplementedError

    def forbidden(self, connection: Connection) -> Decision | None:
        """The operator's decision, made since the plan, by which no further batch may run."""
        queue = self.source.queue
        return decisions.against(connection, self.verb, queue.schema, queue.name)

    def stop_reason(self, ledger: Ledger) -> str:
        """Why no further batch can run after this one; empty: it goes on."""
        del ledger
        return ""


@dataclass(frozen=True)
class _Cascade:
    """A foreign key by which the server changes further rows with those that it deletes."""

    name: str
    of_table: str
    effect: str
    """`delete`; `null`, `default`: what their reference becomes."""
    through: str | None
    """The table to whose rows they refer; None: to messages."""
    of_messages: bool

    @property
    def deletes_messages(self) -> bool:
        return self.effect == "delete" and self.of_messages

    @property
    def words(self) -> str:
        to = "it" if self.through is None else f"those of {self.through}"
        rows = f"the rows of {self.of_table} that refer to {to}"
        if self.effect == "delete":
            return f"with each the server deletes {rows}: {self.name}"
        value = "NULL" if self.effect == "null" else "its default"
        return f"with each the server sets the reference of {rows} to {value}: {self.name}"


@dataclass(frozen=True)
class _Trigger:
    name: str
    instead: bool

    @property
    def words(self) -> str:
        return f"{self.name} (instead of the delete)" if self.instead else self.name


def deleted_along(session: Session, source: MessageSource) -> tuple[list[str], list[str]]:
    """What the server does beside deleting messages of somebody's table: to rows of other tables,
    and by triggers, a line each; and further messages that it deletes, which nobody planned, an
    obstacle each."""
    queue = source.queue
    if queue.kind is not Kind.ADOPTED or queue.design.library:
        return [], []
    with session.transaction(f"read the foreign keys of {queue.name!r}") as connection:
        within = queue.scope(source.product)
        found = sql.rows(connection, _Cascade, "actions.cascades", within)
        triggers = sql.rows(connection, _Trigger, "actions.delete_triggers", within)
    lines = [one.words for one in found if not one.deletes_messages]
    if triggers:
        lines.append(f"the server runs its DELETE triggers: {', '.join(t.words for t in triggers)}")
    return lines, [
        f"With each the server deletes the messages that refer to it, in whatever state: {one.name}"
        ", ON DELETE CASCADE. Delete them as their owner does."
        for one in found
        if one.deletes_messages
    ]


class RowAction(MessageAction):
    """Runs one statement of actions.sql on the rows that it has locked."""

    statement = ""
    sets: tuple[str, ...] = ()
    """The roles whose columns it gives another value."""
    clears: tuple[str, ...] = ()
    """Those that it sets to NULL."""
    also_reads: tuple[str, ...] = ()
    """Further statements, by which it chooses the rows."""

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
            f"The server computes the column {column.name!r}, which {self.verb} writes: change "
            "what it is computed from, as its owner does."
            if column.computed
            else f"The column {column.name!r}, which {self.verb} sets to NULL, is NOT NULL."
            for column in columns
            if (column.computed and column.name in written)
            or (column.required and column.name in cleared)
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

    def apply(self, connection: Connection, chosen: Batch, action_id: int) -> Ledger:
        self.source.wait_for_relay(connection)
        locked, skipped = lock(connection, self.source, chosen)
        ledger = Ledger(selected=skipped, skipped={CHANGED: skipped} if skipped else {})
        if self.tracker is not None and self.tracker.enabled and isinstance(chosen, Sequence):
            ids = {id_ for some in locked for id_ in some.ids}
            self.tracker.begin(connection, [message for message in chosen if message.id in ids])
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
                locations=held.bound(self.source.product),
                state=held.state,
                **self.bound(action_id),
            )
        # A library's own rule may leave some unchanged.
        stayed = held.count - moved.taken_out
        why = self.source.queue.design.stays
        failed = {why: stayed} if stayed > 0 and why else {}
        return Ledger(held.count, moved.taken_out, moved.put_in, failed=failed)


class _Count:
    """Counts the matching messages, in the order in which they would be taken."""

    def __init__(self, filters: Filters, states: Sequence[str], action: MessageAction) -> None:
        self.states = states
        self._group_of = action.group_of
        self.matching: Counter[str] = Counter()
        self.by_state: Counter[str] = Counter()
        self.by_group: Counter[Group] = Counter()
        self.excluded: Counter[str] = Counter()
        self.oldest: float | None = None
        self.newest: float | None = None
        self.payload_bytes: int | None = 0
        self.sample: list[Message] = []
        self.targets: list[SelectedError] = []
        self.filters = filters
        self._limit = filters.limit
        self._kept = filters.keep_newest or 0
        self._newest: deque[Message] = deque()
        """The newest so far: with keep-newest, skipped unless newer ones come."""

    @property
    def examine_next(self) -> int:
        """How many to examine next; 0: the limit is reached."""
        if self._limit is None:
            return _MOST_EXAMINED
        left = self._limit - self.by_state.total()
        return min(_MOST_EXAMINED, left + self._kept - len(self._newest)) if left else 0

    def add(self, chosen: Sequence[Message], left: Mapping[str, list[Message]]) -> None:
        why_left = {id(message): why for why, some in left.items() for message in some}
        for message in chosen:
            self.matching[message.state] += 1
            if why := why_left.get(id(message)):
                self.excluded[why] += 1
                continue
            self._newest.append(message)
            if len(self._newest) > self._kept:
                self._take(self._newest.popleft())

    def add_counted(self, part: CountedRow, why_left: str) -> None:
        """A part of those that the server counts. `why_left`: the action leaves them alone."""
        state = part.state or ""
        self.matching[state] += part.matching
        if why_left:
            self.excluded[why_left] += part.matching
            return
        self.by_state[state] += part.matching
        self.by_group[part.group] += part.matching
        if part.payload_bytes is None or self.payload_bytes is None:
            self.payload_bytes = None
        else:
            self.payload_bytes += part.payload_bytes
        for age in (known_age(part.oldest_seconds), known_age(part.newest_seconds)):
            if age is not None:
                self._add_age(age)

    def _add_age(self, age: float) -> None:
        self.oldest = age if self.oldest is None else max(self.oldest, age)
        self.newest = age if self.newest is None else min(self.newest, age)

    def _take(self, message: Message) -> None:
        self.by_state[message.state] += 1
        self.by_group[self._group_of(message)] += 1
        if message.payload_bytes is None or self.payload_bytes is None:
            self.payload_bytes = None
        else:
            self.payload_bytes += message.payload_bytes
        if (age := message.age_seconds) is not None:
            self._add_age(age)
        if len(self.sample) < SAMPLE:
            self.sample.append(message)
        if message.error_hash is not None:
            self.targets.append(SelectedError(message.id, message.attempts, message.error_hash))


def states_for(action: MessageAction, queue: Queue, filters: Filters) -> tuple[str, ...]:
    """UsageError where the filters name a state that the action never takes."""
    if filters.state is None:
        return action.states
    if filters.state not in action.allowed:
        raise UsageError(
            f"{action.verb} takes no messages in the state {filters.state!r}.",
            next_step=f"Of {queue.name!r} it takes: {', '.join(action.allowed)}.",
        )
    return (filters.state,)


def select(
    database: Database,
    action: MessageAction,
    filters: Filters = NOTHING,
    *,
    on_count: Callable[[int], None] = lambda _: None,
) -> SelectedMessages:
    """Count what the action would act on. Changes nothing. `on_count` gets the count so far."""
    queue = action.source.queue
    states = states_for(action, queue, filters)
    doing = f"plan {action.verb} of {queue.name!r}"
    with database.session(doing, read_only=True) as session:
        with session.transaction(doing) as connection:
            moment = sql.value(connection, datetime, "actions.server_time")
            production = database.production or catalog.is_production(connection)
        counted = _Count(filters, states, action)
        selection = action.select(SelectionCriteria(database, session, filters, states, moment))
        on_server = _may_be_counted(action, filters)
        while most := counted.examine_next:
            few = on_server and selection.countable
            if not (chosen := selection.next(SAMPLE if few else most)):
                break
            # Without an order to continue in, the first ones have shown it.
            if few and selection.countable:
                _count_on_server(session, action, selection, counted, on_count)
                _read_sample(session, action, selection, counted, chosen)
                break
            counted.add(chosen, action.excluded(session, chosen))
            on_count(counted.matching.total())
        selected = SelectedMessages(
            filters=filters,
            states=states,
            cutoff=moment,
            count=counted.by_state.total(),
            by_state=dict(counted.by_state),
            totals=dict.fromkeys(states, Total(None)),
            excluded=dict(counted.excluded),
            oldest_seconds=counted.oldest,
            newest_seconds=counted.newest,
            payload_bytes=counted.payload_bytes,
            sample=tuple(counted.sample),
            by_group=dict(counted.by_group),
            detail=action.detail,
            production=production,
            targets=tuple(counted.targets),
            complete=selection.complete,
        )
        consequences, obstacles = action.consequences(session, selected)
        unwritable = action.obstacles(session)
        totals = _totals(session, database, action, selected, counted)
    return replace(
        selected,
        totals=totals,
        consequences=tuple(consequences),
        obstacles=(*unwritable, *obstacles),
    )


def _may_be_counted(action: MessageAction, filters: Filters) -> bool:
    """Whether the server can count, without the messages being read, what the action would take."""
    bounded = filters.limit is not None or filters.keep_newest is not None
    return action.by_group and not (bounded and action.grouping is not Grouping.NO)


def _count_on_server(
    session: Session,
    action: MessageAction,
    selection: Selection,
    counted: _Count,
    on_count: Callable[[int], None],
) -> None:
    filters, grouping, limit = counted.filters, action.grouping, action.group_limit
    most, total = filters.limit, 0
    if filters.keep_newest is not None:
        for parts in selection.count(grouping, limit):
            total += sum(part.matching for part in parts)
            on_count(total)
        rest = max(0, total - filters.keep_newest)
        most = rest if most is None else min(most, rest)
    why: dict[Group, str] = {}
    for parts in selection.count(grouping, limit, most):
        new = [part.group for part in parts if part.matching and part.group not in why]
        why |= dict.fromkeys(new, "") | dict(action.groups_excluded(session, new) if new else {})
        for part in parts:
            if part.matching:
                counted.add_counted(part, why[part.group])
        on_count(counted.matching.total())
    if total:
        (state,) = counted.states
        counted.matching[state] = total


def _read_sample(
    session: Session,
    action: MessageAction,
    selection: Selection,
    counted: _Count,
    first: list[Message],
) -> None:
    """The first of those that were counted, in pages of ever more."""
    wanted, read, chosen = min(SAMPLE, counted.by_state.total()), SAMPLE, first
    while wanted and chosen:
        left = {id(m) for some in action.excluded(session, chosen).values() for m in some}
        counted.sample += [message for message in chosen if id(message) not in left]
        read = min(2 * read, _MOST_EXAMINED)
        chosen = selection.next(read) if len(counted.sample) < wanted else []
    del counted.sample[wanted:]


_COUNTED_AS = {"error": "errors"}
"""State -> its count in a snapshot, where that has another name."""
_COUNTS_ONLY = {"age_seconds_limit": "0", "stuck_limit": "0"}
"""Limits that keep a sample from reading more than the counts."""


def _totals(
    session: Session,
    database: Database,
    action: MessageAction,
    selected: SelectedMessages,
    counted: _Count,
) -> dict[str, Total]:
    """As counted; where the limit ended the count, a sample's, which has no filters."""
    if counted.examine_next:
        return {state: Total(n, not selected.complete) for state, n in counted.matching.items()}
    # The status of a ring counts the claims and errors of all its subscribers.
    if selected.filters.narrowing or not action.in_queue or action.source.queue.subscriber:
        return {}
    try:
        figures = snapshot(_depths(session, database, action.source), database.label)
    except ConsoleError:
        return {state: Total(None) for state in selected.states}
    names = {state: _COUNTED_AS.get(state, state) for state in selected.states}
    return {
        state: Total(getattr(figures, name), name in figures.estimated)
        for state, name in names.items()
    }


def _depths(session: Session, database: Database, source: MessageSource) -> QueueSample:
    """The messages in each state, counted up to a bound, above it estimated."""
    queue, of = source.queue, source.queue.design.name
    counters = "yes" if database.capabilities.counts_rows else "no"
    scope = queue.scope(source.product, counters=counters, **_COUNTS_ONLY)
    estimates, archived = None, None
    with session.transaction(f"count the messages of {queue.name!r}") as connection:
        source.begin_read(connection, database)
        row = next(iter(sql.rows(connection, StatusRow, f"{of}.status", scope)), None)
        if row is not None and row.over() and sql.has(connection, f"{of}.estimate"):
            over = queue.scope(source.product, counters=counters, over="|".join(row.over()))
            estimate = sql.row(connection, EstimateRow, f"{of}.estimate", over)
            estimates = {state: getattr(estimate, state) for state in STATES}
        if sql.has(connection, f"{of}.archive_estimate"):
            archived = sql.row(connection, ArchivedRow, f"{of}.archive_estimate", scope).done
    return QueueSample(queue, row, estimates=estimates, archived=archived)


def require_possible(action: MessageAction, selected: SelectedMessages) -> None:
    if selected.obstacles:
        raise RefusedError(
            f"{action.verb} of {action.source.queue.name!r} cannot be done as things stand.",
            why=" ".join(selected.obstacles),
        )
