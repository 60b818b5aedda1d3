"""One tab of a queue on a screen of its own, with a navigator that only records its calls."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from textual.app import ComposeResult
from textual.widgets import Footer

from console.tui.context import Context
from console.tui.findings import QueueKey
from console.tui.open_connection import OpenConnection
from console.tui.screens.live import LiveScreen
from console.tui.tabs.tab import QueueTab
from console.tui.text import TextView
from tests.tui.opened import Running, alone

Tab = TypeVar("Tab", bound=QueueTab)

KEY: QueueKey = ("prod", "public", "mail")


@dataclass
class RecordingNavigator:
    """A navigator that records its calls and opens nothing."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def open_queue(self, key: QueueKey, tab: str = "") -> None:
        self.calls.append(("queue", key, tab))

    def open_message(self, key: QueueKey, message: str) -> None:
        self.calls.append(("message", key, message))

    def open_waits(self, connection: str) -> None:
        self.calls.append(("waits", connection))

    def open_actions(self, key: QueueKey, words: Sequence[str] = (), state: str = "") -> None:  # noqa: ARG002
        self.calls.append(("actions", key, *words))

    def open_action(
        self,
        key: QueueKey,
        verb: str,
        words: Sequence[str] = (),
        queue: object = None,  # noqa: ARG002
        /,
        **options: str,
    ) -> None:
        self.calls.append((verb, key, *words, *options.items()))

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: self.calls.append((name, *args))


class OneTab(LiveScreen):
    """A screen that has only the tab."""

    def __init__(self, context: Context, tab: QueueTab) -> None:
        super().__init__(context)
        self.tab = tab

    def compose(self) -> ComposeResult:
        yield self.tab
        yield Footer()

    def draw(self) -> None:
        pass

    def action_refresh_now(self) -> None:
        super().action_refresh_now()
        self.tab.refresh_now()


@dataclass
class Shown(Running, Generic[Tab]):
    """The tab and its navigator."""

    tab: Tab
    navigator: RecordingNavigator

    def text_of(self, selector: str) -> str:
        """The text of a line of the tab."""
        return self.tab.query_one(selector, TextView).plain_text

    async def show(self, result: Any) -> None:
        """Draw a result of the database."""
        self.tab.show_result(result)  # type: ignore[attr-defined]
        await self.pilot.pause()

    async def renew(self) -> None:
        """Another tab of this kind on a new screen: a tenth of the cost of a new console."""
        while len(self.app.screen_stack) > 1:
            self.app.pop_screen()
        self.tab, self.navigator = await _open_tab(self, type(self.tab), self.tab.key)


@asynccontextmanager
async def one_tab(
    kind: type[Tab],
    *,
    key: QueueKey = KEY,
    size: tuple[int, int] = (80, 24),
    connections: Sequence[OpenConnection] = (),
) -> AsyncIterator[Shown[Tab]]:
    """A tab of a queue, without a database unless `connections` has one."""
    async with alone(key[0], size=size, connections=connections) as console:
        yield Shown(console.pilot, *await _open_tab(console, kind, key))


async def _open_tab(
    console: Running, kind: type[Tab], key: QueueKey
) -> tuple[Tab, RecordingNavigator]:
    navigator: Any = RecordingNavigator()
    console.app.context.navigator = navigator
    tab = kind(console.app.context, key)
    console.app.push_screen(OneTab(console.app.context, tab))
    await console.pilot.pause()
    tab.shown = True
    return tab, navigator
