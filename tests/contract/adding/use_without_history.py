"""The console without the feature `history`: the screens, and what else is off with it.

python -m tests.contract.adding.use_without_history URL
"""

import asyncio
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from console.doctor.checks import CODES
from console.engines import open_database
from console.tui.commands import TABS
from console.tui.screens.queue import QueueScreen
from console.tui.tabs.tab import TabBar
from tests.cli.calls import Console, call
from tests.tui.feeds import queue
from tests.tui.opened import conn, opened

NOT_HERE = "It belongs to the feature history, which is not in this console."


def ask(here: Console) -> None:
    """Commands that know of a past."""
    replay = call("--replay", ".", "--at", "03:00")
    assert (replay.status, replay.err.splitlines()[:2]) == (2, ["--replay is off.", NOT_HERE])
    here.done("install", "ring", "orders")
    here.done("push", "orders", "a")
    here.done("status", "orders")
    assert "unusual" not in {code.name for code in CODES}
    seen = here.done("consumers", "orders", "--seconds", "0").text
    assert "Gone: ? (nothing records it: the feature history is not in this console)" in seen
    assert here.done("report", "orders").text.startswith("# ")
    refused = here("consumers", "orders", "--recordings", ".")
    assert (refused.status, refused.err.splitlines()[:2]) == (2, ["--recordings is off.", NOT_HERE])
    for command, why in (
        ("pipeline", "It belongs to the feature lake, which needs history."),
        ("notify", "It belongs to the feature notify, which needs history."),
    ):
        off = call(command, "test")
        assert (off.status, off.err.splitlines()[:2]) == (2, [f"{command} is off.", why])


async def look(url: str) -> None:
    """A console that would record: its other screens and tabs are as before."""
    with closing(open_database(url, label="prod")) as database:
        connections = [replace(conn(), database=database)]
        async with opened(
            "prod", size=(160, 48), connections=connections, recordings=Path.cwd()
        ) as console:
            console.feed.give(queue("orders", "ring", gap=3, capacity=8))
            await console.press("enter")
            await console.until(lambda: console.is_at(QueueScreen))
            assert "history" not in TABS
            assert "9 Consumers" in console.picture
            assert "History" not in console.picture
            await console.press("9")
            await console.until(lambda: console.app.screen.query("#tab-consumers"))
            await console.press("0")
            assert console.app.screen.query_one(TabBar).is_mounted
            await console.press("colon", *"history", "enter")
            assert "There is no command 'history'" in console.picture
            console.app.open_connections()
            await console.pilot.pause()
            assert "recorded" not in console.picture


if __name__ == "__main__":
    ask(Console(sys.argv[1]))
    asyncio.run(look(sys.argv[1]))
