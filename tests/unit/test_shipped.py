"""Shipped code and columns, read from the scripts: all of them, as each engine stores them."""

import itertools
import re
from collections.abc import Iterator

import pytest

from console import sql
from console.actions import shipped
from console.actions.install import parts
from console.actions.upgrade import Difference, How
from console.catalog import Queue
from console.engines import PRODUCTS, Product
from tests.contract.variants import ALL, default

NAMES = ("orders", 'a "b" -- c', "x] [y.z", "it's {queue}")

DEFAULT_QUEUE = default("fifo").queue("sales", "it's [x]", "mssql")


def queues() -> Iterator[tuple[Product, Queue, str]]:
    """A queue of each variant, with its scripts; the names take turns."""
    cases = [(engine, variant) for variant in ALL for engine in variant.engines]
    for (engine, variant), name in zip(cases, itertools.cycle(NAMES), strict=False):
        product, queue = PRODUCTS[engine], variant.queue("sales", name, engine)
        scope = queue.scope(product)
        texts = (sql.script(part, product.dialect, scope) for part in parts(product, queue))
        yield product, queue, "\n".join(texts)


def test_every_function_and_column_is_found_whatever_the_queue_is_called() -> None:
    for product, queue, text in queues():
        made = re.findall(r"(?m)^CREATE OR (?:REPLACE|ALTER) ", text)
        routines = shipped.code(product, queue)
        assert len(routines) == len(made) >= 4
        names = {code.name.removeprefix(queue.name) for code in routines}
        assert names >= {"_push", "_pop", "_pop_many"}
        assert all(code.body.strip() for code in routines)
        columns = shipped.columns(product, queue)
        tables = re.findall(r"(?m)^CREATE (?:UNLOGGED )?TABLE ", text)
        assert len({column.table for column in columns}) == len(tables)
        archive = {c.name: c for c in columns if c.table == f"{queue.name}_archive"}
        assert archive["action_id"].repairable
        assert not archive["payload"].repairable, "it cannot be made up"
        assert not archive["archive_id"].repairable
        assert archive["archived_at"].repairable, "it has a default"
        assert "{" not in archive["payload"].definition


@pytest.mark.parametrize("engine", PRODUCTS)
def test_all_tables_of_the_catalog_are_found(engine: str) -> None:
    columns = shipped.catalog_columns(PRODUCTS[engine])
    decisions = {"pause", "protection", "silence", "note", "lease", "notification", "catalog_id"}
    decisions |= {"lake_plan", "lake_row"}
    assert {column.table for column in columns} == {"queue", "setting", "action"} | decisions
    assert {"action_id", "detail", "cutoff"} <= {c.name for c in columns if c.table == "action"}


def test_defaults_are_compared_with_what_a_server_writes() -> None:
    written = {
        "clock_timestamp()": "clock_timestamp()",
        "SYSUTCDATETIME()": "(sysutcdatetime())",
        "NEWSEQUENTIALID()": "(newsequentialid())",
        "0": "((0))",
        "N''": "(N'')",
        "''": "''::text",
    }
    for product, queue, _ in queues():
        for column in shipped.columns(product, queue):
            with_default = re.search(r"(?<!BY )\bDEFAULT (\S+?)(?:,|\s|$)", column.definition)
            assert bool(with_default) == bool(column.default)
            assert column.has_default("") != bool(with_default), column
            if with_default and with_default[1] in written:
                assert column.has_default(with_default[1])
                assert column.has_default(written[with_default[1]])
            assert not column.has_default("(N'x')")
            assert not column.has_default("now()")


def test_a_default_of_sql_server_keeps_the_name_of_its_constraint() -> None:
    product, queue = PRODUCTS["mssql"], DEFAULT_QUEUE
    archived = {c.name: c for c in shipped.columns(product, queue)}["archived_at"]
    assert archived.default == "CONSTRAINT [it's [x]]_archive_time] DEFAULT SYSUTCDATETIME()"
    names = {"schema": "sales", "table": archived.table, "column": archived.name}
    scope = sql.Scope(names | {"default": archived.default})
    text = sql.script("upgrade.set_default", product.dialect, scope)
    assert "N'CONSTRAINT [it''s [x]]_archive_time] DEFAULT SYSUTCDATETIME()'" in text
    assert "OBJECT_ID(N'[sales].[it''s [x]]_archive]')" in text


def test_the_header_of_a_procedure_does_not_count_as_a_difference() -> None:
    """SQL Server stores the batch that created it, with our comment, as a CREATE."""
    product = PRODUCTS["mssql"]
    body = "[s].[q_pop]\n    @n int\nAS\nBEGIN\n    SELECT 1;\nEND;"
    made = {
        code
        for head in (
            "CREATE OR ALTER PROCEDURE",
            "/* dbq x */\n-- y\nCREATE   PROCEDURE",
            "create proc",
        )
        for end in ("", "\n", "\r\n")
        for code in shipped.code_of(
            product, f"{head} {body.replace(chr(10), chr(13) + chr(10))}{end}"
        )
    }
    assert len(made) == 1
    (other,) = shipped.code_of(product, f"CREATE PROCEDURE {body.replace('1', '2')}")
    assert other not in made


def test_the_json_keys_of_a_difference_are_stable() -> None:
    content = Difference("column", "orders.id", How.MISSING, repairable=False).as_json()
    assert list(content) == ["kind", "name", "how", "installed", "shipped", "repairable"]
    assert content["repairable"] is False
