"""Pictures of the screens: fixed size, fixed clock, posted readings. Update: --snapshot-update."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from console.tui import ConsoleApp
from console.tui.context import Setup
from tests.tui.feeds import FakeClock, FakeFeed, nine, queue

Compare = Callable[..., bool]
Before = Callable[[Pilot[Any]], Awaitable[None]]


def console(*names: str, **options: Any) -> tuple[ConsoleApp, list[FakeFeed], FakeClock]:
    """A console on fake feeds, still to be run."""
    clock = FakeClock()
    feeds = [FakeFeed(name) for name in names]
    return ConsoleApp(feeds, Setup(clock=clock.clock, **options)), feeds, clock


def four_minutes(feed: FakeFeed, clock: FakeClock) -> None:
    """Readings with a tide in them, so that the trends have a shape."""
    for second in range(0, 240, 5):
        tide = 0.5 + 0.5 * math.sin(second / 25) ** 2
        feed.give(*(replace(one, ready=int((one.ready or 0) * tide)) for one in nine()))
        clock.now += 5
    feed.give(*nine(), production=True)


def test_overview_at_80_by_24(snap_compare: Compare) -> None:
    app, (feed,), clock = console("prod-orders", rights="operator", banner="demo: a banner")

    async def before(pilot: Pilot[Any]) -> None:
        four_minutes(feed, clock)
        await pilot.pause()
        await pilot.press("j")
        await pilot.pause()

    assert snap_compare(app, terminal_size=(80, 24), run_before=before)


def test_overview_at_160_by_48_with_a_lost_connection(snap_compare: Compare) -> None:
    app, (prod, stage, audit), clock = console("prod-orders", "stage", "audit", rights="operator")

    async def before(pilot: Pilot[Any]) -> None:
        await pilot.pause()
        audit.give(queue("trail", "claim", claimed=2, stuck=0, errors=0, ready=4_711))
        await pilot.pause()
        four_minutes(prod, clock)
        stage.give(queue("orders", "ring", ready=3, gap=3, capacity=100), queue("[bold]x"))
        audit.fail(retry_seconds=22)
        clock.now += 2
        await pilot.pause()
        await pilot.press("s")
        await pilot.pause()

    assert snap_compare(app, terminal_size=(160, 48), run_before=before)


def test_paused_and_filtered(snap_compare: Compare) -> None:
    app, (feed,), clock = console("prod-orders")

    async def before(pilot: Pilot[Any]) -> None:
        feed.give(*nine())
        await pilot.pause()
        await pilot.press("space", "slash", *"errors:>0", "enter", "j")
        clock.now += 65
        feed.give(*nine())
        await pilot.pause()

    assert snap_compare(app, terminal_size=(80, 24), run_before=before)


def test_help(snap_compare: Compare) -> None:
    app, (feed,), _ = console("prod-orders")

    async def before(pilot: Pilot[Any]) -> None:
        feed.give(*nine())
        await pilot.pause()
        await pilot.press("question_mark")
        await pilot.pause()

    assert snap_compare(app, terminal_size=(80, 48), run_before=before)


def test_nothing_configured(snap_compare: Compare) -> None:
    app, _, _ = console(config_path=Path("~/.config/dbq-console/config.toml"))
    assert snap_compare(app, terminal_size=(80, 24))


def test_without_colours(snap_compare: Compare, monkeypatch: Any) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app, (feed,), clock = console("prod-orders")

    async def before(pilot: Pilot[Any]) -> None:
        four_minutes(feed, clock)
        await pilot.pause()
        await pilot.press("space")
        await pilot.pause()

    assert snap_compare(app, terminal_size=(80, 24), run_before=before)
