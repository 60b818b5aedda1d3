"""An open console on a real server that dies, locks, hides sessions, or has huge payloads."""

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import pytest
from psycopg.sql import SQL, Identifier, Literal
from sqlalchemy import make_url
from textual.app import App, ComposeResult
from textual.command import CommandList

from console.actions.install import uninstall
from console.actions.push import push_many
from console.engines import Database, open_database
from console.features.demo.embedded import EmbeddedServer
from console.features.presets.screens import open_adopt
from console.monitor.messages import read_page
from console.monitor.sampler import Sampler
from console.rights import Rights
from console.tui import ConsoleApp
from console.tui.context import Setup
from console.tui.dialogs.dialog import Menu
from console.tui.findings import QueueKey
from console.tui.open_connection import OpenConnection, url_options
from console.tui.screens.form import Stage
from console.tui.screens.message import MessageScreen
from console.tui.screens.planned import ActionScreen
from console.tui.tabs.messages import MessagesTab
from console.tui.widgets.keyed_table import KeyedTable
from tests.servers import connect, fresh_database
from tests.tui.acting import database_at, make
from tests.tui.opened import Opened, opened, threads_ended

pytestmark = pytest.mark.slow

MAIL: QueueKey = ("here", "public", "mail")
RING: QueueKey = ("here", "public", "orders")
SIZES = ((50, 14), (20, 5), (160, 48), (80, 24))


@asynccontextmanager
async def watching(database: Database) -> AsyncIterator[Opened]:
    """A console that samples a database often."""
    conn = OpenConnection("here", database, Rights.ADMIN, cli_options=url_options(database))
    feed = Sampler(database, interval_seconds=0.2, name="here")
    app = ConsoleApp([feed], Setup([conn], rights="admin"))
    async with app.run_test(size=(80, 24)) as pilot:
        console = Opened(pilot)
        await console.until(lambda: bool(current_queues(console)))
        yield console
    threads_ended()


def current_queues(console: Opened) -> list[str]:
    """The queues whose figures are up to date."""
    store, now = console.app.context.store, console.app.context.clock.monotonic()
    return [view.label for view in store.queues(now) if view.stale_seconds is None]


@contextmanager
def queues_on(url: str) -> Iterator[tuple[Database, str]]:
    """A claim queue with messages in each state, a ring; and the key of a message."""
    with database_at(url) as database:
        mail = make(database, "mail", "claim", {"payload": "text"})
        make(database, "orders", "ring", {"size": "50"})
        yield database, read_page(database, mail, limit=100).messages[0].key


@dataclass(frozen=True)
class Kind:
    """A kind of screen: how it opens, and its text once it has its data."""

    name: str
    open: Callable[[ConsoleApp, str], None]
    pattern: str


KINDS = (
    Kind("overview", lambda *_: None, "orders"),
    Kind("findings", lambda app, _: app.open_queue(MAIL), "4 errors|clear|doctor"),
    Kind("messages", lambda app, _: app.open_queue(MAIL, "messages"), "14 messages|claimed"),
    Kind("errors", lambda app, _: app.open_queue(MAIL, "errors"), r"no \[bold\]good"),
    Kind("stuck", lambda app, _: app.open_queue(MAIL, "stuck"), "3 claims|tester"),
    Kind("waits-tab", lambda app, _: app.open_queue(MAIL, "waits"), "[Nn]obody waits|waits"),
    Kind("consumers", lambda app, _: app.open_queue(MAIL, "consumers"), "as of"),
    Kind("slots", lambda app, _: app.open_queue(RING, "slots"), "7 ready"),
    Kind("sql", lambda app, _: app.open_queue(MAIL, "sql"), "as this console installs it"),
    Kind("audit-tab", lambda app, _: app.open_queue(MAIL, "audit"), "install"),
    Kind("message", lambda app, key: app.open_message(MAIL, key), "attempts"),
    Kind("waits", lambda app, _: app.open_waits("here"), "Waits of here"),
    Kind("action", lambda app, _: app.open_action(MAIL, "requeue"), "filter"),
    Kind("audit", lambda app, _: app.open_audit("here"), "install"),
    Kind("connections", lambda app, _: app.open_connections(), "here"),
    Kind("install", lambda app, _: app.open_install("here"), "fifo"),
    Kind("adopt", lambda app, _: open_adopt(app.context, "here"), "table"),
)
SHORT = {"messages", "action"}
FEW = {"messages", "slots", "waits", "action", "audit"}
"""The screens that the short tier opens in every size."""


