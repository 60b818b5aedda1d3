"""Statements as they are shown: recognizable, and without anything that may be a payload."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from console.monitor.statement_text import LONGEST, masked

KNOWN = {"public", "orders", "orders_push", 'odd ] " name'}
PAYLOADS = st.text(
    st.sampled_from("'\"\\$[]{}()/*-;: \n?")
    | st.characters(codec="utf-8", exclude_characters="\0"),
    max_size=30,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("SELECT 1", "SELECT ?"),
        (
            '/* dbq common.pop_many */ SELECT *\n  FROM "public"."orders_push"(10) AS p',
            '/* dbq common.pop_many */ SELECT * FROM "public"."orders_push"(?) AS p',
        ),
        ("select a, b from t where c = $1 and d=@P2", "select a, b from t where c = ? and d=@P2"),
        ("SELECT '', 'it''s', E'x', N'y', 1.5e3, 0xFF", "SELECT ?, ?, ?, ?, ?, ?"),
        ("SELECT $$a'b$$, $x$ $y$ $X$ $x$, a$b", "SELECT ?, ?, a$b"),
        ('SELECT "a payload", "orders"', 'SELECT "?", "orders"'),
        ("SELECT [a payload], [orders]", "SELECT [?], [orders]"),
        ("SELECT 1 -- it's\n, 2 /* a /* b */ ' */, 3", "SELECT ? , ? , ?"),
        ("/* it's mine */ SELECT 1", "SELECT ?"),
        ("(@P1 nvarchar(4000),@P2 decimal(10,2))UPDATE t SET a=@P1", "UPDATE t SET a=@P1"),
        ("(SELECT 1) UNION SELECT 2", "(SELECT ?) UNION SELECT ?"),
        (
            "autovacuum: VACUUM public.orders (to prevent wraparound)",
            "autovacuum: VACUUM public.orders (to prevent wraparound)",
        ),
        ("", ""),
    ],
)
def test_a_statement_keeps_its_shape(text: str, shown: str) -> None:
    assert masked(text, KNOWN) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        # Truncated by the server.
        ("INSERT INTO t VALUES ('unfinished", "INSERT INTO t VALUES (…"),
        ("SELECT $x$ unfinished $X$", "SELECT …"),
        ("SELECT 1 /* unfinished", "SELECT ?"),
        # Whether a backslash escapes the quote after it is a setting.
        (r"SELECT 'a\' , secret, '", "SELECT …"),
        ("SELECT ARRAY['a']", "SELECT ARRAY…"),
        ("SELECT [it's]", "SELECT …"),
        # Bare words that are values.
        ("orders_push hello", "orders_push…"),
        ("EXEC dbo.orders_push hello, world", "EXEC dbo.orders_push…"),
        ("EXEC @r = [public].[orders_push] @payload = N'x'", "EXEC @r = [public].[orders_push]…"),
        ("EXECUTE plan('x')", "EXECUTE plan…"),
        ("{call orders_push('x')}", "…"),
    ],
)
def test_a_statement_is_cut_where_its_syntax_is_uncertain(text: str, shown: str) -> None:
    assert masked(text, KNOWN) == shown


def in_postgresql(payload: str) -> list[str]:
    doubled = payload.replace("'", "''")
    escaped = payload.replace("\\", "\\\\").replace("'", "\\'")
    return [f"'{doubled}'", f"E'{escaped}'", f"$secret${payload}$secret$"]


def in_t_sql(payload: str) -> list[str]:
    doubled, quoted = payload.replace("'", "''"), payload.replace('"', '""')
    return [f"N'{doubled}'", f'"{quoted}"']  # QUOTED_IDENTIFIER OFF


@given(
    PAYLOADS, PAYLOADS, st.sampled_from(["SELECT public.orders_push({})", "EXEC orders_push {}"])
)
@example("', 'SECRET", "", "SELECT f({})")
@example("\\", "', SECRET, '", "SELECT f({})")
def test_a_payload_is_never_shown(one: str, two: str, call: str) -> None:
    secret = f"{one}SECRET{two}"
    for literals in (in_postgresql(secret), in_t_sql(secret)):
        for literal in literals:
            for text in (call.format(literal), call.format(f"{literal}, {literal}")):
                for length in (len(text), len(text) - 1, len(text) // 2):
                    assert "SECRET" not in masked(text[:length], KNOWN), text[:length]


@given(st.text())
def test_any_text_becomes_one_short_line(text: str) -> None:
    shown = masked(text, KNOWN)
    assert len(shown) <= LONGEST
    assert "\n" not in shown


def test_a_long_statement_is_cut() -> None:
    shown = masked("SELECT " + ", ".join(["column_name"] * 100))
    assert (len(shown), shown[-1]) == (LONGEST, "…")
