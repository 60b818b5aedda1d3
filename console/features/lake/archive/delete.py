"""Delete exactly the reserved rows from the database, once the table has them."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from console import sql
from console.catalog import Queue, audit
from console.catalog.audit import Ledger
from console.engines import Database, Session
from console.engines.database import retry_transient
from console.features.lake.archive import plan as planning
from console.features.lake.archive.plan import LakePlan, Part

BATCH = 4_000
"""Rows a transaction. With 5,000 locks SQL Server would lock the whole table."""
SESSIONS = 4
GONE = "deleted by others, outside the console"


@dataclass(frozen=True)
class _Deleted:
    deleted: int
    reserved: int


def delete(
    database: Database,
    queue: Queue,
    plan: LakePlan,
    action_id: int,
    parts: Sequence[Part],
    on_progress: Callable[[int, int], object],
    *,
    sessions: int = SESSIONS,
) -> int:
    """How many rows were deleted, several parts at a time, each in a transaction with its audit.

    `on_progress` gets the parts done, and the rows. The first error ends it, once the parts at
    work have ended.
    """
    waiting: SimpleQueue[Part] = SimpleQueue()
    for part in parts:
        waiting.put(part)
    counted, ended, total = threading.Lock(), 0, 0
    failed = threading.Event()

    def work(session: Session) -> None:
        nonlocal ended, total
        try:
            while not failed.is_set():
                part = waiting.get_nowait()
                done = retry_transient(lambda of=part: _delete(session, queue, plan, action_id, of))  # type: ignore[misc]
                with counted:
                    ended, total = ended + 1, total + done
                    on_progress(ended, total)
        except Empty:
            pass
        except BaseException:
            failed.set()
            raise

    with ExitStack() as stack:
        opened = [
            stack.enter_context(database.session("delete what the lake has"))
            for _ in range(max(1, min(sessions, len(parts))))
        ]
        with ThreadPoolExecutor(len(opened), "dbq delete") as threads:
            futures = [threads.submit(work, session) for session in opened]
        for future in futures:
            future.result()
    return total


def _delete(session: Session, queue: Queue, plan: LakePlan, action_id: int, part: Part) -> int:
    with session.transaction("delete what the lake has") as connection:
        planning.require_charge(connection, plan)
        values = {"plan_id": plan.plan_id, "after": part.after, "last": part.last}
        within = queue.scope(connection)
        deleted = sql.row(connection, _Deleted, "pipeline.delete_rows", within, **values)
        if deleted.reserved != part.rows:
            raise planning.rows_changed(plan)
        gone = deleted.reserved - deleted.deleted
        ledger = Ledger(
            deleted.reserved, deleted.deleted, deleted.deleted, {GONE: gone} if gone else {}
        )
        audit.batch(connection, action_id, ledger)
    return deleted.deleted
