"""Which rows leave: cut-offs by the server's clock, and the row in the database that says how far a
queue's archive is on its way.

Rows are reserved one by one, so a pop that commits after the export is no row of the plan. Whoever
reserves rows or restores them locks the plan's row first.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from console import sql
from console.catalog import Kind, Queue, require_rows
from console.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from sqlalchemy import Connection

RETENTION_SECONDS = 7 * 86_400.0
"""How long what was purged or archived stays in the database, for restore."""
PART_ROWS = 250_000
"""Of a task: each takes a connection of its own, which costs as much as some 20,000 rows."""
LEAST_PART_ROWS = 1_000
PLAN_ROWS = 5_000_000
"""Reserved in one transaction; what is left goes with the next plan of the same run."""
STEP_ROWS = 250_000
"""Read by one statement."""
_BEFORE_ALL = -(2**63)
NONE, RESERVED, COMMITTED = "none", "reserved", "committed"


@dataclass(frozen=True)
class ArchiveRequest:
    """Which rows may be archived: minimum ages in seconds."""

    older: float = 0.0
    """Of popped rows."""
    retention: float = RETENTION_SECONDS
    """Of all others."""


@dataclass(frozen=True)
class Cutoffs:
    """By the server's clock."""

    cutoff: datetime
    """Of popped rows."""
    before: datetime
    """Of all others."""

    @classmethod
    def of(cls, connection: Connection, request: ArchiveRequest) -> Cutoffs:
        now = sql.value(connection, datetime, "pipeline.server_time").astimezone(UTC)
        # --older applies to all rows of the archive.
        seconds = request.older, max(request.older, request.retention)
        return cls(*(_ago(now, second) for second in seconds))


def _ago(now: datetime, seconds: float) -> datetime:
    try:
        return now - timedelta(seconds=seconds)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class LakePlan:
    """The plans of a queue: what the last one was, and how far it is."""

    plan_id: int
    """Of the queue, for all its plans."""
    serial: int
    committed: int
    """The serial of the last plan that the table got."""
    state: str
    run: str
    """The process in charge."""
    lake: str
    table_id: str
    database: str
    """The identity of the database in which it was made."""
    label: str
    """Of the connection, by which the lake knows the rows."""
    made_at: datetime
    action_id: int

    @property
    def unfinished(self) -> bool:
        return self.state != NONE


@dataclass(frozen=True)
class Rows:
    """Some rows, and the range of their times."""

    rows: int
    oldest: datetime | None
    newest: datetime | None

    @property
    def dates(self) -> tuple[str, str]:
        """The first and the last day, in UTC; no day where there are no rows."""
        if self.oldest is None or self.newest is None:
            return "~", ""
        return tuple(f"{at.astimezone(UTC):%Y-%m-%d}" for at in (self.oldest, self.newest))  # type: ignore[return-value]


@dataclass(frozen=True)
class Part:
    """The reserved rows whose keys are greater than `after`, up to `last`."""

    number: int
    after: int
    last: int
    rows: int


@dataclass(frozen=True)
class _PartRow:
    last: int | None
    rows: int


def require_archive(queue: Queue) -> None:
    """RefusedError where the queue has no archive, or not all of it may be seen."""
    require_rows(queue)
    if queue.kind is Kind.ADOPTED:
        raise RefusedError(
            f"The queue {queue.name!r} was adopted and has no archive.",
            why="The console deletes nothing for good from tables of other programs.",
            next_step="Copy what its library has finished: dbq-console pipeline archive "
            f"{shlex.quote(queue.name)} --copy",
        )


def find(connection: Connection, queue: Queue, *, lock: bool = False) -> LakePlan | None:
    """None where the queue never had a plan. `lock`: until the transaction ends."""
    within = queue.scope(connection)
    options = {**within.options, "lock": "yes" if lock else "no"}
    lake_plans = sql.rows(
        connection, LakePlan, "pipeline.plan", sql.Scope(within.values, options, within.roles)
    )
    return lake_plans[0] if lake_plans else None


def locked(connection: Connection, queue: Queue) -> LakePlan:
    """The same, added if the queue never had one, and locked."""
    sql.run(connection, "pipeline.add_plan", queue.scope(connection))
    plan = find(connection, queue, lock=True)
    if plan is None:
        raise UsageError(f"The queue {queue.name!r} was removed meanwhile.")
    return plan


def update(connection: Connection, plan: LakePlan, **changes: object) -> LakePlan:
    """The plan as it is in the database once the transaction has committed. RefusedError where
    another run is in charge."""
    new = replace(plan, **changes)  # type: ignore[arg-type]
    if not sql.values(connection, int, "pipeline.set_plan", **vars(new), earlier=plan.run):
        raise not_in_charge()
    return new


