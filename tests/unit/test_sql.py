"""Rendering: names of any kind, values, conditions; and rows with their type's columns."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import mssql, postgresql

from console import sql
from console.catalog import installed_queue
from console.designs import DESIGNS, designs_on, presets
from console.engines import PRODUCTS
from console.sql import templates
from tests.tools.statements import CONDITIONS as MOVES
from tests.tools.statements import CONDITIONS_OF_SCANS as CONDITIONS

DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
BRACKETS = mssql.dialect()  # type: ignore[no-untyped-call]

NAMES = st.text(
    st.sampled_from("ab\"'[]{}$dbqueue:% ;-\\/.\n?é🂡")
    | st.characters(codec="utf-8", exclude_characters="\0"),
    min_size=1,
    max_size=20,
)


def statement(template: str) -> sql.Statement:
    return sql.Statement("postgresql", "made", "up", "one row", template)


def rendered(template: str, dialect: Any = DIALECT, **values: str) -> str:
    return sql.script(statement(template), dialect, sql.Scope(values))


def unquoted(quoted: str, close: str = '"') -> str:
    return quoted[1:-1].replace(close * 2, close)


@given(NAMES)
def test_any_name_is_one_identifier_in_brackets(name: str) -> None:
    text = rendered("[{queue}_push]", BRACKETS, queue=name)
    assert text[0] == "["
    assert unquoted(text, "]") == f"{name}_push"


def test_placeholders_in_names_and_comments_are_not_replaced() -> None:
    assert rendered('"{queue}" -- {queue}', queue="{schema}") == '"{schema}" -- {queue}'


@pytest.mark.parametrize(
    ("options", "roles", "expected"),
    [
        ({"a": "1", "b": "1"}, {}, "x both y"),
        ({"a": "1", "b": "2"}, {}, "x y"),
        ({"a": "2"}, {}, "x two or three y"),
        ({"a": "3"}, {"due_at": "d"}, "x two or three due y"),
        ({}, {"due_at": "d"}, "x due y"),
        ({}, {"id": "i"}, "x no id? y"),
    ],
)
def test_lines_are_kept_where_their_conditions_hold(
    options: dict[str, str], roles: dict[str, str], expected: str
) -> None:
    template = """x
-- when a=1
-- when b=1
both
-- end
-- end
  -- when a=2|3
two or three
  -- end
-- when role due_at
due
-- end
-- when no role due_at
-- when role id
no id?
-- end
-- end
y"""
    text = sql.script(statement(template), DIALECT, sql.Scope({}, options, roles))
    assert text.split() == expected.split()


@pytest.mark.parametrize(
    ("options", "roles", "expected"),
    [
        ({"a": "1"}, {}, "(\n    x,\n    y\n)"),
        ({"a": "2"}, {"due_at": "d"}, "(\n    y\n    d -- why\n)"),
        ({"a": "3"}, {"id": "i"}, "(\n    y\n    z\n)"),
    ],
)
def test_a_condition_at_the_end_of_a_line_applies_to_that_line(
    options: dict[str, str], roles: dict[str, str], expected: str
) -> None:
    template = """(
    x, -- when a=1
    y
    d -- why -- when role due_at
    -- when a=3
    z -- when role id
    -- end
)"""
    text = sql.script(statement(template), DIALECT, sql.Scope({}, options, roles))
    assert text == expected


@pytest.mark.parametrize("partitions", [0, 1, 3])
def test_lines_are_repeated_for_each_partition(partitions: int) -> None:
    template = """x
-- each partition
"{queue}_{partition}" {partition}
-- when a=1
never
-- end
-- end
y"""
    scope = sql.Scope({"queue": "q", "partitions": str(partitions)})
    each = [f'"q_{number}" {number}' for number in range(partitions)]
    assert sql.script(statement(template), DIALECT, scope).split("\n") == ["x", *each, "y"]


def test_lines_are_repeated_for_each_subscriber() -> None:
    template = """x
