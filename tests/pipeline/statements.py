"""Every statement of `pipeline.sql`, in every form in which it is asked of a queue."""

from collections.abc import Iterator

from console import sql
from console.catalog import Queue
from console.engines import Product
from console.pipeline.archive.plan import ARCHIVE, DONE, scope
from console.sql import templates

MOMENT = "2026-03-29 01:00:00.000001"
VALUES = {"before": MOMENT, "cutoff": MOMENT, "after": "0", "last": "9", "action_id": "1"}
VALUES |= {"resource": "dbq pipeline 0"}
OF_ROWS = ("step", "rows", "lock_rows", "delete_rows")


def asked(product: Product, queue: Queue) -> Iterator[tuple[sql.Statement, sql.Scope]]:
    """Each statement with each scope."""
    statements = templates.statements(product.name, "pipeline")
    for mode in ("exclusive", "shared"):
        for name in ("acquire_lock", "release_lock"):
            yield statements[name], sql.Scope(VALUES, {"mode": mode})
    for name in ("action", "server_time"):
        yield statements[name], sql.Scope(VALUES)
    sources = [ARCHIVE, DONE] if queue.design.name in {"status", "split"} else [ARCHIVE]
    for source in sources:
        within = scope(product, queue, source, **VALUES)
        for name in OF_ROWS:
            for lock in ("yes", "no") if name == "lock_rows" else ("",):
                options = {**within.options, "lock": lock}
                yield statements[name], sql.Scope(within.values, options, within.roles)
