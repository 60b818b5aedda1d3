"""Ids that are drawn from a sequence: one that is behind its table, and ids that run out.

Both concern a queue's tables, its archive, the catalog's and a library's. A ring's numbers have
their own proofs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from console import sql
from console.catalog import Kind, Queue, audit, lookups
from console.doctor.context import (
    LOCK_SECONDS,
    STATEMENT_SECONDS,
    CheckContext,
    CheckGroup,
    counted,
    first_few,
    shortened,
)
from console.doctor.finding import Code, Finding
from console.doctor.repairs import DoctorRepair
from console.engines import Database
from console.formats import duration
from console.monitor.limits import Severity
from console.monitor.sample_queries import limit_transaction
from console.rights import Rights

if TYPE_CHECKING:
    from sqlalchemy import Connection

REACH = 1_000_000_000_000
"""An id so far beyond its sequence was chosen by its caller, and no draw arrives there."""
CRITICAL_SHARE, WARNING_SHARE = 0.01, 0.1
"""Of all possible ids; or days, at the present rate of pushes:"""
CRITICAL_DAYS, WARNING_DAYS = 7.0, 90.0
_DAY_SECONDS = 86_400.0

BEHIND = Code(
    "id_sequence_behind",
    Severity.CRITICAL,
    "a sequence is behind the ids in its table: it draws ids that are taken, or older than theirs",
    judgement="ids that were chosen by callers take up nearly all that are left: the column needs "
    "a larger type, or these rows other ids",
    repair="doctor --fix --code: it sets the sequence behind the highest id",
)
_LARGER = (
    "change the column's type to bigint (ALTER TABLE ... ALTER COLUMN ... TYPE bigint rewrites the "
    "table under a lock), and that of every column that refers to it; a sequence of a smaller type "
    "too (ALTER SEQUENCE ... AS bigint). Nobody uses up a bigint: its sequence was set far "
    "ahead, so set it back (ALTER SEQUENCE ... RESTART) to behind the ids that are in order"
)
NEARLY_USED = Code(
    "ids_nearly_used_up",
    Severity.CRITICAL,
    "less than 1 % of a table's possible ids is left, or they last for less than a week",
    judgement=_LARGER,
)
RUN_OUT = Code(
    "ids_run_out",
    Severity.WARNING,
    "less than 10 % of a table's possible ids is left, or they last for less than 90 days",
    judgement=_LARGER,
)


@dataclass(frozen=True)
class DrawnColumn:
    """A column whose ids are drawn from a sequence."""

    relation_schema: str
    relation: str
    id_column: str
    sequence_schema: str
    sequence: str
    """Empty: an identity column of an engine that has no sequence behind it."""
    sequence_owner: str
    most: int
    """The last id that the sequence and the column's type allow."""
    increment: int
    indexed: bool
    """Whether an index begins with it; else only some rows are read."""
    readable: bool
    """Whether this login may read the sequence."""
    shows_ids: bool
    """Whether it may read the column, without row security."""

    @property
    def label(self) -> str:
        return f"{self.relation_schema}.{self.relation}.{self.id_column}"

    @property
    def is_catalog(self) -> bool:
        return self.relation_schema == "dbq"

    def scope(self, *, full: bool = False) -> sql.Scope:
        values = {name: value for name, value in asdict(self).items() if isinstance(value, str)}
        values["reach"] = str(REACH)
        return sql.Scope(
            values,
            {
                # Ids of another step may be another server's: they are never drawn here.
                "ids": "shown" if self.shows_ids and self.increment == 1 else "hidden",
                "indexed": "yes" if self.indexed else "no",
                "full": "yes" if full else "no",
                "named": "yes" if self.sequence else "no",
            },
        )


@dataclass(frozen=True)
class _State:
    last_value: int
    is_called: bool
    highest: int | None
    """The highest id in the table that the sequence has yet to draw; None: there is none."""


