"""From samples to what is shown: figures of one queue, with what is estimated and what unknown."""

from collections import deque
from dataclasses import dataclass, fields

from console.catalog import Queue
from console.designs import Flow
from console.monitor.sample import COUNTED, QueueSample, StatusRow

_STATE_FIELDS = {
    "ready": "ready",
    "scheduled": "scheduled",
    "claimed": "claimed",
    "stuck": "claimed",
    "errors": "error",
    "done": "done",
}
"""A snapshot's count -> the state that a design must have for it."""


@dataclass(frozen=True)
class QueueSnapshot:
    """One queue at one moment. None: the design has it not, or, if named in `unknown`, not known.

    Ages and rates are seconds and messages a second, by the database's clock and ours.
    """

    queue: str
    design: str
    ready: int | None
    claimed: int | None
    stuck: int | None
    errors: int | None
    done: int | None
    scheduled: int | None
    age_seconds: float | None
    push_per_second: float | None
    pop_per_second: float | None
    gap: int | None
    capacity: int | None
    schema: str
    connection: str
    estimated: tuple[str, ...]
    unknown: tuple[str, ...]
    problem: str = ""
    """Why everything is unknown, where it is."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What stays the same from snapshot to snapshot."""
        return (self.connection, self.schema, self.queue)

    def as_json(self) -> dict[str, object]:
        """The stable object of `status --json`."""
        found: dict[str, object] = {f.name: getattr(self, f.name) for f in fields(self)}
        del found["problem"]
        return found | {"estimated": list(self.estimated), "unknown": list(self.unknown)}


@dataclass(frozen=True)
class Rates:
    """Messages a second; None: not known (yet)."""

    push: float | None = None
    pop: float | None = None


@dataclass(frozen=True)
class _Counters:
    taken_at: float
    raw: tuple[int | None, ...]
    """What only ever rises, for one life of the counters: a fall is a reset, so a gap."""
    base: int | None
    pushed: float | None
    popped: float | None


class RateWindow:
    """The rates of one queue over the samples of the last `seconds`; a reset begins it anew."""

    def __init__(self, flow: Flow, seconds: float = 10.0) -> None:
        self._flow = flow
        self._seconds = seconds
        self._seen: deque[_Counters] = deque()

    def add(self, taken_at: float, row: StatusRow | None, *, counts_rows: bool) -> Rates:
        """Take one sample in and return the rates from the oldest one kept to this one."""
        if row is None or (self._flow is not Flow.NUMBERS and not counts_rows):
            self._seen.clear()
            return Rates()
        now = _counters(taken_at, row, self._flow)
        if self._seen and _was_reset(self._seen[-1], now):
            self._seen.clear()
        self._seen.append(now)
        # The last one beyond the window stays: two samples are needed whatever their distance.
        while len(self._seen) > 2 and now.taken_at - self._seen[1].taken_at >= self._seconds:
            self._seen.popleft()
        return _between(self._seen[0], now)


def _counters(taken_at: float, row: StatusRow, flow: Flow) -> _Counters:
    raw = (row.inserted, row.updated, row.deleted)
    pushed: float | None
    popped: float | None
    if flow is Flow.NUMBERS:
        raw = (row.next_push, row.next_pop, None)
        pushed, popped = row.next_push, row.next_pop
    elif flow is Flow.DELETED:
        pushed, popped = row.inserted, row.deleted
    else:
        pushed, popped = row.inserted, _claimed_flow(row)
    return _Counters(taken_at, raw, row.base, pushed, popped)


def _claimed_flow(row: StatusRow) -> float | None:
    """How many pops there were, up to a constant.

    A pop is an update, and its end (complete, fail, release) another update or the delete; what
    is claimed now has had only the first of the two.
    """
    if row.updated is None or row.deleted is None:
        return None
    if row.claimed is None or row.claimed > COUNTED:
        return None
    return (row.updated + row.deleted + row.claimed) / 2


