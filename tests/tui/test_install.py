"""A new queue: the form, its SQL; install, smoke test and audit on a real server."""

import pytest

from console.actions import smoke
from console.actions.smoke_result import SmokeProgress, SmokeResult
from console.engines import Database
from console.errors import UsageError
from console.load.call_log import Latency
from console.rights import Rights
from console.tui.open_connection import OpenConnection
from console.tui.screens.audit import AuditScreen
from console.tui.screens.form import Stage
from console.tui.screens.install import InstallScreen
from console.tui.screens.smoke import SmokeScreen, Trial
from console.tui.widgets.field import Field
from console.tui.widgets.plan_pane import SqlView
from console.verbs.queues import INSTALL
from console.verbs.verb import texts_from_words
from tests.tui.opened import Opened, alone, conn

pytestmark = pytest.mark.slow

ORDERS = ("prod", "public", "orders")


async def form(console: Opened) -> InstallScreen:
    return await console.opens(InstallScreen, console.app.open_install, "prod")


async def choose(console: Opened, screen: InstallScreen, design: str) -> None:
    table = screen.table
    table.move_cursor(table.keys.index(design))
    await console.pilot.pause()


async def test_each_design_shows_its_text_and_options_and_invalid_values_are_reported() -> None:
    async with alone(connections=[conn()], size=(50, 14)) as console:
        screen = await form(console)
        table = screen.table
        assert (*table.keys[:2], table.cursor_key) == ("fifo", "naive", "fifo")
        await choose(console, screen, "ring")
        await console.pilot.pause()
        shown = {field.field_name for field in screen.query(Field) if field.display}
        assert {"size", "in_hand", "max_bytes"} <= shown
        assert not {"order", "dequeue", "conversation"} & shown
        assert "Promises" in console.picture
        await console.resize(160, 48)
        assert "preallocated ring with two" in console.picture
        assert screen.query_one("#field-max_bytes", Field).value == "1000"
        await choose(console, screen, "fifo")
        await console.pilot.pause()
        shown = {field.field_name for field in screen.query(Field) if field.display}
        assert "order" in shown
        assert "size" not in shown
        assert screen.query_one("#field-max_bytes", Field).value == "unlimited"
        await choose(console, screen, "ring")
        size = console.fill("size", "many")
        name = console.fill("name", "x" * 60)
        await console.pilot.pause()
        assert [field.has_error for field in (size, name)] == [True, True]
        assert "at most" in str(name.query_one(".field-help").render())
        console.fill("size", "20")
        console.fill("name", "orders")
        await console.pilot.pause()
        assert [field.has_error for field in (size, name)] == [False, False]
        assert screen.install_request() is not None
        console.fill("in_hand", "on")
        console.fill("archive_at_pop", "on")
        await console.pilot.pause()
        assert screen.install_request() is None
        assert "exclude each other" in console.picture


@pytest.mark.parametrize(("width", "how"), [(50, "-narrow"), (100, "-normal"), (160, "-broad")])
async def test_a_form_is_laid_out_for_its_width_when_it_opens(width: int, how: str) -> None:
    async with alone(connections=[conn()], size=(width, 40)) as console:
        screen = await form(console)
        await console.pilot.pause()
        assert screen.classes & {"-narrow", "-normal", "-broad"} == {how}
        await console.resize(60, 40)
        assert screen.classes & {"-narrow", "-normal", "-broad"} == {"-narrow"}


async def test_the_install_form_takes_a_command_lines_values_and_returns_them() -> None:
    async with alone(connections=[conn()], size=(160, 48)) as console:
        screen = await console.opens(
            InstallScreen,
            console.app.open_install,
            "prod",
            design="ring",
            name="-late",
            option="size=20 in_hand=on",
        )
        assert screen.design.name == "ring"
        request = screen.install_request()
        assert request is not None
        assert request.queue.options["size"] == "20"
        words = ["--option", "size=20", "--option", "in_hand=on", "--", "ring", "-late"]
        assert request.words == words
        assert texts_from_words(INSTALL, words) == {
            "design": "ring",
            "name": "-late",
            "option": "size=20 in_hand=on",
        }


async def test_without_the_right_an_install_shows_its_sql_and_runs_nothing() -> None:
    async with alone(connections=[conn(rights=Rights.OPERATOR)]) as console:
        screen = await form(console)
        await choose(console, screen, "fifo")
        console.fill("name", "[bold]orders")
        await console.press("enter", "enter")
        await console.until(lambda: screen.stage is Stage.PLAN)
        sql = screen.query_one(SqlView).text
        assert 'CREATE TABLE "public"."[bold]orders"' in sql
        assert not screen.query_one("#confirm").display
        assert "installing needs admin" in console.picture
        await console.press("escape")
        assert screen.stage is Stage.FORM
        smoke_screen = await console.opens(SmokeScreen, console.app.open_smoke, ORDERS)
        await console.press("enter")
        assert "needs the right admin" in console.picture
        assert not smoke_screen.runs
        assert not console.app.context.action_runs.all


