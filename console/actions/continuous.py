"""Archiving round the clock, as Zabir does: what is finished leaves in small batches, for ever.

Each round plans anew, so that its cut-off moves on, and waits while the queue has more important
things to do.
"""

from collections.abc import Callable
from dataclasses import dataclass

from console.actions import execute, plan
from console.actions.execute import Control, Pace, Result
from console.actions.plan import Mover
from console.engines import Database
from console.errors import BusyError, ConnectionFailedError
from console.monitor import snapshot, take_sample
from console.monitor.filters import Filters


@dataclass(frozen=True)
class Round:
    """One round: what it did, or why it did nothing."""

    result: Result | None = None
    waits: str = ""


def rounds(
    database: Database,
    mover: Mover,
    filters: Filters,
    *,
    every_seconds: float,
    hot_above: int | None,
    pace: Pace,
    control: Control,
    told: Callable[[Round], None],
) -> None:
    """Until `control` stops it. A lost connection or a lock that is held only costs a round.

    `hot_above`: while so many messages are ready, consumers come first; None: never.
    """
    while not control.stopped:
        try:
            told(_round(database, mover, filters, hot_above, pace, control))
        except (BusyError, ConnectionFailedError) as error:
            told(Round(waits=error.why or error.what))
        control.wait(every_seconds)


def _round(  # what rounds was given
    database: Database,
    mover: Mover,
    filters: Filters,
    hot_above: int | None,
    pace: Pace,
    control: Control,
) -> Round:
    queue = mover.source.queue
    if hot_above is not None:
        (seen,) = take_sample(database, only=[queue]).queues
        ready = snapshot(seen, database.label).ready
        if ready is not None and ready > hot_above:
            return Round(waits=f"{ready:,} messages are ready, more than {hot_above:,}")
    made = plan.make(database, mover, filters)
    if not made.count:
        return Round(waits="nothing to archive")
    return Round(execute.execute(database, mover, made, pace=pace, control=control))
