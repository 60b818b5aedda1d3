"""Work whose connection was lost, and how the console reconnects."""

import threading
import time
from contextlib import ExitStack, closing, suppress

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError

from console import audit, catalog
from console.actions import execute, plan
from console.actions.archive import Purge
from console.actions.execute import Batching, Progress
from console.actions.push import push_many
from console.catalog import Queue
from console.engines import Database, Timeouts, open_database, time_limit
from console.errors import ConnectionFailedError, ConsoleError, InDoubtError, UsageError
from console.monitor.scan_query import MessageSource
from tests.contract.installs import run_concurrently
from tests.faults.connection_faults import (
    FATES,
    AtCommit,
    added_and_removed,
    rows_of,
    unencrypted_url,
)
from tests.proxy import Fate, Proxy
from tests.servers import connect

pytestmark = pytest.mark.usefixtures("short_pauses")

# An action whose commit is cut.


COUNTED = b"UPDATE dbq.action"
"""The last statement of a batch before its commit."""


def purge(database: Database, queue: Queue) -> tuple[Purge, plan.Plan]:
    with database.transaction("read the queue", read_only=True) as connection:
        action = Purge(MessageSource.of(connection, queue))
    return action, plan.make(database, action)


READY_AND_ERRORS = 11
BATCH = 2


def purged_with(
    url: str, fate: Fate, *, heals: bool
) -> tuple[ConnectionFailedError, audit.Entry, int]:
    """The error of a purge whose third batch has that fate; the audit, and the archive's size."""
    with Proxy(url) as proxy, closing(open_database(proxy.url)) as far:
        with closing(open_database(url)) as near, near.transaction("look") as connection:
            queue = catalog.find(connection, "mail")
        action, made = purge(far, queue)
        assert made.count == READY_AND_ERRORS

        def arm(now: Progress) -> None:
            if now.batches == 2:
                proxy.fate = AtCommit(COUNTED, fate, (lambda: None) if heals else proxy.shut)

        with pytest.raises(ConnectionFailedError) as caught:
            execute.execute(far, action, made, batching=Batching(batch=BATCH), progress=arm)
    with closing(open_database(url)) as near, near.transaction("look") as connection:
        (entry,) = audit.entries(connection, audit.EntryFilter(verb="purge"))
        size = connection.execute(text("SELECT count(*) FROM mail_archive")).scalar_one()
    return caught.value, entry, size


@pytest.mark.parametrize("fate", FATES, ids=lambda fate: fate.name)
def test_a_cut_commit_is_looked_up(queues_url: str, fate: Fate) -> None:
    error, entry, archived = purged_with(queues_url, fate, heals=True)
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
    error, entry, archived = purged_with(queues_url, fate, heals=False)
    assert type(error) is InDoubtError
    assert "IN DOUBT: the last batch of 2, after 4" in error.next_step
    assert f"action {entry.action_id}" in error.next_step
    assert archived == entry.done == 2 * BATCH + (BATCH if fate is Fate.UNANSWERED else 0)
    assert entry.outcome == "running"


@pytest.mark.long
def test_a_batch_that_runs_on_after_the_cut_is_waited_for(queues_url: str) -> None:
    """The network is silent before the commit arrives, and delivers it afterwards."""
    hasty = Timeouts(connect_seconds=2, statement_seconds=1.0, lock_seconds=0.5)
    with (
        closing(open_database(queues_url)) as near,
        Proxy(queues_url) as proxy,
        closing(open_database(proxy.url, timeouts=hasty)) as far,
    ):
        with near.transaction("look") as connection:
            queue = catalog.find(connection, "mail")
        action, made = purge(far, queue)
        silent = threading.Event()

        def arm(now: Progress) -> None:
            if now.batches == 2:
                proxy.fate = AtCommit(COUNTED, Fate.FROZEN, silent.set)

        healing = threading.Thread(target=_thaw_later, args=(proxy, silent))
        healing.start()
        with pytest.raises(ConnectionFailedError) as caught:
            execute.execute(far, action, made, batching=Batching(batch=BATCH), progress=arm)
        healing.join()
        with near.transaction("look") as connection:
            (entry,) = audit.entries(connection, audit.EntryFilter(verb="purge"))
            archived = connection.execute(text("SELECT count(*) FROM mail_archive")).scalar_one()
    assert archived == entry.done
    if entry.outcome == "failed":
        assert f"{archived} of {READY_AND_ERRORS} are done" in caught.value.next_step
    else:
        assert isinstance(caught.value, InDoubtError)


def _thaw_later(proxy: Proxy, silent: threading.Event) -> None:
    """After the client's time-outs."""
    assert silent.wait(30)
    time.sleep(3.0)
    proxy.thaw()


