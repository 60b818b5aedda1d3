"""Rendered names and values, as a server reads them."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from hypothesis import given
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


TEMPLATE = statement(
    """SELECT {usage} AS value -- of '{queue}' and "{queue}" :nothing
    /* :nothing '{queue}' */"""
)
USAGES = {
    "a literal": "CAST('{queue}' AS text)",
    "an identifier": """(SELECT CAST(k.key AS text) FROM (SELECT 1 AS "{queue}") AS named,
        jsonb_object_keys(to_jsonb(named)) AS k (key))""",
    "an identifier in a literal": """array_to_string(parse_ident('"{queue}"'), '.')""",
    "a bound value": "CAST(:word AS text)",
}


def round_trip(database: Database, usage: str, name: str) -> list[str]:
    """The name after a round trip to the server, by a query and by a script."""
    template = TEMPLATE.template.replace("{usage}", USAGES[usage])
    scope = sql.Scope({"queue": name})
    found = []
    with database.transaction("ask") as connection:
        values = {"word": name} if usage == "a bound value" else {}
        rows = sql.rows(connection, _Value, statement(template), scope, **values)
        found += [row.value for row in rows]
        if not values:
            text = sql.script(statement(template), connection.dialect, scope)
            found += connection.exec_driver_sql(
                text, execution_options={"no_parameters": True}
            ).scalars()
    return found


@pytest.mark.parametrize("usage", USAGES)
@given(name=NAMES | st.sampled_from(ODD))
def test_every_name_survives_a_round_trip(database: Database, usage: str, name: str) -> None:
    assert set(round_trip(database, usage, name)) == {name}


@given(first=NAMES, second=NAMES)
def test_a_script_with_function_bodies_runs_whatever_its_names_contain(
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
        sql.run(connection, made, scope)
        query = statement('SELECT t.value AS value FROM "{schema}" AS t')
        row = sql.row(connection, _Value, query, scope)
        connection.rollback()
    assert row.value == second + first


def test_a_column_that_differs_from_the_row_type_fails_even_without_rows(
    database: Database,
) -> None:
    with pytest.raises(TypeError, match="other"), database.transaction("ask") as connection:
        sql.rows(connection, _Other, statement("SELECT 'x' AS value WHERE false"))


def test_a_single_column_needs_no_row_type(database: Database) -> None:
    one = statement("SELECT CAST('{queue}' AS text) WHERE :times > 0")
    scope = sql.Scope({"queue": "orders"})
    two = statement("SELECT 1 AS a, 2 AS b WHERE false")
    with database.transaction("ask") as connection:
        assert sql.value(connection, str, one, scope, times=1) == "orders"
        assert sql.values(connection, str, one, scope, times=0) == []
        with pytest.raises(ValueError, match="not enough"):
            sql.value(connection, str, one, scope, times=0)
        with pytest.raises(TypeError, match=r"made.up returned the columns \('a', 'b'\)"):
            sql.values(connection, int, two)


def test_a_time_without_a_zone_is_utc(database: Database) -> None:
    with database.transaction("ask") as connection:
        moment = statement("SELECT CAST('2026-03-29 01:00:00' AS timestamp)")
        assert sql.value(connection, datetime, moment) == datetime(2026, 3, 29, 1, tzinfo=UTC)


def test_the_connection_decides_which_engine_s_statement_is_used(database: Database) -> None:
    with database.transaction("ask") as connection:
        assert sql.has(connection, "catalog.exists")
        assert sql.has(connection, "partitions.default_partition")
        assert not sql.has(connection, "catalog.nothing")
        assert not sql.has(connection, "broker.tables")
        with pytest.raises(KeyError):
            sql.value(connection, int, "broker.tables")


def test_text_that_is_not_unicode_is_a_usage_error(database: Database) -> None:
    with pytest.raises(UsageError, match="Unicode"), database.transaction("ask") as connection:
        sql.rows(connection, _Value, statement("SELECT :word AS value"), word="\udcff")


def test_a_union_runs_parts_with_different_names(database: Database) -> None:
    one = statement("SELECT CAST('{queue}' AS text) AS value -- the name")
    names = [*ODD, "plain"]
    with database.transaction("ask") as connection:
        scopes = [sql.Scope({"queue": name}) for name in names]
        parts = [sql.part(one, connection.dialect, scope) for scope in scopes]
        values = sql.union(connection, _Value, parts)
        assert sorted(row.value for row in values) == sorted(names)
