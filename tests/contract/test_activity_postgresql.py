"""Sessions, locks and waits as PostgreSQL reports them: blockers, waiters, the cost of a sample."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import event, make_url, text

from console import sql
from console.actions.adopt import adopt
from console.actions.install import install
from console.designs import DESIGNS
from console.engines import Database, open_database
from console.engines.embedded import EmbeddedServer
from console.monitor.activity import Activity, Session, find_objects, sample_activity
from console.monitor.known_waits import known_waits
from console.monitor.waits import watch
from console.sql import templates
from tests.contract.client import Client
from tests.contract.conftest import Use
from tests.contract.test_activity import at, held, popping, push_some, seen
from tests.contract.variants import DEFAULTS, SMALL_RING, Variant, mostly
from tests.servers import connect, value, wait_until
from tests.template import CopiedServer

FIFO = Variant(DESIGNS["fifo"], {})
STRICT = Variant(DESIGNS["fifo"], {"order": "strict"})
NAIVE = Variant(DESIGNS["naive"], {})
RING = Variant(DESIGNS["ring"], {"size": SMALL_RING})
QUICK_SECONDS = 5.0
"""A sample that a session could block would take longer."""


def run(connection: psycopg.Connection, statement: str, *names: str) -> None:
    connection.execute(SQL(statement).format(*map(Identifier, names)))


def of(activity: Activity, application: str) -> Session:
    (found,) = [s for s in activity.relevant_sessions if s.application == application]
    return found


def session(client: Client, application: str) -> "closing[psycopg.Connection]":
    """A session of its own; what it did is undone at the end."""
    words = make_url(client.url).translate_connect_args(username="user", database="dbname")
    return closing(psycopg.connect(**words, application_name=application))


@contextmanager
def waiting(connection: psycopg.Connection, statement: str, *names: str) -> Iterator[None]:
    """The statement runs meanwhile, and is undone; at the end it must not wait any more."""

    def work() -> None:
        with suppress(psycopg.errors.QueryCanceled):
            run(connection, statement, *names)
        connection.rollback()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    thread.join(60.0)
    assert not thread.is_alive()


def test_a_strict_queue_waits_for_its_own_two_locks(use_postgresql: Use) -> None:
    """Who waits for those has no lock on the table yet."""
    client = use_postgresql(STRICT)
    name = client.queue.name
    push_some(client)
    with session(client, "holder") as holder, popping_behind(client, holder) as activity:
        pass
    (waiter,) = [s for s in activity.relevant_sessions if s.blocked_by]
    assert (waiter.wait_kind, waiter.wait) == ("Lock", "advisory")
    assert waiter.waits_for == f"ExclusiveLock on advisory pop of {name}"
    assert waiter.queues == (("public", name),)
    found = {lock.object for lock in of(activity, "holder").locks if lock.lock == "advisory"}
    assert found == {f"pop of {name}", f"push of {name}"}


@contextmanager
def popping_behind(client: Client, holder: psycopg.Connection) -> Iterator[Activity]:
    """One that has pushed and popped, and another one that wants to pop."""
    run(holder, "SELECT {}('x')", f"{client.queue.name}_push")
    run(holder, "SELECT * FROM {}()", f"{client.queue.name}_pop")
    with popping(client, 1):
        yield seen(client, lambda activity: activity.waiting == 1)
        holder.rollback()


def test_a_table_that_is_locked_exclusively_holds_up_no_look(use_postgresql: Use) -> None:
    """A relay in an open transaction keeps all of a ring, and its rows in the catalog."""
    client = use_postgresql(RING)
    name = client.queue.name
    push_some(client)
    with session(client, "relay") as relay, ExitStack() as poppers:
        run(relay, "SELECT * FROM {}()", f"{name}_relay")
        poppers.enter_context(popping(client, 2))
        activity = seen(client, lambda activity: activity.waiting == 2)
        started = time.monotonic()
        report = watch(client.database, [client.queue], seconds=0)
        elapsed = time.monotonic() - started
        relay.rollback()
    assert elapsed < QUICK_SECONDS
    assert (report.samples, report.missing) == (1, {})
    (tree,) = activity.trees
    assert tree.key == of(activity, "relay").key
    waits = {activity.by_key[node.key].waits_for for node in tree.waiters}
    assert waits == {f"AccessShareLock on relation {name}_parked"}
    assert "A relay runs" in str(at(client, report.waits)["relation"].meaning)


def test_all_stand_behind_one_who_only_wants_the_table(use_postgresql: Use) -> None:
    client = use_postgresql(FIFO)
    push_some(client)
    with session(client, "reader") as reader, session(client, "ddl") as ddl, ExitStack() as waiters:
        run(reader, "SELECT FROM {} LIMIT 0", client.queue.name)
        waiters.enter_context(waiting(ddl, "LOCK TABLE {}", client.queue.name))
        seen(client, lambda activity: activity.waiting == 1)
        waiters.enter_context(popping(client, 2))
        activity = seen(client, lambda activity: activity.waiting == 3)
        reader.rollback()
    (tree,) = activity.trees
    (second,) = tree.waiters
    assert (tree.key, second.key) == (of(activity, "reader").key, of(activity, "ddl").key)
    assert len(second.waiters) == 2


def test_a_deadlock_is_a_tree_cut_open(use_postgresql: Use) -> None:
    client = use_postgresql(NAIVE)
    name = client.queue.name
    push_some(client)
    with session(client, "one") as one, session(client, "two") as two, ExitStack() as waiters:
        for number, connection in enumerate((one, two), 1):
            run(connection, "SET LOCAL deadlock_timeout = '30s'")
            run(connection, f"SELECT FROM {{}} WHERE message_id = {number} FOR UPDATE", name)
        for number, connection in enumerate((one, two), 1):
            wanted = f"SELECT FROM {{}} WHERE message_id = {3 - number} FOR UPDATE"
            waiters.enter_context(waiting(connection, wanted, name))
        activity = seen(client, lambda activity: activity.waiting == 2)
        two.cancel_safe()
    (tree,) = activity.trees
    assert (tree.cut, tree.size) == (True, 2)
    assert {of(activity, "one").key, of(activity, "two").key} == {tree.key, tree.waiters[0].key}


def test_of_an_adopted_table_its_locks_are_seen(use_postgresql: Use) -> None:
    database = use_postgresql(FIFO).database
    with database.transaction("make a table") as connection:
        connection.execute(text("CREATE TABLE theirs (number bigserial PRIMARY KEY, body text)"))
        connection.execute(text("INSERT INTO theirs (body) VALUES ('x')"))
    roles = {"id": "number", "payload": "body"}
    client = Client(database, adopt(database, "public", "theirs", DESIGNS["fifo"], roles))
    with session(client, "theirs") as holder:
        run(holder, "UPDATE theirs SET body = 'y'")
        (seen_now,) = sample_activity(
            database, find_objects(database, [client.queue])
        ).relevant_sessions
    assert {lock.object for lock in seen_now.locks} == {"theirs"}
    assert seen_now.query == "UPDATE theirs SET body = ?"


@pytest.fixture(scope="module")
def preparing() -> Iterator[EmbeddedServer]:
    """A server of our own: transactions can be prepared, and logins of any kind be made."""
    with CopiedServer.start(settings={"max_prepared_transactions": "5"}) as server:
        yield server


def test_a_prepared_transaction_is_a_root_through_a_restart_too(preparing: EmbeddedServer) -> None:
    client = installed(preparing, "prepared")
    push_some(client)
    with connect(client.url) as connection:
        run(connection, "BEGIN")
        run(connection, "SELECT * FROM {}()", f"{client.queue.name}_pop")
        run(connection, "PREPARE TRANSACTION 'left behind'")
    for restarted in (False, True):
        if restarted:
            preparing.restart()
        with session(client, "waiter") as waiter, ExitStack() as waiters:
            statement = "SELECT * FROM {}()"
            waiters.enter_context(waiting(waiter, statement, f"{client.queue.name}_pop"))
            activity = seen(client, lambda activity: activity.waiting == 1)
            waiter.cancel_safe()
        (tree,) = activity.trees
        root = activity.by_key["left behind"]
        assert (tree.key, tree.size) == ("left behind", 2)
        assert (root.kind, root.wait, root.user) == (*("prepared transaction",) * 2, "postgres")
        assert {lock.queue for lock in root.locks} == {client.queue.name}
        assert root.transaction_seconds is not None
        report = watch(client.database, [client.queue], seconds=0)
        assert report.horizon[0].kind == "prepared transaction"
        assert at(client, report.waits)["prepared transaction"].share == 1.0
    client.database.close()


def installed(server: EmbeddedServer, name: str, variant: Variant = NAIVE) -> Client:
    database = open_database(server.create_database(name))
    client = Client(database, variant.queue("public", "q", "postgresql"))
    install(database, client.queue)
    return client


def test_what_the_login_may_not_see_is_unknown_and_never_no_wait(
    preparing: EmbeddedServer,
) -> None:
    """Locks are seen by everybody, what sessions do is not."""
    client = installed(preparing, "hidden")
    push_some(client)
    with connect(client.url) as connection:
        run(connection, "CREATE ROLE looker LOGIN PASSWORD 'pass'")
    url = make_url(client.url).set(username="looker", password="pass")
    looker = open_database(url.render_as_string(hide_password=False))
    with ExitStack() as waiters, held(client):
        waiters.enter_context(popping(client, 1))
        seen(client, lambda activity: activity.waiting == 1)
        report = watch(looker, [client.queue], seconds=0)
    looker.close()
    client.database.close()
    (tree,) = report.activity.trees
    holder, waiter = (report.activity.by_key[key] for key in (tree.key, tree.waiters[0].key))
    assert (holder.state, holder.wait, holder.query, holder.user) == (*(None,) * 3, "postgres")
    assert (waiter.wait_kind, waiter.wait, waiter.state) == ("Lock", "transactionid", None)
    assert list(report.missing) == ["sessions"]
    assert "pg_read_all_stats" in report.missing["sessions"]
    unknown = at(client, report.waits)[None]
    assert (unknown.kind, unknown.share, unknown.meaning) == (None, 1.0, None)


@pytest.mark.long
def test_dead_rows_and_who_keeps_them(use_postgresql: Use) -> None:
    client = use_postgresql(FIFO)
    push_some(client)
    with session(client, "old") as old:
        run(old, "SELECT txid_current()")
        client.drain()
        reports = []

        def told() -> bool:
            reports.append(watch(client.database, [client.queue], seconds=0))
            return bool(reports[-1].dead_rows.get(("public", client.queue.name)))

        wait_until(told, "the server's statistics")
        pid = old.info.backend_pid
    report = reports[-1]
    assert report.dead_rows == {("public", client.queue.name): 5}
    oldest = report.horizon[0]
    assert (oldest.session_id, oldest.name) == (pid, value(client.url, "SELECT current_user"))
    assert oldest.transactions
    assert oldest.seconds


@pytest.mark.long
@pytest.mark.parametrize("variant", mostly([FIFO, RING], DEFAULTS), ids=str)
def test_a_look_reads_no_queue_and_locks_nothing_of_it(
    use_postgresql: Use, variant: Variant
) -> None:
    client = use_postgresql(variant)
    objects = find_objects(client.database, [client.queue])
    ids = {
        "relations": objects.ids(advisory=False),
        "advisory_locks": objects.ids(advisory=True),
        "schemas": ["public"],
        "queues": [client.queue.name],
        "names": [client.queue.table],
        "sessions": [],
    }
    read: set[str] = set()
    for statement in templates.statements("postgresql", "activity").values():
        with client.database.transaction("read", read_only=True) as connection:
            query = sql.query(statement, connection.dialect, sql.Scope()).text
            explain = text("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query)
            names = {name: ids[name] for name in explain.compile().params}
            (plan,) = connection.execute(explain, names).scalar_one()
            held_now = connection.execute(
                text("SELECT CAST(relation AS bigint) FROM pg_locks WHERE pid = pg_backend_pid()")
            ).scalars()
            assert not set(map(str, held_now)) & set(ids["relations"]), statement.label
        assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] < PAGES
        read |= _relations(plan["Plan"])
    assert {name for name in read if not name.startswith("pg_")} == set()
    assert "pg_class" in read


PAGES = 500
"""Of the system catalog, in the cache or not, that one statement may read."""


def _relations(plan: dict[str, object]) -> set[str]:
    found = {str(plan["Relation Name"])} if "Relation Name" in plan else set()
    for inner in plan.get("Plans", []):  # type: ignore[attr-defined]
        found |= _relations(inner)
    return found


def test_more_queues_need_no_more_statements(use_postgresql: Use) -> None:
    clients = [use_postgresql(FIFO) for _ in range(3)]
    database = clients[0].database
    counts: list[int] = []

    def ran(*_: object) -> None:
        counts[-1] += 1

    event.listen(database._engine, "after_cursor_execute", ran)
    try:
        for queues in ([clients[0].queue], [client.queue for client in clients]):
            counts.append(0)
            watch(database, queues, seconds=0)
    finally:
        event.remove(database._engine, "after_cursor_execute", ran)
    assert counts[0] == counts[1]


def test_pauses_keep_dear_looks_apart(use_postgresql: Use) -> None:
    """A long sample is followed by a pause of nineteen times as long."""
    client = use_postgresql(FIFO)
    pauses: list[float] = []
    report = watch(
        client.database, [client.queue], seconds=0.3, interval_seconds=0.0, sleep=pauses.append
    )
    spent = report.seconds / (report.samples + 1)
    assert report.samples == len(pauses)
    assert all(pause > 5 * spent for pause in pauses[:-1])


def test_every_wait_of_the_data_is_one_that_the_server_knows(postgresql: Database) -> None:
    if postgresql.capabilities.version_number < 180000:
        pytest.skip("an older server knows fewer waits, or does not list them")
    with postgresql.transaction("read") as connection:
        rows = connection.execute(text("SELECT type, name FROM pg_wait_events"))
        there = {(kind.lower(), name.lower()) for kind, name in rows}
    ours = {
        ("cpu", "running"),
        ("client", "idle in transaction"),
        ("client", "prepared transaction"),
    }
    there |= ours | {(kind, "*") for kind, _ in there}
    known = {(it.kind.lower(), it.wait.lower()) for it in known_waits("postgresql")}
    assert known - there == set()


@pytest.mark.long
def test_a_name_with_quotes_finds_its_locks(virgin: Database) -> None:
    queue = STRICT.queue("public", "odd \"' name", "postgresql")
    install(virgin, queue)
    client = Client(virgin, queue)
    push_some(client)
    with held(client):
        (holder,) = sample_activity(virgin, find_objects(virgin, [queue])).relevant_sessions
    assert f"pop of {queue.name}" in {lock.object for lock in holder.locks}
