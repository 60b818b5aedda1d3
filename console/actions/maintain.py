"""Maintain a queue: what its tables and indexes have become is measured, what repairs it is picked.

Nothing here moves a message or stops callers: VACUUM, REINDEX CONCURRENTLY and ANALYZE on
PostgreSQL, REORGANIZE, REBUILD online and UPDATE STATISTICS on SQL Server. One step does: a Service
Broker queue is rebuilt offline, and the plan says so. Each step is its own, so
it can be stopped between two, and what was done is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from console import audit, catalog, sql
from console.actions.execute import Control
from console.audit import Ledger
from console.catalog import Kind, Queue
from console.engines import Database, Product, Timeouts, unhurried
from console.errors import ConsoleError
from console.formats import duration, numbered
from console.monitor.waits import HorizonRow

if TYPE_CHECKING:
    from sqlalchemy import Connection

_PAGE = 8192
_PAGE_HEADS = 40
"""Bytes of a page that hold no entry: its head, and that of an index."""
_FILLED = 0.9
_HOURS_SECONDS = 6 * 3600.0
"""Nothing takes longer: the longest wait that a driver can be given."""


@dataclass(frozen=True)
class MaintainLimits:
    """From where on something is worth its work."""

    dead_share: float = 0.2
    dead_least: int = 1_000
    dead_many: int = 10_000
    """So many dead rows are too many, whatever the share."""
    stale_share: float = 0.2
    stale_least: int = 10_000
    index_times: float = 3.0
    """An index is too large from so many times what its entries need."""
    pages: int = 1_000
    """What is smaller is not worth it: 8 MB."""
    reorganize_percent: float = 5.0
    rebuild_percent: float = 30.0
    held_seconds: float = 10.0
    """A transaction that is older than this keeps work from being of use."""
    held_transactions: int = 10_000
    """The same of a replication slot, which has no age in time."""


@dataclass(frozen=True)
class TableMeasure:
    """One table as the engine knows it, by its own counters."""

    id: int
    name: str
    pages: int
    live_rows: int
    dead_rows: int
    changed_rows: int
    """Since its statistics were made."""
    vacuumed_seconds: float | None
    analyzed_seconds: float | None
    fragmentation: float | None


@dataclass(frozen=True)
class IndexMeasure:
    """One index; what is None the engine does not tell or does not need."""

    id: int
    name: str
    table_name: str
    pages: int
    valid: bool
    leftover: bool
    """Something that an interrupted maintenance left."""
    being_built: bool
    frozen: bool
    entries: int | None
    entry_bytes: int | None
    fragmentation: float | None

    def needed_pages(self, live_rows: int) -> int | None:
        """What its live entries need, about: an estimate on the high side."""
        if self.entry_bytes is None:
            return None
        entries = live_rows if self.entries is None else min(self.entries, live_rows)
        a_page = max(1, int((_PAGE - _PAGE_HEADS) * _FILLED / self.entry_bytes))
        leaves = math.ceil(entries / a_page)
        return 2 + leaves + math.ceil(leaves / 100)


@dataclass(frozen=True)
class Measures:
    tables: tuple[TableMeasure, ...]
    indexes: tuple[IndexMeasure, ...]
    horizon: tuple[HorizonRow, ...]
    """Who keeps dead rows from being cleared away, the oldest first."""

    @property
    def pages(self) -> int:
        tables = sum(table.pages for table in self.tables)
        return tables + sum(index.pages for index in self.indexes)

    @property
    def dead_rows(self) -> int:
        return sum(table.dead_rows for table in self.tables)


@dataclass(frozen=True)
class MaintainStep:
    what: str
    target: str
    reason: str
    statements: tuple[str, ...]
    always: str = ""
    """Sent at the end, whatever came of the statements."""
    stops_callers: bool = False
    """Nobody can push or pop until it is done."""
    figures: tuple[tuple[str, float], ...] = ()

    @property
    def sql(self) -> str:
        return "\n".join(text for text in (*self.statements, self.always) if text)

    def as_json(self) -> dict[str, object]:
        return {
            "what": self.what,
            "target": self.target,
            "reason": self.reason,
            "sql": self.sql,
            "stops_callers": self.stops_callers,
            "figures": dict(self.figures),
        }


@dataclass(frozen=True)
class MaintainPlan:
    queue: Queue
    measures: Measures
    steps: tuple[MaintainStep, ...]
    left_out: tuple[str, ...] = ()
    """What would be needed and is of no use now, with the reason."""
    notes: tuple[str, ...] = ()

    @property
    def needed(self) -> bool:
        return bool(self.steps)

    def lines(self) -> list[str]:
        size = f"{len(self.measures.tables)} tables and {len(self.measures.indexes)} indexes"
        head = f"maintain {self.queue.label}: {size}, {_size(self.measures.pages)}"
        lines = [head if self.steps else f"{head}; nothing needed"]
        for number, step in enumerate(self.steps, 1):
            lines.append(f"  {number}. {step.what} {step.target}: {step.reason}")
            lines += [f"       {line}" for line in step.sql.splitlines()]
        lines += [f"  left out: {why}" for why in self.left_out]
        lines += [f"  note: {note}" for note in self.notes]
        if self.steps:
            stopping = [step.target for step in self.steps if step.stops_callers]
            callers = f"callers of {', '.join(stopping)} wait" if stopping else "callers go on"
            lines.append(f"  one at a time; no message moves, {callers}")
        return lines

    def as_json(self) -> dict[str, object]:
        return {
            "queue": self.queue.name,
            "schema": self.queue.schema,
            "needed": self.needed,
            "steps": [step.as_json() for step in self.steps],
            "left_out": list(self.left_out),
            "notes": list(self.notes),
            "tables": [asdict(table) for table in self.measures.tables],
            "indexes": [asdict(index) for index in self.measures.indexes],
            "horizon": [asdict(row) for row in self.measures.horizon],
        }


@dataclass(frozen=True)
class StepResult:
    step: MaintainStep
    problem: str = ""
    """Why it failed; empty: it succeeded."""


@dataclass(frozen=True)
class Maintained:
    plan: MaintainPlan
    done: tuple[StepResult, ...]
    after: Measures
    action_id: int | None
    outcome: audit.Outcome

    def lines(self) -> list[str]:
        lines = [f"maintain {self.plan.queue.label}: {self.outcome.value}"]
        for one in self.done:
            result = f"failed: {one.problem}" if one.problem else "done"
            lines.append(f"  {one.step.what} {one.step.target}: {result}")
        left = len(self.plan.steps) - len(self.done)
        lines += [f"  {numbered(left, 'step')} not started"] if left else []
        sizes = f"{_size(self.plan.measures.pages)} before, {_size(self.after.pages)} now"
        before, now = self.plan.measures.dead_rows, self.after.dead_rows
        return [*lines, f"  {sizes}; dead rows: ≈{before:,} before, ≈{now:,} now"]

    def as_json(self) -> dict[str, object]:
        return {
            "queue": self.plan.queue.name,
            "schema": self.plan.queue.schema,
            "action_id": self.action_id,
            "outcome": self.outcome.value,
            "steps": [one.step.as_json() | {"problem": one.problem} for one in self.done],
            "pages_before": self.plan.measures.pages,
            "pages_after": self.after.pages,
            "tables": [asdict(table) for table in self.after.tables],
            "indexes": [asdict(index) for index in self.after.indexes],
        }


def _size(pages: int) -> str:
    return f"{pages * _PAGE / 2**20:,.1f} MB"


def measure(database: Database, queue: Queue) -> Measures:
    """Ask the engine's counters. Changes nothing, and reads no table of the queue."""
    product = database.product
    scope = queue.scope(product)
    names = [queue.table]
    if queue.kind is not Kind.ADOPTED:
        names = catalog.object_names(product, queue)
    seen = "waits" not in database.capabilities.missing
    with database.transaction(f"measure the queue {queue.name!r}", read_only=True) as connection:
        # Before the tables: one of both ages is compared with the other, and must not look older.
        horizon: list[HorizonRow] = []
        if seen:
            horizon = sql.rows(connection, HorizonRow, "activity.horizon")
        tables = sql.rows(
            connection,
            TableMeasure,
            "maintenance.tables",
            scope,
            schema=queue.schema,
            names=product.array(names),
        )
        ids = product.array([str(table.id) for table in tables])
        indexes = sql.rows(connection, IndexMeasure, "maintenance.indexes", scope, tables=ids)
    return Measures(tuple(tables), tuple(indexes), tuple(horizon))


