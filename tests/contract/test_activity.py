"""Which sessions of a queue wait for which, on every engine: with real holders and waiters.

Then on PostgreSQL: blockers, waiters, the cost of a sample.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url, text

from console import sql
from console.designs import DESIGNS
from console.engines import Database, open_database
from console.features.demo.embedded import EmbeddedServer
from console.features.presets.adopt import adopt
from console.monitor import waits
from console.monitor.activity import Activity, Session, find_objects, sample_activity
from console.monitor.known_waits import known_waits
from console.monitor.waits import Wait, watch
from console.sql import templates
from tests.contract.client import Client, call_pop
from tests.contract.conftest import Use
from tests.contract.installs import installed
from tests.contract.plans import Statement
from tests.contract.variants import BEHAVIOURS, DEFAULTS, SMALL_RING, Variant, long_except
from tests.servers import connect, login, statements_sent, value, wait_until

pytestmark = pytest.mark.slow

WAITING = [variant for variant in BEHAVIOURS if variant.waits]
SKIPPING = [
    variant for variant in BEHAVIOURS if not variant.waits and not variant.design.waits_itself
]


@contextmanager
def popping(client: Client, consumers: int) -> Iterator[None]:
    """Concurrent consumers that pop one message each; they must have finished at the end."""
    threads = [threading.Thread(target=client.pop, daemon=True) for _ in range(consumers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(60.0)
            assert not thread.is_alive()


@contextmanager
def held(client: Client) -> Iterator[None]:
    """A transaction that has popped a message and stays open until the end of the block."""
    with client.database.transaction("pop") as connection:
        assert call_pop(connection, client.queue)
        yield


def sampled_when(client: Client, enough: Callable[[Activity], bool]) -> Activity:
    """The first sample of the queue's sessions that is `enough`."""
    objects = find_objects(client.database, [client.queue])
    activity = Activity(())

    def is_enough() -> bool:
        nonlocal activity
        activity = sample_activity(client.database, objects)
        return enough(activity)

    wait_until(is_enough, "what is waited for here")
    return activity


def waits_of(client: Client, waits: Sequence[Wait]) -> dict[str | None, Wait]:
    """The waits of the queue, by name."""
    return {wait.wait: wait for wait in waits if wait.queue == client.queue}


def push_some(client: Client) -> None:
    client.push_many(client.payloads(*range(5)))


@pytest.mark.usefixtures("requires_session_views")
@pytest.mark.parametrize("variant", WAITING, ids=str)
def test_the_holder_of_the_head_is_the_root_and_waiters_are_below_it(client: Client) -> None:
    push_some(client)
    with ExitStack() as consumers, held(client):
        consumers.enter_context(popping(client, 3))
        activity = sampled_when(client, lambda a: a.waiting == 3)
        report = watch(client.database, [client.queue], seconds=0.5, interval_seconds=0.05)
    (tree,) = activity.trees
    root = activity.by_key[tree.key]
    assert (tree.size, tree.cut) == (4, False)
    assert (root.state, root.wait, root.blocked_by) == ("idle in transaction",) * 2 + ((),)
    assert (client.queue.schema, client.queue.name) in root.queues
    assert root.transaction_seconds is not None
    waiters = [activity.by_key[node.key] for node in tree.waiters]
    assert waiters
    assert all(waiter.wait_kind == "Lock" and waiter.waits_for for waiter in waiters)
    assert all((waiter.wait_seconds or 0.0) < 60.0 for waiter in waiters)
    assert report.activity.trees
    assert report.samples_with_waiters == report.samples >= 1
    found = waits_of(client, report.waits)
    idle = found.pop("idle in transaction")
    assert (idle.kind, idle.share, idle.sessions, idle.average) == ("Client", 1.0, 1, 1.0)
    locks = [wait for wait in found.values() if wait.share is not None]
    assert {wait.kind for wait in locks} == {"Lock"}
    assert sum(wait.average or 0.0 for wait in locks) == pytest.approx(3.0)
    assert all(wait.meaning for wait in (idle, *locks))


