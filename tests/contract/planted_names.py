"""What somebody who may create in `public` could put there to be run by others: functions,
operators and types of the names that our SQL uses, whose arguments match better than the
catalog's."""

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import psycopg

from console.sql import templates

_TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|(?P<name>[a-z_][a-z_0-9]*|"[a-z_0-9]+")"""
    r"|(?P<operator>[-+*/<>=~!@#%^&|?]+)",
    re.DOTALL,
)
_TIME = "timestamp with time zone"
TYPES: tuple[str, ...] = (
    "text",
    "character varying",
    "name",
    "integer",
    "bigint",
    "numeric",
    "double precision",
)
TYPES += ("boolean", _TIME, "interval", "jsonb", "oid", "text[]", "bytea", "regclass", "uuid")
"""Types of our columns, values and literals, as the catalog writes them."""
_VARIED = ("text", _TIME, "boolean")
"""Of four and more arguments of any type: those of which our calls have so many."""
_MOST = 300
"""Overloads of one signature."""
_ANY = {'"any"', "anyelement", "anyarray", "anynonarray", "anycompatible", "anycompatiblearray"}
_ANY |= {"anyenum", "anyrange", "anymultirange", "anycompatiblenonarray"}

REPORTING = """CREATE FUNCTION public.ran(what text) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog AS $$ BEGIN
    IF current_setting('is_superuser') = 'on' THEN
        EXECUTE format('COPY (SELECT %L) TO PROGRAM %L', what, 'cat >> {report}');
    END IF;
    RETURN true;
END $$;"""
"""A superuser who runs it adds a line to the file `report`, in a read-only transaction too."""


def words() -> tuple[set[str], set[str]]:
    """The names and the operators in all SQL for PostgreSQL, function bodies included."""
    names, operators = {"int8", "jsonb", "bytea", "uuid"}, set()
    for path in (Path(str(templates.queries_folder())) / "postgresql").rglob("*.sql"):
        for token in _TOKEN.finditer(path.read_text()):
            if token["name"]:
                names.add(token["name"].strip('"'))
            if token["operator"]:
                operators.add(token["operator"])
    return names, operators


def plant(connection: psycopg.Connection, report: Path) -> set[str]:
    """Plant all of them; the names of the planted. Whichever runs calls `ran`."""
    names, operators = words()
    _run(connection, REPORTING.format(report=report))
    functions = _functions(connection, names)
    for name, signatures in functions.items():
        _run(connection, "".join(_function(name, of, to) for of, to in signatures.items()))
    known = {name for (name,) in connection.execute("SELECT DISTINCT oprname FROM pg_operator")}
    for name in sorted(operators & known):
        _run(connection, "".join(_operator(name, pair) for pair in product(TYPES, repeat=2)))
    types = _types(connection, names)
    _run(connection, "".join(_domain(name) for name in types))
    return {*functions, *types, *(operators & known)}


def _run(connection: psycopg.Connection, script: str) -> None:
    connection.execute(script.encode())


def _function(name: str, arguments: tuple[str, ...], result: str) -> str:
    what = f"{name}({', '.join(arguments)})"
    value = "" if result.startswith("SETOF") else " NULL"
    return (
        f'CREATE FUNCTION public."{name}"({", ".join(arguments)}) RETURNS {result} '
        f"LANGUAGE plpgsql AS $$ BEGIN PERFORM public.ran($w${what}$w$); RETURN{value}; END $$;"
    )


def _operator(name: str, pair: tuple[str, ...]) -> str:
    function = f"planted {name}"
    return _function(function, pair, "boolean") + (
        f"CREATE OPERATOR public.{name} (LEFTARG = {pair[0]}, RIGHTARG = {pair[1]}, "
        f'FUNCTION = public."{function}");'
    )


def _domain(name: str) -> str:
    return (
        f'CREATE DOMAIN public."{name}" AS pg_catalog."{name}" CHECK (public.ran(\'type {name}\'));'
    )


def _functions(
    connection: psycopg.Connection, names: set[str]
) -> dict[str, dict[tuple[str, ...], str]]:
    """Name -> arguments -> result."""
    found: dict[str, dict[tuple[str, ...], str]] = defaultdict(dict)
    rows = connection.execute(
        """SELECT p.proname, CASE WHEN p.proretset THEN 'SETOF ' ELSE '' END,
            p.prorettype::regtype::text, p.pronargdefaults, p.provariadic <> 0,
            ARRAY(SELECT t::regtype::text FROM unnest(p.proargtypes) AS t)
        FROM pg_proc AS p
        WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind IN ('f', 'a', 'w')
        AND p.proname = ANY(%s) AND NOT 'internal'::regtype = ANY(p.proargtypes)
        ORDER BY p.oid""",
        [list(names)],
    )
    for name, set_of, returned, defaults, variadic, types in rows:
        pseudo = returned in _ANY | {"record", "internal", "void"}
        for arguments in _signatures(types, variadic=variadic, least=len(types) - defaults):
            found[name].setdefault(arguments, f"{set_of}{'text' if pseudo else returned}")
    return found


def _signatures(types: list[str], *, variadic: bool, least: int) -> Iterable[tuple[str, ...]]:
    """Arguments that a call need not convert: every type for one of any type, and others than the
    catalog's own, into which it would convert them."""
    if variadic:
        for number in range(1, 6):
            each = TYPES if number <= 2 else _VARIED
            yield from ((*types[:-1], *rest) for rest in product(each, repeat=number))
        return
    for number in range(max(least, 0), len(types) + 1):
        yield from _some(types[:number])


def _some(types: list[str]) -> Iterator[tuple[str, ...]]:
    each = [TYPES if one in _ANY else tuple(dict.fromkeys((one, *TYPES))) for one in types]
    every = list(product(*each)) if len(types) <= 3 else [tuple(one[0] for one in each)]
    yield from random.Random(0).sample(every, min(_MOST, len(every)))


def _types(connection: psycopg.Connection, names: set[str]) -> list[str]:
    rows = connection.execute(
        """SELECT t.typname FROM pg_type AS t
        WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typname = ANY(%s)
        AND t.typtype = 'b' AND t.typcategory <> 'A'""",
        [list(names)],
    )
    return [name for (name,) in rows]