def plan(database: Database, queue: Queue, limits: MaintainLimits | None = None) -> MaintainPlan:
    """Measure, and pick what is worth its work. Changes nothing."""
    found = picked(database, queue, measure(database, queue), limits or MaintainLimits())
    return replace(found, steps=(*_sweep(database, queue), *found.steps))


def _sweep(database: Database, queue: Queue) -> Iterator[MaintainStep]:
    """Of an idle ring: what all its subscribers have popped lies there until somebody does."""
    if not queue.subscribers:
        return
    scope = queue.scope(database.product)
    with database.transaction(f"measure the queue {queue.name!r}", read_only=True) as connection:
        count = sql.value(connection, int, "ring.unswept", scope)
    if count:
        text = sql.script("ring.sweep", database.product.dialect, scope)
        why = f"{numbered(count, 'number')} that all subscribers have popped are to be let go"
        figures = (("numbers", count),)
        yield MaintainStep("SWEEP", queue.name, why, (text,), figures=figures)


def picked(
    database: Database, queue: Queue, found: Measures, limits: MaintainLimits
) -> MaintainPlan:
    return _PICKED[database.product.cleaner](database, queue, found, limits).plan()


def maintain(
    database: Database,
    planned: MaintainPlan,
    *,
    control: Control | None = None,
    progress: Callable[[StepResult], None] = lambda _: None,
) -> Maintained:
    """Do what the plan says, step by step, each on its own; a step that fails ends none of the
    others. Nothing to do is no error."""
    queue = planned.queue
    if not planned.steps:
        return Maintained(planned, (), planned.measures, None, audit.Outcome.DONE)
    control = control or Control()
    doing = f"maintain the queue {queue.name!r}"
    detail = ", ".join(f"{step.what} {step.target}" for step in planned.steps)
    subject = audit.Subject.of(database, queue, "maintain", detail)
    subject = replace(subject, planned=len(planned.steps))
    with database.transaction(doing) as connection:
        record = audit.ActionRecord.begin(connection, subject)
    done: list[StepResult] = []
    outcome, problem = audit.Outcome.FAILED, "interrupted"
    try:
        for step in planned.steps:
            control.wait(0)
            if control.stopped:
                break
            done.append(StepResult(step, _do(database, doing, step)))
            progress(done[-1])
        failed = [one for one in done if one.problem]
        problem = "; ".join(f"{one.step.what} {one.step.target}: {one.problem}" for one in failed)
        outcome = audit.Outcome.FAILED if failed else audit.Outcome.DONE
        if len(done) < len(planned.steps):
            outcome = audit.Outcome.STOPPED
    finally:
        ledger = _ledger(done)
        with suppress(ConsoleError), database.transaction(doing) as connection:
            record.batch(connection, ledger)
            record.end(connection, outcome, "; ".join(text for text in (detail, problem) if text))
        record.told(outcome, ledger, problem)
    return Maintained(planned, tuple(done), measure(database, queue), record.action_id, outcome)


