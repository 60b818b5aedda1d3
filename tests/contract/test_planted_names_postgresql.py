"""Nothing that others have created in a schema of the search path is run by the console, or by the
functions that it installs."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from console.actions.install import missing_requirement, uninstall
from console.designs import DESIGNS
from console.engines import Database, open_database
from console.features.demo.embedded import EmbeddedServer
from tests.contract.client import Client
from tests.contract.installs import installed
from tests.contract.planted_names import plant
from tests.contract.test_every_statement import (
    adopt_and_forget,
    block_a_relay,
    use_everything,
    variants_to_use,
)
from tests.contract.variants import Variant, default
from tests.servers import connect, execute
from tests.tui import tour

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def planted(module_server: EmbeddedServer, report: Path) -> Iterator[Database]:
    """A superuser's connection to a database in which each name is planted."""
    url = module_server.create_database("planted")
    with connect(url) as connection:
        names = plant(connection, report)
        assert {"concat_ws", "format", "=", "||", "text", "timestamptz"} <= names
    with closing(open_database(url)) as database:
        yield database


def test_a_planted_name_runs_where_the_path_has_its_schema(planted: Database, report: Path) -> None:
    execute(
        planted.url.render_as_string(hide_password=False),
        "SELECT concat_ws(' ', now(), now(), now(), true)",
    )
    assert report.read_text().startswith("concat_ws(text, timestamp")
    report.write_text("")


def test_no_planted_name_is_run_by_any_verb(planted: Database, report: Path, long: bool) -> None:
    """As a superuser, who could be made to do anything."""
    for number, variant in enumerate(variants_to_use("postgresql", long=long)):
        if missing_requirement(planted, variant.design):
            continue
        use_everything(planted, variant, acts=number % 3 == 0)
        if "relay" in variant.design.verbs:
            block_a_relay(planted, variant)
    adopt_and_forget(planted)
    assert report.read_text() == ""


async def test_no_planted_name_is_run_by_any_screen(
    planted: Database, report: Path, long: bool
) -> None:
    ran = report.read_text
    designs = [name for name in DESIGNS if "postgresql" in DESIGNS[name].engines]
    for variant in (SHARED, *map(default, designs if long else ("claim", "split"))):
        if missing_requirement(planted, variant.design):
            continue
        client = installed(planted, variant, f"seen {variant}"[:40])
        client.push_many(client.payloads(*range(6)))
        Client(planted, client.queue.views[0]).pop_many(3)
        key = (tour.HERE, client.queue.schema, client.queue.name)
        async with tour.console_on(planted) as console:

            async def seen(what: str) -> None:
                await console.until(tour.has_read)
                assert ran() == "", what

            await seen("overview")
            await tour.queue_tour(console, key, seen)
            if variant is SHARED:
                await tour.screens_tour(console, key, seen)


ARGUMENTS = {
    "payload": "'{}'",
    "payloads": """'{"{}", "{}"}'""",
    "n": "2",
    "attempts": "1",
    "error": "'no'",
    "consumer": "'me'",
    "subscriber": "'a'",
    "due_at": "'2020-01-01'",
    "title": "'x'",
    "new_size": "500",
    "most": "10",
}
"""Of the installed functions. An id is that of the last push."""
SHARED = Variant(DESIGNS["ring"], {"size": "300", "subscribers": "a,b", "archive_at_pop": "on"})
LAST = ("complete", "fail", "sweep", "relay", "wait_end")


def call_every_function(connection: psycopg.Connection, queue: str) -> set[str]:
    """As any caller does, whose search path is the server's default. The names of the called."""
    rows = connection.execute(
        """SELECT p.proname, p.proargnames[1:p.pronargs] FROM pg_catalog.pg_proc AS p
        WHERE p.pronamespace OPERATOR(pg_catalog.=) 'public'::regnamespace
        AND pg_catalog.starts_with(p.proname::text, %s::text)""",
        [f"{queue}_"],
    ).fetchall()
    called: dict[str, list[str]] = {name[len(queue) + 1 :]: names for name, names in rows}
    pushed = ""
    for name in sorted(called, key=lambda one: (one in LAST, not one.startswith("push"))):
        given = {key: value for key, value in ARGUMENTS.items() if key in (called[name] or ())}
        if "id" in (called[name] or ()) and not name.startswith("push"):
            given["id"] = f"'{pushed}'"
        arguments = ", ".join(f"{key} => {value}" for key, value in given.items())
        row = connection.execute(
            f'SELECT * FROM public."{queue}_{name}"({arguments})'.encode()
        ).fetchone()
        pushed = str(row[0]) if name.startswith("push") and row else pushed
    return set(called)


def test_no_planted_name_is_run_by_any_installed_function(
    planted: Database, report: Path, long: bool
) -> None:
    called: set[str] = set()
    with connect(planted.url.render_as_string(hide_password=False)) as connection:
        for number, variant in enumerate([*variants_to_use("postgresql", long=long), SHARED]):
            queue = installed(planted, variant, f"called {number}").queue
            called |= call_every_function(connection, queue.name)
            uninstall(planted, queue, keep_archive=False, with_messages=True)
    assert {"push", "push_many", "pop", "pop_many", "complete", "fail", *LAST} <= called
    assert report.read_text() == ""
