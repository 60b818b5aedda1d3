"""A console under test: its feeds, its clock, and what it shows."""

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from textual.pilot import Pilot

from console.monitor.snapshot import QueueSnapshot
from console.tui import ConsoleApp
from console.tui.context import Setup
from console.tui.screens.help import HelpScreen
from console.tui.screens.overview import OverviewScreen
from console.tui.text import TextView
from console.tui.widgets.queue_table import QueueTable
from tests.servers import PATIENCE_SECONDS
from tests.tui.feeds import FakeClock, FakeFeed

_PAUSE_SECONDS = 0.02
_PATIENCE_PAUSES = int(PATIENCE_SECONDS / _PAUSE_SECONDS)


def picture(app: ConsoleApp) -> str:
    """Everything that is on the screen now, line by line."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def until(pilot: Pilot[None], holds: Callable[[], object]) -> None:
    """Let the console go on until it holds, and draw what has come."""
    for _ in range(_PATIENCE_PAUSES):
        if holds():
            await pilot.pause()
            return
        await pilot.pause(_PAUSE_SECONDS)
    pytest.fail(f"it never came to that:\n{picture(pilot.app)}")  # type: ignore[arg-type]


def invisible(app: ConsoleApp) -> list[str]:
    """The words on the screen that have the colour of what is behind them."""
    segments = [one for strip in app.screen._compositor.render_strips() for one in strip]
    return [
        text
        for text, style, _ in segments
        if style and style.color and style.color == style.bgcolor and text.strip(" █▐▌▀▄│─┤└┬┘┼")
    ]


@dataclass
class Opened:
    """What a test wants to know of a running console."""

    pilot: Pilot[None]
    feeds: Sequence[FakeFeed]
    clock: FakeClock

    @property
    def feed(self) -> FakeFeed:
        return self.feeds[0]

    @property
    def app(self) -> ConsoleApp:
        app = self.pilot.app
        assert isinstance(app, ConsoleApp)
        return app

    @property
    def overview(self) -> OverviewScreen:
        (screen,) = (one for one in self.app.screen_stack if isinstance(one, OverviewScreen))
        return screen

    def has_help_open(self) -> bool:
        return isinstance(self.app.screen, HelpScreen)

    @property
    def table(self) -> QueueTable:
        return self.overview.query_one(QueueTable)

    @property
    def cursor(self) -> str:
        """The name of the queue under the cursor."""
        key = self.table.queue_key
        return key[2] if key else ""

    @property
    def order(self) -> list[str]:
        """The names of the queues from the top, as they are drawn."""
        return [self.table.cells(key)["queue"].text for key in self.table.keys]

    def row(self, queue: str) -> dict[str, str]:
        """Every cell of a queue, by the column's name."""
        rows = [self.table.cells(key) for key in self.table.keys]
        (found,) = (row for row in rows if row["queue"].text == queue)
        return {name: cell.text for name, cell in found.items()}

    def words(self, selector: str) -> str:
        """What a line of the screen says."""
        return self.overview.query_one(selector, TextView).plain_text

    @property
    def picture(self) -> str:
        """Everything that is on the screen now, line by line."""
        return picture(self.app)

    async def give(self, *queues: QueueSnapshot, production: bool = False) -> None:
        """Draw a successful reading of the first feed."""
        self.feed.give(*queues, production=production)
        await self.pilot.pause()

    async def until(self, holds: Callable[[], object]) -> None:
        await until(self.pilot, holds)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()


def ended() -> None:
    """Wait for the threads of consoles that have ended: they hold connections."""
    for thread in threading.enumerate():
        if thread.name.startswith(("doctor ", "sampler ")):
            thread.join(20)


@asynccontextmanager
async def opened(
    *names: str, size: tuple[int, int] = (80, 24), **options: Any
) -> AsyncIterator[Opened]:
    """A console on fake feeds of these names."""
    clock = FakeClock()
    feeds = [FakeFeed(name) for name in names or ("prod-orders",)]
    app = ConsoleApp(feeds, Setup(clock=clock.clock, **options))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield Opened(pilot, feeds, clock)
    ended()
