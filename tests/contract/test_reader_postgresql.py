"""A login that is only a reader (`dbq-console roles`): it reads all, the server refuses the rest.
So it does to an operator what is an admin's, and to an admin what is an owner's.

The console's own checks are off: a URL has all rights, and the check of the audit before an action
always passes. So the server refuses a reader at the audit; and a scribe, a reader who may write the
audit, at the queue itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from console import catalog
from console.catalog import audit
from console.errors import RefusedError
from console.features.demo.embedded import EmbeddedServer
from console.features.lake import replay as replaying
from console.features.lake import spark
from console.features.lake.spark import Tasks
from console.features.lake.table import QueueArchive
from console.rights import Rights
from tests.cli.calls import Answer, Console
from tests.cli.verbs import verbs
from tests.servers import connect, login, value
from tests.tools.local_tasks import LocalTasks
from tests.tui import tour
from tests.tui.acting import acting, database_at, make

HOLDER = "{holder}"
"""Placeholder for the session that holds rows of `held`."""
ORDERS = ("here", "public", "orders")
LOGINS = ("reader", "scribe")
MAP = ("--map", "id=id", "--map", "payload=body")
REFUSED = {
    "push": "push mail x",
    "push --lines": "push letters - --lines",
    "pop": "pop letters",
    "pop --complete": "pop mail --complete",
    "pop --fail": "pop orders --fail no",
    "complete": f"complete mail {UUID(int=1)}",
    "fail": f"fail mail {UUID(int=1)} --error no",
    "smoke": "smoke mail",
    "smoke --design": "smoke --design fifo",
    "smoke --live": "smoke empty --live",
    "bench": "bench --designs fifo --seconds 1 --rounds 1 --producers 1 --consumers 1",
    "prove": "prove --designs fifo",
    "install": "install fifo new",
    "uninstall": "uninstall mail --with-messages --yes mail",
    "upgrade": "upgrade broken --yes broken",
    "adopt": f"adopt theirs --design fifo {' '.join(MAP)}",
    "forget": "forget adopted",
    "requeue": "requeue mail --yes mail",
    "requeue --to": "requeue mail --to letters --yes mail",
    "release": "release mail --force --unknown --yes mail",
    "purge": "purge letters --yes letters",
    "purge --permanently": "purge letters --permanently --yes letters",
    "archive": "archive jobs --yes jobs",
    "restore": "restore letters --yes letters",
    "reschedule": "reschedule timers --in 1h --yes timers",
    "resize": "resize orders 60 --yes orders",
    "relay": "relay orders --yes orders",
    "subscribe": "subscribe events c --yes events",
    "unsubscribe": "unsubscribe events b --yes events",
    "skip": "skip events b --to now --yes events",
    "maintain": "maintain bloated --yes bloated",
    "pause": "pause mail --yes mail",
    "resume": "resume decided --yes",
    "protect": "protect mail --yes",
    "unprotect": "unprotect decided --yes decided",
    "note": "note deployed mail",
    "silence": "silence bloat mail",
    "ack": "ack claims_unknown mail",
    "unsilence": "unsilence bloat decided",
    "end-session": f"end-session held {HOLDER} --yes held",
    "doctor --fix": "doctor broken --idle-for 0s --fix --yes broken",
    "pipeline archive": "pipeline archive letters --retention 0s --lake {lake} --yes letters",
}
"""Every verb that writes, in each of its ways; `pipeline replay` has a test of its own."""
OWNERS: tuple[str, ...] = (
    "uninstall",
    "upgrade",
    "resize",
    "relay",
    "subscribe",
    "unsubscribe",
    "skip",
    "pause",
)
OWNERS += ("resume", "end-session", "doctor --fix")
"""Those of them that a member of dbq_admin may only run on what is its own: here all is a
superuser's, also the session."""
ADMINS = ("smoke", "smoke --design", "install", "adopt", "forget", "bench", "prove")
"""Those that a member of dbq_operator may not run either."""
READING = {
    "status": "status",
    "messages": "messages mail --payload",
    "errors": "errors mail",
    "stuck": "stuck mail",
    "waits": "waits --seconds 0",
    "consumers": "consumers mail --seconds 0",
    "doctor": "doctor --idle-for 0s",
    "report": "report orders --idle-for 0s",
    "audit": "audit",
    "check": "check",
    "discover": "discover",
    "roles": "roles",
    "designs": "designs",
    "help": "help doctor",
    "sql": "sql purge orders",
    "config": "config show",
    "completion": "completion bash",
    "busy": "busy",
    "unattended": "unattended",
    "pipeline runs": "pipeline runs",
}
LAKES = ("pipeline compact", "pipeline expire", "pipeline erase")
"""Theirs is in tests/pipeline."""
NOT_TESTED_HERE = {
    *("demo", "record", "serve-metrics", "history", "notify", "timeline", "why"),
    *("pipeline rollup", "pipeline verify", "pipeline lake"),
    *LAKES,
    *("preset list", "preset show", "preset trust", "preset check"),
}
"""They run until they are stopped, use no database, or are tested with logins elsewhere."""
SERVER_ERRORS = ("permission denied", "must be owner", "must be superuser", "denied to")


