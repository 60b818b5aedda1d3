"""A console that opens on an empty screen: for tests of one screen that need no other."""

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from textual.screen import Screen

from console.engines import open_database
from console.rights import Rights
from console.tui import ConsoleApp
from console.tui.context import Setup
from console.tui.open_connection import OpenConnection
from console.tui.screens.live import LiveScreen
from tests.tui.feeds import FakeClock, FakeFeed
from tests.tui.opened import Opened


class Bare(ConsoleApp):
    """Without an overview."""

    CSS_PATH = inspect.getfile(ConsoleApp).replace("app.py", "console.tcss")

    def get_default_screen(self) -> Screen[None]:
        return LiveScreen(self.context)


class Plain(ConsoleApp):
    """For tests of one widget: neither screens nor a style sheet."""

    CSS_PATH = None  # type: ignore[assignment]

    def get_default_screen(self) -> Screen[None]:
        return Screen()


@asynccontextmanager
async def alone(
    *names: str, size: tuple[int, int] = (80, 24), **options: Any
) -> AsyncIterator[Opened]:
    """A console on fake feeds of these names."""
    clock = FakeClock()
    feeds = [FakeFeed(name) for name in names or ("prod",)]
    app = Bare(feeds, Setup(clock=clock.clock, **options))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield Opened(pilot, feeds, clock)


def conn(name: str = "prod", rights: Rights = Rights.ADMIN, **more: Any) -> OpenConnection:
    """A connection of which nobody answers."""
    url = "postgresql+psycopg://u@127.0.0.1:1/x"
    database = open_database(url, label=name)
    return OpenConnection(name, database, rights, cli_options=("--profile", name), **more)


def is_at(console: Opened, kind: type[Screen[Any]]) -> bool:
    """Whether such a screen, or dialog, is on top."""
    return isinstance(console.app.screen, kind)


async def until(console: Opened, condition: Callable[[], Any]) -> None:
    """Let the console go on until something is so."""
    await console.until(condition)