@pytest.mark.usefixtures("requires_session_views")
@pytest.mark.long
@pytest.mark.parametrize("variant", long_except(DEFAULTS, SKIPPING), ids=str)
def test_where_locked_rows_are_skipped_the_holder_is_listed_without_waiters(client: Client) -> None:
    push_some(client)
    objects = find_objects(client.database, [client.queue])
    assert not sample_activity(client.database, objects).relevant_sessions, "between transactions"
    with held(client):
        with popping(client, 2):
            pass
        activity = sampled_when(client, lambda a: bool(a.relevant_sessions))
        (holder,) = activity.relevant_sessions
    assert (holder.state, activity.trees) == ("idle in transaction", ())
    assert {(lock.schema, lock.queue) for lock in holder.locks} == {
        (client.queue.schema, client.queue.name)
    }


@pytest.mark.usefixtures("requires_session_views")
@pytest.mark.parametrize("variant", SKIPPING[:1] + WAITING[:1], ids=str)
def test_a_session_counts_only_for_the_queues_that_it_uses(use: Use, variant: Variant) -> None:
    touched, other = use(variant), use(variant)
    push_some(touched)
    with held(touched):
        report = watch(touched.database, [touched.queue, other.queue], seconds=0)
    assert waits_of(touched, report.waits)
    assert not waits_of(other, report.waits)
    assert [wait.wait for wait in report.waits if wait.queue is None] == ["idle in transaction"]


FIFO = Variant(DESIGNS["fifo"], {})
STRICT = Variant(DESIGNS["fifo"], {"order": "strict"})
NAIVE = Variant(DESIGNS["naive"], {})
RING = Variant(DESIGNS["ring"], {"size": SMALL_RING})
QUICK_SECONDS = 5.0
"""A sample that is blocked by a session would take longer."""


def run(connection: psycopg.Connection, statement: str, *names: str) -> None:
    connection.execute(SQL(statement).format(*map(Identifier, names)))


def of(activity: Activity, application: str) -> Session:
    (session,) = [s for s in activity.relevant_sessions if s.application == application]
    return session


def session(client: Client, application: str) -> "closing[psycopg.Connection]":
    """A new session; its transaction is rolled back at the end."""
    words = make_url(client.url).translate_connect_args(username="user", database="dbname")
    return closing(psycopg.connect(**words, application_name=application))


@contextmanager
def waiting(connection: psycopg.Connection, statement: str, *names: str) -> Iterator[None]:
    """The statement runs during the block and is rolled back; at the end it no longer waits."""

    def work() -> None:
        with suppress(psycopg.errors.QueryCanceled):
            run(connection, statement, *names)
        connection.rollback()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    thread.join(60.0)
    assert not thread.is_alive()


def test_waits_for_the_advisory_locks_of_a_strict_queue_are_named(use_postgresql: Use) -> None:
    """A session that waits for them has no lock on the table yet."""
    client = use_postgresql(STRICT)
    name = client.queue.name
    push_some(client)
    with session(client, "holder") as holder, popping_while_held(client, holder) as activity:
        pass
    (waiter,) = [s for s in activity.relevant_sessions if s.blocked_by]
    assert (waiter.wait_kind, waiter.wait) == ("Lock", "advisory")
    assert waiter.waits_for == f"ExclusiveLock on advisory pop of {name}"
    assert waiter.queues == (("public", name),)
    found = {lock.object for lock in of(activity, "holder").locks if lock.lock == "advisory"}
    assert found == {f"pop of {name}", f"push of {name}"}


@contextmanager
def popping_while_held(client: Client, holder: psycopg.Connection) -> Iterator[Activity]:
    """`holder` has pushed and popped, and another session waits to pop."""
    run(holder, "SELECT {}('x')", f"{client.queue.name}_push")
    run(holder, "SELECT * FROM {}()", f"{client.queue.name}_pop")
    with popping(client, 1):
        yield sampled_when(client, lambda activity: activity.waiting == 1)
        holder.rollback()