@dataclass(frozen=True)
class _Drawn:
    column: DrawnColumn
    state: _State

    @property
    def reached(self) -> str:
        state = self.state
        return f"last drawn {state.last_value:,}" if state.is_called else "none drawn"

    @property
    def left(self) -> int:
        return max(0, self.column.most - self.state.last_value) // self.column.increment

    @property
    def left_after(self) -> int:
        """After its repair."""
        return self.column.most - (self.state.highest or 0)

    def days(self, per_second: float | None) -> float | None:
        return self.left / per_second / _DAY_SECONDS if per_second else None

    def is_short(self, share: float, days: float, per_second: float | None) -> bool:
        lasts = self.days(per_second)
        return self.left < share * self.column.most or (lasts is not None and lasts < days)

    def evidence(self, per_second: float | None = None) -> dict[str, object]:
        evidence: dict[str, object] = {
            "column": self.column.label,
            "sequence": self.column.sequence or "identity",
            "last_value": self.state.last_value if self.state.is_called else None,
            "highest_id": self.state.highest,
            "last_possible": self.column.most,
            "left": self.left,
        }
        lasts = self.days(per_second)
        return evidence if lasts is None else {**evidence, "days_left": lasts}


_CATALOGS = ""
"""Stands for the catalog's tables among the names of a queue's."""


def _columns(context: CheckContext) -> Sequence[DrawnColumn]:
    queue = context.queue
    product, schema = context.database.product, queue.schema
    query = sql.query(context.statement("sequences"), product.dialect, queue.scope(product))

    def read(on: Connection, names: Sequence[str]) -> list[DrawnColumn]:
        tables, library = product.array(names), bool(queue.design.library)
        return sql.rows(on, DrawnColumn, query, schema=schema, tables=tables, library=library)

    tables = [queue.table, f"{queue.name}_archive"]
    with context.limited_transaction() as connection:
        if queue.kind is Kind.ADOPTED:  # a library's tables have names of their own
            return read(connection, tables)
        return lookups.by_name(
            connection,
            query.text,
            schema,
            [_CATALOGS, *tables],
            read,
            lambda column: _CATALOGS if column.is_catalog else column.relation,
        )


def _check_sequences(context: CheckContext) -> Iterator[Finding]:
    if not context.can_query("ids", "sequences"):
        return
    database = context.database
    standby = database.standby() if database.capabilities.read_only else None
    if standby is not None and standby.subscription is not None:
        context.unseen.append("ids: a copy has no sequences of its publisher's")
        return
    columns = _columns(context)
    hidden = [column for column in columns if not column.readable]
    if hidden:
        names = first_few([column.sequence for column in hidden], between=", ")
        context.unseen.append(f"ids: this login may not read {names} (dbq-console roles)")
    with context.limited_transaction() as connection:
        drawn = [_drawn(connection, column) for column in columns if column.readable]
    yield from _behind(context.queue, [one for one in drawn if one.state.highest is not None])
    yield from _running_out(context, drawn)


def _drawn(connection: Connection, column: DrawnColumn) -> _Drawn:
    if column.is_catalog:
        return lookups.once(column, lambda: _Drawn(column, _state(connection, column)))
    return _Drawn(column, _state(connection, column))


def _state(connection: Connection, column: DrawnColumn, *, full: bool = False) -> _State:
    return sql.row(connection, _State, "doctor.sequence_state", column.scope(full=full))


def _behind(queue: Queue, drawns: Sequence[_Drawn]) -> Iterator[Finding]:
    if not drawns:
        return
    setting = [drawn for drawn in drawns if drawn.left_after >= CRITICAL_SHARE * drawn.column.most]
    texts = [
        f"{drawn.column.relation} has {drawn.state.highest:,}, {drawn.reached}" for drawn in drawns
    ]
    yield Finding(
        BEHIND,
        f"{counted(len(drawns), 'sequence')} behind the table: {shortened(first_few(texts), 75)}",
        evidence={"behind": [drawn.evidence() for drawn in drawns]},
        cause="the rows came without their sequence, as after logical replication or a restore of "
        "data alone; or callers chose the ids",
        consequence=_consequence(queue, [drawn.column for drawn in drawns]),
        repair=SetSequences(queue, tuple(drawn.column for drawn in setting)) if setting else None,
    )


