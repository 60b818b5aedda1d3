"""Which indexes a queue wants, read from the scripts that make them, in either engine's words."""

import re
from collections.abc import Iterator

import pytest

from console import sql
from console.actions import shipped
from console.catalog import Queue, installed_queue
from console.designs import DESIGNS
from console.doctor.schema import Index, ShippedIndex, shipped_indexes
from console.engines import PRODUCTS, Product
from tests.contract.variants import ALL, Variant

INDEX = re.compile(r"CREATE (?:NONCLUSTERED )?INDEX\b")
ODD = 'or]d"ers'
"""A name with the signs that quote one."""


def queues(variant: Variant) -> Iterator[tuple[Product, Queue]]:
    for product in PRODUCTS.values():
        if product.name in variant.engines:
            yield product, variant.queue("s", ODD, product.name)


@pytest.mark.parametrize("variant", ALL, ids=str)
def test_every_index_of_the_script_is_wanted(variant: Variant) -> None:
    for product, queue in queues(variant):
        text = "\n".join(
            batch
            for script in shipped.tables_of(product, queue)
            for batch in sql.batches(script, product.dialect, queue.scope(product))
        )
        found = shipped_indexes(product, queue)
        made = [one for one in found if not one.is_key]
        assert len(made) == len(INDEX.findall(text))
        assert all(one.table.startswith(ODD) and one.columns for one in found)
        assert all(one.statement in text for one in made)
        keys = re.findall(r"(?:PRIMARY KEY|UNIQUE)\b", text)
        assert len(found) - len(made) == len(keys)


def claimed(condition: str) -> Index:
    return Index(
        "orders", "orders_claimed", '[{"name": "claimed_at"}]', condition, False, True, False
    )


def test_sql_servers_own_words_for_a_condition() -> None:
    queue = installed_queue("dbo", "orders", DESIGNS["status"], {})
    by_condition = {one.condition: one for one in shipped_indexes(PRODUCTS["mssql"], queue)}
    of_claims: ShippedIndex = by_condition["status = 1"]
    assert claimed("([status]=(1))").matches(of_claims)
    assert not claimed("([status]=(2))").matches(of_claims)
    assert not claimed("([status]=(1))").matches(by_condition["status = 2"])
    assert by_condition[""].is_key
