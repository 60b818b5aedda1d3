"""The pictures of the README, of a live demo: `python -m tests.tui.pictures` renders them again."""

import asyncio
from dataclasses import replace
from pathlib import Path

from textual.pilot import Pilot

from console.engines import open_database
from console.features.demo.running import Demo
from console.monitor.limits import DEFAULTS
from console.monitor.sampler import Sampler
from console.rights import Rights
from console.tui import ConsoleApp
from console.tui.context import Setup
from console.tui.open_connection import OpenConnection, url_options
from tests.tui.opened import Running

FOLDER = Path(__file__).parents[2] / ".github" / "pictures"
SIZE = (160, 44)
_TRAFFIC_SECONDS = 45.0
"""Long enough for charts with a shape, and for claims to be stuck."""


async def _take(app: ConsoleApp, pilot: Pilot[None], name: str) -> None:
    await pilot.pause(1.0)
    svg = app.export_screenshot(title="dbq-console")
    (FOLDER / f"{name}.svg").write_text(svg, encoding="utf-8")
    print(f"{name}.svg, {len(svg):,} characters")


async def _all(app: ConsoleApp) -> None:
    async with app.run_test(size=SIZE) as pilot:
        console = Running(pilot)
        await console.until(lambda: "orders" in console.picture)
        await pilot.pause(_TRAFFIC_SECONDS)
        await _take(app, pilot, "overview")
        keys = {
            view.snapshot.design: view.key
            for view in app.context.store.queues(app.context.clock.monotonic())
        }
        app.open_queue(keys["ring"])
        await _take(app, pilot, "queue")
        app.pop_screen()
        app.open_queue(keys["ring"], "slots")
        await console.until(lambda: "■" in console.picture)
        await _take(app, pilot, "slots")
        app.pop_screen()
        app.open_action(keys["claim"], "release")
        await pilot.pause(1.0)
        await pilot.press("enter")
        await console.until(lambda: "cut-off" in console.picture)
        await _take(app, pilot, "plan")


def main() -> None:
    """Start the demo, take the pictures, end it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with Demo() as demo:
        database = open_database(demo.url, label="demo")
        limits = replace(DEFAULTS, stuck_after_seconds=demo.stuck_after_seconds)
        conn = OpenConnection(
            "demo", database, Rights.ADMIN, lambda _: limits, cli_options=url_options(database)
        )
        feed = Sampler(database, stuck_after_seconds=demo.stuck_after_seconds, name="demo")
        asyncio.run(_all(ConsoleApp([feed], Setup([conn], rights=Rights.ADMIN.word))))


if __name__ == "__main__":
    main()