-- each subscriber
"{queue}_pop_seq_{subscriber_number}" '{subscriber}'
-- end
y"""
    for subscribers, each in (
        ("", []),
        ("a:1,b:3", ["\"q_pop_seq_1\" 'a'", "\"q_pop_seq_3\" 'b'"]),
    ):
        scope = sql.Scope({"queue": "q", "subscribers": subscribers})
        assert sql.script(statement(template), DIALECT, scope).split("\n") == ["x", *each, "y"]


@pytest.mark.parametrize(
    ("partitions", "option", "kept"),
    [
        ("0", "1", ["one", "none"]),
        ("0", "2", ["two", "none"]),
        ("2", "2", ["two", "part", "0", "part", "1"]),
    ],
)
def test_else_lines_are_kept_where_a_condition_does_not_hold(
    partitions: str, option: str, kept: list[str]
) -> None:
    template = """-- when a=1
one
-- else
-- when b=1
never
-- else
two
-- end
-- end
-- each partition
part {partition}
-- else
none
-- end"""
    scope = sql.Scope({"partitions": partitions}, {"a": option})
    assert sql.script(statement(template), DIALECT, scope).split() == kept


@pytest.mark.parametrize(
    ("template", "error", "why"),
    [
        ("'{size}'", KeyError, r"made.up has {size}.*`-- when role size`"),
        ("x -- when a = 1", ValueError, "cannot be read: x -- when a = 1"),
        ("-- when a=1\nx", ValueError, "has no '-- end'"),
        *(
            (f"{line}\nx\n-- end", ValueError, "has no '-- when'")
            for line in ("-- end", "-- else", "-- when a = 1", "-- when role", "-- when a=1 b=2")
        ),
    ],
)
def test_a_template_with_a_mistake_fails_with_its_words(
    template: str, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        rendered(template, queue="q")


FILES = {
    "fifo": """-- define: is_ready
-- why it is so
true

-- define: is_error
m."{error}" IS NOT NULL -- when role error

-- define: state
CASE
    WHEN {is_ready} THEN 'it''s {is_ready}'
END

-- name: own
-- one row
SELECT 1;
""",
    "stack": "-- like: fifo\n\n-- define: is_ready\nm.a = '{size}' -- why\n",
    "heap": "-- like: stack\n",
    "monitor": """-- define: state
'any'

-- name: counted
-- one row
SELECT
    {state} AS state,
    {is_error} AS error, -- when defined is_error
    -- when not defined is_error
    NULL AS error, -- {is_error}
    -- end
    "{is_ready}"
FROM t WHERE {is_ready};

-- name: claims
-- one row
SELECT
    -- when role id
    {is_error},
    -- end
    {is_claimed};
