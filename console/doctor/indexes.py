"""Indexes that are missing, invalid or not used by pops; missing keys and CHECK constraints.

Definitions are compared on both engines. PostgreSQL's planner shows whether a pop uses its index;
on SQL Server a plan belongs to a statement that has run, and may differ from call to call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from console import sql
from console.actions import maintenance
from console.actions.indexes import (
    Index,
    ShippedIndex,
    installed,
    normalized,
    shipped_indexes,
    shipped_tables,
    steps,
)
from console.catalog import Kind, Queue, lookups
from console.designs import Order
from console.doctor.context import CheckContext, CheckGroup, counted, first_few, shortened
from console.doctor.finding import Code, Finding
from console.doctor.repairs import CreateMissing, maintain_queue
from console.engines import Product, product_of
from console.errors import TooSlowError
from console.monitor.limits import Severity

if TYPE_CHECKING:
    from sqlalchemy import Connection

ENOUGH_PAGES = 100
"""A pop may read all of a smaller table."""

INDEX_MISSING = Code(
    "index_missing",
    Severity.WARNING,
    "an index of the queue is missing: pops or queries read all rows",
    repair="doctor --fix: it creates the index",
)
INVALID = Code(
    "index_invalid",
    Severity.WARNING,
    "an index of the queue is invalid: no query uses it",
    repair="maintain (doctor --fix), which rebuilds it",
)
UNUSED = Code(
    "index_unused",
    Severity.WARNING,
    "the planner does not use the index that a pop needs: each pop reads all rows",
    judgement="find out why: ANALYZE the table, and see what keeps dead rows",
    repair="maintain (doctor --fix), where the index is invalid",
)


def applies(queue: Queue) -> bool:
    """The indexes of an adopted table are its owner's; Service Broker has its own."""
    return queue.kind is Kind.INSTALLED and queue.design.shape != "broker"


def installed_indexes(context: CheckContext, tables: Sequence[str]) -> list[Index]:
    with context.limited_transaction() as connection:
        return [*installed(connection, context.queue, sorted(set(tables)))]


class _OfTable(Protocol):
    @property
    def table(self) -> str: ...


Part = TypeVar("Part", bound=_OfTable)


def with_existing_table(context: CheckContext, missing: Sequence[Part]) -> list[Part]:
    """Those whose table exists: a missing table is a finding of its own."""
    if not missing:
        return []
    there = {table.name for table in context.measures.tables}
    return [part for part in missing if part.table in there]


def _check_definitions(context: CheckContext) -> Iterator[Finding]:
    queue = context.queue
    if not context.can_query("indexes", "indexes"):
        return
    indexes = shipped_indexes(context.database.product, queue)
    shipped = [shipped_index for shipped_index in indexes if not shipped_index.is_key]
    if not shipped:
        return
    there = installed_indexes(context, [shipped_index.table for shipped_index in shipped])
    matches = {
        shipped_index: [index for index in there if index.matches(shipped_index)]
        for shipped_index in shipped
    }
    missing = with_existing_table(
        context, [shipped_index for shipped_index, found in matches.items() if not found]
    )
    invalid = [
        match[0]
        for match in matches.values()
        if match and not any(index.valid for index in match) and not match[0].being_built
    ]
    if missing:
        yield Finding(
            INDEX_MISSING,
            f"{counted(len(missing), 'index', 'indexes')} missing: "
            + shortened(first_few([shipped_index.label for shipped_index in missing], most=1), 70),
            evidence={"missing": [shipped_index.statement for shipped_index in missing]},
            cause="they were dropped, or the table was recreated without them",
            consequence="pops and queries of that state read all rows, slower the deeper the queue",
            repair=CreateMissing(queue, steps(context.database, queue, missing)),
        )
    if invalid:
        names = [index.name for index in invalid]
        yield Finding(
            INVALID,
            f"{counted(len(names), 'index', 'indexes')} invalid: "
            + shortened(first_few(names, between=", "), 70),
            evidence={"invalid": names},
            cause="an interrupted CREATE INDEX or REINDEX CONCURRENTLY left it invalid",
            consequence="every write maintains it and no query can use it",
            repair=maintain_queue(queue, f"rebuild {', '.join(names)}"),
        )


def pop_index(product: Product, queue: Queue) -> ShippedIndex | None:
    """By which a pop finds its row; a heap has none, and a ring's is the key of its slots."""
    order = queue.design.order_with(queue.options)
    if order in {Order.NONE, Order.NUMBERS}:
        return None
    leads = "due_at" if order is Order.DUE else "pushed_at" if queue.design.keeps_row else "id"
    for index in shipped_indexes(product, queue):
        if index.table == queue.table and index.columns[0] == queue.roles[leads]:
            return index
    raise LookupError(f"{queue.design.name} has no index for its pop")


