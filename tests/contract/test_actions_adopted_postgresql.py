"""Verbs on adopted tables: whatever their columns are called, and whatever type their ids have."""

from collections import Counter

import pytest
from sqlalchemy import text

from console.actions import execute, plan
from console.actions.adopt import adopt
from console.actions.archive import Archive, Purge
from console.actions.requeue import Release, Requeue
from console.actions.rows import Mover
from console.catalog import Queue
from console.designs import design
from console.engines import Database
from console.errors import RefusedError, UsageError
from console.monitor.filters import parse
from console.monitor.scan_query import MessageSource

CLAIM = {
    "id": "job id",
    "pushed_at": "made",
    "claimed_at": "started",
    "error": "err",
    "attempts": "tries",
    "done_at": "finished",
    "payload": "body",
}
TYPES = {
    "uuid": "gen_random_uuid()",
    "bigint": "n",
    "integer": "n",
    "smallint": "n",
    "text": "'job ' || n",
    "varchar(40)": "'job ' || n",
}


def source_of(database: Database, queue: Queue) -> MessageSource:
    with database.transaction("read the queue", read_only=True) as connection:
        return MessageSource.of(connection, queue)


def done(database: Database, mover: Mover, *words: str) -> int:
    made = plan.make(database, mover, parse(words))
    result = execute.execute(database, mover, made)
    assert (result.ledger.out, result.ledger.skipped_count) == (made.count, 0)
    return result.ledger.out


def run(database: Database, *statements: str) -> None:
    with database.transaction("prepare") as connection:
        for statement in statements:
            connection.execute(text(statement.replace(":", "\\:")))


def states(database: Database, table: str) -> Counter[str]:
    query = (
        "SELECT CASE WHEN err IS NOT NULL THEN 'error' WHEN started IS NULL THEN 'ready' "
        f"ELSE 'claimed' END, count(*) FROM public.{table} GROUP BY 1"
    )
    with database.transaction("count", read_only=True) as connection:
        return Counter({str(state): int(n) for state, n in connection.execute(text(query))})


@pytest.mark.parametrize("type_", TYPES)
def test_a_claim_queue_with_ids_of_any_type(virgin: Database, type_: str) -> None:
    value = TYPES[type_]
    run(
        virgin,
        f'CREATE TABLE public.jobs ("job id" {type_} PRIMARY KEY, made timestamptz, '
        "started timestamptz, err text, tries int, finished timestamptz, body text)",
        f"INSERT INTO public.jobs SELECT {value}, now() - interval '1 h', "
        "CASE WHEN n > 10 THEN now() - interval '30 m' END, "
        "CASE WHEN n > 20 THEN 'no' END, 1, CASE WHEN n > 20 THEN now() END, 'x' "
        "FROM generate_series(1, 30) AS n",
    )
    queue = adopt(virgin, "public", "jobs", design("claim"), CLAIM)
    source = source_of(virgin, queue)
    assert done(virgin, Requeue(source), "limit=4") == 4
    assert states(virgin, "jobs") == {"ready": 14, "claimed": 10, "error": 6}
    # Nobody can tell whose claims these are.
    assert done(virgin, Release(source, stuck_after_seconds=60.0)) == 0
    assert done(virgin, Release(source, stuck_after_seconds=60.0, unknown=True)) == 10
    assert states(virgin, "jobs") == {"ready": 24, "error": 6}
    with pytest.raises(RefusedError, match="has no archive"):
        Purge(source)
    with pytest.raises(RefusedError, match="has no archive"):
        Archive(source)
    assert done(virgin, Purge(source, permanently=True), "state=error") == 6
    assert done(virgin, Purge(source, permanently=True), "older=10m") == 24
    assert states(virgin, "jobs") == {}


def test_a_table_of_which_little_is_known(virgin: Database) -> None:
    run(
        virgin,
        "CREATE TABLE public.mail (body text)",
        "INSERT INTO public.mail SELECT 'x' FROM generate_series(1, 20)",
    )
    queue = adopt(virgin, "public", "mail", design("heap"), {"payload": "body"})
    source = source_of(virgin, queue)
    with pytest.raises(UsageError):
        Requeue(source)
    assert done(virgin, Purge(source, permanently=True), "limit=5") == 5
    assert done(virgin, Purge(source, permanently=True)) == 15
