"""The public interface as any program calls it: functions, with named arguments."""

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from console.designs import Order
from tests.contract.client import Client, call, call_in
from tests.contract.conftest import Use
from tests.contract.variants import (
    BEHAVIOURS,
    BEHAVIOURS_AND_PAYLOADS,
    CORE,
    Variant,
    default,
    with_subscribed_rings,
)
from tests.servers import connect

pytestmark = pytest.mark.thinned(3)

PAST_TIME = datetime(2020, 2, 29, 12, 0, tzinfo=UTC)
TYPES = {"text": "text", "json": "jsonb", "bytes": "bytea"}
COMMON_FUNCTIONS = {"push", "push_many", "pop", "pop_many"}


def column(client: Client, name: str, table: str = "") -> list[Any]:
    """One column of the queue's table (or `table`), sorted."""
    query = SQL("SELECT {} FROM {} ORDER BY 1").format(
        Identifier(name), Identifier(client.queue.schema, client.queue.table + table)
    )
    with closing(connect(client.url)) as connection:
        return [value for (value,) in connection.execute(query)]


def payloads(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    return [row[1] for row in rows]


@pytest.mark.long
@pytest.mark.parametrize(
    "variant", with_subscribed_rings(BEHAVIOURS_AND_PAYLOADS, BEHAVIOURS_AND_PAYLOADS), ids=str
)
def test_a_queue_has_the_documented_functions_and_payload_type(
    use_postgresql: Use, variant: Variant
) -> None:
    client = use_postgresql(variant)
    expected = set(COMMON_FUNCTIONS)
    if variant.finishes:
        expected |= {"complete", "fail"}
    if "relay" in client.queue.verbs:
        expected |= {"relay"}
    if variant.options["notify"] == "on":
        expected |= {"wait", "wait_end"}
    if client.queue.subscribers and variant.options["archive_at_pop"] == "on":
        expected |= {"sweep"}
    start = f"{client.queue.name}_"
    with closing(connect(client.url)) as connection:
        rows = connection.execute(
            "SELECT proname FROM pg_proc WHERE starts_with(proname, %s)", [start]
        ).fetchall()
        columns = connection.execute(
            "SELECT format_type(a.atttypid, a.atttypmod)"
            " FROM pg_attribute AS a JOIN pg_class AS c ON a.attrelid = c.oid"
            " WHERE c.relkind IN ('r', 'p') AND starts_with(c.relname, %s)"
            " AND a.attname IN (%s, 'payload', 'content')",
            [client.queue.name, variant.design.roles.get("payload", "text_data")],
        ).fetchall()
    assert {name.removeprefix(start) for (name,) in rows} == expected
    assert {kind for (kind,) in columns} == {TYPES[variant.payload]}
    assert len(columns) >= 2  # the queue and its archive


@pytest.mark.parametrize("variant", with_subscribed_rings(CORE, BEHAVIOURS), ids=str)
def test_every_function_works_with_named_arguments(use_postgresql: Use, variant: Variant) -> None:
    client = use_postgresql(variant)
    ((first,),) = call(client, "push", payload="a")
    others = [row[0] for row in call(client, "push_many", payloads=["b", "c", "d"])]
    assert len({first, *others}) == 4

    popped = call(client, "pop") + call(client, "pop_many", n=2) + call(client, "pop_many", n=2)

    assert {row[0]: row[1] for row in popped} == dict(zip([first, *others], "abcd", strict=True))
    assert {row[3] for row in popped} == {1}
    assert all(abs(datetime.now(UTC) - row[2]) < timedelta(days=1) for row in popped)
    assert call(client, "pop") == call(client, "pop_many", n=5) == []
    if variant.finishes:
        assert call(client, "complete", id=popped[0][0], attempts=2) == [(False,)]
        assert call(client, "complete", id=popped[0][0], attempts=1) == [(True,)]
        assert call(client, "complete", id=popped[1][0]) == [(True,)]  # attempts may be left out
        assert call(client, "fail", id=popped[2][0], error="x", attempts=9) == [(False,)]
        assert call(client, "fail", id=popped[2][0], error="x") == [(True,)]
        assert call(client, "fail", id=popped[3][0], error=None, attempts=1) == [(True,)]
        assert client.status().errors == 2

    with closing(connect(client.url)) as connection:
        # A batch of nothing.
        assert call_in(connection, client, "push_many", payloads=None) == []
        assert call_in(connection, client, "push_many", payloads=[]) == []
        client.push("e")
        for n in (None, 0, -1):
            assert call_in(connection, client, "pop_many", n=n) == []
        assert [row[1] for row in call_in(connection, client, "pop_many", n=5)] == ["e"]
        # A session can pop messages that it has pushed and not committed.
        with connection.transaction():
            ((pushed,),) = call_in(connection, client, "push", payload="mine")
            ((first, payload, _, _),) = call_in(connection, client, "pop")
            assert (first, payload) == (pushed, "mine")
            assert call_in(connection, client, "pop") == []


@pytest.mark.parametrize("variant", with_subscribed_rings(CORE, BEHAVIOURS), ids=str)
def test_several_calls_in_one_statement_keep_their_order(
    use_postgresql: Use, variant: Variant
) -> None:
    """As in a trigger or function of the caller: batches and single messages mixed."""
    client = use_postgresql(variant)
    names = {
        "push": Identifier(client.queue.schema, f"{client.queue.name}_push"),
        "push_many": Identifier(client.queue.schema, f"{client.queue.name}_push_many"),
    }
    block = SQL(
        "DO $do$ BEGIN PERFORM {push}('1'); PERFORM {push_many}(ARRAY['2', '3']);"
        " PERFORM {push}('4'); PERFORM {push_many}(ARRAY['5', '6']); PERFORM {push}('7');"
        " END $do$"
    ).format(**names)
    with closing(connect(client.url)) as connection:
        connection.execute(block)
    popped = [message.payload for message in client.drain(3)]
    if variant.order is Order.LIFO:
        popped.reverse()
    if variant.order is Order.NONE:
        popped.sort()
    assert popped == list("1234567")


def test_the_design_claim_accepts_the_caller_s_ids_and_times(use_postgresql: Use) -> None:
    client = use_postgresql(default("claim"))
    mine = uuid4()
    assert call(client, "push", payload="new", id=mine, created_at=PAST_TIME) == [(mine,)]
    ids = [uuid4(), uuid4()]
    stored = call(client, "push_many", payloads=["b", "c"], ids=ids, created_at=PAST_TIME)
    assert [row[0] for row in stored] == ids
    older = PAST_TIME - timedelta(days=1)
    call(client, "push_many", payloads=["oldest"], created_at=older)
    with pytest.raises(psycopg.errors.UniqueViolation):
        call(client, "push", payload="again", id=mine)
    with pytest.raises(psycopg.errors.UniqueViolation):
        call(client, "push_many", payloads=["x", "again"], ids=[uuid4(), ids[0]])

    started = PAST_TIME + timedelta(hours=1)
    ((first, payload, pushed_at, attempts),) = call(
        client, "pop", consumer="me", bound=True, started_at=started
    )
    rest = call(client, "pop_many", n=9, started_at=started)

    assert (payload, pushed_at, attempts) == ("oldest", older, 1)
    assert {row[0] for row in rest} == {mine, *ids}
    assert {row[2] for row in rest} == {PAST_TIME}
    assert set(column(client, "processing_started_at")) == {started}
    assert sum(" bound consumer=me" in by for by in column(client, "claimed_by")) == 1
    assert isinstance(first, UUID)
    another = uuid4()
    stored = call(client, "push_many", payloads=["d", "e"], ids=[None, another])
    assert (isinstance(stored[0][0], UUID), stored[1]) == (True, (another,))
    assert payloads(call(client, "pop_many", n=2)) == ["d", "e"]


@pytest.mark.parametrize(
    "variant", [default("status"), default("split"), default("split", dequeue="two_step")]
)
def test_status_and_split_accept_titles_and_queue_times(
    use_postgresql: Use, variant: Variant
) -> None:
    client = use_postgresql(variant)
    late, early = PAST_TIME + timedelta(days=1), PAST_TIME - timedelta(days=1)
    call(client, "push", payload="now")
    call(client, "push", payload="late", title="Title", queue_date_time=late)
    call(client, "push_many", payloads=["b1", "b2"], title="Batch", queue_date_time=PAST_TIME)
    call(client, "push", payload="early", queue_date_time=early)
    call(client, "push", payload="no title", title=None, queue_date_time=early)

    popped = call(client, "pop", consumer="me", bound=True) + call(client, "pop_many", n=9)

    assert payloads(popped) == ["early", "no title", "b1", "b2", "late", "now"]
    assert [row[2] for row in popped[:5]] == [early, early, PAST_TIME, PAST_TIME, late]
    assert column(client, "title") == ["", "", "", "Batch", "Batch", "Title"]
    assert sum(" bound consumer=me" in by for by in column(client, "claimed_by")) == 1


@pytest.mark.parametrize("variant", [v for v in BEHAVIOURS if v.finishes], ids=str)
def test_a_claim_names_the_backend_that_holds_it_and_the_consumer(
    use_postgresql: Use, variant: Variant
) -> None:
    client = use_postgresql(variant)
    client.push_many(["a", "b", "c", "d"])
    table = "_in_hand" if variant.options.get("in_hand") == "on" else ""
    with closing(connect(client.url)) as connection:
        call_in(connection, client, "pop")
        call_in(connection, client, "pop_many", n=1)
        call_in(connection, client, "pop", consumer="me", bound=True)
        call_in(connection, client, "pop_many", n=1, consumer="you")
        row = connection.execute(
            "SELECT pid, to_char(backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US')"
            " FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        ).fetchone()
    assert row is not None
    backend = f"pid={row[0]} start={row[1]}Z"
    whose = ["", "", " bound consumer=me", " consumer=you"]
    assert column(client, "claimed_by", table) == [backend + words for words in whose]
