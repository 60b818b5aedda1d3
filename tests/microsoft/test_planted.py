"""Planted mistakes, each in a procedure of a real queue: which tools find which."""

from collections.abc import Mapping

import pytest

from tests.contract.variants import DEFAULTS, on
from tests.microsoft.texts import printed
from tests.microsoft.tools import Tools, icu

SCRIPTDOM, STUDIO, TREES, BINDER = "ScriptDom", "Management Studio", "trees.py", "DacFx"
BOTH = {SCRIPTDOM, STUDIO}

MISTAKES: Mapping[str, tuple[set[str], str]] = {
    "an IF without its END": (BOTH, "IF 1 = 1 BEGIN SELECT 1 AS one"),
    "KILL with a variable": (BOTH, "DECLARE @n int = 51; KILL @n"),
    "a table that does not exist": ({BINDER}, "SELECT m.id FROM [sales].[order] AS m"),
    "a column that does not exist": ({BINDER}, "SELECT m.ident FROM [sales].[orders] AS m"),
    "an unknown column of a system view": (
        {BINDER},
        "SELECT s.logon_time FROM sys.dm_exec_sessions AS s",
    ),
    "OUTPUT of an unknown column": ({BINDER}, "DELETE FROM [sales].[orders] OUTPUT deleted.ident"),
    "an unknown column of a CTE": (
        {BINDER},
        "WITH c AS (SELECT m.id AS a FROM [sales].[orders] AS m) SELECT c.b FROM c",
    ),
    "a hinted index that does not exist": (
        {BINDER},
        "SELECT m.id FROM [sales].[orders] AS m WITH (INDEX (orders_by_age))",
    ),
    "an undeclared variable": ({BINDER}, "SELECT m.id FROM [sales].[orders] AS m WHERE m.id = @x"),
    "a parameter that does not exist": ({BINDER}, "EXEC [sales].[orders_push] @body = N''"),
    "hints that exclude each other": (
        {TREES},
        "SELECT m.id FROM [sales].[orders] AS m WITH (ROWLOCK, READUNCOMMITTED)",
    ),
    "READPAST where ranges are locked": (
        {TREES},
        "SELECT m.id FROM [sales].[orders] AS m WITH (READPAST, HOLDLOCK)",
    ),
    "an INSERT of a value too few": (
        {TREES},
        "DECLARE @t TABLE (a int, b int); INSERT INTO @t (a, b) SELECT 1",
    ),
    "OUTPUT INTO with a column too many": (
        {TREES},
        "DECLARE @t TABLE (a int); "
        "DELETE FROM [sales].[orders] OUTPUT deleted.id, deleted.payload INTO @t (a)",
    ),
    "NEXT VALUE FOR in a CASE": (
        {TREES},
        "DECLARE @n bigint = CASE WHEN 1 = 1 THEN NEXT VALUE FOR [sales].[s] END",
    ),
    "NEXT VALUE FOR in a subquery": (
        {TREES},
        "DECLARE @n bigint = (SELECT NEXT VALUE FOR [sales].[s])",
    ),
    "NEXT VALUE FOR in an ordered query": (
        {TREES},
        "SELECT NEXT VALUE FOR [sales].[s] AS n FROM [sales].[orders] AS m ORDER BY m.id",
    ),
    "an aggregate in WHERE": (
        {TREES},
        "SELECT m.id FROM [sales].[orders] AS m WHERE MAX(m.id) > 1",
    ),
    "a sql_variant compared": (
        {TREES},
        "IF DATABASEPROPERTYEX(DB_NAME(), N'Updateability') = N'READ_ONLY' SELECT 1 AS one",
    ),
    "ISJSON before OR, OPENJSON behind it": (
        {TREES},
        "DECLARE @p nvarchar(max); "
        "IF ISJSON(@p) = 0 OR (SELECT COUNT(*) FROM OPENJSON(@p)) <> 1 SELECT 1 AS one",
    ),
    "UNION of unequal sides": ({TREES}, "SELECT 1 AS a, 2 AS b UNION ALL SELECT 3"),
}
"""Mistake -> the tools that find it, and a statement that has it."""


def procedure(statement: str) -> str:
    return f"CREATE PROCEDURE [sales].[planted] AS\nBEGIN\n    {statement};\nEND;"


@pytest.fixture(scope="module")
def queue() -> list[tuple[str, str]]:
    """All that an installation of fifo creates, and a sequence."""
    (fifo,) = (variant for variant in on("mssql", DEFAULTS) if variant.design.name == "fifo")
    texts = [(text.name, text.text) for text in printed(fifo)]
    return [*texts, ("a sequence", "CREATE SEQUENCE [sales].[s] AS bigint")]


@pytest.fixture(scope="module")
def tools_that_found(microsoft: Tools) -> dict[str, set[str]]:
    """Mistake -> the tools that find it. Each tool reads all of them at once."""
    texts = [procedure(statement) for _, statement in MISTAKES.values()]
    found: dict[str, set[str]] = {}
    for mistake, read, errors in zip(
        MISTAKES, microsoft.trees(texts), microsoft.sqlparser(texts), strict=True
    ):
        by_tool = {SCRIPTDOM: read.errors, STUDIO: errors, TREES: read.mistakes}
        found[mistake] = {tool for tool, complaints in by_tool.items() if complaints}
    return found


@pytest.mark.long
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found_by_the_expected_tools(
    microsoft: Tools,
    queue: list[tuple[str, str]],
    tools_that_found: dict[str, set[str]],
    mistake: str,
) -> None:
    """By the binder too, if there is ICU."""
    expected, statement = MISTAKES[mistake]
    assert tools_that_found[mistake] == expected - {BINDER}
    if icu():
        binder = microsoft.binder([*queue, ("planted", procedure(statement))])
        assert any("planted" in one for one in binder) == (BINDER in expected)


@pytest.mark.long
def test_the_queue_without_planted_mistakes_has_none(
    microsoft: Tools, queue: list[tuple[str, str]]
) -> None:
    read = microsoft.trees([text for _, text in queue])
    assert not any(one.errors or one.mistakes for one in read)
    if icu():
        assert not [one for one in microsoft.binder(queue) if "planted" in one]
