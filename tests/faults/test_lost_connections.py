"""Every verb while its connection cannot be had, is cut or falls silent.

It ends in time with exit 3, says what to do next, and leaves nothing half done.
"""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass

import pytest
from psycopg.sql import SQL, Identifier, Literal
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError

from console import audit, catalog
from console.actions import execute, plan
from console.actions.archive import Purge
from console.actions.execute import Pace, Progress
from console.actions.push import push_many
from console.catalog import Queue
from console.engines import Database, Timeouts, open_database, patience
from console.engines.embedded import EmbeddedServer
from console.errors import ConnectionFailedError, InDoubtError, UsageError
from console.monitor.scan_query import MessageSource
from tests.cli.calls import Answer, call
from tests.proxy import Fate, Proxy
from tests.servers import connect, fresh_database
from tests.tui.acting import make

HASTY = {
    "DBQ_CONNECT_TIMEOUT": "1s",
    "DBQ_STATEMENT_TIMEOUT": "1s",
    "DBQ_LOCK_TIMEOUT": "500ms",
}
LIMIT = 60.0
"""Seconds that a verb may take with these time-outs, on a slow machine, when nobody answers it."""

LOOKING = (
    "status",
    "status mail",
    "check",
    "messages mail",
    "errors mail",
    "waits --seconds 0",
    "doctor",
    "audit",
    "report mail",
    "discover",
    "roles",
)
ACTING = (
    "push mail x",
    "push orders - --lines",
    "pop mail --count 3 --complete",
    "pop orders --count 3",
    "pop lines --count 3",
    "requeue mail --batch 1 --yes",
    "purge mail --batch 2 --yes mail",
    "release mail --force --yes mail",
    "maintain mail --yes",
    "relay orders --yes orders",
    "install fifo another",
    "uninstall lines --with-messages --yes lines",
)
VERBS = LOOKING + ACTING
LINES = b"1\n2\n3\n"


@pytest.fixture(autouse=True)
def looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """How far an action came is looked up as ever, with shorter pauses."""
    monkeypatch.setattr(execute, "_LOST_PAUSES", (0.0, 0.1))


def make_queues(url: str) -> None:
    """A queue that keeps its rows, a ring, and one that deletes."""
    with closing(open_database(url)) as database:
        make(database, "mail", "claim", {"payload": "text"})
        make(database, "orders", "ring", {"size": "50"})
        make(database, "lines", "fifo", {})


def again(server: EmbeddedServer) -> None:
    """It runs, whatever a test did to it."""
    if server.running:
        server.resume()
    else:
        server.restart()


@pytest.fixture(scope="module")
def url(module_server: EmbeddedServer) -> Iterator[str]:
    """Of a database with queues, on a server that tests may stop."""
    again(module_server)
    with ExitStack() as stack:
        found = stack.enter_context(fresh_database(module_server.url))
        stack.callback(again, module_server)
        make_queues(found)
        yield found


@pytest.fixture
def own_url(own_server: EmbeddedServer) -> Iterator[str]:
    """The same of one test alone."""
    with fresh_database(own_server.url) as found:
        make_queues(found)
        yield found


def run(verb: str, url: str) -> tuple[Answer, float]:
    """What it answers by that URL, and after how long."""
    began = time.monotonic()
    answer = call(*verb.split(), stdin=LINES, environment={"DBQ_URL": url, **HASTY})
    return answer, time.monotonic() - began


def check_lost(answer: Answer) -> None:
    """It says what, why, and what to do next."""
    assert answer.status == 3, answer
    assert "Traceback" not in answer.err
    assert len(answer.err.strip().splitlines()) >= 3, answer.err


# Connections that cannot be had.

Fault = Callable[[EmbeddedServer, str], AbstractContextManager[tuple[str, str]]]
"""A server and a URL on it -> the URL while the fault lasts, and what the error says of it."""


@contextmanager
def down(server: EmbeddedServer, url: str) -> Iterator[tuple[str, str]]:
    server.shut_down()
    try:
        yield url, "Check that the server runs"
    finally:
        server.restart()


@contextmanager
def paused(server: EmbeddedServer, url: str) -> Iterator[tuple[str, str]]:
    server.pause()
    try:
        yield url, "Check that the server runs"
    finally:
        server.resume()


