"""How deep the states are that have more rows than are counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from console import sql
from console.catalog import Queue
from console.engines import Product
from console.monitor.figures import STATES, Key, StatusRow, key_of


@dataclass(frozen=True)
class EstimateRow:
    """About how many rows of each state there are; None: the design has it not, or nobody knows."""

    schema: str
    queue: str
    ready: float | None
    scheduled: float | None
    claimed: float | None
    errors: float | None
    done: float | None


Estimates = Mapping[str, float | None]
"""By state."""


def estimates(
    connection: Connection,
    product: Product,
    wanted: Sequence[tuple[Queue, StatusRow]],
    *,
    counts_rows: bool = True,
) -> dict[Key, Estimates]:
    """Of these queues, which were just seen; their designs have the statement.

    `counts_rows`: whether the login may read the engine's counters of rows.
    """
    counters = "yes" if counts_rows else "no"
    parts = [_part(product, queue, row, counters) for queue, row in wanted]
    rows = sql.fetch_union(connection, EstimateRow, parts)
    found = {
        (row.schema, row.queue): {state: getattr(row, state) for state in STATES} for row in rows
    }
    return {key_of(queue): found[key_of(queue)] for queue, _ in wanted}


def _part(product: Product, queue: Queue, row: StatusRow, counters: str) -> sql.Part:
    statement = sql.statements(product.name, queue.design.name)["estimate"]
    # Where the first ready rows were not to be had in time, they are not looked for here either.
    values = {} if row.ready is not None else {"ready_limit": "0"}
    return sql.part(statement, product.dialect, queue.scope(product, counters=counters, **values))
