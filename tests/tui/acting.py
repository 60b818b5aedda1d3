"""A console whose actions run on a real server, and queues with messages in each state."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from textual.widgets import Input

from console.actions.pop import complete, fail, pop_many
from console.actions.push import push_many
from console.catalog import Queue
from console.engines import Database, open_database
from console.monitor.message import Masks
from console.monitor.messages import read_page
from console.rights import Rights
from console.tui.app import ConsoleApp
from console.tui.context import Setup
from console.tui.dialogs.verbs import VerbsDialog
from console.tui.findings import QueueKey
from console.tui.open_connection import OpenConnection, url_options
from console.tui.screens.form import Stage
from console.tui.screens.planned import ActionScreen
from console.tui.widgets.summary import BackgroundLine
from tests.tools.queues import install_queue
from tests.tui.feeds import FakeFeed, queue
from tests.tui.opened import Running

READY, CLAIMED, FAILED, DONE = 7, 3, 4, 2


@contextmanager
def database_at(url: str) -> Iterator[Database]:
    database = open_database(url, label="here")
    try:
        yield database
    finally:
        database.close()


def make(database: Database, name: str, design_name: str, options: Mapping[str, str]) -> Queue:
    """A queue with seven ready messages, and some in each other state that its design has."""
    made = install_queue(database, name, design_name, **options)
    payloads = [f"{name} {number}" for number in range(READY + CLAIMED + FAILED + DONE)]
    with database.transaction("push") as connection:
        if made.finishes:
            push_many(connection, made, payloads)
        else:
            push_many(connection, made, payloads[:READY])
    if made.finishes:
        with database.transaction("pop") as connection:
            popped = pop_many(connection, made, CLAIMED + FAILED + DONE, "tester")
        with database.transaction("finish") as connection:
            for message in popped[CLAIMED : CLAIMED + FAILED]:
                assert fail(connection, made, message, "no [bold]good")
            for message in popped[CLAIMED + FAILED :]:
                assert complete(connection, made, message)
    return made


def states(database: Database, queue_: Queue) -> Counter[str]:
    """How many messages are in each state."""
    return Counter(message.state for message in read_page(database, queue_, limit=1000).messages)


@dataclass
class Acting(Running):
    """A running console whose test opens and runs actions."""

    conn: OpenConnection
    feed: FakeFeed
    examined: list[QueueKey | None]

    @property
    def screen(self) -> ActionScreen:
        return self.on_top(ActionScreen)

    @property
    def dialog(self) -> VerbsDialog:
        return self.on_top(VerbsDialog)

    @property
    def line(self) -> str:
        """The text of the line at the bottom."""
        return self.app.screen.query_one(BackgroundLine).plain_text

    def at(self, stage: Stage) -> bool:
        return self.is_at(ActionScreen) and self.screen.stage is stage

    def key(self, name: str) -> QueueKey:
        return ("here", "public", name)

    async def open(
        self, name: str, verb: str, words: Sequence[str] = (), **options: str
    ) -> ActionScreen:
        """The form, or the plan where the form has no fields."""
        self.app.open_action(self.key(name), verb, words, **options)
        await self.pilot.pause()
        await self.until(
            lambda: self.at(Stage.FORM) or self.at(Stage.PLAN) or self.at(Stage.PLANNING)
        )
        return self.screen

    async def plan(self) -> ActionScreen:
        """Press Enter on the form, if it is shown, and wait for the plan."""
        if self.screen.stage is Stage.FORM:
            await self.pilot.press("enter")
        return await self.wait_for_plan()

    async def wait_for_plan(self) -> ActionScreen:
        await self.until(lambda: self.screen.stage in {Stage.PLAN, Stage.FORM})
        return self.screen

    async def confirm(self, word: str) -> ActionScreen:
        """Type the word, press Enter, and wait for the result."""
        self.screen.query_one("#confirm", Input).value = word
        await self.pilot.press("enter")
        return await self.wait_for_result()

    async def wait_for_result(self) -> ActionScreen:
        await self.until(lambda: self.screen.stage is Stage.RESULT)
        return self.screen

    async def leave(self) -> None:
        while self.is_at(ActionScreen):
            await self.pilot.press("escape")
            await self.pilot.pause()

    def text_of(self, selector: str) -> str:
        return str(self.screen.query_one(selector).plain_text)  # type: ignore[attr-defined]


@asynccontextmanager
async def acting(
    database: Database,
    *names: str,
    rights: Rights = Rights.ADMIN,
    size: tuple[int, int] = (80, 24),
    production: bool = False,
    masks: Masks = (),
) -> AsyncIterator[Acting]:
    """A console on one database: the test supplies the figures, actions really run."""
    conn = OpenConnection(
        "here",
        database,
        rights,
        masks=masks,
        production=production,
        cli_options=url_options(database),
    )
    feed = FakeFeed("here", interval_seconds=3600.0)
    app = ConsoleApp([feed], Setup(connections=[conn]))
    examined: list[QueueKey | None] = []
    app.examine = examined.append  # type: ignore[method-assign, assignment]
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        feed.give(*(queue(name) for name in names))
        await pilot.pause()
        yield Acting(pilot, conn, feed, examined)