async def test_an_install_on_production_requires_the_queues_name() -> None:
    async with alone(connections=[conn(production=True)]) as console:
        screen = await form(console)
        await choose(console, screen, "fifo")
        console.fill("name", "orders")
        request = screen.install_request()
        assert request is not None
        screen.show_plan(request)
        await console.pilot.pause()
        assert "It runs on PRODUCTION prod in one transaction" in console.picture
        await console.press("y", "enter")
        assert "'y' does not match" in console.picture
        assert not console.app.context.action_runs.all
        screen.plan_failed(UsageError("Taken.", why="By a table.", next_step="Another name."))
        await console.pilot.pause()
        console.shows("Taken.", "By a table.", "Another name.")
        for field in ("schema", "name"):  # whatever words its name has in it
            screen.plan_failed(UsageError(f"No {field}: 'queue name'.", about=field))
            await console.pilot.pause()
            assert f"No {field}: 'queue name'." in screen.form[field]._error_text


async def test_without_a_connection_the_install_screen_shows_only_an_engines_sql() -> None:
    async with alone() as console:
        screen = await console.opens(InstallScreen, console.app.open_install, "")
        console.fill("connection", "/mssql")
        console.fill("name", "orders")
        await console.pilot.pause()
        assert "broker" in screen.table.keys
        assert screen.query_one("#field-schema", Field).value == "queues"
        await console.press("enter", "enter")
        assert screen.stage is Stage.PLAN
        assert "SET XACT_ABORT ON" in screen.query_one(SqlView).text


async def test_a_queue_is_installed_smoke_tested_and_shown_in_the_audit(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with alone(connections=[OpenConnection("prod", database, Rights.ADMIN)]) as console:
        screen = await form(console)
        await choose(console, screen, "fifo")
        console.fill("name", "orders")
        await console.press("enter", "enter")
        await console.until(lambda: screen.stage is Stage.PLAN)
        await console.press("y", "enter")
        await console.until(lambda: "Installed public.orders" in console.picture)
        await console.press("enter")
        trial = console.on_top(SmokeScreen)
        # A smoke test that is stopped leaves nothing.
        monkeypatch.setattr(smoke, "_MESSAGES_EACH", 100_000)
        await console.press("enter")
        await console.until(lambda: trial._trial is not None and trial._trial.progress)
        await console.press("t")
        await console.until(lambda: not trial.runs and "stopped" in console.picture)
        with database.transaction("look", read_only=True) as connection:
            leftovers = connection.exec_driver_sql(
                "SELECT count(*) FROM pg_class WHERE starts_with(relname, 'dbq_smoke_')"
            ).scalar_one()
        assert leftovers == 0
        monkeypatch.setattr(smoke, "_MESSAGES_EACH", 10)
        await console.press("enter")
        await console.until(lambda: "ok   fifo, 70 messages" in console.picture)
        assert "70 of 70" in console.picture
        await console.press("escape")
        audit = await console.opens(AuditScreen, console.app.open_audit, key=ORDERS)
        table = audit.table
        await console.until(lambda: table.keys)
        assert table.row is not None
        assert (table.row.entry.verb, table.row.entry.queue) == ("install", "orders")
        # A name that is taken is reported at its field, before anything runs.
        await console.press("escape")
        screen = await form(console)
        await choose(console, screen, "fifo")
        name = console.fill("name", "orders")
        await console.press("enter", "enter")
        await console.until(lambda: name.has_error)
        assert console.is_at(InstallScreen)


async def test_a_failed_smoke_test_shows_what_is_wrong() -> None:
    async with alone(connections=[conn()]) as console:
        screen = await console.opens(SmokeScreen, console.app.open_smoke, ORDERS)
        trial = Trial()
        latency = Latency(1.0, 2.0, 3.0)
        trial.take(SmokeProgress(100, 40, 340, 2.0, latency, latency))
        trial.result = SmokeResult(
            "orders", "fifo", "lax", 340, 3, 0, 0, 0, 0, latency, latency, ("boom\x1b[31m",)
        )
        screen._trial = trial
        screen.draw()
        await console.pilot.pause()
        console.shows("NOT OK", "lost          3", "boom␛[31m", "40 of 340")