def test_an_exclusively_locked_table_delays_no_sample(use_postgresql: Use) -> None:
    """A relay in an open transaction locks the whole ring and its rows in the catalog."""
    client = use_postgresql(RING)
    name = client.queue.name
    push_some(client)
    with session(client, "relay") as relay, ExitStack() as poppers:
        run(relay, "SELECT * FROM {}()", f"{name}_relay")
        poppers.enter_context(popping(client, 2))
        activity = sampled_when(client, lambda activity: activity.waiting == 2)
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
    assert "A relay runs" in str(waits_of(client, report.waits)["relation"].meaning)


def test_sessions_wait_behind_one_that_waits_for_an_exclusive_lock(use_postgresql: Use) -> None:
    client = use_postgresql(FIFO)
    push_some(client)
    with session(client, "reader") as reader, session(client, "ddl") as ddl, ExitStack() as waiters:
        run(reader, "SELECT FROM {} LIMIT 0", client.queue.name)
        waiters.enter_context(waiting(ddl, "LOCK TABLE {}", client.queue.name))
        sampled_when(client, lambda activity: activity.waiting == 1)
        waiters.enter_context(popping(client, 2))
        activity = sampled_when(client, lambda activity: activity.waiting == 3)
        reader.rollback()
    (tree,) = activity.trees
    (second,) = tree.waiters
    assert (tree.key, second.key) == (of(activity, "reader").key, of(activity, "ddl").key)
    assert len(second.waiters) == 2


def test_a_deadlock_is_a_wait_tree_that_is_cut(use_postgresql: Use) -> None:
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
        activity = sampled_when(client, lambda activity: activity.waiting == 2)
        two.cancel_safe()
    (tree,) = activity.trees
    assert (tree.cut, tree.size) == (True, 2)
    assert {of(activity, "one").key, of(activity, "two").key} == {tree.key, tree.waiters[0].key}


def test_locks_of_an_adopted_table_are_listed(use_postgresql: Use) -> None:
    database = use_postgresql(FIFO).database
    with database.transaction("make a table") as connection:
        connection.execute(
            text("CREATE TABLE public.theirs (number bigserial PRIMARY KEY, body text)")
        )
        connection.execute(text("INSERT INTO public.theirs (body) VALUES ('x')"))
    roles = {"id": "number", "payload": "body"}
    client = Client(database, adopt(database, "public", "theirs", DESIGNS["fifo"], roles))
    with session(client, "theirs") as holder:
        run(holder, "UPDATE theirs SET body = 'y'")
        (sampled,) = sample_activity(
            database, find_objects(database, [client.queue])
        ).relevant_sessions
    assert {lock.object for lock in sampled.locks} == {"theirs"}
    assert sampled.query == "UPDATE theirs SET body = ?"


def test_a_prepared_transaction_is_a_root_even_after_a_restart(own_server: EmbeddedServer) -> None:
    database = open_database(own_server.create_database("prepared"))
    client = installed(database, NAIVE)
    push_some(client)
    with connect(client.url) as connection:
        run(connection, "BEGIN")
        run(connection, "SELECT * FROM {}()", f"{client.queue.name}_pop")
        run(connection, "PREPARE TRANSACTION 'left behind'")
    for restarted in (False, True):
        if restarted:
            own_server.restart()
        with session(client, "waiter") as waiter, ExitStack() as waiters:
            statement = "SELECT * FROM {}()"
            waiters.enter_context(waiting(waiter, statement, f"{client.queue.name}_pop"))
            activity = sampled_when(client, lambda activity: activity.waiting == 1)
            waiter.cancel_safe()
        (tree,) = activity.trees
        root = activity.by_key["left behind"]
        assert (tree.key, tree.size) == ("left behind", 2)
        assert (root.kind, root.wait, root.user) == (*("prepared transaction",) * 2, "postgres")
        assert {lock.queue for lock in root.locks} == {client.queue.name}
        assert root.transaction_seconds is not None
        report = watch(client.database, [client.queue], seconds=0)
        assert report.horizon[0].kind == "prepared transaction"
        assert waits_of(client, report.waits)["prepared transaction"].share == 1.0
    database.close()


