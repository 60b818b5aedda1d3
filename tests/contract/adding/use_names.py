"""The screen of names: by `:`, in the palette, in the help.

python -m tests.contract.adding.use_names
"""

import asyncio

from console.tui.screens.names import NamesScreen  # type: ignore[import-untyped]  # the copy's
from textual.widgets import Input

from console.tui.dialogs.command_line import entries
from tests.tui.feeds import queue
from tests.tui.opened import alone, conn


async def press_it() -> None:
    async with alone(connections=[conn()]) as console:
        console.feed.give(queue("mail"), queue("orders"))
        await console.press("colon", *"nam", "tab")
        assert console.app.screen.query_one(Input).value.strip() == "names"
        await console.press("enter")
        await console.pilot.pause()
        assert console.is_at(NamesScreen)
        assert "mail, orders" in console.picture
        await console.press("n")
        assert "MAIL, ORDERS" in console.picture
        await console.press("question_mark")
        await console.pilot.pause()
        assert "the names in upper case" in console.picture
        await console.press("escape", "escape")
        assert not console.is_at(NamesScreen)
        site = console.app.command_context(console.app.screen)
        assert any(entry[0] == "names" for entry in entries(site)), [*entries(site)]


if __name__ == "__main__":
    asyncio.run(press_it())
