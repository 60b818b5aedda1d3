"""The plan of an action counts on the server: the same as by reading the messages."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import event

from console.actions import archive, execute, message_action
from console.actions.archive import Purge
from console.actions.execute import Batching
from console.actions.message_action import MessageAction, select
from console.actions.requeue import Release, Requeue
from console.actions.reschedule import Reschedule
from console.actions.restore import Restore
from console.actions.rows import QueueSelection
from console.actions.selected import SelectedMessages
from console.designs import DESIGNS
from console.errors import UsageError
from console.monitor import message_count
from console.monitor.filters import parse
from console.monitor.scan_query import MessageSource
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import fill as fill_by_calls
from tests.contract.message_actions import source_of
from tests.contract.variants import DEFAULTS, Variant
from tests.servers import at_statement, connect, value
from tests.servers import execute as execute_sql
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
        if filters.keep_newest is not None and action.source.why_not_by_age("ready"):
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


@pytest.mark.parametrize(
    ("design", "batch"),
    [*product(["fifo"], [None, 3]), *product(["naive", "ring", "claim", "status", "split"], [3])],
)
def test_the_newest_are_kept_whatever_leaves_meanwhile(
    use_postgresql: Use, design: str, batch: int | None
) -> None:
    client = use_postgresql(Variant(DESIGNS[design], {}))
    client.push_many(client.payloads(*range(20)))
    action = Purge(source_of(client))
    plan = select(client.database, action, parse(("state=ready", "keep-newest=10")))
    assert plan.count == 10
    client.pop_many(8)
    result = execute.execute(client.database, action, plan, Batching(batch))
    assert result.done == 2
    assert result.lines[-1] == (
        "  8 fewer: others have left since the plan, and the newest 10 are kept"
    )
    assert [message.payload for message in client.drain()] == client.payloads(*range(10, 20))


@pytest.mark.parametrize("batch", [None, 3])
def test_those_that_leave_before_their_batch_are_in_the_result(
    use_postgresql: Use, batch: int | None
) -> None:
    client = use_postgresql(Variant(DESIGNS["fifo"], {}))
    client.push_many(client.payloads(*range(20)))
    plan = select(client.database, Purge(source_of(client)))
    client.pop_many(8)
    action = Purge(source_of(client))
    result = execute.execute(client.database, action, plan, Batching(batch))
    assert result.lines[1:] == (
        "  12 of 20 done, 0 skipped, 0 failed",
        "  8 had left or changed before their batch",
    )


def test_what_changes_meanwhile_is_taken_where_the_newest_are_kept(use_postgresql: Use) -> None:
    """A payload alone: the message has another place in the table, and is the same."""
    client = use_postgresql(Variant(DESIGNS["fifo"], {}))
    action = Purge(source_of(client))
    table = f'"{client.queue.schema}"."{client.queue.table}"'

    def change() -> None:
        with connect(client.url) as connection:
            connection.execute(
                f"""UPDATE {table} SET payload = payload || '+'
                WHERE id IN (SELECT id FROM {table} FOR UPDATE SKIP LOCKED)""".encode()
            )

    for number in itertools.count(1):
        client.push_many(client.payloads(*range(6)))
        plan = select(client.database, action, parse(("keep-newest=4",)))
        with at_statement(number, change) as called:
            result = execute.execute(client.database, action, plan)
        assert (result.done, result.ledger.skipped_count) == (2, 0), number
        assert len(client.drain()) == 4
        if not called():
            break
    assert number > 5


@pytest.mark.parametrize("batch", [None, 1])
def test_the_newest_of_those_that_are_released_are_kept(
    use_postgresql: Use, batch: int | None
) -> None:
    """Claims that it leaves alone are not among them, wherever they are."""
    client = use_postgresql(Variant(DESIGNS["claim"], {"consumers": "direct"}))
    client.push_many(client.payloads(*range(4)))
    pop = SQL("SELECT id FROM {}(bound => true)").format(
        Identifier(client.queue.schema, f"{client.queue.name}_pop")
    )

    def claim(connection: psycopg.Connection) -> str:
        (row,) = connection.execute(pop).fetchall()
        return str(row[0])

    with connect(client.url) as gone, connect(client.url) as alive:
        first, _, *newest = (claim(session) for session in (gone, alive, gone, gone))
    release = Release(source_of(client), stuck_after_seconds=300)
    with connect(client.url) as alive:
        alive.execute(
            f'''UPDATE "{client.queue.table}" SET claimed_by = (SELECT format(
                'pid=%%s start=%%s bound', pid, to_char(backend_start AT TIME ZONE 'UTC',
                'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) FROM pg_stat_activity
                WHERE pid = pg_backend_pid()) WHERE id NOT IN (%s, %s, %s)'''.encode(),
            [first, *newest],
        )
        plan = select(client.database, release, parse(("keep-newest=2",)))
        assert plan.count == 1
        others = select(client.database, release, parse(("limit=1",)))
        assert execute.execute(client.database, release, others).done == 1
        result = execute.execute(client.database, release, plan, Batching(batch))
    assert result.done == 0
    assert [message.id for message in client.pop_many(4)] == [first]


def test_the_newest_of_an_archive_are_kept_whoever_restores_meanwhile(use_postgresql: Use) -> None:
    client = use_postgresql(Variant(DESIGNS["fifo"], {}))
    client.push_many(client.payloads(*range(8)))
    execute.plan(client.database, Purge(source_of(client))).run_to_end()
    action = Restore(source_of(client))
    plan = select(client.database, action, parse(("keep-newest=6",)))
    assert plan.count == 2
    execute.execute(client.database, action, select(client.database, action, parse(("limit=1",))))
    assert execute.execute(client.database, action, plan).done == 1
    assert [message.payload for message in client.drain()] == client.payloads(0, 1)


def newest(client: Client) -> list[int]:
    ids = execute_sql(client.url, f'SELECT id FROM "{client.queue.table}" ORDER BY id')
    return [id_ for (id_,) in ids]


def test_the_newest_are_kept_although_the_row_of_another_is_an_error(use_postgresql: Use) -> None:
    client = use_postgresql(Variant(DESIGNS["fifo"], {"payload": "json"}))
    marked = {*range(3), *range(2500, 2503), *range(4500, 4510)}
    client.push_many([json.dumps({"k": int(n in marked)}) for n in range(4600)])
    of_marked = f"""FROM "{client.queue.table}" WHERE CAST(payload ->> 'k' AS int) = 1"""
    planned = select(
        client.database,
        action := Purge(source_of(client)),
        parse(("state=ready", "payload.k=1", "keep-newest=10")),
    )
    first, *_, fourth, fifth, sixth = [
        id_ for (id_,) in execute_sql(client.url, f"SELECT id {of_marked} ORDER BY id LIMIT 6")
    ]
    execute_sql(client.url, f"DELETE {of_marked} AND id IN ({fourth}, {fifth}, {sixth})")
    execute_sql(
        client.url,
        f"""CREATE FUNCTION public.no_good() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF OLD.id = {first} THEN RAISE division_by_zero; END IF; RETURN OLD; END $$;
        CREATE TRIGGER no_good BEFORE DELETE ON "{client.queue.table}"
        FOR EACH ROW EXECUTE FUNCTION public.no_good()""",
    )
    result = execute.execute(client.database, action, planned)
    assert (planned.count, result.done, result.ledger.failed_count) == (6, 2, 1)
    assert value(client.url, f"SELECT count(*) {of_marked}") == 11


def test_no_more_are_taken_than_planned_whatever_becomes_ready_meanwhile(
    use_postgresql: Use,
) -> None:
    client = use_postgresql(Variant(DESIGNS["status"], {}))
    action = Purge(source_of(client))
    reached, number = True, 0
    while reached:
        number += 1
        client.push_many(client.payloads(*range(20)))
        for message in client.pop_many(5):
            client.fail(message, "no good")
        planned = select(client.database, action, parse(("state=ready", "keep-newest=10")))
        ready = f'''UPDATE "{client.queue.table}"
            SET status = 0, errors = NULL, done_at = NULL, claimed_at = NULL, claimed_by = NULL
            WHERE status = 4'''
        with at_statement(number, lambda: execute_sql(client.url, ready)) as called:  # noqa: B023
            result = execute.execute(client.database, action, planned)
        reached = called()
        assert (planned.count, result.done) == (5, 5)
        execute_sql(client.url, f'DELETE FROM "{client.queue.table}"')


def test_what_others_hold_is_no_reason_to_leave_what_is_free(use_postgresql: Use) -> None:
    client = use_postgresql(Variant(DESIGNS["fifo"], {}))
    client.push_many(client.payloads(*range(20)))
    action = Purge(source_of(client))
    planned = select(client.database, action, parse(("state=ready", "keep-newest=10")))
    ids = newest(client)
    table = f'"{client.queue.table}"'
    execute_sql(client.url, f"DELETE FROM {table} WHERE id IN ({ids[5]}, {ids[6]})")
    with connect(client.url) as holder, holder.transaction():
        holder.execute(f"SELECT FROM {table} WHERE id <= {ids[4]} FOR UPDATE".encode())
        result = execute.execute(client.database, action, planned, Batching(3))
    assert (result.done, result.ledger.skipped_count) == (3, 5)
    assert newest(client) == ids[:5] + ids[10:]


def test_the_newest_of_several_ids_are_not_kept(use_postgresql: Use) -> None:
    """They are taken in the order in which they are named, out of the archive, too."""
    client = use_postgresql(Variant(DESIGNS["fifo"], {}))
    ids = client.push_many(client.payloads(*range(3)))
    execute.plan(client.database, Purge(source_of(client))).run_to_end()
    filters = parse((*(f"id={id_}" for id_ in ids), "keep-newest=1"))
    with pytest.raises(UsageError, match="several ids"):
        select(client.database, Restore(source_of(client)), filters)


@pytest.mark.parametrize(
    ("design", "why"),
    {"heap": "a new message takes the place", "pending": "order of their due times"}.items(),
)
def test_no_newest_are_kept_where_nothing_orders_messages_by_age(
    use_postgresql: Use, design: str, why: str
) -> None:
    """A heap's first row may be its newest: it has taken the place of one that was popped."""
    client = use_postgresql(Variant(DESIGNS[design], {}))
    client.push_many(client.payloads(*range(20)))
    with pytest.raises(UsageError, match=why) as error:
        select(client.database, Purge(source_of(client)), parse(["state=ready", "keep-newest=5"]))
    assert "--filter older=1h" in str(error.value)
    assert len(client.drain()) == 20


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
