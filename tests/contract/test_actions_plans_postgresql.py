"""What a batch of an action reads does not grow with the queue."""

import json
from collections.abc import Sequence

import pytest
from sqlalchemy import Connection, text

from console import sql
from console.actions import rows
from console.actions.rows import Choosing, Selection, Storage
from console.monitor.filters import Filters
from console.monitor.message import Message
from console.monitor.scan_query import MessageSource
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.variants import DEFAULTS, Variant
from tests.filling import fill
from tests.servers import connect

BATCH = 5
VARIANTS = [
    *(variant for variant in DEFAULTS if variant.design.name not in {"ring", "broker"}),
    *(Variant(v.design, {"in_hand": "on"}) for v in DEFAULTS if v.design.name == "ring"),
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_batch_reads_its_rows_and_no_more(
    use_postgresql: Use, variant: Variant, long: bool
) -> None:
    client = use_postgresql(variant)
    queue = client.queue
    deep = 1_000_000 if long else 9_000
    states = {"ready": min(deep, 9_000) if "size" in queue.options else deep}
    if queue.finishes:
        states["errors"] = deep
    with connect(client.url) as connection:
        fill(connection, queue, states, "x" * 300)
        connection.execute("ANALYZE")
    for state in ("ready", "error") if queue.finishes else ("ready",):
        source, chosen = first(client, state)
        storage = rows.storage_of(queue, chosen[0])
        with client.database.transaction("explain") as connection:
            read = held_and_acted(connection, source, chosen, storage, state)
            connection.get_transaction().rollback()  # type: ignore[union-attr]
        for name, pages in read.items():
            # A key is found through an index of a few levels, in the table and beside it.
            assert pages <= BATCH * 20, f"{name} of {state} read {pages} pages"


def first(client: Client, state: str) -> tuple[MessageSource, list[Message]]:
    database = client.database
    with database.session("look", read_only=True) as session:
        with session.transaction("look") as connection:
            source = MessageSource.of(connection, client.queue)
            now = connection.execute(
                sql.query("actions.moment", connection.dialect, sql.Scope())
            ).scalar()
        of = Choosing(database, session, Filters(), [state], now)  # type: ignore[arg-type]
        choice = Selection(source, of)
        return source, choice.next(BATCH)


def held_and_acted(
    connection: Connection,
    source: MessageSource,
    chosen: Sequence[Message],
    storage: Storage,
    state: str,
) -> dict[str, int]:
    """Statement -> the pages that it reads for the batch."""
    (held,), skipped = rows.hold(connection, source, chosen)
    assert (len(held.places), skipped) == (BATCH, 0)
    keys = [rows.key_of(source.queue, storage, message) for message in chosen]
    due = [rows.due_of(message) for message in chosen]
    values: dict[str, object] = {"keys": keys, "due": due, "places": list(held.places)}
    values |= {"state": state, "reason": "test", "action_id": None}
    names = ["hold", "put_away", "destroy"] + ["make_ready"] * (state == "error")
    return {name: explained(connection, source, storage, name, values) for name in names}


def explained(
    connection: Connection,
    source: MessageSource,
    storage: Storage,
    name: str,
    values: dict[str, object],
) -> int:
    statement = source.own(name)
    scope = rows.scope(source, storage, to_back="no", hashed="no")
    query = sql.query(statement, connection.dialect, scope)
    explain = text(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {query.text}")
    with connection.begin_nested() as undone:
        found = connection.execute(explain, values).scalar_one()
        undone.rollback()
    plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