def _was_reset(before: _Counters, now: _Counters) -> bool:
    if before.base != now.base:
        return True  # a relay: the numbers were moved, not drawn
    pairs = zip(before.raw, now.raw, strict=True)
    return any(b is None or (n is not None and n < b) for b, n in pairs if n is not None)


def _between(first: _Counters, last: _Counters) -> Rates:
    elapsed = last.taken_at - first.taken_at
    if elapsed <= 0:
        return Rates()

    def rate(before: float | None, after: float | None) -> float | None:
        if before is None or after is None:
            return None
        # The engine's counters trail by up to a second: a small fall is that, not a flow back.
        return max(0.0, (after - before) / elapsed)

    return Rates(rate(first.pushed, last.pushed), rate(first.popped, last.popped))


def snapshot(sample: QueueSample, connection: str, rates: Rates | None = None) -> QueueSnapshot:
    """The figures of one queue; without rates (a single look) those are unknown."""
    queue, row = sample.queue, sample.row
    applicable = _applicable(queue)
    rates = rates or Rates()
    if row is None:
        return _snapshot(queue, connection, {}, [], applicable, sample.problem)
    counts, estimated = _counts(queue, row)
    values: dict[str, float | None] = {
        **counts,
        "age_seconds": row.age_seconds,
        "push_per_second": rates.push,
        "pop_per_second": rates.pop,
        "capacity": row.capacity,
    }
    if row.next_push is not None and row.next_pop is not None:
        values["gap"] = row.next_push - row.next_pop
    if row.age_seconds is None and counts.get("ready") == 0:
        applicable = [name for name in applicable if name != "age_seconds"]  # nothing has an age
    return _snapshot(queue, connection, values, estimated, applicable, "")


def _applicable(queue: Queue) -> list[str]:
    """The fields that a queue of its design and options has."""
    states = queue.states
    names = [name for name, state in _STATE_FIELDS.items() if state in states]
    names += ["age_seconds", "push_per_second", "pop_per_second"]
    if queue.design.flow is Flow.NUMBERS:
        names += ["gap", "capacity"]
    return names


def _counts(queue: Queue, row: StatusRow) -> tuple[dict[str, int | None], list[str]]:
    """The counts by state, and which of them are estimates.

    Above the bounded count the engine's statistics speak, less what was counted in the other
    states, and never for less than the bound.
    """
    counted = {name: getattr(row, name) for name in _STATE_FIELDS}
    estimated = [name for name, count in counted.items() if count is not None and count > COUNTED]
    if queue.design.flow is Flow.NUMBERS:
        if row.capacity is not None and row.capacity > COUNTED:
            estimated = ["ready", *(name for name in estimated if name != "ready")]
        for name in estimated:
            if name != "ready":
                counted[name] = COUNTED
        return counted, estimated
    others = sum(
        count
        for name, count in counted.items()
        if count is not None and name not in estimated and name != "stuck"
    )
    for name in estimated:
        counted[name] = max(COUNTED, (row.rows_estimated or 0) - others)
    return counted, estimated


def _snapshot(
    queue: Queue,
    connection: str,
    values: dict[str, float | None],
    estimated: list[str],
    applicable: list[str],
    problem: str,
) -> QueueSnapshot:
    shown = {name: values.get(name) if name in applicable else None for name in _FIGURES}
    return QueueSnapshot(
        queue=queue.name,
        design=queue.design.name,
        schema=queue.schema,
        connection=connection,
        estimated=tuple(name for name in estimated if name in applicable),
        unknown=tuple(name for name in applicable if shown[name] is None),
        problem=problem,
        **shown,  # type: ignore[arg-type]  # the figures, by name; ints where counts
    )


_FIGURES = (
    *_STATE_FIELDS,
    "age_seconds",
    "push_per_second",
    "pop_per_second",
    "gap",
    "capacity",
)
