"""Messages that should have been popped, or made ready, by now: their due time is over.

Not part of a sample: whoever judges them reads them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from console import sql
from console.catalog import require_rows
from console.monitor.rates import age_as_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from console.catalog import Queue


@dataclass(frozen=True)
class Overdue:
    messages: int | None
    """Counted to 10,001; None: hidden from this login."""
    not_made_ready: int
    """Those that a library's own machinery has to make ready first."""
    oldest_seconds: float | None
    """Since when the first of them is due, infinite if at -infinity; None: there is none."""
    id: str | None


def has_due_times(on: sql.HasDialect, queue: Queue) -> bool:
    name = f"{queue.design.name}.overdue"
    return queue.design.known and "due_at" in queue.roles and sql.has(on, name)


def overdue(
    connection: Connection, queue: Queue, seconds: float = 0.0, lag: timedelta = timedelta()
) -> Overdue:
    """Those that had been due for longer than this that long ago, of a queue that `has_due_times`.

    `lag`: how far behind a standby is.
    """
    require_rows(queue)
    name, scope = f"{queue.design.name}.overdue", queue.scope(connection)
    longest = seconds + lag.total_seconds()
    row = sql.row(connection, Overdue, name, scope, seconds=longest)
    if row.messages and row.oldest_seconds is None:  # no statement returns an infinite number
        return replace(row, oldest_seconds=math.inf)
    return replace(row, oldest_seconds=age_as_of(row.oldest_seconds, lag))
