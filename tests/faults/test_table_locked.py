"""DDL that waits for an old transaction stops everybody: its root and the stopped are named."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

from console.catalog import in_use
from console.doctor.checks import CHECK_GROUPS
from console.doctor.context import check_context
from console.doctor.diagnose import diagnose
from console.doctor.finding import Finding
from console.engines import Database, Timeouts, open_database, time_limit
from console.monitor.limits import Severity
from console.monitor.sampler import Sampler
from console.tui.dialogs.finding import FindingDialog
from console.tui.findings import queue_findings
from tests.cli.calls import Console
from tests.contract.library_table import BY_NAME
from tests.servers import PATIENCE_SECONDS, connect, execute, value, wait_until
from tests.servers.poolers import PROGRAM, pgbouncer, through
from tests.tools.repairs import carry_out
from tests.tui.test_faults import watching

pytestmark = pytest.mark.slow

HASTY = Timeouts(lock_seconds=0.2)
"""Each look at a locked table waits for so long."""
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'"


@dataclass
class Locked:
    url: str
    root: int
    ddl: Sequence[int]

    @property
    def names(self) -> list[str]:
        """The root's, then those that wait for it."""
        return [f"session {pid}" for pid in (self.root, *self.ddl)]


@contextmanager
def locking(
    url: str, tables: Sequence[str], behind: Sequence[str], *, direct: str = ""
) -> Iterator[Locked]:
    """A SELECT of each table in one open transaction, an ALTER TABLE of each, and the statements
    that wait behind those. `direct`: past the pooler at `url`."""
    direct = direct or url
    alters = [f"ALTER TABLE {table} ADD COLUMN note text" for table in tables]
    with ExitStack() as stack:
        root = stack.enter_context(closing(connect(url)))
        root.execute("BEGIN")
        for table in tables:
            root.execute(f"SELECT count(*) FROM {table}".encode())
        (pid,) = root.execute("SELECT pg_backend_pid()").fetchone() or (0,)
        try:
            for many, text in enumerate((*alters, *behind), 1):
                connection = stack.enter_context(closing(connect(url)))
                stack.enter_context(waiting(connection, text))
                wait_until(partial(are, direct, many), "it waits")
            query = "SELECT pid FROM pg_stat_activity WHERE query = '{}'"
            yield Locked(
                url, pid, [int(str(value(direct, query.format(alter)))) for alter in alters]
            )
        finally:
            with suppress(psycopg.OperationalError):  # a test may have ended it
                root.execute("ROLLBACK")


@contextmanager
def waiting(connection: psycopg.Connection[tuple[object, ...]], text: str) -> Iterator[None]:
    thread = threading.Thread(target=connection.execute, args=(text,))
    thread.start()
    yield
    thread.join()


def are(url: str, many: int) -> bool:
    return waiters(url) == many


def waiters(url: str) -> int:
    return int(str(value(url, WAITING)))


@pytest.fixture
def locked(database_url: str) -> Iterator[Locked]:
    """The queue `orders`: a SELECT in an open transaction, an ALTER TABLE, and a push behind it."""
    Console(database_url).done("install", "fifo", "orders")
    with locking(database_url, ["orders"], ["SELECT orders_push('x')"]) as found:
        yield found


def table_locked(database: Database) -> dict[str, Finding]:
    """By the queue's name; from this check alone, since others wait for the locked table."""
    (group,) = (
        check_group
        for check_group in CHECK_GROUPS
        if any(c.name == "table_locked" for c in check_group.codes)
    )
    figures = {snapshot.queue: snapshot for snapshot in Sampler(database).sample().queues}
    found = {}
    for queue in in_use(database):
        known: dict[str, Any] = {"snapshot": figures[queue.name], "patience_seconds": 0.1}
        with check_context(database, queue, **known) as context:
            of = {finding.code.name: finding for finding in group.run(context)}
        if "table_locked" in of:
            found[queue.name] = of["table_locked"]
    return found


def test_the_root_and_whom_it_stops_are_named_everywhere(locked: Locked) -> None:
    root, ddl = locked.names
    console = Console(locked.url)
    with closing(open_database(locked.url, timeouts=HASTY)) as database:
        (seen,) = Sampler(database).sample().queues
        assert seen.problem.startswith(root)
        assert f"stops {ddl}" in seen.problem
        assert "1 session behind it" in seen.problem
        (diagnosis,) = diagnose(database, patience_seconds=0.1)
        (finding,) = [one for one in diagnosis.findings if one.code.name == "table_locked"]
        assert finding.summary.startswith(root)
        assert ddl in str(finding.evidence["stopped"])
        assert diagnosis.severity is Severity.CRITICAL
        views = queue_findings(("c", "public", "orders"), seen, (), diagnosis)
        view = views[0]
        assert "problem" not in [finding_view.code for finding_view in views]
        assert (view.code, view.finding) == ("table_locked", finding)
        assert finding.repair is not None
        assert finding.repair.command.startswith(f"dbq-console end-session orders {locked.root}")
    for verb in ("status", "check", "doctor"):
        answer = console(verb, "orders")
        assert root in answer.text + answer.err, verb
        assert ddl in answer.text + answer.err, verb


def test_ending_the_root_frees_everybody(locked: Locked) -> None:
    with closing(open_database(locked.url, timeouts=HASTY)) as database:
        repair = table_locked(database)["orders"].repair
        assert repair is not None
        carry_out(repair, database)
        wait_until(lambda: waiters(locked.url) == 0, "nobody waits")
        assert not table_locked(database)


