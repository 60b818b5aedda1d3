"""Actions on PostgreSQL: on adopted tables, with faults in the database, and how much of a deep
queue a batch reads."""

import json
import threading
from collections import Counter
from collections.abc import Sequence

import pytest
from sqlalchemy import Connection, text

from console import sql
from console.actions import execute, message_action, rows
from console.actions.archive import Archive, Purge
from console.actions.execute import Batching
from console.actions.message_action import MessageAction
from console.actions.requeue import Release, Requeue
from console.actions.rows import QueueSelection, SelectionCriteria, Storage
from console.catalog.audit import ImbalanceError
from console.designs import DESIGNS, design
from console.engines import PRODUCTS, Database, Timeouts, open_database
from console.errors import BusyError, ConnectionFailedError, RefusedError, UsageError
from console.features.presets.adopt import adopt
from console.monitor.errors import error_groups
from console.monitor.filters import Filters, parse
from console.monitor.message import Message
from console.monitor.scan_query import MessageSource
from console.plan import Control, Progress
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.filled import read_messages
from tests.contract.message_actions import entries, planned, source_of
from tests.contract.plans import Statement
from tests.contract.test_actions import action_for, contents
from tests.contract.variants import DEFAULTS, Variant, default
from tests.servers import connect
from tests.servers.proxy import Proxy
from tests.tools.filling import fill

