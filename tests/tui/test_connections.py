"""Connections: their states, new ones, typed passwords, what profiles configure."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from console import tui
from console.catalog import installed_queue
from console.config import DISPLAY_ZONE, load
from console.config.passwords import Secret
from console.designs import DESIGNS
from console.errors import ConnectionFailedError
from console.rights import Login
from console.tui import ConsoleApp, open_connection
from console.tui.context import Setup
from console.tui.dialogs.dialog import PasswordDialog
from console.tui.open_connection import open_profile
from console.tui.screens.connections import ConnectionFormDialog, ConnectionsScreen
from console.tui.screens.overview import OverviewScreen
from console.tui.widgets.keyed_table import KeyedTable
from tests.tui.opened import Opened, alone, conn, picture

PROMPT = """\
[profiles.prod]
url = "postgresql+psycopg://app@127.0.0.1:1/orders"
password = "prompt"
"""


async def test_a_console_without_connections_shows_how_to_get_one() -> None:
    app = ConsoleApp(setup=Setup(config_path=Path("/etc/dbq/[x].toml")))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        shown = picture(app)
        assert "dbq-console --url postgresql+psycopg://user@host:5432/database" in shown
        assert "dbq-console demo" in shown
        assert "/etc/dbq/[x].toml" in shown
        await pilot.press("escape", "q", "question_mark", "escape", "r", "j")
        assert app.is_running
        await pilot.press("ctrl+q")


async def test_each_connection_has_a_row_and_the_selected_one_its_details() -> None:
    here = replace(conn(), url="postgresql+psycopg://u@h/[x]", origin="/etc/dbq.toml:3")
    options = {"rights": "read-only by this session only", "config_path": Path("/etc/dbq.toml")}
    async with alone("prod", "stage", connections=[here], size=(50, 14), **options) as console:
        console.feeds[0].give(production=True)
        console.feeds[1].fail()
        console.app.open_connections()
        await console.pilot.pause()
        for size in ((50, 14), (160, 48)):
            await console.resize(*size)
            console.shows("PRODUCTION", "connection refused", "postgresql+psycopg://u@h/[x]")
        screen = console.on_top(ConnectionsScreen)
        table = screen.query_one("#connection-table", KeyedTable)
        assert table.cells("stage")["state"].text == "lost"
        assert table.cells("prod")["production"].text == "PRODUCTION"
        # The result of its test is shown below.
        error = ConnectionFailedError("Could not connect.", why="refused", next_step="Start it.")
        screen.show_test_result("prod", error)
        await console.pilot.pause()
        console.shows("Could not connect.", "refused", "Start it.")


async def test_a_plain_text_password_is_never_written(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    async with alone(connections=[conn()], config_path=path) as console:
        console.app.open_connections()
        await console.pilot.pause()
        await console.press("n")
        assert console.is_at(ConnectionFormDialog)
        console.fill("name", "prod")
        url = console.fill("url", "postgresql+psycopg://u:secret@h/x")
        await console.pilot.pause()
        assert url.has_error
        await console.press("enter")
        assert not path.exists()
        console.fill("url", "postgresql+psycopg://u@h/x")
        source = console.fill("password", "env")
        console.fill("source", "no name")
        await console.press("enter")
        assert not path.exists()
        assert source.display
        console.fill("source", "ORDERS_PASSWORD")
        await console.press("enter")
        assert 'password = "${env:ORDERS_PASSWORD}"' in path.read_text()
        assert 'rights = "read-only"' in path.read_text()


async def test_a_new_connection_opens_without_a_restart(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TEST_URL", database_url)
    path = tmp_path / "new" / "config.toml"
    app = ConsoleApp(setup=Setup(config_path=path))
    async with app.run_test(size=(80, 24)) as pilot:
        console = Opened(pilot)
        await console.press("n")
        console.fill("name", "prod")
        console.fill("url", "${env:A_TEST_URL}")
        await console.press("enter")
        await console.until(lambda: isinstance(app.screen, OverviewScreen))
        await console.until(lambda: "● prod" in console.picture)
        app.open_connections()
        await console.until(lambda: "alive" in console.picture)
        await console.press("t")
        await console.until(lambda: "it answers" in console.picture)
        assert "superuser" in console.picture
        assert database_url not in path.read_text()
        conn = app.context.connections["prod"]
    conn.database.close()


async def test_a_password_can_be_typed_in_the_console(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(PROMPT)
    configuration = load({"DBQ_CONFIG": str(path), "HOME": str(tmp_path)})
    opening = open_profile(configuration.profiles()[0])
    credentials = opening.conn.credentials
    assert credentials is not None
    with pytest.raises(ConnectionFailedError) as caught:
        credentials()
    assert "typed" in caught.value.why
    async with alone("prod", connections=[opening.conn]) as console:
        assert console.is_at(PasswordDialog)
        console.app.screen.query_one(Input).value = "s3cret"
        await console.pilot.pause()
        assert "s3cret" not in console.picture
        await console.press("enter")
        assert not console.is_at(PasswordDialog)
        assert console.feed.samples_requested == 1
    assert credentials().password == "s3cret"
    assert not credentials.needs_typing
    credentials.set_password(Secret("other"))
    assert credentials().password == "other"


TWO = """
stuck_after = "10m"
[profiles.a]
url = "postgresql+psycopg://u@127.0.0.1:1/a"
interval = "3s"
production = true
[profiles.a.queues.slow]
stuck_after = "2h"
depth = { critical = 7 }
[profiles.b]
url = "mssql+pyodbc://u@127.0.0.1:1/b"
"""
CAN_WRITE = Login(*[name == "writes" for name in Login.__dataclass_fields__])

ArgumentsOf = Callable[[str], dict[str, Any]]


@pytest.fixture
def arguments_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ArgumentsOf:
    """Opens a configuration; returns the arguments of the application."""

    def open_it(text: str) -> dict[str, Any]:
        file = tmp_path / "config.toml"
        file.write_text(text)
        given: dict[str, Any] = {}

        def app(feeds: object, setup: Setup) -> ConsoleApp:
            given.update(vars(setup), feeds=feeds)
            return ConsoleApp()

        monkeypatch.setattr(tui, "require_terminal", lambda: None)
        monkeypatch.setattr(tui, "_run", lambda _: None)
        monkeypatch.setattr(tui, "ConsoleApp", app)
        configuration = load({"DBQ_CONFIG": str(file), "HOME": str(tmp_path)})
        zone = configuration.defaults[DISPLAY_ZONE]
        tui.run_profiles(configuration.profiles(), config_path=file, zone=zone)
        return given

    return open_it


def test_each_queue_has_the_thresholds_of_its_own_profile(
    arguments_of: ArgumentsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    samplers: list[dict[str, Any]] = []

    class Recorded:
        def __init__(self, *_: object, **options: Any) -> None:
            samplers.append(options)

    monkeypatch.setattr(open_connection, "Sampler", Recorded)
    given = arguments_of(TWO)
    queues = [installed_queue("public", name, DESIGNS["claim"], {}) for name in ("slow", "x")]
    stuck = [[sampler["stuck_after_seconds"](queue) for queue in queues] for sampler in samplers]
    assert stuck == [[7200.0, 600.0], [600.0, 600.0]]
    assert [sampler["interval_seconds"] for sampler in samplers] == [3.0, 1.0]
    depths = [[given["thresholds"][n](q.name)["depth"].critical for q in queues] for n in "ab"]
    assert depths == [[7, None], [None, None]]
    assert given["production"] == {"a"}


def test_who_enforces_the_rights_depends_on_the_engine(arguments_of: ArgumentsOf) -> None:
    rights = arguments_of(TWO)["rights"]
    assert rights["a"](None) == rights["b"](None) == "read-only"
    assert rights["a"](CAN_WRITE) == "read-only by this session only"
    assert rights["b"](CAN_WRITE) == "read-only, not enforced by the server"


@pytest.mark.parametrize(
    ("top", "a", "b", "shown"),
    [
        ("Asia/Tokyo", "", "", "Asia/Tokyo"),
        ("Asia/Tokyo", "Asia/Aden", "Asia/Aden", "Asia/Aden"),
        ("Asia/Tokyo", "Asia/Aden", "", "Asia/Tokyo"),
        ("Asia/Tokyo", "Asia/Aden", "Asia/Dubai", "Asia/Tokyo"),
    ],
)
def test_the_clock_has_the_zone_that_all_profiles_share_or_the_default(
    arguments_of: ArgumentsOf, top: str, a: str, b: str, shown: str
) -> None:
    lines = [f'display_zone = "{top}"']
    for name, zone in (("a", a), ("b", b)):
        lines += [f"[profiles.{name}]", f'url = "postgresql+psycopg://u@127.0.0.1:1/{name}"']
        lines += [f'display_zone = "{zone}"'] if zone else []
    assert str(arguments_of("\n".join(lines))["zone"]) == shown
