"""What the pipeline asks returns the same columns on both engines, those that its rows want."""

import dataclasses

import pytest

from console import sql
from console.catalog import Queue
from console.engines import PRODUCTS
from console.pipeline import locks
from console.pipeline.archive import files, plan
from console.sql import templates
from tests.contract.variants import ALL, Variant
from tests.statements import of_the_pipeline
from tests.unit.test_doctor_statements import columns

ROW_TYPES = {
    "action": locks.Action,
    "step": plan.RangeStep,
}
VALUES = {
    "acquire_lock": "got",
    "release_lock": "got",
    "server_time": "moment",
    "lock_rows": "key",
    "delete_rows": "deleted",
}


ALWAYS_NULL = {"done": {"archive_id", "reason", "due_at", "archived_at"}, "archive": set()}
"""Columns of the lake's files that no row of such a source has: they are not asked for."""


def wanted(name: str, queue: Queue, scope: templates.Scope) -> list[str]:
    if name == "rows":
        lacked = set(ALWAYS_NULL[scope.options["source"]])
        lacked |= {"due_at"} - set(scope.roles)
        if queue.design.name not in {"status", "split"}:
            lacked.add("title")
        return [name for name in files.SCHEMA.names if name not in lacked]
    if name in VALUES:
        return [VALUES[name]]
    return [field.name for field in dataclasses.fields(ROW_TYPES[name])]


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("engine", "variant"), [(e, v) for v in ALL for e in v.engines if e in PRODUCTS], ids=str
)
def test_each_fills_its_row_type(engine: str, variant: Variant) -> None:
    product = PRODUCTS[engine]
    queue = variant.queue("s", "q", product.name)
    met = set()
    for statement, scope in of_the_pipeline(product, queue):
        met.add(statement.name)
        text = sql.script(statement, product.dialect, scope)
        assert columns(text) == wanted(statement.name, queue, scope), text
    assert met == templates.statements(product.name, "pipeline").keys()
