"""A queue's indexes, read from its scripts, and compared in each engine's notation."""

import re
from dataclasses import replace

from console import sql
from console.actions import shipped
from console.actions.indexes import Index, ShippedIndex, shipped_indexes
from console.catalog import installed_queue
from console.designs import DESIGNS, designs_on
from console.engines import PRODUCTS
from tests.contract.variants import ALL
from tests.unit.test_snapshot import queue

INDEX = re.compile(r"CREATE (?:NONCLUSTERED )?INDEX\b")
ODD = 'or]d"ers'
"""A name with quote characters."""


def test_every_index_of_the_script_is_expected() -> None:
    for variant in ALL:
        for product in (PRODUCTS[engine] for engine in variant.engines):
            queue = variant.queue("s", ODD, product.name)
            text = "\n".join(
                batch
                for script in shipped.tables_of(product, queue)
                for batch in sql.batches(script, product.dialect, queue.scope(product))
            )
            indexes = shipped_indexes(product, queue)
            assert len({(index.label, index.is_key) for index in indexes}) == len(indexes), (
                "one is twice"
            )
            created = [index for index in indexes if not index.is_key]
            assert len(created) == len(INDEX.findall(text))
            assert all(index.table.startswith(ODD) and index.columns for index in indexes)
            assert all(index.statement in text for index in created)
            keys = re.findall(r"(?:PRIMARY KEY|UNIQUE)\b", text)
            assert len(indexes) - len(created) == len(keys)


def test_the_keys_of_every_design_are_read_from_its_script() -> None:
    expected: dict[str, set[tuple[str, ...]]] = {
        "naive": {("message_id",)},
        "ring": {("slot",), ("void", "number")},
        "heap": set(),
        "pending": {("due_time", "id")},
    }
    for design in designs_on("postgresql"):
        indexes = shipped_indexes(PRODUCTS["postgresql"], queue(design))
        keys = {index.columns for index in indexes if index.is_key}
        assert expected.get(design, {("id",)}) <= keys, design
        assert bool(keys) == (design != "heap")


def test_an_index_is_recognized_as_postgresql_writes_it() -> None:
    named = replace(queue("claim"), name='odd "name')
    (ready, *_) = [
        index for index in shipped_indexes(PRODUCTS["postgresql"], named) if not index.is_key
    ]
    condition = "(processing_started_at IS NULL)"
    existing = Index('odd "name', "any", ["created_at", "id"], condition, False, True, False)
    assert existing.matches(ready)
    assert not replace(existing, condition=None).matches(ready)
    assert not replace(existing, columns=["id", "created_at"]).matches(ready)
    assert not replace(existing, table_name="other").matches(ready)


def claimed(condition: str) -> Index:
    return Index(
        "orders", "orders_claimed", '[{"name": "claimed_at"}]', condition, False, True, False
    )


def test_an_index_is_recognized_as_sql_server_writes_it() -> None:
    status = installed_queue("dbo", "orders", DESIGNS["status"], {})
    by_condition = {index.condition: index for index in shipped_indexes(PRODUCTS["mssql"], status)}
    claims_index: ShippedIndex = by_condition["status = 1"]
    assert claimed("([status]=(1))").matches(claims_index)
    assert not claimed("([status]=(2))").matches(claims_index)
    assert not claimed("([status]=(1))").matches(by_condition["status = 2"])
    assert by_condition[""].is_key
