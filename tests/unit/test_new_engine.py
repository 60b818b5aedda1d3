"""An engine is added as console/README.md says: a Product, a place in the list, a folder of SQL.

As far as that can be seen without a server: SQLite has no functions that a queue could have.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import URL, Connection, Engine
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.exc import DBAPIError

from console import engines
from console.designs import DESIGNS
from console.engines import PRODUCTS, Capabilities, Product, Timeouts, open_database
from console.errors import ConsoleError, UsageError
from console.sql import templates
from tests.cli.calls import call

_QUERIES = {
    "fifo": """-- name: tables
-- script: the queue's table
CREATE TABLE "{schema}"."{queue}" (id INTEGER PRIMARY KEY, payload "{payload_type}" NOT NULL);
-- name: functions
-- script: none here
-- name: status
-- one row
SELECT 1
""",
    "common": """-- name: archive
-- script: the archive
CREATE TABLE "{schema}"."{queue}_archive" (id INTEGER);
""",
    "roles": """-- name: queue
-- script: none here
""",
    "catalog": """-- name: lock
-- script: none here
-- name: bootstrap
-- script: the catalog
CREATE TABLE IF NOT EXISTS dbq_queue (name TEXT, design TEXT);
-- name: record
-- script: the queue's line
INSERT INTO dbq_queue VALUES ('{queue}', '{design}');
""",
}


class SQLite:
    """As much of an engine as has no server."""

    name = "sqlite"
    title = "SQLite"
    default_schema = "main"
    name_limit = 20
    name_unit = "characters"
    payload_types: Mapping[str, str] = {"text": "text", "json": "text", "bytes": "blob"}
    id_types: Mapping[str, str] = {"bigint": "integer", "uuid": "text"}
    protocol = "odbc"
    cleaner = "vacuum"
    keeps_definitions = True
    key_by_hand = ""
    sql_lexer = code_lexer = "sql"
    read_only_options: Mapping[str, bool] = {}
    dialect: Dialect = sqlite.dialect()

    def name_length(self, name: str) -> int:
        return len(name)

    def as_script(self, head: str, pieces: Sequence[str]) -> str:
        return "\n".join((head, "BEGIN;", *pieces, "COMMIT;\n"))

    def array(self, values: Sequence[str | bytes]) -> object:
        return list(values)

    def label(self, url: URL) -> str:
        return url.database or "memory"

    def create_engine(self, url: URL, timeouts: Timeouts, application_name: str) -> Engine:
        return sqlalchemy.create_engine(
            url,
            connect_args={"timeout": timeouts.lock_seconds},
            logging_name=application_name,
        )

    def capabilities(self, connection: Connection) -> Capabilities:
        raise NotImplementedError

    def translate(self, error: DBAPIError, doing: str) -> ConsoleError:
        return ConsoleError(f"Could not {doing}.", why=str(error.orig))

    def wait_for_notification(self, connection: Connection, seconds: float) -> None:
        raise NotImplementedError

    def permission_warnings(self, connection: Connection) -> AbstractContextManager[list[str]]:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Product:
    """The engine, with one design."""
    added: Product = SQLite()
    folder = tmp_path / added.name
    folder.mkdir()
    for name, text in _QUERIES.items():
        (folder / f"{name}.sql").write_text(text)
    ours = templates.queries_folder()
    monkeypatch.setattr(templates, "queries_folder", lambda: tmp_path)
    monkeypatch.setitem(PRODUCTS, added.name, added)
    fifo = DESIGNS["fifo"]
    monkeypatch.setitem(DESIGNS, "fifo", replace(fifo, engines=(*fifo.engines, added.name)))
    assert not (ours / added.name).is_dir()
    return added


def test_an_engine_is_known_wherever_one_is_named() -> None:
    listed = {one["design"]: one for one in call("designs", "--json").json["designs"]}
    assert listed["fifo"]["engines"] == ["postgresql", "mssql", "sqlite"]
    assert "order" in {one["option"] for one in listed["fifo"]["options"]["sqlite"]}
    assert "notify" not in {one["option"] for one in listed["fifo"]["options"]["sqlite"]}
    unknown = call("install", "fifo", "q", "--print", "--engine", "oracle")
    assert (unknown.status, "mssql, postgresql, sqlite" in unknown.err) == (2, True)
    lacking = call("install", "ring", "q", "--print", "--engine", "sqlite")
    assert (lacking.status, "sqlite has no design 'ring'" in lacking.err) == (2, True)


def test_its_scripts_are_its_own() -> None:
    answer = call("install", "fifo", 'a "b"', "--print", "--engine", "sqlite")
    assert answer.status == 0, answer
    assert 'CREATE TABLE "main"."a ""b""" (id INTEGER' in answer.text
    assert """VALUES ('a "b"', 'fifo')""" in answer.text
    assert 'payload "text"' in answer.text
    long = call("install", "fifo", "x" * 13, "--print", "--engine", "sqlite")
    assert (long.status, "at most 12" in long.err) == (2, True)


def test_its_urls_open_its_databases_and_its_errors_are_translated() -> None:
    database = open_database("sqlite:///:memory:")
    assert (database.product.title, database.label) == ("SQLite", ":memory:")
    with database.autocommit("look") as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar_one() == 1
    with (
        pytest.raises(ConsoleError, match="Could not look") as failed,
        database.autocommit("look") as connection,
    ):
        connection.exec_driver_sql("SELEC 1")
    assert "SELEC" in failed.value.why
    database.close()
    with pytest.raises(UsageError, match="unknown engine"):
        engines.parse_url("oracle://host/db")