""",
}
"""A few designs that derive from each other, and what they share."""


@pytest.fixture
def query_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "postgresql").mkdir()
    for file, text in FILES.items():
        (tmp_path / "postgresql" / f"{file}.sql").write_text(text)
    monkeypatch.setattr(templates, "queries_folder", lambda: tmp_path)
    caches = (
        templates._file,
        templates.lineage,
        templates._shared,
        templates._defined,
        templates._chosen,
    )
    for cache in caches:
        cache.cache_clear()
    yield tmp_path
    for cache in caches:
        cache.cache_clear()


def counted(design: str, **roles: str) -> list[str]:
    scope = sql.Scope({"design": design, "size": "5", "is_ready": "q"}, {}, roles)
    return sql.script(f"{design}.counted", DIALECT, scope).split("\n")


def test_a_definition_is_replaced_by_the_design_s_text(query_files: Path) -> None:
    assert counted("fifo", error="e") == [
        "SELECT",
        "    CASE",
        "        WHEN true THEN 'it''s q'",
        "    END AS state,",
        '    m."e" IS NOT NULL AS error,',
        '    "q"',
        "FROM t WHERE true;",
    ]


def test_a_definition_that_becomes_empty_is_undefined(query_files: Path) -> None:
    assert "    NULL AS error, -- {is_error}" in counted("fifo")


def test_a_design_inherits_from_the_design_it_is_like(query_files: Path) -> None:
    """Statements, definitions, and thereby the shared statements."""
    for design in ("stack", "heap"):
        assert sql.statement("postgresql", f"{design}.own").label == "fifo.own"
        assert counted(design)[-1] == "FROM t WHERE m.a = '5' -- why;"
    assert set(templates.statements_of("postgresql", "heap")) == {"own", "counted"}


def test_a_design_has_the_shared_statements_whose_definitions_it_has(query_files: Path) -> None:
    assert sql.statement("postgresql", "fifo.counted").label == "monitor.counted"
    with pytest.raises(KeyError):
        sql.statement("postgresql", "fifo.claims")
    (query_files / "postgresql" / "claim.sql").write_text("-- define: is_claimed\nx\n")
    assert sql.statement("postgresql", "claim.claims").label == "monitor.claims"


def test_a_line_that_becomes_empty_is_dropped(query_files: Path) -> None:
    (query_files / "postgresql" / "naive.sql").write_text(
        "-- name: a\n-- one row\nx\n  {is_error}\ny\n"
    )
    scope = sql.Scope({"design": "fifo"})
    assert sql.script("naive.a", DIALECT, scope) == "x\ny"


def test_an_undefined_definition_fails_with_its_name(query_files: Path) -> None:
    with pytest.raises(KeyError, match="is_claimed"):
        sql.script("monitor.claims", DIALECT, sql.Scope({"design": "fifo"}))


@dataclass(frozen=True)
class _Row:
    id: int
    name: str


def test_a_column_that_differs_from_the_row_type_fails_with_its_name() -> None:
    assert sql.rows_of(["id", "name"], [(1, "a")], _Row, "x.y") == [_Row(1, "a")]
    with pytest.raises(TypeError, match="title"):
        sql.rows_of(["id", "title"], [(1, "a")], _Row, "x.y")


@pytest.mark.parametrize("engine", PRODUCTS)
def test_every_condition_tests_an_existing_option_and_value(engine: str) -> None:
    """A misspelt option would silently omit its lines."""
    product = PRODUCTS[engine]
    flags = ("installed", "limited", "finishes", "counters", "keeps_history", "subscribed")
    known: dict[str, set[str]] = {name: {"yes", "no"} for name in flags}
    for option in (option for design in DESIGNS.values() for option in design.options):
        known[option.name] = set(option.choices)
    known |= {name: set(values) for name, values in {**CONDITIONS, **MOVES}.items()}
    known |= {"of": {"one", "all"}}
    for design in designs_on(engine).values():
        scope = installed_queue("s", "q", design, design.complete_options({})).scope(product)
        for file in (design.name, "common", "actions"):
            for statement in templates.statements(engine, file).values():
                for name, values in re.findall(r"-- when (\w+)=([\w|]+)", statement.template):
                    assert set(values.split("|")) <= known[name], (statement.label, name)
                    testable = {*scope.options, *CONDITIONS, "until"}  # a scan of some claimants
                    assert name in testable or file != design.name, (statement.label, name)


@pytest.mark.parametrize("engine", PRODUCTS)
def test_no_shared_statement_depends_on_the_design_s_name(engine: str) -> None:
    """What differs between designs is in their files, under `-- define:`."""
    for path in (Path(str(templates.queries_folder())) / engine).rglob("*.sql"):
        assert "-- when design=" not in path.read_text(), path.name


def test_a_design_in_several_files_names_them_all_and_each_can_be_read_by_itself() -> None:
    for engine in PRODUCTS:
        texts = templates.texts(engine, "ring")
        folder = templates.queries_folder() / engine / "ring"
        assert set(texts) == {f"ring/{path.name}" for path in folder.iterdir()}
        assert all(text.count("\n") <= 900 for text in texts.values())


def test_query_files_are_those_of_designs_presets_and_shared_ones() -> None:
    folder = templates.queries_folder()
    assert {path.name for path in folder.iterdir()} == {*PRODUCTS, "README.md"}
    for engine in PRODUCTS:
        files = {*templates.files(engine)}
        shared = {"actions", "activity", "bench", "catalog", "common", "maintenance"}
        shared |= {
            "doctor",
            "pipeline",
            "prove",
            "replay",
            "roles",
            "server",
            "sessions",
            "upgrade",
        }
        shared |= {"monitor", "notify", "pause", "preset"}
        shared |= {"copy", "notify_queue", "own", "partitions"} if engine == "postgresql" else set()
        assert files == set(designs_on(engine)) | set(presets(engine)) | shared


def test_duplicate_names_missing_comments_and_missing_files_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "twice.sql").write_text("-- name: a\n-- x\nS\n-- name: a\n-- x\nS\n")
    (tmp_path / "made" / "bare.sql").write_text("-- name: a\nSELECT 1\n")
    monkeypatch.setattr(templates, "queries_folder", lambda: tmp_path)
    with pytest.raises(ValueError, match="twice"):
        templates.statements("made", "twice")
    with pytest.raises(ValueError, match="comment"):
        templates.statements("made", "bare")
    with pytest.raises(KeyError, match="absent"):
        templates.statements("made", "absent")
