"""What maintenance a queue needs: its tables and indexes are measured, and steps are chosen.

No step moves a message or stops callers: VACUUM, REINDEX CONCURRENTLY and ANALYZE on PostgreSQL,
REORGANIZE, REBUILD online and UPDATE STATISTICS on SQL Server. The exception, a Service Broker
queue that is rebuilt offline, is named in the plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from console import sql
from console.catalog import Kind, Queue, lookups, object_names
from console.engines import Database, product_of
from console.engines.product import Cleaner
from console.formats import duration, numbered
from console.monitor.waits import HorizonRow
from console.plan import warning

if TYPE_CHECKING:
    from sqlalchemy import Connection

_PAGE = 8192
_PAGE_HEADS = 40
"""Bytes of a page's header and of an index's special space."""
_FILLED = 0.9


@dataclass(frozen=True)
class MaintainLimits:
    """From which measure on a step is worth its work."""

    dead_share: float = 0.2
    dead_least: int = 1_000
    dead_many: int = 10_000
    """Too many dead rows, whatever their share."""
    stale_share: float = 0.2
    stale_least: int = 10_000
    index_times: float = 3.0
    """An index is too large at this multiple of what its entries need."""
    pages: int = 1_000
    """Anything smaller is not worth it: 8 MB."""
    reorganize_percent: float = 5.0
    rebuild_percent: float = 30.0
    held_seconds: float = 10.0
    """With an older transaction, vacuuming and reindexing are of no use."""
    held_transactions: int = 10_000
    """The same for a replication slot, which has no age in seconds."""


@dataclass(frozen=True)
class TableMeasure:
    """One table, by the engine's counters."""

    id: int
    name: str
    pages: int
    live_rows: int
    dead_rows: int
    changed_rows: int
    """Since the last ANALYZE."""
    vacuumed_seconds: float | None
    analyzed_seconds: float | None
    fragmentation: float | None


@dataclass(frozen=True)
class IndexMeasure:
    """One index. None: not known to the engine, or not needed there."""

    id: int
    name: str
    table_name: str
    pages: int
    valid: bool
    leftover: bool
    """Left by an interrupted maintenance."""
    being_built: bool
    frozen: bool
    entries: int | None
    entry_bytes: int | None
    fragmentation: float | None

    def needed_pages(self, live_rows: int) -> int | None:
        """An estimate of what its live entries need, on the high side."""
        if self.entry_bytes is None:
            return None
        entries = live_rows if self.entries is None else min(self.entries, live_rows)
        per_page = max(1, int((_PAGE - _PAGE_HEADS) * _FILLED / self.entry_bytes))
        leaves = math.ceil(entries / per_page)
        return 2 + leaves + math.ceil(leaves / 100)


@dataclass(frozen=True)
class Measures:
    tables: tuple[TableMeasure, ...]
    indexes: tuple[IndexMeasure, ...]
    horizon: tuple[HorizonRow, ...]
    """What keeps dead rows from being removed, the oldest first."""

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
    """Sent at the end, also after an error."""
    stops_callers: bool = False
    """No push or pop until it is done."""
    online: bool = False
    """Whether it locks the table at no moment."""
    figures: tuple[tuple[str, float], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.what} {self.target}"

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
class Maintenance:
    """What a queue needs, by its measures."""

    queue: Queue
    measures: Measures
    steps: tuple[MaintainStep, ...]
    left_out: tuple[str, ...] = ()
    """Steps that are needed but of no use now, with the reason."""
    notes: tuple[str, ...] = ()

    @property
    def needed(self) -> bool:
        return bool(self.steps)

    def lines(self) -> list[str]:
        size = f"{len(self.measures.tables)} tables and {len(self.measures.indexes)} indexes"
        head = f"maintain {self.queue.label}: {size}, {size_text(self.measures.pages)}"
        lines = [head if self.steps else f"{head}; nothing needed"]
        for number, step in enumerate(self.steps, 1):
            lines.append(f"  {number}. {step.name}: {step.reason}")
            lines += [f"       {line}" for line in step.sql.splitlines()]
        lines += [warning(f"  left out: {why}") for why in self.left_out]
        lines += [f"  note: {note}" for note in self.notes]
        if self.steps:
            stopping = [step.target for step in self.steps if step.stops_callers]
            callers = f"callers of {', '.join(stopping)} wait" if stopping else "callers continue"
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


