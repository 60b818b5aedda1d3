"""Screens of features: the commands after `:` that open them, and their keys."""

from functools import partial
from typing import Any

import pytest

from console.features.bench.screens.bench import BenchScreen
from console.features.lake.screens.job import PipelineScreen
from console.features.lake.screens.runs import RunsScreen
from tests.tui.feeds import queue
from tests.tui.opened import Opened, alone, conn, opened

pytestmark = pytest.mark.slow

KEY = ("prod", "public", "mail")


def fields(console: Opened) -> dict[str, str]:
    return {name: text for name, text in console.app.screen.form.values.items() if text}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("line", "screen", "expected"),
    [
        ("runs", RunsScreen, {}),
        ("bench", BenchScreen, {"designs": "all"}),
        (
            "bench prod --designs ring,fifo --held-xmin",
            BenchScreen,
            {"designs": "ring,fifo", "held-xmin": "yes"},
        ),
        ("pipeline rollup --days 2026-03-28", PipelineScreen, {"days": "2026-03-28"}),
        (
            "pipeline replay mail reason=pop --filter 'error~no route' --lake /l",
            PipelineScreen,
            {"filter": 'reason=pop "error~no route"', "lake": "/l"},
        ),
        ("pipeline archive mail", PipelineScreen, {}),
    ],
)
async def test_a_command_opens_its_screen_with_its_fields(
    line: str, screen: type[Any], expected: dict[str, str]
) -> None:
    async with alone(connections=[conn()], size=(120, 40)) as console:
        await console.give(queue("mail", "claim"))
        console.app.run_command(line)
        await console.until(lambda: console.is_at(screen))
        if expected:
            await console.until(lambda: expected.items() <= fields(console).items())


@pytest.mark.parametrize("on_queue", [False, True])
async def test_the_keys_of_features_open_their_screens(on_queue: bool) -> None:
    """On the overview, on a queue's screen."""
    async with opened("prod", connections=[conn()], size=(120, 40)) as console:
        await console.give(queue("mail", "claim"))
        if on_queue:
            console.app.open_queue(KEY)
            await console.pilot.pause()
        for key, screen in (("P", RunsScreen), ("B", BenchScreen)):
            await console.press(key)
            await console.until(partial(console.is_at, screen))
            await console.press("escape")