@contextmanager
def refused(_: EmbeddedServer, url: str) -> Iterator[tuple[str, str]]:
    with Proxy(url) as proxy:
        proxy.refuse()
        yield proxy.url, "Check that the server runs"


@contextmanager
def frozen(_: EmbeddedServer, url: str) -> Iterator[tuple[str, str]]:
    with Proxy(url) as proxy:
        proxy.freeze()
        yield proxy.url, "Check that the server runs"


@contextmanager
def _as_role(server: EmbeddedServer, url: str, options: str) -> Iterator[str]:
    name = f"lost_{time.monotonic_ns()}"
    role = Identifier(name)
    with connect(server.url) as connection:
        create = SQL("CREATE ROLE {} LOGIN PASSWORD {} " + options)
        connection.execute(create.format(role, Literal("secret")))
        try:
            found = make_url(url).set(username=name, password="secret")
            yield found.render_as_string(hide_password=False)
        finally:
            connection.execute(SQL("DROP ROLE {}").format(role))


@contextmanager
def expired(server: EmbeddedServer, url: str) -> Iterator[tuple[str, str]]:
    with _as_role(server, url, "VALID UNTIL '2020-01-01'") as found:
        yield found, "neither has expired"


@contextmanager
def crowded(server: EmbeddedServer, url: str) -> Iterator[tuple[str, str]]:
    with _as_role(server, url, "CONNECTION LIMIT 0") as found:
        yield found, "Close other sessions"


@contextmanager
def dropped(_: EmbeddedServer, url: str) -> Iterator[tuple[str, str]]:
    gone = make_url(url).set(database="dbq_test_gone")
    yield gone.render_as_string(hide_password=False), "Check the database's name"


FAULTS: tuple[Fault, ...] = (down, paused, refused, frozen, expired, crowded, dropped)


def _named(value: object) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize("fault", FAULTS, ids=_named)
def test_a_connection_that_cannot_be_had(
    own_server: EmbeddedServer, url: str, fault: Fault, *, long: bool
) -> None:
    quick = fault not in (paused, frozen)
    verbs = (
        VERBS if long or fault is refused else ("status", "push mail x") if quick else ("status",)
    )
    with fault(own_server, url) as (broken, next_step):
        for verb in verbs:
            answer, seconds = run(verb, broken)
            check_lost(answer)
            assert next_step in answer.err, answer.err
            assert "secret" not in answer.err
            assert seconds < LIMIT, verb


# Connections that are lost in the middle.


@dataclass
class Cutter:
    """Lets so many pieces of a verb pass; the one after them has a fate. Then nothing more passes
    or, where the network heals, everything."""

    pieces: int
    fate: Fate
    lasts: Callable[[], object] = lambda: None
    happened: bool = False

    def __call__(self, _: bytes) -> Fate:
        if self.happened:
            return Fate.PASSES
        self.pieces -= 1
        if self.pieces >= 0:
            return Fate.PASSES
        self.happened = True
        self.lasts()
        return self.fate


def rows_of(url: str) -> Counter[str]:
    """All that is in each queue and its archive: nothing may be lost, nothing come twice."""
    with connect(url) as connection:
        found = connection.execute(
            "SELECT 'mail', payload FROM mail UNION ALL SELECT 'mail', payload FROM mail_archive"
            " UNION ALL SELECT 'orders', message FROM orders WHERE message_id IS NOT NULL"
            " UNION ALL SELECT 'lines', payload FROM lines"
        )
        return Counter(f"{queue}: {payload}" for queue, payload in found.fetchall())


def moved(before: Counter[str], after: Counter[str]) -> tuple[int, int]:
    """How many are more, and how many less."""
    return (after - before).total(), (before - after).total()


def check_kept(verb: str, answer: Answer, before: Counter[str], after: Counter[str]) -> None:
    """What is in the queues is what the verb says; in doubt, all of it or nothing."""
    more, less = moved(before, after)
    doubt = "doubt" in answer.err.lower()
    name = verb.partition(" ")[0]
    if name == "push":
        of = 3 if "--lines" in verb else 1
        assert less == 0
        assert more == of if answer.status == 0 else more in ({0, of} if doubt else {0})
    elif name == "pop":
        given = len(answer.out.splitlines())
        assert more == 0
        if answer.status == 0:
            # What is claimed and not finished stays.
            assert less == given
        else:
            assert less in ({0, given} if doubt or "mail" in verb else {0})
    elif name != "uninstall":
        assert (more, less) == (0, 0)