def size_text(pages: int) -> str:
    return f"{pages * _PAGE / 2**20:,.1f} MB"


def measure(database: Database, queue: Queue) -> Measures:
    """By the engine's counters: reads no table of the queue."""
    with database.transaction(f"measure the queue {queue.name!r}", read_only=True) as connection:
        return measured(connection, database, queue)


def measured(connection: Connection, database: Database, queue: Queue) -> Measures:
    """The same, in a transaction."""
    horizon: Sequence[HorizonRow] = ()
    if "waits" not in database.capabilities.missing:
        # Before the tables: a transaction must not look older than a later vacuum.
        horizon = lookups.once(
            "horizon", lambda: sql.rows(connection, HorizonRow, "activity.horizon")
        )
    found: Sequence[tuple[TableMeasure, Sequence[IndexMeasure]]]
    if queue.kind is Kind.ADOPTED:
        found = _with_indexes(connection, queue, [queue.table])  # its partitions have other names
    else:
        found = lookups.by_name(
            connection,
            "measures",
            queue.schema,
            object_names.of(database.product, queue),
            lambda on, names: _with_indexes(on, queue, names),
            lambda one: one[0].name,
        )
    tables = tuple(table for table, _ in found)
    return Measures(tables, tuple(index for _, of in found for index in of), tuple(horizon))


def _with_indexes(
    connection: Connection, queue: Queue, names: Sequence[str]
) -> list[tuple[TableMeasure, list[IndexMeasure]]]:
    """Each table with its indexes."""
    product, scope = product_of(connection), queue.scope(connection)
    where = {"schema": queue.schema, "names": product.array(names)}
    tables = sql.rows(connection, TableMeasure, "maintenance.tables", scope, **where)
    ids = product.array([str(table.id) for table in tables])
    indexes = sql.rows(connection, IndexMeasure, "maintenance.indexes", scope, tables=ids)
    return [(t, [index for index in indexes if index.table_name == t.name]) for t in tables]


def find(database: Database, queue: Queue, limits: MaintainLimits | None = None) -> Maintenance:
    """Measure, and choose what is worth its work. Changes nothing."""
    maintenance = needed(database, queue, measure(database, queue), limits or MaintainLimits())
    return replace(maintenance, steps=(*_sweep(database, queue), *maintenance.steps))


def _sweep(database: Database, queue: Queue) -> Iterator[MaintainStep]:
    """An idle ring keeps numbers that all its subscribers have popped until it is swept."""
    if not queue.subscribers:
        return
    scope = queue.scope(database.product)
    with database.transaction(f"measure the queue {queue.name!r}", read_only=True) as connection:
        count = sql.value(connection, int, "ring.unswept", scope)
    if count:
        text = sql.script("ring.sweep", database.product.dialect, scope)
        why = f"{numbered(count, 'number')} that all subscribers have popped are to be removed"
        figures = (("numbers", count),)
        yield MaintainStep("SWEEP", queue.name, why, (text,), figures=figures)


def needed(
    database: Database, queue: Queue, measures: Measures, limits: MaintainLimits
) -> Maintenance:
    return _PLANNERS[database.product.cleaner](database, queue, measures, limits).all()


