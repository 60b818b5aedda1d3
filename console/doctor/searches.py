"""How a queue finds its rows: indexes that are missing or invalid, and pops that do not use theirs.

What is missing is told by definition, on both engines. Whether a pop uses its index PostgreSQL's
planner says, asked with the pop's own choice of rows; of SQL Server nobody asks: there a plan
belongs to a statement that has run, and its compilation may differ from call to call.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from console import sql
from console.actions import maintain
from console.catalog import Kind, Queue
from console.designs import Order
from console.doctor import indexes
from console.doctor.checks import (
    LOCK_SECONDS,
    STATEMENT_SECONDS,
    can_ask,
    checked,
    counted,
    shortened,
    some,
)
from console.doctor.finding import Code, Finding, Severity
from console.doctor.indexes import Index, Wanted
from console.doctor.look import Look
from console.doctor.repairs import Maintain, MakeIndex
from console.engines import Product
from console.monitor.asking import be_careful

ENOUGH_PAGES = 100
"""Of a smaller table a pop may as well read all."""

MISSING = Code(
    "index_missing", Severity.WARNING, "an index of the queue is gone: pops or looks read all rows"
)
INVALID = Code(
    "index_invalid", Severity.WARNING, "an index of the queue is invalid: no search uses it"
)
UNUSED = Code(
    "index_unused",
    Severity.WARNING,
    "the server's planner does not use the index that a pop needs: each pop reads all rows",
)

CODES: tuple[Code, ...] = (MISSING, INVALID, UNUSED)


def applies(queue: Queue) -> bool:
    """Of somebody else's table nobody knows the indexes; Service Broker has its own."""
    return queue.kind is Kind.INSTALLED and queue.design.shape != "broker"


def examine(look: Look) -> Iterator[Finding]:
    """Every finding; what cannot be told goes to `look.unseen`."""
    if applies(look.queue):
        yield from checked(look, "indexes", _by_definition)
        yield from checked(look, "the plan of a pop", _by_plan)


def _by_definition(look: Look) -> Iterator[Finding]:
    queue = look.queue
    if not can_ask(look, "indexes", "indexes"):
        return
    wanted = [one for one in indexes.wanted(look.database.product, queue) if not one.is_key]
    if not wanted:
        return
    there = indexes.there(look, [one.table for one in wanted])
    same = {one: [index for index in there if index.is_wanted(one)] for one in wanted}
    missing = indexes.on_tables(look, [one for one, found in same.items() if not found])
    broken = [
        found[0]
        for found in same.values()
        if found and not any(index.valid for index in found) and not found[0].being_built
    ]
    if missing:
        yield Finding(
            MISSING,
            f"{counted(len(missing), 'index', 'indexes')} missing: "
            + shortened(some([one.label for one in missing], most=1), 70),
            evidence={"missing": [one.statement for one in missing]},
            cause="dropped, or the table was made anew without them",
            consequence="pops and looks of that state read all rows, slower the deeper the queue",
            repair=MakeIndex(queue, tuple(_step(look, one) for one in missing)),
        )
    if broken:
        names = ", ".join(index.name for index in broken)
        yield Finding(
            INVALID,
            f"{counted(len(broken), 'index', 'indexes')} invalid: "
            + shortened(some([index.name for index in broken], between=", "), 70),
            evidence={"invalid": [index.name for index in broken]},
            cause="an interrupted CREATE INDEX or REINDEX CONCURRENTLY left it so",
            consequence="every write pays for it and no search may use it",
            repair=Maintain(queue, f"rebuild {names}"),
        )


def _step(look: Look, one: Wanted) -> maintain.Step:
    """Beside the traffic, in the words of either engine, as far as the server can."""
    statement = one.statement.replace("CREATE INDEX ON", "CREATE INDEX CONCURRENTLY ON", 1)
    if "online_rebuild" not in look.database.capabilities.missing:
        options = "WITH (ALLOW_PAGE_LOCKS"
        statement = statement.replace(options, options.replace("(", "(ONLINE = ON, "), 1)
    return maintain.Step("CREATE INDEX", one.table, f"it is missing: {one.label}", (statement,))


def of_pop(product: Product, queue: Queue) -> Wanted | None:
    """The index by which a pop finds its row; a heap has none, and a ring's is its slots' key."""
    order = queue.design.order_with(queue.options)
    if order in {Order.NONE, Order.NUMBERS}:
        return None
    leads = "due_at" if order is Order.DUE else "pushed_at" if queue.design.keeps_row else "id"
    for one in indexes.wanted(product, queue):
        if one.table == queue.table and one.columns[0] == queue.roles[leads]:
            return one
    raise LookupError(f"no index of {queue.design.name} is for its pop")


def _by_plan(look: Look) -> Iterator[Finding]:
    queue, product = look.queue, look.database.product
    expected = of_pop(product, queue)
    if expected is None or "pop_plan" not in sql.statements(product.name, "doctor"):
        return
    plan = _plan(look)
    nodes = list(_nodes(plan["Plan"]))
    if goes_by_index(nodes) or _pages(look, expected.table) < ENOUGH_PAGES:
        return
    same = [one for one in indexes.there(look, [expected.table]) if one.is_wanted(expected)]
    if not same or any(index.being_built for index in same):
        return  # that it is missing is told by definition
    yield Finding(
        UNUSED,
        f"a pop does not go by {shortened(same[0].name, 40)}: "
        + some(list(dict.fromkeys(node["Node Type"] for node in nodes)), most=3, between=", "),
        evidence={
            "expected": expected.label,
            "plan": [_shown(node) for node in nodes],
            "settings": plan.get("Settings", {}),
        },
        cause=_cause(same),
        consequence="each pop reads all rows of the table, slower the deeper it is",
        repair=None
        if any(index.valid for index in same)
        else Maintain(queue, f"rebuild {same[0].name}"),
    )


def _plan(look: Look) -> Mapping[str, Any]:
    product = look.database.product
    statement = sql.statements(product.name, "doctor")["pop_plan"]
    with look.moment() as connection:
        be_careful(connection, look.database, STATEMENT_SECONDS, LOCK_SECONDS)
        asked = sql.query(statement, connection.dialect, look.queue.scope(product))
        plan: Mapping[str, Any] = connection.execute(asked).scalar_one()[0]
    return plan


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


def goes_by_index(nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Whether rows come from an index in the order of the pop. Any index will do that brings them
    so: somebody may have made a better one."""
    kinds = {node["Node Type"] for node in nodes}
    return bool(kinds & {"Index Scan", "Index Only Scan"}) and "Sort" not in kinds


def _shown(node: Mapping[str, Any]) -> dict[str, object]:
    names = ("Node Type", "Relation Name", "Index Name", "Sort Key", "Filter", "Total Cost")
    return {name: node[name] for name in names if name in node}


def _pages(look: Look, table: str) -> int:
    tables = maintain.measure(look.database, look.queue).tables
    return max((one.pages for one in tables if one.name == table), default=0)


def _cause(same: Sequence[Index]) -> str:
    if not any(index.valid for index in same):
        return f"{same[0].name} is invalid: a CREATE INDEX or REINDEX of it was interrupted"
    return (
        "an older transaction may still see rows from before the index was made, or the "
        "statistics are old: ANALYZE the table, and see who keeps dead rows"
    )
