"""Operations whose connection is lost, and how the console reconnects."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError

from console import catalog
from console.actions import execute, message_action
from console.actions.archive import Purge
from console.actions.execute import Batching
from console.actions.push import push_many
from console.catalog import Queue, audit
from console.engines import Database, Timeouts, open_database, time_limit
from console.errors import ConnectionFailedError, ConsoleError, InDoubtError
from console.monitor.scan_query import MessageSource
from console.plan import Progress
from tests.contract.installs import run_concurrently
from tests.faults.harness.connections import FATES, AtCommit, added_and_removed, proxied, rows_of
from tests.servers import connect
from tests.servers.proxy import Fate, Proxy

pytestmark = pytest.mark.usefixtures("short_pauses")

# An action whose commit is cut.


COUNTED = b"UPDATE dbq.action"
"""The last statement of a batch before its commit."""


def queue_of(database: Database, name: str) -> Queue:
    with database.transaction("look") as connection:
        return catalog.find(connection, name)


READY_AND_ERRORS = 11
BATCH = 2


def purge_with_fate(
    url: str,
    at: Callable[[Proxy], AtCommit],
    timeouts: Timeouts | None = None,
    then: Callable[[], object] = lambda: None,
) -> ConnectionFailedError:
    """The error of a purge whose third commit has a fate."""
    with proxied(url, timeouts) as (proxy, database), closing(open_database(url)) as direct:
        queue = queue_of(direct, "mail")
        with database.transaction("read the queue", read_only=True) as connection:
            action = Purge(MessageSource.of(connection, queue))
        planned = message_action.select(database, action)
        assert planned.count == READY_AND_ERRORS

        def arm(now: Progress) -> None:
            if now.text == "2 batches":
                proxy.fate = at(proxy)

        with pytest.raises(ConnectionFailedError) as caught:
            execute.execute(database, action, planned, Batching(batch=BATCH), on_progress=arm)
        then()
    return caught.value


def purged(url: str) -> tuple[audit.Entry, int]:
    """Its entry in the audit, and the size of the archive."""
    with closing(open_database(url)) as direct, direct.transaction("look") as connection:
        (entry,) = audit.entries(connection, audit.EntryFilter(verb="purge"))
        archived = text("SELECT count(*) FROM public.mail_archive")
        return entry, connection.execute(archived).scalar_one()


@pytest.mark.parametrize("fate", FATES, ids=lambda fate: fate.name)
def test_the_outcome_of_a_cut_commit_is_looked_up(queues_url: str, fate: Fate) -> None:
    error = purge_with_fate(queues_url, lambda _: AtCommit(COUNTED, fate))
    entry, archived = purged(queues_url)
    done = 2 * BATCH + (BATCH if fate is Fate.UNANSWERED else 0)
    assert (archived, entry.done, entry.outcome) == (done, done, "failed")
    assert type(error) is ConnectionFailedError
    assert f"{done} of {READY_AND_ERRORS} are done and in the audit" in error.next_step


@pytest.mark.parametrize(
    "fate",
    [Fate.UNANSWERED, pytest.param(Fate.CUT, marks=pytest.mark.long)],
    ids=lambda fate: fate.name,
)
def test_a_commit_that_cannot_be_looked_up_is_in_doubt(queues_url: str, fate: Fate) -> None:
    error = purge_with_fate(queues_url, lambda proxy: AtCommit(COUNTED, fate, proxy.shut))
    entry, archived = purged(queues_url)
    assert type(error) is InDoubtError
    assert "IN DOUBT: the last batch of 2, after 4" in error.next_step
    assert f"action {entry.action_id}" in error.next_step
    assert archived == entry.done == 2 * BATCH + (BATCH if fate is Fate.UNANSWERED else 0)
    assert entry.outcome == "running"


@pytest.mark.long
def test_a_batch_that_continues_after_the_loss_is_waited_for(queues_url: str) -> None:
    """The network hangs before the commit arrives, and delivers it later."""
    hasty = Timeouts(connect_seconds=2, statement_seconds=1.0, lock_seconds=0.5)
    healing: list[threading.Thread] = []

    def freeze(proxy: Proxy) -> AtCommit:
        frozen = threading.Event()
        healing.append(threading.Thread(target=_thaw_later, args=(proxy, frozen)))
        healing[0].start()
        return AtCommit(COUNTED, Fate.FROZEN, frozen.set)

    def join() -> None:
        healing[0].join()

    error = purge_with_fate(queues_url, freeze, hasty, join)
    entry, archived = purged(queues_url)
    assert archived == entry.done
    if entry.outcome == "failed":
        assert f"{archived} of {READY_AND_ERRORS} are done" in error.next_step
    else:
        assert isinstance(error, InDoubtError)


def _thaw_later(proxy: Proxy, frozen: threading.Event) -> None:
    """Thaw the proxy after the client's time-outs."""
    assert frozen.wait(30)
    time.sleep(3.0)
    proxy.thaw()


