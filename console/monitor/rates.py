"""The figures of one queue as the statements in `queries/` return them, and rates made from the
engines' cumulative counters: a counter that was reset is a gap, never a zero."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING

from console import sql
from console.catalog import Queue
from console.designs import Flow
from console.figures import AGE, COUNTED, COUNTS, READY, STUCK, SampledFigures

if TYPE_CHECKING:
    from sqlalchemy import Connection


STATES = tuple(figure.name for figure in COUNTS if figure is not STUCK)
"""The counts that do not overlap."""

MAY_BE_SLOW = (READY.name, AGE.name, *(figure.name for figure in COUNTS if figure is not READY))
"""What is read from the queue's own table and may be slow, the likeliest first."""

CLOCKS_DIFFER_SECONDS = 5.0
"""Of times that a caller's clock set."""


def known_age(seconds: float | None) -> float | None:
    """Never negative: a time further ahead of the server's clock than clocks differ is in another
    time zone, or wrong, and how long ago it was is not known."""
    if seconds is None or seconds < -CLOCKS_DIFFER_SECONDS:
        return None
    return max(0.0, seconds)


def age_as_of(seconds: float | None, lag: timedelta) -> float | None:
    """The age that it had that long ago; unchanged without a lag."""
    if seconds is None or not lag:
        return seconds
    return max(0.0, seconds - lag.total_seconds())


QueueName = tuple[str, str]
"""Schema and name: one queue of a database."""


def key_of(queue: Queue) -> QueueName:
    return (queue.schema, queue.name)


@dataclass(frozen=True)
class StatusRow(SampledFigures):
    """What every `status` statement returns: the figures, and what others follow from."""

    rows_estimated: int | None
    inserted: int | None
    updated: int | None
    deleted: int | None
    next_push: int | None
    next_pop: int | None
    base: int | None
    capacity: int | None

    @property
    def gap(self) -> int | None:
        if self.next_push is None or self.next_pop is None:
            return None
        return self.next_push - self.next_pop

    def over(self) -> tuple[str, ...]:
        """The states that have more rows than are counted; a ring's ready count is its gap."""
        counts = {state: getattr(self, state) for state in STATES}
        if self.capacity is not None:
            del counts["ready"]
        return tuple(state for state, count in counts.items() if count and count > COUNTED)

    def uncounted(self) -> int:
        """About how many rows `over()` has together, by the engine's statistics."""
        over = self.over()
        states = STATES if self.capacity is None else STATES[1:]
        counted = sum(getattr(self, state) or 0 for state in states if state not in over)
        return (self.rows_estimated or 0) - counted


_MANY_CONVERSATIONS = 1_000
"""More than this are a leak: one per session, or per message being sent, is normal."""


@dataclass(frozen=True)
class BrokerHealth:
    """Counts end at 10,001."""

    is_receive_enabled: bool
    is_enqueue_enabled: bool
    broker_enabled: bool
    conversations: int | None
    transmission: int | None
    """None: not counted this time."""
    transmission_status: str | None

    @property
    def enabled(self) -> bool:
        return self.is_receive_enabled and self.is_enqueue_enabled

    def counted_as(self, earlier: BrokerHealth) -> BrokerHealth:
        """With the counts of an earlier sample."""
        return replace(
            self,
            conversations=earlier.conversations,
            transmission=earlier.transmission,
            transmission_status=earlier.transmission_status,
        )

    def problem(self, ready: int | None) -> str:
        if not self.broker_enabled:
            return (
                "Service Broker is disabled in this database: nothing is delivered. Enable it with "
                "ALTER DATABASE CURRENT SET ENABLE_BROKER."
            )
        if not self.is_receive_enabled:
            return (
                "The queue is disabled: five pops of a message were rolled back in a row (a poison "
                "message), or it was disabled by hand. Nothing can be popped until ALTER QUEUE ... "
                "WITH STATUS = ON."
            )
        if not self.is_enqueue_enabled:
            return "The queue accepts no messages: ALTER QUEUE ... WITH STATUS = ON."
        if self.transmission:
            why = f": {self.transmission_status}" if self.transmission_status else ""
            return f"{_counted(self.transmission)} messages cannot be delivered{why}"
        # A message that is being sent may have a conversation of its own: no leak.
        conversations = self.conversations or 0
        if conversations > _MANY_CONVERSATIONS + 2 * (ready or 0):
            return (
                f"{_counted(conversations)} conversations are open: they are started and not ended."
            )
        return ""


def _counted(count: int) -> str:
    return f"More than {COUNTED:,}" if count > COUNTED else f"{count:,}"


def health(connection: Connection, queue: Queue, *, counts: bool = True) -> BrokerHealth:
    scope = queue.scope(connection, counters="yes" if counts else "no")
    return sql.row(connection, BrokerHealth, f"{queue.design.name}.health", scope)


