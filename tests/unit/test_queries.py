"""Every statement of `queries/`, rendered for every kind of queue that can exist."""

import re

import pytest

from console import sql
from console.catalog import Kind, Queue
from console.designs import DESIGNS, Design
from console.engines import PRODUCTS, Product
from console.sql import templates
from tests.contract.variants import ALL, Variant
from tests.tools.statements import MORE, library_queues

SHARED_FILES = (
    *("activity", "bench", "catalog", "common", "maintenance", "prove"),
    *("replay", "roles", "server", "sessions", "upgrade"),
)
"""The files that belong to no design."""
LIBRARY_QUEUES = [
    (product, queue) for product in PRODUCTS.values() for queue in library_queues(product)
]
PRODUCT_DESIGNS = [
    (product, design)
    for product in PRODUCTS.values()
    for design in DESIGNS.values()
    if product.name in design.engines
]


def check(product: Product, queue: Queue, statement: sql.Statement) -> None:
    """It has a comment, and its text contains no part of the template language."""
    assert statement.comment.strip()
    scope = queue.scope_of(statement.name, product, **MORE)
    sql.query(statement, product.dialect, scope)
    text = sql.script(statement, product.dialect, scope)
    assert not re.search(r"^\s*-- (when|end)\b", text, re.MULTILINE), statement.label
    assert not re.search(r"\{\w+\}", re.sub(r"--[^\n]*", "", text)), statement.label


@pytest.mark.thinned(3)
@pytest.mark.parametrize("variant", ALL, ids=str)
def test_statements_of_an_installed_queue_are_rendered(variant: Variant) -> None:
    for product in PRODUCTS.values():
        if product.name in variant.engines:
            own = templates.statements_of(product.name, variant.design.name)
            files = (templates.statements(product.name, file) for file in SHARED_FILES)
            # A design's own statement replaces the shared one.
            shared = [it for file in files for name, it in file.items() if name not in own]
            for statement in (*own.values(), *shared):
                check(product, variant.queue("s", "q", product.name), statement)


@pytest.mark.parametrize(
    ("product", "design"),
    PRODUCT_DESIGNS,
    ids=[f"{product.name}-{design.name}" for product, design in PRODUCT_DESIGNS],
)
def test_statements_of_an_adopted_table_are_rendered(product: Product, design: Design) -> None:
    """With all roles of the design, without each optional one, and without all of these."""
    size = {"size": "5"} if "slot" in design.needed_roles else {}
    needed = dict.fromkeys(design.needed_roles, "column") | size
    full = dict.fromkeys(design.roles, "column") | needed
    lacking = [{r: c for r, c in full.items() if r != left} for left in full.keys() - needed.keys()]
    status = sql.statement(product.name, f"{design.name}.status")
    for roles in (full, *lacking, needed):
        check(product, Queue("s", "t", design, {}, roles, kind=Kind.ADOPTED), status)


@pytest.mark.parametrize(
    ("product", "queue"), LIBRARY_QUEUES, ids=[queue.design.name for _, queue in LIBRARY_QUEUES]
)
def test_statements_of_a_library_s_tables_are_rendered(product: Product, queue: Queue) -> None:
    for statement in templates.statements_of(product.name, queue.design.name).values():
        check(product, queue, statement)