def test_a_push_whose_answer_is_lost_is_in_doubt_and_in(queues_url: str) -> None:
    with Proxy(queues_url) as proxy, closing(open_database(proxy.url)) as far:
        with closing(open_database(queues_url)) as near, near.transaction("look") as connection:
            queue = catalog.find(connection, "lines")
        before = rows_of(queues_url)
        proxy.fate = AtCommit(b"push", Fate.UNANSWERED)
        with (
            pytest.raises(InDoubtError, match="may have been done or not"),
            far.transaction("push") as connection,
        ):
            push_many(connection, queue, ["a", "b"])
        proxy.fate = AtCommit(b"push", Fate.CUT)
        with (
            pytest.raises(InDoubtError, match="may have been done or not"),
            far.transaction("push") as connection,
        ):
            push_many(connection, queue, ["c"])
        with far.transaction("look", read_only=True) as connection:
            connection.execute(text("SELECT 1"))
    assert added_and_removed(before, rows_of(queues_url)) == (2, 0)


# Connecting: one at a time, and no more than a few.


THREADS = 8
"""The size of the pool."""


def ask(database: Database) -> None:
    with database.transaction("ask", read_only=True) as connection:
        connection.execute(text("SELECT 1"))


def test_a_pool_that_was_cut_comes_back_with_no_more_than_it_had(queues_url: str) -> None:
    with Proxy(queues_url) as proxy, closing(open_database(unencrypted_url(proxy))) as far:
        everybody = threading.Barrier(THREADS)

        def hold() -> None:
            with far.transaction("ask", read_only=True) as connection:
                connection.execute(text("SELECT 1"))
                everybody.wait(30)

        assert run_concurrently(*[hold] * THREADS) == [None] * THREADS
        assert proxy.accepted == THREADS
        proxy.cut()
        assert run_concurrently(*[lambda: ask(far)] * THREADS) == [None] * THREADS
        assert proxy.accepted <= 2 * THREADS
        assert proxy.connections <= THREADS


def test_the_ninth_caller_gets_a_busy_pool(queues_url: str) -> None:
    hasty = Timeouts(connect_seconds=1)
    with closing(open_database(queues_url, timeouts=hasty)) as database, ExitStack() as stack:
        for _ in range(THREADS):
            stack.enter_context(database.transaction("hold", read_only=True))
        with pytest.raises(ConnectionFailedError, match="pool is busy"):
            ask(database)


def test_a_caller_may_give_up_while_another_connects(queues_url: str) -> None:
    with Proxy(queues_url) as proxy, closing(open_database(unencrypted_url(proxy))) as far:
        proxy.freeze()
        first = threading.Thread(target=run_concurrently, args=(lambda: ask(far),))
        first.start()
        while not proxy.accepted:
            time.sleep(0.01)
        began = time.monotonic()
        with pytest.raises(ConnectionFailedError, match="not answered"), time_limit(0.3):
            ask(far)
        assert time.monotonic() - began < 5.0
        proxy.thaw()
        first.join()


# Answers that do not come.


@pytest.mark.long
def test_a_silent_server_is_given_up_after_the_statement_s_time_out(
    queues_url: str,
) -> None:
    hasty = Timeouts(connect_seconds=1, statement_seconds=0.5)
    with Proxy(queues_url) as proxy, closing(open_database(proxy.url, timeouts=hasty)) as far:
        ask(far)

        def ask_silence() -> None:
            with far.transaction("ask") as connection:
                proxy.freeze()
                connection.execute(text("SELECT 1"))

        with pytest.raises(ConnectionFailedError, match=r"not answered within 1\.5 s"):
            ask_silence()
        proxy.thaw()
        ask(far)


def test_an_ignored_loss_fails_the_commit(queues_url: str) -> None:
    with Proxy(queues_url) as proxy, closing(open_database(proxy.url)) as far:

        def ask_the_dead() -> None:
            with far.transaction("ask") as connection:
                connection.execute(text("SELECT 1"))
                proxy.cut()
                with suppress(OperationalError):
                    connection.execute(text("SELECT 1"))

        with pytest.raises(ConnectionFailedError, match="was lost"):
            ask_the_dead()
        ask(far)


@pytest.mark.long
def test_what_the_url_says_of_the_statement_s_time_out_counts_here_too(queues_url: str) -> None:
    hasty = Timeouts(statement_seconds=0.1)
    url = make_url(queues_url).update_query_dict({"options": "-c statement_timeout=20s"})
    with (
        closing(open_database(url.render_as_string(hide_password=False), timeouts=hasty)) as far,
        far.transaction("sleep") as connection,
    ):
        connection.execute(text("SELECT pg_sleep(1.5)"))


def test_a_session_whose_commit_was_refused_goes_on(queues_url: str) -> None:
    """The server refuses the commit and keeps the session: its transaction has to be ended."""
    with closing(open_database(queues_url)) as database:

        def refused() -> None:
            with session.transaction("defer") as connection:
                connection.execute(text("CREATE TEMP TABLE t (n int UNIQUE DEFERRABLE)"))
                connection.execute(text("SET CONSTRAINTS ALL DEFERRED"))
                connection.execute(text("INSERT INTO t VALUES (1), (1)"))

        with database.session("try") as session:
            for _ in range(2):
                with pytest.raises(UsageError, match="there already"):
                    refused()
            with session.transaction("ask") as connection:
                assert connection.execute(text("SELECT 1")).scalar_one() == 1


def test_a_session_whose_commit_was_cut_off_goes_on(queues_url: str) -> None:
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
