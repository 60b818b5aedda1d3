"""Every SQL Server statement of a design with the tables of `status`.

python -m tests.contract.adding.use_tsql DESIGN
"""

import re
import sys

from console import sql
from console.catalog import Kind, Queue, installed_queue
from console.designs import DESIGNS
from console.engines.mssql import PRODUCT
from console.monitor.scan_query import query
from tests.microsoft.texts import COMMENT
from tests.tools.statements import action_statements, scan_requests, sources

_LABEL = re.compile(r"/\* dbq \S+ \*/")


def rendered(queue: Queue) -> list[tuple[str, str]]:
    """(name, text) of the statements that change its messages or monitor them."""
    made = [
        (statement.name, sql.script(statement, PRODUCT.dialect, scope))
        for statement, scope in action_statements(PRODUCT, queue)
    ]
    design = queue.design.name
    names = ["status", "claims", "estimate"]
    if queue.kind is Kind.INSTALLED:
        names += ["tables", "functions", "drop", "archive", "contents", "lock_all", "pop"]
        names += ["push_many_with", "pops", "popped", "duplicate_keys", "recent_errors", "done_lag"]
    scope = queue.scope(PRODUCT)
    made += [(name, sql.script(f"{design}.{name}", PRODUCT.dialect, scope)) for name in names]
    made += [
        (ask.scan.statement, query(source, ask, "matching").text)
        for source in sources(PRODUCT, queue)
        for ask in scan_requests(source)
    ]
    return [(name, _LABEL.sub("", COMMENT.sub("", text))) for name, text in made]


def use(name: str) -> None:
    new, like = DESIGNS[name], DESIGNS["status"]
    roles = dict.fromkeys(like.roles, "column")
    for ours, theirs in (
        (
            installed_queue("sales", "orders", of, of.complete_options({}, "mssql"))
            for of in (new, like)
        ),
        (Queue("sales", "orders", of, {}, roles, kind=Kind.ADOPTED) for of in (new, like)),
    ):
        assert rendered(ours) == rendered(theirs)


if __name__ == "__main__":
    use(sys.argv[1])