def test_no_examination_waits_for_the_same_lock_again(locked: Locked) -> None:
    """One after the other they took as long as the queue has examinations."""
    long = Timeouts(statement_seconds=300, lock_seconds=300)
    with (
        closing(open_database(locked.url, timeouts=long)) as database,
        time_limit(PATIENCE_SECONDS),
    ):
        (diagnosis,) = diagnose(database)
    assert "table_locked" in {finding.code.name for finding in diagnosis.findings}
    assert any(one.startswith("bloat: ") for one in diagnosis.unseen)


async def test_the_dialog_of_the_finding_names_the_root_and_the_stopped(locked: Locked) -> None:
    root, ddl = locked.names
    with closing(open_database(locked.url, timeouts=HASTY)) as database:
        async with watching(database) as console:
            store, clock = console.app.context.store, console.app.context.clock
            await console.press("d")
            await console.until(
                lambda: (
                    [finding_view.code for finding_view in store.findings(clock.monotonic())]
                    == ["table_locked"]
                )
            )
            await console.press("tab", "home", "enter")
            await console.until(lambda: console.is_at(FindingDialog))
            await console.resize(160, 48)
            await console.until(lambda: f"terminate session {locked.root}" in console.picture)
            assert "table_locked" in console.picture
            assert root in console.picture
            assert f"{ddl} (" in console.picture
            assert "has not explained it yet" not in console.picture


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("preset", "table"),
    [
        ("", "public.jobs"),
        ("river", "river_job"),
        ("symfony", "messenger_messages"),
        ("solid-queue", "solid_queue_jobs"),
        ("solid-queue", "solid_queue_ready_executions"),
        ("solid-queue", "solid_queue_failed_executions"),
        ("hangfire", "server"),
    ],
)
def test_an_adopted_queue_has_the_finding_too(database_url: str, preset: str, table: str) -> None:
    """Of a table of one's own, of a preset's main one, and of any that its statements read."""
    console = Console(database_url)
    if preset:
        theirs = BY_NAME[preset].create(database_url)
        console.done("adopt", "jobs", "--preset", preset)
        table = f'"{theirs.schema}".{table}'
    else:
        execute(database_url, "CREATE TABLE jobs (id bigserial PRIMARY KEY, body text)")
        console.done("adopt", "jobs", "--design", "heap", "--map", "id=id", "--map", "payload=body")
    with (
        locking(database_url, [table], [f"SELECT count(*) FROM {table}"]) as locked,
        closing(open_database(database_url, timeouts=HASTY)) as database,
    ):
        root, ddl = locked.names
        (found,) = table_locked(database).values()
        assert found.summary.startswith(root)
        assert f"stops {ddl}" in found.summary
        for verb in ("status", "check"):
            answer = console(verb, "jobs")
            assert root in answer.text + answer.err, verb
        assert found.repair is not None
        carry_out(found.repair, database)
        wait_until(lambda: waiters(database_url) == 0, "nobody waits")


def test_each_queue_that_one_root_stops_says_which_others(database_url: str) -> None:
    console, names = Console(database_url), ["bills", "mails", "orders"]
    for name in (*names, "free"):
        console.done("install", "fifo", name)
    behind = ["SELECT orders_push('x')", "SELECT orders_push('y')", "SELECT mails_push('x')"]
    with (
        locking(database_url, names, behind) as locked,
        closing(open_database(database_url, timeouts=HASTY)) as database,
    ):
        root, *ddl = locked.names
        found = table_locked(database)
        assert sorted(found) == names
        for name, its_ddl in zip(names, ddl, strict=True):
            others = [f"public.{one}" for one in names if one != name]
            assert found[name].summary.startswith(root)
            assert f"stops {its_ddl}" in found[name].summary
            assert found[name].evidence["stops_too"] == others
            assert f"{' and '.join(others)}" in found[name].consequence
        stopped = [found[name].evidence["stopped"] for name in names]
        assert [len(one) for one in stopped if isinstance(one, list)] == [1, 2, 3]
        repair = found["bills"].repair
        assert repair is not None
        carry_out(repair, database)
        wait_until(lambda: waiters(database_url) == 0, "nobody waits")
        assert not table_locked(database)


@pytest.mark.skipif(PROGRAM is None, reason="needs PgBouncer")
def test_behind_a_pooler_the_root_is_the_session_of_the_pool(database_url: str) -> None:
    """The sessions named are the server's; to end the root's ends its transaction, not the pool."""
    Console(database_url).done("install", "fifo", "orders")
    with pgbouncer(database_url, size=8) as pooler:
        url = make_url(database_url).set(port=make_url(pooler).port)
        pooled = url.render_as_string(hide_password=False)
        with (
            locking(pooled, ["orders"], ["SELECT orders_push('x')"], direct=database_url) as locked,
            closing(through(pooler, open_database(database_url))) as database,
        ):
            root, ddl = locked.names
            (seen,) = Sampler(database).sample().queues
            assert seen.problem.startswith(root)
            assert f"stops {ddl}" in seen.problem
            repair = table_locked(database)["orders"].repair
            assert database.pooled
            assert repair is not None
            carry_out(repair, database)
            wait_until(lambda: waiters(database_url) == 0, "nobody waits")
            assert not table_locked(database)
