"""An adopted table's key of a type that gives way to nvarchar, as which every text is sent."""

from typing import Any

import pytest

from console import sql
from console.actions.rows import Storage, scope
from console.catalog import Kind, Queue
from console.designs import DESIGNS
from console.engines import Database
from console.monitor.scan_query import MessageSource, query
from console.monitor.scans import ScanKey, ScanRequest, scans_of
from tests.unit.mssql_tools import Odbc

_COLUMNS = ("name", "type", "base_type", "computed", "required", "default_text", "table_name")


@pytest.mark.parametrize(
    ("type_", "base", "compared"),
    [
        ("varchar(50)", "varchar", "varchar(900)"),
        ("code", "varchar", "varchar(900)"),  # an alias
        ("nvarchar(50)", "nvarchar", "nvarchar(450)"),
        ("bigint", "bigint", "nvarchar(450)"),
    ],
)
def test_a_key_is_compared_in_its_own_type(
    odbc: Odbc, mssql: Database, type_: str, base: str, compared: str
) -> None:
    """Else its index is not used, and each batch locks the whole table; and a varchar's order,
    with which a scan continues, is not an nvarchar's."""
    key: tuple[Any, ...] = ("id", type_, base, False, True, "", "jobs")
    odbc.answer = lambda statement: [[_COLUMNS, key]] if "dbq catalog.columns" in statement else []
    roles = {"id": "id", "payload": "body"}
    queue = Queue("dbo", "jobs", DESIGNS["fifo"], {}, roles, kind=Kind.ADOPTED)
    with mssql.transaction("read the columns", read_only=True) as connection:
        source = MessageSource.of(connection, queue)
    (scan,) = scans_of(queue)
    request = ScanRequest(scan, read_limit=10, n=5, after=ScanKey(scan.name, "", "1", True))
    after = query(source, request, "matching").text
    assert ("CAST(:after_id AS varchar(900))" in after) == (base == "varchar")
    within = scope(source, Storage.TABLE, lock="yes", hashed="no")
    locked = sql.script("fifo.lock_rows", source.product.dialect, within)
    assert f"DECLARE @chosen TABLE (id {compared} NOT NULL);" in locked
