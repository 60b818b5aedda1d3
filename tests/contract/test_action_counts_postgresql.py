"""The plan of an action counts on the server: the same as by reading the messages, at a cost that
grows with the chunks and not with the messages."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import pytest
from sqlalchemy import event

from console.actions import archive, execute, message_action
from console.actions.archive import Archive, Purge
from console.actions.execute import Batching
from console.actions.message_action import MessageAction, select
from console.actions.requeue import Release, Requeue
from console.actions.reschedule import Reschedule
from console.actions.restore import Restore
from console.actions.rows import QueueSelection
from console.actions.selected import SelectedMessages
from console.designs import DESIGNS
from console.engines import Database
from console.monitor import message_count
from console.monitor.filters import parse
from console.monitor.scan_query import MessageSource
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import fill as fill_by_calls
from tests.contract.message_actions import source_of
from tests.contract.variants import DEFAULTS, Variant
from tests.servers import connect
from tests.tools.filling import fill

VARIANTS = [
    *DEFAULTS,
    Variant(DESIGNS["ring"], {"in_hand": "on", "size": "100"}),
    Variant(DESIGNS["claim"], {"payload": "json"}),
    Variant(DESIGNS["fifo"], {"payload": "bytes"}),
]
FILTERS = (
    *("", "older=0s", "newer=1h", "older=1h", "state=error", "error~boom state=error"),
    *("limit=1", "limit=2", "limit=3", "limit=20", "state=ready keep-newest=1"),
    *("state=ready keep-newest=2", "state=ready keep-newest=9"),
)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_what_is_counted_is_what_would_be_read(
    use_postgresql: Use, monkeypatch: pytest.MonkeyPatch, variant: Variant
) -> None:
    """In chunks of a few rows or one page, whatever is in the way of the filters."""
    monkeypatch.setattr(message_count, "ROWS_AT_ONCE", 4)
    monkeypatch.setattr(message_count, "PAGES_AT_ONCE", 1)
    client = use_postgresql(variant)
    fill_by_calls(client, 40)
    action = Purge(source_of(client), permanently=True)
    compared = 0
    for words in FILTERS:
        filters = parse(words.split())
        if filters.state is not None and filters.state not in action.allowed:
            continue
        counted = select(client.database, action, filters)
        with monkeypatch.context() as reading:
            reading.setattr(QueueSelection, "countable", False)
            read = select(client.database, action, filters)
        assert without_times(counted) == without_times(read), words
        for name in ("oldest_seconds", "newest_seconds"):
            since, since_read = moment(counted, name), moment(read, name)
            assert (since is None) == (since_read is None), words
            if since and since_read:
                assert abs(since - since_read) < timedelta(milliseconds=1), words
        compared += counted.count > 3
    assert compared


def without_times(selected: SelectedMessages) -> SelectedMessages:
    """Two plans have different cut-offs, and ages by these."""
    return replace(
        selected,
        sample=tuple(replace(message, age_seconds=None) for message in selected.sample),
        cutoff=datetime.min.replace(tzinfo=UTC),
        oldest_seconds=None,
        newest_seconds=None,
    )


def moment(selected: SelectedMessages, name: str) -> datetime | None:
    age = getattr(selected, name)
    return None if age is None else selected.cutoff - timedelta(seconds=age)


class Sent(NamedTuple):
    """A statement: the rows that it returns, the characters of the values that it binds."""

    rows: int
    characters: int


@contextmanager
def counting(database: Database) -> Iterator[list[Sent]]:
    """The statements that are sent."""
    returned: list[Sent] = []

    def after(_conn: Any, cursor: Any, _statement: str, values: Any, *_: Any) -> None:
        bound = values.values() if isinstance(values, dict) else values
        returned.append(Sent(max(0, cursor.rowcount), sum(len(str(value)) for value in bound)))

    event.listen(database._engine, "after_cursor_execute", after)
    try:
        yield returned
    finally:
        event.remove(database._engine, "after_cursor_execute", after)


def cost_of(client: Client, action: MessageAction, depth: int) -> tuple[int, int]:
    """Statements, and rows fetched, by a plan."""
    with counting(client.database) as returned:
        plan = execute.plan(client.database, action)
    assert plan.count == depth
    return len(returned), sum(sent.rows for sent in returned)


DEEP, SHALLOW = 100_000, 1_000


@pytest.mark.parametrize("design", ["fifo", "claim", "heap", "ring"])
def test_a_plan_costs_statements_by_the_chunk_and_reads_no_message_but_its_sample(
    use_postgresql: Use, design: str
) -> None:
    options = {"size": "200000", "max_bytes": "20"} if design == "ring" else {}
    costs = {}
    for depth in (SHALLOW, DEEP):
        client = use_postgresql(Variant(DESIGNS[design], options))
        with connect(client.url) as connection:
            fill(connection, client.queue, {"ready": depth})
        costs[depth] = cost_of(client, Purge(source_of(client), permanently=True), depth)
    statements, rows = (costs[DEEP][n] - costs[SHALLOW][n] for n in (0, 1))
    chunks = DEEP // message_count.ROWS_AT_ONCE
    # Beside each chunk: its extent, where chunks have ends, and what a transaction begins with.
    assert statements <= 5 * chunks
    assert rows <= 5 * chunks
    assert costs[SHALLOW][1] < 40


def archived(client: Client, depth: int) -> None:
    """Messages, as a purge leaves them in the archive."""
    state = "errors" if client.queue.finishes else "ready"
    with connect(client.url) as connection:
        fill(connection, client.queue, {state: depth})
    execute.plan(client.database, Purge(source_of(client))).run_to_end()


BATCH, FEW, MANY = 500, 1_000, 10_000
VERBS: dict[str, tuple[str, str, Callable[[MessageSource], MessageAction]]] = {
    "requeue": ("claim", "errors", Requeue),
    "requeue of status": ("status", "errors", Requeue),
    "release": ("split", "claimed", partial(Release, stuck_after_seconds=0.0, unknown=True)),
    "archive": ("status", "done", Archive),
    "purge": ("heap", "ready", Purge),
    "purge of a ring": ("ring", "ready", Purge),
    "reschedule": ("pending", "scheduled", partial(Reschedule, in_seconds=60.0)),
    "restore": ("claim", "", Restore),
    "restore by push": ("fifo", "", Restore),
}
"""Verb -> the design, the state of the messages, the action."""


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_costs_statements_by_the_batch_and_reads_no_message(
    use_postgresql: Use, verb: str
) -> None:
    """Statements, rows fetched and values sent grow with the batches; nothing with the messages."""
    design, state, action_of = VERBS[verb]
    options = {"size": "20000", "max_bytes": "20"} if design == "ring" else {}
    costs: dict[int, tuple[list[Sent], list[Sent]]] = {}
    for depth in (FEW, MANY):
        client = use_postgresql(Variant(DESIGNS[design], options))
        if state:
            with connect(client.url) as connection:
                fill(connection, client.queue, {state: depth})
        else:
            archived(client, depth)
        action = action_of(source_of(client))
        with counting(client.database) as planned:
            plan = execute.plan(client.database, action, batching=Batching(batch=BATCH))
        with counting(client.database) as done:
            assert plan.run_to_end().done == depth == plan.count
        costs[depth] = planned, done
    (few_plan, few), (many_plan, many) = costs[FEW], costs[MANY]
    # Less than a chunk: a plan costs the same at both depths, but for the extent of a ring or heap.
    assert abs(len(many_plan) - len(few_plan)) <= 5
    assert abs(rows(many_plan) - rows(few_plan)) <= 5
    assert abs(characters(many_plan) - characters(few_plan)) <= 200
    batches = (MANY - FEW) // BATCH
    assert len(many) - len(few) <= 12 * batches
    assert rows(many) - rows(few) <= 12 * batches
    # Its key, its mark and its location; a restored one's key three times.
    assert characters(many) - characters(few) <= 130 * (MANY - FEW)
    assert len(few) <= 12 * (1 + FEW // BATCH) + 30


@pytest.mark.parametrize("verb", VERBS)
def test_a_batch_reads_its_own_messages_and_not_those_before_it(
    use_postgresql: Use, verb: str
) -> None:
    """Entries of indexes and rows of tables: so many for each message, however many batches."""
    design, state, action_of = VERBS[verb]
    options = {"size": "20000", "max_bytes": "20"} if design == "ring" else {}
    client = use_postgresql(Variant(DESIGNS[design], options))
    if state:
        with connect(client.url) as connection:
            fill(connection, client.queue, {state: MANY})
    else:
        archived(client, MANY)
    plan = execute.plan(
        client.database, action_of(source_of(client)), batching=Batching(batch=BATCH)
    )
    before = entries_read(client)
    assert plan.run_to_end().done == MANY
    assert entries_read(client) - before <= 15 * MANY


def entries_read(client: Client) -> int:
    """So far, in the queue's tables and their indexes."""
    with client.database.transaction("count") as connection:
        connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
    with connect(client.url) as connection:
        query = """SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE schemaname = %s)
            + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = %s)"""
        row = connection.execute(query, [client.queue.schema] * 2).fetchone()
    assert row is not None
    return int(row[0])