def _ledger(done: Sequence[StepResult]) -> Ledger:
    """Steps, not messages."""
    failed = sum(1 for one in done if one.problem)
    well = len(done) - failed
    problems = {"steps that failed": failed} if failed else {}
    return Ledger(selected=len(done), out=well, into=well, failed=problems)


def _do(database: Database, doing: str, step: MaintainStep) -> str:
    """Why it failed; empty: it succeeded."""
    try:
        with (
            database.autocommit(doing) as connection,
            _patience(connection, database),
            database.product.refusals(connection) as refused,
        ):
            try:
                for text in step.statements:
                    _run(connection, text)
            finally:
                if step.always:
                    _run(connection, step.always)
    except ConsoleError as error:
        return " ".join(part for part in (error.what, error.why) if part)
    return "; ".join(refused)


def _run(connection: Connection, text: str) -> None:
    connection.exec_driver_sql(
        f"/* dbq maintenance */ {text}", execution_options={"no_parameters": True}
    )


@contextmanager
def _patience(connection: Connection, database: Database) -> Iterator[None]:
    """No end for a statement that works; one that waits for a lock is ended as usual."""
    if not sql.has(connection, "maintenance.patient"):
        usual = database.timeouts
        limits = Timeouts(usual.connect_seconds, _HOURS_SECONDS, usual.lock_seconds)
        connection.execution_options(dbq_timeouts=limits)
        yield
        return
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415  # a verb imports what it uses

    sql.values(connection, str, "maintenance.patient")
    try:
        with unhurried():
            yield
    finally:
        # The connection may be lost, and then there is nothing to be put back.
        with suppress(DBAPIError):
            sql.run(connection, "maintenance.impatient")