def cut_off(verb: str, url: str, pieces: int, fate: Fate, *, heals: bool) -> bool:
    """Cut the verb off there; whether it got so far."""
    with Proxy(url) as proxy:
        cutter = Cutter(pieces, fate, (lambda: None) if heals else proxy.shut)
        proxy.fate = cutter
        there = "uninstall" not in verb or has_lines(url)
        before = rows_of(url) if there else Counter[str]()
        answer, seconds = run(verb, proxy.url)
        happened = cutter.happened
    assert seconds < LIMIT, (verb, pieces, fate)
    assert "Traceback" not in answer.err
    if answer.status not in (0, 1) or not happened:
        # A loss that comes when the answer is there already is none.
        assert answer.status == (3 if happened else answer.status), answer
    if answer.status == 3:
        check_lost(answer)
    if there and has_lines(url):
        check_kept(verb, answer, before, rows_of(url))
    return happened


def has_lines(url: str) -> bool:
    with connect(url) as connection:
        found = connection.execute("SELECT to_regclass('lines') IS NOT NULL").fetchone()
    return found == (True,)


FATES = (Fate.CUT, Fate.UNANSWERED)


@pytest.mark.long
@pytest.mark.parametrize("heals", [True, False])
@pytest.mark.parametrize("fate", FATES, ids=lambda fate: fate.name)
@pytest.mark.parametrize("verb", VERBS)
def test_cut_off_at_any_piece(own_url: str, verb: str, fate: Fate, heals: bool) -> None:
    for pieces in itertools.count():
        if not cut_off(verb, own_url, pieces, fate, heals=heals):
            break
        assert pieces < 500


@pytest.mark.parametrize("verb", ["push mail x", "pop lines --count 3", "purge mail --yes mail"])
def test_cut_off_somewhere(own_url: str, verb: str) -> None:
    for number, pieces in enumerate((4, 7, 10, 13)):
        cut_off(verb, own_url, pieces, FATES[number % 2], heals=number < 2)


@pytest.mark.parametrize(
    "verb",
    [pytest.param(verb, marks=() if verb == "push mail x" else pytest.mark.long) for verb in VERBS],
)
def test_silent_in_the_middle(own_url: str, verb: str, *, long: bool) -> None:
    for pieces in (2, 5, 8, 11, 14) if long else (6,):
        cut_off(verb, own_url, pieces, Fate.FROZEN, heals=False)


# An action whose commit is cut.


@dataclass
class AtCommit:
    """Gives a fate to the first commit after something was sent through a proxy."""

    after: bytes
    fate: Fate
    then: Callable[[], object] = lambda: None
    seen: bool = False
    happened: bool = False

    def __call__(self, data: bytes) -> Fate:
        self.seen = self.seen or self.after in data
        if self.happened or not self.seen or b"COMMIT\0" not in data:
            return Fate.PASSES
        self.happened = True
        self.then()
        return self.fate


COUNTED = b"UPDATE dbq.action"
"""What a batch does last, before it commits."""


def purge(database: Database, queue: Queue) -> tuple[Purge, plan.Plan]:
    with database.transaction("read the queue", read_only=True) as connection:
        moving = Purge(MessageSource.of(connection, queue))
    return moving, plan.make(database, moving)


READY_AND_ERRORS = 11
BATCH = 2


def purged_with(
    url: str, fate: Fate, *, heals: bool
) -> tuple[ConnectionFailedError, audit.Entry, int]:
    """The error of a purge whose third batch has that fate; the audit, and the archive's size."""
    with Proxy(url) as proxy, closing(open_database(proxy.url)) as far:
        with closing(open_database(url)) as near, near.transaction("look") as connection:
            queue = catalog.find(connection, "mail")
        moving, made = purge(far, queue)
        assert made.count == READY_AND_ERRORS

        def arm(now: Progress) -> None:
            if now.batches == 2:
                proxy.fate = AtCommit(COUNTED, fate, (lambda: None) if heals else proxy.shut)

        with pytest.raises(ConnectionFailedError) as caught:
            execute.execute(far, moving, made, pace=Pace(batch=BATCH), progress=arm)
    with closing(open_database(url)) as near, near.transaction("look") as connection:
        (entry,) = audit.entries(connection, audit.EntryFilter(verb="purge"))
        size = connection.execute(text("SELECT count(*) FROM mail_archive")).scalar_one()
    return caught.value, entry, size