@dataclass(frozen=True)
class Site:
    """A database with something to do for every verb."""

    owner: str
    logins: dict[str, Console]
    holder: int
    lake: Path

    def call(self, words: str, login: str = "reader") -> Answer:
        filled = words.format(holder=self.holder, lake=self.lake)
        return self.logins[login](*filled.split(), stdin=b"x\n")


@pytest.fixture(scope="module")
def conn(module_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Queues in every state, the roles, and the logins `reader` and `scribe`."""
    url = module_server.create_database("rights")
    owner = Console(url)
    lake = tmp_path_factory.mktemp("lake")
    with database_at(url) as database:
        make(database, "mail", "claim", {})
        make(database, "letters", "fifo", {"archive_at_pop": "on"})
        make(database, "jobs", "status", {})
        make(database, "timers", "pending", {})
        make(database, "orders", "ring", {"size": "50", "in_hand": "on"})
        make(database, "events", "ring", {"size": "50", "subscribers": "a,b"})
        for name in ("held", "bloated", "broken", "empty", "decided"):
            make(database, name, "fifo", {})
    assert len(owner.drained("empty")) == 7
    owner.done("purge", "letters", "--filter", "limit=2", "--yes", "letters")
    owner.done("pause", "decided", "--yes", "decided")
    owner.done("protect", "decided", "--yes")
    owner.done("silence", "bloat", "decided")
    with connect(url) as connection:
        connection.execute(owner.done("roles").out)
        _add_faults(connection)
        owner.done("adopt", "adopted", "--design", "fifo", *MAP)
        connection.execute("GRANT SELECT ON theirs, adopted TO dbq_reader")
    reads, writes = "GRANT dbq_reader TO {}", "GRANT INSERT, UPDATE ON dbq.action TO {}"
    with (
        login(url, reads) as reader,
        login(url, reads, writes) as scribe,
        login(url, "GRANT dbq_operator TO {}") as operator,
        login(url, "GRANT dbq_admin TO {}") as admin,
        connect(url) as held,
        held.transaction(),
    ):
        held.execute("SELECT held_pop()")
        urls = {"reader": reader, "scribe": scribe, "operator": operator, "admin": admin}
        logins = {role: Console(theirs) for role, theirs in urls.items()}
        yield Site(url, logins, held.info.backend_pid, lake)


def _add_faults(connection: psycopg.Connection) -> None:
    """Make work for upgrade, the doctor and maintain, and create tables to adopt."""
    connection.execute("ALTER TABLE bloated SET (autovacuum_enabled = off)")
    connection.execute("INSERT INTO bloated (payload) SELECT 'x' FROM generate_series(1, 30000)")
    connection.execute("DELETE FROM bloated")
    connection.execute("DROP FUNCTION broken_push_many")
    connection.execute(
        "UPDATE mail SET processing_started_at = processing_started_at - '1h'::interval"
    )
    for name in ("theirs", "adopted"):
        connection.execute(
            SQL("CREATE TABLE {} (id int PRIMARY KEY, body text)").format(Identifier(name))
        )
    connection.execute("SELECT pg_stat_force_next_flush()")


@contextmanager
def unchecked() -> Iterator[None]:
    """The console does not check whether the audit may be written; jobs of the pipeline run without
    Spark, in this process."""

    @contextmanager
    def no_session(*_: object, **__: object) -> Iterator[None]:
        yield None

    @contextmanager
    def here(*_: object) -> Iterator[Tasks]:
        yield LocalTasks()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "may_write", lambda *_: True)
        patch.setattr(spark, "require_extra", lambda *_: None)
        patch.setattr(spark, "session", no_session)
        patch.setattr(spark, "tasks", here)
        yield


def contents(url: str, kinds: str = "rS") -> str:
    """All contents of the database except the server's statistics."""
    with connect(url) as connection:
        tables = connection.execute(
            "SELECT c.relkind, format('%I.%I', n.nspname, c.relname) FROM pg_class AS c "
            "JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE n.nspname IN ('public', 'dbq') AND c.relname NOT LIKE 'action%' ORDER BY 2"
        ).fetchall()
        functions = connection.execute(
            "SELECT oid::regprocedure::text FROM pg_proc "
            "WHERE pronamespace = 'public'::regnamespace ORDER BY 1"
        ).fetchall()
        rows = [
            sorted(map(str, connection.execute(f"SELECT * FROM {name}".encode()).fetchall()))
            for kind, name in tables
            if kind in kinds
        ]
    return repr((tables, functions, rows))


def test_every_verb_is_covered() -> None:
    known = {name for name, _ in verbs()}
    written = {" ".join(w for w in name.split() if not w.startswith("--")) for name in REFUSED}
    assert written | {"pipeline replay"} | READING.keys() | NOT_TESTED_HERE == known
    assert set(REFUSED) - known >= {"doctor --fix", "requeue --to"}
    asking = {
        name
        for name, verb in verbs()
        if any("--yes" in parameter.opts for parameter in verb.params)
    }
    # discover --adopt confirms like adopt, for each table that it found.
    assert asking - {"pipeline replay", "discover", *LAKES} <= written


def test_a_reader_can_run_every_verb_that_only_reads(
    conn: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBQ_RIGHTS", "read-only")
    for verb, words in READING.items():
        answer = conn.call(words)
        assert answer.status in {0, 1 if verb in {"doctor", "check"} else 0}, answer
        assert answer.out
        if verb != "pipeline runs":  # which quotes errors from runs of other tests
            assert not any(bad in answer.text + answer.err for bad in ("denied", "Could not"))


@pytest.mark.parametrize("login", LOGINS)
def test_the_server_refuses_every_verb_that_writes(conn: Site, login: str, long: bool) -> None:
    """For a reader most verbs fail at the audit: the short tier runs some of them."""
    before = contents(conn.owner)
    with unchecked():
        for verb in REFUSED if long or login == "scribe" else [*REFUSED][::3]:
            _refused(verb, conn.call(REFUSED[verb], login))
            assert not long or contents(conn.owner) == before, verb
    assert contents(conn.owner) == before
    assert value(conn.owner, f"SELECT pid FROM pg_stat_activity WHERE pid = {conn.holder}")


@pytest.mark.parametrize("login", ["operator", "admin"])
def test_the_server_refuses_every_verb_of_a_role_above(conn: Site, login: str) -> None:
    """What is undone gives no number of a sequence back."""
    before = contents(conn.owner, "r")
    with unchecked():
        for verb in (*OWNERS, *(ADMINS if login == "operator" else ())):
            _refused(verb, conn.call(REFUSED[verb], login))
    assert contents(conn.owner, "r") == before
    assert value(conn.owner, f"SELECT pid FROM pg_stat_activity WHERE pid = {conn.holder}")


def _refused(verb: str, answer: Answer) -> None:
    output = answer.text + answer.err
    assert any(words in output for words in SERVER_ERRORS), answer
    # The doctor's exit status is that of the queue, which is not repaired.
    assert answer.status == (1 if verb == "doctor --fix" else 4), answer
    assert "Traceback" not in output


@pytest.mark.parametrize("login", LOGINS)
def test_the_server_refuses_the_replay_of_archived_messages(conn: Site, login: str) -> None:
    """The job only: the verb reads the lake before it, with Spark."""
    before = contents(conn.owner)
    source = QueueArchive("elsewhere", "public", "old", "table", ("a.parquet",))
    row: Any = {"message": "a1 1", "payload": b"x", "title": None, "due_us": None}
    with unchecked(), database_at(conn.logins[login].url) as database:
        with database.transaction("look", read_only=True) as connection:
            queue = catalog.find(connection, "letters")
        offered = replaying.ArchivedMessages(queue, str(conn.lake), source, (), 1, None, None)
        with pytest.raises(RefusedError) as refused:
            replaying.replay(database, offered, [row])
    assert any(words in refused.value.why for words in SERVER_ERRORS)
    assert contents(conn.owner) == before


TABS_SHOW = {
    "findings": "consumption not known",
    "messages": "14 messages",
    "errors": "4 errors in 1 group",
    "stuck": "3 claims",
    "waits": "as of ",
    "slots": "43 free",
    "sql": "all as this console installs it",
    "audit": "1 action",
    "history": "Nothing is recorded here.",
    "consumers": "as of ",
    "timeline": "1 event",
    "why": "too little is known",
}
"""What each tab of a ring shows of `orders`."""
SCREENS_SHOW = {
    "all waits": "as of ",
    "all actions": "adopt",
    "verbs": "it needs the right operator",
    "a form": "Enter makes the plan",
    "install": "you can plan it here",
    "adopt": "theirs",
    "smoke": "it needs the right admin",
    "bench": "It needs the right admin",
    "runs": "No job has been run",
    "pipeline": "needs the right operator",
    "connections": "read-only",
    "help": "Ctrl",
}
"""What every other screen shows."""


@pytest.mark.long
async def test_every_screen_works_for_a_reader(
    conn: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # without the runs that were refused
    words = {"overview": "function broken_push_many is missing", **TABS_SHOW, **SCREENS_SHOW}
    words |= {"a message": "Enter reads the payload", "its payload": "orders 9"}
    seen = set()
    with database_at(conn.logins["reader"].url) as database:
        async with tour.console_on(database, rights=Rights.READ_ONLY) as console:

            async def shows(what: str) -> None:
                await console.until(lambda: words[what] in console.picture)
                for bad in ("denied", "Could not"):
                    assert bad not in console.picture, f"{what}:\n{console.picture}"
                seen.add(what)

            await shows("overview")
            await tour.queue_tour(console, ORDERS, shows)
            await tour.screens_tour(console, ORDERS, shows)
    assert seen == words.keys()


@pytest.mark.long
async def test_the_server_refuses_a_verb_started_on_a_screen(conn: Site) -> None:
    before = contents(conn.owner)
    with unchecked(), database_at(conn.logins["scribe"].url) as database:
        async with acting(database, "letters", size=(110, 40)) as console:
            await console.open("letters", "purge")
            await console.plan()
            await console.confirm("letters")
            assert any(words in console.picture for words in SERVER_ERRORS), console.picture
    assert contents(conn.owner) == before