class _Picking:
    """What one engine's measures call for."""

    def __init__(
        self, database: Database, queue: Queue, found: Measures, limits: MaintainLimits
    ) -> None:
        self._database = database
        self._queue = queue
        self._found = found
        self._limits = limits
        self._product: Product = database.product
        self.steps: list[MaintainStep] = []
        self.left_out: list[str] = []
        self.notes: list[str] = []

    def plan(self) -> MaintainPlan:
        self._pick()
        return MaintainPlan(
            self._queue,
            self._found,
            tuple(self.steps),
            tuple(self.left_out),
            tuple(self.notes),
        )

    def _pick(self) -> None:
        raise NotImplementedError

    def _text(self, name: str, relation: str, index: str = "", **options: str) -> str:
        values = {"schema": self._queue.schema, "relation": relation, "index": index}
        text = sql.script(f"maintenance.{name}", self._product.dialect, sql.Scope(values, options))
        return "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip()

    def _stale(self, table: TableMeasure) -> str:
        """Why its statistics are to be made anew; empty: they are not."""
        never = table.analyzed_seconds is None
        if never and table.live_rows >= self._limits.dead_least:
            return f"≈{table.live_rows:,} rows and no statistics"
        share = self._limits.stale_share * table.live_rows
        if table.changed_rows >= max(self._limits.stale_least, share):
            return f"≈{table.changed_rows:,} rows changed since its statistics were made"
        return ""


class _PostgreSQL(_Picking):
    def _pick(self) -> None:
        live = {table.name: table.live_rows for table in self._found.tables}
        for index in self._found.indexes:
            if index.leftover:
                self._leftover(index)
        for table in self._found.tables:
            self._vacuum(table)
        for index in self._found.indexes:
            if not index.leftover:
                self._reindex(index, live[index.table_name])
        for table in self._found.tables:
            if why := self._stale(table):
                statement = self._text("analyze", table.name)
                figures = (("changed_rows", table.changed_rows), ("live_rows", table.live_rows))
                self.steps.append(
                    MaintainStep("ANALYZE", table.name, why, (statement,), figures=figures)
                )

    def _leftover(self, index: IndexMeasure) -> None:
        if index.being_built:
            self.left_out.append(f"{index.name}: another session is building it at this moment")
            return
        statement = self._text("drop_leftover", index.table_name, index.name)
        why = f"an interrupted REINDEX CONCURRENTLY left it ({_size(index.pages)}, of no use)"
        figures = (("pages", index.pages),)
        self.steps.append(
            MaintainStep("DROP INDEX", index.name, why, (statement,), figures=figures)
        )

    def _holders(self) -> list[HorizonRow]:
        """Those that are no transaction of a moment. A replication slot has no age but a count."""
        return [
            row
            for row in self._found.horizon
            if (row.seconds or 0.0) >= self._limits.held_seconds
            or (row.seconds is None and (row.transactions or 0) >= self._limits.held_transactions)
        ]

    def _vacuum(self, table: TableMeasure) -> None:
        limits = self._limits
        dead, live = table.dead_rows, table.live_rows
        least = min(limits.dead_many, max(limits.dead_least, limits.dead_share * live))
        if dead < max(1, least):
            return
        reason = f"≈{dead:,} dead rows beside ≈{live:,} live ones"
        for row in self._holders()[:1]:
            if _since(table.vacuumed_seconds) < (row.seconds or 0.0):
                self.left_out.append(
                    f"VACUUM {table.name}: {reason}; it was vacuumed since {_holder(row)} began, "
                    f"which keeps them visible; {_how_to_end(row)}"
                )
                return
            note = f"VACUUM leaves what died since {_holder(row)} began; {_how_to_end(row)}"
            self.notes += [] if note in self.notes else [note]
        figures = (("dead_rows", dead), ("live_rows", live), ("pages", table.pages))
        statement = self._text("vacuum", table.name)
        self.steps.append(MaintainStep("VACUUM", table.name, reason, (statement,), figures=figures))

    def _reindex(self, index: IndexMeasure, live: int) -> None:
        needed = index.needed_pages(live)
        too_large = (
            needed is not None
            and index.pages > self._limits.index_times * needed
            and index.pages - needed >= self._limits.pages
        )
        if index.valid and not too_large:
            return
        if index.being_built:
            self.left_out.append(f"{index.name}: another session is building it at this moment")
            return
        reason = "it is invalid: every write maintains it and no query can use it"
        if index.valid:
            reason = f"{_size(index.pages)}; its live entries need about {_size(needed or 0)}"
        for row in self._holders():
            if row.session_id is not None and row.seconds is not None:
                self.left_out.append(
                    f"REINDEX {index.name}: {reason}; but it would wait for {_holder(row)} (and "
                    f"any older transaction); {_how_to_end(row)}"
                )
                return
        figures = (("pages", index.pages), ("needed_pages", needed or 0), ("live_rows", live))
        statement = self._text("reindex", index.table_name, index.name)
        self.steps.append(
            MaintainStep("REINDEX", index.name, reason, (statement,), figures=figures)
        )