def test_sessions_that_the_login_may_not_see_have_unknown_waits(use_postgresql: Use) -> None:
    """Any login can see locks, but not what other sessions do."""
    client = use_postgresql(NAIVE)
    push_some(client)
    with (
        login(client.url) as url,
        closing(open_database(url)) as restricted,
        ExitStack() as waiters,
        held(client),
    ):
        waiters.enter_context(popping(client, 1))
        sampled_when(client, lambda activity: activity.waiting == 1)
        report = watch(restricted, [client.queue], seconds=0)
    (tree,) = report.activity.trees
    holder, waiter = (report.activity.by_key[key] for key in (tree.key, tree.waiters[0].key))
    assert (holder.state, holder.wait, holder.query) == (None,) * 3
    assert holder.user == make_url(client.url).username
    assert (waiter.wait_kind, waiter.wait, waiter.state) == ("Lock", "transactionid", None)
    assert list(report.missing) == ["sessions"]
    assert "pg_read_all_stats" in report.missing["sessions"]
    unknown = waits_of(client, report.waits)[None]
    assert (unknown.kind, unknown.share, unknown.meaning) == (None, 1.0, None)


@pytest.mark.long
def test_dead_rows_and_the_session_that_keeps_them_are_reported(use_postgresql: Use) -> None:
    client = use_postgresql(FIFO)
    push_some(client)
    with session(client, "old") as old:
        run(old, "SELECT txid_current()")
        client.drain()
        reports = []

        def reported() -> bool:
            reports.append(watch(client.database, [client.queue], seconds=0))
            return bool(reports[-1].dead_rows.get(("public", client.queue.name)))

        wait_until(reported, "the server's statistics")
        pid = old.info.backend_pid
    report = reports[-1]
    assert report.dead_rows == {("public", client.queue.name): 5}
    oldest = report.horizon[0]
    assert (oldest.session_id, oldest.name) == (pid, value(client.url, "SELECT current_user"))
    assert oldest.transactions
    assert oldest.seconds


@pytest.mark.long
@pytest.mark.parametrize("variant", long_except([FIFO, RING], DEFAULTS), ids=str)
def test_a_sample_of_sessions_neither_reads_nor_locks_a_queue(
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
        found = Statement(query, plan["Plan"])
        assert found.buffers < PAGES
        read |= {node["Relation Name"] for node in found.nodes() if "Relation Name" in node}
    assert {name for name in read if not name.startswith("pg_")} == set()
    assert "pg_class" in read


PAGES = 500
"""Pages of the system catalog, from the cache or not, that one statement may read."""


def test_more_queues_need_no_more_statements(use_postgresql: Use) -> None:
    clients = [use_postgresql(FIFO) for _ in range(3)]
    database = clients[0].database
    counts: list[int] = []
    for queues in ([clients[0].queue], [client.queue for client in clients]):
        with statements_sent() as statements:
            watch(database, queues, seconds=0)
        counts.append(len(statements))
    assert counts[0] == counts[1]


def test_an_expensive_sample_is_followed_by_a_long_pause(
    use_postgresql: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause after a sample is nineteen times as long as the sample; the last ends with the
    time."""
    client = use_postgresql(FIFO)
    now, pauses, sample = 0.0, list[float](), sample_activity

    def take(*of: Any) -> Activity:
        nonlocal now
        now += 0.01
        return sample(*of)

    def sleep(pause: float) -> None:
        nonlocal now
        pauses.append(pause)
        now += pause

    monkeypatch.setattr(waits, "sample_activity", take)
    monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic=lambda: now))
    report = watch(client.database, [client.queue], seconds=0.9, interval_seconds=0.0, sleep=sleep)
    assert pauses == pytest.approx([0.19] * 4 + [0.09])
    assert report.samples == len(pauses)


def test_every_wait_with_a_known_meaning_exists_on_the_server(postgresql: Database) -> None:
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
def test_locks_of_a_queue_with_quotes_in_its_name_are_found(new_database: Database) -> None:
    client = installed(new_database, STRICT, "odd \"' name")
    queue = client.queue
    push_some(client)
    with held(client):
        (holder,) = sample_activity(
            new_database, find_objects(new_database, [queue])
        ).relevant_sessions
    assert f"pop of {queue.name}" in {lock.object for lock in holder.locks}