WITH_ROWS = {"messages": "14 messages", "consumers": "dbq-console, user"}
"""What is shown once the rows are there; until its session is known a consumer has another key."""


async def wait_for_text(console: Opened, pattern: str) -> None:
    """Wait until the pattern is on the screen."""
    await console.until(lambda: re.search(pattern, console.picture) is not None)


def cursor(console: Opened) -> str | None:
    """The key under the cursor of the screen's own table; None: it has none.

    While findings have no focus, their cursor stays at the most severe, which changes when the
    server dies.
    """
    tables = [
        table
        for table in console.app.screen.query(KeyedTable)
        if table.display and table.keys and not getattr(table, "stays_on_top", False)
    ]
    return tables[0].cursor_key if tables else None


@pytest.mark.long
async def test_each_screen_works_in_any_size_and_without_a_server(
    own_server: EmbeddedServer, *, long: bool
) -> None:
    kinds = [one for one in KINDS if long or one.name in FEW]
    with fresh_database(own_server.url) as url, queues_on(url) as (database, message):
        async with watching(database) as console:
            depth = len(console.app.screen_stack)
            for kind in kinds:
                kind.open(console.app, message)
                await wait_for_text(console, kind.pattern)
                for size in SIZES:
                    await console.resize(*size)
                assert re.search(kind.pattern, console.picture), kind.name
                while len(console.app.screen_stack) > depth:
                    console.app.pop_screen()
                await console.pilot.pause()
            own_server.kill()
            await console.until(lambda: "lost" in console.picture)
            for kind in kinds:
                kind.open(console.app, message)
                await console.press("r", "j", "space", "space", "enter")
                assert "lost" in console.picture, kind.name
                while len(console.app.screen_stack) > depth:
                    console.app.pop_screen()
                await console.pilot.pause()
            own_server.restart()
            console.app.context.sample_now()
            await console.until(lambda: len(current_queues(console)) == 2)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(one, id=one.name, marks=() if one.name in SHORT else pytest.mark.long)
        for one in KINDS
    ],
)
async def test_a_screen_keeps_its_cursor_while_the_server_dies_and_comes_back(
    own_server: EmbeddedServer, kind: Kind
) -> None:
    with fresh_database(own_server.url) as url, queues_on(url) as (database, message):
        async with watching(database) as console:
            kind.open(console.app, message)
            await wait_for_text(console, WITH_ROWS.get(kind.name, kind.pattern))
            await console.press("j")
            before = cursor(console)
            own_server.kill()
            await console.until(lambda: "lost" in console.picture)
            assert not current_queues(console)
            await console.press("r")
            assert cursor(console) == before
            own_server.restart()
            await console.press("r")
            await console.until(lambda: len(current_queues(console)) == 2)
            await console.until(lambda: "lost" not in console.picture)
            assert re.search(kind.pattern, console.picture)
            assert cursor(console) == before


async def test_locked_figures_are_unknown_and_not_zero_and_dropped_queues_disappear(
    database_url: str,
) -> None:
    with queues_on(database_url) as (database, _), connect(database_url) as holder:
        async with watching(database) as console:
            console.app.open_queue(MAIL, "messages")
            tab = console.app.screen
            await console.until(lambda: bool(tab.query(MessagesTab)))
            pane = tab.query_one(MessagesTab)
            await console.until(lambda: len(pane.table.keys) == 14)
            holder.execute("BEGIN")
            holder.execute("LOCK TABLE mail IN ACCESS EXCLUSIVE MODE")
            await console.press("r")
            await console.until(lambda: "lock" in console.picture)
            assert len(pane.table.keys) == 14
            await console.until(lambda: "?" in row(console))
            assert not re.search(r"\b0\b", row(console))
            holder.execute("ROLLBACK")
            await console.press("r")
            await console.until(lambda: "lock" not in console.picture)
            await console.until(lambda: "?" not in row(console))
            # It is dropped while its form is open.
            console.app.open_action(MAIL, "requeue")
            screen = console.on_top(ActionScreen)
            await console.until(lambda: screen.stage is Stage.FORM)
            conn = console.app.context.connections["here"]
            uninstall(database, conn.find(*MAIL[1:]), keep_archive=False, with_messages=True)
            await console.press("enter")
            await console.until(lambda: "was dropped or changed" in console.picture)
            assert screen.stage is Stage.FORM
            await console.press("escape", "escape")
            await console.until(lambda: current_queues(console) == ["orders"])