def _check_plan(context: CheckContext) -> Iterator[Finding]:
    queue, product = context.queue, context.database.product
    expected = pop_index(product, queue)
    if expected is None or not sql.has(product, "doctor.pop_plan"):
        return
    plan = _plan(context)
    nodes = list(plan_nodes(plan["Plan"]))
    if uses_index(nodes) or _pages(context, expected.table) < ENOUGH_PAGES:
        return
    there = installed_indexes(context, [expected.table])
    same = [one for one in there if one.matches(expected)]
    if not same or any(index.being_built for index in same):
        return  # a missing one is another finding
    yield Finding(
        UNUSED,
        f"a pop does not use {shortened(same[0].name, 40)}: "
        + first_few(list(dict.fromkeys(node["Node Type"] for node in nodes)), most=3, between=", "),
        evidence={
            "expected": expected.label,
            "plan": [_evidence(node) for node in nodes],
            "settings": plan.get("Settings", {}),
        },
        cause=_cause(same),
        consequence="each pop reads all rows of the table, slower the deeper the queue",
        repair=None
        if any(index.valid for index in same)
        else maintain_queue(queue, f"rebuild {same[0].name}"),
    )


def _plan(context: CheckContext) -> Mapping[str, Any]:
    with context.limited_transaction() as connection:
        query = sql.query("doctor.pop_plan", connection.dialect, context.queue.scope(connection))
        plan: Mapping[str, Any] = connection.execute(query).scalar_one()[0]
    return plan


def plan_nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from plan_nodes(below)


