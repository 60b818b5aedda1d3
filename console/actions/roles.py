"""The roles for people that the console ships: what each may do, enforced by the server itself."""

from collections.abc import Sequence

from console import sql
from console.catalog import Kind, Queue
from console.engines import Product


def script(product: Product, schema: str, queues: Sequence[Queue]) -> str:
    """One script that makes the roles and gives them their rights on the catalog and the queues.

    Installing a queue later gives them theirs on that one. Those that were adopted are left to
    whoever made them.
    """
    catalog = sql.statements(product.name, "catalog")
    ours = sql.statements(product.name, "roles")
    house = sql.Scope({"schema": schema})
    pieces = [
        *((catalog[name], house) for name in ("lock", "bootstrap")),
        (ours["roles"], house),
        *(
            (ours["queue"], queue.scope(product))
            for queue in queues
            if queue.kind is Kind.INSTALLED
        ),
    ]
    head = "-- dbq-console: the roles dbq_reader, dbq_operator and dbq_admin, and their rights."
    return product.as_script(head, [sql.script(part, product.dialect, at) for part, at in pieces])