def _consequence(queue: Queue, columns: Sequence[DrawnColumn]) -> str:
    """By table: an order of ids is an order of messages."""
    texts = []
    if any(column.is_catalog for column in columns):
        texts.append("verbs fail, because the catalog cannot record them")
    if any(column.relation == f"{queue.name}_archive" for column in columns):
        texts.append("whatever archives a message fails, pops with archive_at_pop=on too")
    if any(column.relation == queue.table and not column.is_catalog for column in columns):
        texts.append(
            "new messages get ids below those of older ones and come before them where ids are the "
            "order; a push fails, or stores an id twice, wherever its id is taken"
        )
    return "; ".join(texts) or "inserts fail wherever the next id is taken"


def _running_out(context: CheckContext, drawn: Sequence[_Drawn]) -> Iterator[Finding]:
    queue, seen = context.queue, context.snapshot
    rate = None if seen is None else seen.push_per_second
    rates = {one: rate if one.column.relation == queue.table else None for one in drawn}
    nearly = [one for one in drawn if one.is_short(CRITICAL_SHARE, CRITICAL_DAYS, rates[one])]
    short = [one for one in drawn if one.is_short(WARNING_SHARE, WARNING_DAYS, rates[one])]
    soon = [one for one in short if one not in nearly]
    for code, drawns in ((NEARLY_USED, nearly), (RUN_OUT, soon)):
        if drawns:
            texts = [f"{one.column.label} has {one.left:,} left" for one in drawns]
            yield Finding(
                code,
                f"ids run out: {shortened(first_few(texts), 90)}",
                evidence={"columns": [one.evidence(rates[one]) for one in drawns]},
                cause="each row has used one, and so has each insert that failed or met its row",
                consequence="after the last one every insert into the table fails",
            )


@dataclass(frozen=True)
class SetSequences(DoctorRepair):
    """Sets each sequence behind the highest id of its table, never back."""

    queue: Queue
    columns: tuple[DrawnColumn, ...]

    rights = Rights.ADMIN

    @property
    def unattended(self) -> bool:
        """Its locks keep callers waiting, however briefly."""
        return False

    @property
    def summary(self) -> str:
        return f"set {counted(len(self.columns), 'sequence')} behind the highest id of the table"

    def lines(self, database: Database) -> Sequence[str]:
        dialect = database.product.dialect
        return [
            f"{self.summary}; callers wait for the lock, at most {duration(LOCK_SECONDS)} each",
            *(
                line
                for column in self.columns
                for line in sql.plain(
                    sql.script("maintenance.lock_sequence", dialect, column.scope())
                ).splitlines()
            ),
        ]

    def run(self, database: Database) -> Sequence[str]:
        """The catalog's first: without ids of its own nothing can be recorded."""
        catalogs = [column for column in self.columns if column.is_catalog]
        lines = [self._set(database, column) for column in catalogs]
        subject = audit.Subject.of(database, self.queue, "repair", self.summary)
        with audit.recorded(database, f"repair {self.queue.name!r}", subject) as act:
            lines += [
                self._set(database, column) for column in self.columns if column not in catalogs
            ]
            act.detail = "; ".join(lines)
        return lines

    def _set(self, database: Database, column: DrawnColumn) -> str:
        """In its own transaction, which holds the locks of one table only."""
        doing = f"set the sequence of {column.label}"
        with database.transaction(doing, read_only=True) as connection:
            before = _state(connection, column, full=True)
        with database.transaction(doing) as connection:
            limit_transaction(connection, database, STATEMENT_SECONDS, LOCK_SECONDS)
            sql.run(connection, "maintenance.lock_sequence", column.scope())
            now = _state(connection, column)
            highest = max(before.highest or 0, now.highest or 0)
            value = sql.value(
                connection, int, "maintenance.set_sequence", column.scope(), highest=highest
            )
        return f"{column.label}: from {before.last_value:,} to {value:,}"


CHECKS = CheckGroup((BEHIND, NEARLY_USED, RUN_OUT), {"ids": _check_sequences})