@pytest.mark.parametrize("fate", FATES, ids=lambda fate: fate.name)
def test_a_commit_that_is_cut_is_looked_up(own_url: str, fate: Fate) -> None:
    error, entry, archived = purged_with(own_url, fate, heals=True)
    done = 2 * BATCH + (BATCH if fate is Fate.UNANSWERED else 0)
    assert (archived, entry.done, entry.outcome) == (done, done, "failed")
    assert type(error) is ConnectionFailedError
    assert f"{done} of {READY_AND_ERRORS} are done and in the audit" in error.next_step


@pytest.mark.parametrize(
    "fate",
    [Fate.UNANSWERED, pytest.param(Fate.CUT, marks=pytest.mark.long)],
    ids=lambda fate: fate.name,
)
def test_a_commit_that_cannot_be_looked_up_is_in_doubt(own_url: str, fate: Fate) -> None:
    error, entry, archived = purged_with(own_url, fate, heals=False)
    assert type(error) is InDoubtError
    assert "IN DOUBT: the last batch of 2, after 4" in error.next_step
    assert f"action {entry.action_id}" in error.next_step
    assert archived == entry.done == 2 * BATCH + (BATCH if fate is Fate.UNANSWERED else 0)
    assert entry.outcome == "running"


def test_a_batch_that_still_runs_where_nobody_hears_it_is_waited_for(own_url: str) -> None:
    """The network falls silent before the commit arrives, and lets it through afterwards."""
    hasty = Timeouts(connect_seconds=2, statement_seconds=1.0, lock_seconds=0.5)
    with (
        closing(open_database(own_url)) as near,
        Proxy(own_url) as proxy,
        closing(open_database(proxy.url, timeouts=hasty)) as far,
    ):
        with near.transaction("look") as connection:
            queue = catalog.find(connection, "mail")
        moving, made = purge(far, queue)
        silent = threading.Event()

        def arm(now: Progress) -> None:
            if now.batches == 2:
                proxy.fate = AtCommit(COUNTED, Fate.FROZEN, silent.set)

        healing = threading.Thread(target=_thaw_later, args=(proxy, silent))
        healing.start()
        with pytest.raises(ConnectionFailedError) as caught:
            execute.execute(far, moving, made, pace=Pace(batch=BATCH), progress=arm)
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
    """After the client has given the answer up: its time-outs are over by then."""
    assert silent.wait(30)
    time.sleep(3.0)
    proxy.thaw()


def test_a_push_whose_answer_is_lost_is_in_doubt_and_in(own_url: str) -> None:
    with Proxy(own_url) as proxy, closing(open_database(proxy.url)) as far:
        with closing(open_database(own_url)) as near, near.transaction("look") as connection:
            queue = catalog.find(connection, "lines")
        before = rows_of(own_url)
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
    assert moved(before, rows_of(own_url)) == (2, 0)


# Connecting: one at a time, and no more than a few.


def together(works: Sequence[Callable[[], object]]) -> list[BaseException | None]:
    """All at once, each in a thread: the error of each."""
    errors: list[BaseException | None] = [None] * len(works)
    ready = threading.Barrier(len(works))

    def one(number: int) -> None:
        ready.wait()
        try:
            works[number]()
        except ConnectionFailedError as error:
            errors[number] = error

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


THREADS = 8
"""As many as the pool has connections."""


def plain(proxy: Proxy) -> str:
    """Its URL, by which a driver tries once and not once more without encryption."""
    return f"{proxy.url}?sslmode=disable&gssencmode=disable"


def ask(database: Database) -> None:
    with database.transaction("ask", read_only=True) as connection:
        connection.execute(text("SELECT 1"))