@dataclass(frozen=True)
class Rates:
    """Messages a second; None: not known (yet)."""

    push: float | None = None
    pop: float | None = None
    net_range: tuple[float, float] | None = field(default=None, compare=False)
    """The range of push minus pop; None: too few samples, or not a ring."""
    pushed: float | None = field(default=None, compare=False)
    """Messages since the first sample of this window; never falls, gaps are left out."""
    popped: float | None = field(default=None, compare=False)

    @property
    def net(self) -> float | None:
        return None if self.push is None or self.pop is None else self.push - self.pop


@dataclass(frozen=True)
class _Counters:
    taken_at: float
    raw: tuple[int | None, ...]
    """Values that only rise; a fall is a reset, so a gap."""
    base: int | None
    pushed: float | None
    popped: float | None
    rows: int | None = None
    """How many there are, if they were counted; only pushes add to it."""
    deletes: bool = False
    """Only pops remove rows."""
    rows_estimated: int | None = None


class _Total:
    def __init__(self) -> None:
        self._sum = 0.0
        self._highest: float | None = None

    def add(self, count: float | None, *, restarted: bool) -> float | None:
        """`restarted`: the count does not continue the one before."""
        if count is None:
            return None
        if restarted or self._highest is None:
            self._highest = count
        # Engines' counters may lag: a count that falls a little and rises again counts once.
        self._sum += max(0.0, count - self._highest)
        self._highest = max(count, self._highest)
        return self._sum


class _Committed:
    """Pushes and pops of a design whose pop deletes: the engine counts what was rolled back too.

    What was inserted and not deleted is there. So at most as many pops were committed as rows were
    inserted that are not there any more, and the pushes likewise; from the first sample on, since
    the counters lag behind the rows."""

    def __init__(self) -> None:
        self._first: tuple[_Counters, float, float] | None = None
        """With the totals until then."""
        self._last: _Counters | None = None

    def of(self, now: _Counters, *, restarted: bool) -> _Counters:
        """With totals of what was committed."""
        if not now.deletes:
            return now
        counters, last = now, self._last
        if self._first is None or last is None or restarted:
            self._first = now, now.pushed or 0.0, now.popped or 0.0
        else:
            first, pushed, popped = self._first
            exact = first.rows is not None and now.rows is not None
            growth = _growth(first, now, exact=exact)
            if growth is None or (not exact and _was_estimated_anew(last, now)):
                counters = _counted_on(last, now)
                self._first = now, counters.pushed or 0.0, counters.popped or 0.0
            else:
                inserted, deleted, rows = growth
                pushed = max(last.pushed or 0.0, pushed + min(inserted, deleted + rows))
                popped = max(last.popped or 0.0, popped + min(deleted, inserted - rows))
                counters = replace(now, pushed=pushed, popped=popped)
        self._last = counters
        return counters


def _counted_on(last: _Counters, now: _Counters) -> _Counters:
    """By the counters alone."""
    (inserted, _, deleted) = ((n or 0) - (b or 0) for b, n in zip(last.raw, now.raw, strict=True))
    if None in {now.pushed, now.popped}:
        return now
    return replace(
        now, pushed=(last.pushed or 0.0) + inserted, popped=(last.popped or 0.0) + deleted
    )


def _was_estimated_anew(last: _Counters, now: _Counters) -> bool:
    """Whether a VACUUM or ANALYZE has changed the number of rows, not pushes and pops alone; or
    the rows were counted before, and are too many now."""
    growth = _growth(last, now, exact=False)
    if growth is None:
        return False
    inserted, deleted, rows = growth
    difference = inserted - deleted - rows
    return not -deleted <= difference <= inserted or (last.rows is None) != (now.rows is None)


def _growth(first: _Counters, now: _Counters, *, exact: bool) -> tuple[int, int, int] | None:
    """Of the rows inserted, deleted and there; `exact`: by count, else by the statistics."""
    rows = (first.rows, now.rows) if exact else (first.rows_estimated, now.rows_estimated)
    pairs = ((first.raw[0], now.raw[0]), (first.raw[-1], now.raw[-1]), rows)
    found = [n - b for b, n in pairs if b is not None and n is not None]
    return (found[0], found[1], found[2]) if len(found) == len(pairs) else None


def undone_pops(before: StatusRow, now: StatusRow) -> tuple[int, int] | None:
    """How many pops of a design whose pop deletes were rolled back and committed in between; None:
    not known. The counters lag by up to ten seconds."""
    first, last = (_counters(0.0, row, Flow.DELETED) for row in (before, now))
    exact = first.rows is not None and last.rows is not None
    growth = _growth(first, last, exact=exact)
    if growth is None:
        return None
    inserted, deleted, rows = growth
    undone = max(0, deleted - (inserted - rows))
    committed = deleted - undone
    # An estimate made anew looks like some rollbacks, hardly like nothing else.
    return (undone, committed) if committed >= 0 and (exact or not committed) else None


