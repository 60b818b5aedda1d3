"""A new queue: the form, its SQL, and on a real server the whole way to smoke test and audit."""

from console.engines import open_database
from console.errors import UsageError
from console.rights import Rights
from console.tui.dialogs.install_plan import InstallPlanDialog
from console.tui.places import Place
from console.tui.screens.audit import AuditScreen
from console.tui.screens.install import InstallScreen
from console.tui.screens.smoke import SmokeScreen
from console.tui.widgets.audit_table import AuditTable
from console.tui.widgets.field import Field
from console.tui.widgets.list_table import ListTable
from console.tui.widgets.sql_view import SqlView
from tests.tui.alone import alone, is_at, place, until
from tests.tui.opened import Opened


async def form(console: Opened) -> InstallScreen:
    console.app.open_install("prod")
    await console.pilot.pause()
    screen = console.app.screen
    assert isinstance(screen, InstallScreen)
    return screen


def fill(screen: InstallScreen, name: str, value: str) -> Field:
    """As if it was typed, without a key for each letter."""
    field = screen.query_one(f"#field-{name}", Field)
    field.value = value
    field.touched = True
    field.post_message(Field.Changed(field))
    return field


async def choose(console: Opened, screen: InstallScreen, design: str) -> None:
    table = screen.query_one("#designs", ListTable)
    table.move_cursor(table.keys.index(design))
    await console.pilot.pause()


async def test_each_design_has_its_paragraph_and_its_own_options() -> None:
    async with alone(places=[place()], size=(50, 14)) as console:
        screen = await form(console)
        await choose(console, screen, "ring")
        await console.pilot.pause()
        shown = {field.field_name for field in screen.query(Field) if field.display}
        assert {"size", "in_hand", "max_bytes"} <= shown
        assert not {"order", "dequeue", "conversation"} & shown
        assert "Promises" in console.picture
        await console.pilot.resize_terminal(160, 48)
        assert "preallocated ring with two" in console.picture
        assert screen.query_one("#field-max_bytes", Field).value == "1000"
        await choose(console, screen, "fifo")
        await console.pilot.pause()
        shown = {field.field_name for field in screen.query(Field) if field.display}
        assert "order" in shown
        assert "size" not in shown
        assert screen.query_one("#field-max_bytes", Field).value == "unlimited"


async def test_what_is_wrong_is_said_by_its_field_at_once() -> None:
    async with alone(places=[place()]) as console:
        screen = await form(console)
        await choose(console, screen, "ring")
        size = fill(screen, "size", "many")
        name = fill(screen, "name", "x" * 60)
        await console.pilot.pause()
        assert [field.is_wrong for field in (size, name)] == [True, True]
        assert "at most" in str(name.query_one(".form-help").render())
        fill(screen, "size", "20")
        fill(screen, "name", "orders")
        await console.pilot.pause()
        assert [field.is_wrong for field in (size, name)] == [False, False]
        assert screen.wanted() is not None
        fill(screen, "in_hand", "on")
        fill(screen, "archive_at_pop", "on")
        await console.pilot.pause()
        assert screen.wanted() is None
        assert "exclude each other" in console.picture


async def test_without_the_right_the_sql_can_be_read_and_nothing_runs() -> None:
    async with alone(places=[place(rights=Rights.OPERATOR)]) as console:
        screen = await form(console)
        await choose(console, screen, "fifo")
        fill(screen, "name", "[bold]orders")
        await console.press("enter", "enter")
        assert is_at(console, InstallPlanDialog)
        sql = console.app.screen.query_one(SqlView).text
        assert 'CREATE TABLE "public"."[bold]orders"' in sql
        assert not console.app.screen.query_one("#confirm").display
        await console.press("escape")
        assert is_at(console, InstallScreen)


async def test_on_production_only_the_name_confirms() -> None:
    async with alone(places=[place(production=True)]) as console:
        screen = await form(console)
        await choose(console, screen, "fifo")
        fill(screen, "name", "orders")
        wanted = screen.wanted()
        assert wanted is not None
        dialog = InstallPlanDialog(
            screen.desk, wanted.place, wanted.product, wanted.queue, production=True
        )
        console.app.push_screen(dialog)
        await console.pilot.pause()
        await console.press("y", "enter")
        assert "nothing was installed" in console.picture
        dialog.failed(UsageError("Taken.", why="By a table.", next_step="Another name."))
        await console.pilot.pause()
        for part in ("Taken.", "By a table.", "Another name."):
            assert part in console.picture


async def test_for_an_engine_alone_there_is_only_its_sql() -> None:
    async with alone() as console:
        console.app.open_install("")
        await console.pilot.pause()
        screen = console.app.screen
        assert isinstance(screen, InstallScreen)
        fill(screen, "connection", "/mssql")
        fill(screen, "name", "orders")
        await console.pilot.pause()
        assert "broker" in screen.query_one("#designs", ListTable).keys
        assert screen.query_one("#field-schema", Field).value == "dbo"
        await console.press("enter", "enter")
        assert is_at(console, InstallPlanDialog)
        assert "SET XACT_ABORT ON" in console.app.screen.query_one(SqlView).text


async def test_from_the_form_to_the_smoke_test_to_the_audit(database_url: str) -> None:
    database = open_database(database_url, label="prod")
    async with alone(places=[Place("prod", database, Rights.ADMIN)]) as console:
        screen = await form(console)
        await choose(console, screen, "fifo")
        fill(screen, "name", "orders")
        await console.press("enter", "enter")
        await until(console, lambda: is_at(console, InstallPlanDialog))
        await console.press("y", "enter")
        await until(console, lambda: "Installed public.orders" in console.picture)
        await console.press("enter")
        smoke = console.app.screen
        assert isinstance(smoke, SmokeScreen)
        await console.press("enter")
        await until(console, lambda: "ok   fifo, 340 messages" in console.picture)
        assert "340 of 340" in console.picture
        await console.press("escape")
        console.app.open_audit(key=("prod", "public", "orders"))
        await console.pilot.pause()
        audit = console.app.screen
        assert isinstance(audit, AuditScreen)
        table = audit.query_one(AuditTable)
        await until(console, lambda: table.keys)
        assert table.entry is not None
        assert (table.entry.verb, table.entry.queue) == ("install", "orders")
        # A name that is taken is said by its field, before anything runs.
        await console.press("escape")
        screen = await form(console)
        await choose(console, screen, "fifo")
        name = fill(screen, "name", "orders")
        await console.press("enter", "enter")
        await until(console, lambda: name.is_wrong)
        assert is_at(console, InstallScreen)
    database.close()
