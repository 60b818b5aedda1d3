"""What the doctor asks returns the same columns on both engines, and what its row types want.

PostgreSQL's are run on a server and fill their row types; so what has the same columns would, too.
"""

import dataclasses
import re
from collections.abc import Iterator

import pytest

from console import sql
from console.catalog import Queue
from console.doctor import broker, sessions
from console.doctor.claims import IN_HAND, scope_of
from console.engines import PRODUCTS, Product
from tests.contract.variants import DEFAULTS, Variant, on

RING = {"next_numbers", "lost", "structure", "broken_slots", "missing_slots", "sequence_settings"}
RING |= {"life", "park_orphans", "drop_holes", "void_holes", "park_spent", "drop_voids"}
RING |= {"add_slots", "empty_slots", "lift", "straighten", "slot_map"}
ONLY_HERE = {"postgresql": {"drawers", "calm"}, "mssql": set[str]()}
"""What one engine's ring alone is asked: who has drawn, which the other tells by two looks."""
ROW_TYPES = {
    "conversations": broker._States,
    "undelivered": broker.Undelivered,
    "activation": broker.Activation,
    "ghosts": sessions._Ghosts,
}
"""Of statements that SQL Server alone has."""

_TOKEN = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\[(?:[^\]\n]|\]\])*\]|[(),;]|@?\w+",
    re.DOTALL,
)
_HEADS = {"SELECT", "RETURNING", "OUTPUT"}
_ENDS = {"FROM", "INTO", "ORDER", "OPTION", "WHERE", ";"}


def columns(text: str) -> list[str]:
    """The names of the last list of columns that stands in no brackets and has names."""
    found: list[str] = []
    depth, listing, head, last = 0, False, "", ""
    for token in _TOKEN.findall(text):
        if token.startswith(("--", "/*")):
            continue
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth == 0 and token.upper() in _HEADS:
            if listing and head == "OUTPUT":  # what an INSERT returns, and not what it reads
                break
            listing, head, found = True, token.upper(), []
        elif listing and depth == 0 and (token in {",", ";"} or token.upper() in _ENDS):
            found.append(last.strip('"[]'))
            listing = token == ","
        last = token
    return [*found, last.strip('"[]')] if listing else found


def asked(product: Product, queue: Queue) -> Iterator[tuple[str, list[str]]]:
    """What the doctor asks of that queue, by its label, and the columns."""
    own = sql.statements(product.name, queue.design.name)
    names = RING if queue.design.name == "ring" else set()
    for statement in (*map(own.__getitem__, sorted(names)), *_of_any(product)):
        in_hand = statement.name in IN_HAND and queue.finishes
        scope = scope_of(product, queue) if in_hand else queue.scope(product)
        text = sql.script(statement, product.dialect, scope)
        if text.strip(" \n;"):
            yield statement.label, columns(text)


def _of_any(product: Product) -> list[sql.Statement]:
    return list(sql.statements(product.name, "doctor").values())


@pytest.mark.parametrize("variant", on("postgresql", DEFAULTS), ids=str)
def test_both_engines_return_the_same(variant: Variant) -> None:
    here, there = (
        dict(asked(product, variant.queue("s", "q", product.name)))
        for product in (PRODUCTS["postgresql"], PRODUCTS["mssql"])
    )
    assert {label: there.get(label) for label in here} == here
    assert {label.partition(".")[2] for label in there.keys() - here.keys()} <= ROW_TYPES.keys()


def test_both_engines_have_the_same_statements() -> None:
    for file in ("ring", "doctor"):
        names = {engine: sql.statements(engine, file).keys() for engine in PRODUCTS}
        here, there = (names[e] - ONLY_HERE[e] for e in ("postgresql", "mssql"))
        assert here <= there, file
        assert there - here <= ROW_TYPES.keys(), file


def test_what_sql_server_alone_is_asked_fills_its_row_type() -> None:
    product = PRODUCTS["mssql"]
    (variant,) = (one for one in DEFAULTS if one.design.name == "broker")
    found = dict(asked(product, variant.queue("s", "q", "mssql")))
    for name, row_type in ROW_TYPES.items():
        assert found[f"doctor.{name}"] == [field.name for field in dataclasses.fields(row_type)]


def test_columns_are_read_from_the_last_list() -> None:
    assert columns("WITH a AS (SELECT 1 AS x) SELECT a.x, max(a.y) AS [y] FROM a") == ["x", "y"]
    assert columns("DECLARE @a int; SELECT @a = 1; SELECT @a AS a, 2 AS b;") == ["a", "b"]
    assert columns("INSERT INTO t (a) OUTPUT inserted.a AS slot SELECT 1 AS b") == ["slot"]
    assert columns("UPDATE t SET a = 1 OUTPUT b.c AS c INTO @d (c); SELECT 2 AS e;") == ["e"]
    assert columns("INSERT INTO t SELECT 1 RETURNING slot AS slot;") == ["slot"]
