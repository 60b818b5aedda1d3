"""Listing messages on PostgreSQL: rows changed by hand, locks, and the cost of a page."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from psycopg.sql import SQL, Composed, Identifier
from sqlalchemy import text

from console.catalog import Queue
from console.designs import Order
from console.engines import Database, open_database
from console.errors import BusyError
from console.monitor.errors import error_groups
from console.monitor.filters import parse
from console.monitor.messages import Page, read_page
from console.monitor.scan_query import PAGES_AT_ONCE, PAGES_MOST, READ_AT_ONCE, READ_MOST
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import ids_of, read_messages
from tests.contract.plans import Statement, recorded
from tests.contract.test_plans_postgresql import (
    auto_explain,
    load,
    on_each_table,
    with_room,
    without_autovacuum,
)
from tests.contract.variants import DEFAULTS, Variant, default
from tests.servers import connect, execute
from tests.tools.filling import fill

__all__ = ["auto_explain"]

LIMIT = 50
LIST_PAGES = 400
"""The most pages (8 kB, from the cache or not) that a list of 50 may read, whatever the depth."""
BY_ID_PAGES = 40
SORTED_ROWS = 64
"""Rows that a sort by time and then id reads ahead."""
RING = default("ring")
LISTED = [*DEFAULTS, default("ring", in_hand="on")]
LISTED = [variant for variant in LISTED if "postgresql" in variant.engines]
KEEPING_ROWS = [variant for variant in LISTED if variant.design.keeps_row]


def sql_of(queue: Queue, template: str) -> Composed:
    """`{}` is the main table, `{role}` the column of that role."""
    columns = {role: Identifier(column) for role, column in queue.roles.items()}
    return SQL(template).format(Identifier(queue.schema, queue.table), **columns)


def execute_by_hand(client: Client, template: str) -> None:
    execute(client.url, sql_of(client.queue, template))


@pytest.mark.long
@pytest.mark.parametrize("variant", KEEPING_ROWS, ids=str)
def test_messages_whose_state_was_set_by_hand_are_shown_without_its_time(
    use_postgresql: Use, variant: Variant
) -> None:
    client = use_postgresql(variant)
    client.push_many(["x"] * 6)
    execute_by_hand(
        client, "UPDATE {} SET {error} = 'by hand', {claimed_at} = coalesce({claimed_at}, now())"
    )
    if "status" in client.queue.roles:
        execute_by_hand(client, "UPDATE {} SET {status} = 4, {claimed_at} = NULL")
    (taken, *_) = read_messages(client).messages
    execute_by_hand(client, f"UPDATE {{}} SET {{done_at}} = now() WHERE {{id}} = '{taken.id}'")
    errors = read_messages(client, "state=error", limit=2)
    assert [shown.done_at is not None for shown in errors.messages] == [True, False]
    assert [shown.age_seconds is not None for shown in errors.messages] == [True, False]
    found, page = ids_of(errors), errors
    while page.next is not None:
        page = read_messages(client, "state=error", limit=2, after=page.next.text)
        found += ids_of(page)
    assert len(found) == len(set(found)) == client.status().errors == 6
    (group,) = error_groups(client.database, client.queue).groups
    assert (group.count, group.first_at) == (6, group.last_at)
    assert ids_of(read_messages(client, "state=error", "newer=1h")) == [taken.id]
    if "status" in client.queue.roles:
        execute_by_hand(client, "UPDATE {} SET {status} = 1")
        assert len(read_messages(client, "state=claimed").messages) == client.status().claimed == 6
        execute_by_hand(client, "UPDATE {} SET {status} = 3")
        assert read_messages(client).messages == ()
        assert [m.state for m in read_messages(client, f"id={taken.id}").messages] == ["archived"]


def test_listing_messages_during_a_relay_is_an_error_after_a_short_wait(
    use_postgresql: Use,
) -> None:
    client = use_postgresql(RING)
    client.push("x")
    with client.database.transaction("relay") as relay:
        relay.execute(text(f'LOCK TABLE public."{client.queue.name}_parked"'))
        with pytest.raises(BusyError, match="Could not read the messages"):
            read_messages(client)
    assert len(read_messages(client).messages) == 1


@pytest.mark.long
@pytest.mark.thinned(3, payload=False)
@pytest.mark.parametrize("variant", LISTED, ids=str)
def test_listing_messages_waits_for_no_row_lock(use_postgresql: Use, variant: Variant) -> None:
    client = use_postgresql(variant)
    client.push_many(["x"] * 3)
    with client.database.transaction("hold") as held:
        held.execute(text(f'SELECT 1 FROM public."{client.queue.table}" FOR UPDATE'))
        assert len(read_messages(client).messages) == 3


@dataclass(frozen=True)
class RecordedPage:
    """The result of one call, and the statements by which it read messages."""

    page: Page
    statements: list[Statement]

    @property
    def buffers(self) -> int:
        return sum(statement.buffers for statement in self.statements)

    @property
    def most_rows(self) -> float:
        """The most rows that one node of a plan read from a table."""
        nodes = (node for statement in self.statements for node in statement.nodes())
        return max(
            (
                node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
                for node in nodes
                if "Relation Name" in node
            ),
            default=0,
        )


ListMessages = Callable[..., RecordedPage]


@contextmanager
def recording(client: Client) -> Iterator[ListMessages]:
    """Lists messages and records the statements with their plans."""
    with recorded(client.url) as (database, recorder):

        def call(*words: str, **options: Any) -> RecordedPage:
            recorder.take()
            page = read_page(database, client.queue, parse(words), **options)
            statements = [one for one in recorder.take() if "common.matching" in one.text]
            assert statements
            return RecordedPage(page, statements)

        yield call


@pytest.fixture(scope="module")
def depth(long: bool) -> int:
    return 1_000_000 if long else 50_000


def fill_deep(client: Client, depth: int) -> None:
    """Fill with `depth` ready messages and, in designs that keep rows, as many in each state.

    No dead rows: those that a long transaction keeps have another test.
    """
    without_autovacuum(client)
    load(client, depth)
    kept = {"error": "errors", "done": "done"}
    with connect(client.url) as connection:
        states = {kept[state]: depth for state in kept.keys() & set(client.queue.states)}
        fill(connection, client.queue, states)


def check(page: RecordedPage, what: str, most: int = LIST_PAGES) -> None:
    sequential = {table for statement in page.statements for table in statement.sequential()}
    assert {table for table in sequential if not table.endswith(("_config", "_seq"))} == set(), what
    assert page.buffers <= most, f"{page.buffers} pages: {what}"


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.usefixtures("auto_explain")
@pytest.mark.parametrize("variant", LISTED, ids=str)
def test_a_page_costs_the_same_at_any_depth(
    use_postgresql: Use, variant: Variant, depth: int
) -> None:
    client = use_postgresql(with_room(variant, depth))
    fill_deep(client, depth)
    heap = variant.order is Order.NONE
    for statistics in ("none", "true"):
        if statistics == "true":
            on_each_table(client, "VACUUM ANALYZE {}")
        with recording(client) as listed:
            for state in client.queue.states:
                for reverse in (False, True):
                    where = f"{state}, reverse={reverse}, statistics: {statistics}"
                    first = listed(f"state={state}", limit=LIMIT, reverse=reverse)
                    check(first, f"the first page of {where}")
                    if first.page.next is None:
                        assert state == "scheduled"
                        continue
                    assert len(first.page.messages) == LIMIT
                    after = first.page.next.text
                    second = listed(f"state={state}", limit=LIMIT, reverse=reverse, after=after)
                    check(second, f"the next page of {where}")
                    # A heap is read by whole pages of the table, a ring by chunks of slots.
                    most = PAGES_AT_ONCE * 250 if heap else LIMIT + SORTED_ROWS
                    assert max(first.most_rows, second.most_rows) <= most, where
            if variant.order not in {Order.NONE, Order.DUE}:
                (last,) = listed(limit=1, reverse=True).page.messages
                by_id = listed(f"id={last.id}")
                assert [message.id for message in by_id.page.messages] == [last.id]
                check(by_id, "one message by its id", BY_ID_PAGES)


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.usefixtures("auto_explain")
@pytest.mark.parametrize("variant", LISTED, ids=str)
def test_a_filter_that_matches_nothing_reads_no_more_than_its_bound(
    use_postgresql: Use, variant: Variant, depth: int
) -> None:
    client = use_postgresql(with_room(variant, depth))
    fill_deep(client, depth)
    rows_at_once = PAGES_AT_ONCE * 250 if variant.order is Order.NONE else READ_AT_ONCE
    words = ["older=1d"]
    if client.queue.finishes:
        words += ["claimed_by=nobody", "error~nothing"]
    with recording(client) as listed:
        for word in words:
            found = listed(word)
            assert found.page.messages == ()
            check(found, word, 8 * READ_MOST)
            assert found.most_rows <= rows_at_once + SORTED_ROWS, word
            read = sum(
                node["Actual Rows"] * node["Actual Loops"]
                for statement in found.statements
                for node in statement.nodes()
                if node.get("Alias") in {"m", "h"}
            )
            if variant.order is Order.NONE:
                assert found.buffers <= PAGES_MOST + 200, word
            else:
                assert read <= READ_MOST + 2 * rows_at_once, word
        if client.queue.design.keeps_row:
            check(listed("older=1d"), "an age, by the index", LIST_PAGES)
            check(listed("newer=0s", "state=ready"), "an age, by the index", LIST_PAGES)


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.usefixtures("auto_explain")
@pytest.mark.parametrize("variant", [v for v in LISTED if v.design.name != "ring"], ids=str)
def test_large_payloads_cost_nothing_unless_requested(
    use_postgresql: Use, variant: Variant
) -> None:
    options = {"max_bytes": "1000000"} if variant.limit is not None else {}
    client = use_postgresql(Variant(variant.design, {**variant.given, **options}))
    large = "".join(f"{number * 7919:x} " for number in range(80_000))[:500_000]
    client.push_many([large] * 20)
    with recording(client) as listed:
        without_payload = listed(limit=LIMIT)
        with_payload = listed(limit=LIMIT, payload_bytes=1000)
    assert len(without_payload.page.messages) == 20
    if variant.design.name != "split":
        assert {shown.payload_bytes for shown in without_payload.page.messages} == {500_000}
    assert {shown.payload for shown in with_payload.page.messages} == {large[:1000]}
    assert all(shown.payload_cut for shown in with_payload.page.messages)
    assert without_payload.buffers <= 60
    assert with_payload.buffers <= 60 + 20 * 15


def test_a_filter_can_name_an_empty_json_key(use_postgresql: Use) -> None:
    client = use_postgresql(default("fifo", payload="json"))
    client.push('{"": "empty"}')
    assert len(read_messages(client, 'payload.""=empty').messages) == 1


def test_messages_of_a_read_only_database_can_be_listed(
    use_postgresql: Use, postgresql: Database
) -> None:
    client = use_postgresql(RING)
    client.push("x")
    read_only = postgresql.url.update_query_dict(
        {"options": "-c default_transaction_read_only=on"}
    ).render_as_string(hide_password=False)
    with closing(open_database(read_only)) as database:
        assert len(read_page(database, client.queue).messages) == 1
