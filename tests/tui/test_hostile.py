"""No screen sends control characters of names, payloads, errors or pastes to the terminal."""

import pytest
from textual import events
from textual.widgets import Input

from console.engines import Database
from console.errors import ConnectionFailedError
from console.rights import Rights
from console.tui.open_connection import OpenConnection
from console.tui.screens.message import MessageScreen
from console.tui.screens.overview import OverviewScreen
from console.tui.screens.queue import QueueScreen
from console.tui.tabs.messages import MessagesTab
from tests.tools.hostile import TEXTS, control_characters
from tests.tui.acting import make
from tests.tui.feeds import broken, queue
from tests.tui.opened import Opened, opened

pytestmark = pytest.mark.slow

NAMES = [text for text in TEXTS if text.strip()]
WORST = "\x1b[2J\x9b31m\u202eq\u2028[red]r\ns: all clear"


async def test_hostile_names_are_shown_escaped_on_the_overview_and_other_screens(
    long: bool,
) -> None:
    async with opened(WORST, NAMES[4], size=(120, 40)) as console:
        first, second = console.feeds
        first.give(
            *(queue(name, "status", schema=name, errors=2) for name in NAMES),
            broken("[bold]x", WORST, f"[blue]gone[/blue] {WORST}"),
        )
        second.fail(ConnectionFailedError(WORST, why=f"{WORST}\n{NAMES[0]}"))
        await console.pilot.pause()
        assert control_characters(console.picture) == []
        console.shows("[red", "␛[2J")
        for keys in (["v"], ["tab", "enter"], ["escape", "c"]):
            await console.press(*keys)
            assert control_characters(console.picture) == [], keys
        console.app.open_queue((WORST, NAMES[0], NAMES[0]))
        await console.pilot.pause()
        assert console.is_at(QueueScreen)
        assert control_characters(console.picture) == []
        console.app.open_queue((WORST, "public", "[bold]x"))
        await console.pilot.pause()
        console.shows("public.[bold]x", "[blue]gone[/blue]")
        assert control_characters(console.picture) == []
        await console.press("colon")
        console.app.screen.query_one(Input).value = "queue "
        await console.press("tab", "tab")
        assert control_characters(console.picture) == []
        await _back_to_overview(console)
        # A paste is text as well.
        for key in ("slash", "colon"):
            for text in (WORST, "x" * 20_000) if long else (WORST,):
                await console.press(key)
                console.app.post_message(events.Paste(text))
                await console.pilot.pause()
                assert text.splitlines()[0][:5] in console.app.screen.query_one(Input).value
                assert control_characters(console.picture) == [], (key, text)
                await _back_to_overview(console)


async def _back_to_overview(console: Opened) -> None:
    while not console.is_at(OverviewScreen):
        await console.press("escape")
    await console.press("escape")


async def test_hostile_messages_are_shown_escaped_on_every_screen_of_a_queue(
    database: Database,
) -> None:
    name = "\x1b[2J\x9b1m\u202eq [red]x"
    made = make(database, name, "status", {})
    with database.autocommit("make its messages hostile") as connection:
        for column, text in (("text_data", WORST), ("errors", WORST), ("title", WORST)):
            connection.exec_driver_sql(
                f'UPDATE public."{name}" SET {column} = %(text)s WHERE {column} IS NOT NULL',
                {"text": text},
            )
    conn = OpenConnection("here", database, Rights.ADMIN, cli_options=("--profile", WORST))
    async with opened("here", size=(120, 40), connections=[conn]) as console:
        await console.give(queue(name, "status", ready=7, errors=4, claimed=3, done=2))
        console.app.open_queue(("here", "public", name), "messages")
        await console.until(lambda: console.app.screen.query(MessagesTab))
        for digit in "34562":
            await console.press(digit)
            await console.pilot.pause(0.2)
            assert control_characters(console.picture) == [], digit
        pane = console.app.screen.query_one(MessagesTab)
        await console.until(lambda: len(pane.table.keys) > 9)
        assert control_characters(console.picture) == []
        await console.press("slash")
        pane.query_one(Input).value = "error~clear"
        await console.press("enter")
        await console.until(lambda: len(pane.table.keys) == 4)
        assert "␛[2J" in console.picture
        await console.press("enter")
        await console.until(lambda: console.is_at(MessageScreen))
        await console.until(lambda: "all clear" in console.picture)
        assert control_characters(console.picture) == []
        await console.press("o")
        assert control_characters(console.picture) == []
        await console.press("escape", "escape")
        console.app.open_action(
            ("here", made.schema, name), "requeue", [f"error~{WORST}"], to=WORST
        )
        await console.until(lambda: console.app.screen.query(Input))
        await console.pilot.pause(0.3)
        assert control_characters(console.picture) == []