class _SQLServer(_Picking):
    @property
    def _online(self) -> bool:
        return "online_rebuild" not in self._database.capabilities.missing

    def _pick(self) -> None:
        broker = {table.name for table in self._found.tables if self._is_broker(table.name)}
        mended: set[str] = set()
        for index in self._found.indexes:
            if index.table_name in broker:
                if index.table_name not in mended and self._broker(index):
                    mended.add(index.table_name)
            else:
                self._index(index)
        for table in self._found.tables:
            self._heap(table)
            if why := self._stale(table):
                figures = (("changed_rows", table.changed_rows), ("live_rows", table.live_rows))
                statement = self._text("analyze", table.name)
                step = MaintainStep(
                    "UPDATE STATISTICS", table.name, why, (statement,), figures=figures
                )
                self.steps.append(step)

    def _is_broker(self, name: str) -> bool:
        ours = (self._queue.name, f"{self._queue.name}_initiator")
        return self._queue.design.shape == "broker" and name in ours

    def _index(self, index: IndexMeasure) -> None:
        where = (index.table_name, index.name)
        off = "" if self._queue.kind is Kind.ADOPTED else self._text("no_page_locks", *where)
        percent = index.fragmentation or 0.0
        figures = (("pages", index.pages), ("fragmentation", round(percent, 1)))
        worth = index.pages > self._limits.pages and percent > self._limits.reorganize_percent
        if index.leftover and not worth:
            why = "an interrupted REORGANIZE left page locks allowed, which READPAST does not skip"
            self.steps.append(
                MaintainStep("NO PAGE LOCKS", index.name, why, (off,), figures=figures)
            )
        if not worth:
            return
        reason = f"{percent:.0f} % of its {index.pages:,} pages are out of order"
        if percent > self._limits.rebuild_percent and self._online:
            text = self._text("rebuild", *where, frozen="yes" if index.frozen else "no")
            off = off if index.leftover else ""
            step = MaintainStep("REBUILD", index.name, reason, (text,), off, figures=figures)
        else:
            if percent > self._limits.rebuild_percent:
                reason += "; this edition cannot rebuild an index online"
            let = (self._text("let_page_locks", *where),) if off else ()
            text = self._text("reorganize", *where)
            step = MaintainStep(
                "REORGANIZE", index.name, reason, (*let, text), off, figures=figures
            )
        self.steps.append(step)

    def _broker(self, index: IndexMeasure) -> bool:
        percent = index.fragmentation or 0.0
        if index.pages <= self._limits.pages or percent <= self._limits.reorganize_percent:
            return False
        rebuilds = percent > self._limits.rebuild_percent
        word = "REBUILD" if rebuilds else "REORGANIZE"
        text = self._text(f"{word.lower()}_queue", index.table_name)
        reason = f"{percent:.0f} % of the {index.pages:,} pages inside it are out of order"
        figures = (("pages", index.pages), ("fragmentation", round(percent, 1)))
        self.steps.append(
            MaintainStep(
                word, index.table_name, reason, (text,), stops_callers=rebuilds, figures=figures
            )
        )
        return True

    def _heap(self, table: TableMeasure) -> None:
        """What was deleted from a heap leaves its pages with it."""
        if table.fragmentation is None or table.pages <= self._limits.pages:
            return
        sparse = table.live_rows < table.pages
        if not sparse and table.fragmentation <= self._limits.rebuild_percent:
            return
        reason = f"≈{table.live_rows:,} rows in {table.pages:,} pages"
        if not sparse:
            reason = f"{table.fragmentation:.0f} % of its extents are out of order"
        if not self._online:
            why = "this edition cannot rebuild a table online, and offline it would block callers"
            self.left_out.append(f"REBUILD {table.name}: {reason}, but {why}")
            return
        figures = (("pages", table.pages), ("live_rows", table.live_rows))
        text = self._text("rebuild_table", table.name)
        self.steps.append(MaintainStep("REBUILD", table.name, reason, (text,), figures=figures))


_PICKED: dict[str, type[_Picking]] = {"vacuum": _PostgreSQL, "ghost cleanup": _SQLServer}


def _since(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def _holder(row: HorizonRow) -> str:
    since = "" if row.seconds is None else f" (open for {duration(row.seconds)})"
    if row.session_id is None:
        return f"{row.kind} {row.name!r}{since}"
    return f"{row.kind} {row.session_id} of {row.name or '?'}{since}"


def _how_to_end(row: HorizonRow) -> str:
    if row.kind == "replication slot":
        return "let its consumer catch up, or drop the slot"
    return "terminate it first, if that is safe (dbq-console end-session)"
