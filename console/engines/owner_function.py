"""Runs a statement of PostgreSQL as somebody else, who cannot get back the rights of this login.

After SET ROLE a trigger can say RESET ROLE. In a function that is SECURITY DEFINER the server
refuses that, so the statement is the body of such a function of theirs, for as long as it runs.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import adapt, generators, sql
from psycopg.pq import Escaping, ExecStatus
from sqlalchemy import Connection, event

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

_CREATE = sql.SQL("""
CREATE FUNCTION {name}() RETURNS SETOF record LANGUAGE plpgsql SECURITY DEFINER AS {body};
ALTER FUNCTION {name} OWNER TO {owner};
""")
_BODY = b"BEGIN RETURN QUERY %b; SET CONSTRAINTS ALL IMMEDIATE; END"
_CALL = sql.SQL("SELECT * FROM {name}() AS result ({columns})")
_DROP = sql.SQL("DROP FUNCTION {name}()")


class _Merging(psycopg.ClientCursor[Any]):
    def merged(self, statement: str, values: Any) -> bytes:
        """The statement with its values in it, in UTF-8; the driver's own mogrify decodes it."""
        self._tx = adapt.Transformer(self)
        return self._convert_query(statement.encode(), values).query


class _Bytes(sql.Composable):
    def as_bytes(self, context: Any = None) -> bytes:
        del context
        obj: bytes = self._obj
        return obj


@contextmanager
def run_as(connection: Connection, owner: str) -> Iterator[None]:
    """Each statement in it, and its deferred triggers, as `owner`; each has to return rows."""
    created: list[sql.Identifier] = []

    def as_function(
        _connection: Any, cursor: Any, statement: str, values: Any, *_: Any
    ) -> tuple[str, tuple[()]]:
        driver = cursor.connection
        text = _Merging(driver).merged(statement, values or None)
        name = sql.Identifier("pg_temp", f"dbq_{secrets.token_hex(8)}")
        columns = _columns(driver, text)
        body = Escaping(driver.pgconn).escape_literal(_BODY % text)
        # Bytes, put together without the driver's encoding: without one it takes ASCII only.
        create = _CREATE.format(name=name, body=_Bytes(body), owner=sql.Identifier(owner))
        with driver.cursor() as script:
            script.execute(create.as_bytes())
        created.append(name)
        return _CALL.format(name=name, columns=columns).as_string(), ()

    event.listen(connection, "before_cursor_execute", as_function, retval=True)
    try:
        yield
    finally:
        event.remove(connection, "before_cursor_execute", as_function)
    for name in created:
        connection.exec_driver_sql(_DROP.format(name=name).as_string())


def _columns(driver: psycopg.Connection[Any], statement: bytes) -> sql.Composed:
    """The names and types of what a statement returns, as the server says without running it."""
    connection = driver.pgconn
    connection.send_prepare(b"", statement)
    _answer(driver)
    connection.send_describe_prepared(b"")
    described = _answer(driver)
    return sql.SQL(", ").join(
        sql.SQL("{} {}").format(
            sql.Identifier((described.fname(place) or b"").decode()),
            sql.SQL(driver.adapters.types[described.ftype(place)].regtype),
        )
        for place in range(described.nfields)
    )


def _answer(driver: psycopg.Connection[Any]) -> PGresult:
    result: PGresult
    (result,) = driver.wait(generators.execute(driver.pgconn))
    if result.status != ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(result, encoding=driver.info.encoding)
    return result