def rows(sent: list[Sent]) -> int:
    return sum(one.rows for one in sent)


def characters(sent: list[Sent]) -> int:
    return sum(one.characters for one in sent)


DUE = datetime(2030, 1, 1, tzinfo=UTC)
OTHERS: dict[str, tuple[str, tuple[str, ...], Callable[[MessageSource], MessageAction]]] = {
    "requeue": ("claim", ("", "limit=3", "keep-newest=2", "older=1h"), Requeue),
    "release": ("claim", ("", "limit=2"), partial(Release, stuck_after_seconds=0.0, force=True)),
    "release none": ("status", ("",), partial(Release, stuck_after_seconds=3600.0)),
    "reschedule": ("pending", ("", "state=ready", "limit=3"), partial(Reschedule, at=DUE)),
    "restore": ("split", ("", "state=error", "limit=4"), Restore),
    "restore by push": ("fifo", ("", "newer=1h"), Restore),
}


@pytest.mark.parametrize("verb", OTHERS)
def test_what_is_counted_of_a_group_is_what_would_be_read(
    use_postgresql: Use, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Claims by claimant, due times by side, archived messages by what restore does with them."""
    for module in (message_count, archive):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 4)
    design, filters_of, action_of = OTHERS[verb]
    client = use_postgresql(Variant(DESIGNS[design], {}))
    fill_by_calls(client, 40)
    if verb.startswith("restore"):
        execute.plan(client.database, Purge(source_of(client))).run_to_end()
    found = 0
    for words in filters_of:
        filters = parse(words.split())
        counted = select(client.database, action_of(source_of(client)), filters)
        with monkeypatch.context() as reading:
            reading.setattr(message_action, "_may_be_counted", lambda *_: False)
            read = select(client.database, action_of(source_of(client)), filters)
        assert without_times(counted) == without_times(read), words
        found += read.count
    assert found or verb == "release none"


@pytest.mark.parametrize("batch", [None, 3])
def test_the_newest_are_kept_whatever_leaves_meanwhile(
    use_postgresql: Use, batch: int | None
) -> None:
    client = use_postgresql(Variant(DESIGNS["fifo"], {}))
    client.push_many(client.payloads(*range(20)))
    action = Purge(source_of(client))
    plan = select(client.database, action, parse(("keep-newest=10",)))
    assert plan.count == 10
    client.pop_many(8)
    result = execute.execute(client.database, action, plan, Batching(batch))
    assert result.done == 2
    assert result.lines[-1] == (
        "  8 fewer: others have left since the plan, and the newest 10 are kept"
    )
    assert [message.payload for message in client.drain()] == client.payloads(*range(10, 20))


def test_those_left_alone_end_no_search(use_postgresql: Use) -> None:
    """However many of them are before the others, and whatever the batches and the filters."""
    client = use_postgresql(Variant(DESIGNS["pending"], {}))
    table = f'"{client.queue.schema}"."{client.queue.table}"'
    with connect(client.url) as connection:
        fill(connection, client.queue, {"scheduled": 30})
        connection.execute(f"UPDATE {table} SET due_time = '{DUE}' WHERE id <= 20".encode())
        connection.execute(f"UPDATE {table} SET due_time = '2031-01-01' WHERE id > 20".encode())
    action = Reschedule(source_of(client), at=DUE)
    for words in (("limit=4",), ("newer=1h",)):
        plan = select(client.database, action, parse(words))
        result = execute.execute(client.database, action, plan, Batching(3))
        assert result.done == plan.count > 0
    assert select(client.database, action, parse(())).count == 0


@pytest.mark.parametrize("few", [0, 200], ids=["by batch", "by plan"])
def test_claims_are_released_by_claimant_whatever_the_batches(
    use_postgresql: Use, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    """Those of another claimant stay, unlocked, wherever in a batch they are."""
    monkeypatch.setattr(execute, "_FEW_GROUPS", few)
    client = use_postgresql(Variant(DESIGNS["claim"], {}))
    client.push_many(client.payloads(*range(40)))
    client.pop_many(40)
    table = f'"{client.queue.schema}"."{client.queue.table}"'
    with connect(client.url) as connection:
        # Three of a closed session, then one of this one, and so on.
        connection.execute(
            f"""UPDATE {table} AS m SET
            processing_started_at = now() - interval '1 hour' + q.n * interval '1 s',
            claimed_by = CASE WHEN q.n % 4 > 0 THEN 'pid=999999 start=2020-01-01T00:00:00Z bound'
                ELSE m.claimed_by END
            FROM (SELECT id, row_number() OVER (ORDER BY created_at, id) AS n FROM {table}) AS q
            WHERE m.id = q.id"""
        )
    action = Release(source_of(client), stuck_after_seconds=60.0)
    for batch in (1, 5, None):
        words = ("limit=7", "older=1s") if batch else ()
        plan = select(client.database, action, parse(words))
        result = execute.execute(client.database, action, plan, Batching(batch))
        assert (result.done, plan.count) == ((7, 7) if batch else (16, 16))
    with connect(client.url) as connection:
        query = f"SELECT count(*), count(*) FILTER (WHERE xmax = 0) FROM {table}"
        left = connection.execute(f"{query} WHERE processing_started_at IS NOT NULL".encode())
        assert left.fetchone() == (10, 10)


def test_claims_behind_many_that_do_not_match_are_released(
    use_postgresql: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further behind than one statement reads, and of more claimants than a plan remembers."""
    monkeypatch.setattr(execute, "_FEW_GROUPS", 1)
    client = use_postgresql(Variant(DESIGNS["status"], {}))
    with connect(client.url) as connection:
        fill(connection, client.queue, {"stuck": message_count.ROWS_AT_ONCE + 1})
        fill(connection, client.queue, {"claimed": 5})
        connection.execute(
            f"""UPDATE "{client.queue.schema}"."{client.queue.table}" SET claimed_by =
            'pid=' || 900000 + id % 5 || ' start=2020-01-01T00:00:00Z bound consumer=b'
            WHERE claimed_at > now() - interval '30 min'"""
        )
    action = Release(source_of(client), stuck_after_seconds=0.0)
    plan = select(client.database, action, parse(("claimed_by=b",)))
    assert (plan.count, execute.execute(client.database, action, plan).done) == (5, 5)


def test_claims_of_many_sessions_are_locked_together(use_postgresql: Use) -> None:
    client = use_postgresql(Variant(DESIGNS["claim"], {}))
    client.push_many(client.payloads(*range(60)))
    client.pop_many(60)
    with connect(client.url) as connection:
        connection.execute(
            f"""UPDATE "{client.queue.schema}"."{client.queue.table}" SET
            processing_started_at = now() - interval '1 hour',
            claimed_by = 'pid=999999 start=2020-01-01T00:00:00Z bound consumer=w' || id"""
        )
    action = Release(source_of(client), stuck_after_seconds=60.0, unknown=True)
    plan = select(client.database, action, parse(()))
    sent: list[str] = []

    @event.listens_for(client.database._engine, "before_cursor_execute")
    def before(_1: object, _2: object, statement: str, *_: object) -> None:
        sent.append(statement)

    assert execute.execute(client.database, action, plan).done == 60
    assert sum("common.lock_next" in statement for statement in sent) == 1