class _Planner:
    """Plans the steps for one engine's measures."""

    def __init__(
        self, database: Database, queue: Queue, measures: Measures, limits: MaintainLimits
    ) -> None:
        self._database = database
        self._queue = queue
        self._found = measures
        self._limits = limits
        self.steps: list[MaintainStep] = []
        self.left_out: list[str] = []
        self.notes: list[str] = []

    def all(self) -> Maintenance:
        self._pick()
        return Maintenance(
            self._queue, self._found, tuple(self.steps), tuple(self.left_out), tuple(self.notes)
        )

    def _pick(self) -> None:
        raise NotImplementedError

    def _text(self, name: str, relation: str, index: str = "", **options: str) -> str:
        values = {"schema": self._queue.schema, "relation": relation, "index": index}
        dialect = self._database.product.dialect
        text = sql.script(f"maintenance.{name}", dialect, sql.Scope(values, options))
        return "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip()

    def _step(
        self,
        what: str,
        target: str,
        reason: str,
        *statements: str,
        figures: Mapping[str, float],
        always: str = "",
        stops_callers: bool = False,
    ) -> None:
        pairs = tuple(figures.items())
        self.steps.append(
            MaintainStep(what, target, reason, statements, always, stops_callers, figures=pairs)
        )

    def _statistics(self, table: TableMeasure, what: str) -> None:
        share = self._limits.stale_share * table.live_rows
        if table.analyzed_seconds is None and table.live_rows >= self._limits.dead_least:
            why = f"≈{table.live_rows:,} rows and no statistics"
        elif table.changed_rows >= max(self._limits.stale_least, share):
            why = f"≈{table.changed_rows:,} rows changed since its statistics were made"
        else:
            return
        text = self._text("analyze", table.name)
        figures = {"changed_rows": table.changed_rows, "live_rows": table.live_rows}
        self._step(what, table.name, why, text, figures=figures)


class _Vacuum(_Planner):
    def _pick(self) -> None:
        live = {table.name: table.live_rows for table in self._found.tables}
        for index in self._found.indexes:
            if index.leftover and not self._is_being_built(index):
                text = self._text("drop_leftover", index.table_name, index.name)
                size = size_text(index.pages)
                why = f"an interrupted REINDEX CONCURRENTLY left it ({size}, of no use)"
                self._step("DROP INDEX", index.name, why, text, figures={"pages": index.pages})
        for table in self._found.tables:
            self._vacuum(table)
        for index in self._found.indexes:
            if not index.leftover:
                self._reindex(index, live[index.table_name])
        for table in self._found.tables:
            self._statistics(table, "ANALYZE")

    def _is_being_built(self, index: IndexMeasure) -> bool:
        if index.being_built:
            self.left_out.append(f"{index.name}: another session is building it at this moment")
        return index.being_built

    def _holders(self) -> list[HorizonRow]:
        """The long-lived ones. A replication slot has an age in transactions only."""
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
        vacuumed = math.inf if table.vacuumed_seconds is None else table.vacuumed_seconds
        for row in self._holders()[:1]:
            if vacuumed < (row.seconds or 0.0):
                self.left_out.append(
                    f"VACUUM {table.name}: {reason}; it has been vacuumed since {_holder(row)} "
                    "began, "
                    f"which keeps them visible; {_how_to_end(row)}"
                )
                return
            note = f"VACUUM leaves what died since {_holder(row)} began; {_how_to_end(row)}"
            self.notes += [] if note in self.notes else [note]
        text = self._text("vacuum", table.name)
        figures = {"dead_rows": dead, "live_rows": live, "pages": table.pages}
        self._step("VACUUM", table.name, reason, text, figures=figures)

    def _reindex(self, index: IndexMeasure, live: int) -> None:
        needed = index.needed_pages(live) or 0
        too_large = (
            needed
            and index.pages > self._limits.index_times * needed
            and index.pages - needed >= self._limits.pages
        )
        if (index.valid and not too_large) or self._is_being_built(index):
            return
        reason = "it is invalid: every write maintains it and no query can use it"
        if index.valid:
            reason = f"{size_text(index.pages)}; its live entries need about {size_text(needed)}"
        for row in self._holders():
            if row.session_id is not None and row.seconds is not None:
                self.left_out.append(
                    f"REINDEX {index.name}: {reason}; but it would wait for {_holder(row)} (and "
                    f"any older transaction); {_how_to_end(row)}"
                )
                return
        text = self._text("reindex", index.table_name, index.name)
        figures = {"pages": index.pages, "needed_pages": needed, "live_rows": live}
        self._step("REINDEX", index.name, reason, text, figures=figures)


