"""The plan of an action on messages. Nothing runs without one, and nothing beyond it.

A plan is made at one moment, its cut-off: messages that come into their state later never belong
to it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from console import catalog, sql
from console.actions.message_action import MessageAction
from console.actions.message_plan import Plan, SelectedError, Total
from console.actions.rows import SelectionCriteria
from console.catalog import Queue
from console.engines import Database, Session
from console.errors import ConsoleError, RefusedError, UsageError
from console.monitor.filters import NOTHING, Filters
from console.monitor.message import Message
from console.monitor.rates import STATES, StatusRow
from console.monitor.sample import ArchivedRow, EstimateRow, QueueSample
from console.monitor.scan_query import MessageSource
from console.monitor.snapshot import snapshot

SAMPLE = 3
_MOST_EXAMINED = 5_000
"""Messages examined at a time."""


class _Count:
    """Counts the matching messages, in the order in which they would be taken."""

    def __init__(self, filters: Filters) -> None:
        self.matching: Counter[str] = Counter()
        self.by_state: Counter[str] = Counter()
        self.excluded: Counter[str] = Counter()
        self.oldest: float | None = None
        self.newest: float | None = None
        self.payload_bytes: int | None = 0
        self.sample: list[Message] = []
        self.targets: list[SelectedError] = []
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

    def _take(self, message: Message) -> None:
        self.by_state[message.state] += 1
        if message.payload_bytes is None or self.payload_bytes is None:
            self.payload_bytes = None
        else:
            self.payload_bytes += message.payload_bytes
        if (age := message.age_seconds) is not None:
            self.oldest = age if self.oldest is None else max(self.oldest, age)
            self.newest = age if self.newest is None else min(self.newest, age)
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


def make(
    database: Database,
    action: MessageAction,
    filters: Filters = NOTHING,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Plan:
    """Count what the action would act on. Changes nothing. `progress` gets the count so far."""
    queue = action.source.queue
    states = states_for(action, queue, filters)
    doing = f"plan {action.verb} of {queue.name!r}"
    with database.session(doing, read_only=True) as session:
        with session.transaction(doing) as connection:
            moment = sql.value(connection, datetime, "actions.server_time")
            production = database.production or catalog.is_production(connection)
        counted = _Count(filters)
        selection = action.select(SelectionCriteria(database, session, filters, states, moment))
        while (most := counted.examine_next) and (chosen := selection.next(most)):
            counted.add(chosen, action.excluded(session, chosen))
            progress(counted.matching.total())
        plan = Plan(
            verb=action.verb,
            queue=queue,
            connection=database.label,
            production=production,
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
            sql=action.script(),
            requires_name=action.requires_name,
            detail=action.detail,
            age_label=action.age_label,
            targets=tuple(counted.targets),
            complete=selection.complete,
        )
        consequences, obstacles = action.consequences(session, plan)
        unwritable = action.obstacles(session)
        totals = _totals(session, database, action, plan, counted)
    return replace(
        plan,
        totals=totals,
        consequences=tuple(consequences),
        obstacles=(*unwritable, *obstacles),
    )


_COUNTED_AS = {"error": "errors"}
"""State -> its count in a snapshot, where that has another name."""
_COUNTS_ONLY = {"age_seconds_limit": "0", "stuck_limit": "0"}
"""Limits that keep a sample from reading more than the counts."""


def _totals(
    session: Session, database: Database, action: MessageAction, plan: Plan, counted: _Count
) -> dict[str, Total]:
    """As counted; where the limit ended the count, a sample's, which has no filters."""
    if counted.examine_next:
        return {state: Total(n, not plan.complete) for state, n in counted.matching.items()}
    # The status of a ring counts the claims and errors of all its subscribers.
    if plan.filters.narrowing or action.age_label != Plan.age_label or plan.queue.subscriber:
        return {}
    try:
        figures = snapshot(_depths(session, database, action.source), database.label)
    except ConsoleError:
        return {state: Total(None) for state in plan.states}
    names = {state: _COUNTED_AS.get(state, state) for state in plan.states}
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


def require_possible(plan: Plan) -> None:
    if plan.obstacles:
        raise RefusedError(
            f"{plan.verb} of {plan.queue.name!r} cannot be done as things stand.",
            why=" ".join(plan.obstacles),
        )