def require_charge(connection: Connection, plan: LakePlan) -> None:
    """RefusedError where another run is in charge. None takes over until the transaction ends."""
    values = {"plan_id": plan.plan_id, "run": plan.run}
    if not sql.values(connection, int, "pipeline.in_charge", **values):
        raise not_in_charge()


def not_in_charge() -> RefusedError:
    return RefusedError(
        "This run was stopped: its plan was taken over by another run, or its queue uninstalled.",
        why="A run that is not heard of for too long (this machine or the database stood still) "
        "loses its plan to the next one; an uninstall removes it.",
        next_step="What was done is kept: what the lake has stays there. See what happened: "
        "dbq-console audit",
    )


@dataclass(frozen=True)
class _Step:
    """Of the next so many rows of the archive."""

    last: int | None
    rows_read: int
    rows: int
    """That may leave."""
    oldest: datetime | None
    newest: datetime | None


def rows_changed(plan: LakePlan) -> RefusedError:
    """Somebody wrote to dbq.lake_row, where a run alone adds and removes its rows."""
    return RefusedError(
        f"The reserved rows of plan {plan.serial} were changed while it was carried out.",
        why="dbq.lake_row has other rows of it than the lake.",
        next_step="Nothing was deleted that the lake lacks. Run it again: it compares each row.",
    )


def available(connection: Connection, queue: Queue, cutoffs: Cutoffs) -> Rows:
    """The rows that may leave now."""
    return _total(_steps(connection, queue, "pipeline.step", cutoffs))


def reserve(
    connection: Connection, queue: Queue, plan: LakePlan, cutoffs: Cutoffs, most: int = PLAN_ROWS
) -> Rows:
    """The rows that the locked plan has reserved: about `most`, or all that may leave."""
    sql.run(connection, "pipeline.forget")
    steps: list[_Step] = []
    for step in _steps(connection, queue, "pipeline.reserve", cutoffs, plan_id=plan.plan_id):
        steps.append(step)
        if sum(one.rows for one in steps) >= most:
            break
    return _total(steps)


def _steps(
    connection: Connection, queue: Queue, statement: str, cutoffs: Cutoffs, **values: int
) -> Iterator[_Step]:
    """In order of keys; each statement reads so few rows that it ends within its time limit."""
    within, after, times = queue.scope(connection), _BEFORE_ALL, vars(cutoffs)
    while True:
        values |= {"after": after, "read_limit": STEP_ROWS}
        step = sql.row(connection, _Step, statement, within, **times, **values)
        if step.last is None:
            return
        yield step
        if step.rows_read < STEP_ROWS:
            return
        after = step.last


def _total(steps: Iterable[_Step]) -> Rows:
    some = [step for step in steps if step.rows]
    oldest = [step.oldest for step in some if step.oldest is not None]
    newest = [step.newest for step in some if step.newest is not None]
    rows = sum(step.rows for step in some)
    return Rows(rows, min(oldest, default=None), max(newest, default=None))


def reserved(connection: Connection, plan: LakePlan) -> Rows:
    """By this plan."""
    return sql.row(connection, Rows, "pipeline.reserved", plan_id=plan.plan_id)


def parts(connection: Connection, plan: LakePlan, rows: int) -> list[Part]:
    """The reserved rows in parts of so many, in order of their keys."""
    found: list[Part] = []
    after = _BEFORE_ALL
    while True:
        values = {"plan_id": plan.plan_id, "after": after, "rows": rows}
        part = sql.row(connection, _PartRow, "pipeline.part", **values)
        if part.last is None:
            return found
        found.append(Part(len(found), after, part.last, part.rows))
        after = part.last


def keys(connection: Connection, plan: LakePlan, part: Part) -> list[int]:
    """Of the part's reserved rows that are left, in order."""
    values = {"plan_id": plan.plan_id, "after": part.after, "last": part.last}
    return sql.values(connection, int, "pipeline.keys", **values)


def release(connection: Connection, plan: LakePlan, keys: Sequence[str]) -> int:
    """Give these reserved rows back: restore and later plans may take them."""
    from console.engines import product_of  # noqa: PLC0415  # no circle

    values = {"plan_id": plan.plan_id, "keys": product_of(connection).array(list(keys))}
    return sql.value(connection, int, "pipeline.release", **values)


def release_all(connection: Connection, plan: LakePlan) -> int:
    """The same for all of them; how many."""
    return sql.value(connection, int, "pipeline.release_all", plan_id=plan.plan_id)


def others(connection: Connection, queue: Queue) -> str:
    """Whether others added columns to the archive: yes or no, as the statement `rows` takes it."""
    return sql.value(connection, str, "pipeline.others", queue.scope(connection))