class _GhostCleanup(_Planner):
    @property
    def _online(self) -> bool:
        return "online_rebuild" not in self._database.capabilities.missing

    def _pick(self) -> None:
        broker = {table.name for table in self._found.tables if self._is_broker(table.name)}
        maintained: set[str] = set()
        for index in self._found.indexes:
            if index.table_name not in broker:
                self._index(index)
            elif index.table_name not in maintained and self._broker(index):
                maintained.add(index.table_name)
        for table in self._found.tables:
            self._heap(table)
            self._statistics(table, "UPDATE STATISTICS")

    def _is_broker(self, name: str) -> bool:
        ours = (self._queue.name, f"{self._queue.name}_initiator")
        return self._queue.design.shape == "broker" and name in ours

    def _worth(self, index: IndexMeasure) -> bool:
        percent = index.fragmentation or 0.0
        return index.pages > self._limits.pages and percent > self._limits.reorganize_percent

    def _index(self, index: IndexMeasure) -> None:
        where = (index.table_name, index.name)
        off = "" if self._queue.kind is Kind.ADOPTED else self._text("disable_page_locks", *where)
        percent = index.fragmentation or 0.0
        figures = {"pages": index.pages, "fragmentation": round(percent, 1)}
        if not self._worth(index):
            if index.leftover:
                why = "an interrupted REORGANIZE left page locks allowed, which READPAST does not "
                self._step("NO PAGE LOCKS", index.name, f"{why}skip", off, figures=figures)
            return
        reason = f"{percent:.0f} % of its {index.pages:,} pages are out of order"
        if percent > self._limits.rebuild_percent and self._online:
            text = self._text("rebuild", *where, frozen="yes" if index.frozen else "no")
            off = off if index.leftover else ""
            self._step("REBUILD", index.name, reason, text, always=off, figures=figures)
            return
        if percent > self._limits.rebuild_percent:
            reason += "; this edition cannot rebuild an index online"
        let = [self._text("enable_page_locks", *where)] if off else []
        text = self._text("reorganize", *where)
        self._step("REORGANIZE", index.name, reason, *let, text, always=off, figures=figures)

    def _broker(self, index: IndexMeasure) -> bool:
        if not self._worth(index):
            return False
        percent = index.fragmentation or 0.0
        rebuilds = percent > self._limits.rebuild_percent
        word = "REBUILD" if rebuilds else "REORGANIZE"
        text = self._text(f"{word.lower()}_queue", index.table_name)
        reason = f"{percent:.0f} % of the {index.pages:,} pages inside it are out of order"
        figures = {"pages": index.pages, "fragmentation": round(percent, 1)}
        self._step(word, index.table_name, reason, text, stops_callers=rebuilds, figures=figures)
        return True

    def _heap(self, table: TableMeasure) -> None:
        """A heap keeps the pages of deleted rows."""
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
        figures = {"pages": table.pages, "live_rows": table.live_rows}
        text = self._text("rebuild_table", table.name)
        self._step("REBUILD", table.name, reason, text, figures=figures)


_PLANNERS: dict[Cleaner, type[_Planner]] = {
    Cleaner.VACUUM: _Vacuum,
    Cleaner.GHOST_CLEANUP: _GhostCleanup,
}


def _holder(row: HorizonRow) -> str:
    return row.who + ("" if row.seconds is None else f" (open for {duration(row.seconds)})")


def _how_to_end(row: HorizonRow) -> str:
    if row.kind == "replication slot":
        return "let its consumer catch up, or drop the slot"
    return "terminate it first, if that is safe (dbq-console end-session)"