ROLES = {
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


def done(database: Database, action: MessageAction, *words: str) -> int:
    action_plan = message_action.select(database, action, parse(words))
    result = execute.execute(database, action, action_plan)
    assert (result.ledger.out, result.ledger.skipped_count) == (action_plan.count, 0)
    return result.ledger.out


def run(database: Database, *statements: str) -> None:
    with database.transaction("prepare") as connection:
        for statement in statements:
            connection.execute(text(statement.replace(":", "\\:")))


def states(database: Database, table: str) -> Counter[str]:
    query = (
        "SELECT CASE WHEN err IS NOT NULL THEN 'error' WHEN started IS NULL THEN 'ready' "
        f"ELSE 'claimed' END, count(*) FROM public.\"{table}\" GROUP BY 1"
    )
    with database.transaction("count", read_only=True) as connection:
        return Counter({str(state): int(n) for state, n in connection.execute(text(query))})


@pytest.mark.parametrize("type_", TYPES)
def test_actions_work_on_claim_queues_with_ids_of_any_type(
    postgresql: Database, type_: str
) -> None:
    value, table = TYPES[type_], f"jobs by {type_}"
    run(
        postgresql,
        f'CREATE TABLE public."{table}" ("job id" {type_} PRIMARY KEY, made timestamptz, '
        "started timestamptz, err text, tries int, finished timestamptz, body text)",
        f"INSERT INTO public.\"{table}\" SELECT {value}, now() - interval '1 h', "
        "CASE WHEN n > 10 THEN now() - interval '30 m' END, "
        "CASE WHEN n > 20 THEN 'no' END, 1, CASE WHEN n > 20 THEN now() END, 'x' "
        "FROM generate_series(1, 30) AS n",
    )
    queue = adopt(postgresql, "public", table, design("claim"), ROLES)
    source = source_of(Client(postgresql, queue))
    assert done(postgresql, Requeue(source), "limit=4") == 4
    assert states(postgresql, table) == {"ready": 14, "claimed": 10, "error": 6}
    # The owners of these claims are unknown.
    assert done(postgresql, Release(source, stuck_after_seconds=60.0)) == 0
    assert done(postgresql, Release(source, stuck_after_seconds=60.0, unknown=True)) == 10
    assert states(postgresql, table) == {"ready": 24, "error": 6}
    with pytest.raises(RefusedError, match="has no archive"):
        Purge(source)
    with pytest.raises(RefusedError, match="has no archive"):
        Archive(source)
    assert done(postgresql, Purge(source, permanently=True), "state=error") == 6
    assert done(postgresql, Purge(source, permanently=True), "older=10m") == 24
    assert states(postgresql, table) == {}


def test_a_table_with_only_a_payload_column_can_be_purged(new_database: Database) -> None:
    run(
        new_database,
        "CREATE TABLE public.mail (body text)",
        "INSERT INTO public.mail SELECT 'x' FROM generate_series(1, 20)",
    )
    queue = adopt(new_database, "public", "mail", design("heap"), {"payload": "body"})
    source = source_of(Client(new_database, queue))
    with pytest.raises(UsageError):
        Requeue(source)
    assert done(new_database, Purge(source, permanently=True), "limit=5") == 5
    assert done(new_database, Purge(source, permanently=True)) == 15


@pytest.mark.parametrize("escalates", [True, False])
def test_batches_of_an_adopted_table_stay_below_a_lock_of_the_whole_table(
    new_database: Database, monkeypatch: pytest.MonkeyPatch, *, escalates: bool
) -> None:
    """Where the engine turns many locks into one of the table, as SQL Server does: a message locks
    a row, and a key in each index."""
    run(
        new_database,
        "CREATE TABLE public.mail (id bigint PRIMARY KEY, body text, kind text)",
        "CREATE INDEX ON public.mail (kind, id)",
        "CREATE INDEX ON public.mail (body)",
        "INSERT INTO public.mail SELECT n, 'x', 'y' FROM generate_series(1, 2500) AS n",
    )
    monkeypatch.setattr(type(new_database.product), "escalates_locks", escalates)
    queue = adopt(new_database, "public", "mail", design("heap"), {"id": "id", "payload": "body"})
    action = Purge(source_of(Client(new_database, queue)), permanently=True)
    line = (
        "batches of 1,000, not 4,000: a message locks its row and 3 index keys, and for thousands "
        "of locks the server may lock the whole table"
    )
    plans = [
        execute.plan(new_database, action, batching=Batching(batch=size)) for size in (1000, 4000)
    ]
    assert [any(line in one for one in found.lines) for found in plans] == [False, escalates]
    reported: list[Progress] = []
    result = plans[-1].run(Control(), reported.append)
    assert result.done == 2500
    assert [one.done for one in reported] == ([1000, 2000, 2500] if escalates else [2500])


def test_only_sql_server_escalates_locks() -> None:
    assert [name for name, product in PRODUCTS.items() if product.escalates_locks] == ["mssql"]


MESSAGES = 60


@pytest.fixture
def client(use_postgresql: Use) -> Client:
    """A claim queue full of ready messages."""
    made = use_postgresql(default("claim"))
    made.push_many(made.payloads(*range(MESSAGES)))
    return made


def test_an_imbalance_rolls_back_the_batch_and_stops_the_action(client: Client) -> None:
    """A trigger discards every tenth row on its way into the archive."""
    archive = f'public."{client.queue.name}_archive"'
    run(
        client.database,
        "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN IF new.archive_id % 10 = 0 THEN RETURN NULL; END IF; RETURN new; END$$",
    )
    run(
        client.database,
        f"CREATE TRIGGER t BEFORE INSERT ON {archive} FOR EACH ROW EXECUTE FUNCTION swallow()",
    )
    action = action_for(client, "purge")
    action_plan = message_action.select(client.database, action)
    with pytest.raises(ImbalanceError, match="DOES NOT BALANCE"):
        execute.execute(client.database, action, action_plan, batching=Batching(batch=4))
    found = contents(client)
    assert found["ready"] + found["archived"] == MESSAGES
    assert found["archived"] == 8, "the two batches before it stay done"
    entry, *_ = entries(client, "purge")
    assert (entry.outcome, entry.done) == ("failed", 8)
    assert "BALANCE" in entry.detail


def test_an_action_on_a_locked_table_waits_until_it_is_stopped(client: Client) -> None:
    url = client.url
    impatient_database = open_database(url, timeouts=Timeouts(lock_seconds=0.05))
    impatient = Client(impatient_database, client.queue)
    action = action_for(impatient, "purge")
    action_plan = message_action.select(impatient_database, action)
    control = Control()
    with client.database.transaction("lock") as connection:
        connection.execute(text(f'LOCK TABLE public."{client.queue.name}" IN EXCLUSIVE MODE'))
        threading.Timer(0.3, control.stop).start()
        with pytest.raises(BusyError):
            execute.execute(impatient_database, action, action_plan, control=control)
    assert contents(client) == Counter(ready=MESSAGES)
    again = execute.execute(
        impatient_database, action, message_action.select(impatient_database, action)
    )
    assert again.ledger.out == MESSAGES
    impatient_database.close()


def test_a_message_whose_error_text_changed_is_no_longer_in_the_error_group(client: Client) -> None:
    """An error that is edited by hand keeps its attempts: only the text differs."""
    for number, taken in enumerate(client.pop_many(3)):
        client.fail(taken, f"no route to host {number}")
    (group,) = error_groups(client.database, client.queue).groups
    action = action_for(client, "requeue")
    action_plan = planned(client, action, f"error-group={group.key}")
    run(
        client.database,
        f"UPDATE public.\"{client.queue.name}\" SET errors = errors || '!' "
        "WHERE errors = 'no route to host 1'",
    )
    done = execute.execute(client.database, action, action_plan)
    assert (action_plan.count, done.ledger.out, done.ledger.skipped_count) == (3, 2, 1)
    assert [m.error for m in read_messages(client, "state=error").messages] == [
        "no route to host 1!"
    ]


def test_rows_locked_by_other_sessions_are_skipped(client: Client) -> None:
    action = action_for(client, "purge")
    action_plan = message_action.select(client.database, action)
    with client.database.transaction("hold") as connection:
        connection.execute(
            text(f'SELECT FROM public."{client.queue.name}" ORDER BY created_at LIMIT 7 FOR UPDATE')
        )
        done = execute.execute(client.database, action, action_plan, batching=Batching(batch=10))
    assert (done.ledger.out, done.ledger.skipped_count) == (MESSAGES - 7, 7)
    assert contents(client) == Counter(ready=7, archived=MESSAGES - 7)


def test_an_action_that_lost_its_connection_can_be_repeated_to_finish(client: Client) -> None:
    with Proxy(client.url) as proxy:
        far = open_database(proxy.url)
        distant = Client(far, client.queue)
        action = action_for(distant, "purge")
        action_plan = message_action.select(far, action)

        def cut(now: Progress) -> None:
            if now.text == "3 batches":
                proxy.cut()

        with pytest.raises(ConnectionFailedError):
            execute.execute(far, action, action_plan, batching=Batching(batch=5), on_progress=cut)
        far.close()
    found = contents(client)
    assert found["ready"] + found["archived"] == MESSAGES
    done = entries(client, "purge")[0].done
    assert done == found["archived"] >= 15
    action = action_for(client, "purge")
    again = execute.execute(client.database, action, message_action.select(client.database, action))
    assert again.ledger.out == MESSAGES - done
    assert contents(client) == Counter(archived=MESSAGES)


def test_an_action_that_is_ended_in_the_audit_table_stops(client: Client) -> None:
    action = action_for(client, "purge")
    action_plan = message_action.select(client.database, action)

    def end(now: Progress) -> None:
        if now.text == "2 batches":
            run(client.database, "UPDATE dbq.action SET ended_at = now() WHERE ended_at IS NULL")

    with pytest.raises(RefusedError, match="no longer running"):
        execute.execute(
            client.database, action, action_plan, batching=Batching(batch=5), on_progress=end
        )
    assert contents(client) == Counter(ready=MESSAGES - 10, archived=10)


BATCH = 5
BATCH_VARIANTS = [
    *(variant for variant in DEFAULTS if variant.design.name not in {"ring", "broker"}),
    Variant(DESIGNS["ring"], {"in_hand": "on"}),
]


@pytest.mark.long
@pytest.mark.parametrize("variant", BATCH_VARIANTS, ids=str)
def test_a_batch_reads_only_its_own_rows(use_postgresql: Use, variant: Variant, long: bool) -> None:
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
            read = pages_read(connection, source, chosen, storage, state)
            connection.get_transaction().rollback()  # type: ignore[union-attr]
        for name, pages in read.items():
            # A key is found through an index of a few levels, in the table and in others.
            assert pages <= BATCH * 20, f"{name} of {state} read {pages} pages"


def first(client: Client, state: str) -> tuple[MessageSource, list[Message]]:
    database = client.database
    with database.session("look", read_only=True) as session:
        with session.transaction("look") as connection:
            source = MessageSource.of(connection, client.queue)
            now = connection.execute(
                sql.query("actions.server_time", connection.dialect, sql.Scope())
            ).scalar()
        of = SelectionCriteria(database, session, Filters(), [state], now)  # type: ignore[arg-type]
        choice = QueueSelection(source, of)
        return source, choice.next(BATCH)


def pages_read(
    connection: Connection,
    source: MessageSource,
    chosen: Sequence[Message],
    storage: Storage,
    state: str,
) -> dict[str, int]:
    """Statement -> the number of pages that it reads for the batch."""
    (held,), skipped = rows.lock_rows(connection, source, chosen)
    assert (len(held.locations), skipped) == (BATCH, 0)
    keys = [rows.key_of(source.queue, storage, message) for message in chosen]
    due = [rows.due_of(message) for message in chosen]
    values: dict[str, object] = {"keys": keys, "due": due, "locations": list(held.locations)}
    values |= {"state": state, "reason": "test", "action_id": None}
    names = ["lock_rows", "archive_rows", "delete_rows"] + ["make_ready"] * (state == "error")
    return {name: explained_pages(connection, source, storage, name, values) for name in names}


def explained_pages(
    connection: Connection,
    source: MessageSource,
    storage: Storage,
    name: str,
    values: dict[str, object],
) -> int:
    statement = source.statement_name(name)
    scope = rows.scope(source, storage, to_back="no", hashed="no")
    query = sql.query(statement, connection.dialect, scope)
    explain = text(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {query.text}")
    with connection.begin_nested() as undone:
        scalar_one = connection.execute(explain, values).scalar_one()
        undone.rollback()
    plan = (json.loads(scalar_one) if isinstance(scalar_one, str) else scalar_one)[0]["Plan"]
    return Statement(statement, plan).buffers
