"""The session's locks, read as `activity.sessions` reads them, from rows as the view gives them."""

import json
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from console import sql
from console.engines.mssql import PRODUCT
from tests.faults.harness.model import finish
from tests.microsoft.server import Server
from tests.microsoft.texts import COMMENT, with_variables
from tests.microsoft.tools import Tools
from tests.microsoft.trees import Node
from tests.microsoft.values import FUNCTIONS, Values, column_of, inside


class Locks(Values):
    """Runs the statement's first query on a table of locks."""

    def __init__(self, locks: list[Mapping[str, Any]], advisory: list[int]) -> None:
        server = Server({"dm_tran_locks": ("n",), "partitions": ("hobt_id",)}, Random(0))
        server.fill("dm_tran_locks", *(dict(lock, n=n) for n, lock in enumerate(locks)))
        super().__init__(server.session())
        self._values = {"@relations": "[]", "@advisory_locks": json.dumps(advisory)}

    def inserted(self, insert: Node) -> list[dict[str, Any]]:
        query = insert["InsertSource"]["Select"]
        columns = [column_of(column) for column in insert["Columns"]]
        rows = finish(self._derived(query, {}, positions=True))
        return [dict(zip(columns, row.values(), strict=True)) for row in rows]


@pytest.mark.parametrize(
    "name", ["dbq sales.orders", "a name of more than 32 chars, cut here", "]:("]
)
def test_an_application_lock_whose_name_is_padded_is_read(microsoft: Tools, name: str) -> None:
    """The view pads it with blanks to 256 characters; it has anybody's locks, not only ours."""
    text = str(sql.query("activity.sessions", PRODUCT.dialect))
    tree = microsoft.tree(with_variables(COMMENT.sub("", text)))
    insert = next(n for n in inside(tree) if n["$type"] == "InsertStatement")
    beginning = name[:32]
    ours = int.from_bytes(FUNCTIONS["HASHBYTES"]("", beginning)[:8], signed=True)
    lock = {
        "request_session_id": 51,
        "resource_type": "APPLICATION",
        "resource_description": f"0:[{beginning}]:(0a1b2c3d)".ljust(256),
        "request_mode": "X",
        "request_status": "GRANT",
        "resource_database_id": FUNCTIONS["DB_ID"](),
    }
    (row,) = Locks([lock], [ours]).inserted(insert["InsertSpecification"])
    assert (row["id"], row["ours"], row["detail"]) == (ours, 1, f"0:[{beginning}]:(0a1b2c3d)")