def test_a_push_whose_commit_is_lost_is_in_doubt(queues_url: str) -> None:
    before = rows_of(queues_url)
    with proxied(queues_url) as (proxy, database):
        queue = queue_of(database, "lines")
        for fate, payloads in ((Fate.UNANSWERED, ["a", "b"]), (Fate.CUT, ["c"])):
            proxy.fate = AtCommit(b"push", fate)
            with (
                pytest.raises(InDoubtError, match="may or may not have been done"),
                database.transaction("push") as connection,
            ):
                push_many(connection, queue, payloads)
        select_one(database)
    assert added_and_removed(before, rows_of(queues_url)) == (2, 0)


# Connecting: one at a time, and no more than a few.


THREADS = 8
"""The size of the pool."""


def select_one(database: Database) -> None:
    with database.transaction("ask", read_only=True) as connection:
        connection.execute(text("SELECT 1"))


def test_a_cut_pool_reconnects_with_no_more_connections_than_before(queues_url: str) -> None:
    with proxied(queues_url) as (proxy, database):
        all_connected = threading.Barrier(THREADS)

        def hold() -> None:
            with database.transaction("ask", read_only=True) as connection:
                connection.execute(text("SELECT 1"))
                all_connected.wait(30)

        assert run_concurrently(*[hold] * THREADS) == [None] * THREADS
        assert proxy.accepted == THREADS
        proxy.cut()
        assert run_concurrently(*[lambda: select_one(database)] * THREADS) == [None] * THREADS
        assert proxy.accepted <= 2 * THREADS
        assert proxy.connections <= THREADS


def test_more_callers_than_connections_of_the_pool_get_an_error(queues_url: str) -> None:
    hasty = Timeouts(connect_seconds=1)
    with closing(open_database(queues_url, timeouts=hasty)) as database, ExitStack() as stack:
        for _ in range(THREADS):
            stack.enter_context(database.transaction("hold", read_only=True))
        with pytest.raises(ConnectionFailedError, match="pool is busy"):
            select_one(database)


def test_a_caller_can_time_out_while_another_connects(queues_url: str) -> None:
    with proxied(queues_url) as (proxy, database):
        proxy.freeze()
        first = threading.Thread(target=run_concurrently, args=(lambda: select_one(database),))
        first.start()
        while not proxy.accepted:
            time.sleep(0.01)
        began = time.monotonic()
        with pytest.raises(ConnectionFailedError, match="not answered"), time_limit(0.3):
            select_one(database)
        assert time.monotonic() - began < 5.0
        proxy.thaw()
        first.join()


# Responses that do not arrive.


@pytest.mark.long
def test_an_unresponsive_server_is_an_error_after_the_statement_time_out(queues_url: str) -> None:
    hasty = Timeouts(connect_seconds=1, statement_seconds=0.5)
    with proxied(queues_url, hasty) as (proxy, database):
        select_one(database)

        def query_while_frozen() -> None:
            with database.transaction("ask") as connection:
                proxy.freeze()
                connection.execute(text("SELECT 1"))

        with pytest.raises(ConnectionFailedError, match=r"not answered within 1\.5 s"):
            query_while_frozen()
        proxy.thaw()
        select_one(database)


def test_a_commit_fails_after_an_ignored_loss_of_the_connection(queues_url: str) -> None:
    with proxied(queues_url) as (proxy, database):

        def ignore_the_loss() -> None:
            with database.transaction("ask") as connection:
                connection.execute(text("SELECT 1"))
                proxy.cut()
                with suppress(OperationalError):
                    connection.execute(text("SELECT 1"))

        with pytest.raises(ConnectionFailedError, match="was lost"):
            ignore_the_loss()
        select_one(database)


@pytest.mark.long
def test_the_statement_time_out_of_the_url_takes_precedence(queues_url: str) -> None:
    patient = make_url(queues_url).update_query_dict({"options": "-c statement_timeout=20s"})
    url = patient.render_as_string(hide_password=False)
    with (
        closing(open_database(url, timeouts=Timeouts(statement_seconds=0.1))) as database,
        database.transaction("sleep") as connection,
    ):
        connection.execute(text("SELECT pg_sleep(1.5)"))


def test_a_session_can_be_used_after_a_refused_commit(queues_url: str) -> None:
    """The server refuses the commit but keeps the session, so its transaction has to be ended."""
    with closing(open_database(queues_url)) as database:

        def refused() -> None:
            with session.transaction("defer") as connection:
                connection.execute(text("CREATE TEMP TABLE t (n int UNIQUE DEFERRABLE)"))
                connection.execute(text("SET CONSTRAINTS ALL DEFERRED"))
                connection.execute(text("INSERT INTO t VALUES (1), (1)"))

        with database.session("try") as session:
            for _ in range(2):
                with pytest.raises(ConsoleError, match="duplicate key"):
                    refused()
            with session.transaction("ask") as connection:
                assert connection.execute(text("SELECT 1")).scalar_one() == 1


def test_a_session_can_be_used_after_a_cut_commit(queues_url: str) -> None:
    with closing(open_database(queues_url)) as database, database.session("work") as session:

        def cut_off() -> None:
            with session.transaction("do the first") as connection:
                pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
                with connect(queues_url) as admin:
                    admin.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])

        with pytest.raises(ConsoleError, match="do the first"):
            cut_off()
        with session.transaction("do the second") as connection:
            assert connection.execute(text("SELECT 2")).scalar_one() == 2
