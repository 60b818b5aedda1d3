"""A walk through every screen of a console on a real server."""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from console.engines import Database
from console.features.bench.screens import open_bench
from console.features.lake.screens import open_job
from console.features.presets.screens import open_adopt
from console.monitor.sampler import Sampler
from console.rights import Rights
from console.tui import ConsoleApp
from console.tui.context import Setup
from console.tui.findings import QueueKey
from console.tui.open_connection import OpenConnection, url_options
from console.tui.screens.queue import TABS
from tests.tui.opened import Running, threads_ended

HERE = "here"
SCREENS: Mapping[str, Callable[[ConsoleApp, QueueKey], object]] = {
    "all waits": lambda app, _: app.open_waits(HERE),
    "all actions": lambda app, _: app.open_audit(HERE),
    "verbs": lambda app, key: app.open_actions(key),
    "a form": lambda app, key: app.open_action(key, "purge"),
    "install": lambda app, _: app.open_install(HERE),
    "adopt": lambda app, _: open_adopt(app.context, HERE),
    "smoke": lambda app, key: app.open_smoke(key),
    "bench": lambda app, _: open_bench(app.context, HERE),
    "runs": lambda app, _: app.run_command("runs"),
    "pipeline": lambda app, key: open_job(app.context, "archive", key),
    "connections": lambda app, _: app.open_connections(),
    "help": lambda app, _: app.action_help(),
}
"""Every screen but the overview, a queue and a message."""

Seen = Callable[[str], Awaitable[None]]


@asynccontextmanager
async def console_on(
    database: Database, *, rights: Rights = Rights.ADMIN, size: tuple[int, int] = (100, 30)
) -> AsyncIterator[Running]:
    """A console that samples a server, as `dbq-console --url` opens it."""
    here = OpenConnection(HERE, database, rights, cli_options=url_options(database))
    feed = Sampler(database, interval_seconds=60.0, name=HERE)
    app = ConsoleApp([feed], Setup([here], rights=rights.word))
    async with app.run_test(size=size) as pilot:
        yield Running(pilot)
    threads_ended()


async def queue_tour(console: Running, key: QueueKey, seen: Seen) -> None:
    """Each tab of a queue, and one of its messages with its payload; `seen` is awaited on each."""
    for tab in TABS:
        console.app.open_queue(key, tab.NAME)
        await seen(tab.NAME)
        await console.press("escape")
    console.app.open_queue(key, "messages")
    await seen("messages")
    await console.press("enter")
    await seen("a message")
    await console.press("enter")
    await seen("its payload")
    await console.press("escape", "escape")


async def screens_tour(console: Running, key: QueueKey, seen: Seen) -> None:
    """Each other screen, on a queue where it needs one."""
    for name, open_it in SCREENS.items():
        open_it(console.app, key)
        await seen(name)
        await console.press("escape")


def has_read() -> bool:
    """Whether no screen waits for what it reads."""
    return not any(thread.name.startswith("job") for thread in threading.enumerate())