def row(console: Opened) -> str:
    """The figures in the overview that wait for a lock."""
    cells = console.table.cells(repr(MAIL)) if repr(MAIL) in console.table.keys else {}
    console.table.show_queues(
        console.app.context.store.queues(console.app.context.clock.monotonic())
    )
    return " ".join(cells[name].text for name in ("ready", "stuck", "errors") if name in cells)


async def test_a_login_that_may_not_see_other_sessions_is_shown_the_missing_right(
    database_url: str,
) -> None:
    role = make_url(database_url).database or ""
    with queues_on(database_url), connect(database_url) as admin, connect(database_url) as busy:
        for statement in (
            SQL("CREATE ROLE {role} LOGIN PASSWORD {word}"),
            SQL("GRANT USAGE ON SCHEMA dbq TO {role}"),
            SQL("GRANT SELECT ON ALL TABLES IN SCHEMA dbq, public TO {role}"),
        ):
            admin.execute(statement.format(role=Identifier(role), word=Literal(role)))
        url = make_url(database_url).set(username=role, password=role)
        busy.execute("BEGIN")
        busy.execute("SELECT * FROM mail FOR UPDATE")
        restricted = open_database(url.render_as_string(hide_password=False), label="here")
        try:
            async with watching(restricted) as console:
                console.app.open_waits("here")
                await console.until(lambda: "Not visible" in console.picture)
                assert "pg_read_all_stats" in console.picture
        finally:
            restricted.close()
            busy.execute("ROLLBACK")
            for statement in (SQL("DROP OWNED BY {role}"), SQL("DROP ROLE {role}")):
                admin.execute(statement.format(role=Identifier(role)))


ODD = "[bold]\u202eq\u2066"
PAYLOAD = "[bold]\x1b[31mred\x1b]0;title\x07\u202eright\u2066" + "x" * 10_000_000


async def test_control_characters_and_ten_megabytes_are_shown_escaped(database: Database) -> None:
    odd = make(database, ODD, "fifo", {"payload": "text"})
    with database.transaction("push") as connection:
        push_many(connection, odd, [PAYLOAD])
    key = read_page(database, odd, limit=100).messages[-1].key
    async with watching(database) as console:
        await console.until(lambda: "[bold]" in console.picture)
        console.app.open_message(("here", "public", ODD), key)
        screen = console.on_top(MessageScreen)
        await console.until(lambda: screen.message is not None)
        await console.press("enter")
        await console.until(lambda: "[31mred" in console.picture)
        for bad in "\x1b\x07\u202e\u2066":
            assert bad not in console.picture
        assert "[bold]␛[31mred␛]0;title␇" in console.picture
        assert re.search(r"10[,.]0\d\d|9\.5|10\.0 M", console.picture)


class Small(App[None]):
    """An application with only a list."""

    def compose(self) -> ComposeResult:
        yield Menu("release", "requeue", "purge")


async def test_paging_keys_work_in_a_list_of_height_zero() -> None:
    app = Small()
    async with app.run_test() as pilot:
        options = app.query_one(Menu)
        options.styles.height = options.styles.max_height = 0
        options.styles.border = None
        await pilot.press("end", "pageup", "pagedown")
        assert options.highlighted == 2
        options.styles.height = options.styles.max_height = 5
        await pilot.press("pageup")
        assert options.highlighted == 0
    async with opened() as console:
        await console.press("ctrl+p", "down")
        console.app.screen.query_one(CommandList).styles.height = 0
        await console.press("pageup", "pagedown", "down", "escape", "escape")
