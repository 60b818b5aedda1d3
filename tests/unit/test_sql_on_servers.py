"""Rendered names and values, as a server reads them."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console import sql
from console.engines import Database, open_database
from console.errors import UsageError
from tests.servers import Server

NAMES = st.text(
    st.sampled_from("ab\"'[]{}$dbqueue:% ;-\\/.\n?é🂡")
    | st.characters(codec="utf-8", exclude_characters="\0"),
    min_size=1,
    max_size=15,
)
ODD = [
    ":a",
    "a::b",
    "\\:a",
    "\\\\:",
    "%s",
    "%(a)s",
    "%%",
    "{queue}",
    "$dbq$",
    "$dbq1$",
    "a -- b",
    "/*",
]


@dataclass(frozen=True)
class _Value:
    value: str


@dataclass(frozen=True)
class _Other:
    other: str


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[Database]:
    database = open_database(server.url)
    yield database
    database.close()


def statement(template: str) -> sql.Statement:
    return sql.Statement("postgresql", "made", "up", "one row", template)


TWO_WAYS = statement(
    """SELECT {way} AS value -- of '{queue}' and "{queue}" :nothing
    /* :nothing '{queue}' */"""
)
WAYS = {
    "a literal": "CAST('{queue}' AS text)",
    "an identifier": """(SELECT CAST(k.key AS text) FROM (SELECT 1 AS "{queue}") AS named,
        jsonb_object_keys(to_jsonb(named)) AS k (key))""",
    "an identifier in a literal": """array_to_string(parse_ident('"{queue}"'), '.')""",
    "a bound value": "CAST(:word AS text)",
}


def asked(database: Database, way: str, name: str) -> list[str]:
    """The name as a query and as a script hand it to the server and back."""
    template = TWO_WAYS.template.replace("{way}", WAYS[way])
    scope = sql.Scope({"queue": name})
    found = []
    with database.transaction("ask") as connection:
        values = {"word": name} if way == "a bound value" else {}
        rows = sql.fetch(connection, _Value, statement(template), scope, **values)
        found += [row.value for row in rows]
        if not values:
            text = sql.script(statement(template), connection.dialect, scope)
            found += connection.exec_driver_sql(
                text, execution_options={"no_parameters": True}
            ).scalars()
    return found


@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None, max_examples=40)
@given(name=NAMES | st.sampled_from(ODD))
def test_every_name_comes_back_as_it_went(database: Database, way: str, name: str) -> None:
    assert set(asked(database, way, name)) == {name}


@settings(deadline=None, max_examples=40)
@given(first=NAMES, second=NAMES)
def test_a_script_with_bodies_runs_whatever_stands_in_its_names(
    database: Database, first: str, second: str
) -> None:
    first, second = f"{first}$dbq$", f"$dbq1$ {second}"
    made = statement(
        """CREATE FUNCTION pg_temp."{queue}"() RETURNS text LANGUAGE plpgsql AS $dbq$
        DECLARE "{schema}" text := '{schema}';
        BEGIN RETURN "{schema}" || '{queue}'; END $dbq$;
        CREATE TEMPORARY TABLE "{schema}" ON COMMIT DROP AS SELECT pg_temp."{queue}"() AS value;"""
    )
    scope = sql.Scope({"queue": first, "schema": second})
    with database.transaction("make a function") as connection:
        if max(len(name.encode()) for name in (first, second)) > 60:
            return
        sql.run_script(connection, made, scope)
        asked_for = statement('SELECT t.value AS value FROM "{schema}" AS t')
        (row,) = sql.fetch(connection, _Value, asked_for, scope)
        connection.rollback()
    assert row.value == second + first


def test_a_column_that_drifted_fails_even_without_rows(database: Database) -> None:
    with (
        pytest.raises(TypeError, match="other"),
        database.transaction("ask") as connection,
    ):
        sql.fetch(connection, _Other, statement("SELECT 'x' AS value WHERE false"), sql.Scope())


def test_a_text_that_is_no_unicode_is_wrong_use(database: Database) -> None:
    with pytest.raises(UsageError, match="Unicode"), database.transaction("ask") as connection:
        sql.fetch(
            connection, _Value, statement("SELECT :word AS value"), sql.Scope(), word="\udcff"
        )


def test_a_union_runs_parts_with_names_of_their_own(database: Database) -> None:
    one = statement("SELECT CAST('{queue}' AS text) AS value -- the name")
    names = [*ODD, "plain"]
    with database.transaction("ask") as connection:
        scopes = [sql.Scope({"queue": name}) for name in names]
        parts = [sql.part(one, connection.dialect, scope) for scope in scopes]
        found = sql.fetch_union(connection, _Value, parts)
        assert sorted(row.value for row in found) == sorted(names)
