"""A console under test: its feeds, its clock, and what it shows."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from textual.pilot import Pilot
from textual.screen import Screen

from console.engines import open_database
from console.monitor.snapshot import QueueSnapshot
from console.rights import Rights
from console.tui import ConsoleApp
from console.tui.context import Setup
from console.tui.open_connection import OpenConnection
from console.tui.screens.help import HelpScreen
from console.tui.screens.live import LiveScreen
from console.tui.screens.overview import OverviewScreen
from console.tui.text import TextView
from console.tui.widgets.field import Field
from console.tui.widgets.queue_table import QueueTable
from tests.servers import PATIENCE_SECONDS
from tests.tui.feeds import FakeClock, FakeFeed

_PAUSE_SECONDS = 0.02
_PATIENCE_PAUSES = int(PATIENCE_SECONDS / _PAUSE_SECONDS)
OnTop = TypeVar("OnTop", bound=Screen[Any])


def picture(app: ConsoleApp) -> str:
    """Everything that is on the screen now, line by line."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def invisible(app: ConsoleApp) -> list[str]:
    """The texts on the screen that have the colour of their background."""
    segments = [one for strip in app.screen._compositor.render_strips() for one in strip]
    return [
        text
        for text, style, _ in segments
        if style and style.color and style.color == style.bgcolor and text.strip(" █▐▌▀▄│─┤└┬┘┼")
    ]


@dataclass
class Running:
    """A running console: its keys, and what it shows."""

    pilot: Pilot[None]

    @property
    def app(self) -> ConsoleApp:
        app = self.pilot.app
        assert isinstance(app, ConsoleApp)
        return app

    @property
    def picture(self) -> str:
        return picture(self.app)

    def shows(self, *words: str) -> None:
        """All of these are on the screen now."""
        now = self.picture
        assert [word for word in words if word not in now] == [], now

    def is_at(self, kind: type[Screen[Any]]) -> bool:
        """Whether a screen or dialog of this kind is on top."""
        return isinstance(self.app.screen, kind)

    def on_top(self, kind: type[OnTop]) -> OnTop:
        """The screen or dialog on top, which must be of this kind."""
        screen = self.app.screen
        assert isinstance(screen, kind), screen
        return screen

    async def opens(
        self, kind: type[OnTop], open_it: Callable[..., object], *words: Any, **options: Any
    ) -> OnTop:
        """The screen or dialog that this function of the application opens."""
        open_it(*words, **options)
        await self.pilot.pause()
        return self.on_top(kind)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    def fill(self, name: str, value: str) -> Field:
        """Set a field as if it was typed, without a key for each letter."""
        field = self.app.screen.query_one(f"#field-{name}", Field)
        field.value = value
        field.touched = True
        field.post_message(Field.Changed(field))
        return field

    async def resize(self, columns: int, lines: int) -> None:
        await self.pilot.resize_terminal(columns, lines)
        await self.pilot.pause()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition is true and drawn."""
        for _ in range(_PATIENCE_PAUSES):
            if condition():
                await self.pilot.pause()
                return
            await asyncio.sleep(_PAUSE_SECONDS)
        pytest.fail(f"it never came to that:\n{self.picture}")


@dataclass
class Opened(Running):
    """A console on fake feeds, and its overview."""

    feeds: Sequence[FakeFeed] = ()
    clock: FakeClock = field(default_factory=FakeClock)

    @property
    def feed(self) -> FakeFeed:
        return self.feeds[0]

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

    def text_of(self, selector: str) -> str:
        """The text of a line of the screen."""
        return self.overview.query_one(selector, TextView).plain_text

    async def give(self, *queues: QueueSnapshot, production: bool = False) -> None:
        """Draw a successful reading of the first feed."""
        self.feed.give(*queues, production=production)
        await self.pilot.pause()


def threads_ended() -> None:
    """Wait for the threads of consoles that have ended: they hold connections."""
    for thread in threading.enumerate():
        if thread.name.partition(" ")[0] in {"doctor", "sampler", "job", "replay"}:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), thread.name


class Bare(ConsoleApp):
    """A console without an overview."""

    CSS_PATH = inspect.getfile(ConsoleApp).replace("app.py", "console.tcss")

    def get_default_screen(self) -> Screen[None]:
        return LiveScreen(self.context)


class Plain(ConsoleApp):
    """For tests of one widget: neither screens nor a style sheet."""

    CSS_PATH = None  # type: ignore[assignment]

    def get_default_screen(self) -> Screen[None]:
        return Screen()


@asynccontextmanager
async def opened(
    *names: str,
    size: tuple[int, int] = (80, 24),
    kind: type[ConsoleApp] = ConsoleApp,
    **options: Any,
) -> AsyncIterator[Opened]:
    """A console on fake feeds of these names."""
    clock = FakeClock()
    feeds = [FakeFeed(name) for name in names or ("prod-orders",)]
    app = kind(feeds, Setup(clock=clock.clock, **options))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield Opened(pilot, feeds, clock)
    threads_ended()


def alone(*names: str, **options: Any) -> AbstractAsyncContextManager[Opened]:
    """A console that opens on an empty screen, for tests of one screen."""
    return opened(*(names or ("prod",)), kind=Bare, **options)


def conn(name: str = "prod", rights: Rights = Rights.ADMIN, **more: Any) -> OpenConnection:
    """A connection without a server."""
    url = "postgresql+psycopg://u@127.0.0.1:1/x"
    database = open_database(url, label=name)
    return OpenConnection(name, database, rights, cli_options=("--profile", name), **more)