class RateWindow:
    """The rates of one queue over the samples of the last `seconds`; a reset starts it over."""

    def __init__(self, flow: Flow, seconds: float = 10.0) -> None:
        self._flow = flow
        self._seconds = seconds
        self._seen: deque[_Counters] = deque()
        self._pushed, self._popped = _Total(), _Total()
        self._committed = _Committed()

    def add(self, taken_at: float, row: StatusRow | None, *, counts_rows: bool) -> Rates:
        """Add a sample; the rates from the oldest one kept to this one."""
        if row is None or (self._flow is not Flow.NUMBERS and not counts_rows):
            self._seen.clear()
            return Rates()
        now = _counters(taken_at, row, self._flow)
        if self._seen and _was_reset(self._seen[-1], now):
            self._seen.clear()
        now = self._committed.of(now, restarted=not self._seen)
        restarted = not self._seen
        self._seen.append(now)
        # One sample beyond the window stays: two are needed, however far apart.
        while len(self._seen) > 2 and now.taken_at - self._seen[1].taken_at >= self._seconds:
            self._seen.popleft()
        rates, net_range = _between(self._seen[0], now), None
        if self._flow is Flow.NUMBERS:
            steps = [_between(first, last) for first, last in pairwise(self._seen)]
            net_range = _net_range(rates, steps)
        pushed = self._pushed.add(now.pushed, restarted=restarted)
        popped = self._popped.add(now.popped, restarted=restarted)
        return Rates(rates.push, rates.pop, net_range, pushed, popped)


def _net_range(rates: Rates, steps: Sequence[Rates]) -> tuple[float, float] | None:
    """Push minus pop, plus and minus two standard errors of the steps."""
    middle, nets = rates.net, [step.net for step in steps if step.net is not None]
    if middle is None or len(nets) < 3:
        return None
    mean = sum(nets) / len(nets)
    error = sqrt(sum((net - mean) ** 2 for net in nets) / (len(nets) - 1) / len(nets))
    return middle - 2 * error, middle + 2 * error


def _counters(taken_at: float, row: StatusRow, flow: Flow) -> _Counters:
    raw = (row.inserted, row.updated, row.deleted)
    if flow is Flow.NUMBERS:
        raw = (row.next_push, row.next_pop, None)
    pushed, popped = _totals(row, flow)
    rows = None if flow is Flow.NUMBERS else rows_of(row)
    deletes, estimated = flow is Flow.DELETED, row.rows_estimated
    return _Counters(taken_at, raw, row.base, pushed, popped, rows, deletes, estimated)


def rows_of(row: StatusRow) -> int | None:
    """How many rows there are; None if they were not all counted."""
    if row.over():
        return None
    counts = [getattr(row, state) for state in STATES]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _totals(row: StatusRow, flow: Flow) -> tuple[float | None, float | None]:
    """Pushes and pops since the counters began, up to a constant."""
    if flow is Flow.NUMBERS:
        return row.next_push, row.next_pop
    if flow is Flow.DELETED:
        return row.inserted, row.deleted
    return row.inserted, _claimed_flow(row)


def _claimed_flow(row: StatusRow) -> float | None:
    """Pops, up to a constant: a pop is an update, and its end (complete, fail, release) another
    update or the delete; rows that are claimed now have had only the first."""
    if row.updated is None or row.deleted is None:
        return None
    if row.claimed is None or row.claimed > COUNTED:
        return None
    return (row.updated + row.deleted + row.claimed) / 2


def _was_reset(before: _Counters, now: _Counters) -> bool:
    if before.base != now.base:
        return True  # a relay renumbers: no number was drawn
    pairs = zip(before.raw, now.raw, strict=True)
    return any(b is None or (n is not None and n < b) for b, n in pairs if n is not None)


def _between(first: _Counters, last: _Counters) -> Rates:
    elapsed = last.taken_at - first.taken_at
    if elapsed <= 0:
        return Rates()

    def rate(before: float | None, after: float | None) -> float | None:
        if before is None or after is None:
            return None
        # The engine's counters lag by up to a second: a small fall is no negative rate.
        return max(0.0, (after - before) / elapsed)

    push, pop = rate(first.pushed, last.pushed), rate(first.popped, last.popped)
    # The counters of an idle session may lag by ten seconds: where rows came or went uncounted, a
    # zero would be false.
    more = 0 if first.rows is None or last.rows is None else last.rows - first.rows
    return Rates(
        None if push == 0 and more > 0 else push,
        None if pop == 0 and more < 0 and last.deletes else pop,
    )