def test_those_who_wait_for_a_silent_server_try_once_together(own_url: str) -> None:
    hasty = Timeouts(connect_seconds=2, statement_seconds=1.0, lock_seconds=0.5)
    with Proxy(own_url) as proxy, closing(open_database(plain(proxy), timeouts=hasty)) as far:
        proxy.freeze()
        began = time.monotonic()
        errors = together([lambda: ask(far)] * THREADS)
        assert time.monotonic() - began < LIMIT
        assert all(isinstance(error, ConnectionFailedError) for error in errors)
        assert len({id(error.__cause__) for error in errors if error}) == THREADS
        assert proxy.accepted == 1
        proxy.thaw()
        assert together([lambda: ask(far)] * THREADS) == [None] * THREADS
        assert proxy.accepted <= 1 + THREADS


def test_a_pool_that_was_cut_comes_back_with_no_more_than_it_had(own_url: str) -> None:
    with Proxy(own_url) as proxy, closing(open_database(plain(proxy))) as far:
        everybody = threading.Barrier(THREADS)

        def hold() -> None:
            with far.transaction("ask", read_only=True) as connection:
                connection.execute(text("SELECT 1"))
                everybody.wait(30)

        assert together([hold] * THREADS) == [None] * THREADS
        assert proxy.accepted == THREADS
        proxy.cut()
        assert together([lambda: ask(far)] * THREADS) == [None] * THREADS
        assert proxy.accepted <= 2 * THREADS
        assert proxy.connections <= THREADS


def test_a_ninth_is_told_that_the_pool_is_busy(own_url: str) -> None:
    hasty = Timeouts(connect_seconds=1)
    with closing(open_database(own_url, timeouts=hasty)) as database, ExitStack() as stack:
        for _ in range(THREADS):
            stack.enter_context(database.transaction("hold", read_only=True))
        with pytest.raises(ConnectionFailedError, match="pool is busy"):
            ask(database)


def test_whoever_gives_up_while_another_connects_is_let_go(own_url: str) -> None:
    with Proxy(own_url) as proxy, closing(open_database(plain(proxy))) as far:
        proxy.freeze()
        first = threading.Thread(target=together, args=([lambda: ask(far)],))
        first.start()
        while not proxy.accepted:
            time.sleep(0.01)
        began = time.monotonic()
        with pytest.raises(ConnectionFailedError, match="not answered"), patience(0.3):
            ask(far)
        assert time.monotonic() - began < 5.0
        proxy.thaw()
        first.join()


# Answers that do not come.


def test_a_silent_server_is_given_up_shortly_after_the_statement_s_time_out(own_url: str) -> None:
    hasty = Timeouts(connect_seconds=1, statement_seconds=0.5)
    with Proxy(own_url) as proxy, closing(open_database(proxy.url, timeouts=hasty)) as far:
        ask(far)

        def ask_silence() -> None:
            with far.transaction("ask") as connection:
                proxy.freeze()
                connection.execute(text("SELECT 1"))

        with pytest.raises(ConnectionFailedError, match=r"not answered within 1\.5 s"):
            ask_silence()
        proxy.thaw()
        ask(far)


def test_a_loss_that_nobody_minded_is_one_at_the_commit(own_url: str) -> None:
    with Proxy(own_url) as proxy, closing(open_database(proxy.url)) as far:

        def ask_the_dead() -> None:
            with far.transaction("ask") as connection:
                connection.execute(text("SELECT 1"))
                proxy.cut()
                with suppress(OperationalError):
                    connection.execute(text("SELECT 1"))

        with pytest.raises(ConnectionFailedError, match="was lost"):
            ask_the_dead()
        ask(far)


def test_what_the_url_says_of_the_statement_s_time_out_counts_here_too(own_url: str) -> None:
    hasty = Timeouts(statement_seconds=0.1)
    url = make_url(own_url).update_query_dict({"options": "-c statement_timeout=20s"})
    with (
        closing(open_database(url.render_as_string(hide_password=False), timeouts=hasty)) as far,
        far.transaction("sleep") as connection,
    ):
        connection.execute(text("SELECT pg_sleep(1.5)"))


def test_a_session_whose_commit_was_refused_goes_on(own_url: str) -> None:
    """The server ended the commit and not the session: what is open there has to go."""
    with closing(open_database(own_url)) as database:

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