def uses_index(nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Whether rows come from an index in the order of the pop; it may be another, better index."""
    kinds = {node["Node Type"] for node in nodes}
    return bool(kinds & {"Index Scan", "Index Only Scan"}) and "Sort" not in kinds


def _evidence(node: Mapping[str, Any]) -> dict[str, object]:
    names = ("Node Type", "Relation Name", "Index Name", "Sort Key", "Filter", "Total Cost")
    return {name: node[name] for name in names if name in node}


def _pages(context: CheckContext, table: str) -> int:
    tables = context.measures.tables
    return max((measure.pages for measure in tables if measure.name == table), default=0)


def _cause(same: Sequence[Index]) -> str:
    if not any(index.valid for index in same):
        return f"{same[0].name} is invalid: a CREATE INDEX or REINDEX of it was interrupted"
    return (
        "an older transaction may still see rows from before the index was made, or the statistics "
        "are old: ANALYZE the table, and see what keeps dead rows"
    )


INDEX_CHECKS = CheckGroup(
    (INDEX_MISSING, INVALID, UNUSED),
    {"indexes": _check_definitions, "the plan of a pop": _check_plan},
    applies,
)


# Missing keys.

KEY_MISSING = Code(
    "key_missing",
    Severity.WARNING,
    "the key of a table is missing: its ids are not kept unique, and pops read all rows",
    judgement="only you can decide which of the rows with the same key is right: delete the others "
    "first",
    repair="doctor --fix --code: it creates the key, if no two rows share one",
)


@dataclass(frozen=True)
class DuplicateKey:
    table_name: str
    key: str
    found: int


def _check_keys(context: CheckContext) -> Iterator[Finding]:
    queue, product = context.queue, context.database.product
    if not context.can_query("keys", "indexes"):
        return
    shipped = [
        shipped_index for shipped_index in shipped_indexes(product, queue) if shipped_index.is_key
    ]
    there = installed_indexes(context, [shipped_index.table for shipped_index in shipped])
    missing = with_existing_table(
        context,
        [
            shipped_index
            for shipped_index in shipped
            if not any(index.enforces(shipped_index) for index in there)
        ],
    )
    if not missing:
        return
    duplicates = _duplicates(context, missing)
    texts = [
        f"{duplicate_key.table_name} has {duplicate_key.key} {duplicate_key.found:,} times"
        for duplicate_key in duplicates
    ]
    obstacle = f"; not unique: {first_few(texts, most=1)}" if duplicates else ""
    yield Finding(
        KEY_MISSING,
        f"{counted(len(missing), 'key')} missing: "
        + shortened(first_few([shipped_index.label for shipped_index in missing], most=1), 50)
        + shortened(obstacle, 60),
        evidence={
            "missing": [
                [shipped_index.table, list(shipped_index.columns)] for shipped_index in missing
            ],
            "doubled": [
                [duplicate_key.table_name, duplicate_key.key, duplicate_key.found]
                for duplicate_key in duplicates
            ],
        },
        cause="it was dropped, or the table was recreated without it",
        consequence="two rows may get the same id, and every search by key or in key order reads "
        "the whole table"
        + ("; first delete all but one of the rows that share a key" if duplicates else "")
        + (f". {product.key_by_hand}" if product.key_by_hand else ""),
        repair=None
        if duplicates or product.key_by_hand
        else CreateMissing(
            queue, steps(context.database, queue, missing), waits="for at most a second"
        ),
    )


def _duplicates(context: CheckContext, missing: Sequence[ShippedIndex]) -> list[DuplicateKey]:
    tables = context.database.product.array(sorted({index.table for index in missing}))
    try:
        return context.query(DuplicateKey, "duplicate_keys", tables=tables)
    except TooSlowError:
        context.unseen.append("keys: the search for duplicates took too long")
        return []


KEY_CHECKS = CheckGroup((KEY_MISSING,), {"keys": _check_keys}, applies)


# Missing CHECK constraints.

CONSTRAINT_MISSING = Code(
    "constraint_missing",
    Severity.WARNING,
    "a CHECK constraint of the queue's tables is missing: values that no verb handles are accepted",
    repair="doctor --fix --code: it creates the CHECK constraint",
)


_CHECK = re.compile(r"\bCHECK \((?P<condition>[^()]+)\)")
_BETWEEN = re.compile(r"(\w+?)between(\d+)and(\d+)")


@dataclass(frozen=True)
class ShippedCheck:
    table: str
    condition: str

    @property
    def column(self) -> str:
        return self.condition.split()[0]

    @property
    def label(self) -> str:
        return f"{self.table}: {self.condition}"


@dataclass(frozen=True)
class Check:
    table_name: str
    condition: str

    def matches(self, shipped: ShippedCheck) -> bool:
        condition = normalized(self.condition).removeprefix("check").removesuffix("notvalid")
        return self.table_name == shipped.table and condition == _plain(shipped.condition)


def shipped_checks(product: Product, queue: Queue) -> list[ShippedCheck]:
    return [
        ShippedCheck(table, check["condition"])
        for table, columns in shipped_tables(product, queue)
        for check in _CHECK.finditer(columns)
    ]


def _installed_checks(context: CheckContext, tables: Sequence[str]) -> Sequence[Check]:
    schema = context.queue.schema

    def read(on: Connection, names: Sequence[str]) -> list[Check]:
        return sql.rows(
            on, Check, "doctor.checks", schema=schema, tables=product_of(on).array(names)
        )

    with context.limited_transaction() as connection:
        return lookups.by_name(
            connection, "checks", schema, tables, read, lambda check: check.table_name
        )


def _check_constraints(context: CheckContext) -> Iterator[Finding]:
    product, queue = context.database.product, context.queue
    shipped = shipped_checks(product, queue)
    if not shipped or not context.can_query("constraints", "checks"):
        return
    there = _installed_checks(context, sorted({one.table for one in shipped}))
    missing = with_existing_table(
        context,
        [
            shipped_check
            for shipped_check in shipped
            if not any(check.matches(shipped_check) for check in there)
        ],
    )
    if missing:
        yield Finding(
            CONSTRAINT_MISSING,
            f"{counted(len(missing), 'constraint')} missing: "
            + first_few([shipped_check.label for shipped_check in missing], most=1),
            evidence={
                "missing": [
                    [shipped_check.table, shipped_check.condition] for shipped_check in missing
                ]
            },
            cause="it was dropped, or the table was recreated without it",
            consequence="a value that no verb handles is accepted, and its row is no longer seen",
            repair=CreateMissing(
                queue,
                tuple(
                    _check_step(product, queue.schema, shipped_check) for shipped_check in missing
                ),
                waits="a moment",
            ),
        )


def _check_step(product: Product, schema: str, check: ShippedCheck) -> maintenance.MaintainStep:
    """First for new rows, then for existing ones."""
    values = {
        "schema": schema,
        "relation": check.table,
        "constraint": f"{check.table}_{check.column}_ck",
    }
    scope = sql.Scope(values, {"check": check.column})
    return maintenance.MaintainStep(
        "ADD CHECK",
        check.table,
        f"it is missing: {check.label}",
        tuple(
            sql.plain(sql.script(f"maintenance.{name}", product.dialect, scope))
            for name in ("make_check", "validate_check")
            if sql.has(product, f"maintenance.{name}")
        ),
    )


def _plain(condition: str) -> str:
    return _BETWEEN.sub(r"\1>=\2and\1<=\3", normalized(condition))


CONSTRAINT_CHECKS = CheckGroup((CONSTRAINT_MISSING,), {"constraints": _check_constraints}, applies)
